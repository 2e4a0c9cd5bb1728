//! The keys, over the open tab.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Clear, Paragraph};

use crate::overwatch::theme::Theme;

const KEYS: [(&str, &str); 17] = [
    ("1 to 7, tab", "open a tab; the mouse does, too"),
    (
        "↑ ↓ j k, wheel",
        "move or scroll; page keys by ten, g and G to the ends",
    ),
    ("enter", "read the episode, show the task's episodes, enlarge the chart"),
    ("esc", "back"),
    ("w  b", "read the worst or best episode of the batch"),
    ("l", "read the latest LLM call, live"),
    ("t", "show tokens instead of text (Transcript)"),
    ("f", "running or finished episodes"),
    ("s", "change the order"),
    ("/", "filter; enter keeps it, esc clears it"),
    ("p", "pause and resume the screen; training goes on"),
    ("q", "quit"),
    ("", ""),
    (
        "learning",
        "the mean reward of the last 10 steps against the 10 before;",
    ),
    ("", "rising or falling where the difference is more than chance"),
    (
        "no signal",
        "all rewards of a task are equal: nothing is learnt from it",
    ),
    (
        "idle",
        "time without an LLM call; at the limit the episode is discarded",
    ),
];

/// Draws the help in the middle of an area.
pub(super) fn draw(frame: &mut Frame, area: Rect, theme: Theme) {
    let (width, height) = (area.width.min(78), area.height.min(KEYS.len() as u16 + 2));
    let place = Rect::new(
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
        width,
        height,
    );
    let lines: Vec<_> = KEYS
        .iter()
        .map(|(key, what)| Line::raw(format!(" {key:<15} {what}")))
        .collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(theme.block("keys and words")), place);
}
