//! State machine of the engine as clients see it.

use crate::protocol::swarm::EngineStatus;

/// State of the engine. The two other values of [`EngineStatus`] are never a state here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No engine.
    Offline,
    /// The engine loads its model.
    Booting,
    /// Episodes may be claimed.
    Rolling,
    /// The batch is full; running episodes may end.
    RollingPost,
    /// The weights are being updated.
    WeightSyncing,
}

/// Events that change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `start_engine` was accepted.
    StartAccepted,
    /// The model is loaded and the engine serves.
    EngineReady,
    /// The stop rule of the sample pool holds.
    BatchFull,
    /// The last claimed episode of a full batch ended, was aborted or was discarded.
    LastEpisodeGone,
    /// Update and checkpoint are done.
    UpdateDone,
    /// The engine died and is being restarted.
    EngineRestarts,
    /// `stop_engine`, or the engine ended for good.
    EngineGone,
}

/// A transition that the protocol does not allow.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected event {event:?} in state {}", .state.status())]
pub struct IllegalTransition {
    state: State,
    event: Event,
}

impl State {
    /// Returns the state after `event`.
    ///
    /// # Errors
    ///
    /// Fails if the wire protocol has no such transition.
    pub fn after(self, event: Event) -> Result<Self, IllegalTransition> {
        match (self, event) {
            (Self::Offline, Event::StartAccepted) => Ok(Self::Booting),
            (Self::Booting, Event::EngineReady) | (Self::WeightSyncing, Event::UpdateDone) => Ok(Self::Rolling),
            (Self::Rolling, Event::BatchFull) => Ok(Self::RollingPost),
            (Self::RollingPost, Event::LastEpisodeGone) => Ok(Self::WeightSyncing),
            (Self::Booting | Self::Rolling | Self::RollingPost | Self::WeightSyncing, Event::EngineRestarts) => {
                Ok(Self::Booting)
            }
            (_, Event::EngineGone) => Ok(Self::Offline),
            (state, event) => Err(IllegalTransition { state, event }),
        }
    }

    /// Returns whether claimed episodes may continue: the model answers and `end_episode` is accepted.
    pub fn episodes_run(self) -> bool {
        matches!(self, Self::Rolling | Self::RollingPost)
    }

    /// Returns the state's wire name.
    pub fn status(self) -> EngineStatus {
        match self {
            Self::Offline => EngineStatus::Offline,
            Self::Booting => EngineStatus::Booting,
            Self::Rolling => EngineStatus::Rolling,
            Self::RollingPost => EngineStatus::RollingPost,
            Self::WeightSyncing => EngineStatus::WeightSyncing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, State};

    const STATES: [State; 5] = [
        State::Offline,
        State::Booting,
        State::Rolling,
        State::RollingPost,
        State::WeightSyncing,
    ];

    /// One row an event, one column a state in the order of [`STATES`]; `None` is illegal.
    fn table() -> [(Event, [Option<State>; 5]); 7] {
        let no = None;
        let (offline, booting) = (Some(State::Offline), Some(State::Booting));
        let (rolling, post, syncing) = (
            Some(State::Rolling),
            Some(State::RollingPost),
            Some(State::WeightSyncing),
        );
        [
            (Event::StartAccepted, [booting, no, no, no, no]),
            (Event::EngineReady, [no, rolling, no, no, no]),
            (Event::BatchFull, [no, no, post, no, no]),
            (Event::LastEpisodeGone, [no, no, no, syncing, no]),
            (Event::UpdateDone, [no, no, no, no, rolling]),
            (Event::EngineRestarts, [no, booting, booting, booting, booting]),
            (Event::EngineGone, [offline; 5]),
        ]
    }

    #[test]
    fn every_transition_legal_and_illegal_is_as_the_table_says() {
        for (event, row) in table() {
            for (state, expected) in STATES.into_iter().zip(row) {
                assert_eq!(state.after(event).ok(), expected, "{event:?} in {state:?}");
            }
        }
    }

    #[test]
    fn an_illegal_transition_names_state_and_event() {
        let error = State::Offline.after(Event::BatchFull).unwrap_err();
        assert_eq!(error.to_string(), "unexpected event BatchFull in state ENGINE.OFFLINE");
    }
}
