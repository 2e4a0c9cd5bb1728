//! The training of a run: episodes in parallel, as many as the batch can use, and an eye on the engine's steps.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::attempt::{Attempt, Attempts, Joined};
use super::batch_plan::{Cause, Company, Next, Plan, Target, Work};
use super::batch_rule::Rule;
use super::batch_view::BatchView;
use super::concerns;
use super::episode::Episodes;
use super::error::RollError;
use super::failures::LOST;
use super::job::{Length, Stragglers};
use super::learning::LearningOfModels;
use super::order::{self, TaskOrder};
use super::report::{EpisodeReport, Step};
use super::run::{Run, has_others};
use super::tasks::Task;
use crate::client::ClientError;
use crate::counted::counted;

/// Between two looks at the engine.
const TICK: Duration = Duration::from_millis(250);

/// The same while nothing is left to do in this batch, so that the next one begins at once.
const SHORT_TICK: Duration = Duration::from_millis(15);

/// How long looks are that frequent: a longer update costs more than the wait for the next look.
const EAGER: Duration = Duration::from_secs(5);

/// Between two looks at the batch where neither a terminal nor another client wants one.
const RARE_LOOK: Duration = Duration::from_secs(1);

/// Number of batches whose episodes a run may end without an update, if it is the server's only client; then it fails.
const BATCHES_WITHOUT_UPDATE: u64 = 20;

/// Maximum time for running episodes to end after Ctrl-C.
const GRACE: Duration = Duration::from_secs(3);

/// How long a batch that is not full may be quiet, and an episode that the server took missing in it. A Python server
/// reports its pool some seconds late.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long another client is expected to take part again.
const COMPANY: Duration = Duration::from_secs(10);

/// A training under way.
pub(super) struct Training<'a> {
    run: &'a mut Run,
    episodes: Arc<Episodes>,
    tasks: Arc<[Task]>,
    plan: Plan,
    attempts: Attempts,
    /// Permits of the episodes that may run at once.
    places: Arc<Semaphore>,
    /// Whether episodes may be claimed.
    gate: watch::Sender<bool>,
    /// Episodes of this client that ended since the last update.
    ended: Vec<EpisodeReport>,
    /// When the server took each of them.
    ended_at: HashMap<String, Instant>,
    /// Whether the update of this batch was agreed to.
    has_agreed: bool,
    /// The step whose batch is sampled.
    step: u64,
    /// When the last update ended.
    since: Instant,
    next_look: Instant,
    looked_at_batch: Instant,
    /// Since when no episode of this client runs.
    idle: Option<Instant>,
    /// When an episode last began or ended here, or ran elsewhere.
    busy: Instant,
    /// When another client was last seen.
    company: Option<Instant>,
    /// Where the tasks of a job by epochs are used up before the first episode, or too few for another batch.
    is_complete: bool,
    /// Tasks that are to be run, if there is an end to them.
    work: Option<u64>,
    learning: LearningOfModels,
}

impl<'a> Training<'a> {
    /// Creates a training that continues at the server's current step.
    pub fn new(
        run: &'a mut Run,
        episodes: Arc<Episodes>,
        (batch, repeats): (u64, u64),
        step: u64,
        method: &str,
    ) -> Self {
        let tasks: Arc<[Task]> = run.tasks.training.clone().into();
        let step = step.max(1);
        let roll = &run.job.roll;
        let (position, end) = order::span(roll.length(), run.options.abort, step - 1, batch, tasks.len() as u64);
        let target = Target {
            rule: match run.options.abort {
                true => Rule::Never,
                false => Rule::of_method(method),
            },
            tasks: batch,
            repeats: repeats.max(1),
            share: roll.throttle_ratio(),
            spare_tasks: roll.spare_tasks,
            retries: roll.retries,
        };
        let last = match roll.length() {
            Length::Steps(steps) => Some(steps),
            Length::Epochs(_) => end.map(|end| end / batch.max(1)),
        };
        run.progress.plan(step, last);
        let order = TaskOrder::new(tasks.len(), roll.seed, position, end);
        let ids = tasks.iter().map(|task| task.task_id.clone()).collect();
        let (now, parallel) = (Instant::now(), roll.parallel());
        let names: Vec<_> = run.fleet.members().iter().map(|member| member.name.clone()).collect();
        Self {
            plan: Plan::new(target, ids, order, order::offset(run.fleet.lead().client_uuid())),
            run,
            episodes,
            tasks,
            attempts: Attempts::new(),
            places: Arc::new(Semaphore::new(parallel)),
            gate: watch::Sender::new(true),
            ended: Vec::new(),
            ended_at: HashMap::new(),
            has_agreed: false,
            step,
            since: now,
            next_look: now,
            idle: None,
            looked_at_batch: now,
            busy: now,
            // A client that is to share is given the time to come.
            company: target.share.map(|_| now),
            is_complete: order::is_complete(position, end, batch),
            work: end.map(|end| end.saturating_sub(position)),
            learning: LearningOfModels::new(names),
        }
    }

