//! The training of a run: episodes in parallel, and an eye on the engine's steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::concerns;
use super::episode::Episodes;
use super::error::RollError;
use super::job::Length;
use super::order::Queue;
use super::report::{EpisodeReport, Step};
use super::runner::{Run, is_updating};
use super::tasks::Task;
use crate::client::ClientError;
use crate::protocol::swarm::{EngineStatus, EngineStatusAnswer, EpisodeType};

/// Between two looks at the engine.
const TICK: Duration = Duration::from_millis(250);

/// How often a run warns of the same thing.
const CONCERNS_TOLD: u32 = 3;

/// A run that is alone with the server fails where it ends the episodes of so many batches without an update.
const BATCHES_WITHOUT_UPDATE: u64 = 20;

/// How long running episodes may go on after Ctrl-C.
const GRACE: Duration = Duration::from_secs(3);

/// Whether train episodes may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// An evaluation is due.
    Closed,
    /// The run ends.
    Stopped,
}

/// What the workers share.
struct Shared {
    episodes: Arc<Episodes>,
    tasks: Vec<Task>,
    queue: Mutex<Queue>,
    retries: u32,
    /// Those that ended since the last update.
    ended: Mutex<Vec<EpisodeReport>>,
    /// Under an agree method: episodes of ours after which we agree to an update.
    agree_after: Option<u64>,
    ended_since_agreed: AtomicU64,
    /// Asks for a look at the engine, and is answered when it is done.
    looks: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

/// A training under way.
pub(super) struct Training<'a> {
    run: &'a mut Run,
    shared: Arc<Shared>,
    gate: watch::Sender<Gate>,
    asked: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    /// The step whose batch is sampled.
    step: u64,
    /// When the last update ended.
    since: Instant,
    /// Where the tasks of a job by epochs are used up before the first episode, or too few for another batch.
    is_complete: bool,
    /// Tasks of a batch, and episodes.
    batch: (u64, u64),
    /// Tasks that are to be run, if there is an end to them.
    work: Option<u64>,
    /// How often each concern was told.
    concerns: IndexMap<&'static str, u32>,
    /// Why no update of this run changed a weight; `None` before the first one, and once one did.
    untrained: Option<String>,
    has_trained: bool,
}

impl<'a> Training<'a> {
    /// A training that goes on at the server's present step, with batches of so many tasks of so many episodes.
    pub fn new(
        run: &'a mut Run,
        episodes: Arc<Episodes>,
        (batch, repeats): (u64, u64),
        step: u64,
        method: &str,
    ) -> Self {
        let tasks = run.tasks.training.clone();
        let step = step.max(1);
        let (position, end) = span(
            run.job.roll.length,
            run.options.abort,
            step - 1,
            batch,
            tasks.len() as u64,
        );
        let queue = Queue::new(tasks.len(), repeats as usize, run.job.roll.seed, position, end);
        let (looks, asked) = mpsc::unbounded_channel();
        let shared = Shared {
            looks,
            episodes,
            tasks,
            queue: Mutex::new(queue),
            retries: run.job.roll.retries,
            ended: Mutex::default(),
            agree_after: method.contains("agree_sync_weight").then_some(batch * repeats),
            ended_since_agreed: AtomicU64::new(0),
        };
        Self {
            run,
            shared: Arc::new(shared),
            gate: watch::Sender::new(Gate::Open),
            asked,
            step,
            since: Instant::now(),
            is_complete: is_complete(position, end, batch),
            batch: (batch, batch * repeats),
            work: end.map(|end| end.saturating_sub(position)),
            concerns: IndexMap::new(),
            untrained: None,
            has_trained: false,
        }
    }

