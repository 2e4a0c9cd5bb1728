//! The states of the engine over time, as a band of one row.

use indexmap::IndexMap;
use ratatui::text::{Line, Span};

use super::format::percent;
use super::theme::{Theme, state_glyph, state_word};
use crate::protocol::status::Phase;
use crate::protocol::swarm::EngineStatus;

/// Number of states that the band reaches back at most.
const SHOWN: usize = 40;

/// Returns the last states that the band shows.
pub fn recent(phases: &[Phase]) -> &[Phase] {
    &phases[phases.len().saturating_sub(SHOWN)..]
}

/// Draws the band up to `now`.
pub fn band(phases: &[Phase], now: f64, width: u16, theme: Theme) -> Line<'static> {
    let states = columns(recent(phases), now, width.into());
    let spans = states.into_iter().map(|state| match state {
        Some(state) => Span::styled(state_glyph(state), theme.state(state)),
        None => Span::raw(" "),
    });
    spans.collect::<Vec<_>>().into()
}

/// Returns the seconds that the band covers.
pub fn span(phases: &[Phase], now: f64) -> f64 {
    recent(phases).first().map_or(0.0, |first| (now - first.since).max(0.0))
}

/// Returns the state that lasts longest in each column.
fn columns(phases: &[Phase], now: f64, width: usize) -> Vec<Option<EngineStatus>> {
    let Some(first) = phases.first() else {
        return vec![None; width];
    };
    let step = (now - first.since).max(1e-3) / width.max(1) as f64;
    let column = |index: usize| {
        let start = first.since + step * index as f64;
        longest(&durations(phases, now, start, start + step))
    };
    (0..width).map(column).collect()
}

/// Returns the share of time of each state in the phases, the longest first, in at most `width` columns:
/// `█ rolling 71%  ▒ updating 22%`.
pub fn shares(phases: &[Phase], now: f64, width: usize) -> String {
    let Some(first) = phases.first() else {
        return String::new();
    };
    let mut durations: Vec<_> = durations(phases, now, first.since, now).into_iter().collect();
    let all: f64 = durations.iter().map(|(_, seconds)| seconds).sum();
    durations.sort_by(|a, b| b.1.total_cmp(&a.1));
    let told = durations
        .iter()
        .filter(|(_, seconds)| *seconds >= 0.005 * all && all > 0.0);
    let told = told.map(|(state, seconds)| {
        format!(
            "{} {} {}",
            state_glyph(*state),
            state_word(*state),
            percent(seconds / all)
        )
    });
    let mut told: Vec<_> = told.collect();
    while told.join("  ").chars().count() > width {
        told.pop();
    }
    told.join("  ")
}

fn longest(durations: &IndexMap<EngineStatus, f64>) -> Option<EngineStatus> {
    durations
        .iter()
        .max_by(|a, b| a.1.total_cmp(b.1))
        .map(|(state, _)| *state)
}

/// Returns the seconds of each state between two times.
fn durations(phases: &[Phase], now: f64, start: f64, end: f64) -> IndexMap<EngineStatus, f64> {
    let ends = phases.iter().skip(1).map(|next| next.since).chain([now]);
    let mut durations = IndexMap::new();
    for (phase, until) in phases.iter().zip(ends) {
        let seconds = until.min(end) - phase.since.max(start);
        if seconds > 0.0 {
            *durations.entry(phase.status).or_default() += seconds;
        }
    }
    durations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases() -> Vec<Phase> {
        use EngineStatus::{Booting, Rolling, WeightSyncing};
        let phase = |status, since| Phase {
            status,
            since,
            global_step: 1,
        };
        vec![phase(Booting, 0.0), phase(Rolling, 2.0), phase(WeightSyncing, 8.0)]
    }

    fn text(width: u16, now: f64) -> String {
        band(&phases(), now, width, Theme { color: false }).to_string()
    }

    #[test]
    fn a_column_shows_the_state_that_lasts_longest_in_it() {
        assert_eq!(text(10, 10.0), "░░██████▒▒");
        assert_eq!(text(5, 10.0), "░███▒");
        assert_eq!(text(1, 10.0), "█");
        assert_eq!(text(0, 10.0), "");
        assert_eq!(band(&[], 10.0, 3, Theme { color: false }).to_string(), "   ");
    }

    #[test]
    fn shares_of_time() {
        assert_eq!(
            shares(&phases(), 10.0, 80),
            "█ rolling 60%  ░ booting 20%  ▒ updating 20%"
        );
        assert_eq!(shares(&phases(), 10.0, 30), "█ rolling 60%  ░ booting 20%");
        assert_eq!(shares(&phases(), 10.0, 0), "");
        assert_eq!(shares(&[], 10.0, 80), "");
        assert_eq!(span(&phases(), 10.0), 10.0);
    }
}
