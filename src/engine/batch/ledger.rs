//! The ledger: journal, pool and counters of the current batch, always changed together.
//!
//! Under the ledger's lock, journal and pool are consistent. Its methods wait for the disk, so they must be called from
//! blocking threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::finished::FinishedEpisode;
use super::identity::RunIdentity;
use super::journal::{self, Journal, JournalError, Record};
use super::pool::{Batch, Pool, StopRule};
use super::resume_plan::StepEpisodes;
use crate::engine::metrics::step_log::{self, StepLog};
use crate::engine::metrics::{self, Metrics};
use crate::engine::model_thread::SamplingTotals;
use crate::protocol::engine::{DropReason, PoolChange, PoolSnapshot};
use crate::protocol::swarm::EpisodeType;

/// Reasons why a call had no effect.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The episode cannot be saved now; it is not lost, and its end may be retried.
    #[error("cannot save the episode: {0}")]
    Journal(#[from] JournalError),
    /// The batch is being trained on.
    #[error("the update of step {global_step} is in progress")]
    Updating {
        /// Step of the batch.
        global_step: u64,
    },
    /// An update was requested too early.
    #[error("the batch of step {global_step} is not full")]
    NotFull {
        /// Step of the batch.
        global_step: u64,
    },
}

/// A batch closed for its update.
#[derive(Clone, Debug)]
pub struct ClosedBatch {
    /// Step at which it was sampled.
    pub global_step: u64,
    /// Episodes trained on, and those left out.
    pub batch: Batch<Arc<FinishedEpisode>>,
}

/// State of the current batch.
#[derive(Debug)]
pub struct Ledger {
    journal: Journal,
    pool: Pool<Arc<FinishedEpisode>>,
    evals: Vec<Arc<FinishedEpisode>>,
    dropped: BTreeMap<DropReason, u64>,
    step_log: StepLog,
    updating: bool,
    /// Whether an earlier, killed run had finished this update.
    repeating: bool,
    clock: Clock,
}

/// Times of a batch's phases.
#[derive(Debug)]
struct Clock {
    begun: Instant,
    full: Option<Instant>,
    closed: Option<Instant>,
    sampled_before: SamplingTotals,
}

impl Clock {
    fn start(sampled_before: SamplingTotals) -> Self {
        Self {
            begun: Instant::now(),
            full: None,
            closed: None,
            sampled_before,
        }
    }

    /// Returns the seconds of sampling and of waiting for the last running episodes.
    fn metrics(&self) -> Metrics {
        let closed = self.closed.unwrap_or_else(Instant::now);
        let full = self.full.unwrap_or(closed);
        Metrics::from_iter([
            ("seconds/rolling".to_owned(), (full - self.begun).as_secs_f64()),
            ("seconds/post".to_owned(), (closed - full).as_secs_f64()),
        ])
    }
}

impl Ledger {
    /// Opens the journal of an experiment and returns its records; the batch of `global_step` is empty until
    /// [`Ledger::restore`].
    pub fn open(
        experiment_dir: &Path,
        run: &RunIdentity,
        rule: StopRule,
        global_step: u64,
        step_log: StepLog,
    ) -> Result<(Self, Vec<Record>), JournalError> {
        let (journal, records) = Journal::open(&experiment_dir.join(journal::FILE_NAME), run)?;
        let ledger = Self {
            journal,
            pool: Pool::new(rule, global_step),
            evals: Vec::new(),
            dropped: BTreeMap::new(),
            step_log,
            updating: false,
            repeating: false,
            clock: Clock::start(SamplingTotals::default()),
        };
        Ok((ledger, records))
    }

    /// Returns a snapshot of the pool.
    pub fn pool(&self) -> PoolSnapshot {
        self.pool.snapshot()
    }

    /// Returns the step whose batch is being sampled or trained on.
    pub fn global_step(&self) -> u64 {
        self.pool.global_step()
    }

    /// Adds journaled episodes of the current step without writing them again.
    pub fn restore(&mut self, episodes: StepEpisodes) {
        for episode in episodes.train {
            let gone = self.pool.push(episode.pooled(), Arc::new(episode));
            self.count_dropped(DropReason::OverCache, gone.len() as u64);
        }
        self.evals.extend(episodes.eval.into_iter().map(Arc::new));
    }

    /// Returns a finished train episode of the current batch, or an eval episode since the last update.
    pub fn finished(&self, episode_uuid: &str) -> Option<Arc<FinishedEpisode>> {
        let eval = || self.evals.iter().find(|e| e.episode_uuid == episode_uuid);
        self.pool.get(episode_uuid).or_else(eval).cloned()
    }

