//! Names and directories of the adapters that endpoints load: one for each version of the weights.

use std::path::{Path, PathBuf};

/// Weights that endpoints sample with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Version of the weights in this engine.
    pub version: u64,
    /// Name of the adapter at the endpoints, which no other weights have.
    pub name: String,
    /// Directory of the adapter.
    pub dir: PathBuf,
}

/// Names the adapters of one engine.
#[derive(Clone, Debug)]
pub struct AdapterNames {
    experiment: String,
    /// Differs between engines of an experiment, since a restarted one may reach the same version with other weights.
    engine: String,
    dir: PathBuf,
}

impl AdapterNames {
    /// Creates the names for an engine of an experiment, whose adapters are written below `dir`.
    pub fn new(experiment: &str, engine: &str, dir: &Path) -> Self {
        Self {
            experiment: experiment.to_owned(),
            engine: engine.to_owned(),
            dir: dir.to_owned(),
        }
    }

    /// Returns the name and the directory of a version of the weights.
    pub fn of(&self, version: u64) -> Published {
        let name = format!("ajet.{}.{}.{version}", self.experiment, self.engine);
        Published {
            version,
            dir: self.dir.join(&name),
            name,
        }
    }

    /// Returns whether an adapter is of this experiment, of this engine or an earlier one.
    pub fn is_own(&self, name: &str) -> bool {
        let rest = name
            .strip_prefix("ajet.")
            .and_then(|name| name.strip_prefix(&self.experiment));
        let parts = rest.and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
        parts.is_some_and(|(engine, version)| !engine.is_empty() && version.parse::<u64>().is_ok())
    }

    /// Removes the directories of earlier adapters of the experiment. What cannot be removed stays.
    pub fn remove_all_but(&self, kept: &Published) {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            if self.is_own(&name.to_string_lossy()) && entry.path() != kept.dir {
                let _ = std::fs::remove_dir_all(entry.path()); // another try follows after the next update
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_experiment_and_only_its_old_adapters_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let names = AdapterNames::new("a.b", "1f", scratch.path());
        let published = names.of(3);
        assert_eq!(published.name, "ajet.a.b.1f.3");
        assert_eq!(published.dir, scratch.path().join("ajet.a.b.1f.3"));
        for (name, own) in [
            ("ajet.a.b.1f.3", true),
            ("ajet.a.b.other.12", true),
            ("ajet.a.b.c.1f.3", false),
            ("ajet.a.1f.3", false),
            ("ajet.a.b.1f.", false),
            ("Qwen/Qwen3-0.6B", false),
        ] {
            assert_eq!(names.is_own(name), own, "{name}");
            let _ = std::fs::create_dir_all(scratch.path().join(name.replace('/', "-")));
        }
        names.remove_all_but(&published);
        let mut left: Vec<_> = std::fs::read_dir(scratch.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "Qwen-Qwen3-0.6B",
                "ajet.a.1f.3",
                "ajet.a.b.1f.",
                "ajet.a.b.1f.3",
                "ajet.a.b.c.1f.3"
            ]
        );
    }
}
