//! The booted engine: answers calls, takes finished episodes, updates the weights.
//!
//! Calls that wait for the disk run on blocking threads, and the computation of updates on the model thread; nothing
//! here computes on the I/O threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::Stream;
use serde_json::Value;

use super::batch::finished::FinishedEpisode;
use super::batch::journal::JournalError;
use super::batch::ledger::{ClosedBatch, Ledger, LedgerError};
use super::batch::resume_plan::StepEpisodes;
use super::completions::{CompletionError, Completions};
use super::endpoints::Endpoints;
use super::events::EventHub;
use super::metrics::{self, Metrics};
use super::model_thread::{ModelGone, ModelHandle, UpdateOutcome};
use super::recorder::Recorder;
use super::sampling_load;
use super::session::registry::Sessions;
use super::session::{ChatAnswer, ChatBackend, ChatError, ConversationTooLarge, Sampler};
use super::storage::checkpoint::{CheckpointError, CheckpointStore, StagedCheckpoint};
use super::storage::lock::DirectoryLock;
use crate::inference::SampleRequest;
use crate::model::memory;
use crate::protocol::checkpoint::BestCheckpoint;
use crate::protocol::completions::{CompletionChunk, CompletionRequest};
use crate::protocol::engine::{
    ChatCall, DropReason, EndEpisode, EndOutcome, EngineEvent, EngineLoad, EnginePhase, ForgetEpisode, PoolChange,
    PoolSnapshot, Update,
};
use crate::protocol::swarm::{EpisodeConversations, EpisodeType};
use crate::train::TrainEpisode;

/// A booted engine.
pub struct Core {
    hub: Arc<EventHub>,
    model: ModelHandle,
    backend: Arc<ChatBackend>,
    endpoints: Option<Arc<Endpoints>>,
    completions: Completions,
    sessions: Sessions,
    ledger: Mutex<Ledger>,
    checkpoints: CheckpointStore,
    recorder: Recorder,
    madness_reward: f64,
    console: bool,
    save_every: u64,
    best_by: Option<String>,
    /// Whether it was reported that a step has no such metric.
    misses_metric: AtomicBool,
    last_step: Option<u64>,
    /// Last step contained in a checkpoint.
    saved_step: AtomicU64,
    updating: AtomicBool,
    /// Whether the last attempt to save an episode failed.
    disk_fails: AtomicBool,
    /// Held during an update and during shutdown, so that shutdown waits for the update.
    cycle: tokio::sync::Mutex<()>,
    /// Held as long as the core exists, since the core may write to the experiment directory.
    _lock: DirectoryLock,
}

/// Parts of a core.
pub struct Parts {
    /// Lock of the experiment directory.
    pub lock: DirectoryLock,
    /// Receives the core's events.
    pub hub: Arc<EventHub>,
    /// Model thread.
    pub model: ModelHandle,
    /// Backend of the sessions.
    pub backend: Arc<ChatBackend>,
    /// Samplers elsewhere, if there are any.
    pub endpoints: Option<Arc<Endpoints>>,
    /// Sessions, none yet.
    pub sessions: Sessions,
    /// Journal and pool.
    pub ledger: Ledger,
    /// Checkpoints.
    pub checkpoints: CheckpointStore,
    /// Records episodes for people and dashboards.
    pub recorder: Recorder,
    /// Reward of a train episode flagged by a madness check.
    pub madness_reward: f64,
    /// Whether to log a step's metrics.
    pub console: bool,
    /// Number of updates between checkpoints.
    pub save_every: u64,
    /// Metric by which the best checkpoint is kept, if one is.
    pub best_by: Option<String>,
    /// Step of the last allowed update, which always gets a checkpoint.
    pub last_step: Option<u64>,
    /// Last step contained in a checkpoint; 0 without one.
    pub saved_step: u64,
}

