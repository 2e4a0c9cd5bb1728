//! Main loop of the dashboard: snapshots, keys and the clock update the state, and the state is drawn.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::collector::{Collector, Snapshot};
use super::panels::{Theme, draw};
use super::state::State;

/// Maximum time between two redraws.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows the server named `server` until the user quits, polling it every `refresh`. The terminal is restored at the
/// end, also after a panic.
///
/// # Errors
/// Fails if the terminal cannot be used.
pub async fn watch(collector: Collector, server: String, color: bool, refresh: Duration) -> io::Result<()> {
    let (sender, snapshots) = mpsc::channel(1);
    let collecting = tokio::spawn(collect(collector, sender, refresh));
    let mut terminal = ratatui::try_init()?;
    let outcome = run(
        &mut terminal,
        State::new(server, unix_now()),
        Theme { color },
        snapshots,
    )
    .await;
    ratatui::restore();
    collecting.abort();
    outcome
}

async fn collect(collector: Collector, snapshots: mpsc::Sender<Result<Snapshot, String>>, refresh: Duration) {
    while snapshots.send(collector.snapshot().await).await.is_ok() {
        sleep(refresh).await;
    }
}

async fn run(
    terminal: &mut DefaultTerminal,
    mut state: State,
    theme: Theme,
    mut snapshots: mpsc::Receiver<Result<Snapshot, String>>,
) -> io::Result<()> {
    let mut events = EventStream::new();
    let mut terminated = signal(SignalKind::terminate())?;
    let mut clock = interval(PERIOD);
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        state.now = unix_now();
        terminal.draw(|frame| draw(frame, &state, theme))?;
        tokio::select! {
            Some(snapshot) = snapshots.recv() => state.take(snapshot, unix_now()),
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

/// Returns Unix seconds, the time format of the wire protocol.
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
