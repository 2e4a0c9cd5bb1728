//! `ajet-swarm bench step`: whole steps through HTTP, as users run them.

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use futures_util::future::try_join_all;
use indexmap::IndexMap;
use serde_json::{Value, json};

use crate::client::{BeginEpisode, Episode, ServerUrl, SwarmClient};
use crate::config::{self, setting};
use crate::protocol::openai::{ChatMessage, ChatRequest};
use crate::protocol::swarm::{EngineStatus, EpisodeType, WorkflowOutput};
use crate::roll::OwnServer;
use crate::say;

/// Words of the prompts, in another order for each task.
const WORDS: [&str; 16] = [
    "river", "stone", "green", "light", "seven", "house", "water", "paper", "north", "table", "music", "glass",
    "horse", "small", "winter", "bread",
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A step is all that lies between two batches: prompts sent, answers sampled, episodes ended, weights updated, and the next \
batch begun. The first step is not counted, since it allocates. Answers do not end before their last token.

Example:
  ajet-swarm bench step --model HuggingFaceTB/SmolLM2-135M-Instruct --tasks 4 --repeats 8 --prompt 64 --tokens 64")]
pub struct Args {
    /// Model: a Hugging Face directory, a .gguf file, a hub id, or builtin:NAME.
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Tasks per batch.
    #[arg(long, value_name = "N", default_value_t = 4)]
    tasks: usize,
    /// Episodes per task.
    #[arg(long, value_name = "N", default_value_t = 8)]
    repeats: usize,
    /// Tokens per prompt, at most; the prompt is as many words as fit.
    #[arg(long, value_name = "N", default_value_t = 64)]
    prompt: usize,
    /// Sampled tokens per episode.
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Number of measured steps; the median is printed.
    #[arg(long, value_name = "N", default_value_t = 3)]
    steps: usize,
    /// Share of the tasks whose rewards differ; the others teach nothing.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    signal: f64,
    /// Further keys of the training configuration; can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// A measured step.
#[derive(Clone, Debug)]
struct Step {
    /// Seconds from the first claim of its batch to the first possible claim of the next one.
    seconds: f64,
    /// Metrics of its update.
    metrics: IndexMap<String, f64>,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails for an invalid argument or a model that cannot be trained.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    for (name, value, least) in [
        ("--tasks", args.tasks, 1),
        ("--repeats", args.repeats, 2),
        ("--prompt", args.prompt, 1),
        ("--tokens", args.tokens, 1),
        ("--steps", args.steps, 1),
    ] {
        ensure!(value >= least, "`{name}` must be at least {least}, got {value}");
    }
    ensure!(
        (0.0..=1.0).contains(&args.signal),
        "`--signal` must be between 0 and 1, got {}",
        args.signal
    );
    let median = median(measure(&args).await?);
    match args.json {
        true => say!("{}", in_json(&args, &median)),
        false => print(&args, &median),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a server in a temporary directory for as long as the steps take.
async fn measure(args: &Args) -> anyhow::Result<Vec<Step>> {
    let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
    let url = format!("http://127.0.0.1:{}", free_port()?);
    let server = OwnServer::start(&std::env::current_exe()?, &ServerUrl::parse(&url)?, &[]).await?;
    let measured = steps(args, &SwarmClient::new(&url)?, dir.path()).await;
    server.stop().await;
    measured
}

/// Returns a port that was free a moment ago.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn steps(args: &Args, swarm: &SwarmClient, dir: &Path) -> anyhow::Result<Vec<Step>> {
    let mut config = config::parse(&configuration(args, dir).to_string())?;
    for setting in &args.set {
        setting::apply(&mut config, setting).map_err(|problem| anyhow!("`--set {setting}`: {problem}"))?;
    }
    swarm
        .auto_sync_train_config_and_start_engine(&config.to_json().to_string(), false, |_| {})
        .await?;
    let prompts = prompts(args, swarm).await?;
    let mut steps = vec![];
    for number in 0..=args.steps {
        let step = step(args, swarm, &prompts).await?;
        // The first one allocates what the others reuse.
        if number > 0 {
            steps.push(step);
        }
    }
    Ok(steps)
}

fn configuration(args: &Args, dir: &Path) -> Value {
    json!({"ajet": {
        "experiment_name": "bench-step",
        "experiment_dir": dir,
        "model": {"path": args.model},
        "data": {
            "train_batch_size": args.tasks,
            "max_prompt_length": args.prompt,
            "max_response_length": args.tokens,
        },
        "rollout": {
            "num_repeat": args.repeats,
            "max_env_worker": args.tasks * args.repeats,
            "max_num_seqs": args.tasks * args.repeats,
            "ignore_eos": true,
            // What follows the end of an answer looks like madness; its reward must stay.
            "compute_madness_checklist": [],
        },
        "trainer_common": {"use_kl_loss": false, "save_freq": 1_000_000},
    }})
}

/// Returns a prompt for each task: as many words as fit into its tokens.
async fn prompts(args: &Args, swarm: &SwarmClient) -> anyhow::Result<Vec<String>> {
    let eval = BeginEpisode {
        episode_type: EpisodeType::Eval,
        ..BeginEpisode::default()
    };
    let episode = swarm.begin_episode(&eval).await?;
    let mut prompts = vec![];
    for task in 0..args.tasks {
        prompts.push(prompt(args, &episode, task).await?);
    }
    episode.abort().await?;
    Ok(prompts)
}

async fn prompt(args: &Args, episode: &Episode, task: usize) -> anyhow::Result<String> {
    let text = |words: usize| -> String {
        let word = |at: usize| WORDS[(at * (2 * task + 1) + task) % WORDS.len()];
        (0..words).map(word).collect::<Vec<_>>().join(" ")
    };
    // A word is at least one token.
    let (mut fits, mut beyond) = (0, args.prompt + 1);
    while beyond - fits > 1 {
        let middle = fits.midpoint(beyond);
        let tokens = episode
            .model()
            .count_tokens(&[ChatMessage::new("user", text(middle))])
            .await?;
        match tokens as usize <= args.prompt {
            true => fits = middle,
            false => beyond = middle,
        }
    }
    ensure!(
        fits > 0,
        "`--prompt` {} is too short for the model's chat template and one word",
        args.prompt
    );
    Ok(text(fits))
}

/// Runs the episodes of a batch and waits for its update.
async fn step(args: &Args, swarm: &SwarmClient, prompts: &[String]) -> anyhow::Result<Step> {
    let begun = Instant::now();
    let before = swarm.status().await?.global_step;
    let with_signal = (args.signal * args.tasks as f64).round() as usize;
    let episodes = prompts.iter().enumerate().flat_map(|(task, prompt)| {
        (0..args.repeats).map(move |repeat| {
            let reward = if task < with_signal { (repeat % 2) as f64 } else { 1.0 };
            play(args, swarm, task, prompt, reward)
        })
    });
    try_join_all(episodes).await?;
    loop {
        let status = swarm.status().await?;
        ensure!(
            status.engine_status != EngineStatus::Offline,
            "the engine went offline: {}",
            status.engine_status_detail.unwrap_or_default()
        );
        if status.engine_status == EngineStatus::Rolling && status.global_step > before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(Step {
        seconds: begun.elapsed().as_secs_f64(),
        metrics: swarm.pool_information().await?.latest_metrics,
    })
}

async fn play(args: &Args, swarm: &SwarmClient, task: usize, prompt: &str, reward: f64) -> anyhow::Result<()> {
    let episode = swarm.begin_episode(&BeginEpisode::default()).await?;
    let request = ChatRequest {
        messages: vec![ChatMessage::new("user", prompt)],
        max_tokens: Some(args.tokens as u64),
        ..ChatRequest::default()
    };
    episode.model().chat(&request).await?;
    let output = WorkflowOutput {
        reward: reward.into(),
        ..WorkflowOutput::default()
    };
    episode.end(&format!("task-{task}"), output).await?;
    Ok(())
}

/// Returns the step whose duration is the median.
fn median(mut steps: Vec<Step>) -> Step {
    steps.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let middle = steps.len() / 2;
    steps.swap_remove(middle)
}

/// Seconds of a step by phase: sampling until the batch was full, the update, and all else.
fn phases(step: &Step) -> [(&'static str, f64); 3] {
    let of = |name: &str| step.metrics.get(name).copied().unwrap_or(0.0);
    let sampling = of("seconds/rolling") + of("seconds/post");
    let update = of("seconds/update");
    [
        ("sampling", sampling),
        ("update", update),
        ("rest", (step.seconds - sampling - update).max(0.0)),
    ]
}

fn in_json(args: &Args, step: &Step) -> Value {
    let mut line = json!({
        "model": args.model,
        "episodes": args.tasks * args.repeats,
        "step_s": step.seconds,
        "peak_memory_mb": step.metrics.get("peak_memory_mb"),
        "skipped_rows": step.metrics.get("skipped_rows"),
        "response_tokens": step.metrics.get("response_tokens"),
    });
    for (name, seconds) in phases(step) {
        line[format!("{name}_s")] = seconds.into();
    }
    line
}

fn print(args: &Args, step: &Step) {
    say!(
        "step     {:8.2} s  ({} episodes)",
        step.seconds,
        args.tasks * args.repeats
    );
    for (name, seconds) in phases(step) {
        say!("{name:8} {seconds:8.2} s");
    }
    say!(
        "peak     {:8.0} MB",
        step.metrics.get("peak_memory_mb").copied().unwrap_or(0.0)
    );
}
