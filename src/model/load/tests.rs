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
        ("qwen2-window", Family::Qwen2),
        ("qwen3", Family::Qwen3),
        ("mistral", Family::Mistral),
        ("phi3", Family::Phi3),
        ("smollm3", Family::SmolLm3),
        ("granite", Family::Granite),
        ("olmo2", Family::Olmo2),
        ("gemma2", Family::Gemma2),
        ("gemma3", Family::Gemma3),
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
            message.starts_with(&format!("no model found at `{path}`\nhint: use")),
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

/// A copy of a model with another number of rows in its embedding and tokens added to its tokenizer.
fn resized(rows: usize, added: &[&str]) -> TempDir {
    let directory = copy_of("qwen2");
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["vocab_size"] = rows.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let tensors = directory.path().join("model.safetensors");
    let mut all = candle_core::safetensors::load(&tensors, &Device::Cpu).unwrap();
    let embedding = &all["model.embed_tokens.weight"];
    let padding = Tensor::zeros((40, 32), DType::F32, &Device::Cpu).unwrap();
    let embedding = Tensor::cat(&[embedding, &padding], 0)
        .unwrap()
        .narrow(0, 0, rows)
        .unwrap();
    all.insert("model.embed_tokens.weight".into(), embedding);
    candle_core::safetensors::save(&all, &tensors).unwrap();
    let path = directory.path().join("tokenizer.json");
    let mut tokenizer = tokenizers::Tokenizer::from_file(&path).unwrap();
    let added = added
        .iter()
        .map(|name| tokenizers::AddedToken::from(name.to_string(), true));
    tokenizer.add_tokens(added.collect::<Vec<_>>()).unwrap();
    tokenizer.save(&path, false).unwrap();
    directory
}

/// Seen with a tokenizer of one token more than the embedding has rows, which was refused at boot.
#[test]
fn tokenizer_and_embedding_may_differ_as_long_as_no_text_needs_what_is_missing() {
    for (rows, added) in [
        (96, &[][..]),
        (96, &["<spare>"]),
        (96, &["<a>", "<b>", "<spare>"]),
        (97, &["<a>", "<spare>"]),
        (128, &[]),
        (128, &["<a>"]),
        (100, &["<a>", "<b>", "<c>", "<d>", "<spare>"]),
    ] {
        let model = load_quietly(resized(rows, added).path()).unwrap();
        assert_eq!(model.tokenizer.vocab_size(), 96 + added.len());
        let ids = model.tokenizer.encode("<|im_start|>user\n1+1?<|im_end|>").unwrap();
        assert!(ids.iter().all(|id| (*id as usize) < 96));
        for (name, id) in added.iter().zip(96..) {
            let encoded = model.tokenizer.encode(&format!("x{name}y"));
            match id < rows {
                true => assert!(encoded.unwrap().contains(&(id as u32)), "{name}"),
                false => assert_eq!(
                    encoded.unwrap_err().to_string(),
                    format!(
                        "tokenizer: the text has the token {name:?} with id {id}, but the model's embedding ends at {}; \
                         the tokenizer has {} tokens",
                        rows - 1,
                        96 + added.len()
                    )
                ),
            }
        }
    }
}

/// Seen with weights that were noticed at the first chat only.
#[test]
fn weights_that_are_not_finite_are_named() {
    for (tensor, bad, dtype, count) in [
        ("model.norm.weight", f64::NAN, DType::F32, 1),
        ("model.layers.1.mlp.down_proj.weight", f64::INFINITY, DType::F32, 3),
        (
            "model.layers.0.self_attn.q_proj.bias",
            f64::NEG_INFINITY,
            DType::BF16,
            2,
        ),
        ("model.embed_tokens.weight", 1e39, DType::F64, 1), // too large for f32
        ("model.layers.0.input_layernorm.weight", f64::NAN, DType::F16, 32),
    ] {
        let directory = copy_of("qwen2");
        let path = directory.path().join("model.safetensors");
        let mut all = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
        let shape = all[tensor].shape().clone();
        let mut values: Vec<f64> = all[tensor]
            .to_dtype(DType::F64)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        values[..count].fill(bad);
        let values = Tensor::from_vec(values, shape.clone(), &Device::Cpu).unwrap();
        all.insert(tensor.into(), values.to_dtype(dtype).unwrap());
        candle_core::safetensors::save(&all, &path).unwrap();
        let message = error_of(&directory);
        let expected = format!(
            "{tensor} of {}: {count} of its {} weights are NaN or infinite as F32\nhint: ",
            path.display(),
            shape.elem_count()
        );
        assert!(message.starts_with(&expected), "{message}");
    }
}

