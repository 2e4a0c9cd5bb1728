//! What cargo says: JSON messages on standard output, progress and its own errors on standard error.

use std::path::PathBuf;

use serde::Deserialize;

/// A message that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// An error of the compiler.
    Error {
        /// One line: the message and where it is.
        summary: String,
        /// As the compiler shows it.
        rendered: String,
    },
    /// A warning, as the compiler shows it.
    Warning(String),
    /// A program was built, or was up to date.
    Program {
        /// Its name.
        name: String,
        /// Its file.
        path: PathBuf,
    },
}

#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Line {
    CompilerMessage {
        message: Diagnostic,
    },
    CompilerArtifact {
        target: Target,
        executable: Option<PathBuf>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    message: String,
    #[serde(default)]
    code: Option<Code>,
    #[serde(default)]
    spans: Vec<Span>,
    #[serde(default)]
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

#[derive(Deserialize)]
struct Span {
    file_name: String,
    line_start: u64,
    column_start: u64,
    is_primary: bool,
}

/// Reads a line of standard output; `None` for what does not matter.
pub fn message(line: &str) -> Option<Message> {
    match serde_json::from_str(line).ok()? {
        Line::CompilerMessage { message } => message.read(),
        Line::CompilerArtifact { target, executable } => Some(Message::Program {
            name: target.name,
            path: executable?,
        }),
        Line::Other => None,
    }
}

impl Diagnostic {
    fn read(self) -> Option<Message> {
        let summary = self.summary();
        let rendered = self.rendered.unwrap_or_else(|| summary.clone());
        match self.level.as_str() {
            level if level.starts_with("error") => Some(Message::Error { summary, rendered }),
            "warning" => Some(Message::Warning(rendered)),
            _ => None,
        }
    }

    fn summary(&self) -> String {
        let code = self
            .code
            .as_ref()
            .map_or(String::new(), |code| format!("[{}]", code.code));
        let place = self.spans.iter().find(|span| span.is_primary);
        let place = place.map_or(String::new(), |span| {
            format!(" ({}:{}:{})", span.file_name, span.line_start, span.column_start)
        });
        format!("error{code}: {}{place}", self.message)
    }
}

/// How far a build is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Crates that are built.
    pub done: u64,
    /// Crates to build.
    pub total: u64,
    /// Those under way.
    pub running: String,
}

/// Reads a progress bar of standard error, such as `Building [===>   ] 12/345: serde, syn`.
pub fn progress(line: &str) -> Option<Progress> {
    let (_, rest) = line.trim_start().strip_prefix("Building [")?.split_once("] ")?;
    let (counts, running) = rest.split_once(':').unwrap_or((rest, ""));
    let (done, total) = counts.trim().split_once('/')?;
    Some(Progress {
        done: done.parse().ok()?,
        total: total.parse().ok()?,
        running: running.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_and_all_else_is_left_out() {
        let error = r#"{"reason":"compiler-message","package_id":"p","target":{"name":"ajet_swarm"},"message":{
            "rendered":"error[E0425]: cannot find value `x`\n --> src/a.rs:3:5\n","level":"error",
            "message":"cannot find value `x` in this scope","code":{"code":"E0425","explanation":null},"spans":[
            {"file_name":"src/b.rs","line_start":1,"column_start":1,"is_primary":false},
            {"file_name":"src/a.rs","line_start":3,"column_start":5,"is_primary":true}],"children":[]}}"#;
        let summary = "error[E0425]: cannot find value `x` in this scope (src/a.rs:3:5)".to_owned();
        let rendered = "error[E0425]: cannot find value `x`\n --> src/a.rs:3:5\n".to_owned();
        assert_eq!(message(error), Some(Message::Error { summary, rendered }));
        let program = r#"{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"ajet-swarm"},
            "executable":"/t/synced/ajet-swarm","fresh":true}"#;
        let path = "/t/synced/ajet-swarm".into();
        let name = "ajet-swarm".to_owned();
        assert_eq!(message(program), Some(Message::Program { name, path }));
        let warning =
            r#"{"reason":"compiler-message","message":{"level":"warning","message":"unused","rendered":"w"}}"#;
        assert_eq!(message(warning), Some(Message::Warning("w".into())));
        let internal =
            r#"{"reason":"compiler-message","message":{"level":"error: internal compiler error","message":"m"}}"#;
        assert!(matches!(message(internal), Some(Message::Error { .. })));
        for other in [
            r#"{"reason":"compiler-artifact","target":{"name":"serde"},"executable":null}"#,
            r#"{"reason":"compiler-message","message":{"level":"note","message":"m"}}"#,
            r#"{"reason":"build-finished","success":false}"#,
            "no JSON",
            "",
        ] {
            assert_eq!(message(other), None, "{other}");
        }
    }

    #[test]
    fn progress_is_that_of_the_bar() {
        let read = |line: &str| progress(line).map(|progress| (progress.done, progress.total, progress.running));
        for (line, expected) in [
            (
                "    Building [===>     ] 12/345: serde, syn",
                Some((12, 345, "serde, syn".to_owned())),
            ),
            ("    Building [========>] 345/346", Some((345, 346, String::new()))),
            ("   Compiling serde v1.0.0", None),
            ("    Building [", None),
            ("    Building [=>] x/y: z", None),
        ] {
            assert_eq!(read(line), expected, "{line}");
        }
    }
}
