//! What clients do: claim, chat, end, abort and agree.

use super::*;

impl World {
    pub(super) fn enter(&mut self, client: &str) {
        if !self.refresh(client) {
            self.clients.push(Client {
                uuid: client.to_owned(),
                last: self.now,
                agreed: false,
            });
        }
    }

    pub(super) fn refresh(&mut self, client: &str) -> bool {
        let now = self.now;
        let known = self.clients.iter_mut().find(|known| known.uuid == client);
        known.map(|known| known.last = now).is_some()
    }

    pub(super) fn claim(&mut self, client: u8, eval: bool) {
        let kind = if eval { "eval" } else { "train" };
        let client = format!("c{client}");
        let wanted = json!({"client_uuid": client, "episode_type": kind, "discard_episode_timeout": IDLE});
        let wanted = serde_json::from_value(wanted).unwrap();
        let answer = self.core.claim(wanted, String::new(), self.now).unwrap();
        let granted = self.state == State::Rolling && self.running.len() < SLOTS;
        assert_eq!(answer.success, granted, "{}", answer.fail_cause);
        assert_eq!(answer.fail_cause.is_empty(), granted);
        if granted {
            self.refresh(&client);
            self.running.push(Episode {
                uuid: answer.episode_uuid,
                key: answer.openai_api_key,
                client,
                eval,
                last: self.now,
                in_flight: 0,
                calls: 0,
                end: None,
            });
        }
    }

    pub(super) fn begin_call(&mut self, pick: usize) {
        if let Some(at) = picked(&self.running, pick) {
            let episode = &mut self.running[at];
            let (uuid, kind) = self.core.begin_call(&episode.key, usize::MAX, self.now).unwrap();
            assert_eq!((uuid, kind == EpisodeType::Eval), (episode.uuid.clone(), episode.eval));
            (episode.in_flight, episode.last) = (episode.in_flight + 1, self.now);
            let client = episode.client.clone();
            self.refresh(&client);
        }
    }

    pub(super) fn finish_call(&mut self, pick: usize, taken: bool) {
        if let Some(at) = picked(&self.running, pick).filter(|&at| self.running[at].in_flight > 0) {
            let episode = &mut self.running[at];
            if taken {
                self.core.count_call(&episode.uuid);
                episode.calls += 1;
            }
            self.core.finish_call(&episode.uuid, self.now);
            (episode.in_flight, episode.last) = (episode.in_flight - 1, self.now);
            let client = episode.client.clone();
            self.refresh(&client);
        }
    }

    pub(super) fn end(&mut self, at: usize, foreign: bool, bad: bool, end: End) {
        let episode = self.running[at].clone();
        let client = if foreign { "stranger" } else { &episode.client };
        let reward = if bad { json!(null) } else { json!(end.reward) };
        match self
            .core
            .begin_end(request(&episode, client, &end.task, reward), self.now)
        {
            Ok(EndStep::CallEngine(told)) => {
                assert!(!foreign && !bad && episode.end.is_none());
                assert_eq!(
                    (told.episode_type == EpisodeType::Eval, told.reward),
                    (episode.eval, end.reward)
                );
                self.running[at].end = Some(end);
            }
            Ok(EndStep::Wait(_)) => assert!(!foreign && episode.end.is_some()),
            Ok(EndStep::AlreadyEnded) => panic!("it runs"),
            Err(Error::ForeignEpisode(_)) => assert!(foreign),
            Err(Error::Invalid(_)) => assert!(bad && !foreign && episode.end.is_none()),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn abort(&mut self, at: usize, client: &str, declare: bool) {
        let mut request = request(&self.running[at], client, "", json!(0.0));
        request.declare_client_active = declare;
        self.core.abort(&request, self.now);
        if self.running[at].end.is_some() {
            return;
        }
        self.lose(at, DropReason::Aborted);
        if declare {
            self.enter(client);
        }
        self.settle();
    }

    pub(super) fn agree(&mut self, client: u8, slow: bool) {
        let client = format!("c{client}");
        let answer = self.core.agree(&client, slow, self.now);
        let active = self.clients.iter_mut().find(|known| known.uuid == client);
        let accepted = self.state == State::Rolling && METHODS[3..].contains(&self.method) && active.is_some();
        assert_eq!(answer.is_ok(), accepted, "{answer:?}");
        if let (true, Some(active)) = (accepted, active) {
            active.agreed = true;
            self.slow_agreed |= slow;
            self.settle();
        }
    }

    /// The ends that are under way get on disk before the engine goes; their answers may still come.
    pub(super) fn save_ends(&mut self) {
        for episode in self.running.clone().into_iter().filter(|episode| episode.end.is_some()) {
            self.engine_takes(&episode);
            self.orphans.push(episode);
        }
    }
}
