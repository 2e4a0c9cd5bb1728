//! Sentences that answer: is it learning, what is it doing, how long to the next update?

use indexmap::IndexMap;

use super::State;
use super::act::extreme;
use crate::overwatch::format::{count, counted, duration, number};
use crate::overwatch::update::Extreme;
use crate::protocol::status::{BatchProgress, Distribution, Phase, Status};
use crate::protocol::swarm::{EngineStatus, UPDATES_DONE};
use crate::trend::Trend;

/// Steps of which the mean duration is taken.
const STEPS_TIMED: u64 = 10;

impl State {
    /// Returns the engine's state as far as known.
    pub fn engine_status(&self) -> Option<EngineStatus> {
        match &self.known.failure {
            Some(_) => Some(EngineStatus::CannotConnect),
            None => self.status().map(|status| status.engine.status),
        }
    }

    /// Returns the seconds since the engine entered its state, or since the server went away.
    pub fn state_age(&self) -> Option<f64> {
        if let Some((_, since)) = &self.known.failure {
            return Some((self.now - since).max(0.0));
        }
        let since = self.status()?.engine.since;
        (since > 0.0).then(|| (self.now - since).max(0.0))
    }

    /// Returns what the engine is doing, as a sentence.
    pub fn doing(&self) -> String {
        if let Some((reason, since)) = &self.known.failure {
            return format!("{reason}; retrying for {}", duration(self.now - since));
        }
        match (self.ended(), self.status()) {
            (Some(ended), _) => ended.sentence(self.state_age()),
            (None, Some(status)) => doing(status),
            (None, None) => "connecting".into(),
        }
    }

    /// Returns how the run ended, if no engine runs and there were updates.
    pub fn ended(&self) -> Option<Ended<'_>> {
        let status = self.status().filter(|_| self.known.failure.is_none())?;
        let offline = status.engine.status == EngineStatus::Offline;
        let updates = self.last_update().filter(|_| offline)?;
        let detail = status.engine.detail.as_deref();
        Some(Ended {
            updates,
            directory: status
                .experiment
                .as_ref()
                .map_or("", |experiment| &experiment.directory),
            is_finished: detail.is_some_and(|detail| detail.contains(UPDATES_DONE)),
            detail,
        })
    }

    /// Returns the step of the last update, if there was one.
    pub fn last_update(&self) -> Option<u64> {
        let trained =
            |(step, metrics): (&u64, &IndexMap<String, f64>)| metrics.contains_key("reward_mean").then_some(*step);
        self.known.history.iter().rev().find_map(trained)
    }

    /// Returns the number of updates that are done, of how many if that is limited: `36/300 updates`.
    pub fn updates(&self) -> Option<String> {
        let engine = &self.status()?.engine;
        match (engine.global_step, engine.total_steps) {
            (0, _) => Some(counted(self.last_update()?, "update")),
            (_, Some(total)) => Some(format!("{}/{}", count(engine.updates_done()), counted(total, "update"))),
            (_, None) => Some(counted(engine.updates_done(), "update")),
        }
    }

    /// Returns the estimated seconds until the next update begins (while rolling) or ends (while updating).
    pub fn seconds_left(&self) -> Option<f64> {
        let status = self.status()?;
        let left = status.batch.seconds_left?;
        Some((left - (self.now - status.server.now)).max(0.0))
    }

    /// Returns the trend of the mean reward; `None` for fewer than ten updates.
    pub fn reward_trend(&self) -> Option<Trend> {
        let rewards: Vec<f64> = self
            .known
            .curve("reward_mean")
            .iter()
            .map(|(_, value)| *value)
            .collect();
        Trend::of(&rewards)
    }

    /// Returns whether it learns, as a sentence.
    pub fn learning(&self) -> String {
        let rewards = self.known.curve("reward_mean");
        let (Some((first_step, first)), Some((_, last))) = (rewards.first(), rewards.last()) else {
            return "no update yet".into();
        };
        let begun = format!("{} at step {first_step}", number(*first));
        match self.reward_trend() {
            None => {
                let updates = counted(rewards.len() as u64, "update");
                format!("reward {}; too early for a trend ({updates}); {begun}", number(*last))
            }
            Some(trend) => format!("reward {} {trend}; {begun}", number(*last)),
        }
    }

    /// Returns the last evaluation with its change since the first one.
    pub fn evaluation(&self) -> Option<String> {
        let evals = self.known.curve("eval/reward_mean");
        let (first, last) = (evals.first()?, evals.last()?);
        // The weights of step N are those after N - 1 updates.
        let updates = |step: f64| (step as u64).saturating_sub(1);
        let now = format!("{} after {}", number(last.1), counted(updates(last.0), "update"));
        Some(match (evals.len(), updates(first.0)) {
            (1, _) => now,
            (_, 0) => format!("{now}, {:+.3} since the start", last.1 - first.1),
            (_, first_updates) => format!("{now}, {:+.3} since update {first_updates}", last.1 - first.1),
        })
    }

    /// Returns when all updates will be done, if their number is limited.
    pub fn finish(&self) -> Option<String> {
        let engine = &self.status()?.engine;
        let left = (engine.total_steps? + 1).saturating_sub(engine.global_step);
        let each = seconds_per_step(&engine.phases)?;
        (engine.status != EngineStatus::Offline).then(|| {
            format!(
                "in about {} ({} of {} each)",
                duration(left as f64 * each),
                counted(left, "step"),
                duration(each)
            )
        })
    }

    /// Returns the lowest and the highest reward that the keys `w` and `b` lead to, and where: of the last update, or
    /// of the batch before the first one.
    pub fn extremes(&self) -> Option<([f64; 2], String)> {
        if let Some(step) = self.last_update() {
            let metrics = &self.known.history[&step];
            let rewards = [*metrics.get("reward_min")?, *metrics.get("reward_max")?];
            return Some((rewards, format!("step {step}")));
        }
        let groups = &self.status()?.groups;
        let reward = |which| extreme(groups.iter(), which).map(|(_, episode)| episode.reward);
        Some((
            [reward(Extreme::Worst)?, reward(Extreme::Best)?],
            "the batch so far".into(),
        ))
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended<'a> {
    /// Updates that were done.
    pub updates: u64,
    /// Directory of the experiment on the server's machine; empty if unknown.
    pub directory: &'a str,
    /// Whether all updates of the configuration are done.
    pub is_finished: bool,
    detail: Option<&'a str>,
}

