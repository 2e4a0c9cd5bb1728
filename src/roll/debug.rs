//! Runs an agent without training: one episode in full, or a job's tasks on any OpenAI-compatible model.

use std::path::Path;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::agents::{Access, ModelAccess};
use super::episode::{Player, access};
use super::error::RollError;
use super::failures::Failures;
use super::fleet::Fleet;
use super::interrupt::Interrupt;
use super::job::Job;
use super::joining::note_of_engine;
use super::joint_episode::{JointEpisode, Models};
use super::progress::Progress;
use super::report::{EpisodeReport, Evaluation, Summary};
use super::runner::{read_tasks, servers_for};
use super::scores::{Scores, tags};
use super::tasks::Task;
use super::transcript::{told_by, transcript};
use crate::client::{BeginEpisode, ModelApi, Started, blank_token};
use crate::protocol::swarm::{EpisodeConversations, EpisodeType};

/// A model outside of a swarm.
#[derive(Clone, Debug)]
pub struct Api {
    /// Base URL, such as `https://api.openai.com/v1`.
    pub base_url: String,
    /// API key; empty for none.
    pub api_key: String,
    /// Name of the model.
    pub model: String,
}

impl Api {
    /// The model in the place of every model of the job.
    fn access(&self, job: &Job) -> Result<Access, RollError> {
        let model = ModelApi::new(&self.base_url, &self.api_key)?;
        let of_name = |name: &str| {
            let access = ModelAccess {
                api: model.clone(),
                model_name: self.model.clone(),
            };
            (name.to_owned(), access)
        };
        Ok(Access {
            models: job.roll.model_names().into_iter().map(of_name).collect(),
            model,
            model_name: self.model.clone(),
            episode_uuid: uuid::Uuid::new_v4().to_string(),
            is_recorded: false,
            max_completion_tokens: Some(job.ajet.max_response_length_in_one_turn() as u64),
        })
    }
}

/// What [`debug_one`] shows.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The episode, as text.
    pub text: String,
    /// Whether it failed; the text says why.
    pub failed: bool,
}

/// Runs one episode of the first task and returns what happened, as text. On a swarm it is aborted, so that training is
/// not affected; with `keep_engine`, an engine that was started for it keeps running for the next one. With `api`, no
/// swarm is involved. `program` is `ajet-swarm`, to start a server with.
///
/// # Errors
/// Fails if there is no task, or no episode can be begun.
pub async fn debug_one(job: &Job, api: Option<&Api>, program: &Path, keep_engine: bool) -> Result<Shown, RollError> {
    let progress = Progress::new(false, Interrupt::default());
    let tasks = read_tasks(job, &progress).await?;
    let task = tasks.training.first();
    let task = task.ok_or_else(|| RollError::Check("there is no task".into()))?;
    let player = Player::new(job, None)?;
    if let Some(api) = api {
        let started = Instant::now();
        let played = player.play(task, &api.access(job)?).await;
        let said = played.as_ref().ok().map(|(rollout, _)| told_by(rollout));
        return Ok(Shown {
            text: transcript(task, said.as_ref(), &played, started.elapsed().as_secs_f64()),
            failed: played.is_err(),
        });
    }
    let fleet = Fleet::new(job)?;
    let servers = servers_for(job, &fleet, program, &progress).await?;
    let shown = debug_on_swarm(&player, task, &fleet, keep_engine).await;
    let (Shown { text, failed }, started) = match shown {
        Ok(shown) if keep_engine => shown,
        shown => {
            for (_, server) in servers {
                server.stop().await;
            }
            return shown.map(|(shown, _)| shown);
        }
    };
    let urls = fleet.urls();
    if servers.is_empty() {
        let text = match started {
            true => format!(
                "{text}\n\nthe engine keeps running at {urls} for the next try\nhint: `ajet-swarm stop` stops it; \
                 `--keep-engine=false` does so at once"
            ),
            false => text,
        };
        return Ok(Shown { text, failed });
    }
    let mut ends = vec![];
    for (_, server) in servers {
        let process = server.leave().await;
        ends.push(process.map_or_else(|| "a signal".into(), |process| format!("`kill {process}`")));
    }
    let text = format!(
        "{text}\n\nthe server at {urls} and its engine keep running for the next try\nhint: {} ends them; \
         `--keep-engine=false` does so at once",
        ends.join(" and ")
    );
    Ok(Shown { text, failed })
}

