//! From an agent's LLM calls to training rows: pure, no I/O, no model.
//!
//! [`bridge`] makes the prompt of the next turn from what the model really saw and sampled, [`mod@merge`] turns the
//! calls of a finished episode into rows. Both reach the model's tokenizer and chat template through [`Renderer`].

pub mod bridge;
pub mod call;
pub mod conversation;
pub mod counters;
#[cfg(test)]
pub(crate) mod fake;
mod matching;
pub mod merge;
pub mod row;
#[cfg(test)]
mod tests;

pub use bridge::{Prompt, after_text, prompt_for};
pub use call::{Call, Conversation, RenderError, Renderer, TurnEnd};
pub use conversation::{Branch, branches};
pub use counters::{Counters, SplitReason};
pub use merge::{MergePolicy, merge};
pub use row::{Constrained, Row};
