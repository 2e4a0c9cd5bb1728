//! The dashboard's loop: looks, keys and the clock go into the state, the state goes onto the screen.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::collector::{Collector, Look};
use super::panels::{Theme, draw};
use super::state::State;

/// Between two drawings while nothing happens.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows the server, `server` by name, until the user quits, with a look every `refresh`. The terminal is given back as it was, also after a panic.
///
/// # Errors
/// The terminal cannot be used.
pub async fn watch(collector: Collector, server: String, color: bool, refresh: Duration) -> io::Result<()> {
    let (sender, looks) = mpsc::channel(1);
    let collecting = tokio::spawn(collect(collector, sender, refresh));
    let mut terminal = ratatui::try_init()?;
    let outcome = run(&mut terminal, State::new(server, unix_now()), Theme { color }, looks).await;
    ratatui::restore();
    collecting.abort();
    outcome
}

async fn collect(collector: Collector, looks: mpsc::Sender<Result<Look, String>>, refresh: Duration) {
    while looks.send(collector.look().await).await.is_ok() {
        sleep(refresh).await;
    }
}

async fn run(
    terminal: &mut DefaultTerminal,
    mut state: State,
    theme: Theme,
    mut looks: mpsc::Receiver<Result<Look, String>>,
) -> io::Result<()> {
    let mut events = EventStream::new();
    let mut terminated = signal(SignalKind::terminate())?;
    let mut clock = interval(PERIOD);
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        state.now = unix_now();
        terminal.draw(|frame| draw(frame, &state, theme))?;
        tokio::select! {
            Some(look) = looks.recv() => state.take(look, unix_now()),
            event = events.next() => match event.transpose()? {
                Some(Event::Key(key)) => match action(key) {
                    Some(Action::Quit) => return Ok(()),
                    Some(Action::Scroll(rows)) => state.scroll_by(rows),
                    None => {}
                },
                Some(_) => {}
                None => return Ok(()),
            },
            _ = clock.tick() => {}
            _ = terminated.recv() => return Ok(()),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Action {
    Quit,
    Scroll(isize),
}

fn action(key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match (key.code, key.modifiers) {
        (KeyCode::Char('c' | 'd'), KeyModifiers::CONTROL) => Some(Action::Quit),
        (KeyCode::Char('q') | KeyCode::Esc, _) => Some(Action::Quit),
        (KeyCode::Up | KeyCode::Char('k'), _) => Some(Action::Scroll(-1)),
        (KeyCode::Down | KeyCode::Char('j'), _) => Some(Action::Scroll(1)),
        (KeyCode::PageUp, _) => Some(Action::Scroll(-10)),
        (KeyCode::PageDown, _) => Some(Action::Scroll(10)),
        _ => None,
    }
}

/// The time in Unix seconds, as the wire tells times.
pub fn unix_now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let press = |code, modifiers| action(KeyEvent::new(code, modifiers));
        assert_eq!(press(KeyCode::Char('q'), KeyModifiers::NONE), Some(Action::Quit));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Action::Quit));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(press(KeyCode::Down, KeyModifiers::NONE), Some(Action::Scroll(1)));
        let release = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(action(release), None);
    }
}
