//! Episodes: running ones with what they wait for, finished ones with their rewards.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row};

use super::{WIDE, list_title};
use crate::overwatch::format::{count, counted, duration, ending, number, short};
use crate::overwatch::list::{Hits, ListPanel};
use crate::overwatch::state::rows::{self, RUNNING_ORDERS};
use crate::overwatch::state::{List, State};
use crate::overwatch::theme::Theme;
use crate::overwatch::update::Kind;
use crate::protocol::status::{EpisodeSummary, RunningEpisode};

/// Shown as the task of an episode whose claim had no task id, which is only known at its end.
const UNKNOWN_TASK: &str = "-";
/// Share of its patience from which an idle episode is marked.
const LONG_IDLE: f64 = 0.5;
/// Width from which a list has more columns.
const MORE_COLUMNS: u16 = 90;

/// Draws the running or the finished episodes; both if there is room.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    if area.width >= WIDE {
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
        running(frame, left, state, theme, hits);
        finished(frame, right, state, theme, hits);
    } else if state.view.finished {
        finished(frame, area, state, theme, hits);
    } else {
        running(frame, area, state, theme, hits);
    }
}

/// Draws the running episodes.
pub(super) fn running(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let rows = rows::running(&state.known, &state.view);
    let list = state.view.list(List::Running);
    let total = match list.filter.as_str() {
        "" => state
            .status()
            .map_or(0, |status| status.running_total + status.claimed_total),
        _ => 0,
    };
    let order = RUNNING_ORDERS[list.order % RUNNING_ORDERS.len()];
    let claimed = state.status().map_or(0, |status| status.claimed_total);
    let title = match claimed {
        0 => list_title(rows.len(), total, "running episode", order, &list.filter),
        claimed => {
            let all = list_title(rows.len(), total, "episode", order, &list.filter);
            format!("{all}; {} only claimed", count(claimed))
        }
    };
    let more = area.width >= MORE_COLUMNS;
    let mut widths = vec![
        Constraint::Length(8),
        Constraint::Fill(1),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(9),
        Constraint::Length(14),
        Constraint::Length(6),
        Constraint::Length(8),
    ];
    let mut header = vec![
        "episode",
        "task",
        "type",
        "calls",
        "now",
        "idle of limit",
        "tokens",
        "client",
    ];
    if more {
        widths.push(Constraint::Length(7));
        header.push("age");
    }
    let task_width = area.width.saturating_sub(if more { 81 } else { 70 });
    let panel = ListPanel {
        block: theme.block(title),
        header: Row::new(header),
        widths,
        len: rows.len(),
        cursor: list.cursor.index,
        focused: !state.view.finished,
        list: List::Running,
        row: |index| running_row(rows[index], task_width, more, state.now, theme),
    };
    panel.draw(frame, area, theme, hits);
}

fn running_row<'a>(episode: &RunningEpisode, task_width: u16, more: bool, now: f64, theme: Theme) -> Row<'a> {
    let idle = format!("{} of {}", duration(episode.idle), limit(episode.patience));
    let idle = match episode.patience > 0.0 && episode.idle >= LONG_IDLE * episode.patience {
        true => Span::styled(format!("{idle} !"), theme.colored(Color::Yellow)),
        false => Span::raw(idle),
    };
    let doing = match episode.calls_in_flight {
        0 if !episode.has_begun() => "claimed".to_owned(),
        0 => "thinking".to_owned(),
        1 => "sampling".to_owned(),
        calls => counted(calls, "call"),
    };
    let task = match episode.task_id.as_str() {
        "" => UNKNOWN_TASK.to_owned(),
        task => ending(task, task_width.max(8)),
    };
    let mut cells = vec![
        Line::raw(short(&episode.episode_uuid)),
        Line::raw(task),
        Line::raw(episode.episode_type.as_str()),
        Line::raw(episode.llm_calls.to_string()),
        Line::raw(doing),
        Line::from(idle),
        Line::raw(count(episode.completion_tokens)),
        Line::raw(short(&episode.client_uuid)),
    ];
    if more {
        cells.push(Line::raw(duration(now - episode.claimed)));
    }
    Row::new(cells)
}

