//! Layout of the dashboard. Every panel is a function of the state.

mod lists;
mod summary;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use ratatui::widgets::Block;

use super::state::State;
use crate::protocol::swarm::EngineStatus;

/// Minimum height for lists; below it, only header and pool are drawn.
const MIN_HEIGHT_FOR_LISTS: u16 = 16;

/// Whether to use colours (<https://no-color.org>); no information is shown by colour alone.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Whether colours are used.
    pub color: bool,
}

impl Theme {
    fn colored(self, color: Color) -> Style {
        if self.color {
            Style::new().fg(color)
        } else {
            Style::new()
        }
    }

    fn strong(self, color: Color) -> Style {
        self.colored(color).add_modifier(Modifier::BOLD)
    }

    fn faint(self) -> Style {
        self.colored(Color::DarkGray)
    }

    fn state(self, status: EngineStatus) -> Style {
        self.strong(match status {
            EngineStatus::Rolling => Color::Green,
            EngineStatus::RollingPost | EngineStatus::WeightSyncing | EngineStatus::WeightExporting => Color::Yellow,
            EngineStatus::Booting => Color::Cyan,
            EngineStatus::Offline => Color::Gray,
            EngineStatus::CannotConnect => Color::Red,
        })
    }

    /// Returns a frame with a title line.
    fn block<'a>(self, title: impl Into<String>) -> Block<'a> {
        let title = Span::styled(format!(" {} ", title.into()), self.strong(Color::Cyan));
        Block::bordered().border_style(self.faint()).title(title)
    }
}

/// Draws the dashboard.
pub fn draw(frame: &mut Frame, state: &State, theme: Theme) {
    let area = frame.area();
    let [header, pool, middle, bottom, footer] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(6),
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    summary::header(frame, header, state, theme);
    let [pool, reward] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(pool);
    summary::pool(frame, pool, state, theme);
    summary::reward(frame, reward, state, theme);
    if area.height >= MIN_HEIGHT_FOR_LISTS {
        let [episodes, tasks] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(middle);
        lists::episodes(frame, episodes, state, theme);
        lists::tasks(frame, tasks, state, theme);
        let [clients, log] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(2)]).areas(bottom);
        lists::clients(frame, clients, state, theme);
        lists::log(frame, log, state, theme);
    }
    summary::footer(frame, footer, theme);
}

/// Formats seconds for people: `42s`, `3m 07s`, `2h 05m`.
pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m {:02}s", seconds % 60),
        _ => format!("{hours}h {minutes:02}m"),
    }
}

/// Returns the first part of an identifier, enough to distinguish a few.
pub(super) fn short(identifier: &str) -> String {
    identifier.chars().take(8).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::state::tests::{rolling, watching};
    use super::*;

    fn screen(state: &State, width: u16, height: u16, color: bool) -> (Vec<String>, bool) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, Theme { color })).unwrap();
        let buffer = terminal.backend().buffer();
        let colored = buffer
            .content()
            .iter()
            .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        let rows = buffer.content().chunks(usize::from(width).max(1));
        let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        (rows.map(|row| row.trim_end().to_owned()).collect(), colored)
    }

    #[test]
    fn everything_is_on_an_ordinary_terminal() {
        let (rows, colored) = screen(&watching(), 80, 24, true);
        let text = rows.join("\n");
        assert!(colored);
        for want in [
            "ROLLING",
            "step 3",
            "http://localhost:10086",
            "Qwen/Qwen2.5-0.5B-Instruct",
            "episodes         12/32",
            "▸ tasks            2/8",
            "non-dummy tasks  1/8",
            "clients agree    1/2",
            "0.708 of 12 episodes",
            "3f1c9a52",
            "task_10",
            "task_7",
            "c1ient02",
            "task_7 done",
            "q quit",
        ] {
            assert!(text.contains(want), "{want:?} is not on the screen\n{text}");
        }
    }

    #[test]
    fn frames() {
        let frame = |state: &State| screen(state, 80, 24, false).0.join("\n");
        let mut state = State::new("http://localhost:10086".into(), 1200.0);
        insta::assert_snapshot!("connecting", frame(&state));
        state.take(Ok(rolling()), 1200.0);
        insta::assert_snapshot!("rolling", frame(&state));
        state.take(Err("cannot connect".into()), 1205.0);
        state.now = 1215.0;
        insta::assert_snapshot!("unreachable", frame(&state));
    }

    #[test]
    fn a_large_terminal_shows_more_rows() {
        let mut snapshot = rolling();
        let pool = snapshot.pool.as_mut().unwrap();
        for number in 0..40 {
            pool.completed_tasks_rewards.insert(format!("many_{number}"), vec![0.5]);
        }
        let mut state = State::new(String::new(), 1200.0);
        state.take(Ok(snapshot), 1200.0);
        let tasks = |width, height| {
            let (rows, _) = screen(&state, width, height, true);
            rows.iter().filter(|row| row.contains("many_")).count()
        };
        let (ordinary, large) = (tasks(80, 24), tasks(120, 40));
        assert!(ordinary >= 3 && large > ordinary, "{ordinary} and {large}");
        let (rows, _) = screen(&state, 120, 40, true);
        assert!(
            rows.iter().any(|row| row.contains("1.2s of 240s")),
            "{}",
            rows.join("\n")
        );
    }

    #[test]
    fn a_running_episode_whose_task_is_not_told_has_a_dash() {
        let (rows, _) = screen(&watching(), 80, 24, true);
        let row = rows.iter().find(|row| row.contains("77777777")).unwrap();
        let after = row.split("77777777").nth(1).unwrap();
        assert_eq!(after.split_whitespace().next(), Some("-"), "{row}");
    }

    #[test]
    fn lists_scroll() {
        let mut state = watching();
        let shown = |state: &State, what: &str| screen(state, 80, 24, true).0.join("\n").contains(what);
        assert!(shown(&state, "3f1c9a52"));
        state.scroll_by(1);
        assert!(!shown(&state, "3f1c9a52") && shown(&state, "77777777"));
    }

    #[test]
    fn without_colour_the_same_is_said() {
        let (plain, colored) = screen(&watching(), 80, 24, false);
        assert!(!colored);
        assert_eq!(plain, screen(&watching(), 80, 24, true).0);
    }

    #[test]
    fn a_server_that_is_away_is_said_with_what_was_last_known() {
        let mut state = watching();
        state.take(Err("cannot connect".into()), 1205.0);
        state.now = 1215.0;
        let text = screen(&state, 80, 24, true).0.join("\n");
        assert!(text.contains("cannot connect, retrying (10s)"), "{text}");
        assert!(text.contains("12/32"), "{text}");

        let mut never = State::new("http://localhost:1".into(), 0.0);
        assert!(screen(&never, 80, 24, true).0.join("\n").contains("connecting"));
        never.take(Err("cannot connect".into()), 0.0);
        assert!(
            screen(&never, 80, 24, true)
                .0
                .join("\n")
                .contains("cannot connect, retrying (0s)")
        );
    }

    #[test]
    fn no_size_panics() {
        for width in [0, 1, 5, 20, 40, 79, 300] {
            for height in [0, 1, 3, 8, 15, 16, 100] {
                screen(&watching(), width, height, true);
            }
        }
    }

    #[test]
    fn durations() {
        let cases = [(-1.0, "0s"), (42.9, "42s"), (187.0, "3m 07s"), (7500.0, "2h 05m")];
        for (seconds, want) in cases {
            assert_eq!(duration(seconds), want);
        }
    }
}
