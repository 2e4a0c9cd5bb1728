//! Panels of the server's state, the progress of the batch, and the reward.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::{LineGauge, Paragraph, Sparkline};

use super::{Theme, duration};
use crate::overwatch::state::{Progress, State, state_name};

/// Heights of a sparkline's tallest and lowest bar; the lowest is one eighth.
const TALLEST: f64 = 800.0;
const LOWEST: f64 = 100.0;

/// Draws server and state, the model, and the engine's message or the last update's metrics.
pub(super) fn header(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let [first, model, detail] = Layout::vertical([Constraint::Length(1); 3]).areas(area);
    let mut right = vec![];
    if let Some(status) = state.status() {
        right.push(Span::styled(state_name(status), theme.state(status)));
    }
    if let Some(snapshot) = &state.snapshot {
        right.push(Span::raw(format!("  step {}", snapshot.status.global_step)));
    }
    if let Some(seconds) = state.booting_for() {
        right.push(Span::raw(format!("  for {}", duration(seconds))));
    }
    let left = Line::from(vec![
        Span::styled("ajet-swarm ", theme.strong(Color::Cyan)),
        Span::raw(state.server.as_str()),
    ]);
    frame.render_widget(left, first);
    frame.render_widget(Line::from(right).alignment(Alignment::Right), first);

    let path = state.pool().and_then(|pool| pool.training_model_path.as_deref());
    frame.render_widget(Line::from(format!("model {}", path.unwrap_or("-"))), model);
    frame.render_widget(third_line(state, theme), detail);
}

fn third_line(state: &State, theme: Theme) -> Line<'_> {
    if let Some((reason, since)) = &state.failure {
        let waited = duration(state.now - since);
        return Line::styled(format!("{reason}, retrying ({waited})"), theme.strong(Color::Red));
    }
    let Some(snapshot) = &state.snapshot else {
        return Line::styled("connecting", theme.faint());
    };
    match &snapshot.status.engine_status_detail {
        Some(detail) => Line::raw(detail.replace('\n', " ")),
        None => Line::styled(last_update(state), theme.faint()),
    }
}

/// Formats the metrics of the last update, if the server reports them.
fn last_update(state: &State) -> String {
    let Some(pool) = state.pool() else { return String::new() };
    let metric = |name: &str| pool.latest_metrics.get(name).copied();
    let mut parts = vec![];
    if let Some(step) = metric("global_step") {
        parts.push(format!("update {step:.0}"));
    }
    let shown = [
        ("reward", "reward_mean"),
        ("kl", "kl"),
        ("grad norm", "grad_norm"),
        ("entropy", "entropy"),
    ];
    for (label, name) in shown {
        parts.extend(metric(name).map(|value| format!("{label} {value:.3}")));
    }
    parts.extend(metric("success_rate").map(|share| format!("success {:.0}%", share * 100.0)));
    parts.extend(metric("tokens_per_second/sampling").map(|rate| format!("{rate:.0} tokens/s")));
    parts.join("  ")
}

/// Draws a bar for each stop rule, with the active one marked.
pub(super) fn pool(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let repeat = state.pool().map_or(0, |pool| pool.task_expected_num_repeat);
    let block = theme.block(format!("batch, {repeat} episodes per task"));
    let lines = Layout::vertical([Constraint::Length(1); 4]).split(block.inner(area));
    frame.render_widget(block, area);
    let progress = state.progress();
    let counts: Vec<_> = progress
        .iter()
        .map(|progress| format!("{}/{}", progress.done, progress.target))
        .collect();
    let width = counts.iter().map(String::len).max().unwrap_or(0);
    for ((progress, count), line) in progress.iter().zip(counts).zip(lines.iter()) {
        frame.render_widget(bar(progress, &format!("{count:<width$}"), theme), *line);
    }
}

fn bar<'a>(progress: &Progress, count: &str, theme: Theme) -> LineGauge<'a> {
    let mark = if progress.active { '▸' } else { ' ' };
    let (label, filled) = match progress.active {
        true => (theme.strong(Color::Green), theme.colored(Color::Green)),
        false => (theme.faint(), theme.faint()),
    };
    let share = progress.done as f64 / progress.target.max(1) as f64;
    LineGauge::default()
        .label(Line::styled(format!("{mark} {:<15}  {count}", progress.what), label))
        .ratio(share.clamp(0.0, 1.0))
        .filled_symbol("█")
        .unfilled_symbol("░")
        .filled_style(filled)
        .unfilled_style(theme.faint())
}

/// Draws the batch's reward so far, and a bar for every step.
pub(super) fn reward(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let block = theme.block("reward by step");
    let [text, bars] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(block.inner(area));
    frame.render_widget(block, area);
    let now = match state.batch_reward() {
        Some((mean, 1)) => format!("{mean:.3} of 1 episode so far"),
        Some((mean, episodes)) => format!("{mean:.3} of {episodes} episodes so far"),
        None => "no finished episode in this batch".into(),
    };
    frame.render_widget(Paragraph::new(now), text);
    if bars.width == 0 {
        return;
    }
    let means: Vec<f64> = state.rewards.values().copied().collect();
    let shown = &means[means.len().saturating_sub(bars.width.into())..];
    let widen = (usize::from(bars.width) / shown.len().max(1)).clamp(1, 3);
    let heights = heights(shown);
    let heights = heights.iter().flat_map(|height| std::iter::repeat_n(*height, widen));
    let sparkline = Sparkline::default()
        .data(heights)
        .max(TALLEST as u64)
        .style(theme.colored(Color::Green));
    frame.render_widget(sparkline, bars);
}

/// Scales values to bar heights; the minimum stays visible.
fn heights(values: &[f64]) -> Vec<u64> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let span = if largest > least { largest - least } else { 1.0 };
    let height = |value: &f64| (LOWEST + (value - least) / span * (TALLEST - LOWEST)) as u64;
    values.iter().map(height).collect()
}

/// Draws the keys.
pub(super) fn footer(frame: &mut Frame, area: Rect, theme: Theme) {
    frame.render_widget(Line::styled(" q quit   ↑ ↓ scroll", theme.faint()), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_go_from_least_to_largest_and_none_is_empty() {
        assert_eq!(heights(&[0.0, 0.5, 1.0]), [100, 450, 800]);
        assert_eq!(heights(&[-2.0, -1.0]), [100, 800]);
        assert_eq!(heights(&[0.3, 0.3]), [100, 100]);
        assert!(heights(&[]).is_empty());
    }
}