impl Core {
    /// Creates a core.
    pub fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            hub: parts.hub,
            completions: Completions::new(parts.model.clone()),
            model: parts.model,
            backend: parts.backend,
            endpoints: parts.endpoints,
            sessions: parts.sessions,
            ledger: Mutex::new(parts.ledger),
            checkpoints: parts.checkpoints,
            recorder: parts.recorder,
            madness_reward: parts.madness_reward,
            console: parts.console,
            save_every: parts.save_every,
            best_by: parts.best_by,
            misses_metric: AtomicBool::new(false),
            last_step: parts.last_step,
            saved_step: AtomicU64::new(parts.saved_step),
            updating: AtomicBool::new(false),
            disk_fails: AtomicBool::new(false),
            cycle: tokio::sync::Mutex::new(()),
            _lock: parts.lock,
        })
    }

    /// Answers an agent's chat request.
    pub async fn chat(&self, episode_uuid: &str, call: ChatCall) -> Result<ChatAnswer, ChatError> {
        if self.updating.load(Ordering::Acquire) {
            return Err(ChatError::Unavailable(
                "the weights are being updated; hint: try again".into(),
            ));
        }
        let session = self.sessions.running(episode_uuid, &self.backend)?;
        session.chat(&call.request, call.episode_type).await
    }

    /// Returns the interface for engines whose episodes are sampled here.
    pub fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Samples an answer for another engine.
    ///
    /// # Errors
    /// As [`Completions::answer`].
    pub async fn complete(
        &self,
        request: CompletionRequest,
    ) -> Result<impl Stream<Item = Result<CompletionChunk, CompletionError>> + Send + use<>, CompletionError> {
        self.completions.answer(self.backend.next_request_id(), request).await
    }

    /// Returns the number of prompt tokens that an agent's request would use.
    pub async fn count_tokens(&self, episode_uuid: &str, call: ChatCall) -> Result<u64, ChatError> {
        let session = self.sessions.running(episode_uuid, &self.backend)?;
        session.count_tokens(&call.request, call.episode_type).await
    }

    /// Returns the conversations of an episode so far. Computes for some milliseconds on long episodes.
    ///
    /// # Errors
    /// Fails if the longest conversation is too large.
    pub fn conversations(&self, episode_uuid: &str) -> Result<EpisodeConversations, ConversationTooLarge> {
        self.sessions.conversations(episode_uuid)
    }

    /// Returns the load of sampling, with what happened since the last call.
    pub fn load(&self) -> EngineLoad {
        let (load, sampled) = (self.model.load(), self.model.sampling_totals());
        let recent = self.backend.latencies.take();
        let endpoints = self
            .endpoints
            .as_ref()
            .map_or_else(Vec::new, |endpoints| endpoints.report());
        sampling_load::engine_load(load, sampled, recent, self.sessions.take_new_tokens(), endpoints)
    }

    /// Saves a finished episode. Waits for the disk.
    pub fn end(&self, episode_uuid: &str, end: EndEpisode) -> Result<EndOutcome, LedgerError> {
        let mut ledger = self.ledger();
        if let Some(finished) = ledger.finished(episode_uuid) {
            return Ok(outcome(&finished, ledger.unchanged(episode_uuid))); // a retry after a lost answer
        }
        let recording = self.sessions.finish(episode_uuid).filter(|r| r.usage.llm_calls > 0);
        let Some(recording) = recording else {
            self.forget(episode_uuid, dropped_at_end(&end, DropReason::NoLlmCall));
            return Ok(EndOutcome {
                dropped: Some(DropReason::NoLlmCall),
                change: ledger.unchanged(episode_uuid),
                ..EndOutcome::default()
            });
        };
        let logprobs = recording.rows.iter().flat_map(|row| &row.logprobs);
        if !logprobs.copied().all(f32::is_finite) {
            self.forget(episode_uuid, dropped_at_end(&end, DropReason::NonFinite));
            self.hub.warn(format!(
                "dropped episode {episode_uuid}: a log-probability is not finite"
            ));
            return Ok(EndOutcome {
                dropped: Some(DropReason::NonFinite),
                change: ledger.unchanged(episode_uuid),
                ..EndOutcome::default()
            });
        }
        let tag = end.metadata.get("tag").and_then(Value::as_str).map(str::to_owned);
        let mad = recording.mad && end.episode_type == EpisodeType::Train;
        let finished = FinishedEpisode {
            episode_type: end.episode_type,
            global_step: end.claimed_at_step,
            episode_uuid: episode_uuid.to_owned(),
            task_id: end.task_id,
            client_uuid: end.client_uuid,
            reward: if mad { self.madness_reward } else { end.reward },
            is_success: end.is_success,
            tag,
            rows: recording.rows.clone(),
            usage: recording.usage.clone(),
            log_metrics: end.log_metrics,
        };
        let mut answer = outcome(&finished, PoolChange::default());
        let saved = ledger.finish(finished);
        self.report_disk(&saved, ledger.global_step());
        answer.change = saved?;
        self.sessions.forget(episode_uuid);
        if let Some(finished) = ledger.finished(episode_uuid) {
            self.recorder.ended(finished, recording);
        }
        for removed in &answer.change.removed {
            self.recorder.left_out(removed, DropReason::OverCache);
        }
        let over_cache = answer.change.removed.len();
        if over_cache > 0 {
            self.hub.dropped(DropReason::OverCache, over_cache as u64);
            self.hub.detail(format!(
                "dropped {over_cache} finished episodes, since the batch has its maximum size \
                 (ajet.swarm_mode_sample_collection_max_cached_episodes)"
            ));
        }
        Ok(answer)
    }

    /// Reports while finished episodes cannot be saved.
    fn report_disk<T>(&self, saved: &Result<T, LedgerError>, global_step: u64) {
        match saved {
            Err(LedgerError::Journal(error @ JournalError::Io { .. })) => {
                self.disk_fails.store(true, Ordering::Release);
                self.hub
                    .detail(format!("cannot save finished episodes, clients are retrying: {error}"));
            }
            Err(_) => {}
            Ok(_) if self.disk_fails.swap(false, Ordering::AcqRel) => {
                self.hub.phase(EnginePhase::Rolling, global_step, None);
            }
            Ok(_) => {}
        }
    }

    /// Returns a snapshot of the pool. Waits for writers.
    pub fn pool(&self) -> PoolSnapshot {
        self.ledger().pool()
    }

    /// Deletes an episode's calls.
    pub fn forget(&self, episode_uuid: &str, dropped: ForgetEpisode) {
        let usage = self.sessions.usage(episode_uuid);
        self.sessions.forget(episode_uuid);
        self.recorder.dropped(episode_uuid, dropped, &usage);
    }

    /// Ends the batch by agreement of the clients. Waits for writers.
    pub fn agree(&self) -> PoolSnapshot {
        self.ledger().agree()
    }

    /// Closes a full batch; [`Core::run_update`] then updates. Waits for the disk.
    pub fn begin_update(&self, asked: Update) -> Result<ClosedBatch, LedgerError> {
        let closed = self.ledger().begin_update(asked.dropped)?;
        self.updating.store(true, Ordering::Release);
        self.sessions.clear();
        self.hub.phase(EnginePhase::WeightSyncing, closed.global_step, None);
        Ok(closed)
    }

    /// Trains on a closed batch, writes a checkpoint if one is due, and opens the next batch.
    pub async fn run_update(self: &Arc<Self>, closed: ClosedBatch) -> Result<(), ModelGone> {
        let _alone = self.cycle.lock().await;
        let trouble = self.train(closed).await?;
        let core = self.clone();
        let next_step = blocking(move || core.ledger().global_step()).await;
        self.updating.store(false, Ordering::Release);
        self.hub.phase(EnginePhase::Rolling, next_step, trouble);
        Ok(())
    }

    /// Repeats an update from the journal that no checkpoint contains.
    pub async fn repeat_update(self: &Arc<Self>, episodes: StepEpisodes) -> Result<(), ModelGone> {
        let core = self.clone();
        let closed = blocking(move || {
            let mut ledger = core.ledger();
            ledger.restore(episodes);
            ledger.close_again()
        })
        .await;
        self.hub
            .detail(format!("repeating the update of step {}", closed.global_step));
        self.train(closed).await?;
        Ok(())
    }

    /// Restores the journaled episodes of the current batch. Returns the step being sampled.
    pub fn restore(&self, episodes: StepEpisodes) -> u64 {
        let mut ledger = self.ledger();
        ledger.restore(episodes);
        ledger.global_step()
    }

    /// Shuts down in good order: waits for a running update, then saves what no checkpoint contains.
    pub async fn finish(self: &Arc<Self>) {
        let _alone = self.cycle.lock().await;
        let core = self.clone();
        blocking(move || {
            let done = core.ledger().global_step() - 1;
            // Metrics are written before the checkpoint, after which a resume would not repeat the update.
            let _ = core.ledger().flush_metrics(); // retried below
            if done > core.saved_step.load(Ordering::Acquire) {
                match core
                    .stage_checkpoint(done)
                    .and_then(|staged| core.publish_checkpoint(done, staged))
                {
                    Ok(_) => core.cut_journal(done),
                    Err(error) => core.hub.warn(error.to_string()),
                }
            }
            let mut ledger = core.ledger();
            let measure = |step, metrics: &Metrics| core.measure(step, metrics);
            if let Err(trouble) = ledger.flush_evals(measure).and_then(|()| ledger.flush_metrics()) {
                core.hub.warn(trouble);
            }
            drop(ledger);
            core.recorder.flush();
        })
        .await;
    }

    /// Returns a message for the user, if any.
    async fn train(self: &Arc<Self>, closed: ClosedBatch) -> Result<Option<String>, ModelGone> {
        let begun = Instant::now();
        let outcome = match closed.batch.trained.is_empty() {
            true => UpdateOutcome::default(), // the clients agreed before any episode finished
            false => self.model.update(closed.global_step, train_episodes(&closed)).await?,
        };
        let seconds = begun.elapsed().as_secs_f64();
        let core = self.clone();
        Ok(blocking(move || core.conclude(&closed, outcome, seconds)).await)
    }

    /// Completes an update: checkpoint, metrics, next batch. Waits for the disk. Errors are reported, and training
    /// continues.
    fn conclude(&self, closed: &ClosedBatch, outcome: UpdateOutcome, seconds: f64) -> Option<String> {
        let step = closed.global_step;
        let due = step.is_multiple_of(self.save_every) || Some(step) == self.last_step;
        let mut own = Metrics::from_iter([("seconds/update".to_owned(), seconds)]);
        let mut staged = None;
        if due && step > self.saved_step.load(Ordering::Acquire) {
            let begun = Instant::now();
            let outcome = self.stage_checkpoint(step);
            own.insert("seconds/export".to_owned(), begun.elapsed().as_secs_f64());
            own.insert("export_failed".to_owned(), f64::from(outcome.is_err()));
            staged = Some(outcome);
        }
        // Before the checkpoint counts: a resume from it does not repeat the update, nor what is written of it here.
        let (all, pool, trouble) = self.close_step(closed, &outcome, own);
        // Before the next checkpoint, which removes old ones.
        self.measure(step, &all);
        let saved = staged.map(|staged| staged.and_then(|staged| self.publish_checkpoint(step, staged)));
        let trouble = match saved {
            Some(Ok(())) => {
                self.cut_journal(step);
                trouble
            }
            Some(Err(error)) => Some(error.to_string()),
            None => trouble,
        };
        let trouble = outcome.trouble.or(trouble);
        if let Some(trouble) = &trouble {
            self.hub.warn(trouble);
        }
        if self.console {
            self.hub.info(format!("step {step}: {}", metrics::summary(&all)));
        }
        self.hub.publish(EngineEvent::Metrics {
            global_step: step,
            metrics: all,
        });
        self.hub.pool(pool);
        trouble
    }

    /// Writes a step's metrics and opens the next batch. Returns the metrics, the next pool and an error message, if
    /// any.
    fn close_step(
        &self,
        closed: &ClosedBatch,
        outcome: &UpdateOutcome,
        mut own: Metrics,
    ) -> (Metrics, PoolSnapshot, Option<String>) {
        own.extend(memory::peak_mib().map(|mb| ("peak_memory_mb".to_owned(), mb)));
        let mut ledger = self.ledger();
        self.report_left_out(&mut ledger, closed, outcome);
        let sampled = self.model.sampling_totals();
        let mut all = ledger.step_metrics(closed, sampled);
        all.extend(own);
        for (name, value) in outcome.metrics.iter().filter(|(_, value)| value.is_finite()) {
            // Where both report a metric, the client's rewards count, before the trainer's penalties.
            all.entry(name.clone()).or_insert(*value);
        }
        all.retain(|_, value| value.is_finite()); // JSON has no other numbers
        let (pool, trouble) = ledger.advance(&mut all, sampled);
        (all, pool, trouble)
    }

    fn report_left_out(&self, ledger: &mut Ledger, closed: &ClosedBatch, outcome: &UpdateOutcome) {
        let mut counts: BTreeMap<DropReason, u64> = BTreeMap::new();
        for (episode_uuid, reason) in &outcome.dropped {
            *counts.entry(*reason).or_default() += 1;
            self.recorder.left_out(episode_uuid, *reason);
        }
        for (reason, count) in &counts {
            ledger.count_dropped(*reason, *count);
        }
        for episode in &closed.batch.left_out {
            *counts.entry(DropReason::Dummy).or_default() += 1;
            self.recorder.left_out(&episode.episode_uuid, DropReason::Dummy);
        }
        // The control plane received the drops of a repeated update the first time.
        if !ledger.is_repeating() {
            counts
                .iter()
                .for_each(|(reason, count)| self.hub.dropped(*reason, *count));
        }
        for warning in &outcome.warnings {
            self.hub.warn(warning);
        }
        self.recorder.advantages(closed.global_step, outcome.advantages.clone());
    }

    fn stage_checkpoint(&self, step: u64) -> Result<StagedCheckpoint<'_>, CheckpointError> {
        self.hub.detail(format!("exporting step {step}"));
        self.checkpoints.stage(step, |dir| self.model.save_blocking(dir))
    }

    fn publish_checkpoint(&self, step: u64, staged: StagedCheckpoint) -> Result<(), CheckpointError> {
        let dir = staged.publish()?;
        self.saved_step.store(step, Ordering::Release);
        self.hub.info(format!("checkpoint written: {}", dir.display()));
        Ok(())
    }

    /// Takes a step's metrics as a measurement of the checkpoint before it, whose weights sampled the episodes.
    fn measure(&self, step: u64, metrics: &Metrics) {
        let Some(metric) = &self.best_by else { return };
        let episodes = match metric.starts_with("eval/") {
            true => "eval/episodes",
            false => "episodes",
        };
        let Some(value) = metrics.get(metric).filter(|value| value.is_finite()) else {
            if metrics.contains_key(episodes) && !self.misses_metric.swap(true, Ordering::Relaxed) {
                self.hub.warn(format!(
                    "ajet.trainer_common.keep_best: the metrics of step {step} have no {metric}, so no checkpoint is the \
                     best; hint: metrics.jsonl has their names"
                ));
            }
            return;
        };
        let measured = BestCheckpoint {
            step: step.saturating_sub(1),
            metric: metric.clone(),
            value: *value,
            episodes: metrics.get(episodes).map_or(0, |episodes| *episodes as u64),
        };
        match self.checkpoints.measure(&measured) {
            Ok(true) => self.hub.info(format!(
                "the best checkpoint so far is that of step {} ({metric} {value:.4})",
                measured.step
            )),
            Ok(false) => {}
            Err(error) => self.hub.warn(format!("cannot note the best checkpoint: {error}")),
        }
    }

    fn cut_journal(&self, step: u64) {
        if let Err(error) = self.ledger().cut_journal(step) {
            // The journal only holds more than a resume needs.
            self.hub.warn(error.to_string());
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Poisoning is ignored: every method changes the ledger as its last action.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sessions sample on the model thread.
impl Sampler for ModelHandle {
    fn submit(&self, request: SampleRequest) -> Result<(), ChatError> {
        ModelHandle::submit(self, request);
        Ok(())
    }

    fn weight_version(&self) -> u64 {
        ModelHandle::weight_version(self)
    }
}

/// Runs work that waits for the disk on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        // The runtime cancels blocking work only at its shutdown, when this task is gone too; so the work panicked.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Describes an episode that is dropped at its end.
fn dropped_at_end(end: &EndEpisode, reason: DropReason) -> ForgetEpisode {
    ForgetEpisode {
        reason,
        episode_type: end.episode_type,
        client_uuid: end.client_uuid.clone(),
        task_id: end.task_id.clone(),
        claimed_at_step: end.claimed_at_step,
    }
}

fn outcome(finished: &FinishedEpisode, change: PoolChange) -> EndOutcome {
    EndOutcome {
        dropped: None,
        rows: finished.rows.len() as u64,
        llm_calls: finished.usage.llm_calls,
        change,
    }
}

fn train_episodes(closed: &ClosedBatch) -> Vec<TrainEpisode> {
    let episodes = closed.batch.trained.iter().map(|(_, episode)| TrainEpisode {
        episode_uuid: episode.episode_uuid.clone(),
        task_id: episode.task_id.clone(),
        reward: episode.reward,
        rows: episode.rows.clone(),
    });
    episodes.collect()
}
