//! Every tab at the sizes of terminals, in the states of a server.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::draw;
use crate::overwatch::fixtures::{HOSTILE, NOW, detail, full, history, observed, rolling, watching};
use crate::overwatch::state::{Action, State, Tab};
use crate::overwatch::theme::Theme;
use crate::overwatch::update::{Subject, Update};
use crate::protocol::status::{Distribution, Status};
use crate::protocol::swarm::{EngineStatus, UPDATES_DONE};

fn screen_in(state: &State, (width, height): (u16, u16), color: bool) -> (String, bool) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            draw(frame, state, Theme { color });
        })
        .unwrap();
    let buffer = terminal.backend().buffer();
    let colored = buffer
        .content()
        .iter()
        .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
    let rows = buffer.content().chunks(usize::from(width).max(1));
    let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    (rows.map(|row| row.trim_end().to_owned() + "\n").collect(), colored)
}

fn screen(state: &State, size: (u16, u16)) -> String {
    screen_in(state, size, false).0
}

/// A state for each stage of a server's life, with its name.
fn stages() -> Vec<(&'static str, State)> {
    let engine = |status, detail: Option<&str>, change: fn(&mut Status)| {
        let mut all = rolling();
        all.engine.status = status;
        all.engine.detail = detail.map(Into::into);
        change(&mut all);
        let mut state = watching(all);
        if status != EngineStatus::Booting {
            state.take(history(), NOW);
        }
        state
    };
    let empty = |all: &mut Status| {
        (all.groups, all.running, all.running_total) = (vec![], vec![], 0);
        (all.sampling, all.batch.reward, all.batch.seconds_left) = (None, None, None);
        (all.engine.global_step, all.latest_metrics) = (0, [].into());
        (all.batch.done, all.batch.episodes) = (0, 0);
    };
    let offline = watching(Status::default());
    let booting = engine(EngineStatus::Booting, Some("loading weights: 12 of 36 tensors"), empty);
    let mut first = rolling();
    empty(&mut first);
    (first.engine.global_step, first.running) = (1, rolling().running);
    let updating = engine(EngineStatus::WeightSyncing, None, |all| {
        all.batch.seconds_left = Some(6.0)
    });
    let finished = format!("all 300 {UPDATES_DONE}");
    let finished = engine(EngineStatus::Offline, Some(&finished), |all| {
        (all.sampling, all.engine.global_step, all.engine.total_steps) = (None, 0, None);
        (all.groups, all.running, all.running_total) = (vec![], vec![], 0);
    });
    let mut gone = engine(EngineStatus::Rolling, None, |_| {});
    gone.take(Update::Lost("connection refused".into()), NOW + 1.0);
    gone.tick(NOW + 11.0);
    vec![
        ("connecting", State::new("http://localhost:10086".into(), NOW)),
        ("offline", offline),
        ("booting", booting),
        ("first batch", watching(first)),
        ("rolling", full()),
        ("updating", updating),
        ("finished", finished),
        ("server gone", gone),
    ]
}

fn open(state: &State, tab: Tab) -> State {
    let mut state = state.clone();
    state.act(Action::Open(tab), NOW);
    if tab == Tab::Transcript {
        state.view.subject = Subject::Episode(detail().summary.episode_uuid);
    }
    state
}

#[test]
fn tabs_at_the_sizes_of_terminals() {
    for size in [(80, 24), (200, 60), (20, 5)] {
        let all: String = Tab::ALL
            .iter()
            .map(|tab| screen(&open(&full(), *tab), size) + "\n")
            .collect();
        insta::assert_snapshot!(format!("tabs_{}x{}", size.0, size.1), all);
    }
}

#[test]
fn overview_of_every_stage() {
    let all: String = stages()
        .iter()
        .map(|(name, state)| format!("{name}:\n{}\n", screen(state, (80, 24))))
        .collect();
    insta::assert_snapshot!(all);
}

#[test]
fn the_questions_of_a_user_are_answered() {
    let stages = stages();
    let shown = |name: &str| {
        let (_, state) = stages.iter().find(|(stage, _)| *stage == name).unwrap();
        screen(state, (80, 24))
    };
    for (stage, texts) in [
        (
            "rolling",
            &[
                "learning",
                "rising over 15 updates; 0.440 at step 1",
                "in about 18s",
                "sampling step 37: 3 running; mean reward 0.625 of 4 episodes",
                "36/300 updates",
            ][..],
        ),
        (
            "rolling",
            &[
                "eval reward 0.650 after 24 updates, +0.240 since the start",
                "w worst 0   b best 1.000   of step 36",
            ],
        ),
        (
            "rolling",
            &[
                "10/16 tasks, 84/128 episodes",
                "all done",
                "264 steps of 50s each",
                "builtin:tiny  65k parameters on cpu",
            ],
        ),
        (
            "updating",
            &[
                "training step 37 on 84 episodes",
                "update ends",
                "in about 6.0s",
                "42s so far",
                "w worst",
            ],
        ),
        ("booting", &["loading weights: 12 of 36 tensors", "no update yet"]),
        (
            "first batch",
            &[
                "time left unknown",
                "0/16 tasks, 0/128 episodes",
                "the curve begins with the first update",
            ],
        ),
        ("offline", &["no engine runs; start a job with `ajet-swarm roll`"]),
        (
            "finished",
            &[
                "FINISHED",
                "finished after 36 updates, 42s ago",
                "rising over 15 updates",
                "checkpoint  /runs/quickstart_20261201/checkpoints",
                "ajet-swarm chat /runs/quickstart_20261201",
                "ajet-swarm start --continue=/runs/quickstart_20261201",
            ],
        ),
        (
            "server gone",
            &["CANNOT_CONNECT", "connection refused, retrying (10s)", "10/16 tasks"],
        ),
        ("connecting", &["connecting"]),
    ] {
        let screen = shown(stage);
        for text in texts {
            assert!(screen.contains(text), "{text:?} is missing while {stage}:\n{screen}");
        }
    }
}

