//! The first rank: it samples and trains as an engine alone does, and has the others take part.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::link::{Arrival, Link, connect};
use super::local::Local;
use super::placement::Placement;
use super::{Answer, Order, RankError};
use crate::collective::Collective;
use crate::config::schema::Ajet;
use crate::config::to_json;
use crate::engine::events::EventHub;
use crate::engine::model_thread::{SamplingLoad, UpdateOutcome, Worker};
use crate::engine::storage::checkpoint::Checkpoint;
use crate::engine::worker::{ModelInfo, ModelWorker};
use crate::inference::{FinishReason, SampleEvent, SampleRequest, StopCheck};
use crate::train::TrainEpisode;

/// How long a step waits for the tokens of other ranks when this one samples nothing.
const PAUSE: Duration = Duration::from_millis(1);

/// A worker of one rank that places requests on all of them.
pub struct FirstRank<W> {
    local: W,
    /// Links to ranks 1, 2, …
    links: Vec<Link>,
    answers: Receiver<Arrival<Answer>>,
    placement: Placement,
    /// Requests on other ranks, by their ids there.
    remote: BTreeMap<u64, Remote>,
    next_id: u64,
    /// Load of ranks 1, 2, … as last reported.
    loads: Vec<SamplingLoad>,
}

/// A request on another rank.
struct Remote {
    rank: usize,
    stop: Option<Box<dyn StopCheck>>,
    events: UnboundedSender<SampleEvent>,
}

impl FirstRank<ModelWorker> {
    /// Has all ranks load the model, and waits for them.
    ///
    /// # Errors
    /// Fails if any rank cannot be reached or cannot load the model.
    pub fn build(
        collective: &Arc<dyn Collective>,
        config: &Ajet,
        resume: Option<&Checkpoint>,
        hub: Arc<EventHub>,
    ) -> Result<(Self, ModelInfo), String> {
        let local = Local::find(&**collective).map_err(sentence)?;
        let (mut links, answers) = connect(&**collective).map_err(sentence)?;
        let order = Order::Boot {
            config: to_json(config),
            checkpoint: resume.map(|checkpoint| checkpoint.dir.clone()),
        };
        links
            .iter_mut()
            .try_for_each(|link| link.send(&order))
            .map_err(sentence)?;
        let mut config = config.clone();
        local.adapt(&mut config);
        let (worker, info) = ModelWorker::build(collective.clone(), &config, resume, hub.clone())?;
        let first = Self::new(worker, links, answers);
        first.wait_for_others().map_err(sentence)?;
        hub.info(format!("{} ranks hold the model", collective.size()));
        Ok((first, info))
    }
}

impl<W: Worker> FirstRank<W> {
    fn new(local: W, links: Vec<Link>, answers: Receiver<Arrival<Answer>>) -> Self {
        Self {
            local,
            placement: Placement::new(links.len() + 1),
            remote: BTreeMap::new(),
            next_id: 0,
            loads: vec![SamplingLoad::default(); links.len()],
            links,
            answers,
        }
    }

    fn wait_for_others(&self) -> Result<(), RankError> {
        for _ in &self.links {
            match self.answers.recv() {
                Ok((_, Ok(Answer::Booted))) => {}
                Ok((rank, Ok(Answer::Failed(reason)))) => return Err(RankError::Failed { rank, reason }),
                Ok((rank, Ok(Answer::Events { .. }))) => return Err(RankError::Gone { rank }),
                Ok((_, Err(error))) => return Err(error),
                Err(_) => return Err(RankError::Gone { rank: 1 }),
            }
        }
        Ok(())
    }

    /// Passes on what a rank answered. Returns the number of tokens in it.
    fn take(&mut self, (rank, answer): Arrival<Answer>) -> Result<usize, RankError> {
        match answer? {
            Answer::Booted => Ok(0),
            Answer::Failed(reason) => Err(RankError::Failed { rank, reason }),
            Answer::Events { events, load } => {
                self.loads[rank - 1] = load;
                let mut tokens = 0;
                for (id, event) in events {
                    tokens += usize::from(matches!(event, SampleEvent::Token(_)));
                    self.pass(id, event)?;
                }
                Ok(tokens)
            }
        }
    }

