//! The checkpoints that a run ends with, read from the experiment's directory.

use std::path::Path;

use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::protocol::checkpoint::{BEST, BestCheckpoint};

/// Checkpoints of one experiment.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// Directory of the newest one.
    pub newest: Option<String>,
    pub best: Option<BestCheckpoint>,
}

impl Checkpoints {
    /// Reads which they are in a directory of checkpoints of this machine; before the first one there are none.
    pub fn read(dir: &Path) -> Self {
        // The marker holds the name of a folder beside it.
        let latest = read_text(&dir.join("latest"), DOCUMENT_BYTES).ok();
        let best = read_text(&dir.join(BEST), DOCUMENT_BYTES).ok();
        Self {
            newest: latest.map(|name| dir.join(name.trim()).display().to_string()),
            best: best.and_then(|best| serde_json::from_str(&best).ok()),
        }
    }

    /// Those of another machine, of which only the directory is known.
    pub fn somewhere_in(dir: &Path) -> Self {
        Self {
            newest: Some(dir.display().to_string()),
            best: None,
        }
    }
}
