//! Keys and updates, from state to state.

use super::*;
use crate::overwatch::fixtures::{NOW, detail, full, observed, page, rolling, watching};
use crate::overwatch::update::{Extreme, Kind, Sort};
use crate::protocol::status::EpisodeDetail;

fn after(mut state: State, actions: &[Action]) -> State {
    for action in actions {
        assert_eq!(state.act(action.clone(), NOW), Effect::Continue);
    }
    state
}

fn read(state: &State) -> Subject {
    assert_eq!(state.view.tab, Tab::Transcript);
    state.view.subject.clone()
}

#[test]
fn the_worst_and_the_best_episode_are_one_key_away() {
    let id = |number: usize| Subject::Episode(format!("{number:08x}-aaaa"));
    let [worst, best] = [Extreme::Worst, Extreme::Best].map(Action::Extreme);
    // Of the last update, and not of the batch that is being sampled, in which it may be another at any time.
    let mut state = after(full(), std::slice::from_ref(&worst));
    let subject = Subject::Extreme(Extreme::Worst, 36);
    assert_eq!(state.wanted().transcript, Some((subject.clone(), false)));
    let found: Box<EpisodeDetail> = Box::new(detail());
    state.take(Update::Transcript(subject, Ok(found)), NOW);
    assert_eq!(read(&state), Subject::Episode(detail().summary.episode_uuid));
    assert_eq!(state.view.found.as_deref(), Some("worst of step 36"));
    let state = after(state, &[Action::Latest]);
    assert_eq!(state.view.found, None);
    assert_eq!(after(state, &[Action::Back]).view.tab, Tab::Overview);
    // Before the first update, of the batch.
    let mut status = rolling();
    status.latest_metrics.clear();
    let state = after(watching(status.clone()), &[worst]);
    assert_eq!(read(&state), id(901));
    assert_eq!(state.view.found.as_deref(), Some("worst of the batch so far"));
    assert_eq!(
        read(&after(watching(status.clone()), std::slice::from_ref(&best))),
        id(700)
    );
    status.groups.clear();
    assert_eq!(
        read(&after(watching(status), &[best])),
        Subject::Extreme(Extreme::Best, 1)
    );
}

#[test]
fn finished_episodes_are_those_of_training_unless_others_are_asked_for() {
    let mut state = after(full(), &[Action::Open(Tab::Episodes), Action::Switch, Action::Move(3)]);
    for kind in [Kind::Train, Kind::Eval, Kind::All, Kind::Train] {
        assert_eq!(state.wanted().episodes.unwrap().kind, kind);
        state = after(state, &[Action::Kind]);
        assert_eq!(state.view.list(List::Finished).cursor.index, 0);
    }
    assert_eq!(
        after(full(), &[Action::Kind]).view.kind,
        Kind::Train,
        "another tab has no such list"
    );
}

#[test]
fn drill_down_and_back() {
    let state = after(full(), &[Action::Open(Tab::Episodes), Action::Move(1), Action::Enter]);
    assert_eq!(read(&state), Subject::Episode("00000002-aaaa".into()));
    let state = after(state, &[Action::Back, Action::Switch, Action::Move(5), Action::Enter]);
    assert_eq!(read(&state), Subject::Episode(format!("{:08x}-aaaa", 705)));
    let state = after(full(), &[Action::Open(Tab::Tasks), Action::Move(1), Action::Enter]);
    let query = state.wanted().episodes.unwrap();
    assert_eq!(
        (query.task.as_deref(), state.view.tab),
        (Some("reverse_text_8"), Tab::Episodes)
    );
    let state = after(state, &[Action::Back]);
    assert_eq!(state.view.tab, Tab::Tasks);
    let state = after(state, &[Action::Open(Tab::Training), Action::Enter]);
    assert!(state.view.zoomed && !after(state, &[Action::Back]).view.zoomed);
}

#[test]
fn filters_are_typed_kept_and_cleared() {
    let typed = [
        Action::Open(Tab::Tasks),
        Action::Filter,
        Action::Type('_'),
        Action::Type('9'),
        Action::Type('9'),
    ];
    let state = after(after(full(), &typed), &[Action::Erase, Action::Enter]);
    assert!(!state.view.typing);
    let tasks: Vec<_> = rows::tasks(&state.known, &state.view)
        .iter()
        .map(|group| group.task_id.clone())
        .collect();
    assert_eq!(tasks, ["reverse_text_9"]);
    let state = after(state, &[Action::Back]);
    assert_eq!(rows::tasks(&state.known, &state.view).len(), 4);
    let state = after(state, &[Action::Open(Tab::Engine), Action::Filter]);
    assert!(!state.view.typing, "a tab without lists has no filter");
    let state = after(state, &[Action::Open(Tab::Log), Action::Filter, Action::Type('x')]);
    assert_eq!(state.view.log_filter, "x");
}

#[test]
fn pages_of_finished_episodes_follow_the_cursor() {
    let state = after(full(), &[Action::Open(Tab::Episodes), Action::Switch, Action::Sort]);
    let query = |state: &State| state.wanted().episodes.unwrap();
    assert_eq!((query(&state).offset, query(&state).sort), (0, Sort::Worst));
    for (row, offset) in [(499, 0), (500, 250), (9_999, 9_500), (20_000, 9_500)] {
        let state = after(state.clone(), &[Action::Select(List::Finished, row)]);
        assert_eq!(query(&state).offset, offset, "{row}");
    }
    assert_eq!(
        after(state, &[Action::Last]).view.list(List::Finished).cursor.index,
        9_999
    );
}

#[test]
fn a_pause_holds_updates_and_the_clock() {
    let mut state = after(watching(rolling()), &[Action::Pause]);
    for step in [38, 39] {
        let mut status = rolling();
        status.engine.global_step = step;
        state.take(observed(status), NOW + 1.0);
    }
    state.take(page(), NOW + 1.0);
    state.tick(NOW + 30.0);
    assert_eq!((state.status().unwrap().engine.global_step, state.now), (37, NOW));
    assert!(state.known.episodes.is_some(), "what the user asks for comes anyway");
    state.act(Action::Pause, NOW + 30.0);
    assert_eq!(state.status().unwrap().engine.global_step, 39);
    assert!(state.now > NOW + 28.0);
}

#[test]
fn ages_are_by_the_servers_clock() {
    let mut state = State::new(String::new(), 0.0);
    // This machine's clock is 100 s behind.
    state.take(observed(rolling()), NOW - 100.0);
    state.tick(NOW - 95.0);
    assert_eq!(state.state_age(), Some(47.0));
    assert_eq!(state.seconds_left(), Some(13.0));
}

#[test]
fn the_cursor_stays_on_its_episode() {
    let mut state = after(full(), &[Action::Open(Tab::Episodes), Action::Move(2)]);
    assert_eq!(state.selected_episode().as_deref(), Some("00000003-aaaa"));
    let mut status = rolling();
    status.running.remove(0);
    state.take(observed(status), NOW);
    assert_eq!(state.selected_episode().as_deref(), Some("00000003-aaaa"));
    let state = after(state, &[Action::Move(-100), Action::Move(100)]);
    assert_eq!(state.selected_episode().as_deref(), Some("00000003-aaaa"));
    assert_eq!(State::default().selected_episode(), None);
}
