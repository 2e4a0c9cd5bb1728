//! Configuration, start and stop, and the engine's events.

use super::{AfterEngine, Boot, Core, Effect, Held, HeldChange, RESTARTS, SyncedConfig};
use crate::protocol::engine::{DropReason, EngineEvent, EnginePhase, Hello};
use crate::protocol::swarm::UPDATES_DONE;
use crate::server::http::error::Error;
use crate::server::swarm::state::{Event, State};

impl Core {
    /// Stores a configuration for the next start; an invalid one discards the earlier one.
    ///
    /// # Errors
    ///
    /// Fails unless offline, or if the configuration is invalid.
    pub fn sync_config(&mut self, config: Result<SyncedConfig, String>) -> Result<(), Error> {
        self.require_offline()?;
        let config = config.map_err(Error::Config);
        self.synced = config.as_ref().ok().cloned();
        config.map(|_| ())
    }

    /// Returns the configuration for `start_engine`.
    ///
    /// # Errors
    ///
    /// Fails unless offline, or if none was synced.
    pub fn config_to_start(&self) -> Result<&SyncedConfig, Error> {
        self.require_offline()?;
        self.synced.as_ref().ok_or(Error::NoConfig)
    }

    /// Implements `start_engine`: BOOTING. Returns the new engine's generation.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::config_to_start`] does.
    pub fn start(&mut self, experiment_dir: String, now: f64) -> Result<u64, Error> {
        let config = self.config_to_start()?.clone();
        self.show_experiment(&config.ajet, &experiment_dir);
        self.running = Some(config);
        self.experiment_dir = Some(experiment_dir);
        self.restarts = 0;
        self.dropped.clear();
        self.dropped_before_pool.clear();
        self.latest_metrics.clear();
        self.latest_eval = None;
        self.detail = Some("starting the engine".into());
        self.transition(Event::StartAccepted, now);
        Ok(self.generation)
    }

    /// Sets whether a client waits for the outcome of this boot: then a failure turns OFFLINE at once. Clients that
    /// only poll need time to see that there was a boot.
    pub fn await_boot(&mut self, generation: u64, awaited: bool) {
        if self.boots(generation) {
            self.boot_is_awaited = awaited;
        }
    }

    /// Returns the outcome of this generation's boot.
    pub fn boot_outcome(&self, generation: u64) -> Boot {
        let reason = |default: &str| Boot::Failed(self.detail.clone().unwrap_or_else(|| default.into()));
        match self.state {
            State::Booting if generation == self.generation => Boot::Pending,
            State::Offline if generation == self.generation => reason("the engine ended"),
            _ if generation == self.generation || self.was_ready => Boot::Ready,
            _ => Boot::Failed("the engine was stopped during its boot".into()),
        }
    }

    /// Implements `stop_engine` and the end of the server: OFFLINE. Later events of this engine are ignored.
    pub fn stop(&mut self, detail: Option<String>, now: f64) {
        self.generation += 1;
        self.lose_episodes(DropReason::Late, now);
        self.detail = detail;
        self.transition(Event::EngineGone, now);
    }

    /// Handles a failed start for which no client waits.
    pub fn start_failed(&mut self, reason: String) {
        if self.state == State::Offline {
            self.detail = Some(reason);
        }
    }

    /// Records why the server is about to end the engine.
    pub fn engine_fails(&mut self, generation: u64, reason: String) {
        if generation == self.generation {
            self.failure = Some(reason);
        }
    }

    /// Reports what a boot is doing before its engine can say so itself.
    pub fn boot_detail(&mut self, generation: u64, detail: String) {
        if self.boots(generation) && self.held.is_none() {
            self.detail = Some(detail);
        }
    }

    /// Handles the end of an engine process.
    pub fn engine_ended(&mut self, generation: u64, reason: &str, now: f64) -> AfterEngine {
        if generation != self.generation {
            return AfterEngine::Over;
        }
        if let Some(complete) = self.complete.take() {
            (self.crash, self.detail) = (None, Some(complete));
            self.transition(Event::EngineGone, now);
            return AfterEngine::Complete;
        }
        let reason = &self.failure.take().unwrap_or_else(|| reason.to_owned());
        self.lose_episodes(DropReason::EngineLost, now);
        let may_restart = self.config().is_some_and(|config| config.engine.restart_on_crash);
        if self.was_ready && may_restart && self.restarts < RESTARTS && !reason.contains(UPDATES_DONE) {
            self.restarts += 1;
            self.total_restarts += 1;
            let crash = format!(
                "{reason}; restarting the engine (attempt {} of {RESTARTS})",
                self.restarts
            );
            (self.crash, self.detail) = (Some(crash), None);
            self.transition(Event::EngineRestarts, now);
            return AfterEngine::Restart;
        }
        (self.crash, self.detail) = (None, Some(reason.to_owned()));
        match self.booting_since {
            Some(since) if self.state == State::Booting && !self.boot_is_awaited && now < since + self.slow_poll => {
                self.held = Some(Held {
                    until: since + self.slow_poll,
                    change: HeldChange::Offline,
                });
            }
            _ => self.transition(Event::EngineGone, now),
        }
        AfterEngine::Over
    }

