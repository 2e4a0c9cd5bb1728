//! `ajet-swarm status`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use super::server_url::ServerArgs;
use super::wait_goal::{Goal, Outlook};
use crate::client::{ClientError, SwarmClient};
use crate::counted::counted;
use crate::protocol::swarm::{EngineStatus, EngineStatusAnswer, PoolInformation};
use crate::terminal;

/// Interval between two looks at the engine.
const POLL: Duration = Duration::from_millis(300);

/// Options of the status command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm status
  ajet-swarm status --swarm-url http://gpu-box:10086 --token \"$TOKEN\"
  ajet-swarm status --json | jq .pool.latest_metrics.reward_mean
  ajet-swarm status --wait rolling --timeout 600     until episodes can be run
  ajet-swarm status --wait step=20 --json            until 19 updates are done

Exit codes: 0 done or reached, 1 error, 2 wrong usage, 3 --timeout is over, 4 the engine is offline and does not get
there.")]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Print a JSON object with `status`, `pool` and `experiment_dir` as the server reports them.
    #[arg(long)]
    json: bool,
    /// Wait until the engine is `rolling` or `offline`, or has reached `step=N`, and then print.
    #[arg(long, value_name = "STATE")]
    wait: Option<Goal>,
    /// Maximum seconds to wait; without it there is no limit.
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    timeout: Option<f64>,
}

/// Exit code if the time is over.
const TIMED_OUT: u8 = 3;
/// Exit code if the engine is offline and will not get there.
const IS_OFFLINE: u8 = 4;

/// Prints the engine's state and the progress of the current batch.
///
/// # Errors
/// Fails if the server cannot be reached or requires a token, or if the time limit is no duration.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let swarm = args.server.client()?;
    let waited = match args.wait {
        Some(goal) => wait(&swarm, goal, limit(args.timeout)?).await?,
        None => ExitCode::SUCCESS,
    };
    let (status, pool, experiment_dir) = tokio::join!(swarm.status(), swarm.pool_information(), swarm.experiment_dir());
    let (status, pool, experiment_dir) = (status?, if_there(pool)?, if_there(experiment_dir)?.flatten());
    let text = match args.json {
        true => {
            let all = json!({"status": status, "pool": pool, "experiment_dir": experiment_dir});
            format!("{}\n", terminal::json(&serde_json::to_string_pretty(&all)?))
        }
        false => lines(&status, &pool.unwrap_or_default(), experiment_dir.as_deref()),
    };
    terminal::print(&text);
    Ok(waited)
}

/// Returns a time limit given in seconds; without one it is a thousand years.
fn limit(seconds: Option<f64>) -> anyhow::Result<Duration> {
    let Some(seconds) = seconds else {
        return Ok(Duration::from_secs(31_557_600_000));
    };
    Duration::try_from_secs_f64(seconds)
        .with_context(|| format!("--timeout must be a number of seconds that is not negative, got {seconds}"))
}

/// Waits until the goal is reached or cannot be; returns the exit code.
async fn wait(swarm: &SwarmClient, goal: Goal, limit: Duration) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let mut was_up = false;
    loop {
        let status = swarm.status().await?;
        was_up |= status.engine_status != EngineStatus::Offline;
        match goal.outlook(&status, was_up) {
            Outlook::Reached => return Ok(ExitCode::SUCCESS),
            Outlook::Offline => return Ok(ExitCode::from(IS_OFFLINE)),
            Outlook::Open if began.elapsed() >= limit => return Ok(ExitCode::from(TIMED_OUT)),
            Outlook::Open => tokio::time::sleep(POLL.min(limit.saturating_sub(began.elapsed()))).await,
        }
    }
}

/// An answer of an endpoint that an older or another server may not have.
fn if_there<T>(answer: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match answer {
        Err(ClientError::Refused { status: 404, .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

fn lines(status: &EngineStatusAnswer, pool: &PoolInformation, experiment_dir: Option<&str>) -> String {
    let episodes = || pool.running_episode_details.iter().flat_map(|all| all.values());
    let running = episodes().filter(|episode| episode.has_begun()).count();
    let claimed = episodes().count() - running;
    let clients = pool.swarm_client_instruction.active_clients.len() as u64;
    let mut lines = vec![("engine", status.engine_status.to_string())];
    lines.extend(status.engine_status_detail.clone().map(|detail| ("detail", detail)));
    lines.extend(pool.training_model_path.clone().map(|model| ("model", model)));
    if status.global_step > 0 {
        let done = status.global_step - 1;
        lines.push((
            "step",
            format!("{} ({} done)", status.global_step, counted(done, "update")),
        ));
    }
    if !pool.sample_collection_method.is_empty() {
        lines.push((
            "batch",
            format!(
                "{} of {} episodes, {} of {} tasks, {} of {} tasks with different rewards ({})",
                pool.completed_episodes,
                pool.completed_episode_target,
                pool.completed_tasks,
                pool.completed_task_target,
                pool.completed_non_dummy_tasks,
                pool.completed_non_dummy_task_target,
                pool.sample_collection_method
            ),
        ));
        let running = counted(running as u64, "episode");
        let clients = counted(clients, "active client");
        lines.push(("running", format!("{running}, {claimed} only claimed, {clients}")));
    }
    let dropped: Vec<_> = pool
        .dropped_episodes
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    if !dropped.is_empty() {
        lines.push(("dropped", dropped.join(", ")));
    }
    lines.extend(
        pool.latest_metrics
            .get("reward_mean")
            .map(|reward| ("reward", format!("{reward:.4}"))),
    );
    lines.extend(experiment_dir.map(|dir| ("experiment", dir.to_owned())));
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<12}{}", terminal::one_line(value));
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen with a server without the pool's endpoint, of which nothing was shown.
    #[test]
    fn what_a_server_does_not_have_is_left_out() {
        let refused = |status| ClientError::Refused {
            call: "/get_current_batch_rollout_pool_information",
            status,
            detail: "Not Found".into(),
        };
        assert_eq!(if_there::<u8>(Err(refused(404))).unwrap(), None);
        assert!(if_there::<u8>(Err(refused(401))).is_err());
        assert_eq!(if_there(Ok(1)).unwrap(), Some(1));
    }

    #[test]
    fn an_offline_server_has_little_to_tell_and_a_rolling_one_its_batch() {
        let mut status = EngineStatusAnswer {
            engine_status: EngineStatus::Offline,
            engine_status_detail: None,
            global_step: 0,
        };
        let mut pool = PoolInformation::default();
        assert_eq!(lines(&status, &pool, None), "engine      ENGINE.OFFLINE\n");
        status.engine_status = EngineStatus::Rolling;
        pool.sample_collection_method = "rollout_until_finish_enough_tasks".into();
        (pool.completed_episodes, pool.completed_episode_target) = (3, 8);
        pool.dropped_episodes = [("idle".to_owned(), 2)].into_iter().collect();
        let text = lines(&status, &pool, Some("/runs/a"));
        for line in [
            "batch       3 of 8 episodes,",
            "dropped     2 idle\n",
            "experiment  /runs/a\n",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }
}