/// The episode, and whether an engine was started for it.
async fn debug_on_swarm(
    player: &Player,
    task: &Task,
    fleet: &Fleet,
    keep_engine: bool,
) -> Result<(Shown, bool), RollError> {
    let mut started = vec![];
    let mut notes = String::new();
    for member in fleet.members() {
        let swarm = &member.swarm;
        let up = swarm.auto_sync_train_config_and_start_engine(&member.document, false, |_| {});
        match up.await? {
            Started::Fresh => started.push(swarm),
            Started::AlreadyUp => {
                if let Some(note) = note_of_engine(member).await? {
                    notes += "\n\n";
                    notes += &note;
                }
            }
        }
    }
    let episode = fleet.begin(&BeginEpisode::default(), Models::default()).await?;
    let begun = Instant::now();
    let names: Vec<_> = fleet.members().iter().map(|member| member.model_path.clone()).collect();
    let played = player.play(task, &access(&episode, &names)).await;
    let seconds = begun.elapsed().as_secs_f64();
    // Before the abort, with which the servers forget it. Other servers than ours do not record.
    let recorded = recorded(&episode).await;
    let said = recorded.or_else(|| played.as_ref().ok().map(|(rollout, _)| told_by(rollout)));
    episode.abort().await;
    if !keep_engine {
        for swarm in &started {
            swarm.stop_engine().await?;
        }
    }
    let shown = Shown {
        text: transcript(task, said.as_ref(), &played, seconds) + &notes,
        failed: played.is_err(),
    };
    Ok((shown, !started.is_empty()))
}

/// What the servers recorded of an episode; the conversations of several models are named after them.
async fn recorded(episode: &JointEpisode) -> Option<EpisodeConversations> {
    let mut all: Option<EpisodeConversations> = None;
    for part in &episode.parts {
        let Ok(mut said) = part.episode.model().conversations().await else {
            continue;
        };
        if !part.name.is_empty() {
            said.conversations
                .iter_mut()
                .for_each(|said| said.model.clone_from(&part.name));
        }
        match &mut all {
            None => all = Some(said),
            Some(all) => {
                all.llm_calls += said.llm_calls;
                all.left_out += said.left_out;
                all.conversations.append(&mut said.conversations);
            }
        }
    }
    all
}

/// Runs a job's validation tasks (or its training tasks, if it has none) on a model outside of a swarm.
///
/// # Errors
/// Fails if the job is wrong. Failed episodes are reported and counted.
pub async fn play_on_api(job: &Job, api: &Api, json: bool, interrupt: &Interrupt) -> Result<Summary, RollError> {
    let progress = Progress::new(json, interrupt.clone());
    let tasks = read_tasks(job, &progress).await?;
    let player = Player::new(job, None)?;
    let failures = Failures::new(job.roll.max_failure_rate, job.roll.parallel());
    let tasks = if tasks.validation.is_empty() {
        tasks.training
    } else {
        tasks.validation
    };
    let eval = job.roll.eval.unwrap_or_default();
    let count = eval.tasks.unwrap_or(usize::MAX);
    progress.start(&job.path.display().to_string(), &blank_token(&api.base_url), &api.model);
    let started = Instant::now();
    let mut plays = vec![];
    let repeated = tasks
        .iter()
        .take(count)
        .flat_map(|task| std::iter::repeat_n(task, eval.repeat));
    for task in repeated {
        plays.push(play_task(&player, task, api.access(job)?, &progress, &failures));
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
        scores: Scores::of(&reports, eval.repeat, &tags(&tasks)),
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
        Ok((rollout, scores)) => {
            failures.ended();
            report.ended(&rollout, &scores[0]);
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
