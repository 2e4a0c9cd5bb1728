//! The states that the engine was in, with their times.

use std::collections::VecDeque;

use crate::protocol::status::{PHASES, Phase};
use crate::protocol::swarm::EngineStatus;

/// Number of earlier durations from which a typical one is taken.
const TYPICAL_OF: usize = 5;

/// History of states, the current one last.
#[derive(Debug)]
pub struct Phases {
    phases: VecDeque<Phase>,
}

impl Phases {
    /// Begins in a state.
    pub fn start(status: EngineStatus, now: f64) -> Self {
        let first = Phase {
            status,
            since: now,
            global_step: 0,
        };
        Self {
            phases: VecDeque::from([first]),
        }
    }

    /// Enters another state.
    pub fn enter(&mut self, status: EngineStatus, global_step: u64, now: f64) {
        if self.phases.len() >= PHASES {
            self.phases.pop_front();
        }
        self.phases.push_back(Phase {
            status,
            since: now,
            global_step,
        });
    }

    /// Returns when the current state was entered.
    pub fn since(&self) -> f64 {
        self.phases.back().map_or(0.0, |phase| phase.since)
    }

    /// Lists the states, oldest first.
    pub fn list(&self) -> Vec<Phase> {
        self.phases.iter().cloned().collect()
    }

    /// Returns the mean duration in seconds of the last times that the engine was in a state; `None` if it has not left
    /// it yet.
    pub fn typical_seconds(&self, status: EngineStatus) -> Option<f64> {
        let ended = self.phases.iter().zip(self.phases.iter().skip(1)).rev();
        let durations = ended
            .filter(|(phase, _)| phase.status == status)
            .map(|(phase, next)| next.since - phase.since);
        let durations: Vec<f64> = durations.take(TYPICAL_OF).collect();
        (!durations.is_empty()).then(|| durations.iter().sum::<f64>() / durations.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_its_time_and_a_typical_duration_once_it_ended() {
        use EngineStatus::{Offline, Rolling, WeightSyncing};
        let mut phases = Phases::start(Offline, 5.0);
        phases.enter(Rolling, 1, 10.0);
        assert_eq!((phases.since(), phases.typical_seconds(Rolling)), (10.0, None));
        for (step, begun) in [(1, 14.0), (2, 30.0)] {
            phases.enter(WeightSyncing, step, begun);
            phases.enter(Rolling, step + 1, begun + step as f64);
        }
        assert_eq!(phases.typical_seconds(WeightSyncing), Some(1.5));
        assert_eq!(phases.typical_seconds(Rolling), Some((4.0 + 15.0) / 2.0));
        assert_eq!(phases.list().len(), 6);
        for at in 0..PHASES {
            phases.enter(Offline, 0, 100.0 + at as f64);
        }
        assert_eq!((phases.list().len(), phases.list()[0].since), (PHASES, 100.0));
    }
}
