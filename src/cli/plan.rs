//! `ajet-swarm plan`: what a configuration needs of a machine that need not be at hand.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};

use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};
use crate::config::{Ajet, Node, Strictness, parse, read, setting};
use crate::inference::bench;
use crate::model::load::load_shape;
use crate::model::{ModelConfig, memory};
use crate::plan::{Device, Lengths, Machines, device, plan, report, shapes};
use crate::say;

/// Estimate memory and time of a training configuration on given GPUs, and show which settings to take.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing is loaded or trained, and no GPU is needed. Lengths are those of the configuration unless --mean-prompt-length and \
--mean-response-length say otherwise.

Examples:
  ajet-swarm plan --model qwen2.5-7b --gpu h100 --gpus 8 --lora-rank 16
  ajet-swarm plan --config job.yaml --gpu a100 --gpus 8 --nodes 2 --network-gbit 100
  ajet-swarm plan --model ./my-model --gpu cpu")]
pub struct Args {
    /// Model: a Hugging Face directory, a config.json, a .gguf file, a hub id in the cache, builtin:NAME, a known shape such
    /// as qwen2.5-7b, or numbers: `layers=32,hidden=4096,intermediate=14336,heads=32,kv_heads=8,vocabulary=128256[,tied]`.
    /// Default: the configuration's.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// GPU by name, or `cpu` to measure and plan for this machine.
    #[arg(long, value_name = "NAME", default_value = "h100", value_parser = device_names())]
    gpu: String,
    /// Number of GPUs, and so of ranks, on each machine. Default: the configuration's.
    #[arg(long, value_name = "N")]
    gpus: Option<usize>,
    /// Number of machines. Default: the configuration's.
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
    /// Speed between two machines, in Gbit/s.
    #[arg(long, value_name = "GBIT", default_value_t = 100.0)]
    network_gbit: f64,
    /// Memory of a GPU in GB, instead of the table's.
    #[arg(long, value_name = "GB")]
    memory_gb: Option<f64>,
    /// Memory bandwidth of a GPU in GB/s, instead of the table's.
    #[arg(long, value_name = "GB/S")]
    bandwidth_gb: Option<f64>,
    /// Dense bf16 TFLOP/s of a GPU, instead of the table's.
    #[arg(long, value_name = "TFLOP/S")]
    tflops: Option<f64>,
    /// Job or training configuration (YAML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Rank of LoRA adapters; 0 trains all parameters.
    #[arg(long, value_name = "N")]
    lora_rank: Option<usize>,
    /// Type of weights and matrix products: auto, f32 or bf16.
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    /// Tasks per batch.
    #[arg(long, value_name = "N")]
    train_batch_size: Option<usize>,
    /// Episodes per task.
    #[arg(long, value_name = "N")]
    num_repeat: Option<usize>,
    /// Maximum number of tokens of a prompt.
    #[arg(long, value_name = "N")]
    max_prompt_length: Option<usize>,
    /// Maximum number of tokens of a response.
    #[arg(long, value_name = "N")]
    max_response_length: Option<usize>,
    /// Mean number of tokens of a prompt. Default: the maximum.
    #[arg(long, value_name = "N")]
    mean_prompt_length: Option<usize>,
    /// Mean number of tokens of a response. Default: the maximum.
    #[arg(long, value_name = "N")]
    mean_response_length: Option<usize>,
    /// Further keys of the training configuration; can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

fn device_names() -> clap::builder::PossibleValuesParser {
    let names = device::gpus().map(|(name, _)| name).chain(["cpu"]);
    names.collect::<Vec<_>>().into()
}

/// Prints the plan. The exit code is 1 if the configuration does not fit.
///
/// # Errors
/// Fails for a model that is not there or not supported, or an invalid argument.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.model.is_some() || args.config.is_some(),
        "there is no model to plan for\nhint: pass --model, or --config with a job"
    );
    let document = document(args)?;
    let ajet = read(&document, Strictness::Synced)?.ajet;
    let model = shape(&ajet.model.path)?;
    let machines = machines(args, &ajet)?;
    let lengths = Lengths {
        prompt: args.mean_prompt_length.unwrap_or(ajet.data.max_prompt_length),
        response: args.mean_response_length.unwrap_or(ajet.data.max_response_length),
    };
    let plan = plan(&model, &ajet, &machines, lengths);
    match args.json {
        true => say!("{}", serde_json::to_string(&plan)?),
        false => say!("{}", report(&ajet.model.path, &plan).trim_end()),
    }
    Ok(ExitCode::from(u8::from(!plan.memory.fits())))
}

/// Returns the configuration with the settings of the command line.
fn document(args: &Args) -> anyhow::Result<Node> {
    let text = match &args.config {
        Some(path) => {
            read_given_text(path, DOCUMENT_BYTES).with_context(|| format!("cannot read {}", path.display()))?
        }
        None => "{}".into(),
    };
    let mut document = parse(&text)?;
    let numbers = [
        ("trainer_common.n_gpus_per_node", args.gpus),
        ("trainer_common.nnodes", args.nodes),
        ("lora.lora_rank", args.lora_rank),
        ("data.train_batch_size", args.train_batch_size),
        ("data.max_prompt_length", args.max_prompt_length),
        ("data.max_response_length", args.max_response_length),
        ("rollout.num_repeat", args.num_repeat),
    ];
    let numbers = numbers
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?.to_string())));
    let texts = [("model.path", &args.model), ("engine.dtype", &args.dtype)];
    let texts = texts.into_iter().filter_map(|(key, value)| Some((key, value.clone()?)));
    for (key, value) in numbers.chain(texts) {
        document.set(&format!("ajet.{key}"), Node::plain(value));
    }
    for setting in &args.set {
        setting::apply(&mut document, setting).map_err(|problem| anyhow!("`--set {setting}`: {problem}"))?;
    }
    Ok(document)
}