    /// Passes an event on, and ends the answer where its stop check says so.
    fn pass(&mut self, id: u64, event: SampleEvent) -> Result<(), RankError> {
        // Events of a request that was cancelled may still be on their way.
        let Some(remote) = self.remote.get_mut(&id) else {
            return Ok(());
        };
        let stopped = match (&event, &mut remote.stop) {
            (SampleEvent::Token(token), Some(stop)) => stop.push(token.id),
            _ => false,
        };
        let last = event.is_last();
        let _ = remote.events.send(event); // a requester that is gone is cancelled below
        if stopped {
            let _ = remote.events.send(SampleEvent::Finished(FinishReason::Stop));
            return self.cancel(id);
        }
        if last && let Some(remote) = self.remote.remove(&id) {
            self.placement.ended(remote.rank);
        }
        Ok(())
    }

    fn cancel(&mut self, id: u64) -> Result<(), RankError> {
        let Some(remote) = self.remote.remove(&id) else {
            return Ok(());
        };
        self.placement.ended(remote.rank);
        self.links[remote.rank - 1].send(&Order::Cancel { id })
    }

    /// Cancels the requests whose requesters are gone, and takes what has arrived.
    fn exchange(&mut self) -> Result<usize, RankError> {
        let gone = self.remote.iter().filter(|(_, remote)| remote.events.is_closed());
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.cancel(id)?;
        }
        let mut tokens = 0;
        while let Ok(answer) = self.answers.try_recv() {
            tokens += self.take(answer)?;
        }
        Ok(tokens)
    }

    fn order_all(&mut self, order: &Order) -> Result<(), String> {
        self.links
            .iter_mut()
            .try_for_each(|link| link.send(order))
            .map_err(sentence)
    }
}

impl<W: Worker> Worker for FirstRank<W> {
    fn submit(&mut self, request: SampleRequest) {
        let load = self.local.load();
        let rank = self.placement.place(&request.group, load.running + load.waiting);
        // A grammar has a state in memory, which does not travel.
        if rank == 0 || request.grammar.is_some() {
            self.placement.ended(rank);
            return self.local.submit(request);
        }
        let id = self.next_id;
        self.next_id += 1;
        let order = Order::Sample {
            id,
            group: request.group,
            prompt: request.prompt,
            params: request.params,
            forced_tokens: request.forced_tokens,
        };
        if let Err(error) = self.links[rank - 1].send(&order) {
            let _ = request.events.send(SampleEvent::Failed(error.to_string())); // the requester may be gone too
            return;
        }
        let remote = Remote {
            rank,
            stop: request.stop,
            events: request.events,
        };
        self.remote.insert(id, remote);
    }

    fn is_idle(&self) -> bool {
        self.local.is_idle() && self.remote.is_empty()
    }

    fn step(&mut self) -> Result<usize, String> {
        let mut tokens = self.exchange().map_err(sentence)?;
        if !self.local.is_idle() {
            return Ok(tokens + self.local.step()?);
        }
        if tokens == 0 && !self.remote.is_empty() {
            match self.answers.recv_timeout(PAUSE) {
                Ok(answer) => tokens = self.take(answer).map_err(sentence)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(RankError::Gone { rank: 1 }.to_string()),
            }
        }
        Ok(tokens)
    }

    fn update(&mut self, global_step: u64, episodes: &[TrainEpisode]) -> Result<UpdateOutcome, String> {
        for (_, remote) in std::mem::take(&mut self.remote) {
            let _ = remote.events.send(SampleEvent::Finished(FinishReason::Cancelled)); // as in `submit`
        }
        self.placement.clear();
        self.order_all(&Order::Update {
            global_step,
            episodes: episodes.to_vec(),
        })?;
        self.local.update(global_step, episodes)
    }

    fn save(&mut self, dir: &Path) -> Result<(), String> {
        self.order_all(&Order::Save { dir: dir.to_owned() })?;
        self.local.save(dir)
    }

    fn write_adapter(&self, dir: &Path) -> Result<(), String> {
        self.local.write_adapter(dir)
    }

    fn weight_version(&self) -> u64 {
        self.local.weight_version()
    }

    fn load(&self) -> SamplingLoad {
        let loads = [self.local.load()].into_iter().chain(self.loads.iter().copied());
        SamplingLoad::of_all(loads)
    }
}

