//! Comparison of the server with the model after each operation.

use super::*;

impl World {
    // ---- comparison ----

    pub(super) fn compare(&mut self, after: &Op) {
        let status = self.core.status();
        assert_eq!(status.engine_status, self.state.status(), "after {after:?}");
        assert_eq!(status.global_step, self.step, "after {after:?}");
        self.compare_pool(after);
        self.compare_episodes(after);
        self.compare_effects(after);
    }

    pub(super) fn compare_pool(&self, after: &Op) {
        let info = self.core.pool_information(self.now);
        let empty = PoolSnapshot::default();
        let pool = if self.state.episodes_run() {
            &self.engine.pool
        } else {
            &empty
        };
        let expected = |of: fn(&PooledEpisode) -> String| {
            let mut tasks = BTreeMap::<String, Vec<String>>::new();
            for episode in &pool.episodes {
                tasks.entry(episode.task_id.clone()).or_default().push(of(episode));
            }
            tasks
        };
        let sorted = |map: indexmap::IndexMap<String, Vec<String>>| map.into_iter().collect::<BTreeMap<_, _>>();
        let counted = (
            info.completed_episodes,
            info.completed_tasks,
            info.completed_non_dummy_tasks,
        );
        let counts = (
            pool.episodes.len() as u64,
            pool.completed_tasks,
            pool.completed_non_dummy_tasks,
        );
        assert_eq!(counted, counts, "after {after:?}");
        let details = expected(|episode| episode.episode_uuid.clone());
        assert_eq!(sorted(info.completed_tasks_details), details, "after {after:?}");
        let workers = expected(|episode| episode.client_uuid.clone());
        assert_eq!(sorted(info.completed_tasks_client_uuids), workers, "after {after:?}");
        let dropped: BTreeMap<String, u64> = info.dropped_episodes.into_iter().collect();
        let counted = self.dropped.iter().map(|(reason, n)| (reason.as_str().to_owned(), *n));
        assert_eq!(dropped, counted.collect(), "after {after:?}");
        let active = info.swarm_client_instruction.active_clients.into_iter();
        let active: Vec<_> = active
            .map(|client| (client.client_uuid, client.last_activity_at, client.allowed_sync_weight))
            .collect();
        let known = self
            .clients
            .iter()
            .map(|client| (client.uuid.clone(), client.last, client.agreed));
        assert_eq!(active, known.collect::<Vec<_>>(), "after {after:?}");
    }

    pub(super) fn compare_episodes(&self, after: &Op) {
        let listed = self.core.buffer("").into_iter();
        let listed: Vec<_> = listed
            .map(|episode| (episode.episode_uuid, episode.llm_call_count))
            .collect();
        let running = self.running.iter().map(|episode| (episode.uuid.clone(), episode.calls));
        assert_eq!(listed, running.collect::<Vec<_>>(), "after {after:?}");
        for episode in &self.running {
            let may_go_on = self.state.episodes_run() && episode.end.is_none();
            assert_eq!(
                self.core.can_continue(&episode.uuid, &episode.client),
                may_go_on,
                "after {after:?}"
            );
            assert!(self.core.is_claimed(&episode.uuid) && !self.core.can_continue(&episode.uuid, "stranger"));
        }
        for episode in self.ended.iter().chain(&self.lost) {
            assert!(!self.core.is_claimed(&episode.uuid) && !self.core.can_continue(&episode.uuid, &episode.client));
            assert_eq!(
                self.core.check_key(&episode.key),
                Err(Error::EpisodeGone),
                "after {after:?}"
            );
        }
        let uuids: BTreeSet<_> = self
            .running
            .iter()
            .chain(&self.ended)
            .chain(&self.lost)
            .map(|e| &e.uuid)
            .collect();
        assert_eq!(
            uuids.len(),
            self.running.len() + self.ended.len() + self.lost.len(),
            "each is one thing"
        );
    }

    pub(super) fn compare_effects(&mut self, after: &Op) {
        // Discards of one tick have no order of their own.
        let sorted = |mut effects: Vec<Effect>| {
            effects.sort_by_key(|effect| format!("{effect:?}"));
            effects
        };
        let (effects, expected) = (self.core.take_effects(), std::mem::take(&mut self.expected));
        let update = effects
            .iter()
            .position(|effect| matches!(effect, Effect::Update { .. }));
        let last = update.is_none_or(|at| at + 1 == effects.len());
        assert!(last, "the update comes last: {effects:?}");
        assert_eq!(sorted(effects), sorted(expected), "after {after:?}");
    }
}
