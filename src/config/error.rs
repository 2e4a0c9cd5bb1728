//! What can be wrong with a configuration.

use std::fmt;

/// Why a configuration was refused. Every problem of a document is told at once.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The text is not YAML.
    #[error("the configuration is not valid YAML: {0}")]
    Syntax(String),
    /// The document is a list or a single value.
    #[error("the configuration is {0}, not a mapping with an `ajet:` section")]
    NotAMapping(String),
    /// There is nothing to train with.
    #[error("the configuration has no `ajet:` section\nhint: its keys, such as `model` and `data`, go below `ajet:`")]
    NoAjetSection,
    /// Keys that are unknown or have values that are not allowed.
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
}

/// What is wrong with one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its path, such as `ajet.data.train_batch_size`.
    pub key: String,
    /// The value given and what is allowed.
    pub message: String,
}

impl Problem {
    /// A problem of `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}
