//! The dashboard as plain text, for scripts and logs.

use super::panels::{duration, short};
use super::state::{State, state_name};
use crate::terminal::one_line;

/// Returns one `name value` line for each known value.
pub fn plain_text(state: &State) -> String {
    let mut lines = vec![("server", state.server.clone())];
    if let Some(snapshot) = &state.snapshot {
        let detail = snapshot.status.engine_status_detail.as_deref();
        let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
        lines.push((
            "state",
            format!("{}{detail}", state_name(snapshot.status.engine_status)),
        ));
        lines.push(("step", snapshot.status.global_step.to_string()));
    }
    if let Some(seconds) = state.booting_for() {
        lines.push(("booting for", duration(seconds)));
    }
    if let Some(pool) = state.pool() {
        lines.push(("model", pool.training_model_path.clone().unwrap_or_else(|| "-".into())));
        for progress in state.progress() {
            let mark = if progress.active { " (fills the batch)" } else { "" };
            lines.push((progress.what, format!("{}/{}{mark}", progress.done, progress.target)));
        }
        let running = pool.running_episode_details.as_ref().map_or(0, |running| running.len());
        lines.push(("running", running.to_string()));
        for client in &pool.swarm_client_instruction.active_clients {
            let agreed = if client.allowed_sync_weight { " agreed" } else { "" };
            lines.push(("client", format!("{}{agreed}", short(&client.client_uuid))));
        }
    }
    for (step, mean) in &state.rewards {
        lines.push(("reward", format!("{mean:.3} at step {step}")));
    }
    for line in &state.log {
        lines.push(("log", format!("{} {}", line.tag, line.message).trim().to_owned()));
    }
    let lines = lines
        .iter()
        .map(|(name, value)| format!("{name:<16} {}\n", one_line(value)));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{rolling, watching};
    use super::*;

    #[test]
    fn a_line_for_everything() {
        let text = plain_text(&watching());
        let want = "\
server           http://localhost:10086
state            ROLLING
step             3
model            Qwen/Qwen2.5-0.5B-Instruct
episodes         12/32
tasks            2/8 (fills the batch)
non-dummy tasks  1/8
clients agree    1/2
running          2
client           c1ient01 agreed
client           c1ient02
reward           0.500 at step 2
reward           0.708 at step 3
log              client task_7 done
";
        assert_eq!(text, want);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut snapshot = rolling();
        snapshot.status.engine_status_detail = Some("a\u{1b}[31mb\nc\u{202e}".into());
        let mut state = State::new(String::new(), 0.0);
        state.take(Ok(snapshot), 0.0);
        assert!(plain_text(&state).contains("ROLLING (a\\u{1b}[31mb c\\u{202e})\n"));
    }
}
