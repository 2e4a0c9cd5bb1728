//! Reads [`ModelConfig`] from Hugging Face's `config.json`.

use serde_json::Value;

use super::config::{LayerConfig, ModelConfig};
use super::config_fields::Fields;
use super::error::ModelError;
use super::experts::{Experts, layers_with_experts};
use super::family::{Bias, Family, Windows};
use super::kernels::Activation;
use super::known_fields;
use super::rope::Rope;

impl ModelConfig {
    /// Reads a Hugging Face `config.json`, also in older layouts. Unsupported features of the model (other rotary
    /// embeddings, quantized weights) are errors that say what is supported, and so are fields that are not known
    /// and may change the result.
    pub fn from_json(json: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of(json)?;
        let family = Family::from_config(&fields)?;
        refuse_unsupported(&fields, family)?;
        let traits = family.traits();

        let hidden_size = fields.size("hidden_size")?;
        let num_heads = fields.size("num_attention_heads")?;
        let default_kv_heads = match fields.0.contains_key("num_key_value_heads") {
            true => None, // null stands for as many as query heads
            false => traits.num_key_value_heads,
        };
        let num_kv_heads = fields.optional_size("num_key_value_heads")?.or(default_kv_heads);
        let num_kv_heads = num_kv_heads.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(ModelError::Config(format!(
                "num_attention_heads is {num_heads} and num_key_value_heads is {num_kv_heads}; the first must be a \
                 multiple of the second"
            )));
        }
        let head_dim = match fields.optional_size("head_dim")?.or(traits.head_dim) {
            Some(given) => given,
            None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
            None => {
                return Err(ModelError::Config(format!(
                    "hidden_size is {hidden_size} and num_attention_heads is {num_heads}; without head_dim the first \
                     must be a multiple of the second"
                )));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(ModelError::Config(format!(
                "the width of a head is {head_dim}; it must be even for rope"
            )));
        }
        let max_position_embeddings = fields
            .optional_size("max_position_embeddings")?
            .unwrap_or(traits.max_position_embeddings);
        let has_bias = |bias: Bias, flag: &str| match bias {
            Bias::Never => Ok(false),
            Bias::Always => Ok(true),
            Bias::Configured => fields.flag(flag),
        };
        let layers = layers(&fields, family)?;
        let ropes = ropes(&fields, family, head_dim, max_position_embeddings)?;
        let max_position_embeddings = match ropes.iter().filter_map(|rope| rope.max_context).min() {
            Some(context) => context.min(max_position_embeddings),
            None => max_position_embeddings,
        };
        // A field of another family is refused above, so it is not read here.
        let factor = |key: &str| match traits.fields.contains(&key) {
            true => fields.optional_positive(key),
            false => Ok(None),
        };
        let attention_scale = match factor("query_pre_attn_scalar")? {
            Some(width) => width.powf(-0.5),
            None if traits.fields.contains(&"query_pre_attn_scalar") => 256f64.powf(-0.5),
            None if traits.fields.contains(&"attention_multiplier") => factor("attention_multiplier")?.unwrap_or(1.0),
            None => 1.0 / (head_dim as f64).sqrt(),
        };
        let softcap = |key: &str, default: Option<f64>| -> Result<Option<f32>, ModelError> {
            let given = factor(key)?;
            let default = default.filter(|_| !fields.0.contains_key(key));
            Ok(given.or(default).map(|cap| cap as f32))
        };
        Ok(Self {
            family,
            hidden_size,
            intermediate_size: fields.size("intermediate_size")?,
            experts: Experts::from_fields(&fields, family)?,
            layers,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: fields.size("vocab_size")?,
            rms_norm_eps: fields.optional_positive("rms_norm_eps")?.unwrap_or(traits.rms_norm_eps) as f32,
            tie_word_embeddings: match fields.0.contains_key("tie_word_embeddings") {
                true => fields.flag("tie_word_embeddings")?,
                false => traits.tie_word_embeddings,
            },
            qkv_bias: has_bias(traits.qkv_bias, "attention_bias")?,
            o_bias: has_bias(traits.o_bias, "attention_bias")?,
            mlp_bias: has_bias(traits.mlp_bias, "mlp_bias")?,
            qk_norm: traits.qk_norm,
            norms: traits.norms,
            norm_offset: traits.norm_offset,
            fused_projections: traits.fused_projections,
            activation: activation(&fields, family)?,
            embedding_scale: match traits.scaled_embedding {
                true => (hidden_size as f32).sqrt(),
                false => factor("embedding_multiplier")?.unwrap_or(1.0) as f32,
            },
            residual_scale: factor("residual_multiplier")?.unwrap_or(1.0) as f32,
            attention_scale: attention_scale as f32,
            attention_softcap: softcap("attn_logit_softcapping", traits.softcaps[0])?,
            logit_scale: (1.0 / factor("logits_scaling")?.unwrap_or(1.0)) as f32,
            logit_softcap: softcap("final_logit_softcapping", traits.softcaps[1])?,
            max_position_embeddings,
            ropes,
        })
    }
}

