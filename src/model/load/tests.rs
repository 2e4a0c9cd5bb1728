use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::model::config::Family;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/models")
        .join(name)
}

fn load_quietly(path: &Path) -> Result<LoadedModel, ModelError> {
    load(path.to_str().unwrap(), &Device::Cpu, DType::F32, &mut |_, _| {})
}

/// A copy of a fixture that can be damaged.
fn copy_of(name: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

fn error_of(directory: &TempDir) -> String {
    load_quietly(directory.path()).unwrap_err().to_string()
}

#[test]
fn every_family_loads_from_a_directory() {
    for (name, family) in [
        ("llama", Family::Llama),
        ("llama-sharded", Family::Llama),
        ("qwen2", Family::Qwen2),
        ("qwen3", Family::Qwen3),
    ] {
        let model = load_quietly(&fixture(name)).unwrap();
        assert_eq!(model.config.family, family);
        let shapes: Vec<_> = model
            .tensors
            .iter()
            .map(|(n, t)| (n.clone(), t.dims().to_vec()))
            .collect();
        assert_eq!(shapes, model.config.tensor_shapes(), "{name}");
        assert_eq!(
            model.generation,
            Generation {
                eos_token_ids: vec![2],
                bos_token_id: Some(1),
                pad_token_id: Some(0)
            }
        );
        let messages = [json!({"role": "user", "content": "1+1?"})];
        let prompt = model
            .chat_template
            .render(&messages, None, true, &serde_json::Map::new())
            .unwrap();
        let ids = model.tokenizer.encode(&prompt).unwrap();
        assert_eq!(model.tokenizer.decode(&ids, true), "user\n1+1?\nassistant\n");
        assert_eq!(ids[0], 1);
    }
}

#[test]
fn the_models_in_the_binary_load_and_can_chat() {
    for name in builtin::names() {
        let model = load_quietly(Path::new(&format!("builtin:{name}"))).unwrap();
        assert!(model.config.num_parameters() <= 2_000_000, "{name}");
        assert!(
            model.chat_template.exists() && !model.generation.eos_token_ids.is_empty(),
            "{name}"
        );
    }
}

#[test]
fn weights_are_those_of_the_file_in_any_type() {
    let expected = candle_core::safetensors::load(fixture("qwen3").join("model.safetensors"), &Device::Cpu).unwrap();
    let path = fixture("qwen3");
    let half = load(path.to_str().unwrap(), &Device::Cpu, DType::BF16, &mut |_, _| {}).unwrap();
    for (name, tensor) in load_quietly(&path).unwrap().tensors {
        let bits = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(bits(&tensor), bits(&expected[&name]), "{name}");
        let rounded = expected[&name]
            .to_dtype(DType::BF16)
            .unwrap()
            .to_dtype(DType::F32)
            .unwrap();
        assert_eq!(half.tensors[&name].dtype(), DType::BF16);
        assert_eq!(
            bits(&half.tensors[&name].to_dtype(DType::F32).unwrap()),
            bits(&rounded),
            "{name}"
        );
    }
}

#[test]
fn progress_goes_from_nothing_to_all() {
    let mut heard = Vec::new();
    let path = fixture("llama");
    load(path.to_str().unwrap(), &Device::Cpu, DType::F32, &mut |part, what| {
        heard.push((part, what.to_string()))
    })
    .unwrap();
    assert_eq!(heard.first().unwrap(), &(0.0, "loading weights".to_string()));
    assert_eq!(heard.last().unwrap().0, 1.0);
    assert!(heard.is_sorted_by(|a, b| a.0 <= b.0));
}

#[test]
fn paths_that_are_nothing_are_told_what_a_path_can_be() {
    for path in ["/no/such/directory", "nothing", "builtin:huge"] {
        let message = load_quietly(Path::new(path)).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("there is no model at `{path}`\nhint: a model is")),
            "{message}"
        );
    }
}