    /// Writes a finished episode to disk and adds it to the pool. When this returns, the episode is on disk.
    pub fn finish(&mut self, mut episode: FinishedEpisode) -> Result<PoolChange, LedgerError> {
        if self.updating {
            return Err(LedgerError::Updating {
                global_step: self.global_step(),
            });
        }
        if episode.episode_type == EpisodeType::Train {
            episode.global_step = self.global_step();
        }
        let record = Record::Episode(Box::new(episode));
        self.journal.append(&record)?;
        let _ = self.flush_metrics(); // retried, since the disk may have space again
        let Record::Episode(episode) = record else {
            unreachable!("the record was created as an episode above")
        };
        let episode: Arc<FinishedEpisode> = Arc::from(episode);
        let mut gone = Vec::new();
        match episode.episode_type {
            EpisodeType::Eval => self.evals.push(Arc::clone(&episode)),
            EpisodeType::Train => {
                gone = self.pool.push(episode.pooled(), Arc::clone(&episode));
                self.count_dropped(DropReason::OverCache, gone.len() as u64);
                self.note_full();
            }
        }
        Ok(self.pool.change(&episode.episode_uuid, &gone))
    }

    /// Returns the change of an episode whose end is repeated or that left no trace.
    pub fn unchanged(&self, episode_uuid: &str) -> PoolChange {
        self.pool.change(episode_uuid, &[])
    }

    /// Counts dropped episodes.
    pub fn count_dropped(&mut self, reason: DropReason, count: u64) {
        if count > 0 {
            *self.dropped.entry(reason).or_default() += count;
        }
    }

    /// Returns whether an earlier, killed run had finished this update.
    pub fn is_repeating(&self) -> bool {
        self.repeating
    }

    /// Ends the batch by agreement of the clients.
    pub fn agree(&mut self) -> PoolSnapshot {
        self.pool.close();
        self.note_full();
        self.pool.snapshot()
    }

    /// Closes a full batch for its update: from here on, a resume repeats the update. `dropped` counts the episodes
    /// that did not reach the pool, by reason.
    pub fn begin_update(
        &mut self,
        dropped: impl IntoIterator<Item = (DropReason, u64)>,
    ) -> Result<ClosedBatch, LedgerError> {
        let global_step = self.global_step();
        if self.updating {
            return Err(LedgerError::Updating { global_step });
        }
        if !self.pool.is_full() {
            return Err(LedgerError::NotFull { global_step });
        }
        self.journal.append(&Record::Update { global_step })?;
        for (reason, count) in dropped {
            self.count_dropped(reason, count);
        }
        Ok(self.close())
    }

    /// Closes the batch of an update found in the journal.
    pub fn close_again(&mut self) -> ClosedBatch {
        self.repeating = true;
        self.close()
    }

    fn close(&mut self) -> ClosedBatch {
        self.updating = true;
        self.clock.closed = Some(Instant::now());
        let batch = self.pool.batch();
        self.count_dropped(DropReason::Dummy, batch.left_out.len() as u64);
        ClosedBatch {
            global_step: self.global_step(),
            batch,
        }
    }

    /// Returns the step's metrics after its update. `sampled` are the sampler's totals so far.
    pub fn step_metrics(&self, closed: &ClosedBatch, sampled: SamplingTotals) -> Metrics {
        let trained: Vec<&FinishedEpisode> = closed.batch.trained.iter().map(|(_, e)| e.as_ref()).collect();
        let left_out: std::collections::BTreeSet<_> = closed.batch.left_out.iter().map(|e| &e.task_id).collect();
        let mut metrics = metrics::batch_metrics(&trained, left_out.len());
        metrics.extend(metrics::dropped_metrics(&self.dropped));
        metrics.extend(self.clock.metrics());
        let tokens = sampled.tokens - self.clock.sampled_before.tokens;
        let time = sampled.time.saturating_sub(self.clock.sampled_before.time);
        if time > Duration::ZERO {
            metrics.insert(
                "tokens_per_second/sampling".to_owned(),
                tokens as f64 / time.as_secs_f64(),
            );
        }
        metrics
    }

