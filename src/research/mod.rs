//! Research without a person: runs the variants of a plan with several seeds, and says which is better and whether the
//! difference is more than noise.
//!
//! A [`plan`] names a job, variants of its configuration or of the training code, and seeds. Each run is a `roll` of its
//! own experiment. All results are on disk ([`record`]), so that a killed research resumes: ended runs are not
//! repeated, and a run that was in progress resumes its experiment.

mod code;
mod error;
mod events;
pub mod plan;
pub mod record;
pub mod report;
mod roll_process;
mod runner;
mod statistics;

pub use error::ResearchError;
pub use runner::{Options, run};
