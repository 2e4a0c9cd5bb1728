//! Checkpoints of a real run, exported.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ajet_swarm::collective::Alone;
use ajet_swarm::config::schema::Dtype;
use ajet_swarm::config::{Strictness, load as load_config};
use ajet_swarm::engine::batch::identity::RunIdentity;
use ajet_swarm::engine::events::EventHub;
use ajet_swarm::engine::model_thread::Worker;
use ajet_swarm::engine::storage::checkpoint::CheckpointStore;
use ajet_swarm::engine::storage::export::{ExportError, Exported, Options, export};
use ajet_swarm::engine::worker::ModelWorker;
use ajet_swarm::model::{LoadedModel, load};
use ajet_swarm::timeline::Row;
use ajet_swarm::train::TrainEpisode;
use candle_core::{DType, Device, Tensor};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/qwen3");

fn episode(number: u32) -> TrainEpisode {
    TrainEpisode {
        episode_uuid: number.to_string(),
        task_id: "t".into(),
        reward: f64::from(number),
        rows: vec![Row {
            token_ids: vec![5, 6, 7 + number, 8 + number],
            loss_mask: vec![false, false, true, true],
            logprobs: vec![0.0, 0.0, -3.0, -3.0],
            truncated: false,
            ..Row::default()
        }],
    }
}

/// An experiment with a checkpoint of one update.
fn experiment(lora: &str) -> tempfile::TempDir {
    experiment_with(MODEL, lora)
}

fn experiment_with(model: &str, lora: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let yaml = format!(
        "ajet: {{model: {{path: {model}}}, lora: {lora}, engine: {{device: cpu, threads: 1}}, \
         trainer_common: {{optim: {{lr: 1.0e-2}}}}}}"
    );
    let config = load_config(&yaml, Strictness::Job).unwrap().ajet;
    let (mut worker, _) = ModelWorker::build(Arc::new(Alone), &config, None, EventHub::default().into()).unwrap();
    worker.update(1, &[episode(0), episode(1)]).unwrap();
    let store = CheckpointStore::new(dir.path(), 2, RunIdentity::new(&config));
    store.stage(1, |dir| worker.save(dir)).unwrap().publish().unwrap();
    dir
}

