//! The transcript of a finished episode.

use std::io;
use std::path::{Path, PathBuf};

use super::error::RunsError;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::protocol::run_files::{
    ADVANTAGES_FILE, Advantages, TRAJECTORIES, TRANSCRIPT_BYTES, step_dir, transcript_file,
};
use crate::protocol::status::{EpisodeDetail, EpisodeSummary, TokenRow};

/// Returns an episode with what was said, and with its tokens if wanted. Without a kept transcript, only the summary is
/// returned. Waits for the disk.
///
/// # Errors
/// Fails if the transcript cannot be read.
pub fn read_transcript(
    experiment_dir: &Path,
    summary: EpisodeSummary,
    with_tokens: bool,
) -> Result<EpisodeDetail, RunsError> {
    let dir = experiment_dir
        .join(TRAJECTORIES)
        .join(step_dir(summary.episode_type, summary.global_step));
    let path = dir.join(transcript_file(&summary.episode_uuid));
    let text = match inside(experiment_dir, &path).and_then(|path| read_text(&path, TRANSCRIPT_BYTES)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(EpisodeDetail {
                summary: EpisodeSummary {
                    has_transcript: false,
                    ..summary
                },
                ..EpisodeDetail::default()
            });
        }
        Err(error) => return Err(RunsError::at(&path)(error)),
    };
    let damaged = |error: serde_json::Error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut detail: EpisodeDetail = serde_json::from_str(&text)
        .map_err(damaged)
        .map_err(RunsError::at(&path))?;
    match with_tokens {
        true => add_advantages(experiment_dir, &dir, &mut detail),
        false => detail.rows.clear(),
    }
    detail.summary = summary;
    Ok(detail)
}

/// Returns the real path of a file, which must be below the experiment's directory.
fn inside(experiment_dir: &Path, path: &Path) -> io::Result<PathBuf> {
    let (root, real) = (experiment_dir.canonicalize()?, path.canonicalize()?);
    match real.starts_with(&root) {
        true => Ok(real),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is a link out of the experiment's directory",
        )),
    }
}

/// Adds the advantages of the step's update, if there was one.
fn add_advantages(experiment_dir: &Path, dir: &Path, detail: &mut EpisodeDetail) {
    let text = inside(experiment_dir, &dir.join(ADVANTAGES_FILE)).and_then(|path| read_text(&path, DOCUMENT_BYTES));
    let all: Advantages = text
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    if let Some(advantages) = all.get(&detail.summary.episode_uuid) {
        for (row, advantage) in detail.rows.iter_mut().zip(advantages) {
            row.advantages = advantage.map(|advantage| spread(row, advantage as f32));
        }
    }
}

/// Gives each trained token the advantage of its row.
fn spread(row: &TokenRow, advantage: f32) -> Vec<f32> {
    let of = |trained: &bool| if *trained { advantage } else { 0.0 };
    row.mask.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_transcript_has_its_tokens_and_advantages_only_on_demand() {
        let dir = tempfile::tempdir().unwrap();
        let summary = EpisodeSummary {
            episode_uuid: "e".into(),
            global_step: 3,
            reward: 0.5,
            ended: 9.0,
            has_transcript: true,
            ..EpisodeSummary::default()
        };
        let missing = read_transcript(dir.path(), summary.clone(), true).unwrap();
        assert!(!missing.summary.has_transcript && missing.conversations.is_empty());
        let kept = EpisodeDetail {
            summary: summary.clone(),
            rows: vec![TokenRow {
                ids: vec![1, 2],
                mask: vec![false, true],
                ..TokenRow::default()
            }],
            ..EpisodeDetail::default()
        };
        let step = dir.path().join("trajectories/train/step_3");
        fs::create_dir_all(&step).unwrap();
        fs::write(step.join("e.json"), serde_json::to_string(&kept).unwrap()).unwrap();
        assert_eq!(read_transcript(dir.path(), summary.clone(), false).unwrap().rows, []);
        let rows = read_transcript(dir.path(), summary.clone(), true).unwrap().rows;
        assert_eq!(rows[0].advantages, None, "before the update");
        fs::write(step.join(ADVANTAGES_FILE), r#"{"e":[-0.5],"other":[null]}"#).unwrap();
        let rows = read_transcript(dir.path(), summary.clone(), true).unwrap().rows;
        assert_eq!(rows[0].advantages, Some(vec![0.0, -0.5]));

        let elsewhere = tempfile::tempdir().unwrap();
        fs::rename(step.join("e.json"), elsewhere.path().join("e.json")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("e.json"), step.join("e.json")).unwrap();
        let error = read_transcript(dir.path(), summary, false).unwrap_err().to_string();
        assert!(error.contains("a link out of the experiment's directory"), "{error}");
    }
}
