//! Structured output: JSON schemas and tool calls as grammars, and the tokens that a grammar allows next.
//!
//! A grammar is a text in llguidance's variant of Lark, built by [`AnswerGrammar`]. It is all that is needed to replay
//! the choices of an answer: the sampler and the trainer compile the same text ([`Grammars`]) and get the same sets of
//! allowed tokens from its [`Matcher`].

mod answer;
mod error;
mod grammars;
mod matcher;
mod schema_check;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use answer::{AnswerGrammar, CallSyntax, Calls, Content, Function, Opened, Reasoning};
pub use error::GrammarError;
pub use grammars::Grammars;
pub use matcher::Matcher;
pub use schema_check::check_schema;
