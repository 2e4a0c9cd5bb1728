//! `ajet-swarm bench training`.

use crate::say;
use std::process::ExitCode;

use anyhow::ensure;

use crate::config::Ajet;
use crate::config::schema::{Dtype, Kernels, Recompute};
use crate::inference::bench as sampling;
use crate::model::Weights;
use crate::train::bench::{self, Measurement, Plan};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
\"arithmetic\" counts each matrix product of a step once, even if it is recomputed, and as if no rows shared a prompt. \
The ceiling, of f32 multiply-adds or with --dtype bf16 of bf16 matrix products, is measured first with the same threads. \
On machines with bf16 tiles, f32 products are split into bf16 ones and can exceed the ceiling.

Example:
  ajet-swarm bench training --model Qwen/Qwen2.5-0.5B-Instruct --rows 32 --tokens 128 --lora-rank 16")]
pub struct Args {
    /// Model: a Hugging Face directory, a .gguf file, a hub id, or builtin:NAME.
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Rows per update.
    #[arg(long, value_name = "N", default_value_t = 8)]
    rows: usize,
    /// Tokens per row.
    #[arg(long, value_name = "N", default_value_t = 256)]
    tokens: usize,
    /// Prompt tokens per row, which are not trained on.
    #[arg(long, value_name = "N", default_value_t = 1)]
    prompt: usize,
    /// Rows per task, which share its prompt.
    #[arg(long, value_name = "N", default_value_t = 1)]
    group: usize,
    /// Compute the prompt separately for each row.
    #[arg(long)]
    no_sharing: bool,
    /// Type of matrix products: f32, or bf16 with f32 accumulation, master weights and moments.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ["f32", "bf16"])]
    dtype: String,
    /// Train LoRA adapters of this rank instead of all parameters.
    #[arg(long, value_name = "N", default_value_t = 0)]
    lora_rank: usize,
    /// Keep the matrices of a .gguf file quantised in memory; needs a CPU and --lora-rank.
    #[arg(long)]
    keep_quantized: bool,
    /// Number of updates; the fastest is printed.
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: usize,
    /// Maximum number of tokens in one forward and backward pass.
    #[arg(long, value_name = "N", default_value_t = 16384)]
    micro_batch_tokens: usize,
    /// Recompute layers in the backward pass instead of storing their activations.
    #[arg(long)]
    recompute: bool,
    /// Add the KL divergence from the reference model to the loss.
    #[arg(long)]
    kl: bool,
    /// Device: auto, cpu, cuda, cuda:N or metal. A GPU computes in bf16.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Number of threads. Default: physical cores.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Train with candle's own tensor operations, for comparison.
    #[arg(long)]
    plain: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails if the model cannot be loaded or trained, or an argument is invalid.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(args.rows > 0, "`--rows` must be at least 1, got 0");
    ensure!(args.group > 0, "`--group` must be at least 1, got 0");
    ensure!(
        args.prompt > 0 && args.tokens > args.prompt,
        "`--prompt` must be at least 1 and `--tokens` larger than it, got --tokens {} and --prompt {}",
        args.tokens,
        args.prompt
    );
    let mut ajet = Ajet::default();
    ajet.engine.threads = args.threads;
    ajet.engine.kernels = if args.plain { Kernels::Plain } else { Kernels::Auto };
    ajet.engine.dtype = if args.dtype == "bf16" { Dtype::Bf16 } else { Dtype::F32 };
    ajet.trainer_common.share_prefixes = !args.no_sharing;
    ajet.trainer_common.use_kl_loss = args.kl;
    ajet.trainer_common.recompute = if args.recompute { Recompute::On } else { Recompute::Off };
    ajet.trainer_common.ppo_max_token_len_per_gpu = args.micro_batch_tokens;
    ajet.data.max_prompt_length = args.prompt;
    ajet.data.max_response_length = args.tokens;

    let mut weights = bench::load_model(&args.model, &args.device, args.lora_rank, args.keep_quantized)?;
    let products = sampling::products(&weights, &ajet)?;
    let ceiling = sampling::ceilings(&weights, &ajet)?.arithmetic_flops;
    let plan = Plan {
        rows: args.rows,
        tokens: args.tokens,
        prompt: args.prompt,
        group: args.group,
        repeats: args.repeats,
    };
    let measured = bench::run(&mut weights, &ajet, &plan, ceiling, sampling::peak_rss_mb)?;
    let gpu_mb = sampling::gpu_mb(&weights);
    match args.json {
        true => {
            let mut line = serde_json::json!(measured);
            line["gpu_mb"] = gpu_mb.into();
            line["products"] = products.into();
            say!("{line}");
        }
        false => {
            say!("products   {products}");
            print(&measured, ceiling, &weights, gpu_mb);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(m: &Measurement, ceiling: f64, weights: &Weights, gpu_mb: f64) {
    let (trained, all) = (weights.trainable_count(), weights.parameter_count());
    say!("trained    {trained:>10} of {all} parameters");
    say!("forward    {:10.2} s", m.forward_s);
    say!("backward   {:10.2} s", m.backward_s);
    say!("optimizer  {:10.2} s", m.optimizer_s);
    say!("scoring    {:10.2} s", m.scoring_s);
    say!("speed      {:10.1} tokens/s", m.tokens_per_s);
    say!(
        "arithmetic {:10.0} % of {:.0} GFLOP/s",
        100.0 * m.arithmetic_ceiling_share,
        ceiling / 1e9
    );
    say!("peak       {:10.0} MB", m.peak_rss_mb);
    if gpu_mb > 0.0 {
        say!("GPU        {gpu_mb:10.0} MB");
    }
}
