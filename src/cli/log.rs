//! Logging to stderr, as text or JSON. By default: information of this crate and warnings of others, without colours if
//! `NO_COLOR` is set or stderr is not a terminal.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use tracing::{Event, Level};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::protocol::engine::LOG_FORMAT_VARIABLE;
use crate::terminal::{self, printable};

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line, for log collectors.
    Json,
    /// Sentences as commands that are no servers write them: `warning: …`, without a time.
    #[value(skip)]
    Sentences,
}

/// Option of the commands whose log programs may read.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LogArgs {
    /// Format of the log on stderr: text, or json for log collectors, an object per line.
    #[arg(long, value_name = "FORMAT", env = LOG_FORMAT_VARIABLE, default_value = "text", hide_possible_values = true)]
    pub log_format: Format,
}

/// Sets up logging for the process. `RUST_LOG` overrides `verbose` (0: warnings and, unless `is_quiet`, our information;
/// 1: information; 2: everything of this crate).
pub fn init(verbose: u8, is_quiet: bool, format: Format) {
    let default = match verbose {
        0 if is_quiet => "warn",
        0 => "warn,ajet_swarm=info",
        1 => "info,ajet_swarm=debug",
        _ => "debug,ajet_swarm=trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let colour = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A closed stderr is no reason to panic.
        .log_internal_errors(false)
        .with_target(false);
    match format {
        Format::Text => log
            .with_ansi(colour)
            .with_writer(move || Printable {
                to: std::io::stderr(),
                colour,
            })
            .init(),
        Format::Sentences => log
            .with_ansi(false)
            .event_format(Sentences)
            .with_writer(|| PrintableSentences(std::io::stderr()))
            .init(),
        Format::Json => log
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .with_writer(|| PrintableJson(std::io::stderr()))
            .init(),
    }
}

/// Formats events as sentences.
struct Sentences;

impl<S, N> FormatEvent<S, N> for Sentences
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        to.write_str(match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            Level::INFO => "",
            Level::DEBUG | Level::TRACE => "debug: ",
        })?;
        context.field_format().format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}

/// Writer of sentences, which may contain text of agents, engines and servers: escapes control characters.
struct PrintableSentences<W>(W);

impl<W: Write> Write for PrintableSentences<W> {
    /// Writes a whole sentence from the formatter.
    fn write(&mut self, sentence: &[u8]) -> io::Result<usize> {
        write!(self.0, "{}", printable(&String::from_utf8_lossy(sentence)))?;
        Ok(sentence.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writer of log lines that are JSON: escapes hidden characters, which the formatter leaves as they are.
struct PrintableJson<W>(W);

impl<W: Write> Write for PrintableJson<W> {
    /// Writes a whole line from the formatter.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write!(self.0, "{}", terminal::json(&String::from_utf8_lossy(line)))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writer of log lines, which may contain text of agents, engines and servers: escapes control characters, and indents
/// the continuation lines of a message so that none looks like a log line.
struct Printable<W> {
    to: W,
    /// Whether the log has colours. The formatter lets no message or field start an escape sequence.
    colour: bool,
}

impl<W: Write> Write for Printable<W> {
    /// Writes a whole line from the formatter.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let (text, end) = text.strip_suffix('\n').map_or((&*text, ""), |text| (text, "\n"));
        let text = text.replace('\n', "\n  ") + end;
        let mut rest = text.as_str();
        while let Some(at) = rest.find("\u{1b}[").filter(|_| self.colour) {
            let code = &rest[at + 2..];
            let length = code
                .bytes()
                .take_while(|byte| byte.is_ascii_digit() || *byte == b';')
                .count();
            let end = match code[length..].starts_with('m') {
                true => at + 2 + length + 1,
                false => at + 1,
            };
            let (own, kept) = (printable(&rest[..at]), &rest[at..end]);
            let kept = if kept.ends_with('m') {
                kept.into()
            } else {
                printable(kept)
            };
            write!(self.to, "{own}{kept}")?;
            rest = &rest[end..];
        }
        write!(self.to, "{}", printable(rest))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn words_of_others_in_the_log_do_not_steer_the_terminal() {
        for colour in [false, true] {
            let shared = Shared::default();
            let to = shared.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_writer(move || Printable { to: to.clone(), colour })
                .with_ansi(colour)
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                let words = "\u{1b}]52;c;x\u{7} \u{1b}[31mred\u{1b}[0m \u{9b}2J \u{202e}end";
                tracing::warn!("stderr of the agent: {words}");
                tracing::warn!(detail = words, "engine");
                tracing::warn!("one\n2026-01-02T03:04:05Z ERROR two\n\nhint: three");
            });
            let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
            assert!(!text.contains(['\u{7}', '\u{9b}', '\u{202e}']), "{text:?}");
            assert!(!text.contains("\u{1b}]") && !text.contains("\u{1b}[31m"), "{text:?}");
            assert_eq!(text.contains('\u{1b}'), colour, "{text:?}");
            assert!(text.contains("end"), "{text:?}");
            assert!(
                text.ends_with("one\n  2026-01-02T03:04:05Z ERROR two\n  \n  hint: three\n"),
                "{text:?}"
            );
        }
    }

    /// Seen in `roll`: lines with times and WARN beside `warning:` lines.
    #[test]
    fn a_command_warns_in_sentences() {
        let shared = Shared::default();
        let to = shared.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(Sentences)
            .with_writer(move || PrintableSentences(to.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!("the agent wrote \u{1b}[31mred\nhint: look");
            tracing::info!("worker: ready");
        });
        let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
        assert!(
            text.starts_with("warning: the agent wrote ") && !text.contains('\u{1b}'),
            "{text:?}"
        );
        assert!(text.ends_with("red\nhint: look\nworker: ready\n"), "{text:?}");
    }

    #[test]
    fn lines_in_json_say_which_request_and_episode_they_belong_to() {
        let shared = Shared::default();
        let to = shared.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .with_writer(move || PrintableJson(to.clone()))
            .finish();
        let words = "\u{1b}[31m two\nlines \u{202e}end";
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("request", id = "7", episode = tracing::field::Empty);
            span.record("episode", "e-1");
            span.in_scope(|| tracing::warn!(given = 9, "{words}"));
            tracing::info!("no request");
        });
        let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["level"], "WARN");
        assert_eq!(lines[0]["message"], words);
        assert_eq!(lines[0]["given"], 9);
        assert_eq!(
            lines[0]["span"],
            serde_json::json!({"name": "request", "id": "7", "episode": "e-1"})
        );
        assert!(lines[1].get("span").is_none(), "{text}");
    }
}
