//! Finished and dropped episodes, from `episodes.jsonl`.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::path::Path;

use serde::Deserialize;

use super::error::RunsError;
use super::growing_file::GrowingFile;
use crate::protocol::run_files::EPISODES_FILE;
use crate::protocol::status::{EpisodeSummary, Episodes};
use crate::protocol::swarm::EpisodeType;

/// Maximum number of episodes kept in memory; older ones are not listed.
pub const KEPT: usize = 50_000;
/// Default and maximum number of episodes of an answer.
const LIMITS: (usize, usize) = (100, 500);

/// Which episodes to return, and in which order.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct EpisodeQuery {
    /// `train` or `eval`.
    #[serde(default, rename = "type")]
    pub episode_type: Option<EpisodeType>,
    /// Step.
    #[serde(default)]
    pub step: Option<u64>,
    /// Task.
    #[serde(default)]
    pub task: Option<String>,
    /// Id of the client.
    #[serde(default)]
    pub client: Option<String>,
    /// `ended`, `reward`, `tokens` or `calls`, with a leading `-` for descending order.
    #[serde(default)]
    pub sort: Option<String>,
    /// Number of episodes to skip.
    #[serde(default)]
    pub offset: usize,
    /// Maximum number of episodes.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Order of episodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sort {
    by: Field,
    descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Ended,
    Reward,
    Tokens,
    Calls,
}

impl Sort {
    /// Parses `ended`, `reward`, `tokens` or `calls`, with a leading `-` for descending order.
    ///
    /// # Errors
    /// Fails for any other text.
    fn parse(text: &str) -> Result<Self, RunsError> {
        let name = text.strip_prefix('-').unwrap_or(text);
        let by = match name {
            "ended" => Field::Ended,
            "reward" => Field::Reward,
            "tokens" => Field::Tokens,
            "calls" => Field::Calls,
            _ => {
                return Err(RunsError::Query {
                    name: "sort",
                    expected: "ended, reward, tokens or calls, with a leading - for descending order",
                    given: text.chars().take(100).collect(),
                });
            }
        };
        let descending = text.len() > name.len();
        Ok(Self { by, descending })
    }

    fn compare(self, a: &EpisodeSummary, b: &EpisodeSummary) -> Ordering {
        let order = match self.by {
            Field::Ended => a.ended.total_cmp(&b.ended),
            Field::Reward => a.reward.total_cmp(&b.reward),
            Field::Tokens => a.completion_tokens.cmp(&b.completion_tokens),
            Field::Calls => a.llm_calls.cmp(&b.llm_calls),
        };
        if self.descending { order.reverse() } else { order }
    }
}

/// The last episodes of an experiment.
#[derive(Debug)]
pub struct EpisodeIndex {
    file: GrowingFile,
    /// Oldest first.
    episodes: VecDeque<EpisodeSummary>,
}

impl EpisodeIndex {
    /// Creates the index of an experiment's directory.
    pub fn new(experiment_dir: &Path) -> Self {
        Self {
            file: GrowingFile::new(&experiment_dir.join(EPISODES_FILE)),
            episodes: VecDeque::new(),
        }
    }

    /// Returns a page of the episodes that match. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or the order is invalid.
    pub fn read(&mut self, query: &EpisodeQuery) -> Result<Episodes, RunsError> {
        let sort = Sort::parse(query.sort.as_deref().unwrap_or("-ended"))?;
        self.refresh()?;
        let mut found: Vec<&EpisodeSummary> = self.episodes.iter().filter(|e| matches(query, e)).collect();
        // The sort is stable, and of equals the newest comes first.
        found.reverse();
        found.sort_by(|a, b| sort.compare(a, b));
        let (default, maximum) = LIMITS;
        let limit = query.limit.unwrap_or(default).min(maximum);
        Ok(Episodes {
            total: found.len() as u64,
            episodes: found.into_iter().skip(query.offset).take(limit).cloned().collect(),
        })
    }

