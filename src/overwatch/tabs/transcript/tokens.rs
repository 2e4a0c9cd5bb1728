//! Training rows as tokens: those that are trained on are marked.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::overwatch::format::{counted, number};
use crate::overwatch::theme::Theme;
use crate::overwatch::wrap::columns;
use crate::protocol::status::{EpisodeDetail, TokenRow};

/// Returns all rows.
pub(super) fn lines(detail: &EpisodeDetail, width: u16, theme: Theme) -> Vec<Line<'static>> {
    if detail.rows.is_empty() {
        return vec![Line::styled("no tokens are kept of this episode", theme.faint())];
    }
    let mut lines = vec![];
    for (place, row) in detail.rows.iter().enumerate() {
        lines.push(Line::styled(title(row, place, detail.rows.len()), theme.faint()));
        lines.extend(row_lines(row, width, theme));
    }
    lines
}

fn title(row: &TokenRow, place: usize, count: usize) -> String {
    let trained: Vec<usize> = (0..row.mask.len()).filter(|token| row.mask[*token]).collect();
    let mut title = format!(
        "── row {} of {count}: {}, {} trained (underlined)",
        place + 1,
        counted(row.ids.len() as u64, "token"),
        trained.len()
    );
    let mean = |values: &[f32]| {
        let known: Vec<f64> = trained
            .iter()
            .filter_map(|token| values.get(*token))
            .map(|value| f64::from(*value))
            .collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    if let Some(mean) = mean(&row.logprobs) {
        title += &format!(", mean log-probability {}", number(mean));
    }
    if let Some(mean) = row.advantages.as_deref().and_then(mean) {
        title += &format!(", mean advantage {}", number(mean));
    }
    if row.truncated {
        title += ", truncated by a limit";
    }
    title
}

/// Returns a row's tokens in lines of at most `width` columns.
fn row_lines(row: &TokenRow, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let (mut lines, mut spans, mut used) = (vec![], vec![], 0);
    for (token, text) in row.texts.iter().enumerate() {
        let style = style(row.mask.get(token) == Some(&true), theme);
        let mut piece = String::new();
        for character in text.chars() {
            let size = columns(character);
            if character == '\n' || used + size > usize::from(width) {
                spans.push(Span::styled(std::mem::take(&mut piece), style));
                lines.push(Line::from(std::mem::take(&mut spans)));
                used = 0;
            }
            if character != '\n' {
                piece.push(character);
                used += size;
            }
        }
        spans.push(Span::styled(piece, style));
    }
    lines.push(Line::from(spans));
    lines
}

fn style(trained: bool, theme: Theme) -> Style {
    match trained {
        true => theme.colored(Color::Green).add_modifier(Modifier::UNDERLINED),
        false => theme.faint(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_marked_by_the_mask() {
        let row = TokenRow {
            ids: vec![1, 2, 3],
            texts: vec!["ab".into(), "c\nd".into(), "efg".into()],
            mask: vec![false, true, true],
            logprobs: vec![0.0, -1.0, -0.5],
            advantages: Some(vec![0.0, 0.5, 0.5]),
            truncated: true,
        };
        let detail = EpisodeDetail {
            rows: vec![row],
            ..EpisodeDetail::default()
        };
        let lines = lines(&detail, 3, Theme { color: false });
        let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "── row 1 of 1: 3 tokens, 2 trained (underlined), mean log-probability -0.750, mean advantage 0.500, \
                 truncated by a limit",
                "abc",
                "def",
                "g"
            ]
        );
        let underlined = |line: &Line| -> String {
            let spans = line
                .spans
                .iter()
                .filter(|span| span.style.add_modifier.contains(Modifier::UNDERLINED));
            spans.map(|span| span.content.to_string()).collect()
        };
        assert_eq!(lines[1..].iter().map(underlined).collect::<Vec<_>>(), ["c", "def", "g"]);
    }
}
