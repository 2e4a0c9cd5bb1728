//! Transcript: what was said in an episode, by author, or its tokens by mask.

mod text;
mod tokens;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::overwatch::format::{count, counted, duration, number, short};
use crate::overwatch::list::Hits;
use crate::overwatch::state::State;
use crate::overwatch::theme::Theme;
use crate::overwatch::update::Subject;
use crate::overwatch::wrap::wrap;
use crate::protocol::status::{EpisodeDetail, EpisodeSummary};

/// Rows above the transcript.
const HEAD: u16 = 2;

/// Draws what is read.
pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme, hits: &mut Hits) {
    let [head, body] = Layout::vertical([Constraint::Length(HEAD), Constraint::Fill(1)]).areas(area);
    let detail = match shown(state) {
        Ok(detail) => detail,
        Err(note) => {
            let lines = wrap(&format!(" {note}"), area.width).into_iter().map(Line::raw);
            frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).style(theme.faint()), area);
            return;
        }
    };
    frame.render_widget(Paragraph::new(headline(state, detail, theme)), head);
    let block = theme.block(if state.view.tokens { "tokens" } else { "transcript" });
    let inner = block.inner(body);
    let lines = match state.view.tokens {
        true => tokens::lines(detail, inner.width, theme),
        false => text::lines(detail, inner.width, theme),
    };
    let height = usize::from(inner.height);
    let max_scroll = lines.len().saturating_sub(height);
    hits.max_scroll = Some(max_scroll);
    let start = state.view.transcript_scroll.min(max_scroll);
    let more = lines.len().saturating_sub(start + height);
    let block = if more > 0 {
        block.title_bottom(format!(" ↓ {} more ", counted(more as u64, "line")))
    } else {
        block
    };
    let visible: Vec<_> = lines.into_iter().skip(start).take(height).collect();
    frame.render_widget(Paragraph::new(visible).block(block), body);
}

/// Returns what is read, or why there is nothing.
fn shown(state: &State) -> Result<&EpisodeDetail, String> {
    match &state.known.transcript {
        Some((subject, detail)) if *subject == state.view.subject => detail.as_deref().map_err(Clone::clone),
        // What was found as the worst or the best is that episode from now on.
        Some((_, Ok(detail))) if Subject::Episode(detail.summary.episode_uuid.clone()) == state.view.subject => {
            Ok(detail)
        }
        _ => Err("reading the episode".into()),
    }
}

fn headline(state: &State, detail: &EpisodeDetail, theme: Theme) -> Vec<Line<'static>> {
    if state.view.subject == Subject::Latest {
        let title = Span::styled(" latest LLM call of any agent, live", theme.strong(Color::Cyan));
        return vec![
            title.into(),
            Line::styled(" w worst and b best episode of the last step", theme.faint()),
        ];
    }
    vec![
        outcome(detail, state.view.found.as_deref(), theme),
        Line::styled(format!(" {}", figures(detail, state.now)), theme.faint()),
    ]
}

/// Episode, as what it was `found`, task, reward with its parts.
fn outcome(detail: &EpisodeDetail, found: Option<&str>, theme: Theme) -> Line<'static> {
    let summary = &detail.summary;
    let id = short(&summary.episode_uuid);
    let name = match found {
        Some(found) => format!(" {found}: {id}  "),
        None => format!(" episode {id}  "),
    };
    let mut spans = vec![
        Span::styled(name, theme.strong(Color::Cyan)),
        Span::raw(format!("{}  ", summary.task_id)),
        Span::styled(result(detail.running, summary), theme.strong(Color::Green)),
    ];
    let parts = detail.log_metrics.iter().filter_map(|(name, value)| {
        let part = name.strip_prefix("reward/")?;
        Some(format!(
            "  {part} {}",
            value.as_f64().map_or_else(|| value.to_string(), number)
        ))
    });
    spans.extend(parts.map(Span::raw));
    spans.into()
}

fn result(running: bool, summary: &EpisodeSummary) -> String {
    let success = match summary.is_success {
        Some(true) => ", success",
        Some(false) => ", no success",
        None => "",
    };
    match (running, &summary.dropped) {
        (true, _) => "running".into(),
        (false, Some(reason)) => format!("dropped: {reason}"),
        (false, None) => format!("reward {}{success}", number(summary.reward)),
    }
}

fn figures(detail: &EpisodeDetail, now: f64) -> String {
    let summary = &detail.summary;
    let mut parts = vec![
        format!("{}, step {}", summary.episode_type.as_str(), summary.global_step),
        counted(summary.llm_calls, "call"),
        format!(
            "{} prompt and {} sampled tokens",
            count(summary.prompt_tokens),
            count(summary.completion_tokens)
        ),
    ];
    if summary.seconds > 0.0 {
        parts.push(format!("took {}", duration(summary.seconds)));
    }
    if summary.ended > 0.0 && !detail.running {
        parts.push(format!("ended {} ago", duration(now - summary.ended)));
    }
    if !summary.client_uuid.is_empty() {
        parts.push(format!("client {}", short(&summary.client_uuid)));
    }
    parts.join("  ")
}
