//! Sentences that answer: is it learning, what is it doing, how long to the next update?

use super::State;
use super::act::extreme;
use crate::overwatch::format::{counted, duration, number};
use crate::protocol::status::{GroupEpisode, Phase, Status, TaskGroup};
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
        self.status().map_or_else(|| "connecting".into(), doing)
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
            Some(trend) => format!("reward {} {trend} in {} steps; {begun}", number(*last), trend.window),
        }
    }

    /// Returns the last evaluation with its change since the first one.
    pub fn evaluation(&self) -> Option<String> {
        let evals = self.known.curve("eval/reward_mean");
        let (first, last) = (evals.first()?, evals.last()?);
        let now = format!("{} at step {}", number(last.1), last.0);
        Some(match evals.len() {
            1 => now,
            _ => format!("{now}, {:+.3} since step {}", last.1 - first.1, first.0),
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

    /// Returns the worst and the best finished episode of the batch.
    pub fn extremes(&self) -> Option<[(&TaskGroup, &GroupEpisode); 2]> {
        let groups = &self.status()?.groups;
        Some([extreme(groups.iter(), false)?, extreme(groups.iter(), true)?])
    }
}

fn doing(status: &Status) -> String {
    let (engine, batch) = (&status.engine, &status.batch);
    let detail = || engine.detail.clone();
    match engine.status {
        EngineStatus::Offline if detail().is_some_and(|detail| detail.contains(UPDATES_DONE)) => {
            format!("finished: {}", detail().unwrap_or_default())
        }
        EngineStatus::Offline => {
            detail().unwrap_or_else(|| "no engine runs; start a job with `ajet-swarm roll`".into())
        }
        EngineStatus::Booting => detail().unwrap_or_else(|| "loading the model".into()),
        EngineStatus::Rolling => format!(
            "sampling batch {}: {} of {} ended, {} running",
            engine.global_step,
            batch.episodes,
            counted(batch.episodes_target, "episode"),
            status.running_total
        ),
        EngineStatus::RollingPost => match status.running_total {
            0 => format!("batch {} is full; the update begins", engine.global_step),
            running => format!(
                "batch {} is full; waiting for {}",
                engine.global_step,
                counted(running, "running episode")
            ),
        },
        EngineStatus::WeightSyncing | EngineStatus::WeightExporting => {
            let update = format!(
                "training on batch {} ({})",
                engine.global_step,
                counted(batch.episodes, "episode")
            );
            detail().map_or(update.clone(), |detail| format!("{update}: {detail}"))
        }
        EngineStatus::CannotConnect => String::new(),
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
        status.running_total = 40;
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
            (
                Offline,
                Some("all 3 updates of ajet.trainer_common.total_training_steps are done"),
                "finished: all 3 updates of ajet.trainer_common.total_training_steps are done",
            ),
            (Offline, Some("out of memory"), "out of memory"),
            (Booting, Some("loading weights"), "loading weights"),
            (Rolling, None, "sampling batch 37: 84 of 128 episodes ended, 40 running"),
            (RollingPost, None, "batch 37 is full; waiting for 40 running episodes"),
            (WeightSyncing, None, "training on batch 37 (84 episodes)"),
            (
                WeightSyncing,
                Some("writing a checkpoint"),
                "training on batch 37 (84 episodes): writing a checkpoint",
            ),
        ] {
            assert_eq!(told(&status, engine, detail), want);
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