impl Ended<'_> {
    /// Returns a word.
    pub fn word(&self) -> &'static str {
        match self.is_finished {
            true => "finished",
            false => "ended",
        }
    }

    fn sentence(&self, age: Option<f64>) -> String {
        let mut sentence = format!("{} after {}", self.word(), counted(self.updates, "update"));
        if let Some(age) = age {
            sentence += &format!(", {} ago", duration(age));
        }
        // That all updates are done is said already.
        if let Some(detail) = self.detail.filter(|_| !self.is_finished) {
            sentence += &format!(": {detail}");
        }
        sentence
    }
}

fn doing(status: &Status) -> String {
    let (engine, batch) = (&status.engine, &status.batch);
    let detail = || engine.detail.clone();
    match engine.status {
        EngineStatus::Offline => {
            detail().unwrap_or_else(|| "no engine runs; start a job with `ajet-swarm roll`".into())
        }
        EngineStatus::Booting => detail().unwrap_or_else(|| "loading the model".into()),
        EngineStatus::Rolling if status.is_evaluating() => format!(
            "evaluating after {}: {}",
            counted(engine.updates_done(), "update"),
            running(status)
        ),
        EngineStatus::Rolling => format!(
            "sampling step {}: {}{}",
            engine.global_step,
            running(status),
            reward_so_far(batch)
        ),
        EngineStatus::RollingPost => match status.running_total + status.claimed_total {
            0 => format!("the batch of step {} is full; the update begins", engine.global_step),
            left => format!(
                "the batch of step {} is full; waiting for {}",
                engine.global_step,
                counted(left, "episode")
            ),
        },
        EngineStatus::WeightSyncing | EngineStatus::WeightExporting => {
            let update = format!(
                "training step {} on {}",
                engine.global_step,
                counted(batch.episodes, "episode")
            );
            detail().map_or(update.clone(), |detail| format!("{update}: {detail}"))
        }
        EngineStatus::CannotConnect => String::new(),
    }
}

fn reward_so_far(batch: &BatchProgress) -> String {
    let text = |reward: &Distribution| {
        let episodes = counted(reward.count, "episode");
        format!("; mean reward {} of {episodes}", number(reward.mean))
    };
    batch.reward.as_ref().map(text).unwrap_or_default()
}

/// Returns the number of running episodes, and of those that are only claimed: `48 running, 43 claimed`.
pub fn running(status: &Status) -> String {
    match status.claimed_total {
        0 => format!("{} running", count(status.running_total)),
        claimed => format!("{} running, {} claimed", count(status.running_total), count(claimed)),
    }
}

