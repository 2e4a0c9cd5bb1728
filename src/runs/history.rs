//! Metrics by step, from `metrics.jsonl`. Only the places of the lines are kept in memory.

use std::collections::BTreeMap;
use std::path::Path;

use indexmap::IndexMap;
use serde::Deserialize;

use super::error::RunsError;
use super::growing_file::GrowingFile;
use crate::protocol::run_files::METRICS_FILE;
use crate::protocol::status::StepMetrics;

/// Default and maximum number of steps of an answer.
const LIMITS: (usize, usize) = (1000, 5000);

/// Which steps and metrics to return.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct HistoryQuery {
    /// First step.
    #[serde(default)]
    pub since: u64,
    /// Names separated by commas; a trailing `*` matches any ending. All if empty.
    #[serde(default)]
    pub keys: String,
    /// Maximum number of steps.
    #[serde(default)]
    pub limit: Option<usize>,
}

impl HistoryQuery {
    fn wants(&self, name: &str) -> bool {
        let matches = |key: &str| match key.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == key,
        };
        self.keys.is_empty() || self.keys.split(',').map(str::trim).any(matches)
    }
}

/// Places of the lines of a metrics file, by step. An updated and an evaluated step may have several lines.
#[derive(Debug)]
pub struct MetricsIndex {
    file: GrowingFile,
    lines: BTreeMap<u64, Vec<u64>>,
}

#[derive(Deserialize)]
struct Step {
    global_step: u64,
}

impl MetricsIndex {
    /// Creates the index of an experiment's directory.
    pub fn new(experiment_dir: &Path) -> Self {
        Self {
            file: GrowingFile::new(&experiment_dir.join(METRICS_FILE)),
            lines: BTreeMap::new(),
        }
    }

    /// Returns the metrics of steps in ascending order, and the first step of the next page. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn read(&mut self, query: &HistoryQuery) -> Result<(Vec<StepMetrics>, Option<u64>), RunsError> {
        self.refresh().map_err(RunsError::at(self.file.path()))?;
        let (default, maximum) = LIMITS;
        let limit = query.limit.unwrap_or(default).clamp(1, maximum);
        let mut asked = self.lines.range(query.since..);
        let page: Vec<(u64, &Vec<u64>)> = asked
            .by_ref()
            .take(limit)
            .map(|(step, places)| (*step, places))
            .collect();
        let next = asked.next().map(|(step, _)| *step);
        let steps = self.steps(&page, query).map_err(RunsError::at(self.file.path()))?;
        Ok((steps, next))
    }

    fn refresh(&mut self) -> std::io::Result<()> {
        let new = self.file.new_lines()?;
        if new.restarted {
            self.lines.clear();
        }
        for (place, line) in new.lines {
            // A line that another program damaged is left out.
            if let Ok(Step { global_step }) = serde_json::from_slice(&line) {
                self.lines.entry(global_step).or_default().push(place);
            }
        }
        Ok(())
    }

    fn steps(&self, page: &[(u64, &Vec<u64>)], query: &HistoryQuery) -> std::io::Result<Vec<StepMetrics>> {
        if page.is_empty() {
            return Ok(vec![]);
        }
        let mut reader = self.file.open()?;
        let mut steps = Vec::with_capacity(page.len());
        for (global_step, places) in page {
            let mut metrics = IndexMap::new();
            for place in *places {
                let line = self.file.line_at(&mut reader, *place)?;
                let read: IndexMap<String, Option<f64>> = serde_json::from_slice(&line).unwrap_or_default();
                let wanted = read.into_iter().filter(|(name, _)| query.wants(name));
                metrics.extend(wanted.filter_map(|(name, value)| Some((name, value?))));
            }
            steps.push(StepMetrics {
                global_step: *global_step,
                metrics,
            });
        }
        Ok(steps)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(step: &StepMetrics) -> Vec<&str> {
        step.metrics.keys().map(String::as_str).collect()
    }

    #[test]
    fn steps_are_selected_merged_and_paged() {
        let dir = tempfile::tempdir().unwrap();
        let mut index = MetricsIndex::new(dir.path());
        assert_eq!(
            index.read(&HistoryQuery::default()).unwrap(),
            (vec![], None),
            "no file yet"
        );
        let path = dir.path().join(METRICS_FILE);
        let first =
            "{\"global_step\":1,\"loss\":0.5,\"seconds/update\":2}\nno json\n{\"global_step\":2,\"loss\":-1e-7}\n";
        std::fs::write(&path, first).unwrap();
        let (steps, next) = index.read(&HistoryQuery::default()).unwrap();
        assert_eq!((steps.len(), next), (2, None));
        assert_eq!(steps[1].metrics["loss"], -1e-7);

        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"global_step\":1,\"eval/reward_mean\":0.25}\n{\"global_step\":9,\"loss\":null}\n")
            .unwrap();
        let query = |since, keys: &str, limit| HistoryQuery {
            since,
            keys: keys.into(),
            limit,
        };
        let (steps, next) = index.read(&query(0, "loss, eval/*", Some(2))).unwrap();
        assert_eq!((steps.len(), next), (2, Some(9)));
        assert_eq!(names(&steps[0]), ["loss", "eval/reward_mean"]);
        let (steps, next) = index.read(&query(9, "", None)).unwrap();
        assert_eq!(
            (steps[0].global_step, names(&steps[0]), next),
            (9, vec!["global_step"], None)
        );
        assert_eq!(index.read(&query(10, "", None)).unwrap(), (vec![], None));
    }
}