    /// Trains until the job is done or Ctrl-C comes.
    pub async fn run(mut self) -> Result<(), RollError> {
        if self.is_done() || self.is_complete {
            self.run.progress.note(&format!(
                "nothing is left to do: the job was done after {}, and the server is at step {}\nhint: raise \
                 `roll.steps` or `roll.epochs` to train on, or name another `ajet.experiment_name` to begin again",
                counted(self.step - 1, "update"),
                self.step
            ));
            return Ok(());
        }
        let trained = self.train().await;
        // Episodes that still run are dropped here and so aborted.
        self.attempts.shut_down().await;
        match trained {
            Err(RollError::Swarm(error)) if error.is_regular_end() => {
                // The engine ended after its last update, which no later step reports.
                self.report_update(self.step + 1).await?;
                self.run.progress.note(&error.to_string());
                self.run.engine_is_done = true;
            }
            trained => trained?,
        }
        if self.run.end.steps == 0 && !self.run.options.abort && !self.run.interrupt.happened() {
            if !self.run.others_are_active().await? {
                return Err(self.no_update().await?);
            }
            self.run
                .progress
                .note("warning: no update was done; what ended waits in a batch that others share");
        }
        match self.learning.untrained() {
            Some(reason) if !self.run.interrupt.happened() => Err(RollError::NothingTrained {
                updates: self.run.end.steps,
                reason,
            }),
            _ => Ok(()),
        }
    }

    async fn train(&mut self) -> Result<(), RollError> {
        let (interrupt, episodes) = (self.run.interrupt.clone(), self.episodes.clone());
        if self.look(true).await? {
            return Ok(());
        }
        loop {
            let is_out_of_tasks = self.begin_episodes();
            if is_out_of_tasks && self.attempts.is_empty() {
                return self.last_update().await;
            }
            if !self.attempts.is_empty() {
                self.idle = None;
            } else if self.idle.get_or_insert_with(Instant::now).elapsed() < EAGER {
                self.next_look = self.next_look.min(Instant::now() + SHORT_TICK);
            }
            tokio::select! {
                () = interrupt.wait() => {
                    self.gate.send_replace(false);
                    let all = async { while self.attempts.join_next().await.is_some() {} };
                    let _ = tokio::time::timeout(GRACE, all).await;
                    return Ok(());
                }
                Some(over) = self.attempts.join_next() => {
                    self.account_for(over)?;
                    self.agree_if_due().await?;
                    if !self.attempts.is_empty() {
                        continue;
                    }
                }
                () = episodes.place_freed() => continue,
                () = tokio::time::sleep_until(self.next_look.into()) => {}
            }
            if self.look(false).await? {
                return Ok(());
            }
        }
    }

    /// Begins what the batch can use and there are slots for. Returns whether it has room and no task is left.
    fn begin_episodes(&mut self) -> bool {
        while *self.gate.borrow()
            && let Ok(place) = self.places.clone().try_acquire_owned()
        {
            match self.plan.next(self.company()) {
                Next::Begin(work) => self.spawn(work, place),
                Next::Wait => return false,
                Next::NoTask => return true,
            }
        }
        false
    }

    fn spawn(&mut self, work: Work, place: OwnedSemaphorePermit) {
        self.busy = Instant::now();
        let (episodes, tasks) = (self.episodes.clone(), self.tasks.clone());
        self.attempts
            .spawn(episodes, tasks, (work, place), self.gate.subscribe());
    }

    fn company(&self) -> Company {
        match self.company {
            _ if self.attempts.is_empty() && self.busy.elapsed() > PATIENCE => Company::Stalled,
            Some(seen) if seen.elapsed() < COMPANY => Company::Others,
            _ => Company::Alone,
        }
    }

