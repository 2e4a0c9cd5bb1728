//! The core's part of the status feed.

use std::sync::Arc;

use super::Core;
use crate::config::schema::Ajet;
use crate::protocol::engine::{EngineLoad, Hello};
use crate::protocol::status::{
    EngineState, EpisodeSummary, ExperimentInfo, RUNNING_EPISODES, RunningEpisode, ServerInfo, Status, StepMetrics,
};
use crate::server::swarm::episodes::Episode;
use crate::server::swarm::feed::batch::BatchRecords;
use crate::server::swarm::feed::histogram::Durations;
use crate::server::swarm::feed::time_left;
use crate::server::swarm::state::State;

/// Beginning of the names of evaluation metrics.
const EVAL: &str = "eval/";

/// What a status is made of: copied while the core is locked, so that it is not locked for longer.
#[derive(Debug)]
pub struct FeedRecords {
    /// All but the batch and the log.
    status: Status,
    batch: Arc<BatchRecords>,
    /// Times at which the last episodes of the batch ended; empty if it is not being collected.
    ends: Vec<f64>,
    /// Seconds left if the state lasts as long as it typically did.
    typically_left: Option<f64>,
}

impl FeedRecords {
    /// Computes the status; the log is left empty.
    pub fn status(self) -> Status {
        let now = self.status.server.now;
        let until_full = self
            .batch
            .for_estimate()
            .and_then(|progress| time_left::until_full(progress, self.ends.into_iter(), now));
        let batch = self.batch.view();
        let mut status = self.status;
        (status.batch, status.groups, status.clients) = (batch.progress, batch.groups, batch.clients);
        status.batch.seconds_left = until_full.or(self.typically_left);
        status
    }
}

impl Core {
    /// Copies what the status is made of.
    pub fn feed(&self, now: f64) -> FeedRecords {
        let rolling = self.state == State::Rolling;
        let ends = self.batch_ends.iter().copied().filter(|_| rolling);
        FeedRecords {
            status: self.status_without_batch(now),
            batch: self.batch_records(),
            ends: ends.collect(),
            typically_left: self.typically_left(now),
        }
    }

    fn status_without_batch(&self, now: f64) -> Status {
        let running = self.episodes.iter().take(RUNNING_EPISODES);
        let begun = self.episodes.iter().filter(|episode| episode.has_begun()).count();
        Status {
            server: ServerInfo {
                version: env!("CARGO_PKG_VERSION").into(),
                started: self.started,
                now,
            },
            experiment: self.experiment.clone(),
            engine: self.engine_state(),
            sampling: (self.state != State::Offline).then(|| self.load.sampling(now)),
            running: running.map(|episode| running_episode(episode, now)).collect(),
            running_total: begun as u64,
            claimed_total: (self.episodes.len() - begun) as u64,
            dropped: self.dropped.iter().map(|(r, n)| (r.as_str().to_owned(), *n)).collect(),
            latest_metrics: self.latest_metrics.clone(),
            latest_eval: self.latest_eval.clone(),
            ..Status::default()
        }
    }

    /// Returns the load of sampling and the durations since the server started.
    pub fn measurements(&self) -> (EngineLoad, Durations) {
        (self.load.latest().clone(), self.durations.clone())
    }

    /// Returns what is known of a running episode; reward and end are 0.
    pub fn running_summary(&self, uuid: &str) -> Option<EpisodeSummary> {
        let episode = self.episodes.get(uuid)?;
        Some(EpisodeSummary {
            episode_uuid: episode.uuid.clone(),
            episode_type: episode.kind,
            global_step: episode.claimed_at_step,
            task_id: episode.task_id.clone(),
            client_uuid: episode.client_uuid.clone(),
            llm_calls: episode.llm_calls,
            completion_tokens: episode.completion_tokens,
            has_transcript: true,
            ..EpisodeSummary::default()
        })
    }

    fn engine_state(&self) -> EngineState {
        EngineState {
            status: self.state.status(),
            detail: self.status_detail(),
            since: self.phases.since(),
            global_step: self.global_step,
            total_steps: self
                .config()
                .and_then(|config| config.trainer_common.total_training_steps),
            phases: self.phases.list(),
            restarts: self.total_restarts,
        }
    }

    /// Returns the records of the batch; during an update, of the one that it trains on.
    fn batch_records(&self) -> Arc<BatchRecords> {
        match (self.state, &self.closed_batch) {
            (State::WeightSyncing, Some(closed)) => Arc::clone(closed),
            _ => Arc::new(self.open_batch()),
        }
    }

    /// Returns the records of the batch being collected.
    pub(super) fn open_batch(&self) -> BatchRecords {
        BatchRecords::new(self.config(), &self.pool, &self.episodes, &self.clients)
    }

    fn typically_left(&self, now: f64) -> Option<f64> {
        match self.state {
            State::Offline | State::Booting => None,
            State::Rolling | State::RollingPost | State::WeightSyncing => {
                let typical = self.phases.typical_seconds(self.state.status());
                time_left::of_typical(typical, self.phases.since(), now)
            }
        }
    }

    /// Notes the experiment of a starting engine.
    pub(super) fn show_experiment(&mut self, config: &Ajet, directory: &str) {
        let name = std::path::Path::new(directory).file_name();
        self.experiment = Some(ExperimentInfo {
            project: config.project_name.clone(),
            name: name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            directory: directory.to_owned(),
            model: config.model.path.clone(),
            ..ExperimentInfo::default()
        });
    }

    /// Notes the model of a booted engine.
    pub(super) fn show_model(&mut self, hello: &Hello) {
        if let Some(experiment) = &mut self.experiment {
            experiment.device = hello.device.clone();
            experiment.parameters = hello.parameters;
            experiment.trainable_parameters = hello.trainable_parameters;
        }
    }

    /// Notes the evaluation among a step's metrics.
    pub(super) fn note_eval(&mut self, global_step: u64) {
        let evaluated = self.latest_metrics.iter().filter(|(name, _)| name.starts_with(EVAL));
        let metrics: indexmap::IndexMap<_, _> = evaluated.map(|(name, value)| (name.clone(), *value)).collect();
        if !metrics.is_empty() {
            self.latest_eval = Some(StepMetrics { global_step, metrics });
        }
    }
}

fn running_episode(episode: &Episode, now: f64) -> RunningEpisode {
    let in_flight = episode.calls_in_flight() as u64;
    RunningEpisode {
        episode_uuid: episode.uuid.clone(),
        episode_type: episode.kind,
        task_id: episode.task_id.clone(),
        client_uuid: episode.client_uuid.clone(),
        claimed: episode.claimed_at,
        idle: if in_flight > 0 {
            0.0
        } else {
            (now - episode.last_activity).max(0.0)
        },
        // Infinite for the episode of a served model, which JSON does not have.
        patience: episode.discard_timeout.min(f64::MAX),
        llm_calls: episode.llm_calls,
        calls_in_flight: in_flight,
        completion_tokens: episode.completion_tokens,
    }
}

/// Returns a status without the values that change with time alone, to see whether anything happened.
pub fn without_ages(status: &Status) -> Status {
    let mut still = status.clone();
    still.server.now = 0.0;
    still.batch.seconds_left = None;
    still.running.iter_mut().for_each(|episode| episode.idle = 0.0);
    if let Some(sampling) = &mut still.sampling {
        sampling.tokens_per_second = 0.0;
        sampling.prompt_tokens_per_second = 0.0;
        sampling.episodes_per_second = 0.0;
        (sampling.running_requests, sampling.waiting_requests) = (0, 0);
    }
    still
}
