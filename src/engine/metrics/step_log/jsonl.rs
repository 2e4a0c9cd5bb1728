//! `metrics.jsonl`: one JSON object per step, within a size limit.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use indexmap::IndexMap;
use serde_json::Value;

use super::PendingRecords;
use super::thinning::{StepLine, kept_steps};
use crate::engine::metrics::Metrics;
use crate::engine::storage::append_file::AppendFile;
use crate::protocol::run_files::{METRICS_BYTES, METRICS_FILE};

/// Name of the file in the experiment directory.
pub const FILE_NAME: &str = METRICS_FILE;

/// The open metrics file.
#[derive(Debug)]
pub struct MetricsFile {
    file: AppendFile,
    /// Steps whose updates are recorded, also those that were thinned out since the file was opened.
    trained_steps: BTreeSet<u64>,
    pending: PendingRecords,
    /// Maximum size, in bytes.
    limit: u64,
    /// Size beyond which steps are thinned out: the limit, and more after a failure, to not retry at every step.
    thin_beyond: u64,
}

impl MetricsFile {
    /// Opens or creates the file of an experiment. An incomplete last line is removed.
    pub fn open(experiment_dir: &Path) -> io::Result<Self> {
        Self::within(experiment_dir, METRICS_BYTES)
    }

    fn within(experiment_dir: &Path, limit: u64) -> io::Result<Self> {
        let mut file = AppendFile::open(&experiment_dir.join(FILE_NAME))?;
        let mut trained_steps = BTreeSet::new();
        file.read_lines(|line| {
            if let Ok(metrics) = serde_json::from_slice::<IndexMap<String, Value>>(line)
                && metrics.contains_key("episodes")
            {
                trained_steps.extend(metrics.get("global_step").and_then(Value::as_u64));
            }
        })?;
        Ok(Self {
            file,
            trained_steps,
            pending: PendingRecords::default(),
            limit,
            thin_beyond: limit,
        })
    }

    /// Returns whether the update of this step is recorded.
    pub fn has_update(&self, global_step: u64) -> bool {
        self.trained_steps.contains(&global_step)
    }

    /// Appends a step's metrics. After an error they are written by the next call, or by [`Self::flush`].
    pub fn append(&mut self, global_step: u64, metrics: &Metrics) -> io::Result<()> {
        let mut object = serde_json::Map::new();
        object.insert("global_step".into(), global_step.into());
        for (name, value) in metrics {
            object.insert(name.clone(), number(*value));
        }
        let line = format!("{}\n", Value::Object(object));
        if metrics.contains_key("episodes") {
            self.trained_steps.insert(global_step);
        }
        self.pending.then(line.as_bytes(), |lines| self.file.append(lines))?;
        self.thin_out()
    }

    /// Removes older steps if the file exceeds its limit.
    fn thin_out(&mut self) -> io::Result<()> {
        let size = self.file.size()?;
        if size <= self.thin_beyond {
            return Ok(());
        }
        self.thin_beyond = size + self.limit / 4;
        let mut lines: Vec<(StepLine, Vec<u8>)> = vec![];
        self.file
            .read_lines(|line| lines.extend(step_line(line).map(|step| (step, line.to_vec()))))?;
        let steps: Vec<StepLine> = lines.iter().map(|(step, _)| *step).collect();
        let kept = kept_steps(&steps, self.limit);
        lines.retain(|(line, _)| kept.contains(&line.step));
        let contents: Vec<u8> = lines.into_iter().flat_map(|(_, line)| line).collect();
        self.file.rewrite(&contents)?;
        self.thin_beyond = self.limit;
        Ok(())
    }

    /// Writes pending records.
    pub fn flush(&mut self) -> io::Result<()> {
        self.pending.then(&[], |lines| self.file.append(lines))
    }
}

/// Reads of a line what thinning out needs; `None` for a damaged one.
fn step_line(line: &[u8]) -> Option<StepLine> {
    let metrics: IndexMap<String, Value> = serde_json::from_slice(line).ok()?;
    Some(StepLine {
        step: metrics.get("global_step")?.as_u64()?,
        is_eval: metrics.keys().any(|name| name.starts_with("eval/")),
        bytes: line.len() as u64,
    })
}

