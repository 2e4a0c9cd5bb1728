//! `ajet-swarm research`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::protocol::swarm::TOKEN_VARIABLE;
use crate::research::{Options, run as run_plan};
use crate::roll::Interrupt;
use crate::{note, terminal};

/// Run the variants of a plan with several seeds and compare them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm research plan.yaml
  ajet-swarm research plan.yaml --out results/lr

A plan:
  job: quickstart.yaml          # relative to the plan, as all paths in it
  steps: 60                     # weight updates of a run; also seconds: 600
  seeds: [1, 2, 3]
  variants:                     # the first one is the baseline
    - name: baseline
    - name: higher-lr
      set: {ajet.trainer_common.optim.lr: 1.0e-3}

Run it again after a kill: ended runs are not repeated, others resume.

Exit codes: 0 all runs have ended, 1 a run failed or the plan is invalid, 2 wrong usage, 130 interrupted.")]
pub struct Args {
    /// Plan file.
    #[arg(value_name = "PLAN.yaml")]
    plan: PathBuf,
    /// Directory of the results. Default: the plan's path with `.research` in place of its extension.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Access token of the servers, if they require one.
    #[arg(long, env = TOKEN_VARIABLE, hide_env_values = true)]
    token: Option<String>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the rest of a plan and prints its report.
///
/// # Errors
/// Fails if the plan is invalid, or its directory cannot be used.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        out: args.out.unwrap_or_else(|| args.plan.with_extension("research")),
        plan: args.plan,
        token: args.token,
        program: std::env::current_exe().context("cannot find the path of this program")?,
    };
    let interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let report = run_plan(&options, &interrupt).await?;
    match args.json {
        true => terminal::print(&format!(
            "{}\n",
            terminal::json(&serde_json::to_string_pretty(&report)?)
        )),
        false => terminal::print(&terminal::printable(&report.markdown())),
    }
    note!("the report is in {}", options.out.join("report.md").display());
    Ok(match report.failed.is_empty() {
        _ if interrupt.happened() => ExitCode::from(interrupt.exit_code()),
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
