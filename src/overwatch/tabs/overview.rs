//! Overview: is it learning, what is it doing, how long to the next update?

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{WIDE, episodes, log, training};
use crate::overwatch::chart;
use crate::overwatch::format::{count, counted, duration, magnitude, number};
use crate::overwatch::list::Hits;
use crate::overwatch::phase_band;
use crate::overwatch::state::State;
use crate::overwatch::state::summary::Ended;
use crate::overwatch::theme::Theme;
use crate::protocol::status::Status;
use crate::protocol::swarm::EngineStatus;
use crate::trend::Direction;

/// Columns of the labels.
const LABEL: usize = 13;
/// Height from which the side panels are shown below each other.
const TALL: u16 = 30;
/// Metrics below the reward where there is room.
const MORE_CHARTS: [&str; 3] = ["entropy", "grad_norm", "response_length_mean"];
/// Height of their charts.
const MORE_CHARTS_HEIGHT: u16 = 11;
/// Maximum columns of the progress bar.
const BAR: usize = 24;

/// Draws the tab.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let (main, side) = match area.width >= WIDE {
        true => {
            let [main, side] = Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(area);
            (main, Some(side))
        }
        false => (area, None),
    };
    let lines = lines(state, main.width, theme);
    let [facts, chart] = Layout::vertical([Constraint::Length(lines.len() as u16), Constraint::Fill(1)]).areas(main);
    frame.render_widget(Paragraph::new(lines), facts);
    let more = if chart.height >= 2 * MORE_CHARTS_HEIGHT {
        MORE_CHARTS_HEIGHT
    } else {
        0
    };
    let [chart, more] = Layout::vertical([Constraint::Fill(1), Constraint::Length(more)]).areas(chart);
    reward_chart(frame, chart, state, theme);
    let cells: [Rect; MORE_CHARTS.len()] = Layout::horizontal([Constraint::Fill(1); MORE_CHARTS.len()]).areas(more);
    for (name, cell) in MORE_CHARTS.iter().zip(cells) {
        training::metric(frame, cell, state, name, false, theme);
    }
    if let Some(side) = side {
        draw_side(frame, side, state, theme);
    }
}

/// Draws the running episodes and the end of the log.
fn draw_side(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let log_share = if area.height >= TALL { 1 } else { 0 };
    let [running, latest] = Layout::vertical([Constraint::Fill(2), Constraint::Fill(log_share)]).areas(area);
    // A row of this panel is not opened by a click.
    episodes::running(frame, running, state, theme, &mut Hits::default());
    log::newest(frame, latest, state, theme);
}

/// Draws the mean reward by step.
fn reward_chart(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let curves = training::curves(state, "reward_mean");
    let has = |place: usize| curves.get(place).is_some_and(|curve| !curve.points.is_empty());
    let mut title = "mean reward by step".to_owned();
    if has(0) && has(1) {
        title += ", p10 to p90 dotted";
    }
    if has(2) {
        title += ", • eval";
    }
    let block = theme.block(title);
    if curves.iter().all(|curve| curve.points.is_empty()) {
        let note = Line::styled(" the curve begins with the first update", theme.faint());
        frame.render_widget(Paragraph::new(note).block(block), area);
        return;
    }
    chart::draw(frame, area, block, &curves, theme);
}

/// Returns what is known, one line each.
fn lines(state: &State, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![labelled("doing", state.doing(), doing_style(state, theme), theme)];
    let Some(status) = state.status() else { return lines };
    if let Some(ended) = state.ended() {
        lines.extend(next_steps(&ended, state, theme));
    }
    lines.extend(next_update(state, status, width, theme));
    lines.push(labelled(
        "learning",
        state.learning(),
        learning_style(state, theme),
        theme,
    ));
    lines.extend(
        state
            .evaluation()
            .map(|eval| labelled("eval reward", eval, Style::new(), theme)),
    );
    lines.extend(
        state
            .finish()
            .map(|finish| labelled("all done", finish, Style::new(), theme)),
    );
    lines.extend(speed(status).map(|speed| labelled("speed", speed, Style::new(), theme)));
    lines.extend(model(status).map(|model| labelled("model", model, Style::new(), theme)));
    if !status.engine.phases.is_empty() {
        lines.push(phases(state, status, width, theme));
    }
    lines.extend(
        state
            .extremes()
            .map(|extremes| labelled("episodes", extremes_text(extremes), Style::new(), theme)),
    );
    lines
}

fn labelled(label: &str, text: String, style: Style, theme: Theme) -> Line<'static> {
    Line::from(vec![
        Span::styled(format!(" {label:<0$}", LABEL - 1), theme.faint()),
        Span::styled(text, style),
    ])
}

