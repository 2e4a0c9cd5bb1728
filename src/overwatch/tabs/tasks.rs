//! Tasks: the groups of the batch with their rewards side by side.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::Row;

use super::list_title;
use crate::overwatch::format::{count, ending, number};
use crate::overwatch::list::{Hits, ListPanel};
use crate::overwatch::state::rows::{TASK_ORDERS, mean, tasks};
use crate::overwatch::state::{List, State};
use crate::overwatch::theme::Theme;
use crate::protocol::status::TaskGroup;

/// Draws the groups.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let rows = tasks(&state.known, &state.view);
    let list = state.view.list(List::Tasks);
    let order = TASK_ORDERS[list.order % TASK_ORDERS.len()];
    let without = rows.iter().filter(|group| is_without_signal(group, state)).count();
    let mut title = list_title(rows.len(), rows.len() as u64, "task", order, &list.filter);
    if without > 0 {
        title += &format!("; {} without signal", count(without as u64));
    }
    let block = theme.block(title);
    if rows.is_empty() {
        let empty = Line::styled(" no episode of this batch has ended", theme.faint());
        let inner = block.inner(area);
        frame.render_widget(block, area);
        frame.render_widget(empty, inner);
        return;
    }
    let task_width = (area.width / 4).clamp(8, 40);
    let panel = ListPanel {
        block,
        header: Row::new(["task", "ended", "runs", "mean", "signal", "rewards"]),
        widths: vec![
            Constraint::Length(task_width),
            Constraint::Length(7),
            Constraint::Length(4),
            Constraint::Length(7),
            Constraint::Length(6),
            Constraint::Fill(1),
        ],
        len: rows.len(),
        cursor: list.cursor.index,
        focused: true,
        list: List::Tasks,
        row: |index| task_row(rows[index], task_width, state, theme),
    };
    panel.draw(frame, area, theme, hits);
}

fn task_row<'a>(group: &TaskGroup, task_width: u16, state: &State, theme: Theme) -> Row<'a> {
    let repeats = state.status().map_or(0, |status| status.batch.repeats);
    let of = if repeats > 0 {
        format!("/{repeats}")
    } else {
        String::new()
    };
    let signal = match (group.has_signal, is_without_signal(group, state)) {
        (true, _) => Span::styled("yes", theme.colored(Color::Green)),
        (false, true) => Span::styled("none", theme.colored(Color::Yellow)),
        (false, false) => Span::raw(""),
    };
    Row::new([
        Line::raw(ending(&group.task_id, task_width)),
        Line::raw(format!("{}{of}", group.episodes.len())),
        Line::raw(group.running.to_string()),
        Line::raw(mean(group).map_or("-".into(), number)),
        Line::from(signal),
        rewards(group, theme),
    ])
}

/// Returns the rewards of a group side by side, in the order in which they came.
pub(super) fn rewards(group: &TaskGroup, theme: Theme) -> Line<'static> {
    let best = group
        .episodes
        .iter()
        .map(|episode| episode.reward)
        .fold(f64::NEG_INFINITY, f64::max);
    let spans = group.episodes.iter().map(|episode| {
        let style = match group.has_signal && episode.reward >= best {
            true => theme.colored(Color::Green),
            false => ratatui::style::Style::new(),
        };
        Span::styled(format!("{:.2} ", episode.reward), style)
    });
    spans.collect::<Vec<_>>().into()
}

/// Returns whether all episodes of a group ended with the same reward.
fn is_without_signal(group: &TaskGroup, state: &State) -> bool {
    let repeats = state.status().map_or(0, |status| status.batch.repeats);
    !group.has_signal && !group.episodes.is_empty() && group.episodes.len() as u64 >= repeats
}
