//! Main loop of the dashboard: updates, keys and the clock change the state, and the state is drawn.

use std::io;
use std::time::Duration;

use crossterm::event::{DisableMouseCapture, EnableMouseCapture, EventStream};
use crossterm::execute;
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch as latest};
use tokio::time::sleep;

use super::clock::unix_now;
use super::input::action;
use super::source::{Source, WatchError};
use super::state::{Effect, State};
use super::tabs::draw;
use super::theme::Theme;
use super::update::{Update, Wanted};

/// Maximum time between two frames.
const PERIOD: Duration = Duration::from_secs(1);
/// Updates that may wait to be drawn.
const QUEUE: usize = 16;

/// Shows a source, named `name`, until the user quits, with the server's state at most once in `refresh`. The terminal
/// is restored at the end, also after a panic.
///
/// # Errors
/// [`WatchError::Terminal`], [`WatchError::Replay`].
pub async fn watch(source: Source, name: String, color: bool, refresh: Duration) -> Result<(), WatchError> {
    let (sender, updates) = mpsc::channel(QUEUE);
    let (wanted, wants) = latest::channel(Wanted::default());
    let mut following = tokio::spawn(source.follow(sender, wants, refresh));
    restore_mouse_after_panic();
    let mut terminal = ratatui::try_init()?;
    let captured = execute!(io::stdout(), EnableMouseCapture);
    let state = State::new(name, unix_now());
    let outcome = tokio::select! {
        outcome = run(&mut terminal, state, Theme { color }, updates, wanted) => outcome.map_err(WatchError::from),
        Ok(Err(error)) = &mut following => Err(error),
    };
    // The terminal may be gone; it is left either way.
    let _ = execute!(io::stdout(), DisableMouseCapture);
    ratatui::restore();
    following.abort();
    captured?;
    outcome
}

/// Adds the mouse to what ratatui restores after a panic.
fn restore_mouse_after_panic() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let _ = execute!(io::stdout(), DisableMouseCapture);
        hook(info);
    }));
}

async fn run(
    terminal: &mut DefaultTerminal,
    mut state: State,
    theme: Theme,
    mut updates: mpsc::Receiver<Update>,
    wanted: latest::Sender<Wanted>,
) -> io::Result<()> {
    let mut events = EventStream::new();
    let mut terminated = signal(SignalKind::terminate())?;
    loop {
        state.tick(unix_now());
        let mut hits = None;
        terminal.draw(|frame| hits = Some(draw(frame, &state, theme)))?;
        let hits = hits.unwrap_or_default();
        state.clamp_scroll(hits.max_scroll);
        let now_wanted = state.wanted();
        wanted.send_if_modified(|wanted| std::mem::replace(wanted, now_wanted.clone()) != now_wanted);
        tokio::select! {
            Some(update) = updates.recv() => {
                state.take(update, unix_now());
                // What came meanwhile needs no frame of its own.
                while let Ok(update) = updates.try_recv() {
                    state.take(update, unix_now());
                }
            }
            event = events.next() => match event.transpose()? {
                Some(event) => {
                    if let Some(action) = action(&event, state.view.typing, &hits)
                        && state.act(action, unix_now()) == Effect::Quit
                    {
                        return Ok(());
                    }
                }
                None => return Ok(()),
            },
            () = sleep(PERIOD) => {}
            _ = terminated.recv() => return Ok(()),
        }
    }
}
