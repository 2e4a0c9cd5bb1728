//! A run under way: what its parts share, and what they ask of server and engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use indexmap::IndexMap;

use super::episode::{Episodes, Purpose};
use super::error::RollError;
use super::fleet::{Fleet, Member};
use super::interrupt::Interrupt;
use super::job::{Eval, Job};
use super::joint_episode::Models;
use super::progress::Progress;
use super::report::{End, EpisodeReport, Evaluation, Summary};
use super::scores::{Scores, tags};
use super::tasks::{Task, TaskSets};
use crate::client::Started;
use crate::protocol::swarm::{EngineStatusAnswer, EpisodeType, PoolInformation};

/// What the command line adds to a job.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Events as JSON lines on stdout.
    pub json: bool,
    /// A line for every update, also of a long run.
    pub every_step: bool,
    /// Give up every episode at its end: nothing is trained.
    pub abort: bool,
    /// Evaluate once and end.
    pub eval_only: bool,
    /// Join an engine, or continue an experiment, whose configuration differs from the job's.
    pub join: bool,
    /// Begin a new experiment, named after the time.
    pub fresh: bool,
    /// Stop the engine at the end even where it was running before, or others use it.
    pub stop_engine_at_end: bool,
    /// Leave the engine running at the end, and a server that was started for it.
    pub keep_engine: bool,
    /// `ajet-swarm`, to start a server with.
    pub program: PathBuf,
}

/// A run under way.
pub(super) struct Run {
    pub job: Job,
    pub options: Options,
    pub tasks: TaskSets,
    pub fleet: Arc<Fleet>,
    pub progress: Arc<Progress>,
    pub interrupt: Interrupt,
    pub end: End,
    /// The engine has done all updates of its configuration and is offline.
    pub engine_is_done: bool,
    /// When another client was last seen.
    pub others_seen: Option<Instant>,
    /// Servers that were started for this run, by the places of their members.
    pub own_servers: Vec<usize>,
    /// The engine came up for this run, or was joined by it.
    pub uses_engine: bool,
}

impl Run {
    /// Brings the engine of a member to ROLLING; `None` where Ctrl-C came first.
    pub async fn bring_up(&self, member: &Member, force_restart: bool) -> Result<Option<Started>, RollError> {
        let observe = |status: &EngineStatusAnswer| {
            let detail = status
                .engine_status_detail
                .as_deref()
                .unwrap_or(status.engine_status.as_str());
            self.progress.booting(detail);
        };
        let up = member
            .swarm
            .auto_sync_train_config_and_start_engine(&member.document, force_restart, observe);
        tokio::select! {
            started = up => Ok(Some(started?)),
            () = self.interrupt.wait() => Ok(None),
        }
    }

    /// Place of the server whose batch is to be looked at, which is behind the others or the first one, and what it calls
    /// the step `common`.
    pub fn viewed(&self, common: u64) -> (usize, u64) {
        let phases = self.fleet.phases();
        let viewed = phases.first_at_common();
        (viewed, phases.own_step(viewed, common))
    }

    /// What the servers measured of a step, told before the step advances; empty from a Python server. Names of other
    /// models than the first begin with the model's.
    pub async fn metrics_of(&self, finished: u64) -> Result<IndexMap<String, f64>, RollError> {
        let mut all = IndexMap::new();
        for (place, member) in self.fleet.members().iter().enumerate() {
            let own_step = self.fleet.phases().own_step(place, finished) as f64;
            let metrics = member.swarm.pool_information().await?.latest_metrics;
            if metrics.get("global_step").is_some_and(|step| *step < own_step) {
                continue;
            }
            let name = |metric: String| match place {
                0 => metric,
                _ => format!("{}/{metric}", member.name),
            };
            all.extend(metrics.into_iter().map(|(metric, value)| (name(metric), value)));
        }
        Ok(all)
    }

    /// Evaluates the present weights; `None` where Ctrl-C came first.
    pub async fn evaluate(&self, episodes: &Arc<Episodes>) -> Result<Option<Summary>, RollError> {
        let eval = self.job.roll.eval.unwrap_or(Eval {
            every: 0,
            tasks: None,
            repeat: 1,
        });
        tokio::select! {
            rolling = self.fleet.wait_until_rolling() => rolling?,
            () = self.interrupt.wait() => return Ok(None),
        };
        let global_step = self.online().await?.global_step;
        let started = Instant::now();
        let count = eval.tasks.unwrap_or(usize::MAX).min(self.tasks.validation.len());
        let mut repeats = vec![];
        for task in &self.tasks.validation[..count] {
            repeats.extend((0..eval.repeat).map(|_| self.evaluate_task(episodes, task)));
        }
        let reports = stream::iter(repeats)
            .buffer_unordered(self.job.roll.parallel())
            .try_collect::<Vec<_>>();
        let reports = tokio::select! {
            reports = reports => reports?,
            () = self.interrupt.wait() => return Ok(None),
        };
        let evaluation = Evaluation {
            global_step,
            summary: Summary::of(&reports),
            scores: Scores::of(&reports, eval.repeat, &tags(&self.tasks.validation)),
            seconds: started.elapsed().as_secs_f64(),
        };
        self.progress.eval(&evaluation);
        Ok(Some(evaluation.summary))
    }

    /// Runs one eval episode, with retries if it fails.
    async fn evaluate_task(&self, episodes: &Episodes, task: &Task) -> Result<EpisodeReport, RollError> {
        let mut tried = 0;
        loop {
            let episode = episodes.begin(task, EpisodeType::Eval, Models::default()).await?;
            let report = episodes.run(episode, task, Purpose::Eval).await?;
            if report.reward.is_some() || tried == self.job.roll.retries {
                return Ok(report);
            }
            tried += 1;
        }
    }

    /// Whether another client has ended an episode of this batch lately, or runs one.
    pub async fn others_are_active(&self) -> Result<bool, RollError> {
        for member in self.fleet.members() {
            let pool = member.swarm.pool_information().await?;
            if has_others(&pool, member.swarm.client_uuid()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether another client than `client` takes part in the batch.
pub(super) fn has_others(pool: &PoolInformation, client: &str) -> bool {
    let active = pool
        .swarm_client_instruction
        .active_clients
        .iter()
        .map(|other| &other.client_uuid);
    let running = pool.running_episode_details.iter().flat_map(|running| running.values());
    active
        .chain(running.map(|episode| &episode.client_uuid))
        .any(|other| other != client)
}
