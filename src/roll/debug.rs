//! Looking at an agent without training: one episode in full, or a job's tasks on any OpenAI-compatible model.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::agents::{Access, Rollout};
use super::episode::{Failure, Player};
use super::error::RollError;
use super::interrupt::Interrupt;
use super::job::Job;
use super::progress::Progress;
use super::report::{EpisodeReport, Evaluation, Summary};
use super::rewards::Score;
use super::runner::{read_tasks, server_for};
use super::tasks::Task;
use crate::client::{BeginEpisode, ModelApi, Started, SwarmClient, blank_token};
use crate::protocol::swarm::EpisodeType;

/// A model that is not a swarm's.
#[derive(Clone, Debug)]
pub struct Api {
    /// Such as `https://api.openai.com/v1`.
    pub base_url: String,
    /// Its key; empty for none.
    pub api_key: String,
    /// The model's name.
    pub model: String,
}

impl Api {
    fn access(&self) -> Result<Access, RollError> {
        Ok(Access {
            model: ModelApi::new(&self.base_url, &self.api_key)?,
            model_name: self.model.clone(),
            episode_uuid: String::new(),
        })
    }
}

fn player_of(job: &Job) -> Player {
    Player {
        agent: job.roll.agent.clone(),
        reward: job.roll.reward().clone(),
    }
}

/// Runs one episode of the first task and returns what happened, as text. On a swarm it is aborted, so that training
/// is not touched, and an engine that was started for it is stopped; with `api`, no swarm is involved. `program` is
/// `ajet-swarm`, to start a server with.
///
/// # Errors
/// There is no task, or no episode to be had.
pub async fn debug_one(job: &Job, api: Option<&Api>, program: &Path) -> Result<String, RollError> {
    let progress = Progress::new(false, Interrupt::default());
    let tasks = read_tasks(job, &progress).await?;
    let task = tasks.training.first();
    let task = task.ok_or_else(|| RollError::Check("there is no task".into()))?;
    if let Some(api) = api {
        let started = Instant::now();
        let played = player_of(job).play(task, &api.access()?).await;
        return Ok(transcript(task, played, started.elapsed().as_secs_f64()));
    }
    let swarm = SwarmClient::new(&job.roll.swarm_url)?;
    let server = server_for(job, &swarm, program, &progress).await?;
    let played = debug_on_swarm(job, task, &swarm).await;
    if let Some(server) = server {
        server.stop().await;
    }
    played
}

async fn debug_on_swarm(job: &Job, task: &Task, swarm: &SwarmClient) -> Result<String, RollError> {
    let document = job.document();
    let started = swarm
        .auto_sync_train_config_and_start_engine(&document, false, |_| {})
        .await?;
    let episode = swarm.begin_episode(&BeginEpisode::default()).await?;
    let begun = Instant::now();
    let access = Access {
        model: episode.model().clone(),
        model_name: job.ajet.model.path.clone(),
        episode_uuid: episode.uuid().to_string(),
    };
    let played = player_of(job).play(task, &access).await;
    let seconds = begun.elapsed().as_secs_f64();
    episode.abort().await?;
    if started == Started::Fresh {
        swarm.stop_engine().await?;
    }
    Ok(transcript(task, played, seconds))
}

/// Every message, the answer, its worth and the time it took.
fn transcript(task: &Task, played: Result<(Rollout, Score), Failure>, seconds: f64) -> String {
    let mut text = format!("task {}\n", task.task_id);
    // Writing to a string cannot fail.
    match played {
        Ok((rollout, score)) => {
            for message in &rollout.messages {
                let content = message
                    .content
                    .as_str()
                    .map_or_else(|| message.content.to_string(), String::from);
                let _ = writeln!(text, "\n[{}]\n{content}", message.role);
                for call in message.tool_calls.iter().flatten() {
                    let _ = writeln!(text, "  calls {}({})", call.function.name, call.function.arguments);
                }
            }
            let _ = writeln!(text, "\noutput: {:?}", rollout.output);
            let _ = writeln!(text, "reward: {}", score.reward);
            if let Some(is_success) = score.is_success {
                let _ = writeln!(text, "success: {is_success}");
            }
            if let Some(calls) = rollout.llm_calls {
                let _ = writeln!(text, "LLM calls: {calls}");
            }
        }
        Err(failure) => {
            let _ = writeln!(text, "came to nothing ({}): {}", failure.reason, failure.detail);
        }
    }
    let _ = write!(text, "seconds: {seconds:.2}");
    text
}

/// Runs a job's validation tasks (its training tasks where it has none) on a model that is not a swarm's.
///
/// # Errors
/// The job is wrong. Episodes that come to nothing are told and counted.
pub async fn play_on_api(job: &Job, api: &Api, json: bool, interrupt: &Interrupt) -> Result<Summary, RollError> {
    let progress = Progress::new(json, interrupt.clone());
    let tasks = read_tasks(job, &progress).await?;
    let (player, access) = (player_of(job), api.access()?);
    let tasks = if tasks.validation.is_empty() {
        tasks.training
    } else {
        tasks.validation
    };
    let count = job.roll.eval.and_then(|eval| eval.tasks).unwrap_or(usize::MAX);
    progress.start(&job.path.display().to_string(), &blank_token(&api.base_url), &api.model);
    let started = Instant::now();
    let mut plays = vec![];
    for task in tasks.iter().take(count) {
        plays.push(play_task(&player, task, &access, &progress));
    }
    let reports = stream::iter(plays)
        .buffer_unordered(job.roll.max_parallel)
        .try_collect::<Vec<_>>();
    let reports = tokio::select! {
        reports = reports => reports?,
        () = interrupt.wait() => vec![],
    };
    let evaluation = Evaluation {
        global_step: 0,
        summary: Summary::of(&reports),
        seconds: started.elapsed().as_secs_f64(),
    };
    progress.eval(&evaluation);
    Ok(evaluation.summary)
}

async fn play_task(
    player: &Player,
    task: &Task,
    access: &Access,
    progress: &Progress,
) -> Result<EpisodeReport, RollError> {
    let started = Instant::now();
    let played = player.play(task, access).await;
    let mut report = EpisodeReport::new(String::new(), &task.task_id, EpisodeType::Eval, started.elapsed());
    match played {
        Ok((rollout, score)) => {
            report.ended(&rollout, &score);
            progress.episode(&report, "");
        }
        Err(failure) if failure.permanent => {
            return Err(RollError::Job {
                task_id: task.task_id.clone(),
                detail: failure.detail,
            });
        }
        Err(failure) => {
            report.dropped = Some(failure.reason.into());
            progress.episode(&report, &failure.detail);
        }
    }
    Ok(report)
}
