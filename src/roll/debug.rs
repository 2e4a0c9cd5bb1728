//! Looking at an agent without training: one episode in full, or a job's tasks on any OpenAI-compatible model.

use std::path::Path;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::agents::Access;
use super::episode::Player;
use super::error::RollError;
use super::failures::Failures;
use super::interrupt::Interrupt;
use super::job::Job;
use super::progress::Progress;
use super::report::{EpisodeReport, Evaluation, Summary};
use super::runner::{read_tasks, server_for};
use super::tasks::Task;
use super::transcript::{told_by, transcript};
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
            episode_uuid: uuid::Uuid::new_v4().to_string(),
            is_recorded: false,
        })
    }
}

fn player_of(job: &Job) -> Result<Player, RollError> {
    Ok(Player {
        agent: job.roll.agent.clone(),
        scorer: job.roll.scorer()?,
    })
}

/// Runs one episode of the first task and returns what happened, as text. On a swarm it is aborted, so that training is
/// not touched; an engine that was started for it goes on with `keep_engine`, so that the next try need not wait for one.
/// With `api`, no swarm is involved. `program` is `ajet-swarm`, to start a server with.
///
/// # Errors
/// There is no task, or no episode can be begun.
pub async fn debug_one(job: &Job, api: Option<&Api>, program: &Path, keep_engine: bool) -> Result<String, RollError> {
    let progress = Progress::new(false, Interrupt::default());
    let tasks = read_tasks(job, &progress).await?;
    let task = tasks.training.first();
    let task = task.ok_or_else(|| RollError::Check("there is no task".into()))?;
    if let Some(api) = api {
        let started = Instant::now();
        let played = player_of(job)?.play(task, &api.access()?).await;
        let said = played.as_ref().ok().map(|(rollout, _)| told_by(rollout));
        return Ok(transcript(
            task,
            said.as_ref(),
            &played,
            started.elapsed().as_secs_f64(),
        ));
    }
    let swarm = SwarmClient::new(&job.roll.swarm_url)?;
    let server = server_for(job, &swarm, program, &progress).await?;
    let shown = debug_on_swarm(job, task, &swarm, keep_engine).await;
    match (server, shown) {
        (None, Ok((text, Started::Fresh))) if keep_engine => Ok(format!(
            "{text}\n\nthe engine keeps running at {} for the next try\nhint: `ajet-swarm stop` stops it; \
             `--keep-engine=false` does so at once",
            swarm.url()
        )),
        (Some(server), Ok((text, _))) if keep_engine => {
            let process = server.leave().await;
            Ok(format!(
                "{text}\n\nthe server at {} and its engine keep running for the next try\nhint: {} ends them; \
                 `--keep-engine=false` does so at once",
                swarm.url(),
                process.map_or_else(|| "a signal".into(), |process| format!("`kill {process}`"))
            ))
        }
        (server, shown) => {
            if let Some(server) = server {
                server.stop().await;
            }
            shown.map(|(text, _)| text)
        }
    }
}

async fn debug_on_swarm(
    job: &Job,
    task: &Task,
    swarm: &SwarmClient,
    keep_engine: bool,
) -> Result<(String, Started), RollError> {
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
        is_recorded: true,
    };
    let played = player_of(job)?.play(task, &access).await;
    let seconds = begun.elapsed().as_secs_f64();
    // Before the abort, with which the server forgets it. Other servers than ours do not record.
    let recorded = access.model.conversations().await.ok();
    let said = recorded.or_else(|| played.as_ref().ok().map(|(rollout, _)| told_by(rollout)));
    episode.abort().await?;
    if started == Started::Fresh && !keep_engine {
        swarm.stop_engine().await?;
    }
    Ok((transcript(task, said.as_ref(), &played, seconds), started))
}

/// Runs a job's validation tasks (its training tasks where it has none) on a model that is not a swarm's.
///
/// # Errors
/// The job is wrong. Episodes that come to nothing are told and counted.
pub async fn play_on_api(job: &Job, api: &Api, json: bool, interrupt: &Interrupt) -> Result<Summary, RollError> {
    let progress = Progress::new(json, interrupt.clone());
    let tasks = read_tasks(job, &progress).await?;
    let player = player_of(job)?;
    let failures = Failures::new(job.roll.max_failure_rate, job.roll.parallel());
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
        plays.push(play_task(&player, task, api.access()?, &progress, &failures));
    }
    let reports = stream::iter(plays)
        .buffer_unordered(job.roll.parallel())
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
    match reports.last().and_then(|last| last.dropped.as_ref()) {
        Some(detail) if evaluation.summary.episodes == 0 => Err(RollError::AllFailed {
            episodes: reports.len(),
            detail: detail.clone(),
        }),
        _ => Ok(evaluation.summary),
    }
}

async fn play_task(
    player: &Player,
    task: &Task,
    access: Access,
    progress: &Progress,
    failures: &Failures,
) -> Result<EpisodeReport, RollError> {
    let started = Instant::now();
    let played = player.play(task, &access).await;
    let mut report = EpisodeReport::new(String::new(), &task.task_id, EpisodeType::Eval, started.elapsed());
    match played {
        Ok((rollout, score)) => {
            failures.ended();
            report.ended(&rollout, &score);
            progress.episode(&report, "");
        }
        Err(failure) => {
            report.dropped = Some(failure.reason.to_string());
            progress.episode(&report, &failure.detail);
            failures.failed(&failure, &task.task_id)?;
        }
    }
    Ok(report)
}
