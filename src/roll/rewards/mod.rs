//! Rewards: what an answer is worth.
//!
//! A job's [`Reward`] is configuration; the [`Scorer`] made of it gives each [`Answer`] a [`Score`], or a [`RewardError`]
//! by which the episode is aborted. A missing reward is never taken as 0.

mod answer;
mod command;
mod compare;
mod config;
mod context;
mod error;
mod formula;
mod json_path;
mod judge;
mod number;
mod regex_match;
mod scorer;
#[cfg(test)]
pub(super) mod test_judge;
#[cfg(test)]
mod tests;
mod text;
mod weighted;

pub use answer::{Answer, Score};
pub use config::{Reward, SetupError};
pub use error::RewardError;
pub use judge::JudgeError;
pub use scorer::Scorer;
