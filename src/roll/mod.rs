//! `roll`: runs a job's tasks through an agent as episodes of a swarm, and reports the training's progress.
//!
//! A [`job::Job`] names tasks, agent and reward; [`run()`] starts server and engine, runs the episodes and reports what
//! the training changed. The client keeps no state: a run that is started again continues where the engine is.
//!
//! - What a job is: [`job`], [`tasks`] (read, ordered by `order`), [`agents`], [`rewards`], [`template`] and `expression`;
//!   [`check`] refuses what cannot run, `dry_run` reports what would.
//! - A run: `runner` from start to end, `training` in between, with `batch_plan` choosing the next episode, `attempt` and
//!   `episode` running it, `groups` scoring answers together and `failures` stopping a run in which too many fail.
//! - Its servers: `fleet` for several models (`swarms`, `joint_episode`, `phases`), `own_server` for one that is started
//!   here, `joining` and `lost_server` for engines and servers that were there before or went away.
//! - What it says: `progress` and [`report`], from `summary`, `pace`, `learning` and `concerns`.

pub mod agents;
mod attempt;
mod batch_plan;
mod batch_rule;
mod batch_view;
pub mod check;
mod checkpoints;
mod code;
mod concerns;
mod debug;
mod dry_run;
mod episode;
mod error;
mod expression;
mod failures;
mod fleet;
mod groups;
mod interrupt;
pub mod job;
pub mod job_schema;
mod joining;
mod joint_episode;
mod learning;
mod lost_server;
#[cfg(test)]
mod messages;
mod order;
mod own_server;
mod pace;
mod phases;
mod process;
mod progress;
mod record;
mod repeat;
pub mod report;
pub mod rewards;
mod run;
mod runner;
mod scores;
mod scoring;
mod summary;
mod swarms;
pub mod tasks;
pub mod template;
mod training;
mod transcript;

pub use debug::{Api, Shown, debug_one, play_on_api};
pub use dry_run::{CountTokens, dry_run};
pub use error::RollError;
pub use interrupt::{EndSignals, Interrupt};
pub use own_server::{OwnServer, STAY, ServerError};
pub use process::{ProgramError, keep_from_programs, supervise, supervise_with};
pub use progress::Progress;
pub use run::Options;
pub use runner::run;

pub use swarms::{Swarm, TrainedModel};
