//! Errors of grammars.

/// Maximum number of characters quoted of a message of llguidance.
const QUOTED: usize = 200;

/// An error of a grammar. Messages are for the user.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    /// A JSON schema cannot be enforced.
    #[error("the schema is not supported at `{place}`: {reason}")]
    Schema {
        /// JSON pointer of the part that is not supported; `#` for the schema itself.
        place: String,
        /// The reason.
        reason: String,
    },
    /// A grammar cannot be compiled.
    #[error("cannot compile the grammar of the answer: {0}")]
    Compile(String),
    /// The tokenizer cannot be used with grammars.
    #[error("the model's tokenizer does not support structured output: {0}")]
    Vocabulary(String),
    /// A token is not allowed by the grammar.
    #[error("the grammar does not allow token {0} here")]
    Token(u32),
    /// The allowed tokens cannot be computed.
    #[error("cannot compute the tokens that the grammar allows: {0}")]
    Mask(String),
}

/// Result with a [`GrammarError`].
pub type Result<T> = std::result::Result<T, GrammarError>;

/// Returns a message of llguidance in one line, without what it quotes of a long grammar.
pub(super) fn one_line(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
