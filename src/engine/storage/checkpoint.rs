//! Checkpoints on disk: `<experiment_dir>/checkpoints/global_step_<n>/`.
//!
//! A checkpoint is written into a temporary directory, made durable, renamed, and only then named in `latest`; so a
//! kill at any moment leaves the previous one loadable. Its `manifest.json` lists every file with size and SHA-256, so
//! that a missing, truncated or altered file is found before anything is loaded. The writer decides on the contents:
//! the model in the Hugging Face layout (or the PEFT adapter) at the top, and the trainer's state under `trainer/`.

use std::io;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::durable;
use crate::config::checksum::sha256_of_file;
use crate::config::small_file::{DOCUMENT_BYTES, read_bytes};
use crate::engine::batch::identity::RunIdentity;
use crate::protocol::checkpoint::{
    self, BEST, BestCheckpoint, DIR_NAME, LATEST, MANIFEST, TRAINER_DIR, directory_name, parse_step,
};

const TEMPORARY_PREFIX: &str = ".unfinished-";

/// Contents of a checkpoint.
pub type Manifest = checkpoint::Manifest<RunIdentity>;

const FORMAT: u32 = 1;

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its directory.
    pub dir: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
}

impl Checkpoint {
    /// Loads a checkpoint if every file of its manifest is present and unchanged; otherwise returns a message.
    fn load(dir: PathBuf) -> Result<Self, String> {
        let text = read_bytes(&dir.join(MANIFEST), DOCUMENT_BYTES).map_err(|e| format!("{MANIFEST}: {e}"))?;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| format!("{MANIFEST}: {e}"))?;
        if manifest.format != FORMAT {
            return Err(format!(
                "unsupported layout version {}; this program reads {FORMAT}",
                manifest.format
            ));
        }
        for (name, size) in &manifest.files {
            let found = std::fs::metadata(dir.join(name))
                .map_err(|e| format!("{name}: {e}"))?
                .len();
            if found != *size {
                return Err(format!("{name} has {found} bytes, expected {size}"));
            }
        }
        for (name, expected) in &manifest.sha256 {
            let found = sha256_of_file(&dir.join(name)).map_err(|e| format!("{name}: {e}"))?;
            if found != *expected {
                return Err(format!("the checksum of {name} does not match"));
            }
        }
        Ok(Self { dir, manifest })
    }

    /// Finds the checkpoint at a path: a checkpoint directory, or an experiment directory, whose resume point is used.
    /// Otherwise returns a message.
    pub fn find(path: &Path) -> Result<Self, String> {
        if path.join(MANIFEST).exists() {
            return Self::load(path.to_owned())
                .map_err(|why| format!("the checkpoint {} is damaged: {why}", path.display()));
        }
        let (found, warnings) = CheckpointStore::new(path, 1, RunIdentity::default()).resume_point();
        found.ok_or_else(|| {
            let mut message = format!("no checkpoint found in {}", path.display());
            warnings.iter().for_each(|warning| message += &format!("; {warning}"));
            message
        })
    }

    /// Returns the directory of the trainer's state.
    pub fn trainer_dir(&self) -> PathBuf {
        self.dir.join(TRAINER_DIR)
    }
}

/// Reasons why a checkpoint cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system failed.
    #[error("cannot write the checkpoint of step {global_step} to {dir}: {source}")]
    Io {
        /// Step of the checkpoint.
        global_step: u64,
        /// Directory of checkpoints.
        dir: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Model or trainer state cannot be written.
    #[error("cannot write the checkpoint of step {global_step}: {message}")]
    Content {
        /// Step of the checkpoint.
        global_step: u64,
        /// Reason.
        message: String,
    },
}

/// Checkpoints of one experiment.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    dir: PathBuf,
    keep_last: usize,
    run: RunIdentity,
}

impl CheckpointStore {
    /// Opens the checkpoints of `experiment_dir`, of which the last `keep_last` (at least one) are kept.
    pub fn new(experiment_dir: &Path, keep_last: usize, run: RunIdentity) -> Self {
        Self {
            dir: experiment_dir.join(DIR_NAME),
            keep_last: keep_last.max(1),
            run,
        }
    }