fn sentence(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::super::follower::serve;
    use super::*;
    use crate::collective::threads::run;
    use crate::engine::model_thread::tests::{Parrot, request};

    /// Runs `work` on the first of so many ranks of parrots. Returns what it returned, and the parrots of the others.
    fn on_ranks<T: Send>(size: usize, work: impl Fn(&mut FirstRank<Parrot>) -> T + Sync) -> (T, Vec<Parrot>) {
        let ranks = run(size, |collective| {
            if collective.rank() == 0 {
                let (links, answers) = connect(&*collective).unwrap();
                let mut first = FirstRank::new(Parrot::default(), links, answers);
                return (Some(work(&mut first)), Parrot::default());
            }
            let (mut links, orders) = connect(&*collective).unwrap();
            let mut parrot = Parrot::default();
            serve(&mut parrot, &orders, &mut links[0]).unwrap();
            (None, parrot)
        });
        let (mut results, mut parrots): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        parrots.remove(0);
        (results.remove(0).unwrap(), parrots)
    }

    fn submit(first: &mut FirstRank<Parrot>, episode: &str, prompt: &[u32]) -> UnboundedReceiver<SampleEvent> {
        let (mut asked, events) = request(prompt);
        asked.group = episode.into();
        first.submit(asked);
        events
    }

    fn run_until_idle(first: &mut FirstRank<Parrot>) -> usize {
        let mut tokens = 0;
        while !first.is_idle() {
            tokens += first.step().unwrap();
        }
        tokens
    }

    fn tokens(events: &mut UnboundedReceiver<SampleEvent>) -> (Vec<u32>, Option<SampleEvent>) {
        let mut tokens = vec![];
        while let Ok(event) = events.try_recv() {
            match event {
                SampleEvent::Token(token) => tokens.push(token.id),
                other => return (tokens, Some(other)),
            }
        }
        (tokens, None)
    }

    #[test]
    fn every_answer_comes_back_wherever_it_was_sampled() {
        let ((), _) = on_ranks(3, |first| {
            let prompts: Vec<Vec<u32>> = (0..12).map(|n| (0..n + 1).collect()).collect();
            let name = |n: usize| format!("episode {}", n % 7);
            let mut answers: Vec<_> = (0..12).map(|n| submit(first, &name(n), &prompts[n])).collect();
            assert_eq!(run_until_idle(first), prompts.iter().map(Vec::len).sum::<usize>());
            for (events, prompt) in answers.iter_mut().zip(&prompts) {
                let end = Some(SampleEvent::Finished(FinishReason::Stop));
                assert_eq!(tokens(events), (prompt.clone(), end));
            }
        });
    }

    #[test]
    fn updates_and_checkpoints_are_made_by_all() {
        let dir = tempfile::tempdir().unwrap();
        let (cancelled, others) = on_ranks(3, |first| {
            let mut running: Vec<_> = (0..3).map(|n| submit(first, &n.to_string(), &[1; 1000])).collect();
            first.step().unwrap();
            let episode = TrainEpisode {
                episode_uuid: "e".into(),
                ..TrainEpisode::default()
            };
            assert_eq!(first.update(1, &[episode]).unwrap().metrics["loss"], 0.25);
            first.save(dir.path()).unwrap();
            assert!(first.is_idle());
            running.iter_mut().map(|events| tokens(events).1).collect::<Vec<_>>()
        });
        assert_eq!(cancelled, vec![Some(SampleEvent::Finished(FinishReason::Cancelled)); 3]);
        for parrot in others {
            assert_eq!(parrot.updates, [(1, vec!["e".to_owned()])]);
        }
    }

    #[test]
    fn answers_end_at_their_stop_string_and_without_their_requester() {
        struct At(u32);
        impl StopCheck for At {
            fn push(&mut self, token: u32) -> bool {
                token == self.0
            }
        }
        on_ranks(2, |first| {
            submit(first, "here", &[1]);
            let (mut asked, mut events) = request(&(0..100_000).map(|n| n % 600).collect::<Vec<u32>>());
            asked.group = "there".into();
            asked.stop = Some(Box::new(At(2)));
            first.submit(asked);
            // Nobody waits for this one: its channel is closed at once.
            submit(first, "there", &[1; 100_000]);
            run_until_idle(first);
            let end = Some(SampleEvent::Finished(FinishReason::Stop));
            assert_eq!(tokens(&mut events), (vec![0, 1, 2], end));
        });
    }

    #[test]
    fn a_failing_rank_ends_the_engine_with_its_reason() {
        let ranks = run(2, |collective| {
            if collective.rank() == 0 {
                let (links, answers) = connect(&*collective).unwrap();
                let mut first = FirstRank::new(Parrot::default(), links, answers);
                submit(&mut first, "here", &[1]);
                let _events = submit(&mut first, "there", &[1; 10]);
                return loop {
                    if let Err(error) = first.step() {
                        break error;
                    }
                };
            }
            let (mut links, _orders) = connect::<Order>(&*collective).unwrap();
            links[0].send(&Answer::Failed("out of memory".into())).unwrap();
            String::new()
        });
        assert_eq!(ranks[0], "rank 1: out of memory");
    }
}
