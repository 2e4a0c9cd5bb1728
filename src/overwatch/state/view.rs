//! What the user looks at: tab, lists with cursor, filter and order, and what lies over them.

use crate::overwatch::update::{Kind, Sort, Subject};

/// A tab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    /// Everything at a glance.
    #[default]
    Overview,
    /// Running and finished episodes.
    Episodes,
    /// Groups of the batch.
    Tasks,
    /// Curves of the metrics.
    Training,
    /// Load and speed of sampling.
    Engine,
    /// What was said.
    Transcript,
    /// Log.
    Log,
}

impl Tab {
    /// All of them, in the order of the keys `1` to `7`.
    pub const ALL: [Self; 7] = [
        Self::Overview,
        Self::Episodes,
        Self::Tasks,
        Self::Training,
        Self::Engine,
        Self::Transcript,
        Self::Log,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Episodes => "Episodes",
            Self::Tasks => "Tasks",
            Self::Training => "Training",
            Self::Engine => "Engine",
            Self::Transcript => "Transcript",
            Self::Log => "Log",
        }
    }

    /// Returns the tab `steps` further, around the ends.
    pub fn turn(self, steps: isize) -> Self {
        let count = Self::ALL.len() as isize;
        Self::ALL[(self as isize + steps).rem_euclid(count) as usize]
    }
}

/// A list with a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Running episodes.
    Running,
    /// Finished episodes.
    Finished,
    /// Groups.
    Tasks,
    /// Metrics.
    Metrics,
}

/// Position in a list. It follows the row's id when rows come and go.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// Index of the selected row.
    pub index: usize,
    id: Option<String>,
}

impl Cursor {
    /// Selects row `index` of `ids`, or the last one.
    pub fn select(&mut self, index: usize, ids: &[&str]) {
        self.index = index.min(ids.len().saturating_sub(1));
        self.id = ids.get(self.index).map(|id| (*id).to_owned());
    }

    /// Finds the selected row in changed rows; if it is gone, the row at its place is selected.
    pub fn follow(&mut self, ids: &[&str]) {
        let place = self
            .id
            .as_deref()
            .and_then(|id| ids.iter().position(|other| *other == id));
        self.select(place.unwrap_or(self.index), ids);
    }
}

/// Cursor, filter and order of a list.
#[derive(Clone, Debug, Default)]
pub struct ListView {
    /// Cursor.
    pub cursor: Cursor,
    /// Text that a shown row contains; empty for all.
    pub filter: String,
    /// Number of times that the order was changed.
    pub order: usize,
}

/// What the user looks at.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Open tab.
    pub tab: Tab,
    /// Tab to which `esc` returns after a drill-down.
    pub back: Option<Tab>,
    /// Whether the Episodes tab has its cursor in the finished ones.
    pub finished: bool,
    lists: [ListView; 4],
    /// Task of which finished episodes are shown; of all if there is none.
    pub task: Option<String>,
    /// Which finished episodes are listed.
    pub kind: Kind,
    /// Filter of the log.
    pub log_filter: String,
    /// Whether a filter is being typed.
    pub typing: bool,
    /// Whether the help is shown.
    pub help: bool,
    /// Lines from the start of the help.
    pub help_scroll: usize,
    /// Whether the selected metric fills the Training tab.
    pub zoomed: bool,
    /// Whether updates wait.
    pub paused: bool,
    /// What the Transcript tab shows.
    pub subject: Subject,
    /// As what it was found, such as `worst of step 7`.
    pub found: Option<String>,
    /// Whether it shows tokens instead of text.
    pub tokens: bool,
    /// Lines from the start of the transcript.
    pub transcript_scroll: usize,
    /// Lines from the end of the log.
    pub log_scroll: usize,
}

impl View {
    /// Returns a list's view.
    pub fn list(&self, list: List) -> &ListView {
        &self.lists[list as usize]
    }

    /// As [`View::list`], to be changed.
    pub fn list_mut(&mut self, list: List) -> &mut ListView {
        &mut self.lists[list as usize]
    }

    /// Returns the list that keys move in, if the tab has one.
    pub fn active_list(&self) -> Option<List> {
        match self.tab {
            Tab::Episodes if !self.finished => Some(List::Running),
            Tab::Episodes => Some(List::Finished),
            Tab::Tasks => Some(List::Tasks),
            Tab::Training => Some(List::Metrics),
            Tab::Overview | Tab::Engine | Tab::Transcript | Tab::Log => None,
        }
    }

    /// Returns the filter of the open tab, if it has one.
    pub fn filter_mut(&mut self) -> Option<&mut String> {
        match (self.tab, self.active_list()) {
            (Tab::Log, _) => Some(&mut self.log_filter),
            (_, Some(list)) => Some(&mut self.list_mut(list).filter),
            _ => None,
        }
    }

    /// Returns the filter of the open tab; empty if it has none.
    pub fn filter(&self) -> &str {
        match (self.tab, self.active_list()) {
            (Tab::Log, _) => &self.log_filter,
            (_, Some(list)) => &self.list(list).filter,
            _ => "",
        }
    }

    /// Returns the order of finished episodes.
    pub fn finished_order(&self) -> Sort {
        Sort::ALL[self.list(List::Finished).order % Sort::ALL.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_follows_its_row() {
        let mut cursor = Cursor::default();
        cursor.select(1, &["a", "b", "c"]);
        cursor.follow(&["x", "a", "b", "c"]);
        assert_eq!(cursor.index, 2);
        cursor.follow(&["x", "a", "c"]);
        assert_eq!(cursor.index, 2, "the row at its place");
        cursor.follow(&["x", "c"]);
        assert_eq!(cursor.index, 1, "and that one is followed");
        cursor.follow(&[]);
        assert_eq!(cursor.index, 0);
        cursor.follow(&["y"]);
        assert_eq!(cursor.index, 0);
    }

    #[test]
    fn tabs_turn_around() {
        assert_eq!(Tab::Log.turn(1), Tab::Overview);
        assert_eq!(Tab::Overview.turn(-1), Tab::Log);
        for (place, tab) in Tab::ALL.into_iter().enumerate() {
            assert_eq!(tab as usize, place);
        }
    }
}
