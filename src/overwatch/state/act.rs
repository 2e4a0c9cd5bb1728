//! How keys and clicks change what the user looks at.

use super::State;
use super::rows;
use super::view::{List, Tab};
use crate::overwatch::update::{Extreme, Subject};
use crate::protocol::status::{GroupEpisode, TaskGroup};

/// What a key or a click means.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ends the program.
    Quit,
    /// Opens a tab.
    Open(Tab),
    /// Opens the tab that many further.
    Turn(isize),
    /// Moves the cursor or scrolls by rows.
    Move(isize),
    /// Moves to the first row.
    First,
    /// Moves to the last row.
    Last,
    /// Selects a row of the open tab's list.
    Select(List, usize),
    /// Opens what is selected.
    Enter,
    /// Leaves what was opened last.
    Back,
    /// Begins to type a filter.
    Filter,
    /// Adds a character to the filter.
    Type(char),
    /// Removes the last character of the filter.
    Erase,
    /// Changes the order.
    Sort,
    /// Stops and resumes updates.
    Pause,
    /// Shows the keys.
    Help,
    /// Opens the worst or the best episode of the last update.
    Extreme(Extreme),
    /// Opens the latest LLM call.
    Latest,
    /// Moves between running and finished episodes.
    Switch,
    /// Shows tokens instead of text.
    Tokens,
    /// Lists train episodes, those of evaluations, or both.
    Kind,
}

/// What follows an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The dashboard goes on.
    Continue,
    /// The user quits.
    Quit,
}

impl State {
    /// Carries an action out at `now` by this machine.
    pub fn act(&mut self, action: Action, now: f64) -> Effect {
        match action {
            Action::Quit => return Effect::Quit,
            Action::Open(tab) => self.open(tab),
            Action::Turn(steps) => self.open(self.view.tab.turn(steps)),
            Action::Move(rows) => self.move_by(rows),
            Action::First => self.move_by(isize::MIN / 2),
            Action::Last => self.move_by(isize::MAX / 2),
            Action::Select(list, row) => self.select(list, row),
            Action::Enter => self.enter(),
            Action::Back => self.back(),
            Action::Filter => self.view.typing = self.view.filter_mut().is_some(),
            Action::Type(character) => self.edit_filter(|filter| filter.push(character)),
            Action::Erase => self.edit_filter(|filter| {
                filter.pop();
            }),
            Action::Sort => self.sort(),
            Action::Pause => self.pause(now),
            Action::Help => (self.view.help, self.view.help_scroll) = (!self.view.help, 0),
            Action::Extreme(extreme) => self.read_extreme(extreme),
            Action::Latest => self.read(Subject::Latest),
            Action::Switch => self.view.finished = !self.view.finished,
            Action::Tokens => self.view.tokens = !self.view.tokens,
            Action::Kind => self.change_kind(),
        }
        Effect::Continue
    }

    fn open(&mut self, tab: Tab) {
        self.view.tab = tab;
        self.view.back = None;
        self.view.help = false;
    }

    fn move_by(&mut self, steps: isize) {
        if self.view.help {
            self.view.help_scroll = self.view.help_scroll.saturating_add_signed(steps);
            return;
        }
        match (self.view.tab, self.view.active_list()) {
            (Tab::Log, _) => self.view.log_scroll = self.view.log_scroll.saturating_add_signed(steps.saturating_neg()),
            (Tab::Transcript, _) => {
                self.view.transcript_scroll = self.view.transcript_scroll.saturating_add_signed(steps);
            }
            (_, Some(list)) => self.select(list, self.view.list(list).cursor.index.saturating_add_signed(steps)),
            _ => {}
        }
    }

    fn select(&mut self, list: List, row: usize) {
        if list == List::Finished {
            self.view.finished = true;
            let last = self.finished_total().saturating_sub(1);
            self.view.list_mut(list).cursor.index = row.min(last);
            return;
        }
        if list == List::Running {
            self.view.finished = false;
        }
        let ids = self.ids(list);
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        self.view.list_mut(list).cursor.select(row, &ids);
    }

