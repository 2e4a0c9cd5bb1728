//! Indexes of the experiments that dashboards requested last, so that a request reads only what is new.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::runs::{EpisodeIndex, MetricsIndex};

/// Maximum number of experiments with an index in memory.
const CACHED: usize = 8;

/// Indexes of one experiment.
#[derive(Debug)]
pub struct RunIndexes {
    /// Metrics by step.
    pub metrics: MetricsIndex,
    /// Finished episodes.
    pub episodes: EpisodeIndex,
}

/// Indexes by directory, the last used one last.
#[derive(Debug, Default)]
pub struct RunCache {
    entries: Mutex<Vec<(PathBuf, Arc<Mutex<RunIndexes>>)>>,
}

impl RunCache {
    /// Runs `read` on the indexes of an experiment's directory. Waits for the disk.
    pub fn with<R>(&self, dir: &Path, read: impl FnOnce(&mut RunIndexes) -> R) -> R {
        let indexes = self.indexes(dir);
        // Poisoning is ignored: an index only lacks what it has not read.
        let mut indexes = indexes.lock().unwrap_or_else(PoisonError::into_inner);
        read(&mut indexes)
    }

    fn indexes(&self, dir: &Path) -> Arc<Mutex<RunIndexes>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match entries.iter().position(|(cached, _)| cached == dir) {
            Some(place) => entries.remove(place),
            None => {
                let indexes = RunIndexes {
                    metrics: MetricsIndex::new(dir),
                    episodes: EpisodeIndex::new(dir),
                };
                (dir.to_owned(), Arc::new(Mutex::new(indexes)))
            }
        };
        let indexes = Arc::clone(&entry.1);
        entries.push(entry);
        if entries.len() > CACHED {
            entries.remove(0);
        }
        indexes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_experiments_that_were_not_asked_for_are_forgotten() {
        let cache = RunCache::default();
        for number in 0..CACHED + 3 {
            cache.with(Path::new("/first"), |_| ());
            cache.with(Path::new(&format!("/{number}")), |_| ());
        }
        let entries = cache.entries.lock().unwrap();
        assert_eq!(entries.len(), CACHED);
        assert!(entries.iter().any(|(dir, _)| dir == Path::new("/first")));
    }
}
