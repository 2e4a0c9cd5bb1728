//! Training: a chart of every metric, and why episodes were dropped.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::overwatch::chart::{self, Curve, Shape};
use crate::overwatch::format::{count, number};
use crate::overwatch::list::{Hits, window};
use crate::overwatch::state::rows::metrics;
use crate::overwatch::state::{Action, List, State};
use crate::overwatch::theme::Theme;

/// Minimum size of a chart.
const MIN_CHART: (u16, u16) = (38, 9);
/// Height of the line below the charts.
const NOTE: u16 = 1;
/// Shown while a chart of the loss is selected.
const LOSS: &str =
    " the loss of GRPO stays around 0, since the advantages of a group sum to 0: look at reward and eval";

/// Draws the charts, or the selected one alone.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let names = metrics(&state.known, &state.view);
    let cursor = state.view.list(List::Metrics).cursor.index;
    let [charts, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(NOTE)]).areas(area);
    let note = match names.get(cursor).map(String::as_str) {
        Some("loss" | "pg_loss") => Line::styled(LOSS, theme.faint()),
        _ => Line::styled(dropped_episodes(state), theme.colored(Color::Yellow)),
    };
    frame.render_widget(note, below);
    match names.get(cursor) {
        None => {
            let text = match state.view.list(List::Metrics).filter.as_str() {
                "" => " no update yet: curves begin with the first one".to_owned(),
                filter => format!(" no metric contains '{filter}'"),
            };
            frame.render_widget(Paragraph::new(Line::styled(text, theme.faint())), charts);
        }
        Some(name) if state.view.zoomed => metric(frame, charts, state, name, true, theme),
        Some(_) => grid(frame, charts, state, &names, cursor, theme, hits),
    }
}

fn grid(frame: &mut Frame, area: Rect, state: &State, names: &[String], cursor: usize, theme: Theme, hits: &mut Hits) {
    let columns = usize::from((area.width / MIN_CHART.0).max(1));
    let rows = usize::from((area.height / MIN_CHART.1).max(1));
    let shown = window(names.len().div_ceil(columns), cursor / columns, rows);
    let lines = Layout::vertical(vec![Constraint::Fill(1); rows]).split(area);
    for (line, row) in lines.iter().zip(shown) {
        let cells = Layout::horizontal(vec![Constraint::Fill(1); columns]).split(*line);
        for (column, cell) in cells.iter().enumerate() {
            let index = row * columns + column;
            let Some(name) = names.get(index) else { break };
            metric(frame, *cell, state, name, index == cursor, theme);
            let action = if index == cursor {
                Action::Enter
            } else {
                Action::Select(List::Metrics, index)
            };
            hits.add(*cell, action);
        }
    }
}

/// Draws a metric's chart.
pub(super) fn metric(frame: &mut Frame, area: Rect, state: &State, name: &str, selected: bool, theme: Theme) {
    let curves = curves(state, name);
    let last = curves
        .last()
        .and_then(|curve| curve.points.last())
        .map_or("-".into(), |(_, value)| number(*value));
    let block = theme.block(format!("{name} {last}"));
    let block = if selected {
        block.border_style(theme.colored(Color::Green)).title_bottom(" ▲ ")
    } else {
        block
    };
    chart::draw(frame, area, block, &curves, theme);
}

/// Returns a metric's curve, last, over its spread and evaluations where they are known.
pub(super) fn curves(state: &State, name: &str) -> Vec<Curve> {
    let curve = |name: &str, shape, color| Curve {
        points: state.known.curve(name),
        shape,
        color,
    };
    let shape = if name.starts_with("eval/") {
        Shape::Marks
    } else {
        Shape::Line
    };
    let mut curves = vec![];
    if name == "reward_mean" {
        curves.push(curve("reward_p10", Shape::Border, Color::DarkGray));
        curves.push(curve("reward_p90", Shape::Border, Color::DarkGray));
        curves.push(curve("eval/reward_mean", Shape::Marks, Color::Yellow));
    }
    curves.push(curve(name, shape, Color::Green));
    curves
}

fn dropped_episodes(state: &State) -> String {
    let dropped = state.status().map(|status| &status.dropped);
    let told: Vec<_> = dropped
        .into_iter()
        .flatten()
        .map(|(reason, n)| format!("{} {reason}", count(*n)))
        .collect();
    match told.is_empty() {
        true => String::new(),
        false => format!(" dropped episodes: {}", told.join(", ")),
    }
}
