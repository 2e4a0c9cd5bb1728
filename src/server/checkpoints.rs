//! Checkpoints of an experiment directory: their list, and the files that a client may read.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::small_file::{DOCUMENT_BYTES, open_regular, read_bytes, read_text};
use crate::protocol::checkpoint::{
    BEST, BestCheckpoint, CheckpointInfo, CheckpointKind, CheckpointsAnswer, DIR_NAME, LATEST, MANIFEST, Manifest,
    directory_name, is_below, parse_step,
};

/// Maximum length of the files `latest` and `best`, in bytes.
const MARK_BYTES: u64 = 4096;

/// Lists the complete checkpoints of an experiment. Reads a small file of each.
pub fn list(experiment_dir: &Path) -> CheckpointsAnswer {
    let dir = experiment_dir.join(DIR_NAME);
    let (latest, best) = (latest(&dir), best(&dir));
    let checkpoints = steps(&dir).into_iter().filter_map(|step| {
        let manifest = manifest(&dir.join(directory_name(step)))?;
        Some(CheckpointInfo {
            kind: CheckpointKind::of(&manifest),
            is_latest: latest == Some(step),
            is_best: best == Some(step),
            manifest,
        })
    });
    CheckpointsAnswer {
        experiment: experiment_dir
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        checkpoints: checkpoints.collect(),
    }
}

/// Opens a file of a checkpoint, and returns its size in bytes.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] unless the checkpoint's manifest lists the file, and the file lies below the checkpoint's
/// directory, whatever links it contains.
pub fn open(experiment_dir: &Path, step: u64, file: &str) -> io::Result<(File, u64)> {
    let dir = experiment_dir.join(DIR_NAME).join(directory_name(step));
    let is_listed = is_below(file) && manifest(&dir).is_some_and(|manifest| manifest.files.contains_key(file));
    if !is_listed {
        return Err(io::ErrorKind::NotFound.into());
    }
    let file = open_regular(&below(&dir, file)?)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Returns the real path of a file in `dir`.
fn below(dir: &Path, file: &str) -> io::Result<PathBuf> {
    let path = dir.join(file).canonicalize()?;
    match path.starts_with(dir.canonicalize()?) {
        true => Ok(path),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

fn steps(dir: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut steps: Vec<u64> = entries
        .filter_map(|entry| parse_step(&entry.ok()?.file_name().to_string_lossy()))
        .collect();
    steps.sort_unstable();
    steps
}

fn latest(dir: &Path) -> Option<u64> {
    parse_step(read_text(&dir.join(LATEST), MARK_BYTES).ok()?.trim())
}

fn best(dir: &Path) -> Option<u64> {
    let best: BestCheckpoint = serde_json::from_str(&read_text(&dir.join(BEST), MARK_BYTES).ok()?).ok()?;
    Some(best.step)
}

/// Reads a checkpoint's manifest. A checkpoint without one, or with names that leave its directory, is not complete.
fn manifest(dir: &Path) -> Option<Manifest> {
    let manifest: Manifest = serde_json::from_slice(&read_bytes(&dir.join(MANIFEST), DOCUMENT_BYTES).ok()?).ok()?;
    manifest.files.keys().all(|file| is_below(file)).then_some(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn write(experiment: &Path, step: u64, files: &[(&str, &str)]) -> PathBuf {
        let dir = experiment.join(DIR_NAME).join(directory_name(step));
        let mut sizes = serde_json::Map::new();
        for (name, content) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
            sizes.insert((*name).to_owned(), content.len().into());
        }
        let manifest = json!({"format": 1, "global_step": step, "run": {"model": "m"}, "files": sizes});
        std::fs::write(dir.join(MANIFEST), manifest.to_string()).unwrap();
        dir
    }

    #[test]
    fn complete_checkpoints_are_listed_in_order_with_their_marks() {
        let experiment = tempfile::tempdir().unwrap();
        assert_eq!(list(experiment.path()).checkpoints, []);
        write(experiment.path(), 10, &[("model.safetensors", "12345")]);
        write(
            experiment.path(),
            2,
            &[("adapter_config.json", "{}"), ("trainer/state.json", "{}")],
        );
        let checkpoints = experiment.path().join(DIR_NAME);
        let best = r#"{"step": 2, "metric": "eval/reward_mean", "value": 0.5, "episodes": 8}"#;
        for (name, content) in [(LATEST, "global_step_10\n"), (BEST, best)] {
            std::fs::write(checkpoints.join(name), content).unwrap();
        }
        std::fs::create_dir(checkpoints.join(".unfinished-12")).unwrap();
        std::fs::create_dir(checkpoints.join("global_step_11")).unwrap();
        let leaving = write(experiment.path(), 12, &[("a", "")]);
        let manifest = json!({"format": 1, "global_step": 12, "run": null, "files": {"../latest": 1}});
        std::fs::write(leaving.join(MANIFEST), manifest.to_string()).unwrap();
        let listed = list(experiment.path());
        let of = |info: &CheckpointInfo| (info.manifest.global_step, info.kind, info.is_latest, info.is_best);
        assert_eq!(
            listed.checkpoints.iter().map(of).collect::<Vec<_>>(),
            [
                (2, CheckpointKind::Adapter, false, true),
                (10, CheckpointKind::Model, true, false)
            ]
        );
        assert_eq!(
            listed.experiment,
            experiment.path().file_name().unwrap().to_str().unwrap()
        );
        assert_eq!(listed.checkpoints[1].manifest.bytes(), 5);
    }

    #[test]
    fn only_files_of_the_manifest_below_the_checkpoint_are_opened() {
        let experiment = tempfile::tempdir().unwrap();
        let outside = experiment.path().join("secret");
        std::fs::write(&outside, "secret").unwrap();
        let files = [
            ("weights", "12345"),
            ("trainer/state.json", "{}"),
            ("link", ""),
            ("loop", ""),
        ];
        let dir = write(experiment.path(), 3, &files);
        std::fs::write(dir.join("unlisted"), "x").unwrap();
        for (link, target) in [("link", outside.as_path()), ("loop", Path::new("weights"))] {
            std::fs::remove_file(dir.join(link)).unwrap();
            std::os::unix::fs::symlink(target, dir.join(link)).unwrap();
        }
        for (step, file, size) in [
            (3, "weights", Some(5)),
            (3, "trainer/state.json", Some(2)),
            (3, "loop", Some(5)),
            (3, "link", None),
            (3, "unlisted", None),
            (3, "trainer", None),
            (3, "../latest", None),
            (3, "../../secret", None),
            (4, "weights", None),
        ] {
            let opened = open(experiment.path(), step, file).map(|(_, size)| size);
            assert_eq!(opened.as_ref().ok(), size.as_ref(), "{file}: {opened:?}");
        }
    }
}