    /// Takes the end of an attempt into account.
    fn account_for(&mut self, over: Joined) -> Result<(), RollError> {
        self.busy = Instant::now();
        let (ticket, attempt) = match over {
            Ok(over) => over,
            // Given up here.
            Err(error) if error.is_cancelled() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_of_this_batch = self.attempts.settle(ticket);
        let attempt = match attempt {
            // The look that follows waits for the server, or says why the engine is gone.
            Err(RollError::Swarm(ClientError::Unreachable { .. } | ClientError::WentOffline { .. })) => {
                self.gate.send_replace(false);
                self.next_look = Instant::now();
                Attempt::NotBegun
            }
            attempt => attempt?,
        };
        match attempt {
            Attempt::NotBegun => self.plan.not_begun(ticket),
            Attempt::Over(report) if report.reward.is_none() => {
                let cause = match report.dropped.as_deref() {
                    Some(LOST) => Cause::Server,
                    _ => Cause::Task,
                };
                self.plan.failed(ticket, &report.episode_uuid, report.taken_by, cause);
            }
            Attempt::Over(report) => {
                self.plan.ended(ticket, &report.episode_uuid, report.taken_by);
                if is_of_this_batch {
                    self.ended_at.insert(report.episode_uuid.clone(), Instant::now());
                }
                let concern = report.reward.and_then(|reward| self.learning.episode_ended(reward));
                if let Some(sentence) = concern {
                    self.run.progress.note(&format!("warning: {sentence}"));
                }
                self.ended.push(report);
            }
        }
        Ok(())
    }

    /// Under an agree method: agrees to the update once a batch of this client's episodes has ended.
    async fn agree_if_due(&mut self) -> Result<(), RollError> {
        let target = self.plan.target();
        let is_due = target.rule == Rule::Agreement && self.plan.own_ended() >= target.episodes();
        if is_due && !self.has_agreed {
            self.has_agreed = self.run.fleet.agree().await?;
        }
        Ok(())
    }

    async fn no_update(&self) -> Result<RollError, RollError> {
        let pool = self.run.fleet.lead().pool_information().await?;
        let reason = concerns::of_no_update(&pool, &self.run.progress.dropped(), self.work, self.plan.target().tasks);
        Ok(RollError::NoUpdate { reason })
    }

    /// Looks at the engine and the batch: reports updates, evaluates where that is due. Returns whether the job is done.
    /// A server that cannot be reached is waited for.
    async fn look(&mut self, at_batch: bool) -> Result<bool, RollError> {
        loop {
            match self.look_once(at_batch).await {
                Err(RollError::Swarm(lost)) if lost.is_unreachable() => {
                    // Claims are planned again when the server is back and its batch is known.
                    self.gate.send_replace(false);
                    self.run.wait_for_server(lost).await?;
                }
                looked => return looked,
            }
        }
    }

    async fn look_once(&mut self, at_batch: bool) -> Result<bool, RollError> {
        let status = self.run.online().await?;
        let step = status.global_step.max(1);
        if step < self.step {
            self.run.progress.note(&format!(
                "the engine is back at step {step} from step {}, with its last checkpoint",
                self.step
            ));
            self.finish_batch();
            self.ended.clear();
            self.step = step;
        }
        if status.global_step > self.step {
            self.finish_batch();
            self.report_update(status.global_step).await?;
            if self.is_done() {
                return Ok(true);
            }
            if self.eval_is_due(self.step - 1) {
                self.run.evaluate(&self.episodes).await?;
                self.since = Instant::now();
            }
        } else if !self.run.options.abort && self.is_stuck() && !self.run.others_are_active().await? {
            return Err(self.no_update().await?);
        }
        let is_rolling = status.is_rolling;
        self.gate
            .send_if_modified(|gate| std::mem::replace(gate, is_rolling) != is_rolling);
        if !is_rolling {
            self.busy = Instant::now();
            if status.is_updating && self.run.job.roll.stragglers != Stragglers::Finish {
                self.give_up_running();
            }
        }
        let wants_look = self.run.progress.is_live() || self.company() != Company::Alone;
        if at_batch || wants_look || self.looked_at_batch.elapsed() > RARE_LOOK {
            self.look_at_batch(is_rolling).await?;
        }
        self.next_look = Instant::now() + TICK;
        Ok(false)
    }

    /// Looks at what others have in the batch, and at what became of our own episodes.
    async fn look_at_batch(&mut self, is_rolling: bool) -> Result<(), RollError> {
        let asked = Instant::now();
        let (viewed, own_step) = self.run.viewed(self.step);
        let swarm = self.run.fleet.members()[viewed].swarm.clone();
        let mut pool = swarm.pool_information().await?;
        self.looked_at_batch = asked;
        if self.run.progress.is_live() {
            self.run.progress.batch(&pool);
        }
        let me = swarm.client_uuid();
        if has_others(&pool, me) {
            self.run.others_seen = Some(asked);
        }
        // A Python server reports the last run's pool until its first update.
        if !is_rolling || pool.global_step != own_step || self.plan.target().rule == Rule::Never {
            return Ok(());
        }
        self.attempts.take_claims();
        self.attempts.rename(&mut pool);
        let is_own = |id: &str| self.plan.has_ended(id) || self.attempts.has_claimed(id);
        let view = BatchView::new(viewed, &pool, me, is_own);
        if view.others_run() {
            self.busy = asked;
        }
        if view.begun_by_others() > 0 || has_others(&pool, me) {
            self.company = Some(asked);
        }
        self.plan.see(view);
        let ended = self
            .ended_at
            .iter()
            .filter(|(_, ended)| asked.duration_since(**ended) > PATIENCE);
        let settled: HashSet<String> = ended.map(|(uuid, _)| uuid.clone()).collect();
        let vanished = self.plan.replace_vanished(&settled);
        if vanished > 0 {
            self.run.progress.note(&format!(
                "warning: the server took {} of ours that are not in the batch; others are run instead",
                counted(vanished, "episode")
            ));
        }
        Ok(())
    }

    /// The batch was trained on: what still runs of it is void.
    fn finish_batch(&mut self) {
        while let Some(over) = self.attempts.try_join_next() {
            // An error is met again by what is begun next.
            let _ = self.account_for(over);
        }
        self.give_up_running();
        self.plan.advance(self.run.job.roll.stragglers != Stragglers::GiveUp);
        self.ended_at.clear();
        self.attempts.forget_ids();
        self.has_agreed = false;
        self.busy = Instant::now();
    }

    /// Gives up the episodes that run, and those that are yet to be claimed.
    fn give_up_running(&mut self) {
        for ticket in self.attempts.give_up() {
            self.plan.not_begun(ticket);
        }
    }

    /// The batch that was full when the last episode ended is yet to be trained on.
    async fn last_update(&mut self) -> Result<(), RollError> {
        let status = self.run.online().await?;
        if status.is_updating {
            self.run.fleet.wait_until_rolling().await?;
            let status = self.run.online().await?;
            self.report_update(status.global_step).await?;
        }
        Ok(())
    }

    async fn report_update(&mut self, global_step: u64) -> Result<(), RollError> {
        if global_step <= self.step {
            return Ok(());
        }
        let finished = global_step - 1;
        let metrics = self.run.metrics_of(finished).await?;
        let ended = std::mem::take(&mut self.ended);
        for warning in self.learning.updated(&metrics) {
            self.run.progress.note(&format!("warning: {warning}"));
        }
        let step = Step::new(finished, metrics, &ended, self.since.elapsed().as_secs_f64());
        self.run.progress.step(&step);
        self.run.end.steps += global_step - self.step;
        self.step = global_step;
        self.since = Instant::now();
        match self.learning.is_in_vain(self.run.job.roll.max_idle_updates) {
            Some((updates, reason)) => Err(RollError::NothingToLearn { updates, reason }),
            None => Ok(()),
        }
    }

    /// Whether many episodes have ended since the last update, and none of them leads to one.
    fn is_stuck(&self) -> bool {
        self.ended.len() as u64 >= BATCHES_WITHOUT_UPDATE.saturating_mul(self.plan.target().episodes().max(1))
    }

    fn is_done(&self) -> bool {
        matches!(self.run.job.roll.length(), Length::Steps(steps) if self.step > steps)
    }

    fn eval_is_due(&self, updates: u64) -> bool {
        self.run
            .job
            .roll
            .eval
            .is_some_and(|eval| eval.every > 0 && updates.is_multiple_of(eval.every))
    }
}