    /// Records a step's metrics, once even if its update is repeated, and opens the next batch.
    ///
    /// Returns the pool of the next step, and a message if the metrics could not be written.
    pub fn advance(&mut self, metrics: &mut Metrics, sampled: SamplingTotals) -> (PoolSnapshot, Option<String>) {
        let global_step = self.global_step();
        let mut outcome = Ok(());
        let is_new = !self.repeating || !self.step_log.has_update(global_step);
        for (step, evals) in self.take_evals() {
            let evals: Vec<&FinishedEpisode> = evals.iter().map(AsRef::as_ref).collect();
            if step != global_step {
                outcome = outcome.and(self.step_log.append(step, &metrics::eval_metrics(&evals)));
            } else {
                metrics.extend(metrics::eval_metrics(&evals));
            }
            if step != global_step || is_new {
                let validation = metrics::validation_metrics(&evals);
                outcome = outcome.and(self.step_log.append_validation(step, &validation));
            }
        }
        if is_new {
            outcome = outcome.and(self.step_log.append(global_step, metrics));
        }
        self.dropped.clear();
        (self.updating, self.repeating) = (false, false);
        self.pool.advance(global_step + 1);
        self.clock = Clock::start(sampled);
        (self.pool.snapshot(), outcome.err().map(|e| cannot_write_metrics(&e)))
    }

    /// Records the remaining eval episodes before the engine ends. `observe` gets each step's metrics.
    pub fn flush_evals(&mut self, mut observe: impl FnMut(u64, &Metrics)) -> Result<(), String> {
        let mut outcome = Ok(());
        for (step, evals) in self.take_evals() {
            let evals: Vec<&FinishedEpisode> = evals.iter().map(AsRef::as_ref).collect();
            let measured = metrics::eval_metrics(&evals);
            observe(step, &measured);
            outcome = outcome.and(self.step_log.append(step, &measured));
            let validation = metrics::validation_metrics(&evals);
            outcome = outcome.and(self.step_log.append_validation(step, &validation));
        }
        outcome.map_err(|e| cannot_write_metrics(&e))
    }

    /// Writes metrics that could not be written before.
    pub fn flush_metrics(&mut self) -> Result<(), String> {
        self.step_log.flush().map_err(|e| cannot_write_metrics(&e))
    }

    /// Removes the journal records covered by a durable checkpoint of this step.
    pub fn cut_journal(&mut self, global_step: u64) -> Result<(), JournalError> {
        self.journal.cut(global_step)
    }

    /// Takes the eval episodes, by the step at which they were claimed.
    fn take_evals(&mut self) -> BTreeMap<u64, Vec<Arc<FinishedEpisode>>> {
        let mut by_step: BTreeMap<u64, Vec<Arc<FinishedEpisode>>> = BTreeMap::new();
        for episode in std::mem::take(&mut self.evals) {
            by_step.entry(episode.global_step).or_default().push(episode);
        }
        by_step
    }

    fn note_full(&mut self) {
        if self.pool.is_full() {
            self.clock.full.get_or_insert_with(Instant::now);
        }
    }
}

