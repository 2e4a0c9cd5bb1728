//! Panels of running episodes, tasks, clients and the log.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

use super::{Theme, duration, short};
use crate::overwatch::state::State;

/// Minimum width of a panel with additional columns.
const WIDE: u16 = 50;
/// Width of a panel's left and right borders.
const BORDERS: u16 = 2;
/// Shown as the task of an episode whose claim had no task id, which is only known at its end.
const UNKNOWN_TASK: &str = "-";

/// Draws the running episodes: task, number of LLM calls, idle time with its limit, client.
pub(super) fn episodes(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let wide = area.width >= WIDE;
    let idle_width = if wide { 14 } else { 6 };
    let task_width = area.width.saturating_sub(BORDERS + 8 + 5 + idle_width + 8 + 4);
    let running = state.pool().and_then(|pool| pool.running_episode_details.as_ref());
    let rows = running.into_iter().flatten().map(|(episode, detail)| {
        let mut idle = detail.time_since_last_activity.clone();
        if wide {
            idle.push_str(&format!(" of {}", detail.discard_episode_timeout.replace(".0s", "s")));
        }
        Row::new([
            short(episode),
            match detail.optional_task_id.as_str() {
                "" => UNKNOWN_TASK.to_owned(),
                task => ending(task, task_width),
            },
            detail.llm_call_count.clone(),
            idle,
            short(&detail.client_uuid),
        ])
    });
    let count = running.map_or(0, |running| running.len());
    let widths = [
        Constraint::Length(8),
        Constraint::Length(task_width),
        Constraint::Length(5),
        Constraint::Length(idle_width),
        Constraint::Length(8),
    ];
    let table = Table::new(rows.skip(state.scroll), widths)
        .header(Row::new(["episode", "task", "calls", "idle", "client"]).style(theme.faint()))
        .block(theme.block(format!("{count} running")));
    frame.render_widget(table, area);
}

/// Draws the batch's tasks, newest first: number of episodes, mean reward, rewards.
pub(super) fn tasks(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let task_width = area.width.saturating_sub(BORDERS + 5 + 6 + 3) / 2;
    let pool = state.pool();
    let repeat = pool.map_or(0, |pool| pool.task_expected_num_repeat);
    let tasks = pool
        .into_iter()
        .flat_map(|pool| pool.completed_tasks_rewards.iter().rev());
    let rows = tasks.map(|(task, rewards)| {
        let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
        let each: Vec<_> = rewards.iter().map(|reward| format!("{reward:.2}")).collect();
        let row = Row::new([
            ending(task, task_width),
            format!("{}/{repeat}", rewards.len()),
            format!("{mean:.3}"),
            each.join(" "),
        ]);
        match rewards.len() as u64 >= repeat {
            true => row.style(theme.colored(Color::Green)),
            false => row,
        }
    });
    let count = pool.map_or(0, |pool| pool.completed_tasks_rewards.len());
    let widths = [
        Constraint::Length(task_width),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Fill(1),
    ];
    let table = Table::new(rows.skip(state.scroll), widths)
        .header(Row::new(["task", "ended", "mean", "rewards"]).style(theme.faint()))
        .block(theme.block(format!("{count} tasks")));
    frame.render_widget(table, area);
}

/// Draws the active clients and whether they agreed to the update.
pub(super) fn clients(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let clients = state
        .pool()
        .map(|pool| pool.swarm_client_instruction.active_clients.as_slice());
    let clients = clients.unwrap_or_default();
    let lines: Vec<_> = clients
        .iter()
        .map(|client| {
            let agreed = if client.allowed_sync_weight { "  agreed" } else { "" };
            let idle = duration(state.now - client.last_activity_at);
            Line::raw(format!("{}  {idle} ago{agreed}", short(&client.client_uuid)))
        })
        .collect();
    let block = theme.block(format!("{} active clients", clients.len()));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Draws the newest log lines with their age.
pub(super) fn log(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let block = theme.block("log");
    let height = block.inner(area).height.into();
    let newest = state.log.iter().skip(state.log.len().saturating_sub(height));
    let lines: Vec<_> = newest
        .map(|line| {
            let age = format!("{:>7} ", duration(state.now - line.timestamp));
            let tag = if line.tag.is_empty() {
                String::new()
            } else {
                format!("{} ", line.tag)
            };
            Line::from(vec![
                Span::styled(age, theme.faint()),
                Span::styled(tag, theme.colored(Color::Cyan)),
                Span::raw(line.message.replace('\n', " ")),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Truncates a name at its start, since the names of a data set differ at their ends.
fn ending(name: &str, width: u16) -> String {
    let cut = name.chars().count().saturating_sub(width.into());
    match cut {
        0 => name.to_owned(),
        _ => format!("…{}", name.chars().skip(cut + 1).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::ending;

    #[test]
    fn a_long_name_shows_its_end() {
        for (width, shown) in [
            (20, "reverse_text_1203"),
            (17, "reverse_text_1203"),
            (7, "…t_1203"),
            (1, "…"),
        ] {
            assert_eq!(ending("reverse_text_1203", width), shown);
        }
        assert_eq!(ending("größe_7", 4), "…e_7");
    }
}