    /// Returns the generation of the current engine process.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether an engine of this generation is booting.
    pub fn boots(&self, generation: u64) -> bool {
        generation == self.generation && self.state == State::Booting
    }

    /// Handles an engine that is ready: ROLLING, with the batch it resumed.
    pub fn engine_ready(&mut self, generation: u64, hello: Hello, now: f64) {
        if !self.boots(generation) {
            return;
        }
        self.was_ready = true;
        self.show_model(&hello);
        if hello.global_step > self.global_step {
            self.dropped_before_pool.clear();
        }
        if self.completes(hello.global_step) {
            return;
        }
        self.global_step = hello.global_step.max(1);
        for episode in &hello.pool.episodes {
            self.was_saved(&episode.episode_uuid);
        }
        self.pool.replace(hello.pool);
        self.detail = None;
        self.transition(Event::EngineReady, now);
        self.settle(now);
    }

    /// Marks an episode as saved: it was lost with an engine whose answer never arrived, but it is in the journal.
    pub(crate) fn was_saved(&mut self, uuid: &str) {
        if self.episodes.was_ended(uuid) {
            for counts in [&mut self.dropped, &mut self.dropped_before_pool] {
                if let Some(count) = counts.get_mut(&DropReason::EngineLost) {
                    *count -= 1;
                }
                counts.retain(|_, count| *count > 0);
            }
        }
    }

    /// Handles an event of the engine.
    pub fn engine_event(&mut self, generation: u64, event: EngineEvent, now: f64) {
        if generation != self.generation {
            return;
        }
        match event {
            EngineEvent::Status {
                phase,
                detail,
                global_step,
            } => self.engine_status(phase, detail, global_step, now),
            EngineEvent::Pool { pool } => self.take_pool(pool),
            EngineEvent::Metrics { metrics, global_step } => {
                self.latest_metrics = metrics;
                self.note_eval(global_step);
            }
            EngineEvent::Load { load } => {
                for (uuid, tokens) in &load.new_tokens {
                    self.episodes.count_tokens(uuid, *tokens);
                }
                let durations = &mut self.durations;
                load.time_to_first_token
                    .iter()
                    .for_each(|s| durations.time_to_first_token.observe(*s));
                load.time_per_token
                    .iter()
                    .for_each(|s| durations.time_per_token.observe(*s));
                self.load.report(load, now);
            }
            EngineEvent::Dropped { reason, count } if reason.is_of_the_update() => self.count_dropped(reason, count),
            EngineEvent::Dropped { .. } | EngineEvent::Log { .. } | EngineEvent::Fatal { .. } => {}
        }
        self.settle(now);
    }

    fn engine_status(&mut self, phase: EnginePhase, detail: Option<String>, global_step: u64, now: f64) {
        let updated = phase == EnginePhase::Rolling && self.state == State::WeightSyncing;
        if updated && global_step > self.global_step && self.complete.is_none() {
            self.restarts = 0;
            self.crash = None;
            if self.completes(global_step) {
                return;
            }
            let visible_until = self.post_since + self.slow_poll;
            if self.slow_poller_agreed && now < visible_until {
                self.held = Some(Held {
                    until: visible_until,
                    change: HeldChange::Rolling { global_step },
                });
            } else {
                self.roll_on(global_step, now);
            }
        }
        let concerns_present_state = match phase {
            EnginePhase::Booting => self.state == State::Booting && self.held.is_none(),
            EnginePhase::Rolling => self.state.episodes_run(),
            EnginePhase::WeightSyncing => self.state == State::WeightSyncing,
        };
        if concerns_present_state {
            self.detail = detail;
        }
    }

