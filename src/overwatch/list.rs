//! Lists with a cursor, of which only the visible rows are made, and the places that can be clicked.

use std::ops::Range;

use ratatui::Frame;
use ratatui::layout::{Constraint, Position, Rect};
use ratatui::widgets::{Block, Row, Table};

use super::state::{Action, List};
use super::theme::Theme;

/// What lies where on the screen.
#[derive(Debug, Default)]
pub struct Hits {
    places: Vec<(Rect, Action)>,
    /// Maximum scroll position of the transcript or the log that was drawn.
    pub max_scroll: Option<usize>,
}

impl Hits {
    /// Adds a place that does something when it is clicked.
    pub fn add(&mut self, area: Rect, action: Action) {
        self.places.push((area, action));
    }

    /// Returns what a click does; of overlapping places the last one counts.
    pub fn at(&self, position: Position) -> Option<Action> {
        let place = self.places.iter().rfind(|(area, _)| area.contains(position));
        place.map(|(_, action)| action.clone())
    }
}

/// A list to be drawn.
pub struct ListPanel<'a, F> {
    /// Frame with title.
    pub block: Block<'a>,
    /// Column heads.
    pub header: Row<'a>,
    /// Column widths.
    pub widths: Vec<Constraint>,
    /// Number of rows.
    pub len: usize,
    /// Selected row.
    pub cursor: usize,
    /// Whether the cursor is shown.
    pub focused: bool,
    /// List that a click selects in.
    pub list: List,
    /// Makes a row.
    pub row: F,
}

impl<'a, F: Fn(usize) -> Row<'a>> ListPanel<'a, F> {
    /// Draws the rows around the cursor.
    pub fn draw(self, frame: &mut Frame, area: Rect, theme: Theme, hits: &mut Hits) {
        let inner = self.block.inner(area);
        let clicks = (self.list, self.focused.then_some(self.cursor));
        let shown = window(self.len, self.cursor, inner.height.saturating_sub(1).into());
        let rows = shown.clone().map(|index| match self.focused && index == self.cursor {
            true => (self.row)(index).style(theme.selected()),
            false => (self.row)(index),
        });
        let table = Table::new(rows, self.widths)
            .header(self.header.style(theme.faint()))
            .block(self.block);
        frame.render_widget(table, area);
        for (line, index) in shown.enumerate() {
            let row = Rect::new(inner.x, inner.y + 1 + line as u16, inner.width, 1);
            hits.add(row, click(clicks, index));
        }
    }
}

/// A click on the selected row opens it, one on another row selects that.
fn click((list, selected): (List, Option<usize>), index: usize) -> Action {
    match selected == Some(index) {
        true => Action::Enter,
        false => Action::Select(list, index),
    }
}

/// Returns the visible rows: the cursor is in the middle, unless the list ends.
pub fn window(len: usize, cursor: usize, height: usize) -> Range<usize> {
    let start = cursor.saturating_sub(height / 2).min(len.saturating_sub(height));
    start..(start + height).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_is_visible() {
        for (len, cursor, height, want) in [
            (0, 0, 5, 0..0),
            (3, 2, 5, 0..3),
            (10, 0, 4, 0..4),
            (10, 5, 4, 3..7),
            (10, 9, 4, 6..10),
            (10, 3, 0, 3..3),
        ] {
            assert_eq!(window(len, cursor, height), want, "{len} {cursor} {height}");
        }
    }
}
