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
use crate::overwatch::wrap::wrap;
use crate::protocol::swarm::VerboseLog;

/// Columns of the age before a line.
const AGE: usize = 8;
/// Minimum columns of a wrapped text; in a narrower window, lines are cut.
const MIN_TEXT: u16 = 12;

/// Draws the log.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let filter = &state.view.log_filter;
    let shown: Vec<_> = state
        .known
        .log
        .iter()
        .filter(|line| matches(filter, &[&line.tag, &line.message]))
        .collect();
    let count = counted(shown.len() as u64, "line");
    let inner = theme.block("").inner(area);
    let rows: Vec<_> = shown
        .iter()
        .flat_map(|line| rows(line, state.now, inner.width, theme))
        .collect();
    let height = usize::from(inner.height);
    let max_scroll = rows.len().saturating_sub(height);
    hits.max_scroll = Some(max_scroll);
    let back = state.view.log_scroll.min(max_scroll);
    let title = match back {
        0 => format!("log, {count}"),
        back => format!("log, {count}, {} below", counted(back as u64, "row")),
    };
    let end = rows.len() - back;
    let visible = rows[end.saturating_sub(height)..end].to_vec();
    frame.render_widget(Paragraph::new(visible).block(theme.block(title)), area);
}

/// Draws the newest lines that fit.
pub(super) fn newest(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let block = theme.block("log");
    let inner = block.inner(area);
    let height = usize::from(inner.height);
    let mut visible: Vec<Line> = vec![];
    for line in state.known.log.iter().rev() {
        if visible.len() >= height {
            break;
        }
        visible.splice(0..0, rows(line, state.now, inner.width, theme));
    }
    let start = visible.len().saturating_sub(height);
    frame.render_widget(Paragraph::new(visible.split_off(start)).block(block), area);
}

/// Returns a line with its age, wrapped.
fn rows(line: &VerboseLog, now: f64, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let tag = match line.tag.as_str() {
        "" => String::new(),
        tag => format!("{tag} "),
    };
    let text = format!("{tag}{}", line.message.replace('\n', " "));
    let texts = match width.saturating_sub(AGE as u16) {
        narrow if narrow < MIN_TEXT => vec![text],
        width => wrap(&text, width),
    };
    let age = format!("{:>width$} ", duration(now - line.timestamp), width = AGE - 1);
    let row = |(at, text): (usize, String)| {
        // A tag that is wrapped itself is not coloured.
        let tag = if at == 0 && text.starts_with(&tag) {
            tag.len()
        } else {
            0
        };
        Line::from(vec![
            Span::styled(if at == 0 { age.clone() } else { " ".repeat(AGE) }, theme.faint()),
            Span::styled(text[..tag].to_owned(), theme.colored(Color::Cyan)),
            Span::raw(text[tag..].to_owned()),
        ])
    };
    texts.into_iter().enumerate().map(row).collect()
}