/// A safetensors file with this header.
fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn headers_that_lie_are_refused_with_the_tensor() {
    let directory = copy_of("llama");
    let path = directory.path().join("model.safetensors");
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
    };
    let twice = r#"{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#;
    let overlap = r#"{"v": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                      "w": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}"#;
    for (header, expected) in [
        (twice.to_string(), "tensor w is there twice"),
        (
            overlap.to_string(),
            "tensor w begins at byte 2 of the data, the one before it ends at 4",
        ),
        (entry("F32", "[2]", "[0, 4]"), "tensor w has shape [2]"),
        (entry("F32", "[1]", "[4, 0]"), "tensor w has shape [1]"),
        (
            entry("F32", "[4294967296, 4294967296, 4294967296]", "[0, 4]"),
            "tensor w has shape",
        ),
        (
            entry("F32", "[18446744073709551615]", "[0, 18446744073709551612]"),
            "tensor w has shape",
        ),
        (entry("F99", "[1]", "[0, 4]"), "tensor w: unknown variant `F99`"),
        (entry("F32", "[-1]", "[0, 4]"), "tensor w: invalid number"),
        (entry("F32", "[1e99]", "[0, 4]"), "tensor w: invalid number"),
        (r#"{"w": 1}"#.into(), "tensor w: "),
        ("[".repeat(5000), "the header is damaged"),
    ] {
        std::fs::write(&path, with_header(&header, &[0; 4])).unwrap();
        let message = error_of(&directory);
        assert!(
            message.starts_with(&path.display().to_string()) && message.contains(expected),
            "{message}"
        );
    }
    let mut all =
        candle_core::safetensors::load(copy_of("llama").path().join("model.safetensors"), &Device::Cpu).unwrap();
    let norm = all["model.norm.weight"].to_dtype(DType::I64).unwrap();
    all.insert("model.norm.weight".into(), norm);
    candle_core::safetensors::save(&all, &path).unwrap();
    assert_eq!(
        error_of(&directory),
        format!(
            "model.norm.weight of {}: weights of type I64 are not supported; F32, BF16, F16, F64 are",
            path.display()
        )
    );
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let directory = copy_of("llama-sharded");
    let shard = |number| {
        directory
            .path()
            .join(format!("model-0000{number}-of-00002.safetensors"))
    };
    let first = candle_core::safetensors::load(shard(1), &Device::Cpu).unwrap();
    let mut second = candle_core::safetensors::load(shard(2), &Device::Cpu).unwrap();
    let (name, tensor) = first.iter().next().unwrap();
    second.insert(name.clone(), tensor.clone());
    candle_core::safetensors::save(&second, shard(2)).unwrap();
    assert_eq!(
        error_of(&directory),
        format!(
            "{name} of {}: the tensor is in {} too",
            shard(2).display(),
            shard(1).display()
        )
    );
}

#[test]
fn absurd_sizes_in_a_configuration_are_errors() {
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    ];
    for key in sizes {
        for value in [
            json!(0),
            json!(-1),
            json!(1_000_000_000),
            json!(1_000_000_000_000_u64),
            json!(u64::MAX),
            json!(1e308),
            json!("x"),
        ] {
            let directory = copy_of("llama");
            let path = directory.path().join("config.json");
            let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            config[key] = value.clone();
            std::fs::write(&path, config.to_string()).unwrap();
            let message = error_of(&directory);
            assert!(
                message.starts_with(&format!("config.json: `{key}` is {value}; it must be")),
                "{message}"
            );
            let random = load_quietly(Path::new(&format!("builtin:random:{}", path.display())));
            assert_eq!(random.unwrap_err().to_string(), message);
        }
    }
}

/// Every single-byte damage that 4,000 draws find, and cuts: an error or a model, never a panic.
#[test]
fn damaged_headers_never_panic() {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let directory = copy_of("llama");
    let path = directory.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let files = files::Files::Directory(directory.path().to_path_buf());
    let mut refused = 0;
    for round in 0..4000 {
        let mut bytes = whole.clone();
        match round % 4 {
            0 => bytes.truncate(rng.random_range(0..bytes.len())),
            1 => bytes[rng.random_range(0..header)] = rng.random(),
            2 => bytes[rng.random_range(0..8)] ^= 1 << rng.random_range(0..8),
            _ => {
                let digits: Vec<usize> = (8..header).filter(|at| bytes[*at].is_ascii_digit()).collect();
                bytes[digits[rng.random_range(0..digits.len())]] = b'0' + rng.random_range(0..10);
            }
        }
        std::fs::write(&path, bytes).unwrap();
        match safetensors::Shard::open(&files, "model.safetensors") {
            Ok(shard) => {
                let mut shard = shard.unwrap();
                let names: Vec<String> = shard.tensors().map(|(name, _)| name.to_owned()).collect();
                names
                    .iter()
                    .for_each(|name| drop(shard.read(name, &Device::Cpu, DType::F32)));
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
            }
        }
    }
    assert!(refused > 2000, "{refused}");
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
    for (key, size) in [
        ("vocab_size", 1 << 24),
        ("intermediate_size", 1 << 20),
        ("num_hidden_layers", 1 << 12),
    ] {
        let mut large = config.clone();
        large.as_object_mut().unwrap().remove("layer_types"); // one for each layer
        large["hidden_size"] = (1 << 18).into();
        large[key] = size.into();
        std::fs::write(&path, large.to_string()).unwrap();
        let error = load_quietly(Path::new(&name)).unwrap_err().to_string();
        assert!(error.contains("weights of its shapes take"), "{error}");
    }
    // Seen with `builtin:random:/dev/zero`, which grew until memory was used up.
    for path in ["/dev/zero", "/dev/full", "/proc/self/mem", "/"] {
        let error = load_quietly(Path::new(&format!("builtin:random:{path}")))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(path), "{error}");
    }
}
