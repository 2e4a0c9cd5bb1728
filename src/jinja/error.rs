//! What is wrong with a template.

use minijinja::Error;

/// Why a template was not compiled or rendered: the message that it raised itself, or what went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", .line.map_or_else(String::new, |line| format!(" (line {line} of the template)")))]
pub struct TemplateError {
    /// What went wrong.
    pub message: String,
    /// The line of the source, from 1, where it is known.
    pub line: Option<usize>,
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        Self {
            message: error.detail().map_or_else(|| error.kind().to_string(), String::from),
            line: error.line(),
        }
    }
}