    /// Writes the checkpoint of `global_step` to disk, not yet visible to a resume: `fill` writes model and trainer state
    /// into the given directory.
    ///
    /// # Errors
    /// The file system fails, or the state cannot be written. The checkpoints are unchanged.
    pub fn stage<E: std::fmt::Display>(
        &self,
        global_step: u64,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<StagedCheckpoint<'_>, CheckpointError> {
        let io = |source| self.io_error(global_step, source);
        self.remove_unfinished().map_err(io)?;
        let temporary = self.dir.join(format!("{TEMPORARY_PREFIX}{global_step}"));
        // Removes the directory again when it is dropped on an error.
        let staged = StagedCheckpoint {
            store: self,
            global_step,
            temporary,
        };
        durable::create_dir(&staged.temporary.join(TRAINER_DIR)).map_err(io)?;
        fill(&staged.temporary).map_err(|e| CheckpointError::Content {
            global_step,
            message: e.to_string(),
        })?;
        self.complete(&staged.temporary, global_step).map_err(io)?;
        Ok(staged)
    }

    fn io_error(&self, global_step: u64, source: io::Error) -> CheckpointError {
        CheckpointError::Io {
            global_step,
            dir: self.dir.clone(),
            source,
        }
    }

    /// Returns the checkpoint to resume from, which is the one named by `latest` or, if that is damaged, the newest
    /// intact one before it; and a message about each one skipped.
    pub fn resume_point(&self) -> (Option<Checkpoint>, Vec<String>) {
        let mut warnings = Vec::new();
        let latest = std::fs::read_to_string(self.dir.join(LATEST)).ok();
        let newest_wanted = latest
            .as_deref()
            .and_then(|name| parse_step(name.trim()))
            .unwrap_or(u64::MAX);
        for step in self.steps().into_iter().rev().filter(|s| *s <= newest_wanted) {
            match Checkpoint::load(self.dir.join(directory_name(step))) {
                Ok(checkpoint) => {
                    if newest_wanted != u64::MAX && step != newest_wanted {
                        warnings.push(format!("resuming from the earlier checkpoint {}", directory_name(step)));
                    }
                    return (Some(checkpoint), warnings);
                }
                Err(why) => warnings.push(format!("the checkpoint {} is damaged: {why}", directory_name(step))),
            }
        }
        if latest.is_some() {
            warnings.push("no intact checkpoint is left; starting from the original model".into());
        }
        (None, warnings)
    }

    /// Writes the manifest and makes all files durable.
    fn complete(&self, temporary: &Path, global_step: u64) -> io::Result<()> {
        let files = list_files(temporary)?;
        let sha256 = files
            .keys()
            .map(|name| Ok((name.clone(), sha256_of_file(&temporary.join(name))?)))
            .collect::<io::Result<_>>()?;
        let manifest = Manifest {
            format: FORMAT,
            global_step,
            run: self.run.clone(),
            files,
            sha256,
        };
        std::fs::write(temporary.join(MANIFEST), serde_json::to_vec_pretty(&manifest)?)?;
        durable::make_private(temporary)?;
        durable::sync_tree(temporary)
    }

    /// Renames the checkpoint, updates `latest` and removes old checkpoints.
    fn rename_and_point_to(&self, temporary: &Path, global_step: u64) -> io::Result<PathBuf> {
        let name = directory_name(global_step);
        let finished = self.dir.join(&name);
        if finished.exists() {
            // Left by a run that was killed before it could update `latest`, or that resumed from an older checkpoint.
            if self.best().is_some_and(|best| best.step == global_step) {
                std::fs::remove_file(self.dir.join(BEST))?; // what was measured goes
            }
            self.discard(&finished)?;
        }
        std::fs::rename(temporary, &finished)?;
        durable::sync_parent(&finished)?;
        durable::replace(&self.dir.join(LATEST), name.as_bytes())?;
        self.prune(global_step);
        Ok(finished)
    }

    /// Returns the best checkpoint, if there is one.
    pub fn best(&self) -> Option<BestCheckpoint> {
        let text = read_bytes(&self.dir.join(BEST), DOCUMENT_BYTES).ok()?;
        let best: BestCheckpoint = serde_json::from_slice(&text).ok()?;
        self.dir
            .join(directory_name(best.step))
            .join(MANIFEST)
            .exists()
            .then_some(best)
    }

