//! What the engine does: answers, updates, crashes, boots and stops.

use super::*;

impl World {
    /// An episode that was counted as lost with its engine had been ended after all.
    pub(super) fn was_saved(&mut self, uuid: &str) {
        let Some(at) = self.lost.iter().position(|episode| episode.uuid == uuid) else {
            return;
        };
        self.ended.push(self.lost.remove(at));
        for counts in [&mut self.dropped, &mut self.dropped_of_batch] {
            if let Some(count) = counts.get_mut(&DropReason::EngineLost) {
                *count -= 1;
            }
            counts.retain(|_, count| *count > 0);
        }
    }

    /// An end that is under way, of a running episode or of one that was lost meanwhile, gets its answer.
    pub(super) fn engine_answers(&mut self, pick: usize, fails: bool) {
        let under_way: Vec<usize> = (0..self.running.len())
            .filter(|&at| self.running[at].end.is_some())
            .collect();
        if under_way.is_empty() {
            return self.orphan_is_answered(pick);
        }
        let at = under_way[pick % under_way.len()];
        if fails {
            self.core.end_failed(&self.running[at].uuid);
            self.running[at].end = None;
            return;
        }
        let mut episode = self.running.remove(at);
        self.stale = self.engine.pool.clone();
        let outcome = self.engine_takes(&episode);
        if let Some(reason) = outcome.dropped {
            self.drop_as(&episode, reason);
        }
        let Some(end) = episode.end.take() else {
            unreachable!("it is under way")
        };
        self.core
            .finish_end(&episode.uuid, end.generation, end.declare, outcome, self.now);
        match !episode.eval && end.declare {
            true => self.enter(&episode.client),
            false => drop(self.refresh(&episode.client)),
        }
        episode.last = self.now;
        self.ended.push(episode);
        self.settle();
    }

    /// The engine has an end on disk; what it answers.
    pub(super) fn engine_takes(&mut self, episode: &Episode) -> EndOutcome {
        let dropped = (episode.calls == 0).then_some(DropReason::NoLlmCall);
        let mut added = None;
        if let (Some(end), None, false) = (&episode.end, dropped, episode.eval) {
            added = Some(PooledEpisode {
                entered: self.engine.pool.revision + 1,
                episode_uuid: episode.uuid.clone(),
                task_id: end.task.clone(),
                client_uuid: episode.client.clone(),
                reward: end.reward,
            });
            self.engine.pool.episodes.extend(added.clone());
            self.pool_changed();
        }
        let pool = &self.engine.pool;
        let change = PoolChange {
            revision: pool.revision,
            global_step: pool.global_step,
            added,
            removed: Vec::new(),
            completed_tasks: pool.completed_tasks,
            completed_non_dummy_tasks: pool.completed_non_dummy_tasks,
            full: pool.full,
        };
        EndOutcome {
            dropped,
            change,
            ..EndOutcome::default()
        }
    }

    /// The answer of an engine that is gone: it took the end, and what it says about its pool is of the past.
    pub(super) fn orphan_is_answered(&mut self, pick: usize) {
        let Some(at) = picked(&self.orphans, pick) else { return };
        let orphan = self.orphans.remove(at);
        let trains = !orphan.eval && orphan.calls > 0;
        let outcome = EndOutcome {
            change: PoolChange {
                revision: 1000,
                global_step: self.step,
                added: trains.then(PooledEpisode::default),
                full: true,
                ..PoolChange::default()
            },
            ..EndOutcome::default()
        };
        let generation = orphan.end.as_ref().map_or(0, |end| end.generation);
        self.core.finish_end(&orphan.uuid, generation, true, outcome, self.now);
        if self.state == State::Booting && self.was_ready && trains {
            self.was_saved(&orphan.uuid);
        } else if let Some(at) = self.lost.iter().position(|episode| episode.uuid == orphan.uuid) {
            self.ended.push(self.lost.remove(at));
        }
    }

