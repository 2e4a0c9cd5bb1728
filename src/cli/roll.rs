//! `ajet-swarm roll`: runs a job with a swarm server.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::hosting::{PromptCounter, ROLL_EXAMPLE};
use super::server_url::given_token;
use crate::client::{ServerUrl, blank_token, with_token};
use crate::protocol::openai::ChatMessage;
use crate::protocol::swarm::TOKEN_VARIABLE;
use crate::roll::job::Job;
use crate::roll::report::Outcome;
use crate::roll::{
    Api, CountTokens, Interrupt, Options, debug_one, dry_run, keep_from_programs, play_on_api, run as run_job,
    supervise_with,
};
use crate::say;

const EXAMPLES: &str = "  ajet-swarm roll job.yaml --set roll.steps=200 --set ajet.trainer_common.optim.lr=1e-4
  ajet-swarm roll job.yaml --debug-one               show one episode in full, train nothing
  ajet-swarm roll job.yaml --json | jq .reward_mean  one JSON object a line
  ajet-swarm roll job.yaml --api https://api.openai.com/v1 --api-key-env OPENAI_API_KEY --api-model gpt-4.1-mini

Ctrl-C finishes or aborts the running episodes and exits with 130; a second one exits at once.
The next `roll` of the job, here or on another machine, continues the training.";

/// Run a job: its tasks run through its agent as episodes, whose rewards train the model.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = format!("Examples:\n  {ROLL_EXAMPLE}\n{EXAMPLES}"))]
pub struct Args {
    /// Job file; create one with `ajet-swarm job init`.
    job: PathBuf,
    /// Set a key of the job, such as `ajet.trainer_common.optim.lr=1e-4`; can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// URL of the swarm server; overrides the job's.
    #[arg(long, value_name = "URL")]
    swarm_url: Option<String>,
    /// Access token of the server, if it requires one.
    #[arg(long, env = TOKEN_VARIABLE, hide_env_values = true)]
    token: Option<String>,
    /// File with the access token of the server, instead of `--token`.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print events as JSON, one object per line.
    #[arg(long)]
    json: bool,
    /// Print a line for every update; by default a run of many updates prints every n-th.
    #[arg(long)]
    every_step: bool,
    /// Run one episode, print all of it and abort it, so that training is not affected.
    #[arg(long, conflicts_with_all = ["eval_only", "dry_run", "abort", "json"])]
    debug_one: bool,
    /// Abort every episode at its end, so that nothing is trained.
    #[arg(long, conflicts_with_all = ["eval_only", "dry_run"])]
    abort: bool,
    /// Evaluate once and exit.
    #[arg(long, conflicts_with = "dry_run")]
    eval_only: bool,
    /// Join an engine, or resume an experiment, even if its configuration differs.
    #[arg(long, conflicts_with = "fresh")]
    join: bool,
    /// Start a new experiment, named after the current time.
    #[arg(long)]
    fresh: bool,
    /// Check job, tasks, agent and server without running an episode.
    #[arg(long)]
    dry_run: bool,
    /// Stop the engine at the end, even if it was already running.
    #[arg(long)]
    stop_engine_at_end: bool,
    /// Leave the engine running at the end, and a server that was started for it: the default of `--debug-one`.
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        conflicts_with = "stop_engine_at_end"
    )]
    keep_engine: Option<bool>,
    /// Run the tasks with any OpenAI-compatible model, without a swarm server.
    #[arg(long, value_name = "BASE_URL", requires = "api_model", conflicts_with_all = ["eval_only", "dry_run", "abort"])]
    api: Option<String>,
    /// Name of the environment variable with the model's API key.
    #[arg(long, value_name = "NAME", requires = "api")]
    api_key_env: Option<String>,
    /// Name of the model.
    #[arg(long, value_name = "NAME", requires = "api")]
    api_model: Option<String>,
}

/// Runs the job until it ends.
///
/// # Errors
/// Fails if the job is invalid, or if server, engine or agent fail.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut job = Job::load(&args.job, &args.set)?;
    if let Some(url) = &args.swarm_url {
        if !job.roll.swarms.is_empty() {
            bail!(
                "--swarm-url is one server, but the job has several models\nhint: set each one's, such as --set \
                 roll.swarms.NAME.swarm_url={url}"
            );
        }
        job.roll.swarm_url.clone_from(url);
    }
    let token = given_token(args.token.as_deref(), args.token_file.as_deref())?;
    job.change_urls(|url| with_token(url, token.as_deref()));
    let api = args.api()?;
    if args.dry_run {
        let counter = PromptCounter::load(&job.ajet.model.path)?;
        let count = counter.map(|counter| move |messages: &[ChatMessage]| counter.count(messages));
        let count = count.as_ref().map(|count| count as CountTokens<'_>);
        for line in dry_run(&job, count.map_err(String::as_str)).await? {
            say!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    supervise_with(program.clone());
    let urls = job.models().into_iter().map(|model| ServerUrl::parse(model.swarm_url));
    for url in urls.filter_map(Result::ok) {
        if let Some(token) = url.token() {
            keep_from_programs(token);
        }
    }
    if args.debug_one {
        let keep_engine = args.keep_engine.unwrap_or(true);
        let shown = debug_one(&job, api.as_ref(), &program, keep_engine).await?;
        say!("{}", shown.text);
        return Ok(if shown.failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        });
    }
    let interrupt = Interrupt::listen().context("cannot listen for signals")?;
    if let Some(api) = api {
        play_on_api(&job, &api, args.json, &interrupt).await?;
        return Ok(exit_code(&interrupt, interrupt.happened()));
    }
    let options = Options {
        json: args.json,
        every_step: args.every_step,
        abort: args.abort,
        eval_only: args.eval_only,
        join: args.join,
        fresh: args.fresh,
        stop_engine_at_end: args.stop_engine_at_end,
        keep_engine: args.keep_engine.unwrap_or(false),
        program,
    };
    let end = run_job(job, options, interrupt.clone()).await?;
    Ok(exit_code(&interrupt, end.outcome == Outcome::Interrupted))
}

fn exit_code(interrupt: &Interrupt, interrupted: bool) -> ExitCode {
    match interrupted {
        true => ExitCode::from(interrupt.exit_code()),
        false => ExitCode::SUCCESS,
    }
}

impl Args {
    fn api(&self) -> anyhow::Result<Option<Api>> {
        let (Some(base_url), Some(model)) = (self.api.clone(), self.api_model.clone()) else {
            return Ok(None);
        };
        if base_url
            .split("://")
            .nth(1)
            .and_then(|rest| rest.split('/').next())
            .is_some_and(|host| host.contains('@'))
        {
            bail!(
                "--api {} contains a password\nhint: pass the name of the variable with the key as --api-key-env",
                blank_token(&base_url)
            );
        }
        let api_key = match &self.api_key_env {
            None => String::new(),
            Some(name) => std::env::var(name)
                .with_context(|| format!("environment variable {name} (--api-key-env) is not set"))?,
        };
        Ok(Some(Api {
            base_url,
            api_key,
            model,
        }))
    }
}
