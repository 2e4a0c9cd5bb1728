//! Records episodes for people and dashboards: the index of episodes, transcripts and advantages.
//!
//! A thread of its own formats and writes them, so that neither sampling nor the end of an episode waits. Nothing
//! depends on these files: if writing fails or falls behind, a warning says so once, and training continues.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::batch::finished::{EpisodeUsage, FinishedEpisode};
use super::events::EventHub;
use super::session::{ChatModel, EpisodeRecord};
use super::storage::bounded_log::BoundedLog;
use super::storage::trajectories::Trajectories;
use crate::config::schema::TrainerCommon;
use crate::protocol::engine::{DropReason, ForgetEpisode};
use crate::protocol::run_files::{Advantages, EPISODES_BYTES, EPISODES_FILE};
use crate::protocol::status::{EpisodeDetail, EpisodeSummary, TokenRow, TranscriptConversation};
use crate::timeline::{Call, Row, branches};

/// Maximum number of records that wait to be written.
const QUEUE: usize = 256;
/// Maximum wait for the queue at the end of the engine.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

enum Job {
    Ended(Box<Ended>),
    /// A dropped episode, or the amendment of an earlier line.
    Line(Box<EpisodeSummary>),
    Advantages(u64, Advantages),
    Flush(SyncSender<()>),
}

struct Ended {
    episode: Arc<FinishedEpisode>,
    record: Arc<EpisodeRecord>,
    at: f64,
}

/// Handle of the recording thread.
pub struct Recorder {
    jobs: SyncSender<Job>,
    hub: Arc<EventHub>,
    /// Whether the loss of a record was reported.
    warned: AtomicBool,
}

impl Recorder {
    /// Starts recording below an experiment's directory.
    ///
    /// # Errors
    /// Fails if the index cannot be opened or the thread not started.
    pub fn start(
        experiment_dir: &Path,
        config: &TrainerCommon,
        model: Arc<dyn ChatModel>,
        hub: Arc<EventHub>,
    ) -> io::Result<Self> {
        let (jobs, queue) = sync_channel(QUEUE);
        let limit = config.trajectory_limit_mb.saturating_mul(1024 * 1024);
        let writer = Writer {
            index: BoundedLog::open(&experiment_dir.join(EPISODES_FILE), EPISODES_BYTES)?,
            trajectories: None,
            model,
            hub: hub.clone(),
            warned: false,
        };
        let dir = config.save_trajectory_as_json_file.then(|| experiment_dir.to_owned());
        std::thread::Builder::new().name("recorder".into()).spawn(move || {
            let trajectories = dir.map(|dir| Trajectories::open(&dir, limit));
            Writer { trajectories, ..writer }.run(&queue);
        })?;
        Ok(Self {
            jobs,
            hub,
            warned: AtomicBool::new(false),
        })
    }

    /// Records a finished episode.
    pub fn ended(&self, episode: Arc<FinishedEpisode>, record: Arc<EpisodeRecord>) {
        let at = unix_seconds();
        self.send(Job::Ended(Box::new(Ended { episode, record, at })));
    }

    /// Records an episode that was dropped before or at its end.
    pub fn dropped(&self, episode_uuid: &str, episode: ForgetEpisode, usage: &EpisodeUsage) {
        self.send(Job::Line(Box::new(EpisodeSummary {
            episode_uuid: episode_uuid.to_owned(),
            episode_type: episode.episode_type,
            global_step: episode.claimed_at_step,
            task_id: episode.task_id,
            client_uuid: episode.client_uuid,
            llm_calls: usage.llm_calls,
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            ended: unix_seconds(),
            dropped: Some(episode.reason.as_str().to_owned()),
            ..EpisodeSummary::default()
        })));
    }

    /// Records that a finished episode does not train after all.
    pub fn left_out(&self, episode_uuid: &str, reason: DropReason) {
        self.send(Job::Line(Box::new(EpisodeSummary {
            episode_uuid: episode_uuid.to_owned(),
            dropped: Some(reason.as_str().to_owned()),
            ..EpisodeSummary::default()
        })));
    }

    /// Records the advantages of a step's update.
    pub fn advantages(&self, global_step: u64, advantages: Advantages) {
        self.send(Job::Advantages(global_step, advantages));
    }

    /// Waits a few seconds for what is queued.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.jobs.send(Job::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT); // then the rest is lost, as in a crash
        }
    }

    fn send(&self, job: Job) {
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(job)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            self.hub.warn(
                "transcripts are written more slowly than episodes end, so some are left out; hint: set \
                 ajet.trainer_common.save_trajectory_as_json_file to false, or use a faster disk",
            );
        }
    }
}

/// State of the recording thread.
struct Writer {
    index: BoundedLog,
    trajectories: Option<Trajectories>,
    model: Arc<dyn ChatModel>,
    hub: Arc<EventHub>,
    /// Whether a failure was reported.
    warned: bool,
}

impl Writer {
    /// Writes until the engine ends.
    fn run(mut self, queue: &Receiver<Job>) {
        let outcome = self.index.remove_incomplete_line();
        self.report("the index of episodes", outcome);
        for job in queue {
            match job {
                Job::Ended(ended) => self.ended(&ended),
                Job::Line(summary) => self.line(&summary),
                Job::Advantages(step, advantages) => self.advantages(step, &advantages),
                Job::Flush(done) => _ = done.send(()), // the waiter may be gone
            }
        }
    }