    /// Trains until the job is done or Ctrl-C comes.
    pub async fn run(mut self) -> Result<(), RollError> {
        if self.is_done() || self.is_complete {
            self.run.progress.note(&format!(
                "nothing is left to do: the job was done after {} updates, and the server is at step {}\nhint: raise \
                 `roll.steps` or `roll.epochs` to train on, or name another `ajet.experiment_name` to begin again",
                self.step - 1,
                self.step
            ));
            return Ok(());
        }
        let mut workers = JoinSet::new();
        for _ in 0..self.run.job.roll.max_parallel {
            workers.spawn(work(self.shared.clone(), self.gate.subscribe()));
        }
        let interrupt = self.run.interrupt.clone();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                () = interrupt.wait() => {
                    self.gate.send_replace(Gate::Stopped);
                    let all = async { while workers.join_next().await.is_some() {} };
                    let _ = tokio::time::timeout(GRACE, all).await;
                    break Ok(());
                }
                worker = workers.join_next() => match worker {
                    None => break self.last_update().await,
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(error))) => break Err(error),
                    Some(Err(error)) => break Err(error.into()),
                },
                // Those who asked by now are answered when they are dropped, after the look.
                _answered = asked_by_now(&mut self.asked) => match self.look().await {
                    Ok(false) => {}
                    Ok(true) => break Ok(()),
                    Err(error) => break Err(error),
                },
                _ = ticks.tick() => match self.show().await.and(self.look().await) {
                    Ok(false) => {}
                    Ok(true) => break Ok(()),
                    Err(error) => break Err(error),
                },
            }
        };
        // Episodes that still run are dropped here and so aborted.
        workers.shutdown().await;
        match ended {
            Err(RollError::Swarm(error)) if error.is_regular_end() => {
                // The engine ended behind its last update, which no step after it tells of.
                self.tell_update(self.step + 1).await?;
                self.run.progress.note(&error.to_string());
                self.run.engine_is_done = true;
            }
            ended => ended?,
        }
        if self.run.end.steps == 0 && !self.run.options.abort && !self.run.interrupt.happened() {
            if !self.run.others_are_active().await? {
                return Err(self.no_update().await?);
            }
            self.run
                .progress
                .note("warning: no update was done; what ended waits in a batch that others share");
        }
        match self.untrained {
            Some(reason) if !self.run.interrupt.happened() => Err(RollError::NothingTrained {
                updates: self.run.end.steps,
                reason,
            }),
            _ => Ok(()),
        }
    }

    async fn no_update(&self) -> Result<RollError, RollError> {
        let pool = self.run.swarm.pool_information().await?;
        let reason = concerns::of_no_update(&pool, &self.run.progress.dropped(), self.work, self.batch.0);
        Ok(RollError::NoUpdate { reason })
    }

    /// Looks at the engine: tells updates, evaluates where that is due. Whether the job is done.
    async fn look(&mut self) -> Result<bool, RollError> {
        let status = self.online().await?;
        if status.global_step > self.step {
            self.tell_update(status.global_step).await?;
            if self.is_done() {
                return Ok(true);
            }
            if self.eval_is_due(self.step - 1) {
                self.gate.send_replace(Gate::Closed);
                self.run.evaluate(&self.shared.episodes).await?;
                self.since = Instant::now();
            }
        } else if !self.run.options.abort && self.is_stuck() && !self.run.others_are_active().await? {
            return Err(self.no_update().await?);
        }
        // Closed before the update is over, so that no train episode begins under weights that are to be evaluated.
        let pause = is_updating(status.engine_status) && (self.is_last() || self.eval_is_due(self.step));
        self.gate
            .send_if_modified(|gate| std::mem::replace(gate, if pause { Gate::Closed } else { Gate::Open }) != *gate);
        Ok(false)
    }

    /// Where the engine is.
    async fn online(&self) -> Result<EngineStatusAnswer, RollError> {
        let status = self.run.swarm.status().await?;
        if status.engine_status == EngineStatus::Offline {
            return Err(RollError::Swarm(ClientError::WentOffline {
                url: self.run.swarm.url().to_string(),
                detail: status.engine_status_detail.unwrap_or_default(),
            }));
        }
        Ok(status)
    }

    async fn show(&self) -> Result<(), RollError> {
        if self.run.progress.is_live() {
            let pool = self.run.swarm.pool_information().await?;
            self.run.progress.batch(&pool);
        }
        Ok(())
    }

    /// The batch that was full when the last episode ended is yet to be trained on.
    async fn last_update(&mut self) -> Result<(), RollError> {
        let status = self.online().await?;
        if is_updating(status.engine_status) {
            let status = self.run.swarm.wait_until_rolling(|_| {}).await?;
            self.tell_update(status.global_step).await?;
        }
        Ok(())
    }

    async fn tell_update(&mut self, global_step: u64) -> Result<(), RollError> {
        if global_step <= self.step {
            return Ok(());
        }
        let finished = global_step - 1;
        let metrics = self.metrics_of(finished).await?;
        let ended = std::mem::take(&mut *lock(&self.shared.ended));
        self.warn(&metrics);
        let step = Step::new(finished, metrics, &ended, self.since.elapsed().as_secs_f64());
        self.run.progress.step(&step);
        self.run.end.steps += global_step - self.step;
        self.shared.ended_since_agreed.store(0, Ordering::Relaxed);
        self.step = global_step;
        self.since = Instant::now();
        Ok(())
    }

    /// Says what keeps the model from learning, each kind a few times, and keeps count of updates that did nothing.
    fn warn(&mut self, metrics: &IndexMap<String, f64>) {
        let concerns = concerns::of(metrics);
        for (kind, sentence) in &concerns {
            let told = self.concerns.entry(kind).or_default();
            *told += 1;
            if *told <= CONCERNS_TOLD {
                self.run.progress.note(&format!("warning: {sentence}"));
            }
        }
        self.has_trained |= concerns::trained(metrics);
        let sentences = concerns.iter().filter_map(|(_, sentence)| sentence.lines().next());
        self.untrained = (!self.has_trained).then(|| sentences.collect::<Vec<_>>().join("; "));
    }

    /// What the server measured, told before the step advances; empty from a Python server.
    async fn metrics_of(&self, finished: u64) -> Result<IndexMap<String, f64>, RollError> {
        let mut metrics = self.run.swarm.pool_information().await?.latest_metrics;
        if metrics.get("global_step").is_some_and(|step| *step < finished as f64) {
            metrics.clear();
        }
        Ok(metrics)
    }

    /// Whether episodes end and end, and none of them comes to an update.
    fn is_stuck(&self) -> bool {
        let ended = lock(&self.shared.ended).len() as u64;
        ended >= BATCHES_WITHOUT_UPDATE.saturating_mul(self.batch.1.max(1))
    }

    fn is_done(&self) -> bool {
        matches!(self.run.job.roll.length, Length::Steps(steps) if self.step > steps)
    }

    /// Whether the update of the present batch is the job's last.
    fn is_last(&self) -> bool {
        self.run.job.roll.length == Length::Steps(self.step)
    }

    fn eval_is_due(&self, updates: u64) -> bool {
        self.run
            .job
            .roll
            .eval
            .is_some_and(|eval| eval.every > 0 && updates.is_multiple_of(eval.every))
    }
}