/// Returns the mean duration of the last steps, with evaluations and checkpoints between them.
fn seconds_per_step(phases: &[Phase]) -> Option<f64> {
    let rolling = phases
        .iter()
        .rev()
        .filter(|phase| phase.status == EngineStatus::Rolling);
    let mut starts: Vec<(u64, f64)> = vec![];
    for phase in rolling {
        match starts.last_mut() {
            Some(last) if last.0 == phase.global_step => last.1 = phase.since,
            Some(last) if last.0 < phase.global_step => break, // an engine that began before this one
            _ => starts.push((phase.global_step, phase.since)),
        }
        if starts.len() as u64 > STEPS_TIMED {
            break;
        }
    }
    let (last, first) = (starts.first()?, starts.last()?);
    (last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::status::RunningEpisode;
    use crate::protocol::swarm::EpisodeType;

    fn phase(status: EngineStatus, since: f64, global_step: u64) -> Phase {
        Phase {
            status,
            since,
            global_step,
        }
    }

    #[test]
    fn a_step_takes_the_mean_of_the_last_ones() {
        use EngineStatus::{Offline, Rolling, WeightSyncing};
        let mut phases = vec![phase(Rolling, 0.0, 8), phase(Offline, 10.0, 0)];
        assert_eq!(seconds_per_step(&phases), None);
        for step in 1..=20_u32 {
            phases.push(phase(Rolling, 100.0 * f64::from(step), step.into()));
            phases.push(phase(WeightSyncing, 100.0 * f64::from(step) + 70.0, step.into()));
            if step == 1 {
                assert_eq!(seconds_per_step(&phases), None);
            }
        }
        assert_eq!(seconds_per_step(&phases), Some(100.0));
    }

    #[test]
    fn what_it_is_doing() {
        let mut status = Status::default();
        status.batch.episodes = 84;
        status.batch.episodes_target = 128;
        status.batch.reward = Distribution::of([0.0, 1.0]);
        (status.running_total, status.claimed_total) = (40, 8);
        status.engine.global_step = 37;
        let told = |status: &Status, engine, detail: Option<&str>| {
            let mut status = status.clone();
            status.engine.status = engine;
            status.engine.detail = detail.map(Into::into);
            doing(&status)
        };
        use EngineStatus::{Booting, Offline, Rolling, RollingPost, WeightSyncing};
        for (engine, detail, want) in [
            (Offline, None, "no engine runs; start a job with `ajet-swarm roll`"),
            (Offline, Some("out of memory"), "out of memory"),
            (Booting, Some("loading weights"), "loading weights"),
            (
                Rolling,
                None,
                "sampling step 37: 40 running, 8 claimed; mean reward 0.500 of 2 episodes",
            ),
            (
                RollingPost,
                None,
                "the batch of step 37 is full; waiting for 48 episodes",
            ),
            (WeightSyncing, None, "training step 37 on 84 episodes"),
            (
                WeightSyncing,
                Some("writing a checkpoint"),
                "training step 37 on 84 episodes: writing a checkpoint",
            ),
        ] {
            assert_eq!(told(&status, engine, detail), want);
        }
    }

    /// Seen: "sampling step 15 … next update in about 0.0s" throughout an evaluation.
    #[test]
    fn an_evaluation_is_told_from_a_batch() {
        let of = |episode_type| RunningEpisode {
            episode_type,
            ..RunningEpisode::default()
        };
        let mut status = Status {
            running: vec![of(EpisodeType::Eval), of(EpisodeType::Eval)],
            running_total: 2,
            ..Status::default()
        };
        (status.engine.status, status.engine.global_step) = (EngineStatus::Rolling, 15);
        assert_eq!(doing(&status), "evaluating after 14 updates: 2 running");
        status.running.push(of(EpisodeType::Train));
        status.running_total = 3;
        assert_eq!(doing(&status), "sampling step 15: 3 running");
    }

    /// Seen: "no engine runs" after a run of 300 updates.
    #[test]
    fn a_run_that_ended_says_how_and_when() {
        let mut state = State {
            now: 100.0,
            ..State::default()
        };
        let mut status = Status::default();
        status.engine.since = 40.0;
        state.known.status = Some(status.clone());
        assert_eq!(state.ended(), None);
        assert_eq!(state.doing(), "no engine runs; start a job with `ajet-swarm roll`");
        for step in 1..=3 {
            state
                .known
                .history
                .insert(step, [("reward_mean".to_owned(), 0.5)].into());
        }
        state
            .known
            .history
            .insert(4, [("eval/reward_mean".to_owned(), 0.5)].into());
        for (detail, doing) in [
            (None, "ended after 3 updates, 1m 00s ago"),
            (
                Some("out of memory".to_owned()),
                "ended after 3 updates, 1m 00s ago: out of memory",
            ),
            (
                Some(format!("all 3 {UPDATES_DONE}; more")),
                "finished after 3 updates, 1m 00s ago",
            ),
        ] {
            status.engine.detail = detail;
            state.known.status = Some(status.clone());
            assert_eq!(
                (state.doing(), state.updates()),
                (doing.to_owned(), Some("3 updates".into()))
            );
        }
    }

    #[test]
    fn the_estimate_runs_down() {
        let mut state = State::default();
        let mut status = Status::default();
        status.server.now = 100.0;
        status.batch.seconds_left = Some(8.0);
        state.known.status = Some(status);
        for (now, want) in [(100.0, 8.0), (103.0, 5.0), (120.0, 0.0)] {
            state.now = now;
            assert_eq!(state.seconds_left(), Some(want));
        }
    }
}
