//! What time changes: idle episodes are discarded, inactive clients and the post-rolling phase expire.

use super::{Core, HeldChange};
use crate::protocol::engine::DropReason;
use crate::server::swarm::state::{Event, State};

impl Core {
    /// Makes the time-driven changes: discards idle episodes, expires clients and the post-rolling phase, applies
    /// delayed state changes. Must be called at least every second.
    pub fn tick(&mut self, now: f64) {
        self.episodes.forget_old(now);
        self.clients.expire(now);
        for uuid in self.episodes.idle(now) {
            self.lose(&uuid, DropReason::Idle, now);
        }
        let timeout = self.config().map(|config| config.swarm_mode_rolling_post_timeout);
        if self.state == State::RollingPost && timeout.is_some_and(|timeout| now - self.post_since >= timeout) {
            for uuid in self.episodes.unended() {
                self.lose(&uuid, DropReason::Late, now);
            }
        }
        if let Some(held) = self.held.take_if(|held| now >= held.until) {
            match held.change {
                HeldChange::Offline => self.transition(Event::EngineGone, now),
                HeldChange::Rolling { global_step } => self.roll_on(global_step, now),
            }
        }
        self.settle(now);
    }
}