fn shape(model: &str) -> anyhow::Result<ModelConfig> {
    if let Some(shape) = shapes::by_numbers(model) {
        return shape.map_err(|problem| anyhow!("--model: {problem}"));
    }
    match shapes::known(model)? {
        Some(shape) => Ok(shape),
        None => load_shape(model).map_err(|error| {
            let known: Vec<_> = shapes::names().collect();
            anyhow!("{error}\nhint: known shapes are {}", known.join(", "))
        }),
    }
}

fn machines(args: &Args, ajet: &Ajet) -> anyhow::Result<Machines> {
    let per_node = ajet.trainer_common.n_gpus_per_node.max(1);
    let positive = |flag: &str, value: Option<f64>| match value {
        Some(value) if !(value > 0.0 && value.is_finite()) => bail!("`{flag}` must be a positive number, got {value}"),
        value => Ok(value),
    };
    let own = [
        positive("--memory-gb", args.memory_gb)?,
        positive("--bandwidth-gb", args.bandwidth_gb)?,
        positive("--tflops", args.tflops)?,
    ];
    ensure!(
        args.network_gbit > 0.0 && args.network_gbit.is_finite(),
        "`--network-gbit` must be a positive number, got {}",
        args.network_gbit
    );
    let mut device = match device::gpu(&args.gpu) {
        Some(gpu) => gpu,
        None => cpu(ajet)?,
    };
    if own.iter().any(Option::is_some) {
        let [memory, bandwidth, flops] = own;
        device.memory = memory.map_or(device.memory, |gb| gb * 1e9);
        device.bandwidth = bandwidth.map_or(device.bandwidth, |gb| gb * 1e9);
        device.flops = flops.map_or(device.flops, |tflops| tflops * 1e12);
        device.source += ", changed by the command line";
    }
    if device.is_cpu {
        device = device.part(per_node);
    }
    Ok(Machines {
        device,
        per_node,
        nodes: ajet.trainer_common.nnodes,
        network: args.network_gbit / 8.0 * 1e9,
    })
}

/// Measures this machine.
fn cpu(ajet: &Ajet) -> anyhow::Result<Device> {
    let ceilings = bench::cpu_ceilings(ajet)?;
    let memory = memory::available().context("the system does not report its available memory")?;
    Ok(Device {
        name: "this machine's CPU".into(),
        is_cpu: true,
        memory: memory as f64,
        bandwidth: ceilings.memory_bytes_per_s,
        flops: ceilings.arithmetic_flops,
        host_link: ceilings.memory_bytes_per_s,
        source: "measured now, with the memory that is available".into(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &[&str]) -> (Args, anyhow::Result<Ajet>) {
        let args = Command::parse_from([&["plan"], words].concat()).args;
        let ajet = document(&args).and_then(|document| Ok(read(&document, Strictness::Synced)?.ajet));
        (args, ajet)
    }

    #[test]
    fn flags_go_over_the_configuration() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let yaml = "ajet: {model: {path: 'qwen2.5-3b'}, lora: {lora_rank: 8}, trainer_common: {n_gpus_per_node: 4}}";
        std::io::Write::write_all(&mut file, yaml.as_bytes()).unwrap();
        let config = file.path().to_str().unwrap();
        let (_, ajet) = parsed(&[
            "--config",
            config,
            "--lora-rank",
            "16",
            "--dtype",
            "f32",
            "--nodes",
            "2",
        ]);
        let ajet = ajet.unwrap();
        assert_eq!((ajet.model.path.as_str(), ajet.lora.lora_rank), ("qwen2.5-3b", 16));
        assert_eq!(ajet.configured_ranks(), 8);
        let (_, wrong) = parsed(&["--model", "qwen2.5-3b", "--num-repeat", "0"]);
        assert!(wrong.unwrap_err().to_string().contains("num_repeat"));
    }

    #[test]
    fn figures_of_a_device_can_be_given() {
        let of = |words: &[&str]| {
            let (args, ajet) = parsed(&[&["--model", "qwen2.5-3b", "--gpu", "a100"], words].concat());
            machines(&args, &ajet.unwrap())
        };
        let found = of(&[
            "--memory-gb",
            "96",
            "--tflops",
            "500",
            "--network-gbit",
            "400",
            "--gpus",
            "4",
        ])
        .unwrap();
        assert_eq!(
            (found.device.memory, found.device.flops, found.network),
            (96e9, 500e12, 50e9)
        );
        assert_eq!((found.device.bandwidth, found.ranks()), (2_039e9, 4));
        assert!(found.device.source.ends_with("changed by the command line"));
        let wrong = of(&["--memory-gb", "0"]).unwrap_err();
        assert_eq!(wrong.to_string(), "`--memory-gb` must be a positive number, got 0");
    }

    #[test]
    fn a_model_is_named_a_path_or_numbers() {
        assert_eq!(shape("Qwen2.5-3B").unwrap().layers.len(), 36);
        assert!(shape("builtin:tiny").is_ok());
        assert!(shape("layers=1").unwrap_err().to_string().contains("hidden=NUMBER"));
        let missing = shape("no/such-model-here").unwrap_err().to_string();
        assert!(missing.contains("known shapes are smollm2-135m"), "{missing}");
    }
}
