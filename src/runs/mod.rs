//! Reading the files of experiments: metrics by step, episodes and transcripts (`protocol/run_files.rs`).
//!
//! A running engine appends to them meanwhile; each index reads only what is new. Names come from the network and never
//! lead out of the experiments' directory.

mod episodes;
mod error;
mod experiments;
mod growing_file;
mod history;
mod transcript;

pub use episodes::{EpisodeIndex, EpisodeQuery, KEPT};
pub use error::RunsError;
pub use experiments::Experiments;
pub use history::{HistoryQuery, MetricsIndex};
pub use transcript::read_transcript;
