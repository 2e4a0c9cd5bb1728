//! Log: what the server and the clients reported, newest last.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::overwatch::format::{counted, duration};
use crate::overwatch::list::Hits;
use crate::overwatch::state::State;
use crate::overwatch::state::rows::matches;
use crate::overwatch::theme::Theme;
use crate::protocol::swarm::VerboseLog;

/// Draws the log.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let filter = &state.view.log_filter;
    let shown: Vec<_> = state
        .known
        .log
        .iter()
        .filter(|line| matches(filter, &[&line.tag, &line.message]))
        .collect();
    let title = match state.view.log_scroll {
        0 => format!("log, {}", counted(shown.len() as u64, "line")),
        back => format!(
            "log, {} before the end of {}",
            back,
            counted(shown.len() as u64, "line")
        ),
    };
    let block = theme.block(title);
    let height = usize::from(block.inner(area).height);
    hits.max_scroll = Some(shown.len().saturating_sub(height));
    let end = shown
        .len()
        .saturating_sub(state.view.log_scroll.min(shown.len().saturating_sub(height)));
    let lines: Vec<_> = shown[end.saturating_sub(height)..end]
        .iter()
        .map(|line| row(line, state.now, theme))
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Returns a line with its age.
pub(super) fn row(line: &VerboseLog, now: f64, theme: Theme) -> Line<'static> {
    let tag = match line.tag.as_str() {
        "" => String::new(),
        tag => format!("{tag} "),
    };
    Line::from(vec![
        Span::styled(format!("{:>7} ", duration(now - line.timestamp)), theme.faint()),
        Span::styled(tag, theme.colored(Color::Cyan)),
        Span::raw(line.message.replace('\n', " ")),
    ])
}
