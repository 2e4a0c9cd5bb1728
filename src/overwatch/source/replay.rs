//! The files of a run as a source: metrics and episodes, without a server.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::printable;
use super::{Update, Wanted};
use crate::config::small_file::read_text;
use crate::overwatch::clock::{unix_now, unix_seconds};
use crate::overwatch::update::{Extreme, Observed, PAGE, Query, Sort, Subject};
use crate::protocol::status::{
    Distribution, EngineState, EpisodeDetail, EpisodeSummary, Episodes, ExperimentInfo, GroupEpisode, ServerInfo,
    Status, StepMetrics, TaskGroup,
};
use crate::protocol::swarm::EpisodeType;

/// Maximum size of an episode's file.
const MAX_EPISODE: u64 = 256 << 20;
/// Maximum size of a run's configuration.
const MAX_CONFIG: u64 = 1 << 20;
/// Maximum number of episodes that are listed, newest steps first.
const MAX_EPISODES: usize = 20_000;

/// What the files of a run say.
#[derive(Debug)]
pub(super) struct RunFiles {
    dir: PathBuf,
    model: String,
    /// When the metrics were last written, in Unix seconds.
    changed: f64,
    steps: Vec<StepMetrics>,
    /// Finished episodes with their files.
    episodes: Vec<(EpisodeSummary, PathBuf)>,
}

impl RunFiles {
    /// Reads the metrics of a run and lists its episodes. Waits for the disk.
    ///
    /// # Errors
    /// The directory has no readable `metrics.jsonl`.
    pub fn read(dir: &Path) -> Result<Self, String> {
        let metrics = dir.join("metrics.jsonl");
        let cannot = |error: io::Error| format!("cannot read {}: {error}", metrics.display());
        let file = fs::File::open(&metrics).map_err(cannot)?;
        let changed = file
            .metadata()
            .and_then(|metadata| metadata.modified())
            .map_err(cannot)?;
        Ok(Self {
            dir: dir.to_owned(),
            model: model(dir).unwrap_or_default(),
            changed: unix_seconds(changed),
            steps: steps(BufReader::new(file)).map_err(cannot)?,
            episodes: episodes(&dir.join("trajectories")),
        })
    }

    /// Returns state and history.
    pub fn all(&self) -> Vec<Update> {
        let history = Update::History {
            run: self.name(),
            since: 1,
            steps: self.steps.clone(),
        };
        vec![
            Update::Status(Box::new(Observed {
                status: self.status(),
                missing: None,
            })),
            history,
        ]
    }

    fn name(&self) -> String {
        let name = self.dir.file_name().unwrap_or(self.dir.as_os_str());
        crate::terminal::one_line(&name.to_string_lossy())
    }

    fn status(&self) -> Status {
        let evaluated = self
            .steps
            .iter()
            .rfind(|step| step.metrics.keys().any(|name| name.starts_with("eval/")));
        let trained = self.steps.iter().rfind(|step| step.metrics.contains_key("reward_mean"));
        let step = trained.map_or(0, |step| step.global_step);
        let groups = self.groups(step);
        Status {
            server: ServerInfo {
                version: env!("CARGO_PKG_VERSION").into(),
                started: self.changed,
                now: unix_now(),
            },
            experiment: Some(ExperimentInfo {
                name: self.name(),
                directory: crate::terminal::one_line(&self.dir.to_string_lossy()),
                model: self.model.clone(),
                ..ExperimentInfo::default()
            }),
            engine: EngineState {
                detail: Some("read from files".into()),
                since: self.changed,
                ..EngineState::default()
            },
            batch: crate::protocol::status::BatchProgress {
                episodes: groups.iter().map(|group| group.episodes.len() as u64).sum(),
                reward: Distribution::of(
                    groups
                        .iter()
                        .flat_map(|group| &group.episodes)
                        .map(|episode| episode.reward),
                ),
                ..Default::default()
            },
            groups,
            latest_metrics: trained.map(|step| step.metrics.clone()).unwrap_or_default(),
            latest_eval: evaluated.cloned(),
            ..Status::default()
        }
    }