/// Seen at 120 columns: lines of the help were cut, and its end was not to be reached.
#[test]
fn the_help_is_readable_whole() {
    let mut state = full();
    state.act(Action::Help, NOW);
    let whole = screen(&state, (80, 24));
    assert!(!whole.contains("more"), "{whole}");
    insta::assert_snapshot!("help_80x24", whole);
    let size = (40, 12);
    let first = screen(&state, size);
    assert!(first.contains("open a tab") && first.contains("more"), "{first}");
    state.act(Action::Last, NOW);
    let last = screen(&state, size);
    assert!(last.contains("sum to 0") && !last.contains("more"), "{last}");
    assert_eq!(state.view.tab, Tab::Overview, "what lies below stands still");
}

/// Seen: the end of a long line was cut.
#[test]
fn long_log_lines_are_wrapped() {
    let mut status = rolling();
    status.log[0].message = format!("{} the end", "word ".repeat(40).trim());
    let screen = screen(&open(&watching(status), Tab::Log), (80, 24));
    assert!(screen.contains("the end"), "{screen}");
}

#[test]
fn claimed_episodes_are_told_from_running_ones() {
    let mut status = rolling();
    (status.running_total, status.claimed_total) = (48, 43);
    (status.running[0].llm_calls, status.running[0].calls_in_flight) = (0, 0);
    let state = watching(status);
    let overview = screen(&state, (120, 30));
    assert!(overview.contains("48 running, 43 claimed"), "{overview}");
    let episodes = screen(&open(&state, Tab::Episodes), (120, 30));
    assert!(
        episodes.contains("3 of 91 episodes, oldest first; 43 only claimed"),
        "{episodes}"
    );
    assert!(episodes.contains("0     claimed"), "{episodes}");
}

#[test]
fn no_size_and_no_stage_panics() {
    for (_, state) in stages() {
        for tab in Tab::ALL {
            for (tokens, finished) in [(false, false), (true, true)] {
                let mut state = open(&state, tab);
                (state.view.tokens, state.view.finished, state.view.zoomed) = (tokens, finished, finished);
                for size in [
                    (0, 0),
                    (1, 1),
                    (5, 3),
                    (20, 5),
                    (39, 10),
                    (80, 24),
                    (131, 31),
                    (300, 3),
                    (3, 100),
                ] {
                    screen(&state, size);
                    state.view.help = !state.view.help;
                }
            }
        }
    }
}

#[test]
fn without_colour_the_same_is_shown() {
    for tab in Tab::ALL {
        let state = open(&full(), tab);
        let (plain, colored) = screen_in(&state, (80, 24), false);
        assert!(!colored, "{tab:?}");
        let (text, colored) = screen_in(&state, (80, 24), true);
        assert!(colored, "{tab:?}");
        assert_eq!(plain, text);
    }
}

/// Foreign text is made printable where it is received; what is drawn holds no control characters even without that.
#[test]
fn control_characters_are_not_drawn() {
    let mut status = rolling();
    status.engine.detail = Some(HOSTILE.into());
    status.groups[0].task_id = HOSTILE.into();
    status.running[0].task_id = HOSTILE.into();
    let mut hostile = watching(status);
    let mut said = detail();
    said.conversations[0].messages[1]["content"] = HOSTILE.into();
    hostile.take(
        Update::Transcript(Subject::Episode(said.summary.episode_uuid.clone()), Ok(Box::new(said))),
        NOW,
    );
    for tab in Tab::ALL {
        let screen = screen(&open(&hostile, tab), (80, 24));
        assert!(!screen.contains(|c: char| c.is_control() && c != '\n'), "{screen}");
    }
}

#[test]
fn a_wide_terminal_is_used() {
    for tab in [Tab::Overview, Tab::Episodes, Tab::Training, Tab::Engine] {
        let screen = screen(&open(&full(), tab), (200, 60));
        let longest = screen.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest > 190, "{tab:?} uses {longest} columns");
    }
}

#[test]
fn a_state_of_updates_shows_the_batch_that_is_trained_on() {
    let mut status = rolling();
    status.engine.status = EngineStatus::WeightSyncing;
    status.batch.reward = Distribution::of([0.5]);
    let screen = screen(&open(&watching(status), Tab::Tasks), (80, 24));
    assert!(screen.contains("reverse_text_8") && screen.contains("none"), "{screen}");
}

/// Four frames a second may cost a tenth of a core: 25 ms each. `cargo test --release --lib time_of_a_frame -- --ignored
/// --nocapture`
#[test]
#[ignore = "a measurement"]
fn time_of_a_frame_of_two_thousand_episodes() {
    let mut status = rolling();
    let one = status.running[0].clone();
    status.running = (0..2000).map(|_| one.clone()).collect();
    status.running_total = 2000;
    let mut state = full();
    state.take(observed(status.clone()), NOW);
    let mut terminal = Terminal::new(TestBackend::new(200, 60)).unwrap();
    let mut cheapest = std::time::Duration::MAX;
    for tab in [Tab::Overview, Tab::Episodes].iter().cycle().take(20) {
        state.act(Action::Open(*tab), NOW);
        let update = observed(status.clone());
        let begun = std::time::Instant::now();
        state.take(update, NOW);
        terminal
            .draw(|frame| {
                draw(frame, &state, Theme { color: true });
            })
            .unwrap();
        cheapest = cheapest.min(begun.elapsed());
    }
    crate::say!("update and frame of 2,000 running episodes: {cheapest:?}");
}