#[test]
fn a_truncated_file_is_recognised() {
    let directory = copy_of("llama");
    let path = directory.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let message = error_of(&directory);
    let sizes = format!(
        "the file has {} bytes, its header says {}\nhint: a download",
        bytes.len() - 100,
        bytes.len()
    );
    assert!(message.contains(&sizes), "{message}");
    for (content, expected) in [
        (&b"oops"[..], "4 bytes are no safetensors file"),
        (b"<html>not found</html>", "this is no safetensors file"),
        (b"\x02\0\0\0\0\0\0\0[]", "the header is damaged"),
    ] {
        std::fs::write(&path, content).unwrap();
        let message = error_of(&directory);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn missing_and_extra_and_misshapen_tensors_are_named() {
    let directory = copy_of("llama");
    let path = directory.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let stray = tensors.remove("model.norm.weight").unwrap();
    tensors.insert("model.layers.7.stray".into(), stray);
    tensors.insert(
        "lm_head.weight".into(),
        Tensor::zeros((96, 31), DType::F32, &Device::Cpu).unwrap(),
    );
    tensors.insert(
        "model.layers.0.self_attn.rotary_emb.inv_freq".into(),
        tensors["lm_head.weight"].clone(),
    );
    candle_core::safetensors::save(&tensors, &path).unwrap();
    assert_eq!(
        error_of(&directory),
        "the weights are not those that config.json describes (LlamaForCausalLM); missing: model.norm.weight; not part \
         of it: model.layers.7.stray; of another shape: lm_head.weight (is [96, 31], must be [96, 32])"
    );
}

#[test]
fn missing_files_are_named() {
    for (file, hint) in [
        ("config.json", "give the path of the file itself"),
        ("tokenizer.json", "AutoTokenizer"),
        ("model.safetensors", "AutoModelForCausalLM"),
    ] {
        let directory = copy_of("llama");
        std::fs::remove_file(directory.path().join(file)).unwrap();
        let message = error_of(&directory);
        assert!(
            message.contains(&format!("{file}: the file is missing")) && message.contains(hint),
            "{message}"
        );
    }
    let directory = copy_of("llama-sharded");
    std::fs::remove_file(directory.path().join("model-00002-of-00002.safetensors")).unwrap();
    let message = error_of(&directory);
    assert!(
        message.ends_with("model-00002-of-00002.safetensors: the file is missing, the index names it"),
        "{message}"
    );
}

#[test]
fn damaged_files_are_named() {
    for (file, content, expected) in [
        ("config.json", "{", "config.json: EOF while parsing"),
        ("tokenizer.json", "{}", "tokenizer: tokenizer.json cannot be read"),
        ("tokenizer_config.json", "[", "tokenizer_config.json: EOF"),
        ("generation_config.json", "{\"a\"", "generation_config.json: EOF"),
        ("chat_template.jinja", "{% if %}", "chat template: "),
        ("model.safetensors.index.json", "{}", "`weight_map` must map"),
        (
            "model.safetensors.index.json",
            r#"{"weight_map": {"a": "../b"}}"#,
            "`../b` is not the name of a file",
        ),
    ] {
        let directory = copy_of("llama-sharded");
        std::fs::write(directory.path().join(file), content).unwrap();
        let message = error_of(&directory);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_tokenizer_larger_than_the_embedding_is_refused() {
    let directory = copy_of("qwen2");
    let path = directory.path().join("config.json");
    let config = std::fs::read_to_string(&path)
        .unwrap()
        .replace("\"vocab_size\": 96", "\"vocab_size\": 90");
    std::fs::write(&path, config).unwrap();
    let tensors = directory.path().join("model.safetensors");
    let mut all = candle_core::safetensors::load(&tensors, &Device::Cpu).unwrap();
    let embedding = all["model.embed_tokens.weight"].narrow(0, 0, 90).unwrap();
    all.insert("model.embed_tokens.weight".into(), embedding);
    candle_core::safetensors::save(&all, &tensors).unwrap();
    assert_eq!(
        error_of(&directory),
        "tokenizer: it has ids up to 95, but the model's vocab_size is 90"
    );
}

#[test]
fn random_weights_take_the_shapes_of_a_configuration() {
    let directory = copy_of("qwen3");
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["vocab_size"] = 1000.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let name = format!("builtin:random:{}", path.display());
    let model = load_quietly(Path::new(&name)).unwrap();
    let shapes: Vec<_> = model
        .tensors
        .iter()
        .map(|(n, t)| (n.clone(), t.dims().to_vec()))
        .collect();
    assert_eq!(shapes, model.config.tensor_shapes());
    let norm: Vec<f32> = model.tensors["model.norm.weight"].to_vec1().unwrap();
    assert!(norm.iter().all(|&x| x == 1.0));
    let embedding = model.tensors["model.embed_tokens.weight"].flatten_all().unwrap();
    let embedding: Vec<f32> = embedding.to_vec1().unwrap();
    let deviation = (embedding.iter().map(|x| x * x).sum::<f32>() / embedding.len() as f32).sqrt();
    assert!((deviation - 0.02).abs() < 2e-3, "{deviation}");
    assert!(!model.generation.eos_token_ids.is_empty());

    let error = load_quietly(Path::new("builtin:random:/no/such.json"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("/no/such.json"), "{error}");
}