fn refuse_unsupported(fields: &Fields, family: Family) -> Result<(), ModelError> {
    if fields.0.get("quantization_config").is_some_and(|q| !q.is_null()) {
        return Err(ModelError::Config(
            "quantized safetensors (quantization_config) are not supported\nhint: use the unquantized model or a \
             .gguf file, which is dequantised"
                .into(),
        ));
    }
    known_fields::check(fields, family)
}

fn activation(fields: &Fields, family: Family) -> Result<Activation, ModelError> {
    let (key, default) = family.traits().activation;
    match fields.0.get(key).and_then(Value::as_str).unwrap_or(default) {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        other => Err(ModelError::Config(format!(
            "{key} `{other}` is not supported; supported are silu and gelu_pytorch_tanh"
        ))),
    }
}

/// Returns the rotary embeddings: one, or that of full attention and that of sliding windows.
fn ropes(fields: &Fields, family: Family, head_dim: usize, context: usize) -> Result<Vec<Rope>, ModelError> {
    let traits = family.traits();
    let partial = traits.fields.contains(&"partial_rotary_factor");
    let rope =
        |parameters: &Fields, theta: f64| Rope::from_fields(fields, parameters, theta, (head_dim, partial), context);
    let nothing = serde_json::Map::new();
    let parameters = |kind: Option<&str>| {
        let new = fields.0.get("rope_parameters").and_then(|all| match kind {
            Some(kind) => all.get(kind),
            None => Some(all),
        });
        new.and_then(Value::as_object)
    };
    let old = fields.0.get("rope_scaling").and_then(Value::as_object);
    let theta = fields.optional_positive("rope_theta")?.unwrap_or(traits.rope_theta);
    let Some(local_theta) = traits.local_rope_theta else {
        let all = parameters(None).or(old).unwrap_or(&nothing);
        return Ok(vec![rope(&Fields(all), theta)?]);
    };
    let global = parameters(Some("full_attention")).or(old).unwrap_or(&nothing);
    let local = parameters(Some("sliding_attention")).unwrap_or(&nothing);
    let local_theta = fields.optional_positive("rope_local_base_freq")?.unwrap_or(local_theta);
    Ok(vec![rope(&Fields(global), theta)?, rope(&Fields(local), local_theta)?])
}

/// Returns what each layer has of windows and rope.
fn layers(fields: &Fields, family: Family) -> Result<Vec<LayerConfig>, ModelError> {
    let traits = family.traits();
    let ropes = has_rope(fields, family)?;
    let windows = windows(fields, family, &ropes)?;
    let experts = layers_with_experts(fields, family, ropes.len())?;
    let of_layer = |((has_rope, window), has_experts): ((bool, Option<usize>), bool)| LayerConfig {
        window,
        rope: has_rope.then_some(usize::from(traits.local_rope_theta.is_some() && window.is_some())),
        has_experts,
    };
    Ok(ropes.into_iter().zip(windows).zip(experts).map(of_layer).collect())
}

