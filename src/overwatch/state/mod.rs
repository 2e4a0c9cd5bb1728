//! State of the dashboard: what is known, what the user looks at, and how keys and updates change it. Pure.

mod act;
mod known;
pub mod rows;
pub mod summary;
mod view;

pub use act::{Action, Effect};
pub use known::Known;
pub use view::{List, Tab, View};

use super::update::{PAGE, Query, Subject, Update, Wanted};
use crate::protocol::status::Status;

/// Maximum number of updates that wait during a pause; the oldest are dropped.
const MAX_HELD: usize = 10_000;

/// Everything that the tabs show.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// URL of the server without its token, or the directory of a replay.
    pub source: String,
    /// What is known.
    pub known: Known,
    /// What the user looks at.
    pub view: View,
    /// Current time by the server's clock, in Unix seconds.
    pub now: f64,
    /// The server's clock minus ours.
    clock_offset: f64,
    /// Updates that came during a pause.
    held: Vec<Update>,
}

impl State {
    /// Creates an empty state at `now` (Unix seconds).
    pub fn new(source: String, now: f64) -> Self {
        Self {
            source,
            now,
            ..Self::default()
        }
    }

    /// Advances the clock to `now` by this machine; it stands still during a pause.
    pub fn tick(&mut self, now: f64) {
        if !self.view.paused {
            self.now = now + self.clock_offset;
        }
    }

    /// Takes an update that came at `now` by this machine; during a pause it waits.
    pub fn take(&mut self, update: Update, now: f64) {
        if let Update::Status(observed) = &update {
            self.clock_offset = observed.status.server.now - now;
        }
        let waits = self.view.paused && !matches!(update, Update::Episodes(..) | Update::Transcript(..));
        match waits {
            true => self.hold(update),
            false => self.apply(update, now),
        }
    }

    /// Returns the last state of the server.
    pub fn status(&self) -> Option<&Status> {
        self.known.status.as_ref()
    }

    /// Returns what is to be read beside the state for what the user looks at.
    pub fn wanted(&self) -> Wanted {
        let (view, list) = (&self.view, self.view.list(List::Finished));
        // A page around the cursor, so that it moves within known rows; a filter searches the first page.
        let offset = match list.filter.as_str() {
            "" => list.cursor.index.saturating_sub(PAGE / 2) / (PAGE / 2) * (PAGE / 2),
            _ => 0,
        };
        Wanted {
            episodes: (view.tab == Tab::Episodes).then(|| Query {
                task: view.task.clone(),
                kind: view.kind,
                sort: view.finished_order(),
                offset,
            }),
            transcript: (view.tab == Tab::Transcript).then(|| (view.subject.clone(), view.tokens)),
        }
    }

    /// Returns the index of the first finished episode of the known page.
    pub fn page_offset(&self) -> usize {
        self.known.episodes.as_ref().map_or(0, |(query, _)| query.offset)
    }

    /// Returns the number of rows of the finished episodes, also of those that are not read yet.
    pub fn finished_total(&self) -> usize {
        match (&self.known.episodes, self.view.list(List::Finished).filter.as_str()) {
            (Some((_, Ok(page))), "") => page.total as usize,
            (Some(_), _) => rows::finished(&self.known, &self.view).len(),
            (None, _) => 0,
        }
    }

    /// Returns the episode of the selected row of the Episodes tab.
    pub fn selected_episode(&self) -> Option<String> {
        let index = |list| self.view.list(list).cursor.index;
        match self.view.finished {
            false => rows::running(&self.known, &self.view)
                .get(index(List::Running))
                .map(|row| row.episode_uuid.clone()),
            true => {
                let place = index(List::Finished).checked_sub(self.page_offset())?;
                rows::finished(&self.known, &self.view)
                    .get(place)
                    .map(|row| row.episode_uuid.clone())
            }
        }
    }

    /// Keeps the scroll position within what was drawn.
    pub fn clamp_scroll(&mut self, max: Option<usize>) {
        let Some(max) = max else { return };
        match self.view.tab {
            _ if self.view.help => self.view.help_scroll = self.view.help_scroll.min(max),
            Tab::Transcript => self.view.transcript_scroll = self.view.transcript_scroll.min(max),
            Tab::Log => self.view.log_scroll = self.view.log_scroll.min(max),
            _ => {}
        }
    }

    fn apply(&mut self, update: Update, now: f64) {
        // The worst and the best are looked for once.
        if let Update::Transcript(asked @ Subject::Extreme(..), Ok(detail)) = &update
            && self.view.subject == *asked
        {
            self.view.subject = Subject::Episode(detail.summary.episode_uuid.clone());
        }
        self.known.apply(update, now + self.clock_offset);
        self.tick(now);
        self.follow_rows();
    }

    /// Keeps the cursors on their rows.
    fn follow_rows(&mut self) {
        for list in [List::Running, List::Tasks, List::Metrics] {
            let ids = self.ids(list);
            let ids: Vec<_> = ids.iter().map(String::as_str).collect();
            self.view.list_mut(list).cursor.follow(&ids);
        }
    }

    /// Returns the ids of a list's rows; of finished episodes only the page is known, so they have none.
    fn ids(&self, list: List) -> Vec<String> {
        match list {
            List::Running => rows::running(&self.known, &self.view)
                .iter()
                .map(|row| row.episode_uuid.clone())
                .collect(),
            List::Tasks => rows::tasks(&self.known, &self.view)
                .iter()
                .map(|row| row.task_id.clone())
                .collect(),
            List::Metrics => rows::metrics(&self.known, &self.view),
            List::Finished => vec![],
        }
    }

    fn hold(&mut self, update: Update) {
        // Only the newest state counts.
        if matches!(update, Update::Status(_)) {
            self.held.retain(|held| !matches!(held, Update::Status(_)));
        }
        if self.held.len() == MAX_HELD {
            self.held.remove(0);
        }
        self.held.push(update);
    }

    fn resume(&mut self, now: f64) {
        for update in std::mem::take(&mut self.held) {
            self.apply(update, now);
        }
    }
}

#[cfg(test)]
mod tests;
