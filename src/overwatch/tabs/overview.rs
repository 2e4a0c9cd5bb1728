//! Overview: is it learning, what is it doing, how long to the next update?

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{WIDE, episodes, log, training};
use crate::overwatch::chart;
use crate::overwatch::format::{count, duration, ending, magnitude, number};
use crate::overwatch::list::Hits;
use crate::overwatch::phase_band;
use crate::overwatch::state::State;
use crate::overwatch::theme::Theme;
use crate::protocol::status::{GroupEpisode, Status, TaskGroup};
use crate::protocol::swarm::EngineStatus;
use crate::trend::Direction;

/// Columns of the labels.
const LABEL: usize = 13;
/// Height from which the side panels are shown below each other.
const TALL: u16 = 30;
/// Metrics below the reward where there is room.
const MORE_CHARTS: [&str; 3] = ["loss", "entropy", "grad_norm"];
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
    let block = theme.block("log");
    let height = usize::from(block.inner(latest).height);
    let newest = state
        .known
        .log
        .iter()
        .skip(state.known.log.len().saturating_sub(height));
    let lines: Vec<_> = newest.map(|line| log::row(line, state.now, theme)).collect();
    frame.render_widget(Paragraph::new(lines).block(block), latest);
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
            .map(|extremes| labelled("episodes", extremes_text(extremes, width), Style::new(), theme)),
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
            let share = batch.done as f64 / batch.target.max(1) as f64;
            (
                "next update",
                share,
                format!("{} of {} {}", count(batch.done), count(batch.target), batch.unit),
            )
        }
        EngineStatus::RollingPost | EngineStatus::WeightSyncing | EngineStatus::WeightExporting => {
            let age = state.state_age().unwrap_or(0.0);
            let share = state.seconds_left().map_or(0.0, |left| age / (age + left).max(1e-3));
            ("update ends", share, format!("{} so far", duration(age)))
        }
        _ => return None,
    };
    let left = match state.seconds_left() {
        Some(left) => format!("in about {}", duration(left)),
        None => "time left unknown".into(),
    };
    let reward = match &batch.reward {
        Some(reward) if width >= WIDE / 2 => format!("  batch reward {}", number(reward.mean)),
        _ => String::new(),
    };
    let bar = BAR.min(usize::from(width) / 4);
    let filled = ((share.clamp(0.0, 1.0) * bar as f64).round() as usize).min(bar);
    Some(Line::from(vec![
        Span::styled(format!(" {label:<0$}", LABEL - 1), theme.faint()),
        Span::styled("█".repeat(filled), theme.colored(Color::Green)),
        Span::styled("░".repeat(bar - filled), theme.faint()),
        Span::styled(format!(" {left}"), theme.strong(Color::Green)),
        Span::raw(format!("  {text}{reward}")),
    ]))
}

fn speed(status: &Status) -> Option<String> {
    let load = status.sampling.as_ref()?;
    Some(format!(
        "{} tokens/s  {} episodes/s  {} requests sampled, {} waiting",
        number(load.tokens_per_second),
        number(load.episodes_per_second),
        count(load.running_requests),
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

fn extremes_text([worst, best]: [(&TaskGroup, &GroupEpisode); 2], width: u16) -> String {
    let task = (width / 4).saturating_sub(4);
    let one = |(group, episode): (&TaskGroup, &GroupEpisode)| {
        format!("{} {}", number(episode.reward), ending(&group.task_id, task))
    };
    format!("w worst {}   b best {}", one(worst), one(best))
}