    /// Takes a measurement of a checkpoint into account. Returns whether it is the best one so far.
    ///
    /// # Errors
    /// The file system fails.
    pub fn measure(&self, measured: &BestCheckpoint) -> io::Result<bool> {
        let exists = self.dir.join(directory_name(measured.step)).join(MANIFEST).exists();
        if !exists || self.best().is_some_and(|best| !measured.replaces(&best)) {
            return Ok(false);
        }
        durable::replace(&self.dir.join(BEST), &serde_json::to_vec(measured)?)?;
        Ok(true)
    }

    /// Removes all but the best and the last `keep_last` checkpoints up to `global_step`. One that cannot be removed only
    /// takes space.
    fn prune(&self, global_step: u64) {
        let old = self.steps().into_iter().rev().filter(|s| *s <= global_step);
        let best = self.best().map(|best| best.step);
        for step in old.skip(self.keep_last).filter(|step| Some(*step) != best) {
            if let Err(error) = self.discard(&self.dir.join(directory_name(step))) {
                tracing::warn!("cannot remove the old checkpoint {}: {error}", directory_name(step));
            }
        }
    }

    /// Removes a checkpoint; renames it first, so that a kill does not leave half of one under its name.
    fn discard(&self, dir: &Path) -> io::Result<()> {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let doomed = self.dir.join(format!("{TEMPORARY_PREFIX}removed-{name}"));
        std::fs::rename(dir, &doomed)?;
        std::fs::remove_dir_all(&doomed)
    }

    fn remove_unfinished(&self) -> io::Result<()> {
        let Ok(entries) = std::fs::read_dir(&self.dir) else {
            return Ok(()); // no checkpoint yet
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX) {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Returns the steps that have a directory, ascending.
    fn steps(&self) -> Vec<u64> {
        let mut steps: Vec<u64> = std::fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .filter_map(|entry| parse_step(&entry.ok()?.file_name().to_string_lossy()))
            .collect();
        steps.sort_unstable();
        steps
    }
}

/// A checkpoint that is complete on disk and that no resume sees yet. Dropped without being published, it is removed.
#[derive(Debug)]
#[must_use]
pub struct StagedCheckpoint<'a> {
    store: &'a CheckpointStore,
    global_step: u64,
    temporary: PathBuf,
}

impl StagedCheckpoint<'_> {
    /// Makes it the checkpoint that a resume starts from, removes old ones, and returns its directory.
    ///
    /// # Errors
    /// The file system fails. The checkpoints are unchanged.
    pub fn publish(self) -> Result<PathBuf, CheckpointError> {
        let renamed = self.store.rename_and_point_to(&self.temporary, self.global_step);
        renamed.map_err(|source| self.store.io_error(self.global_step, source))
    }
}

impl Drop for StagedCheckpoint<'_> {
    fn drop(&mut self) {
        // Gone where it was published. Otherwise this frees space; the next attempt removes what is left.
        let _ = std::fs::remove_dir_all(&self.temporary);
    }
}