/// Returns integral values as integers.
pub(crate) fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        Value::from(value as i64)
    } else {
        Value::from(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_one_object_a_step_and_forgets_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(dir.path()).unwrap();
        let metrics: Metrics = [("episodes".to_owned(), 8.0), ("reward_mean".to_owned(), 0.5)]
            .into_iter()
            .collect();
        file.append(1, &metrics).unwrap();
        file.append(2, &Metrics::from_iter([("eval/episodes".to_owned(), 1.0)]))
            .unwrap();
        assert!(file.has_update(1) && !file.has_update(2));
        let path = dir.path().join(FILE_NAME);
        let whole = std::fs::read_to_string(&path).unwrap();
        assert!(whole.starts_with("{\"global_step\":1,\"episodes\":8,\"reward_mean\":0.5}\n"));
        std::fs::write(&path, format!("{whole}{{\"global_st")).unwrap();
        let mut file = MetricsFile::open(dir.path()).unwrap();
        assert!(file.has_update(1) && !file.has_update(2));
        file.append(2, &metrics).unwrap();
        let lines = std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().count(), 3);
        assert!(lines.lines().all(|l| serde_json::from_str::<Value>(l).is_ok()));
    }

    /// 100,000 steps would take 250 MB.
    #[test]
    fn a_long_run_stays_within_the_limit() {
        const LIMIT: u64 = 20_000;
        let dir = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::within(dir.path(), LIMIT).unwrap();
        let trained = Metrics::from_iter([("episodes".to_owned(), 8.0), ("reward_mean".to_owned(), 0.5)]);
        let evaluated = Metrics::from_iter([("eval/reward_mean".to_owned(), 0.25)]);
        for step in 1..=3000 {
            if step % 100 == 1 {
                file.append(step, &evaluated).unwrap();
            }
            file.append(step, &trained).unwrap();
            assert!(file.file.size().unwrap() <= LIMIT);
        }
        assert!(
            file.has_update(1) && file.has_update(3000),
            "what is known is not forgotten"
        );
        let text = std::fs::read_to_string(dir.path().join(FILE_NAME)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let steps: Vec<u64> = lines.iter().filter_map(|line| line["global_step"].as_u64()).collect();
        assert!(steps.is_sorted() && steps[0] == 1, "{steps:?}");
        assert!((2920..=3000).all(|step| steps.contains(&step)), "{steps:?}");
        let evals = lines.iter().filter(|line| line.get("eval/reward_mean").is_some());
        assert_eq!(evals.count(), 30, "evaluations stay while there is room");
        let reopened = MetricsFile::within(dir.path(), LIMIT).unwrap();
        assert!(reopened.has_update(3000));
    }

    // Seen with a disk that was full for a step: the line after it stood on the same line.
    #[test]
    fn what_a_full_disk_refused_is_written_with_the_next_step() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(dir.path()).unwrap();
        let metrics = Metrics::from_iter([("episodes".to_owned(), 8.0)]);
        file.append(1, &metrics).unwrap();
        for step in [2, 3, 4] {
            file.file.heal_for_test();
            file.file.tear_for_test(b"{\"global_");
            file.file.break_for_test();
            file.append(step, &metrics).unwrap_err();
        }
        file.file.heal_for_test();
        file.append(5, &metrics).unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE_NAME)).unwrap();
        let steps: Vec<u64> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["global_step"]
                    .as_u64()
                    .unwrap()
            })
            .collect();
        assert_eq!(steps, [1, 2, 3, 4, 5]);
        file.file.break_for_test();
        file.append(6, &metrics).unwrap_err();
        file.flush().unwrap_err();
        file.file.heal_for_test();
        file.flush().unwrap();
        file.flush().unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE_NAME)).unwrap();
        assert_eq!(text.lines().count(), 6, "once: {text}");
        assert!(text.ends_with("{\"global_step\":6,\"episodes\":8}\n"), "{text}");
    }
}