/// Returns whether each layer has a rotary embedding: 1 in `no_rope_layers`, or all but every
/// `no_rope_layer_interval`-th one.
fn has_rope(fields: &Fields, family: Family) -> Result<Vec<bool>, ModelError> {
    let layers = fields.size("num_hidden_layers")?;
    if !family.traits().fields.contains(&"no_rope_layers") {
        return Ok(vec![true; layers]);
    }
    let must_be = format!("a list of at least {layers} numbers, 1 for a layer with rope and 0 for one without");
    let given = fields.read("no_rope_layers", &must_be, |v| {
        let flags = v.as_array()?.iter().map(|flag| flag.as_u64().filter(|flag| *flag <= 1));
        let flags = flags.map(|flag| Some(flag? == 1)).collect::<Option<Vec<bool>>>()?;
        (flags.len() >= layers).then(|| flags[..layers].to_vec())
    })?;
    let interval = fields.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    Ok(given.unwrap_or_else(|| (1..=layers).map(|number| !number.is_multiple_of(interval)).collect()))
}

/// Returns the sliding window of each layer.
fn windows(fields: &Fields, family: Family, has_rope: &[bool]) -> Result<Vec<Option<usize>>, ModelError> {
    let layers = has_rope.len();
    let (windows, default) = family.traits().windows;
    let window = match fields.0.contains_key("sliding_window") {
        true => fields.optional_size("sliding_window")?,
        false => default,
    };
    Ok(match windows {
        Windows::Never => vec![None; layers],
        Windows::EveryLayer => {
            let is_used =
                !family.traits().fields.contains(&"use_sliding_window") || fields.flag("use_sliding_window")?;
            vec![window.filter(|_| is_used); layers]
        }
        Windows::FromLayer => {
            let is_used = fields.flag("use_sliding_window")?;
            let window = window.filter(|_| is_used);
            let first = fields.optional_count("max_window_layers")?.unwrap_or(28);
            match fields.layer_types(layers)? {
                Some(sliding) => of_types(&sliding, window)?,
                None => (0..layers).map(|layer| window.filter(|_| layer >= first)).collect(),
            }
        }
        Windows::WithoutRope => match fields.layer_types(layers)? {
            Some(sliding) => of_types(&sliding, window)?,
            None => {
                let is_used = fields.flag("use_sliding_window")?;
                let of_layer = |has_rope: &bool| window.filter(|_| is_used && !has_rope);
                has_rope.iter().map(of_layer).collect()
            }
        },
        Windows::ButEvery(default) => {
            let pattern = match family.traits().fields.contains(&"sliding_window_pattern") {
                true => fields.optional_size("sliding_window_pattern")?.unwrap_or(default),
                false => default,
            };
            let by_pattern = || (1..=layers).map(|number| !number.is_multiple_of(pattern)).collect();
            of_types(&fields.layer_types(layers)?.unwrap_or_else(by_pattern), window)?
        }
    })
}