fn doing_style(state: &State, theme: Theme) -> Style {
    state
        .engine_status()
        .map_or(theme.faint(), |status| theme.state(status))
}

fn learning_style(state: &State, theme: Theme) -> Style {
    match state.reward_trend().map(|trend| trend.direction) {
        Some(Direction::Rising) => theme.strong(Color::Green),
        Some(Direction::Falling) => theme.strong(Color::Red),
        _ => Style::new(),
    }
}

/// Progress of the active rule and time to the next update; while updating, to its end.
fn next_update(state: &State, status: &Status, width: u16, theme: Theme) -> Option<Line<'static>> {
    let batch = &status.batch;
    let (label, share, text) = match status.engine.status {
        EngineStatus::Rolling => {
            let mut text = format!("{}/{} {}", count(batch.done), count(batch.target), batch.unit);
            if batch.unit != "episodes" && batch.episodes_target > 0 {
                text += &format!(", {}/{} episodes", count(batch.episodes), count(batch.episodes_target));
            }
            ("next update", batch.share(), text)
        }
        EngineStatus::RollingPost | EngineStatus::WeightSyncing | EngineStatus::WeightExporting => {
            let age = state.state_age().unwrap_or(0.0);
            let share = state.seconds_left().map_or(0.0, |left| age / (age + left).max(1e-3));
            ("update ends", share, format!("{} so far", duration(age)))
        }
        _ => return None,
    };
    let left = match state.seconds_left() {
        _ if status.is_evaluating() => "after the evaluation".into(),
        Some(left) => format!("in about {}", duration(left)),
        None => "time left unknown".into(),
    };
    let bar = BAR.min(usize::from(width) / 5);
    let filled = ((share.clamp(0.0, 1.0) * bar as f64).round() as usize).min(bar);
    Some(Line::from(vec![
        Span::styled(format!(" {label:<0$}", LABEL - 1), theme.faint()),
        Span::styled("█".repeat(filled), theme.colored(Color::Green)),
        Span::styled("░".repeat(bar - filled), theme.faint()),
        Span::styled(format!(" {left}"), theme.strong(Color::Green)),
        Span::raw(format!("  {text}")),
    ]))
}

fn speed(status: &Status) -> Option<String> {
    let load = status.sampling.as_ref()?;
    Some(format!(
        "{} tokens/s  {} episodes/s  {} at a time, {} waiting",
        number(load.tokens_per_second),
        number(load.episodes_per_second),
        counted(load.running_requests, "request"),
        count(load.waiting_requests)
    ))
}

fn model(status: &Status) -> Option<String> {
    let experiment = status
        .experiment
        .as_ref()
        .filter(|experiment| !experiment.model.is_empty())?;
    let mut text = experiment.model.clone();
    if experiment.parameters > 0 {
        text += &format!("  {} parameters", magnitude(experiment.parameters));
    }
    if !experiment.device.is_empty() {
        text += &format!(" on {}", experiment.device);
    }
    Some(text)
}

fn phases(state: &State, status: &Status, width: u16, theme: Theme) -> Line<'static> {
    let phases = &status.engine.phases;
    let room = usize::from(width).saturating_sub(LABEL + 1);
    let shares = phase_band::shares(phase_band::recent(phases), state.now, room / 2);
    let band = room - shares.chars().count().min(room);
    let mut line = labelled("phases", String::new(), Style::new(), theme);
    line.extend(phase_band::band(phases, state.now, band as u16, theme).spans);
    line.push_span(Span::styled(format!(" {shares}"), theme.faint()));
    line
}

fn extremes_text(([worst, best], place): ([f64; 2], String)) -> String {
    format!("w worst {}   b best {}   of {place}", number(worst), number(best))
}

/// Returns where the model of a run that ended is, and what can be done with it.
fn next_steps(ended: &Ended, state: &State, theme: Theme) -> Vec<Line<'static>> {
    if ended.directory.is_empty() {
        return vec![];
    }
    let directory = ended.directory;
    let mut steps = vec![
        ("checkpoint", format!("{directory}/checkpoints")),
        ("talk to it", format!("ajet-swarm chat {directory}")),
        ("serve it", format!("ajet-swarm serve {directory}")),
    ];
    if state.source.starts_with("http") {
        steps.push(("fetch it", "ajet-swarm fetch my-model".to_owned()));
    }
    steps.push(("go on", format!("ajet-swarm start --continue={directory}")));
    let line = |(label, text): (&str, String)| labelled(label, text, Style::new(), theme);
    steps.into_iter().map(line).collect()
}
