//! What `status --wait` waits for.

use std::str::FromStr;

use crate::protocol::swarm::{EngineStatus, EngineStatusAnswer};

/// A state of the engine to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Episodes can be run.
    Rolling,
    /// No engine runs.
    Offline,
    /// The batch of this step, or a later one, is sampled.
    Step(u64),
}

/// Whether a goal can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It is reached.
    Reached,
    /// It may be.
    Open,
    /// The engine ended, or did not boot.
    Offline,
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("step=")) {
            ("rolling", _) => Ok(Self::Rolling),
            ("offline", _) => Ok(Self::Offline),
            (_, Some(step)) => {
                let step = step.parse().map_err(|_| format!("{step:?} is not a step"))?;
                Ok(Self::Step(step))
            }
            _ => Err("it is none of rolling, offline and step=N".into()),
        }
    }
}

impl Goal {
    /// Returns the outlook at a status; `was_up` says whether an engine ran since the wait began.
    pub fn outlook(self, status: &EngineStatusAnswer, was_up: bool) -> Outlook {
        // An engine that failed has a reason; one that was not started has none.
        let has_failed = was_up
            || status
                .engine_status_detail
                .as_ref()
                .is_some_and(|detail| !detail.is_empty());
        match (self, status.engine_status) {
            (Self::Offline, EngineStatus::Offline) | (Self::Rolling, EngineStatus::Rolling) => Outlook::Reached,
            (Self::Rolling | Self::Step(_), EngineStatus::Offline) if has_failed => Outlook::Offline,
            (Self::Rolling | Self::Step(_), EngineStatus::Offline) => Outlook::Open,
            (Self::Step(step), _) if status.global_step >= step => Outlook::Reached,
            _ => Outlook::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read() {
        assert_eq!("rolling".parse(), Ok(Goal::Rolling));
        assert_eq!("offline".parse(), Ok(Goal::Offline));
        assert_eq!("step=7".parse(), Ok(Goal::Step(7)));
        for wrong in ["", "step", "step=", "step=-1", "step=x", "Rolling", "booting"] {
            assert!(wrong.parse::<Goal>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_goal_is_reached_open_or_out_of_reach() {
        use EngineStatus::{Booting, Offline, Rolling, WeightSyncing};
        for (goal, state, step, detail, was_up, outlook) in [
            (Goal::Rolling, Rolling, 1, None, true, Outlook::Reached),
            (Goal::Rolling, Booting, 0, Some("loading"), true, Outlook::Open),
            (Goal::Rolling, WeightSyncing, 3, None, true, Outlook::Open),
            (Goal::Rolling, Offline, 0, None, false, Outlook::Open),
            (
                Goal::Rolling,
                Offline,
                0,
                Some("does not compile"),
                false,
                Outlook::Offline,
            ),
            (Goal::Rolling, Offline, 0, None, true, Outlook::Offline),
            (Goal::Offline, Offline, 0, Some("done"), false, Outlook::Reached),
            (Goal::Offline, Rolling, 3, None, true, Outlook::Open),
            (Goal::Step(3), Rolling, 2, None, true, Outlook::Open),
            (Goal::Step(3), Rolling, 3, None, true, Outlook::Reached),
            (Goal::Step(3), WeightSyncing, 4, None, true, Outlook::Reached),
            (
                Goal::Step(3),
                Offline,
                0,
                Some("all 2 updates are done"),
                true,
                Outlook::Offline,
            ),
        ] {
            let status = EngineStatusAnswer {
                engine_status: state,
                engine_status_detail: detail.map(str::to_owned),
                global_step: step,
            };
            assert_eq!(goal.outlook(&status, was_up), outlook, "{goal:?} at {status:?}");
        }
    }
}
