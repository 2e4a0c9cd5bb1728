//! `ajet-swarm bench`: how fast this machine samples and trains.

mod training;

use crate::say;
use std::process::ExitCode;

use anyhow::ensure;

use crate::config::Ajet;
use crate::config::schema::{Dtype, ImportanceMode, Kernels};
use crate::inference::bench::{self, Ceilings, Measurement, Plan};

/// Measure this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Sampling: decode and prefill speed beside what memory and cores could give.
    Inference(InferenceArgs),
    /// Training: seconds of an update by phase beside what the cores could give.
    Training(training::Args),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The memory's share counts the bytes of weights and caches that decoding reads, the arithmetic's share the prompts' \
matrix products; both ceilings are measured first, with the same threads.

Example:
  ajet-swarm bench inference --model Qwen/Qwen2.5-0.5B-Instruct --batch 1,16 --json")]
struct InferenceArgs {
    /// Model: a Hugging Face directory, a .gguf file, a hub id, or builtin:NAME.
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Requests sampled together.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "1,8,16,32")]
    batch: Vec<usize>,
    /// Tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 64)]
    prompt: usize,
    /// Tokens sampled for each request.
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Requests that share a prompt, as the repeats of a task do.
    #[arg(long, value_name = "N", default_value_t = 1)]
    group: usize,
    /// Where to compute: auto, cpu, cuda, cuda:N or metal. In bf16 on a GPU.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Threads that compute. Default: physical cores.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Sample with candle's own tensor operations, to compare.
    #[arg(long)]
    plain: bool,
    /// Pack weights as bf16.
    #[arg(long, conflicts_with = "plain")]
    bf16: bool,
    /// Print an object a batch size, one a line.
    #[arg(long)]
    json: bool,
}

/// Measures, and prints as it goes.
///
/// # Errors
/// The model cannot be loaded or does not take what is asked.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Inference(args) => run_inference(args),
        What::Training(args) => training::run(args),
    }
}

fn run_inference(args: InferenceArgs) -> anyhow::Result<ExitCode> {
    let InferenceArgs {
        batch, prompt, tokens, ..
    } = &args;
    ensure!(
        batch.iter().all(|&n| n > 0),
        "--batch has a 0; a batch is at least 1 request"
    );
    ensure!(*prompt > 0, "--prompt is 0; a prompt is at least 1 token");
    ensure!(args.group > 0, "--group is 0; a prompt is that of at least 1 request");
    ensure!(
        *tokens > 1,
        "--tokens is {tokens}; decoding is measured from the second token on, so at least 2"
    );
    let mut ajet = Ajet::default();
    ajet.engine.threads = args.threads;
    ajet.engine.kernels = if args.plain { Kernels::Plain } else { Kernels::Auto };
    if args.bf16 {
        ajet.engine.dtype = Dtype::Bf16;
        ajet.trainer_common.importance_sampling.mode = ImportanceMode::Token; // nothing is trained
    }

    let weights = bench::load_model(&args.model, &args.device, &mut |_, _| {})?;
    let longest = weights.config.max_position_embeddings;
    ensure!(
        prompt + tokens <= longest,
        "--prompt {prompt} and --tokens {tokens} are more than the model's context of {longest} tokens"
    );
    let ceilings = bench::ceilings(&weights, &ajet)?;
    if !args.json {
        print_head(&ceilings);
    }
    let plan = Plan {
        batches: batch.clone(),
        prompt: *prompt,
        tokens: *tokens,
        group: args.group,
    };
    bench::run(&weights, &ajet, &plan, ceilings, |measurement| match args.json {
        true => say!("{}", serde_json::json!(measurement)),
        false => print_line(&measurement),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_head(ceilings: &Ceilings) {
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