    /// Returns the groups of a step's batch.
    fn groups(&self, step: u64) -> Vec<TaskGroup> {
        let mut groups: IndexMap<&str, TaskGroup> = IndexMap::new();
        let of_step = self.episodes.iter().map(|(summary, _)| summary);
        for summary in of_step.filter(|summary| is_train(summary) && summary.global_step == step) {
            let group = groups.entry(&summary.task_id).or_insert_with(|| TaskGroup {
                task_id: summary.task_id.clone(),
                ..TaskGroup::default()
            });
            group.episodes.push(GroupEpisode {
                episode_uuid: summary.episode_uuid.clone(),
                client_uuid: summary.client_uuid.clone(),
                reward: summary.reward,
            });
            group.has_signal = group
                .episodes
                .iter()
                .any(|episode| episode.reward != group.episodes[0].reward);
        }
        groups.into_values().collect()
    }

    fn page(&self, query: &Query) -> Episodes {
        let all = self.episodes.iter().map(|(summary, _)| summary);
        let mut found: Vec<_> = all
            .filter(|summary| query.task.as_ref().is_none_or(|task| *task == summary.task_id))
            .filter(|summary| query.kind.only().is_none_or(|kind| kind == summary.episode_type))
            .collect();
        match query.sort {
            Sort::Newest => found.sort_by(|a, b| {
                (b.global_step, b.ended)
                    .partial_cmp(&(a.global_step, a.ended))
                    .unwrap_or(std::cmp::Ordering::Equal)
            }),
            Sort::Worst => found.sort_by(|a, b| a.reward.total_cmp(&b.reward)),
            Sort::Best => found.sort_by(|a, b| b.reward.total_cmp(&a.reward)),
            Sort::Tokens => found.sort_by_key(|summary| std::cmp::Reverse(summary.completion_tokens)),
            Sort::Calls => found.sort_by_key(|summary| std::cmp::Reverse(summary.llm_calls)),
        }
        let total = found.len() as u64;
        Episodes {
            episodes: found.into_iter().skip(query.offset).take(PAGE).cloned().collect(),
            total,
        }
    }

    /// Returns the file of an episode.
    fn file(&self, subject: &Subject) -> Result<PathBuf, String> {
        let by_reward =
            |a: &&(EpisodeSummary, PathBuf), b: &&(EpisodeSummary, PathBuf)| a.0.reward.total_cmp(&b.0.reward);
        let found = match subject {
            Subject::Latest => return Err("a replay has no live call; press enter on an episode, or w or b".into()),
            Subject::Extreme(extreme, step) => {
                let of_step = self
                    .episodes
                    .iter()
                    .filter(|(summary, _)| is_train(summary) && summary.global_step == *step);
                match extreme {
                    Extreme::Worst => of_step.min_by(by_reward),
                    Extreme::Best => of_step.max_by(by_reward),
                }
            }
            Subject::Episode(id) => self.episodes.iter().find(|(summary, _)| summary.episode_uuid == *id),
        };
        let (_, path) = found.ok_or_else(|| "the run kept no transcript of this episode".to_owned())?;
        Ok(path.clone())
    }
}

/// Sends everything, and then what is wanted, until the receiver is gone.
pub(super) async fn follow(run: RunFiles, updates: mpsc::Sender<Update>, mut wanted: watch::Receiver<Wanted>) {
    for update in run.all() {
        let _ = updates.send(update).await;
    }
    loop {
        let now = wanted.borrow_and_update().clone();
        if let Some(query) = now.episodes {
            let page = run.page(&query);
            let _ = updates.send(Update::Episodes(query, Ok(page))).await;
        }
        if let Some((subject, _)) = now.transcript {
            let detail = match run.file(&subject) {
                Ok(path) => tokio::task::spawn_blocking(move || detail(&path))
                    .await
                    .unwrap_or_else(|error| Err(error.to_string())),
                Err(reason) => Err(reason),
            };
            let _ = updates.send(Update::Transcript(subject, detail.map(Box::new))).await;
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = updates.closed() => return,
        }
    }
}

fn is_train(summary: &EpisodeSummary) -> bool {
    summary.episode_type == EpisodeType::Train
}