    fn enter(&mut self) {
        if self.view.typing {
            self.view.typing = false;
            return;
        }
        match self.view.tab {
            Tab::Episodes => {
                if let Some(episode) = self.selected_episode() {
                    self.read(Subject::Episode(episode));
                }
            }
            Tab::Tasks => self.open_task(),
            Tab::Training => self.view.zoomed = !self.view.zoomed,
            Tab::Overview | Tab::Engine | Tab::Transcript | Tab::Log => {}
        }
    }

    /// Shows the finished episodes of the selected group.
    fn open_task(&mut self) {
        let rows = rows::tasks(&self.known, &self.view);
        let Some(group) = rows.get(self.view.list(List::Tasks).cursor.index) else {
            return;
        };
        self.view.task = Some(group.task_id.clone());
        let list = self.view.list_mut(List::Finished);
        list.filter.clear();
        list.cursor.index = 0;
        self.view.finished = true;
        self.view.tab = Tab::Episodes;
        self.view.back = Some(Tab::Tasks);
    }

    fn back(&mut self) {
        let view = &mut self.view;
        if view.help {
            view.help = false;
        } else if view.tab == Tab::Training && view.zoomed {
            view.zoomed = false;
        } else if view.typing || !view.filter().is_empty() {
            view.typing = false;
            self.edit_filter(String::clear);
        } else {
            view.task = None;
            self.return_to_tab();
        }
    }

    fn return_to_tab(&mut self) {
        if let Some(tab) = self.view.back.take() {
            self.view.tab = tab;
        }
    }

    fn edit_filter(&mut self, edit: impl FnOnce(&mut String)) {
        if let Some(filter) = self.view.filter_mut() {
            edit(filter);
        }
        if let Some(list) = self.view.active_list() {
            self.view.list_mut(list).cursor.index = 0;
        }
        self.view.log_scroll = 0;
        self.follow_rows();
    }

    fn sort(&mut self) {
        if let Some(list) = self.view.active_list() {
            let list = self.view.list_mut(list);
            list.order = list.order.wrapping_add(1);
            list.cursor.index = 0;
            self.follow_rows();
        }
    }

    fn change_kind(&mut self) {
        if self.view.tab == Tab::Episodes {
            self.view.finished = true;
            self.view.kind = self.view.kind.next();
            self.view.list_mut(List::Finished).cursor.index = 0;
        }
    }

    fn pause(&mut self, now: f64) {
        self.view.paused = !self.view.paused;
        if !self.view.paused {
            self.resume(now);
        }
    }

    fn read(&mut self, subject: Subject) {
        if self.view.tab != Tab::Transcript {
            self.view.back = Some(self.view.tab);
        }
        self.view.tab = Tab::Transcript;
        self.view.subject = subject;
        self.view.found = None;
        self.view.transcript_scroll = 0;
    }

    /// Reads the worst or the best episode of the last update; before the first one, of the batch.
    fn read_extreme(&mut self, which: Extreme) {
        let Some(step) = self.last_update() else {
            let groups = self.known.status.iter().flat_map(|status| &status.groups);
            let found = extreme(groups, which).map(|(_, episode)| episode.episode_uuid.clone());
            self.read(found.map_or(Subject::Extreme(which, 1), Subject::Episode));
            self.view.found = Some(format!("{} of the batch so far", which.word()));
            return;
        };
        self.read(Subject::Extreme(which, step));
        self.view.found = Some(format!("{} of step {step}", which.word()));
    }
}

/// Returns the finished episode with the lowest or highest reward and its group; the first one of equals.
pub(super) fn extreme<'a>(
    groups: impl Iterator<Item = &'a TaskGroup>,
    which: Extreme,
) -> Option<(&'a TaskGroup, &'a GroupEpisode)> {
    let episodes = groups.flat_map(|group| group.episodes.iter().map(move |episode| (group, episode)));
    episodes.reduce(|found, next| {
        let is_further = match which {
            Extreme::Best => next.1.reward > found.1.reward,
            Extreme::Worst => next.1.reward < found.1.reward,
        };
        if is_further { next } else { found }
    })
}