fn read(dir: &Path) -> LoadedModel {
    load(dir.to_str().unwrap(), &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap()
}

fn options(from: &Path, to: &Path) -> Options {
    Options {
        from: from.to_owned(),
        to: to.to_owned(),
        merge_lora: false,
        dtype: None,
    }
}

fn run(options: &Options) -> Result<Exported, ExportError> {
    export(options, &mut |_, _| {})
}

fn checkpoint(experiment: &Path) -> PathBuf {
    experiment.join("checkpoints/global_step_1")
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor
        .flatten_all()
        .unwrap()
        .to_dtype(DType::F32)
        .unwrap()
        .to_vec1()
        .unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_whole_model_is_written_without_the_trainer_in_the_type_asked_for() {
    let (experiment, out) = (experiment("{}"), tempfile::tempdir().unwrap());
    let trained = read(&checkpoint(experiment.path()));
    for (dtype, name) in [(None, "float32"), (Some(Dtype::Bf16), "bfloat16")] {
        let to = out.path().join(name);
        let asked = Options {
            dtype,
            ..options(experiment.path(), &to)
        };
        assert_eq!(run(&asked).unwrap(), Exported::Model);
        let exported = read(&to);
        assert_eq!(exported.files.config["torch_dtype"], name);
        assert!(
            !names(&to)
                .iter()
                .any(|file| file == "trainer" || file == "manifest.json"),
            "{:?}",
            names(&to)
        );
        for (tensor, value) in &trained.tensors {
            let expected = match dtype {
                None => values(value),
                Some(_) => values(&value.to_dtype(DType::BF16).unwrap()),
            };
            assert_eq!(values(&exported.tensors[tensor]), expected, "{tensor} as {name}");
        }
    }
    assert_eq!(names(out.path()), ["bfloat16", "float32"], "nothing unfinished is left");
}

#[test]
fn an_adapter_comes_with_its_tokenizer_or_merged() {
    let (experiment, out) = (
        experiment("{lora_rank: 2, lora_alpha: 6, target_modules: [q_proj, down_proj]}"),
        tempfile::tempdir().unwrap(),
    );
    let adapter = out.path().join("adapter");
    assert_eq!(
        run(&options(&checkpoint(experiment.path()), &adapter)).unwrap(),
        Exported::Adapter
    );
    let expected = [
        "adapter_config.json",
        "adapter_model.safetensors",
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names(&adapter), expected);

    let merged = out.path().join("merged");
    let asked = Options {
        merge_lora: true,
        dtype: Some(Dtype::F32),
        ..options(experiment.path(), &merged)
    };
    assert_eq!(run(&asked).unwrap(), Exported::Model);
    let (base, merged) = (read(Path::new(MODEL)), read(&merged));
    let file = adapter.join("adapter_model.safetensors");
    let factors = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
    for (name, tensor) in &base.tensors {
        let factor = |part: &str| {
            factors.get(&format!(
                "base_model.model.{}.{part}.weight",
                name.trim_end_matches(".weight")
            ))
        };
        let expected = match (factor("lora_A"), factor("lora_B")) {
            (Some(a), Some(b)) => (tensor + (b.matmul(a).unwrap() * 3.0).unwrap()).unwrap(),
            _ => tensor.clone(),
        };
        let distance = (expected - &merged.tensors[name])
            .unwrap()
            .abs()
            .unwrap()
            .flatten_all()
            .unwrap();
        assert!(distance.max(0).unwrap().to_scalar::<f32>().unwrap() < 1e-6, "{name}");
    }
    let moved = values(&merged.tensors["model.layers.0.self_attn.q_proj.weight"]);
    assert_ne!(moved, values(&base.tensors["model.layers.0.self_attn.q_proj.weight"]));
}

/// Tools vanished from the prompts of Command-R and Hermes 3 where these were left behind.
#[test]
fn additional_chat_templates_are_in_checkpoints_and_every_export() {
    let (model, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for file in names(Path::new(MODEL)) {
        std::fs::copy(Path::new(MODEL).join(&file), model.path().join(&file)).unwrap();
    }
    let text = "{{ messages[0].content }} tools: {{ tools | length }}\r\n";
    std::fs::create_dir(model.path().join("additional_chat_templates")).unwrap();
    for name in ["tool_use", "rag"] {
        let file = model.path().join(format!("additional_chat_templates/{name}.jinja"));
        std::fs::write(file, text).unwrap();
    }
    let has_them = |dir: &Path| {
        let additional = dir.join("additional_chat_templates");
        assert_eq!(names(&additional), ["rag.jinja", "tool_use.jinja"], "{}", dir.display());
        let kept = std::fs::read_to_string(additional.join("tool_use.jinja")).unwrap();
        assert_eq!(kept, text, "{}", dir.display());
    };
    let renders_them = |dir: &Path| {
        let messages = [serde_json::json!({"role": "user", "content": "hi"})];
        let tools = [serde_json::json!({"type": "function", "function": {"name": "f"}})];
        let template = read(dir).chat_template;
        let rendered = template.render(&messages, Some(&tools), true, &Default::default());
        assert_eq!(rendered.unwrap(), "hi tools: 1", "{}", dir.display());
    };
    let path = model.path().to_str().unwrap();

    let whole = experiment_with(path, "{}");
    let to = out.path().join("whole");
    run(&options(whole.path(), &to)).unwrap();
    for dir in [checkpoint(whole.path()), to] {
        has_them(&dir);
        renders_them(&dir);
    }

    let lora = experiment_with(path, "{lora_rank: 2, target_modules: [q_proj]}");
    let (adapter, merged) = (out.path().join("adapter"), out.path().join("merged"));
    run(&options(lora.path(), &adapter)).unwrap();
    let merging = Options {
        merge_lora: true,
        ..options(lora.path(), &merged)
    };
    run(&merging).unwrap();
    for dir in [&checkpoint(lora.path()), &adapter, &merged] {
        has_them(dir);
    }
    renders_them(&merged);
}

#[test]
fn what_cannot_be_exported_is_said_and_leaves_nothing() {
    let (experiment, out) = (experiment("{}"), tempfile::tempdir().unwrap());
    let error = |options: &Options| run(options).unwrap_err().to_string();
    let to = out.path().join("model");

    let message = error(&options(out.path(), &to));
    assert!(message.contains("no checkpoint found in"), "{message}");

    let merging = Options {
        merge_lora: true,
        ..options(experiment.path(), &to)
    };
    assert!(error(&merging).contains("not a LoRA adapter"));

    std::fs::create_dir(&to).unwrap();
    std::fs::write(to.join("mine"), "").unwrap();
    assert!(error(&options(experiment.path(), &to)).contains("not empty"));
    assert_eq!(names(&to), ["mine"]);
    std::fs::remove_file(to.join("mine")).unwrap();
    assert_eq!(
        run(&options(experiment.path(), &to)).unwrap(),
        Exported::Model,
        "an empty directory is filled"
    );

    let weights = checkpoint(experiment.path()).join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    let message = error(&options(&checkpoint(experiment.path()), &out.path().join("other")));
    assert!(
        message.contains("is damaged") && message.contains("model.safetensors"),
        "{message}"
    );
    assert_eq!(names(out.path()), ["model"]);
}
