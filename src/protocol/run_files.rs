//! Files of an experiment directory that dashboards read: written by the engine, read by the server and the command
//! line.
//!
//! | file | contents |
//! |---|---|
//! | `metrics.jsonl` | metrics by step, one JSON object a line |
//! | `episodes.jsonl` | finished and dropped episodes, one [`EpisodeSummary`](super::status::EpisodeSummary) a line |
//! | `trajectories/train/step_3/ID.json` | an [`EpisodeDetail`](super::status::EpisodeDetail) with its tokens |
//! | `trajectories/train/step_3/advantages.json` | [`Advantages`] of the step's update |
//!
//! A line of `episodes.jsonl` with `ended` 0 amends the earlier one of its episode: it was dropped after its end.

use indexmap::IndexMap;

use super::swarm::EpisodeType;

/// Metrics by step.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// Maximum size of [`METRICS_FILE`], in bytes; beyond it, older steps are thinned out.
pub const METRICS_BYTES: u64 = 64 * 1024 * 1024;
/// Finished and dropped episodes.
pub const EPISODES_FILE: &str = "episodes.jsonl";
/// Maximum size of [`EPISODES_FILE`], in bytes; beyond it, the older half is removed.
pub const EPISODES_BYTES: u64 = 64 * 1024 * 1024;
/// Configuration with which the experiment was started.
pub const CONFIG_FILE: &str = "train_config.yaml";
/// Directory of transcripts.
pub const TRAJECTORIES: &str = "trajectories";
/// Advantages in a step's directory of transcripts.
pub const ADVANTAGES_FILE: &str = "advantages.json";
/// Maximum size of a transcript, in bytes. A larger one is not written.
pub const TRANSCRIPT_BYTES: u64 = 64 * 1024 * 1024;

/// Advantage of each row of an episode, by the episode's id; null for a row that was not trained on.
pub type Advantages = IndexMap<String, Vec<Option<f64>>>;

/// Returns the directory of a step's transcripts below [`TRAJECTORIES`], such as `train/step_3`.
pub fn step_dir(episode_type: EpisodeType, global_step: u64) -> String {
    let kind = match episode_type {
        EpisodeType::Train => "train",
        EpisodeType::Eval => "eval",
    };
    format!("{kind}/step_{global_step}")
}

/// Returns the file name of a transcript for an id from the wire, without slashes or leading dots.
pub fn transcript_file(episode_uuid: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let stem: String = episode_uuid.chars().take(200).map(safe).collect();
    format!("{stem}.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_is_never_outside_of_its_directory() {
        for (uuid, file) in [
            ("2f1c-9", "2f1c-9.json"),
            ("../../e:1", "______e_1.json"),
            ("/etc/passwd", "_etc_passwd.json"),
            ("", ".json"),
        ] {
            assert_eq!(transcript_file(uuid), file);
        }
        assert_eq!(step_dir(EpisodeType::Eval, 7), "eval/step_7");
    }
}
