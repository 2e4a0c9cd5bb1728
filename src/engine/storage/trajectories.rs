//! Transcripts of finished episodes and the advantages of each update as JSON files
//! (`ajet.trainer_common.save_trajectory_as_json_file`), within a size limit: the oldest steps go first.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::durable;
use crate::protocol::run_files::{
    ADVANTAGES_FILE, Advantages, TRAJECTORIES, TRANSCRIPT_BYTES, step_dir, transcript_file,
};
use crate::protocol::status::EpisodeDetail;
use crate::protocol::swarm::EpisodeType;

/// Writer of an experiment's transcripts.
#[derive(Debug)]
pub struct Trajectories {
    dir: PathBuf,
    /// Maximum size of all files, in bytes.
    limit: u64,
    /// Bytes of each step.
    steps: BTreeMap<u64, u64>,
}

impl Trajectories {
    /// Opens the transcripts of an experiment, of at most `limit` bytes. Waits for the disk.
    pub fn open(experiment_dir: &Path, limit: u64) -> Self {
        let dir = experiment_dir.join(TRAJECTORIES);
        let mut steps = BTreeMap::new();
        for step in ["train", "eval"]
            .iter()
            .flat_map(|kind| subdirectories(&dir.join(kind)))
        {
            if let Some(number) = step_number(&step) {
                *steps.entry(number).or_default() += size(&step);
            }
        }
        Self { dir, limit, steps }
    }

    /// Writes a transcript; returns whether there was room for it. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save(&mut self, episode: &EpisodeDetail) -> io::Result<bool> {
        let summary = &episode.summary;
        let step = step_dir(summary.episode_type, summary.global_step);
        let file = self.dir.join(step).join(transcript_file(&summary.episode_uuid));
        self.write(summary.global_step, &file, episode)
    }

    /// Writes the advantages of a step's update; returns whether there was room for them. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save_advantages(&mut self, global_step: u64, advantages: &Advantages) -> io::Result<bool> {
        let dir = self.dir.join(step_dir(EpisodeType::Train, global_step));
        self.write(global_step, &dir.join(ADVANTAGES_FILE), advantages)
    }

    fn write(&mut self, global_step: u64, file: &Path, content: &impl Serialize) -> io::Result<bool> {
        let json = serde_json::to_vec(content)?;
        let bytes = json.len() as u64;
        if bytes > TRANSCRIPT_BYTES || !self.make_room(global_step, bytes)? {
            return Ok(false);
        }
        if let Some(dir) = file.parent() {
            durable::create_dir(dir)?;
        }
        durable::write(file, &json)?;
        *self.steps.entry(global_step).or_default() += bytes;
        Ok(true)
    }

    /// Removes the oldest other steps until this many bytes fit; returns whether they do.
    fn make_room(&mut self, global_step: u64, bytes: u64) -> io::Result<bool> {
        while self.steps.values().sum::<u64>() + bytes > self.limit {
            let Some(oldest) = self.steps.keys().copied().find(|step| *step != global_step) else {
                return Ok(false);
            };
            for kind in [EpisodeType::Train, EpisodeType::Eval] {
                match fs::remove_dir_all(self.dir.join(step_dir(kind, oldest))) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
            self.steps.remove(&oldest);
        }
        Ok(true)
    }
}

fn subdirectories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path()).collect()
}

/// Returns the step of a directory such as `step_3`.
fn step_number(dir: &Path) -> Option<u64> {
    dir.file_name()?.to_str()?.strip_prefix("step_")?.parse().ok()
}

/// Returns the bytes of the files in a directory.
fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::status::EpisodeSummary;

    fn episode(uuid: &str, kind: EpisodeType, global_step: u64) -> EpisodeDetail {
        EpisodeDetail {
            summary: EpisodeSummary {
                episode_uuid: uuid.into(),
                episode_type: kind,
                global_step,
                reward: 0.5,
                ..EpisodeSummary::default()
            },
            ..EpisodeDetail::default()
        }
    }

    #[test]
    fn a_transcript_is_written_below_its_step_and_never_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Trajectories::open(dir.path(), u64::MAX);
        assert!(files.save(&episode("../../e:1", EpisodeType::Train, 3)).unwrap());
        let text = fs::read(dir.path().join("trajectories/train/step_3/______e_1.json")).unwrap();
        let told: EpisodeDetail = serde_json::from_slice(&text).unwrap();
        assert_eq!(told, episode("../../e:1", EpisodeType::Train, 3));
    }

    #[test]
    fn the_oldest_steps_go_when_the_limit_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = serde_json::to_vec(&episode("a", EpisodeType::Train, 1)).unwrap().len() as u64;
        let mut files = Trajectories::open(dir.path(), 3 * bytes + bytes / 2);
        for (uuid, kind, step) in [
            ("a", EpisodeType::Train, 1),
            ("b", EpisodeType::Eval, 1),
            ("a", EpisodeType::Train, 2),
        ] {
            assert!(files.save(&episode(uuid, kind, step)).unwrap());
        }
        let kept = |path: &str| dir.path().join("trajectories").join(path).exists();
        assert!(kept("train/step_1") && kept("eval/step_1"));
        let mut files = Trajectories::open(dir.path(), 3 * bytes + bytes / 2);
        assert!(
            files
                .save_advantages(2, &Advantages::from_iter([("a".to_owned(), vec![Some(0.5); 100])]))
                .unwrap()
        );
        assert!(!kept("train/step_1") && !kept("eval/step_1") && kept("train/step_2/advantages.json"));
        files.save(&episode("b", EpisodeType::Train, 2)).unwrap();
        assert!(
            !files.save(&episode("c", EpisodeType::Train, 2)).unwrap(),
            "a step alone is over the limit"
        );
        assert!(kept("train/step_2/a.json") && !kept("train/step_2/c.json"));
    }
}