/// One of the job's parallel episodes after the other.
async fn work(shared: Arc<Shared>, mut gate: watch::Receiver<Gate>) -> Result<(), RollError> {
    loop {
        if moved_from(&mut gate, Gate::Closed).await == Gate::Stopped {
            return Ok(());
        }
        let Some(work) = lock(&shared.queue).next() else {
            return Ok(());
        };
        let task = &shared.tasks[work.task];
        let episode = tokio::select! {
            episode = shared.episodes.begin(task, EpisodeType::Train) => episode?,
            _ = moved_from(&mut gate, Gate::Open) => {
                lock(&shared.queue).put_back(work);
                continue;
            }
        };
        let report = shared.episodes.run(episode, task, EpisodeType::Train).await?;
        if report.reward.is_some() {
            lock(&shared.ended).push(report);
            agree_if_due(&shared).await?;
        } else if work.tried < shared.retries {
            lock(&shared.queue).try_again(work);
        }
        // This may have been the batch's last episode. Without a look before the next one begins, that one could be
        // sampled in a step after the job's last, or where an evaluation is due.
        let (ask, answer) = oneshot::channel();
        let _ = shared.looks.send(ask);
        let _ = answer.await;
    }
}

/// Everyone who asked until now, once someone has.
async fn asked_by_now(asked: &mut mpsc::UnboundedReceiver<oneshot::Sender<()>>) -> Vec<oneshot::Sender<()>> {
    let mut all = vec![];
    // The sender is alive as long as the training, so there is always one to wait for.
    asked.recv_many(&mut all, usize::MAX).await;
    all
}

async fn agree_if_due(shared: &Shared) -> Result<(), RollError> {
    let ended = shared.ended_since_agreed.fetch_add(1, Ordering::Relaxed) + 1;
    if shared.agree_after.is_some_and(|batch| ended.is_multiple_of(batch)) {
        shared.episodes.swarm.agree_sync_weight().await?;
    }
    Ok(())
}

/// Waits until the gate is not `state`, and says what it is.
async fn moved_from(gate: &mut watch::Receiver<Gate>, state: Gate) -> Gate {
    gate.wait_for(|gate| *gate != state)
        .await
        .map_or(Gate::Stopped, |gate| *gate)
}

/// From where to where the shuffled tasks are run: the training's `updates` have taken a batch each, and a job by
/// epochs ends with its last one. One that trains nothing never advances, so it always starts at the front and ends
/// after the tasks that it would have trained on.
fn span(length: Length, abort: bool, updates: u64, batch: u64, tasks: u64) -> (u64, Option<u64>) {
    let position = if abort { 0 } else { updates * batch };
    match length {
        Length::Epochs(epochs) => (position, Some(epochs * tasks)),
        Length::Steps(steps) => (position, abort.then_some(steps * batch)),
    }
}

/// Whether a job that goes on at `position` has no batch left to train on. Tasks that are too few for a first one are an
/// error, and that comes of running them.
fn is_complete(position: u64, end: Option<u64>, batch: u64) -> bool {
    end.is_some_and(|end| position >= end || position > 0 && end - position < batch)
}

/// Nothing panics while it holds one of these locks, so they are not poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_complete_when_no_batch_is_left_of_it() {
        for (position, end, expected) in [
            (0, Some(5), false),
            (8, Some(8), true),
            (8, Some(10), true),
            (8, Some(16), false),
            (24, Some(8), true),
            (8, None, false),
        ] {
            assert_eq!(is_complete(position, end, 8), expected, "{position} of {end:?}");
        }
    }

    #[test]
    fn tasks_are_taken_up_where_the_training_is() {
        for (length, abort, updates, expected) in [
            (Length::Epochs(2), false, 0, (0, Some(200))),
            (Length::Epochs(2), false, 3, (24, Some(200))),
            (Length::Steps(50), false, 3, (24, None)),
            (Length::Steps(5), true, 3, (0, Some(40))),
            (Length::Epochs(1), true, 3, (0, Some(100))),
        ] {
            assert_eq!(span(length, abort, updates, 8, 100), expected, "{length:?}");
        }
    }
}
