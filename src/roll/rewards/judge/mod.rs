//! Rewards by another model: any OpenAI-compatible one, asked with retries, a limit on requests at once and a timeout.

mod client;
mod error;
#[cfg(test)]
pub(in crate::roll) mod fake;
mod group;
#[cfg(test)]
mod group_tests;
mod llm;
#[cfg(test)]
mod llm_tests;
mod score;

pub use client::{Judge, JudgeModel};
pub use error::JudgeError;
pub use group::{GroupJudge, GroupPrompt, PROMPT as GROUP_PROMPT, RUBRIC, Scale};
pub use llm::{LlmJudge, LlmPrompt, PROMPT as LLM_PROMPT};
pub use score::{ScoreFormat, ScoreRange};
