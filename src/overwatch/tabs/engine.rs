//! Engine: load and speed of sampling, memory, where the time goes, and clients.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::Line;
use ratatui::widgets::{LineGauge, Paragraph, Row, Table};

use super::WIDE;
use crate::overwatch::format::{bytes, count, counted, duration, latency, magnitude, number, percent, short};
use crate::overwatch::phase_band;
use crate::overwatch::state::State;
use crate::overwatch::theme::Theme;
use crate::protocol::engine::EndpointLoad;
use crate::protocol::status::{Distribution, SamplingLoad, Status};
use crate::terminal::one_line;

/// Rows of the sampling panel with its frame.
const SAMPLING_ROWS: u16 = 10;
/// Rows of the time panel with its frame.
const TIME_ROWS: u16 = 5;

/// Draws the tab.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let Some(status) = state.status() else {
        frame.render_widget(Line::styled(format!(" {}", state.doing()), theme.faint()), area);
        return;
    };
    let (left, right) = match area.width >= WIDE {
        true => {
            let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
            (left, Some(right))
        }
        false => (area, None),
    };
    let [sampling, time, rest] = Layout::vertical([
        Constraint::Length(SAMPLING_ROWS),
        Constraint::Length(TIME_ROWS),
        Constraint::Fill(1),
    ])
    .areas(left);
    draw_sampling(frame, sampling, status, theme);
    draw_time(frame, time, state, status, theme);
    match right {
        Some(right) => {
            facts(frame, rest, status, theme);
            clients(frame, right, state, status, theme);
        }
        None => clients(frame, rest, state, status, theme),
    }
}

fn draw_sampling(frame: &mut Frame, area: Rect, status: &Status, theme: Theme) {
    let block = theme.block("sampling, mean of the last 10 seconds");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let Some(load) = &status.sampling else {
        frame.render_widget(Line::styled(" unknown while no engine samples", theme.faint()), inner);
        return;
    };
    let lines = Layout::vertical([Constraint::Length(1); SAMPLING_ROWS as usize - 2]).split(inner);
    for (text, line) in sampling_lines(load).into_iter().zip(lines.iter()) {
        frame.render_widget(text, *line);
    }
    if let Some(line) = lines.get(5) {
        gauge(frame, *line, "cache use", load.cache_usage, theme);
    }
    if let Some(line) = lines.get(6) {
        gauge(frame, *line, "prefix hits", load.prefix_hit_rate, theme);
    }
}

fn sampling_lines(load: &SamplingLoad) -> Vec<Line<'static>> {
    let line = |name: &str, value: String| Line::raw(format!(" {name:<12} {value}"));
    vec![
        line(
            "requests",
            format!(
                "{} at a time, {} waiting",
                count(load.running_requests),
                count(load.waiting_requests)
            ),
        ),
        line(
            "tokens",
            format!(
                "{} sampled/s, {} prompt/s computed",
                number(load.tokens_per_second),
                number(load.prompt_tokens_per_second)
            ),
        ),
        line("episodes", format!("{}/s", number(load.episodes_per_second))),
        line("first token", distribution(load.time_to_first_token.as_ref())),
        line("per token", distribution(load.time_per_token.as_ref())),
        Line::default(),
        Line::default(),
        line(
            "memory",
            if load.memory_bytes == 0 {
                "unknown".into()
            } else {
                bytes(load.memory_bytes)
            },
        ),
    ]
}

fn distribution(times: Option<&Distribution>) -> String {
    times.map_or("no request yet".into(), |times| {
        let (p10, p50, p90) = (latency(times.p10), latency(times.p50), latency(times.p90));
        format!("{p50} median, {p10} p10, {p90} p90 (last {})", count(times.count))
    })
}

fn gauge(frame: &mut Frame, area: Rect, name: &str, share: f64, theme: Theme) {
    let gauge = LineGauge::default()
        .label(format!(" {name:<12} {:>4}", percent(share)))
        .ratio(share.clamp(0.0, 1.0))
        .filled_symbol("█")
        .unfilled_symbol("░")
        .filled_style(theme.colored(Color::Green))
        .unfilled_style(theme.faint());
    frame.render_widget(gauge, area);
}

fn draw_time(frame: &mut Frame, area: Rect, state: &State, status: &Status, theme: Theme) {
    let phases = &status.engine.phases;
    let block = theme.block(format!("time, last {}", duration(phase_band::span(phases, state.now))));
    let inner = block.inner(area);
    let mut lines = vec![
        phase_band::band(phases, state.now, inner.width, theme),
        Line::raw(format!(
            " {}",
            phase_band::shares(phase_band::recent(phases), state.now, inner.width.into())
        )),
    ];
    let restarts = match status.engine.restarts {
        0 => String::new(),
        restarts => format!("  {} after crashes", counted(restarts, "restart")),
    };
    lines.push(Line::raw(format!(" last update {}{restarts}", update_parts(status))));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Returns the durations of the last update and its parts.
fn update_parts(status: &Status) -> String {
    let seconds = |name: &str| status.latest_metrics.get(name).map(|seconds| latency(*seconds));
    let Some(update) = seconds("seconds/update") else {
        return "-".into();
    };
    let parts = ["forward", "backward", "optimizer", "scoring"];
    let parts = parts
        .iter()
        .filter_map(|part| Some(format!("{part} {}", seconds(&format!("seconds/update_{part}"))?)));
    let parts: Vec<_> = parts.collect();
    match parts.is_empty() {
        true => update,
        false => format!("{update} ({})", parts.join(", ")),
    }
}

fn facts(frame: &mut Frame, area: Rect, status: &Status, theme: Theme) {
    let line = |name: &str, value: String| Line::raw(format!(" {name:<12} {value}"));
    let mut lines = vec![line("version", status.server.version.clone())];
    if let Some(experiment) = &status.experiment {
        lines.push(line("model", experiment.model.clone()));
        lines.push(line("device", experiment.device.clone()));
        lines.push(line(
            "parameters",
            format!(
                "{}, {} trained",
                magnitude(experiment.parameters),
                magnitude(experiment.trainable_parameters)
            ),
        ));
        lines.push(line("directory", experiment.directory.clone()));
    }
    let endpoints = status.sampling.iter().flat_map(|load| &load.endpoints);
    lines.extend(endpoints.map(|endpoint| line("endpoint", one_line(&endpoint_state(endpoint)))));
    frame.render_widget(Paragraph::new(lines).block(theme.block("server")), area);
}

/// Returns where an endpoint is and what it does, or why it cannot be used.
fn endpoint_state(endpoint: &EndpointLoad) -> String {
    let (url, running) = (&endpoint.url, count(endpoint.running_requests));
    match (&endpoint.problem, endpoint.weight_version) {
        (Some(problem), _) => format!("{url} {problem}"),
        (None, Some(version)) => format!("{url} {running} running, weights {version}"),
        (None, None) => format!("{url} {running} running"),
    }
}

fn clients(frame: &mut Frame, area: Rect, state: &State, status: &Status, theme: Theme) {
    let rows = status.clients.iter().map(|client| {
        let agreed = if client.agreed { "agreed to the update" } else { "" };
        Row::new([
            short(&client.client_uuid),
            count(client.running),
            count(client.finished),
            format!("{} ago", duration(state.now - client.last_activity)),
            agreed.to_owned(),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(13),
        Constraint::Fill(1),
    ];
    let header = Row::new(["client", "running", "finished", "last request", ""]).style(theme.faint());
    let title = counted(status.clients.len() as u64, "active client");
    frame.render_widget(Table::new(rows, widths).header(header).block(theme.block(title)), area);
}