fn cannot_write_metrics(error: &std::io::Error) -> String {
    format!("cannot write {}: {error}", step_log::FILE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::CollectionMethod;
    use crate::engine::batch::resume_plan::plan;

    fn rule() -> StopRule {
        StopRule {
            method: CollectionMethod::RolloutUntilFinishEnoughEpisodes,
            batch_size: 1,
            num_repeat: 2,
            max_cached_episodes: 100,
        }
    }

    fn open(dir: &Path, global_step: u64) -> (Ledger, Vec<Record>) {
        let step_log = StepLog::open(dir, &step_log::LogOptions::default()).unwrap();
        Ledger::open(dir, &RunIdentity::default(), rule(), global_step, step_log).unwrap()
    }

    fn episode(uuid: &str, reward: f64, episode_type: EpisodeType) -> FinishedEpisode {
        FinishedEpisode {
            episode_uuid: uuid.into(),
            task_id: "t".into(),
            reward,
            episode_type,
            global_step: 1,
            ..Default::default()
        }
    }

    fn train(uuid: &str, reward: f64) -> FinishedEpisode {
        episode(uuid, reward, EpisodeType::Train)
    }

    fn lines(dir: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(dir.join(step_log::FILE_NAME)).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// Trains on a full batch, as far as the ledger is concerned.
    fn update(ledger: &mut Ledger) -> Metrics {
        let closed = ledger.begin_update([]).unwrap();
        let mut metrics = ledger.step_metrics(&closed, SamplingTotals::default());
        let (_, trouble) = ledger.advance(&mut metrics, SamplingTotals::default());
        assert_eq!(trouble, None);
        metrics
    }

    #[test]
    fn a_batch_fills_is_closed_and_gives_way_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path(), 1);
        assert!(matches!(
            ledger.begin_update([]),
            Err(LedgerError::NotFull { global_step: 1 })
        ));
        assert!(!ledger.finish(train("a", 1.0)).unwrap().full);
        assert!(ledger.finish(train("b", 0.0)).unwrap().full);
        assert!(ledger.finished("a").is_some() && ledger.finished("c").is_none());
        let closed = ledger.begin_update([(DropReason::Aborted, 2)]).unwrap();
        assert_eq!(closed.batch.trained.len(), 2);
        assert!(matches!(
            ledger.finish(train("c", 1.0)),
            Err(LedgerError::Updating { .. })
        ));
        assert!(matches!(ledger.begin_update([]), Err(LedgerError::Updating { .. })));
        let mut metrics = ledger.step_metrics(&closed, SamplingTotals::default());
        assert_eq!(metrics["reward_mean"], 0.5);
        assert_eq!(metrics["dropped/aborted"], 2.0);
        let (pool, _) = ledger.advance(&mut metrics, SamplingTotals::default());
        assert_eq!((pool.global_step, pool.full, pool.episodes.len()), (2, false, 0));
        assert_eq!(lines(dir.path()).len(), 1);
        assert!(ledger.finished("a").is_none());
    }

    #[test]
    fn eval_rewards_are_of_the_step_they_were_claimed_at_and_never_pooled() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path(), 1);
        ledger.finish(episode("v", 1.0, EpisodeType::Eval)).unwrap();
        assert_eq!(ledger.pool().episodes.len(), 0);
        ledger.finish(train("a", 1.0)).unwrap();
        ledger.finish(train("b", 0.0)).unwrap();
        assert_eq!(update(&mut ledger)["eval/reward_mean"], 1.0);
        let mut late = episode("w", 0.5, EpisodeType::Eval);
        late.global_step = 2;
        ledger.finish(late).unwrap();
        ledger.flush_evals(|_, _| {}).unwrap();
        ledger.flush_evals(|_, _| {}).unwrap();
        let lines = lines(dir.path());
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["eval/reward_mean"], 1);
        assert_eq!(
            (&lines[1]["global_step"], &lines[1]["eval/reward_mean"]),
            (&2.into(), &0.5.into())
        );
    }

    #[test]
    fn a_resume_finds_every_episode_once_and_repeats_updates_without_their_metrics() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path(), 1);
        for uuid in ["a", "b"] {
            ledger.finish(train(uuid, 1.0)).unwrap();
        }
        update(&mut ledger);
        ledger.finish(train("c", 1.0)).unwrap();
        drop(ledger);

        let (mut ledger, records) = open(dir.path(), 1);
        let mut plan = plan(records, 1).unwrap();
        assert_eq!(plan.updates.len(), 1);
        ledger.restore(plan.updates.remove(0));
        let closed = ledger.close_again();
        assert_eq!(closed.batch.trained.len(), 2);
        let mut metrics = ledger.step_metrics(&closed, SamplingTotals::default());
        ledger.advance(&mut metrics, SamplingTotals::default());
        ledger.restore(plan.running);
        assert!(ledger.finished("c").is_some() && ledger.pool().episodes.len() == 1);
        assert_eq!(lines(dir.path()).len(), 1);
        assert!(ledger.finish(train("d", 0.0)).unwrap().full);
        update(&mut ledger);
        assert_eq!(lines(dir.path())[1]["episodes"], 2);

        ledger.cut_journal(2).unwrap();
        drop(ledger);
        let (_, records) = open(dir.path(), 3);
        assert_eq!(
            crate::engine::batch::resume_plan::plan(records, 3),
            Ok(Default::default())
        );
    }

    #[test]
    fn a_step_that_is_done_anew_after_a_damaged_checkpoint_is_recorded_anew() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let (mut ledger, _) = open(dir.path(), 1);
            ledger.finish(train("a", 1.0)).unwrap();
            ledger.finish(train("b", 0.0)).unwrap();
            update(&mut ledger);
            std::fs::remove_file(dir.path().join(journal::FILE_NAME)).unwrap();
        }
        assert_eq!(lines(dir.path()).len(), 2);
    }

    #[test]
    fn an_episode_that_cannot_be_written_is_refused_and_may_come_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path(), 1);
        ledger.journal.break_for_test();
        let error = ledger.finish(train("a", 1.0)).unwrap_err();
        assert!(matches!(error, LedgerError::Journal(_)), "{error}");
        assert!(ledger.finished("a").is_none());
        ledger.journal.heal_for_test();
        ledger.finish(train("a", 1.0)).unwrap();
        assert_eq!(open(dir.path(), 1).1.len(), 2);
    }
}
