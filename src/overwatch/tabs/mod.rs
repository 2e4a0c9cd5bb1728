//! The screen: header, tabs, the open tab, footer. Every tab is a function of the state.

mod engine;
mod episodes;
mod help;
mod log;
mod overview;
mod tasks;
mod training;
mod transcript;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span};

use super::format::{counted, duration};
use super::list::Hits;
use super::state::{Action, State, Tab};
use super::theme::{Theme, state_name};

/// Width from which tabs put panels side by side.
const WIDE: u16 = 130;

/// Draws the dashboard. Returns what lies where.
pub fn draw(frame: &mut Frame, state: &State, theme: Theme) -> Hits {
    let mut hits = Hits::default();
    let [top, tabs, body, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    header(frame, top, state, theme);
    tab_line(frame, tabs, state, theme, &mut hits);
    match state.view.tab {
        Tab::Overview => overview::draw(frame, body, state, theme),
        Tab::Episodes => episodes::draw(frame, body, state, theme, &mut hits),
        Tab::Tasks => tasks::draw(frame, body, state, theme, &mut hits),
        Tab::Training => training::draw(frame, body, state, theme, &mut hits),
        Tab::Engine => engine::draw(frame, body, state, theme),
        Tab::Transcript => transcript::draw(frame, body, state, theme, &mut hits),
        Tab::Log => log::draw(frame, body, state, theme, &mut hits),
    }
    footer(frame, bottom, state, theme);
    if state.view.help {
        help::draw(frame, body, state, theme, &mut hits);
    }
    hits
}

fn header(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let right = state_line(state, theme);
    let width = right.width() as u16;
    if width > area.width {
        frame.render_widget(right, area);
        return;
    }
    let [name, status] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)]).areas(area);
    let mut left = vec![Span::styled("ajet-swarm ", theme.strong(Color::Cyan))];
    if let Some(experiment) = state.status().and_then(|status| status.experiment.as_ref())
        && !experiment.name.is_empty()
    {
        left.push(Span::raw(format!("{}  ", experiment.name)));
    }
    left.push(Span::styled(state.source.as_str(), theme.faint()));
    frame.render_widget(Line::from(left), name);
    frame.render_widget(right.alignment(Alignment::Right), status);
}

/// State with its age, and updates.
fn state_line(state: &State, theme: Theme) -> Line<'static> {
    let mut spans = vec![];
    if state.view.paused {
        spans.push(Span::styled(" PAUSED ", theme.selected()));
    }
    if let Some(status) = state.engine_status() {
        spans.push(Span::raw(" "));
        let name = match state.ended() {
            Some(ended) => ended.word().to_uppercase(),
            None => state_name(status).to_owned(),
        };
        spans.push(Span::styled(name, theme.state(status)));
        if let Some(age) = state.state_age() {
            spans.push(Span::raw(format!(" {}", duration(age))));
        }
    }
    spans.extend(state.updates().map(|updates| Span::raw(format!("  {updates}"))));
    Line::from(spans)
}

fn tab_line(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let open = state.view.tab;
    let label = |tab: Tab, names: bool| match names || tab == open {
        true => format!(" {} {} ", tab as usize + 1, tab.name()),
        false => format!(" {} ", tab as usize + 1),
    };
    let all: usize = Tab::ALL.iter().map(|tab| label(*tab, true).chars().count()).sum();
    let names = all <= usize::from(area.width);
    let (mut x, mut spans) = (area.x, vec![]);
    for tab in Tab::ALL {
        let text = label(tab, names);
        let width = text.chars().count() as u16;
        hits.add(
            Rect::new(x, area.y, width, area.height).intersection(area),
            Action::Open(tab),
        );
        x = x.saturating_add(width);
        spans.push(match tab == open {
            true => Span::styled(text, theme.selected()),
            false => Span::raw(text),
        });
    }
    frame.render_widget(Line::from(spans), area);
}

/// What is typed, what is wrong, or the keys of the tab.
fn footer(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let line = if state.view.typing {
        Line::from(format!(" filter: {}▏  enter keep  esc clear", state.view.filter()))
    } else if let Some((reason, since)) = &state.known.failure {
        let waited = duration(state.now - since);
        Line::styled(format!(" {reason}, retrying ({waited})"), theme.strong(Color::Red))
    } else if let Some(missing) = &state.known.missing {
        Line::styled(format!(" {missing}"), theme.colored(Color::Yellow))
    } else {
        Line::styled(format!(" {}", keys(state)), theme.faint())
    };
    let help = Line::styled("? help  q quit ", theme.faint()).alignment(Alignment::Right);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(15)]).areas(area);
    frame.render_widget(line, left);
    frame.render_widget(help, right);
}

fn keys(state: &State) -> String {
    let keys = match state.view.tab {
        Tab::Overview => "tab next  w worst episode  b best  l latest call  p pause",
        Tab::Episodes => "enter read  f running/finished  e train/eval  s sort  / filter",
        Tab::Tasks => "enter episodes of the task  s sort  / filter",
        Tab::Training if state.view.zoomed => "esc all charts  ↑↓ other metric",
        Tab::Training => "↑↓ select  enter enlarge  / filter",
        Tab::Engine => "tab next  p pause",
        Tab::Transcript => "↑↓ scroll  t tokens  l latest  w worst  b best  esc back",
        Tab::Log => "↑↓ scroll  / filter  p pause",
    };
    match state.view.filter() {
        "" => keys.to_owned(),
        filter => format!("filter '{filter}' (esc clears)  {keys}"),
    }
}

/// Returns the title of a list with its number of rows, order and filter.
fn list_title(len: usize, total: u64, noun: &str, order: &str, filter: &str) -> String {
    let count = match total > len as u64 {
        true => format!("{len} of {}", counted(total, noun)),
        false => counted(len as u64, noun),
    };
    match filter {
        "" => format!("{count}, {order}"),
        filter => format!("{count} with '{filter}', {order}"),
    }
}

#[cfg(test)]
mod tests;
