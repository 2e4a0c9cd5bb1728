//! `ajet-swarm bench`: measures sampling and training on this machine.

mod step;
mod training;

use crate::say;
use std::process::ExitCode;

use anyhow::ensure;

use crate::config::Ajet;
use crate::config::schema::{Dtype, Kernels, Quantization};
use crate::inference::bench::{self, BenchModel, Ceilings, Measurement, Plan};

/// Measure sampling or training on this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Measure sampling: decode and prefill speed, compared with the limits of memory and cores.
    Inference(InferenceArgs),
    /// Measure training: duration of an update by phase, compared with the limit of the cores.
    Training(training::Args),
    /// Measure whole steps through HTTP: a server, its clients, sampling, the update and the new weights.
    Step(step::Args),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
\"of memory\" is the bandwidth used by reading weights and caches in decoding, \"of arithmetic\" the FLOP/s of the \
prompts' matrix products and attention, each as a share of a ceiling that is measured first with the same threads.

Example:
  ajet-swarm bench inference --model Qwen/Qwen2.5-0.5B-Instruct --batch 1,16 --json")]
struct InferenceArgs {
    /// Model: a Hugging Face directory, a .gguf file, a hub id, or builtin:NAME.
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Batch sizes: numbers of requests sampled together.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "1,8,16,32")]
    batch: Vec<usize>,
    /// Tokens per prompt.
    #[arg(long, value_name = "N", default_value_t = 64)]
    prompt: usize,
    /// Sampled tokens per request.
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Number of requests that share a prompt, like the repeats of a task.
    #[arg(long, value_name = "N", default_value_t = 1)]
    group: usize,
    /// Device: auto, cpu, cuda, cuda:N or metal. A GPU computes in bf16.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Number of threads. Default: physical cores.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Sample with candle's own tensor operations, for comparison.
    #[arg(long)]
    plain: bool,
    /// Pack weights as bf16.
    #[arg(long, conflicts_with = "plain")]
    bf16: bool,
    /// Round weights and activations of layers to 8 bits.
    #[arg(long, conflicts_with_all = ["plain", "bf16"])]
    int8: bool,
    /// Keep the matrices of a .gguf file quantised in memory, as sampled and trained with ajet.model.keep_quantized.
    #[arg(long, conflicts_with_all = ["plain", "bf16", "int8"])]
    keep_quantized: bool,
    /// Constrain the answers by the grammar of a JSON schema, for comparison.
    #[arg(long)]
    grammar: bool,
    /// Print one JSON object per batch size and line.
    #[arg(long)]
    json: bool,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails if the model cannot be loaded or an argument is invalid.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Inference(args) => run_inference(args),
        What::Training(args) => training::run(args),
        What::Step(args) => step::run(args).await,
    }
}

fn run_inference(args: InferenceArgs) -> anyhow::Result<ExitCode> {
    let InferenceArgs {
        batch, prompt, tokens, ..
    } = &args;
    ensure!(batch.iter().all(|&n| n > 0), "`--batch` must be at least 1, got 0");
    ensure!(*prompt > 0, "`--prompt` must be at least 1, got 0");
    ensure!(args.group > 0, "`--group` must be at least 1, got 0");
    ensure!(
        *tokens > 1,
        "`--tokens` must be at least 2, since decoding is measured from the second token on; got {tokens}"
    );
    let mut ajet = Ajet::default();
    ajet.engine.threads = args.threads;
    ajet.engine.kernels = if args.plain { Kernels::Plain } else { Kernels::Auto };
    if args.bf16 {
        ajet.engine.dtype = Dtype::Bf16;
    }
    if args.int8 {
        ajet.rollout.quantization = Quantization::Int8;
    }

    let BenchModel { weights, grammars } =
        bench::load_model(&args.model, &args.device, args.keep_quantized, &mut |_, _| {})?;
    let longest = weights.config.max_position_embeddings;
    ensure!(
        prompt + tokens <= longest,
        "`--prompt` {prompt} plus `--tokens` {tokens} exceed the model's context length of {longest} tokens"
    );
    let (products, ceilings) = (bench::products(&weights, &ajet)?, bench::ceilings(&weights, &ajet)?);
    if !args.json {
        print_head(&products, &ceilings);
    }
    let plan = Plan {
        batches: batch.clone(),
        prompt: *prompt,
        tokens: *tokens,
        group: args.group,
        grammar: args.grammar.then(|| bench::list_grammar(&grammars)).transpose()?,
    };
    bench::run(&weights, &ajet, &plan, ceilings, |measurement| match args.json {
        true => {
            let mut line = serde_json::json!(measurement);
            line["products"] = products.as_str().into();
            say!("{line}");
        }
        false => print_line(&measurement),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_head(products: &str, ceilings: &Ceilings) {
    say!("products   {products}");
    say!("memory     {:8.1} GB/s", ceilings.memory_bytes_per_s / 1e9);
    say!("arithmetic {:8.1} GFLOP/s", ceilings.arithmetic_flops / 1e9);
    say!("");
    say!("batch  decode tok/s  of memory  prefill tok/s  of arithmetic  first token ms  peak MB  GPU MB");
}

fn print_line(m: &Measurement) {
    say!(
        "{:5}  {:12.1}  {:8.0}%  {:13.1}  {:12.0}%  {:14.1}  {:7.0}  {:6.0}",
        m.batch,
        m.decode_tokens_per_s,
        100.0 * m.memory_ceiling_share,
        m.prefill_tokens_per_s,
        100.0 * m.arithmetic_ceiling_share,
        m.ttft_ms,
        m.peak_rss_mb,
        m.gpu_mb,
    );
}