/// Reads the lines of `metrics.jsonl`; of lines for the same step, later values count. Damaged lines are skipped.
fn steps(file: impl BufRead) -> io::Result<Vec<StepMetrics>> {
    let mut steps = std::collections::BTreeMap::new();
    for line in file.lines() {
        let Ok(value) = serde_json::from_str::<Value>(&line?) else {
            continue;
        };
        let Ok(metrics) = printable::lines::<IndexMap<String, Option<f64>>>(value) else {
            continue;
        };
        let Some(step) = metrics.get("global_step").copied().flatten() else {
            continue;
        };
        let known: &mut IndexMap<String, f64> = steps.entry(step as u64).or_default();
        known.extend(metrics.into_iter().filter_map(|(name, value)| Some((name, value?))));
    }
    Ok(steps
        .into_iter()
        .map(|(global_step, metrics)| StepMetrics { global_step, metrics })
        .collect())
}

/// Returns the model of a run, from its configuration.
fn model(dir: &Path) -> Option<String> {
    let text = read_text(&dir.join("train_config.yaml"), MAX_CONFIG).ok()?;
    let config = crate::config::parse(&text).ok()?.to_json();
    Some(crate::terminal::one_line(config["ajet"]["model"]["path"].as_str()?))
}

/// Lists the episodes below a directory of trajectories, newest steps first.
fn episodes(dir: &Path) -> Vec<(EpisodeSummary, PathBuf)> {
    let mut steps: Vec<(u64, PathBuf)> = ["train", "eval"]
        .iter()
        .flat_map(|kind| entries(&dir.join(kind)))
        .filter_map(|path| Some((path.file_name()?.to_str()?.strip_prefix("step_")?.parse().ok()?, path)))
        .collect();
    steps.sort_by(|a, b| b.cmp(a));
    let files = steps.iter().flat_map(|(_, step)| entries(step));
    let told = files.filter_map(|file| Some((detail(&file).ok()?.summary, file)));
    told.take(MAX_EPISODES).collect()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return vec![] };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Reads an episode's file.
fn detail(path: &Path) -> Result<EpisodeDetail, String> {
    let cannot = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let text = read_text(path, MAX_EPISODE).map_err(|error| cannot(&error))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| cannot(&error))?;
    let is_eval = path.iter().any(|part| part == "eval");
    printable::texts(as_detail(value, is_eval)).map_err(|error| cannot(&error))
}

/// Returns the contents of an episode's file as a detail: either it is one, or it has outcome, usage and conversations
/// beside each other.
fn as_detail(mut file: Value, is_eval: bool) -> Value {
    if file["summary"].is_object() {
        return file;
    }
    let (usage, conversations) = (file["usage"].take(), file["conversations"].take());
    let log_metrics = file["log_metrics"].take();
    if let (Value::Object(summary), Value::Object(usage)) = (&mut file, usage) {
        summary.extend(usage);
        summary.insert("has_transcript".into(), true.into());
        summary.insert("ended".into(), 0.into());
        summary.insert("episode_type".into(), if is_eval { "eval" } else { "train" }.into());
    }
    serde_json::json!({
        "summary": file,
        "running": false,
        "log_metrics": if log_metrics.is_object() { log_metrics } else { serde_json::json!({}) },
        "conversations": conversations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_episodes_file_are_read() {
        let conversations =
            serde_json::json!([{"model": "m", "tools": [], "messages": [{"role": "user", "content": "hi"}]}]);
        let plain = serde_json::json!({
            "episode_uuid": "e1", "task_id": "t", "client_uuid": "c", "global_step": 2, "reward": 0.5,
            "is_success": null, "tag": null, "log_metrics": {"reward/format": 0.5}, "conversations": conversations,
            "usage": {"llm_calls": 3, "prompt_tokens": 9, "completion_tokens": 4, "counters": {}},
        });
        let read: EpisodeDetail = printable::texts(as_detail(plain, true)).unwrap();
        assert_eq!(
            (read.summary.llm_calls, read.summary.reward, read.conversations.len()),
            (3, 0.5, 1)
        );
        assert_eq!(
            (read.summary.episode_type, read.log_metrics.len()),
            (EpisodeType::Eval, 1)
        );
        let again: EpisodeDetail = printable::texts(as_detail(serde_json::to_value(&read).unwrap(), false)).unwrap();
        assert_eq!(again, read);
    }
}