fn limit(seconds: f64) -> String {
    format!("{seconds:.0}s")
}

/// Draws the finished episodes.
fn finished(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let list = state.view.list(List::Finished);
    let order = state.view.finished_order().words();
    let total = state.finished_total();
    let note = match &state.known.episodes {
        _ if state.known.missing.is_some() => Some("this server does not list finished episodes".to_owned()),
        None => Some("reading the episodes".to_owned()),
        Some((_, Err(reason))) => Some(reason.clone()),
        Some(_) if total == 0 && list.filter.is_empty() => Some(match state.view.kind {
            Kind::Train => "no train episode has ended; e shows those of evaluations".to_owned(),
            Kind::Eval => "no episode of an evaluation has ended".to_owned(),
            Kind::All => "no episode has ended".to_owned(),
        }),
        Some(_) => None,
    };
    let noun = match state.view.kind {
        Kind::Train => "finished train episode",
        Kind::Eval => "finished eval episode",
        Kind::All => "finished episode",
    };
    let mut title = list_title(total, total as u64, noun, order, &list.filter);
    if state.view.task.is_some() {
        title += ", of the task";
    }
    let block = theme.block(title);
    if let Some(note) = note {
        let note = Paragraph::new(Line::styled(format!(" {note}"), theme.faint())).block(block);
        frame.render_widget(note, area);
        return;
    }
    let (page, offset) = (rows::finished(&state.known, &state.view), state.page_offset());
    let more = area.width >= MORE_COLUMNS;
    let mut header = vec!["episode", "task", "type", "step", "reward", "calls", "tokens", "took"];
    let mut widths = vec![
        Constraint::Length(8),
        Constraint::Fill(1),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(7),
        Constraint::Length(7),
    ];
    if more {
        header.extend(["client", "ended"]);
        widths.extend([Constraint::Length(8), Constraint::Length(7)]);
    }
    let task_width = area.width.saturating_sub(if more { 72 } else { 55 });
    let panel = ListPanel {
        block,
        header: Row::new(header),
        widths,
        len: total,
        cursor: list.cursor.index,
        focused: state.view.finished,
        list: List::Finished,
        row: |index: usize| match index.checked_sub(offset).and_then(|place| page.get(place)) {
            Some(episode) => finished_row(episode, task_width, more, state.now, theme),
            None => Row::new(["…"]),
        },
    };
    panel.draw(frame, area, theme, hits);
}

fn finished_row<'a>(episode: &EpisodeSummary, task_width: u16, more: bool, now: f64, theme: Theme) -> Row<'a> {
    let reward = match &episode.dropped {
        Some(_) => Span::styled("dropped", theme.colored(Color::Yellow)),
        None => Span::raw(number(episode.reward)),
    };
    let dropped = episode.dropped.as_ref().map(|reason| format!(" ({reason})"));
    let task = ending(&episode.task_id, task_width.max(8));
    let mut cells = vec![
        Line::raw(short(&episode.episode_uuid)),
        Line::raw(task + dropped.as_deref().unwrap_or_default()),
        Line::raw(episode.episode_type.as_str()),
        Line::raw(episode.global_step.to_string()),
        Line::from(reward),
        Line::raw(episode.llm_calls.to_string()),
        Line::raw(count(episode.completion_tokens)),
        Line::raw(duration(episode.seconds)),
    ];
    if more {
        let ended = if episode.ended > 0.0 {
            duration(now - episode.ended)
        } else {
            "-".into()
        };
        cells.extend([Line::raw(short(&episode.client_uuid)), Line::raw(ended)]);
    }
    Row::new(cells)
}
