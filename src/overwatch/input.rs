//! Keys and mouse as actions.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use super::list::Hits;
use super::state::{Action, Tab};
use super::update::Extreme;

/// Rows of a page key.
const PAGE_ROWS: isize = 10;
/// Rows of a turn of the mouse wheel.
const WHEEL_ROWS: isize = 3;

/// Returns what an event of the terminal means. `typing` says that a filter is being typed, `hits` what lies where.
pub fn action(event: &Event, typing: bool, hits: &Hits) -> Option<Action> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Release => None,
        Event::Key(key) if is_quit(key) => Some(Action::Quit),
        Event::Key(key) if typing => typed(key),
        Event::Key(key) => pressed(key),
        Event::Mouse(mouse) => clicked(mouse, hits),
        _ => None,
    }
}

fn is_quit(key: &KeyEvent) -> bool {
    key.modifiers == KeyModifiers::CONTROL && matches!(key.code, KeyCode::Char('c' | 'd'))
}

fn typed(key: &KeyEvent) -> Option<Action> {
    Some(match key.code {
        KeyCode::Enter => Action::Enter,
        KeyCode::Esc => Action::Back,
        KeyCode::Backspace => Action::Erase,
        KeyCode::Char(character) if !key.modifiers.contains(KeyModifiers::CONTROL) => Action::Type(character),
        _ => return None,
    })
}

fn pressed(key: &KeyEvent) -> Option<Action> {
    Some(match key.code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('?') => Action::Help,
        KeyCode::Char(digit @ '1'..='7') => Action::Open(Tab::ALL[digit as usize - '1' as usize]),
        KeyCode::Tab | KeyCode::Right => Action::Turn(1),
        KeyCode::BackTab | KeyCode::Left => Action::Turn(-1),
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::PageUp => Action::Move(-PAGE_ROWS),
        KeyCode::PageDown | KeyCode::Char(' ') => Action::Move(PAGE_ROWS),
        KeyCode::Home | KeyCode::Char('g') => Action::First,
        KeyCode::End | KeyCode::Char('G') => Action::Last,
        KeyCode::Enter => Action::Enter,
        KeyCode::Esc | KeyCode::Backspace => Action::Back,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Char('s') => Action::Sort,
        KeyCode::Char('p') => Action::Pause,
        KeyCode::Char('w') => Action::Extreme(Extreme::Worst),
        KeyCode::Char('b') => Action::Extreme(Extreme::Best),
        KeyCode::Char('l') => Action::Latest,
        KeyCode::Char('f') => Action::Switch,
        KeyCode::Char('t') => Action::Tokens,
        KeyCode::Char('e') => Action::Kind,
        _ => return None,
    })
}

fn clicked(mouse: &MouseEvent, hits: &Hits) -> Option<Action> {
    match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => hits.at(Position::new(mouse.column, mouse.row)),
        MouseEventKind::ScrollUp => Some(Action::Move(-WHEEL_ROWS)),
        MouseEventKind::ScrollDown => Some(Action::Move(WHEEL_ROWS)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;

    use super::*;
    use crate::overwatch::state::List;

    fn press(code: KeyCode, modifiers: KeyModifiers, typing: bool) -> Option<Action> {
        action(&Event::Key(KeyEvent::new(code, modifiers)), typing, &Hits::default())
    }

    #[test]
    fn keys() {
        let plain = |character| press(KeyCode::Char(character), KeyModifiers::NONE, false);
        assert_eq!(plain('q'), Some(Action::Quit));
        assert_eq!(plain('3'), Some(Action::Open(Tab::Tasks)));
        assert_eq!(plain('7'), Some(Action::Open(Tab::Log)));
        assert_eq!(plain('8'), None);
        assert_eq!(plain('w'), Some(Action::Extreme(Extreme::Worst)));
        assert_eq!(press(KeyCode::Tab, KeyModifiers::NONE, false), Some(Action::Turn(1)));
        assert_eq!(
            press(KeyCode::Char('c'), KeyModifiers::CONTROL, true),
            Some(Action::Quit)
        );
        let release = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(action(&Event::Key(release), false, &Hits::default()), None);
    }

    #[test]
    fn a_filter_takes_the_letters() {
        let typed = |code| press(code, KeyModifiers::NONE, true);
        assert_eq!(typed(KeyCode::Char('q')), Some(Action::Type('q')));
        assert_eq!(
            press(KeyCode::Char('Q'), KeyModifiers::SHIFT, true),
            Some(Action::Type('Q'))
        );
        assert_eq!(typed(KeyCode::Backspace), Some(Action::Erase));
        assert_eq!(typed(KeyCode::Enter), Some(Action::Enter));
        assert_eq!(typed(KeyCode::Esc), Some(Action::Back));
        assert_eq!(typed(KeyCode::Up), None);
    }

    #[test]
    fn clicks_find_what_was_drawn() {
        let mut hits = Hits::default();
        hits.add(Rect::new(0, 5, 80, 1), Action::Select(List::Running, 7));
        let click = |column, row| {
            let kind = MouseEventKind::Down(MouseButton::Left);
            action(
                &Event::Mouse(MouseEvent {
                    kind,
                    column,
                    row,
                    modifiers: KeyModifiers::NONE,
                }),
                false,
                &hits,
            )
        };
        assert_eq!(click(3, 5), Some(Action::Select(List::Running, 7)));
        assert_eq!(click(3, 6), None);
        let wheel = MouseEvent {
            kind: MouseEventKind::ScrollDown,
            column: 0,
            row: 0,
            modifiers: KeyModifiers::NONE,
        };
        assert_eq!(action(&Event::Mouse(wheel), false, &hits), Some(Action::Move(3)));
    }
}