    pub(super) fn update_done(&mut self) {
        let waits = self.engine.pool.global_step == self.step;
        if self.state != State::WeightSyncing || !self.engine.alive || !waits {
            return;
        }
        self.crashes = 0;
        self.engine.pool = PoolSnapshot {
            revision: self.engine.pool.revision + 1,
            global_step: self.step + 1,
            ..PoolSnapshot::default()
        };
        match self.slow_agreed && self.now < self.post_since + SLOW_POLL {
            true => self.held = Some(self.post_since + SLOW_POLL),
            false => self.rolls_on(),
        }
        self.tell_pool(self.engine.pool.clone());
        let status = EngineEvent::Status {
            phase: EnginePhase::Rolling,
            detail: None,
            global_step: self.engine.pool.global_step,
        };
        self.core.engine_event(self.core.generation(), status, self.now);
    }

    pub(super) fn rolls_on(&mut self) {
        self.step = self.engine.pool.global_step;
        self.slow_agreed = false;
        self.dropped_of_batch.clear();
        self.state = State::Rolling;
    }

    pub(super) fn offline(&mut self) {
        self.state = State::Offline;
        self.step = 0;
        self.slow_agreed = false;
        self.held = None;
    }

    /// The engine dies; what is in its pool is on disk.
    pub(super) fn crash(&mut self, saved: bool) {
        if !self.engine.alive {
            return;
        }
        if saved {
            self.save_ends();
        }
        self.engine.alive = false;
        let restarts = self.was_ready && self.crashes < super::super::RESTARTS;
        let died = self.core.generation();
        let after = self.core.engine_ended(died, "it died", self.now);
        assert_eq!(after == AfterEngine::Restart, restarts);
        self.leave_rolling(Some(DropReason::EngineLost));
        // Effects for a dead engine are dropped.
        self.core.take_effects();
        self.expected.clear();
        if restarts {
            let again = self.core.engine_ended(died, "it died", self.now);
            assert_eq!(again, AfterEngine::Over, "told once");
            self.crashes += 1;
            self.state = State::Booting;
            self.booting_since = self.now;
            self.held = None;
            self.slow_agreed = false;
            self.engine.alive = true;
        } else if self.state == State::Booting && self.now < self.booting_since + SLOW_POLL {
            self.held = Some(self.booting_since + SLOW_POLL);
        } else {
            self.offline();
        }
    }

    /// The engine has loaded, with the batch that was on disk.
    pub(super) fn boots(&mut self) {
        if self.state != State::Booting || !self.engine.alive {
            return;
        }
        if self.engine.pool.global_step > self.step {
            self.dropped_of_batch.clear();
        }
        // A new process counts from the start.
        self.engine.pool.revision = self.engine.pool.episodes.len() as u64;
        for (number, episode) in self.engine.pool.episodes.iter_mut().enumerate() {
            episode.entered = number as u64 + 1;
        }
        for episode in self.engine.pool.episodes.clone() {
            self.was_saved(&episode.episode_uuid);
        }
        self.stale = PoolSnapshot::default();
        let hello = Hello {
            global_step: self.engine.pool.global_step,
            pool: self.engine.pool.clone(),
            ..Hello::default()
        };
        self.core.engine_ready(self.core.generation(), hello, self.now);
        self.was_ready = true;
        self.step = self.engine.pool.global_step;
        self.state = State::Rolling;
        self.settle();
    }

    pub(super) fn stop(&mut self) {
        self.save_ends();
        self.core.stop(None, self.now);
        self.core.take_effects();
        self.expected.clear();
        self.leave_rolling(Some(DropReason::Late));
        self.engine.alive = false;
        self.offline();
    }

    pub(super) fn start(&mut self) {
        let mut ajet = Ajet::default();
        ajet.data.train_batch_size = BATCH;
        ajet.rollout.num_repeat = REPEATS;
        ajet.rollout.max_env_worker = SLOTS;
        ajet.swarm_mode_sample_collection_method = self.method;
        ajet.swarm_mode_rolling_post_timeout = POST;
        let synced = self.core.sync_config(Ok(SyncedConfig { ajet, notice: None }));
        let started = self.core.start("/experiment".into(), self.now);
        assert_eq!(
            (synced.is_ok(), started.is_ok()),
            (self.state == State::Offline, self.state == State::Offline)
        );
        if started.is_ok() {
            self.state = State::Booting;
            self.booting_since = self.now;
            self.was_ready = false;
            self.crashes = 0;
            self.dropped.clear();
            self.dropped_of_batch.clear();
            self.slow_agreed = false;
            self.engine.alive = true;
            self.engine.pool = PoolSnapshot {
                global_step: 1,
                ..PoolSnapshot::default()
            };
        }
    }
}