/// Gives the layers that slide their window.
fn of_types(sliding: &[bool], window: Option<usize>) -> Result<Vec<Option<usize>>, ModelError> {
    if window.is_none() && sliding.contains(&true) {
        let message = "`layer_types` has `sliding_attention`, but no `sliding_window` is in use";
        return Err(ModelError::Config(message.into()));
    }
    Ok(sliding.iter().map(|sliding| window.filter(|_| *sliding)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::config::QkNorm;

    fn llama() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
            "rms_norm_eps": 1e-5, "hidden_act": "silu"
        })
    }

    fn with(changes: Value) -> Value {
        let mut config = llama();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    #[test]
    fn families_differ_in_data_only() {
        let llama = ModelConfig::from_json(&llama()).unwrap();
        assert_eq!(
            (llama.family, llama.head_dim, llama.qkv_bias, llama.qk_norm),
            (Family::Llama, 8, false, None)
        );
        assert_eq!((llama.num_kv_heads, llama.max_position_embeddings), (2, 2048));

        let biased = with(json!({"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true}));
        let biased = ModelConfig::from_json(&biased).unwrap();
        assert!(biased.qkv_bias && biased.o_bias && biased.mlp_bias && biased.tie_word_embeddings);

        let qwen2 = ModelConfig::from_json(&with(json!({"architectures": ["Qwen2ForCausalLM"]}))).unwrap();
        assert!(qwen2.qkv_bias && !qwen2.o_bias && qwen2.qk_norm.is_none());

        let qwen3 = ModelConfig::from_json(&with(json!({"architectures": ["Qwen3ForCausalLM"]}))).unwrap();
        assert!(!qwen3.qkv_bias && qwen3.qk_norm == Some(QkNorm::PerHead));
        assert_eq!(qwen3.head_dim, 128);
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let cases = [
            (
                json!({"architectures": ["GemmaForCausalLM"]}),
                "`GemmaForCausalLM` is not supported; supported are Llama",
            ),
            (
                json!({"architectures": ["Qwen2MoeForCausalLM"]}),
                "`Qwen2MoeForCausalLM`",
            ),
            (
                json!({"num_experts": 8}),
                "`num_experts` is 8, which is not known for LlamaForCausalLM",
            ),
            (
                json!({"architectures": ["MixtralForCausalLM"], "router_jitter_noise": 0.1}),
                "`router_jitter_noise` is 0.1, which is not known for MixtralForCausalLM",
            ),
            (json!({"hidden_act": "gelu"}), "hidden_act `gelu`"),
            (
                json!({"quantization_config": {"quant_method": "gptq"}}),
                "hint: use the unquantized model",
            ),
            (
                json!({"rope_scaling": {"type": "dynamic"}}),
                "`dynamic` is not supported; supported are default, linear",
            ),
            (json!({"rope_parameters": {"rope_type": "linear"}}), "positive `factor`"),
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
            (
                json!({"layer_types": ["full_attention", "sliding_attention"]}),
                "`layer_types` is [\"full_attention\",\"sliding_attention\"], which is not known for LlamaForCausalLM",
            ),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "chunked_attention"]}),
                "a list of 2 names, `full_attention` or `sliding_attention`",
            ),
            (
                json!({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 8,
                       "layer_types": ["full_attention", "sliding_attention"]}),
                "no `sliding_window` is in use",
            ),
            (
                json!({"residual_multiplier": 0.2}),
                "`residual_multiplier` is 0.2, which is not known for LlamaForCausalLM and may change what the model \
                 computes\nhint: if it does not, remove it from config.json",
            ),
            (json!({"scale_attention": true}), "`scale_attention` is true"),
            (
                json!({"hidden_size": "big"}),
                "`hidden_size` is \"big\"; it must be a whole number from 1",
            ),
            (json!({"vocab_size": 0}), "`vocab_size` is 0"),
            (json!({"vocab_size": null}), "`vocab_size` is missing"),
            (json!({"num_key_value_heads": 3}), "num_key_value_heads is 3"),
            (
                json!({"hidden_size": 33}),
                "hidden_size is 33 and num_attention_heads is 4",
            ),
            (json!({"head_dim": 5}), "the width of a head is 5; it must be even"),
        ];
        for (changes, expected) in cases {
            let message = ModelConfig::from_json(&with(changes)).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        assert!(ModelConfig::from_json(&json!([])).is_err());
    }

    #[test]
    fn fields_that_change_nothing_are_accepted() {
        let changes = json!({
            "attention_dropout": 0.1, "auto_map": {"AutoModelForCausalLM": "a.B"}, "_attn_implementation_autoset": true,
            "some_flag": false, "some_number": 0, "some_name": "x", "nothing": null, "use_cache": true,
            "layer_types": ["full_attention", "full_attention"]
        });
        ModelConfig::from_json(&with(changes)).unwrap();
    }

    #[test]
    fn layers_slide_their_window_as_transformers_has_it() {
        let windows = |architecture: &str, changes: Value| -> Vec<Option<usize>> {
            let mut config = with(changes);
            config["architectures"] = json!([architecture]);
            let config = ModelConfig::from_json(&config).unwrap();
            config.layers.iter().map(|layer| layer.window).collect()
        };
        let (qwen, mistral) = ("Qwen2ForCausalLM", "MistralForCausalLM");
        let (qwen_moe, mixtral) = ("Qwen3MoeForCausalLM", "MixtralForCausalLM");
        let types = json!(["sliding_attention", "full_attention"]);
        for (architecture, changes, expected) in [
            (mistral, json!({}), [Some(4096); 2]),
            (mistral, json!({"sliding_window": null}), [None; 2]),
            (mistral, json!({"sliding_window": 7}), [Some(7); 2]),
            (mixtral, json!({}), [None; 2]),
            (mixtral, json!({"sliding_window": 7}), [Some(7); 2]),
            (qwen_moe, json!({"sliding_window": 7}), [None; 2]),
            (qwen_moe, json!({"use_sliding_window": true}), [Some(4096); 2]),
            (qwen, json!({"sliding_window": 7, "max_window_layers": 0}), [None; 2]),
            (
                qwen,
                json!({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 1}),
                [None, Some(7)],
            ),
            (
                "Qwen3ForCausalLM",
                json!({"use_sliding_window": true, "max_window_layers": 2, "layer_types": types}),
                [Some(4096), None],
            ),
        ] {
            assert_eq!(
                windows(architecture, changes.clone()),
                expected,
                "{architecture} with {changes}"
            );
        }
    }

    /// A small configuration of an architecture that leaves out what its class has a default for.
    fn bare(architecture: &str, changes: Value) -> ModelConfig {
        let mut config = json!({
            "architectures": [architecture], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 7,
            "num_attention_heads": 8, "vocab_size": 96
        });
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        ModelConfig::from_json(&config).unwrap()
    }

    #[test]
    fn what_a_file_leaves_out_is_as_in_transformers() {
        let gemma2 = bare("Gemma2ForCausalLM", json!({}));
        assert_eq!((gemma2.head_dim, gemma2.num_kv_heads), (256, 4));
        assert_eq!(
            (gemma2.attention_scale, gemma2.embedding_scale),
            (1.0 / 16.0, 32f32.sqrt())
        );
        assert_eq!(
            (gemma2.attention_softcap, gemma2.logit_softcap),
            (Some(50.0), Some(30.0))
        );
        assert_eq!((gemma2.activation, gemma2.norm_offset), (Activation::GeluTanh, 1.0));
        assert!(gemma2.tie_word_embeddings);
        let windows: Vec<bool> = gemma2.layers.iter().map(|layer| layer.window == Some(4096)).collect();
        assert_eq!(windows, [true, false, true, false, true, false, true]);
        let uncapped = bare("Gemma2ForCausalLM", json!({"attn_logit_softcapping": null}));
        assert_eq!(uncapped.attention_softcap, None);

        let gemma3 = bare("Gemma3ForCausalLM", json!({}));
        assert_eq!((gemma3.attention_softcap, gemma3.logit_softcap), (None, None));
        let ropes: Vec<Option<usize>> = gemma3.layers.iter().map(|layer| layer.rope).collect();
        assert_eq!(ropes, [1, 1, 1, 1, 1, 0, 1].map(Some));
        let bases = |config: &ModelConfig| -> Vec<f32> {
            let base = |rope: &Rope| rope.inv_freq[1].powf(-(config.head_dim as f32) / 2.0);
            config.ropes.iter().map(|rope| base(rope).log10().round()).collect()
        };
        assert_eq!(bases(&gemma3), [6.0, 4.0]);

        let smollm3 = bare("SmolLM3ForCausalLM", json!({}));
        let ropes: Vec<bool> = smollm3.layers.iter().map(|layer| layer.rope.is_some()).collect();
        assert_eq!(ropes, [true, true, true, false, true, true, true]);
        assert_eq!((smollm3.num_kv_heads, smollm3.tie_word_embeddings), (4, true));

        let granite = bare(
            "GraniteForCausalLM",
            json!({"logits_scaling": 8, "residual_multiplier": 0.25}),
        );
        assert_eq!((granite.attention_scale, granite.embedding_scale), (1.0, 1.0));
        assert_eq!((granite.logit_scale, granite.residual_scale), (0.125, 0.25));

        let olmo2 = bare("Olmo2ForCausalLM", json!({}));
        assert_eq!((olmo2.rms_norm_eps, olmo2.qk_norm_widths()), (1e-5, Some([32, 32])));
        assert_eq!(
            bare("MistralForCausalLM", json!({"num_attention_heads": 16})).num_kv_heads,
            8
        );

        let qwen3_moe = bare("Qwen3MoeForCausalLM", json!({}));
        let experts = qwen3_moe.layer_experts(6).unwrap();
        assert_eq!(
            (experts.count, experts.per_token, experts.intermediate_size),
            (128, 8, 768)
        );
        assert_eq!(
            (qwen3_moe.head_dim, qwen3_moe.num_kv_heads, experts.normalized),
            (4, 4, false)
        );
        let mixtral = bare("MixtralForCausalLM", json!({}));
        let experts = mixtral.layer_experts(0).unwrap();
        assert_eq!(
            (experts.count, experts.per_token, experts.intermediate_size),
            (8, 2, 48)
        );
        assert!(experts.normalized);
        assert_eq!((bases(&mixtral), mixtral.rms_norm_eps), (vec![6.0], 1e-5));
    }

    #[test]
    fn longrope_ends_with_the_original_context() {
        let phi3 = |kind: &str| {
            let scaling = json!({"type": kind, "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]});
            bare(
                "Phi3ForCausalLM",
                json!({"num_attention_heads": 4, "partial_rotary_factor": 0.5, "rope_scaling": scaling,
                       "max_position_embeddings": 131072, "original_max_position_embeddings": 4096}),
            )
        };
        for kind in ["longrope", "su", "yarn"] {
            let config = phi3(kind);
            assert_eq!(config.max_position_embeddings, 4096, "{kind}");
            let [rope] = &config.ropes[..] else { panic!("one rope") };
            assert_eq!(rope.inv_freq, [1.0, 0.01 / 2.0], "{kind}");
            assert!(
                (rope.attention_factor - 1.190_238).abs() < 1e-5,
                "{}",
                rope.attention_factor
            );
        }
    }

    #[test]
    fn a_sliding_window_that_is_switched_off_is_no_matter() {
        for changes in [
            json!({"use_sliding_window": false, "sliding_window": 64, "max_window_layers": 0}),
            json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 2}),
            json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 0}),
        ] {
            let mut config = with(changes);
            config["architectures"] = json!(["Qwen2ForCausalLM"]);
            ModelConfig::from_json(&config).unwrap();
        }
    }

    #[test]
    fn parameters_are_counted_as_their_shapes_say() {
        let config = ModelConfig::from_json(&with(json!({"tie_word_embeddings": true}))).unwrap();
        let layer = 32 * 32 * 2 + 16 * 32 * 2 + 3 * 48 * 32 + 2 * 32;
        assert_eq!(config.num_parameters(), 96 * 32 + 2 * layer + 32);
        let untied = ModelConfig::from_json(&llama()).unwrap();
        assert_eq!(
            untied.tensor_shapes().last().unwrap(),
            &("lm_head.weight".to_string(), vec![96, 32])
        );
    }
}