    fn ended(&mut self, ended: &Ended) {
        let mut summary = summary(ended);
        if let Some(trajectories) = &mut self.trajectories {
            let detail = detail(ended, summary.clone(), &*self.model);
            let saved = trajectories.save(&detail);
            summary.has_transcript = *saved.as_ref().unwrap_or(&false);
            self.report("a transcript", saved);
        }
        self.line(&summary);
    }

    fn line(&mut self, summary: &EpisodeSummary) {
        let line = serde_json::to_string(summary).map_err(io::Error::from);
        let written = line.and_then(|line| self.index.append(format!("{line}\n").as_bytes()));
        self.report("the index of episodes", written);
    }

    fn advantages(&mut self, global_step: u64, advantages: &Advantages) {
        if let Some(trajectories) = &mut self.trajectories {
            let saved = trajectories.save_advantages(global_step, advantages);
            self.report("advantages", saved);
        }
    }

    /// Reports the first failure.
    fn report<T>(&mut self, what: &str, outcome: io::Result<T>) {
        if let Err(error) = outcome
            && !self.warned
        {
            self.warned = true;
            self.hub.warn(format!(
                "cannot write {what}: {error}; training continues, and further failures are not reported"
            ));
        }
    }
}

fn summary(ended: &Ended) -> EpisodeSummary {
    let (episode, usage) = (&ended.episode, &ended.episode.usage);
    let begun = ended.record.calls.iter().map(|call| call.begun).reduce(f64::min);
    EpisodeSummary {
        episode_uuid: episode.episode_uuid.clone(),
        episode_type: episode.episode_type,
        global_step: episode.global_step,
        task_id: episode.task_id.clone(),
        client_uuid: episode.client_uuid.clone(),
        reward: episode.reward,
        is_success: episode.is_success,
        tag: episode.tag.clone(),
        llm_calls: usage.llm_calls,
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        seconds: begun.map_or(0.0, |begun| (ended.at - begun).max(0.0)),
        ended: ended.at,
        dropped: None,
        has_transcript: true,
    }
}

fn detail(ended: &Ended, summary: EpisodeSummary, model: &dyn ChatModel) -> EpisodeDetail {
    EpisodeDetail {
        summary,
        running: false,
        log_metrics: ended.episode.log_metrics.clone(),
        conversations: conversations(&ended.record.calls),
        rows: ended.record.rows.iter().map(|row| token_row(row, model)).collect(),
    }
}

/// Returns the calls' conversations in OpenAI's format, each with the model's last answer.
fn conversations(calls: &[Call]) -> Vec<TranscriptConversation> {
    let told = branches(calls).into_iter().filter_map(|branch| {
        let last = calls.get(*branch.calls.last()?)?;
        Some(TranscriptConversation {
            model: last.agent.clone(),
            tools: last.conversation.tools.clone(),
            messages: branch.messages(calls).into_iter().cloned().collect(),
        })
    });
    told.collect()
}

fn token_row(row: &Row, model: &dyn ChatModel) -> TokenRow {
    TokenRow {
        ids: row.token_ids.clone(),
        texts: row.token_ids.iter().map(|id| model.decode(&[*id])).collect(),
        mask: row.loss_mask.clone(),
        logprobs: row.logprobs.clone(),
        advantages: None,
        truncated: row.truncated,
    }
}

fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::fake;
    use serde_json::{Value, json};

    fn message(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    fn call(messages: Vec<Value>, answer: &str) -> Call {
        Call {
            agent: "m".into(),
            begun: 5.0,
            ended: 6.0,
            ..fake::call(messages, message("assistant", answer))
        }
    }

    #[test]
    fn a_conversation_is_told_once_with_all_its_turns() {
        let (ask, again) = (message("user", "2 + 2?"), message("user", "and 3 + 3?"));
        let first = call(vec![ask.clone()], "4");
        let second = call(vec![ask.clone(), first.answer.clone(), again], "6");
        let other = call(vec![ask], "5");
        let told = conversations(&[first, second, other]);
        let contents = |at: usize| -> Vec<&str> {
            told[at]
                .messages
                .iter()
                .map(|m| m["content"].as_str().unwrap())
                .collect()
        };
        assert_eq!(told.len(), 2);
        assert_eq!(contents(0), ["2 + 2?", "4", "and 3 + 3?", "6"]);
        assert_eq!(contents(1), ["2 + 2?", "5"]);
    }

    #[test]
    fn a_summary_counts_from_the_first_call() {
        let ended = Ended {
            episode: Arc::new(FinishedEpisode {
                episode_uuid: "e".into(),
                reward: 0.5,
                ..FinishedEpisode::default()
            }),
            record: Arc::new(EpisodeRecord {
                calls: vec![call(vec![], "a")],
                ..EpisodeRecord::default()
            }),
            at: 7.5,
        };
        let summary = summary(&ended);
        assert_eq!((summary.seconds, summary.ended, summary.reward), (2.5, 7.5, 0.5));
    }
}
