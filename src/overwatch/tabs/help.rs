//! The keys and words, over the open tab.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Clear, Paragraph};

use crate::overwatch::list::Hits;
use crate::overwatch::state::State;
use crate::overwatch::theme::Theme;
use crate::overwatch::wrap::wrap;

/// Columns of the keys.
const KEY: usize = 13;

const KEYS: [(&str, &str); 19] = [
    ("1 to 7, tab", "open a tab; a click does, too"),
    (
        "↑ ↓ j k, wheel",
        "move or scroll; page keys by ten, g and G to the ends",
    ),
    ("enter", "read the episode, list the task's episodes, enlarge the chart"),
    ("esc", "back"),
    ("w  b", "read the worst or best episode of the last step"),
    ("l", "read the latest LLM call, live"),
    ("t", "Transcript: tokens instead of text"),
    ("f", "Episodes: running or finished ones"),
    ("e", "Episodes: finished ones of training, of evaluations, or both"),
    ("s", "change the order"),
    ("/", "filter; enter keeps it, esc clears it"),
    ("p", "pause and resume the screen; training goes on"),
    ("q", "quit"),
    ("step N", "the N-th update of the weights, with its batch"),
    ("learning", "latest clear change of the mean reward, within 200 updates"),
    (
        "no signal",
        "all rewards of a task are equal: nothing is learnt from it",
    ),
    ("claimed", "episodes whose agents have not begun an LLM call yet"),
    ("idle", "time without an LLM call; at the limit it is discarded"),
    ("loss", "around 0 in GRPO, since advantages of a group sum to 0"),
];

/// Draws the help in the middle of an area; where it does not fit, it scrolls.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let width = area.width.min(80);
    let lines = lines(width.saturating_sub(2));
    let height = area.height.min(lines.len() as u16 + 2);
    let place = Rect::new(
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
        width,
        height,
    );
    let rows = usize::from(height.saturating_sub(2));
    let max_scroll = lines.len().saturating_sub(rows);
    hits.max_scroll = Some(max_scroll);
    let start = state.view.help_scroll.min(max_scroll);
    let block = theme.block("keys and words");
    let block = match max_scroll - start {
        0 => block,
        more => block.title_bottom(format!(" ↓ {more} more ")),
    };
    let visible: Vec<_> = lines.into_iter().skip(start).take(rows).map(Line::raw).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(visible).block(block), place);
}

/// Returns the lines of the help, of at most `width` columns.
fn lines(width: u16) -> Vec<String> {
    let text_width = width.saturating_sub(KEY as u16 + 4);
    let of_key = |(key, what): &(&str, &str)| {
        let texts = wrap(what, text_width).into_iter().enumerate();
        let lines = texts.map(|(at, text)| {
            let key = if at == 0 { *key } else { "" };
            format!(" {key:<width$}  {text}", width = KEY + 1)
        });
        lines.collect::<Vec<_>>()
    };
    KEYS.iter().flat_map(of_key).collect()
}