/// Lists all files below `dir` with their sizes, by relative path.
fn list_files(dir: &Path) -> io::Result<IndexMap<String, u64>> {
    fn walk(dir: &Path, prefix: &str, files: &mut IndexMap<String, u64>) -> io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                walk(&entry.path(), &format!("{name}/"), files)?;
            } else {
                files.insert(name, entry.metadata()?.len());
            }
        }
        Ok(())
    }
    let mut files = IndexMap::new();
    walk(dir, "", &mut files)?;
    files.sort_keys();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch {
        dir: tempfile::TempDir,
        store: CheckpointStore,
    }

    impl Scratch {
        fn new(keep_last: usize) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = CheckpointStore::new(dir.path(), keep_last, RunIdentity::default());
            Self { dir, store }
        }

        fn write(&self, step: u64) -> PathBuf {
            let fill = |dir: &Path| -> io::Result<()> {
                std::fs::write(dir.join("model.safetensors"), format!("weights of {step}"))?;
                std::fs::write(dir.join(TRAINER_DIR).join("state.json"), "{}")
            };
            self.store.stage(step, fill).unwrap().publish().unwrap()
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.dir.path().join(DIR_NAME)).unwrap();
            let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }

        fn resumes_at(&self) -> Option<u64> {
            self.store.resume_point().0.map(|c| c.manifest.global_step)
        }
    }

    // Seen in a kill between a checkpoint and what was to be written of its step.
    #[test]
    fn what_comes_before_publishing_comes_before_a_resume_sees_it() {
        let scratch = Scratch::new(2);
        scratch.write(1);
        let nothing = |_: &Path| io::Result::Ok(());
        let staged = scratch.store.stage(2, nothing).unwrap();
        assert_eq!(scratch.resumes_at(), Some(1));
        staged.publish().unwrap();
        assert_eq!(scratch.resumes_at(), Some(2));
        drop(scratch.store.stage(3, nothing).unwrap());
        assert_eq!((scratch.resumes_at(), scratch.names().len()), (Some(2), 3));
    }

    // Seen with the files that are copied from the model: they were as readable as that.
    #[test]
    fn all_of_a_checkpoint_is_its_owners_alone() {
        use crate::engine::storage::durable::tests::mode;
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new(1);
        let fill = |dir: &Path| -> io::Result<()> {
            std::fs::create_dir(dir.join("additional_chat_templates"))?;
            for (file, mode) in [
                ("config.json", 0o644),
                ("additional_chat_templates/tools.jinja", 0o666),
                ("weights", 0o400),
            ] {
                std::fs::write(dir.join(file), file)?;
                std::fs::set_permissions(dir.join(file), PermissionsExt::from_mode(mode))?;
            }
            Ok(())
        };
        let dir = scratch.store.stage(1, fill).unwrap().publish().unwrap();
        for file in [
            "config.json",
            "additional_chat_templates/tools.jinja",
            "weights",
            MANIFEST,
        ] {
            assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
        }
        for made in [
            dir.as_path(),
            &dir.join("additional_chat_templates"),
            &dir.join(TRAINER_DIR),
            &scratch.store.dir,
        ] {
            assert_eq!(mode(made), 0o700, "{}", made.display());
        }
    }

    #[test]
    fn the_last_ones_are_kept_and_the_newest_is_resumed() {
        let scratch = Scratch::new(2);
        assert_eq!(scratch.store.resume_point(), (None, vec![]));
        for step in [2, 4, 10] {
            scratch.write(step);
        }
        assert_eq!(scratch.names(), ["global_step_10", "global_step_4", LATEST]);
        let (checkpoint, warnings) = scratch.store.resume_point();
        let checkpoint = checkpoint.unwrap();
        assert_eq!((checkpoint.manifest.global_step, warnings.len()), (10, 0));
        assert!(checkpoint.manifest.files.contains_key("trainer/state.json"));
        assert!(checkpoint.trainer_dir().join("state.json").exists());
    }

    #[test]
    fn the_best_one_is_kept_until_there_is_a_better_one() {
        let scratch = Scratch::new(1);
        let measure = |step, value| {
            let measured = BestCheckpoint {
                step,
                metric: "eval/reward_mean".into(),
                value,
                episodes: 50,
            };
            scratch.store.measure(&measured).unwrap()
        };
        scratch.write(1);
        assert!(measure(1, 0.5) && !measure(7, 0.9), "there is no checkpoint 7");
        scratch.write(2);
        assert!(!measure(2, 0.4));
        scratch.write(3);
        assert_eq!(scratch.names(), [BEST, "global_step_1", "global_step_3", LATEST]);
        assert!(measure(3, 0.6));
        scratch.write(4);
        assert_eq!(scratch.names(), [BEST, "global_step_3", "global_step_4", LATEST]);
        assert_eq!(scratch.resumes_at(), Some(4));
        // A run that resumed from an older checkpoint writes other weights under this name.
        scratch.write(3);
        assert_eq!(
            (scratch.store.best(), scratch.names().contains(&BEST.into())),
            (None, false)
        );
    }

    #[test]
    fn a_best_file_that_says_nothing_is_replaced() {
        let scratch = Scratch::new(1);
        scratch.write(1);
        std::fs::write(scratch.store.dir.join(BEST), "{\"step\": 1").unwrap();
        assert_eq!(scratch.store.best(), None);
        let measured = BestCheckpoint {
            step: 1,
            metric: "reward_mean".into(),
            value: -3.0,
            episodes: 1,
        };
        assert!(scratch.store.measure(&measured).unwrap());
        assert_eq!(scratch.store.best(), Some(measured));
    }

    #[test]
    fn damage_of_any_kind_sends_the_resume_to_the_one_before_with_a_warning() {
        type Damage = fn(&Path);
        let damages: [(&str, Damage); 5] = [
            ("model.safetensors", |d| {
                std::fs::remove_file(d.join("model.safetensors")).unwrap()
            }),
            ("has 3 bytes, expected 12", |d| {
                std::fs::write(d.join("model.safetensors"), "wei").unwrap()
            }),
            ("the checksum of model.safetensors does not match", |d| {
                std::fs::write(d.join("model.safetensors"), "weights of 3").unwrap()
            }),
            (MANIFEST, |d| std::fs::remove_file(d.join(MANIFEST)).unwrap()),
            (MANIFEST, |d| std::fs::write(d.join(MANIFEST), "{\"for").unwrap()),
        ];
        for (told, damage) in damages {
            let scratch = Scratch::new(3);
            scratch.write(1);
            damage(&scratch.write(2));
            let (checkpoint, warnings) = scratch.store.resume_point();
            assert_eq!(checkpoint.unwrap().manifest.global_step, 1);
            assert!(
                warnings[0].contains("global_step_2") && warnings[0].contains(told),
                "{warnings:?}"
            );
            assert!(warnings[1].contains("global_step_1"));
        }
    }

    #[test]
    fn a_checkpoint_from_before_there_were_checksums_is_still_resumed() {
        let scratch = Scratch::new(3);
        let path = scratch.write(1).join(MANIFEST);
        let mut manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        manifest.as_object_mut().unwrap().remove("sha256").unwrap();
        std::fs::write(&path, manifest.to_string()).unwrap();
        assert_eq!(scratch.resumes_at(), Some(1));
    }

    #[test]
    fn a_directory_that_vanished_or_nothing_whole_at_all_is_told() {
        let scratch = Scratch::new(3);
        scratch.write(1);
        std::fs::remove_dir_all(scratch.write(2)).unwrap();
        let (checkpoint, warnings) = scratch.store.resume_point();
        assert_eq!((checkpoint.unwrap().manifest.global_step, warnings.len()), (1, 1));
        std::fs::remove_dir_all(scratch.store.dir.join("global_step_1")).unwrap();
        let (checkpoint, warnings) = scratch.store.resume_point();
        assert!(
            checkpoint.is_none() && warnings[0].contains("no intact checkpoint"),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_kill_at_any_stage_leaves_one_to_resume_from() {
        let scratch = Scratch::new(2);
        scratch.write(1);
        // while writing
        let unfinished = scratch.store.dir.join(format!("{TEMPORARY_PREFIX}2"));
        std::fs::create_dir_all(&unfinished).unwrap();
        assert_eq!(scratch.resumes_at(), Some(1));
        // between the rename and `latest`
        scratch.write(2);
        std::fs::write(scratch.store.dir.join(LATEST), "global_step_1").unwrap();
        assert_eq!(scratch.resumes_at(), Some(1));
        // written again by the resumed run
        scratch.write(2);
        assert_eq!(scratch.resumes_at(), Some(2));
        assert_eq!(scratch.names(), ["global_step_1", "global_step_2", LATEST]);
    }

    #[test]
    fn a_failed_write_leaves_what_there_was() {
        let scratch = Scratch::new(1);
        scratch.write(1);
        let fill = |dir: &Path| {
            std::fs::write(dir.join("model.safetensors"), "half").unwrap();
            Err("no space left on device")
        };
        let error = scratch.store.stage(2, fill).unwrap_err().to_string();
        assert_eq!(error, "cannot write the checkpoint of step 2: no space left on device");
        assert_eq!(scratch.names(), ["global_step_1", LATEST]);
        assert_eq!(scratch.resumes_at(), Some(1));
    }
}