    /// Returns an episode. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn find(&mut self, uuid: &str) -> Result<Option<EpisodeSummary>, RunsError> {
        self.refresh()?;
        Ok(self.position(uuid).map(|place| self.episodes[place].clone()))
    }

    fn position(&self, uuid: &str) -> Option<usize> {
        self.episodes.iter().rposition(|episode| episode.episode_uuid == uuid)
    }

    fn refresh(&mut self) -> Result<(), RunsError> {
        let new = self.file.new_lines().map_err(RunsError::at(self.file.path()))?;
        if new.restarted {
            self.episodes.clear();
        }
        for (_, line) in new.lines {
            // A line that another program damaged is left out.
            if let Ok(episode) = serde_json::from_slice(&line) {
                self.add(episode);
            }
        }
        Ok(())
    }

    fn add(&mut self, episode: EpisodeSummary) {
        if episode.ended == 0.0 {
            if let Some(place) = self.position(&episode.episode_uuid) {
                self.episodes[place].dropped = episode.dropped;
            }
            return;
        }
        if self.episodes.len() >= KEPT {
            self.episodes.pop_front();
        }
        self.episodes.push_back(episode);
    }
}

fn matches(query: &EpisodeQuery, episode: &EpisodeSummary) -> bool {
    query.episode_type.is_none_or(|kind| kind == episode.episode_type)
        && query.step.is_none_or(|step| step == episode.global_step)
        && query.task.as_ref().is_none_or(|task| *task == episode.task_id)
        && query
            .client
            .as_ref()
            .is_none_or(|client| *client == episode.client_uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, episodes: &[EpisodeSummary]) {
        let lines: String = episodes
            .iter()
            .map(|e| format!("{}\n", serde_json::to_string(e).unwrap()))
            .collect();
        std::fs::write(dir.join(EPISODES_FILE), lines).unwrap();
    }

    fn episode(number: u64) -> EpisodeSummary {
        EpisodeSummary {
            episode_uuid: format!("e{number}"),
            global_step: number / 10 + 1,
            task_id: format!("t{}", number % 4),
            client_uuid: "c".into(),
            reward: (number % 3) as f64,
            ended: 100.0 + number as f64,
            ..EpisodeSummary::default()
        }
    }

    fn uuids(found: &Episodes) -> Vec<&str> {
        found.episodes.iter().map(|e| e.episode_uuid.as_str()).collect()
    }

    #[test]
    fn episodes_are_filtered_sorted_and_paged() {
        let dir = tempfile::tempdir().unwrap();
        let mut index = EpisodeIndex::new(dir.path());
        assert_eq!(
            index.read(&EpisodeQuery::default()).unwrap(),
            Episodes::default(),
            "no file yet"
        );
        let mut all: Vec<EpisodeSummary> = (0..20).map(episode).collect();
        all[3].episode_type = EpisodeType::Eval;
        all.push(EpisodeSummary {
            episode_uuid: "e5".into(),
            dropped: Some("dummy".into()),
            ..EpisodeSummary::default()
        });
        write(dir.path(), &all);
        let newest = index.read(&EpisodeQuery::default()).unwrap();
        assert_eq!((newest.total, uuids(&newest)[..2].to_vec()), (20, vec!["e19", "e18"]));
        let by_reward = EpisodeQuery {
            task: Some("t1".into()),
            sort: Some("-reward".into()),
            offset: 1,
            limit: Some(2),
            ..EpisodeQuery::default()
        };
        let found = index.read(&by_reward).unwrap();
        assert_eq!((found.total, uuids(&found)), (5, vec!["e5", "e13"]));
        assert_eq!(found.episodes[0].dropped.as_deref(), Some("dummy"));
        let evals = EpisodeQuery {
            episode_type: Some(EpisodeType::Eval),
            ..EpisodeQuery::default()
        };
        assert_eq!(uuids(&index.read(&evals).unwrap()), ["e3"]);
        assert_eq!(index.find("e7").unwrap().unwrap().ended, 107.0);
        assert_eq!(index.find("e99").unwrap(), None);
        let wrong = EpisodeQuery {
            sort: Some("name".into()),
            ..EpisodeQuery::default()
        };
        assert!(
            index
                .read(&wrong)
                .unwrap_err()
                .to_string()
                .starts_with("sort must be ended")
        );
    }
}