    /// Ends the engine if the updates before this step are all that the configuration allows; returns whether it does.
    fn completes(&mut self, global_step: u64) -> bool {
        let cap = self
            .config()
            .and_then(|config| config.trainer_common.total_training_steps);
        let Some(cap) = cap.filter(|cap| global_step > *cap) else {
            return false;
        };
        let dir = self.experiment_dir.as_deref().unwrap_or_default();
        self.complete = Some(format!(
            "all {cap} {UPDATES_DONE}; the last checkpoint is in {dir}/checkpoints"
        ));
        self.detail = Some("stopping the engine after the last update".into());
        self.effects.push(Effect::Shutdown);
        true
    }

    /// Handles an engine that cannot record that the batch is complete; the batch is kept. Returns whether to ask the
    /// engine again.
    pub fn update_waits(&mut self, generation: u64, reason: &str) -> bool {
        if generation != self.generation {
            return false;
        }
        self.detail = Some(format!("the update is waiting, and nothing is lost: {reason}"));
        true
    }

    pub(crate) fn roll_on(&mut self, global_step: u64, now: f64) {
        self.global_step = global_step;
        self.detail = None;
        self.dropped_before_pool.clear();
        self.transition(Event::UpdateDone, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::Ajet;
    use crate::protocol::engine::{PoolSnapshot, PooledEpisode};
    use crate::protocol::swarm::EndEpisodeRequest;
    use crate::server::swarm::core::EndStep;
    use serde_json::json;

    fn hello(episodes: Vec<PooledEpisode>) -> Hello {
        Hello {
            global_step: 1,
            pool: PoolSnapshot {
                revision: episodes.len() as u64,
                global_step: 1,
                episodes,
                ..PoolSnapshot::default()
            },
            ..Hello::default()
        }
    }

    // Seen with episodes without a response: the engine's word for them was unknown here.
    #[test]
    fn every_reason_is_counted_once_by_whoever_decides_it() {
        let mut core = Core::new(0.0);
        let ajet = Ajet::default();
        core.sync_config(Ok(SyncedConfig { ajet, notice: None })).unwrap();
        let generation = core.start("/experiment".into(), 0.0).unwrap();
        core.engine_ready(generation, hello(vec![]), 0.0);
        for reason in DropReason::ALL {
            core.engine_event(generation, EngineEvent::Dropped { reason, count: 2 }, 1.0);
            let counted = core
                .pool_information(1.0)
                .dropped_episodes
                .get(reason.as_str())
                .copied();
            assert_eq!(counted, reason.is_of_the_update().then_some(2), "{reason:?}");
        }
    }

    #[test]
    fn an_episode_whose_end_was_saved_as_the_engine_died_is_neither_lost_nor_to_be_ended_again() {
        let mut core = Core::new(0.0);
        let ajet = Ajet::default();
        core.sync_config(Ok(SyncedConfig { ajet, notice: None })).unwrap();
        let generation = core.start("/experiment".into(), 0.0).unwrap();
        core.engine_ready(generation, hello(vec![]), 0.0);
        let claim = json!({"client_uuid": "c", "episode_type": "train", "discard_episode_timeout": 9});
        let mut claim = || {
            let request = serde_json::from_value(claim.clone()).unwrap();
            core.claim(request, String::new(), 0.0).unwrap().episode_uuid
        };
        let (saved, lost) = (claim(), claim());
        let end = |uuid: &str| -> EndEpisodeRequest {
            let output = json!({"reward": 1.0, "metadata": {"task_id": "t"}});
            let end = json!({"client_uuid": "c", "episode_uuid": uuid, "task_id": "t", "workflow_output": output});
            serde_json::from_value(end).unwrap()
        };
        for uuid in [&saved, &lost] {
            assert!(matches!(core.begin_end(end(uuid), 0.0), Ok(EndStep::CallEngine(_))));
        }
        assert_eq!(core.engine_ended(generation, "it died", 1.0), AfterEngine::Restart);
        assert_eq!(core.pool_information(1.0).dropped_episodes["engine_lost"], 2);

        let pooled = PooledEpisode {
            entered: 1,
            episode_uuid: saved.clone(),
            ..PooledEpisode::default()
        };
        core.engine_ready(core.generation(), hello(vec![pooled]), 2.0);
        let pool = core.pool_information(2.0);
        assert_eq!((pool.completed_episodes, pool.dropped_episodes["engine_lost"]), (1, 1));
        assert!(matches!(core.begin_end(end(&saved), 3.0), Ok(EndStep::AlreadyEnded)));
        assert_eq!(
            core.begin_end(end(&lost), 3.0).unwrap_err(),
            Error::EpisodeLost {
                uuid: lost,
                why: "It was lost with the engine that ran it".into()
            }
        );
    }
}
