//! The engine's standard error: log lines go to the server's log, and what is left explains the engine's end.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// Number of lines kept to report why the engine ended.
const LAST_LINES: usize = 5;
/// Maximum bytes kept of such a line.
const LINE_BYTES: usize = 400;
/// Maximum length of a line, so that output without line breaks needs no memory.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// A line of the engine's log, which it writes as JSON.
#[derive(Debug, Deserialize)]
struct LogLine {
    level: String,
    message: String,
    /// The request that the line belongs to.
    #[serde(default)]
    span: RequestSpan,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
struct RequestSpan {
    id: Option<String>,
    episode: Option<String>,
}

/// Reads the engine's standard error to its end and returns the lines that explain its end. Everything meant for users
/// arrives as events, so the lines are logged at debug level only.
pub(super) async fn log_lines(stderr: impl AsyncRead + Unpin) -> String {
    let mut reader = BufReader::new(stderr);
    let mut last = VecDeque::with_capacity(LAST_LINES);
    let mut line = Vec::new();
    // Bytes, not strings: a crash may write invalid UTF-8.
    while matches!(
        (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await,
        Ok(1..)
    ) {
        if let Some(text) = explanation(&line) {
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(text);
        }
        line.clear();
    }
    failure_text(last.make_contiguous())
}

/// Logs a line; returns it if it may explain the engine's end.
fn explanation(line: &[u8]) -> Option<String> {
    if let Ok(logged) = serde_json::from_slice::<LogLine>(line) {
        logged.relay();
        let message = shortened(logged.message.as_bytes()).replace('\n', " ");
        return (logged.level == "ERROR").then(|| format!("error: {message}"));
    }
    let text = shortened(line);
    tracing::debug!("engine: {text}");
    (!text.trim().is_empty() && !text.starts_with("note: run with")).then_some(text)
}

fn shortened(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES)]);
    text.trim_end().to_owned()
}

impl LogLine {
    /// Writes the line to the server's log, under the same request and episode.
    fn relay(&self) {
        let RequestSpan { id, episode } = &self.span;
        let span = tracing::debug_span!("engine", id, episode);
        let more = self.fields.iter().filter(|(name, _)| *name != "timestamp");
        let more: String = more.map(|(name, value)| format!(" {name}={value}")).collect();
        span.in_scope(|| tracing::debug!("engine: {} {}{more}", self.level, self.message));
    }
}

/// Returns a process's own explanation of its end: the error and the lines after it, or the last line.
fn failure_text(lines: &[String]) -> String {
    let is_error = |line: &String| line.starts_with("error:") || line.contains("panicked at");
    let from = lines.iter().position(is_error).unwrap_or(lines.len().saturating_sub(1));
    let words = lines[from..].join(" ");
    words.strip_prefix("error: ").map_or(words.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = r#"{"timestamp":"2026-01-02T03:04:05.678901Z","level":"INFO","message":"step 3"}"#;

    /// Seen with a reason that quoted the last INFO line.
    #[tokio::test]
    async fn the_explanation_has_errors_and_no_ordinary_line_of_the_log() {
        let warning = r#"{"level":"WARN","message":"slow","given":7,"span":{"id":"1","episode":"e","name":"request"}}"#;
        let error = r#"{"level":"ERROR","message":"bad weights\nhint: other weights"}"#;
        for (lines, explanation) in [
            (vec![INFO], ""),
            (vec![INFO, warning], ""),
            (vec!["error: full", INFO, INFO, warning, INFO, INFO], "full"),
            (vec![INFO, error, INFO], "bad weights hint: other weights"),
            (
                vec![INFO, "thread 'x' panicked at a.rs:", "  left: 1", "note: run with"],
                "thread 'x' panicked at a.rs:   left: 1",
            ),
            (vec!["memory allocation failed", INFO], "memory allocation failed"),
            (vec!["a", "error: b", "hint: c"], "b hint: c"),
            (vec!["a", "b", ""], "b"),
            (vec![r#"{"level":7}"#], r#"{"level":7}"#),
            (vec![], ""),
        ] {
            assert_eq!(log_lines(lines.join("\n").as_bytes()).await, explanation, "{lines:?}");
        }
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_cut_and_the_next_one_is_read() {
        let text = format!("{}\nerror: full", "x".repeat(300_000));
        assert_eq!(log_lines(text.as_bytes()).await, "full");
    }
}
