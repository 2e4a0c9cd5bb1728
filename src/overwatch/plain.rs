//! The dashboard as plain text, for scripts and logs.

use super::format::{duration, number, short};
use super::state::State;
use super::state::summary::running;
use super::theme::state_name;
use crate::terminal::one_line;

/// Returns one `name value` line for each known value.
pub fn plain_text(state: &State) -> String {
    let mut lines = vec![("server", state.source.clone())];
    lines.extend(state.known.missing.clone().map(|missing| ("missing", missing)));
    if let Some(status) = state.status() {
        let age = state
            .state_age()
            .map(|age| format!(" for {}", duration(age)))
            .unwrap_or_default();
        lines.push(("state", format!("{}{age}", state_name(status.engine.status))));
        lines.push(("doing", state.doing()));
        lines.extend(state.updates().map(|updates| ("updates", updates)));
        if let Some(experiment) = &status.experiment {
            lines.push(("experiment", experiment.name.clone()));
            lines.push(("model", experiment.model.clone()));
        }
        let batch = &status.batch;
        if batch.target > 0 {
            lines.push(("batch", format!("{}/{} {}", batch.done, batch.target, batch.unit)));
            lines.push(("episodes", format!("{}/{}", batch.episodes, batch.episodes_target)));
        }
        lines.extend(
            state
                .seconds_left()
                .map(|left| ("next update", format!("in about {}", duration(left)))),
        );
        lines.extend(
            batch
                .reward
                .as_ref()
                .map(|reward| ("batch reward", number(reward.mean))),
        );
        lines.push(("episodes now", running(status)));
        lines.push(("learning", state.learning()));
        lines.extend(state.evaluation().map(|eval| ("eval reward", eval)));
        for client in &status.clients {
            let agreed = if client.agreed { " agreed" } else { "" };
            lines.push(("client", format!("{}{agreed}", short(&client.client_uuid))));
        }
        for (reason, number) in &status.dropped {
            lines.push(("dropped", format!("{number} {reason}")));
        }
    }
    for (step, mean) in state.known.curve("reward_mean") {
        lines.push(("reward", format!("{mean:.3} at step {step}")));
    }
    for line in &state.known.log {
        lines.push(("log", format!("{} {}", line.tag, line.message).trim().to_owned()));
    }
    let lines = lines
        .iter()
        .map(|(name, value)| format!("{name:<16} {}\n", one_line(value)));
    lines.collect()
}
