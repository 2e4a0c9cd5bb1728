//! What is known of the server, accumulated from updates.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use indexmap::IndexMap;

use crate::overwatch::theme::state_name;
use crate::overwatch::update::{Observed, Query, Subject, Update};
use crate::protocol::status::{EngineState, EpisodeDetail, Episodes, Status, StepMetrics};
use crate::protocol::swarm::{EngineStatus, VerboseLog};

/// Maximum number of log lines.
const KEPT_LOG_LINES: usize = 2000;

/// Lines of the log among which a repeated one is searched: more than a status has.
const RECENT_LOG_LINES: usize = 400;

/// Everything that is known.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Last state.
    pub status: Option<Status>,
    /// What the server does not tell.
    pub missing: Option<String>,
    /// Reason why there is no newer state, and since when (Unix seconds).
    pub failure: Option<(String, f64)>,
    /// Experiment of `history`.
    pub run: String,
    /// Metrics by step.
    pub history: BTreeMap<u64, IndexMap<String, f64>>,
    /// Names of the metrics in `history`.
    pub metrics: BTreeSet<String>,
    /// Page of finished episodes.
    pub episodes: Option<(Query, Result<Episodes, String>)>,
    /// Episode that is read.
    pub transcript: Option<(Subject, Result<Box<EpisodeDetail>, String>)>,
    /// Log lines, oldest first.
    pub log: VecDeque<VerboseLog>,
}

impl Known {
    /// Adds an update that came at `now` (Unix seconds).
    pub fn apply(&mut self, update: Update, now: f64) {
        match update {
            Update::Status(observed) => self.take_status(*observed, now),
            Update::Lost(reason) => self.lost(reason, now),
            Update::History { run, since, steps } => self.take_history(&run, since, steps),
            Update::Episodes(query, page) => self.episodes = Some((query, page)),
            Update::Transcript(subject, detail) => self.transcript = Some((subject, detail)),
        }
    }

    /// Returns the values of a metric by step.
    pub fn curve(&self, metric: &str) -> Vec<(f64, f64)> {
        let values = self.history.iter();
        let values = values.filter_map(|(step, metrics)| Some((*step as f64, *metrics.get(metric)?)));
        values.filter(|(_, value)| value.is_finite()).collect()
    }

    fn take_status(&mut self, observed: Observed, now: f64) {
        if self.failure.take().is_some() {
            self.note("reconnected to the server".into(), now);
        }
        self.note_change(&observed.status, now);
        self.take_log(&observed.status.log);
        self.take_latest(&observed.status);
        self.missing = observed.missing;
        self.status = Some(observed.status);
    }

    /// Adds the last update's metrics, which come before the history is read again.
    fn take_latest(&mut self, status: &Status) {
        if let Some(experiment) = &status.experiment {
            self.enter_run(&experiment.name);
        }
        let told = status.latest_metrics.get("global_step").map(|step| *step as u64);
        // While a batch is sampled, the last update was that of the step before.
        let before = status.engine.global_step.saturating_sub(1);
        let is_rolling = status.engine.status == EngineStatus::Rolling;
        let step = told.or((is_rolling && before > 0).then_some(before));
        if let Some(step) = step.filter(|_| !status.latest_metrics.is_empty()) {
            self.add_step(step, status.latest_metrics.clone());
        }
    }

    fn take_history(&mut self, run: &str, since: u64, steps: Vec<StepMetrics>) {
        self.enter_run(run);
        self.history.split_off(&since);
        for step in steps {
            self.add_step(step.global_step, step.metrics);
        }
    }

    /// Forgets the history of another experiment.
    fn enter_run(&mut self, run: &str) {
        if self.run != run {
            self.history.clear();
            self.metrics.clear();
            self.run = run.to_owned();
        }
    }

    fn add_step(&mut self, step: u64, metrics: IndexMap<String, f64>) {
        for name in metrics.keys().filter(|name| *name != "global_step") {
            if !self.metrics.contains(name) {
                self.metrics.insert(name.clone());
            }
        }
        self.history.entry(step).or_default().extend(metrics);
    }

    fn lost(&mut self, reason: String, now: f64) {
        let since = match self.failure.take() {
            Some((_, since)) => since,
            None => {
                self.note(reason.clone(), now);
                now
            }
        };
        self.failure = Some((reason, since));
    }

    fn note_change(&mut self, status: &Status, now: f64) {
        let Some(before) = &self.status else { return };
        let (before, after) = (&before.engine, &status.engine);
        if before.status != after.status && !is_update(before, after) {
            let detail = after
                .detail
                .as_deref()
                .map(|detail| format!(": {detail}"))
                .unwrap_or_default();
            let change = format!("{} → {}{detail}", state_name(before.status), state_name(after.status));
            self.note(change, now);
        } else if before.global_step < after.global_step {
            self.note(format!("step {} is done", after.updates_done()), now);
        }
    }

    /// Adds new log lines: every status repeats recent ones.
    fn take_log(&mut self, lines: &[VerboseLog]) {
        for line in lines {
            let recent = self.log.iter().rev().take(RECENT_LOG_LINES);
            if !recent.into_iter().any(|known| known == line) {
                self.push(line.clone());
            }
        }
    }

    fn note(&mut self, message: String, now: f64) {
        let tag = "overwatch".into();
        self.push(VerboseLog {
            timestamp: now,
            tag,
            message,
        });
    }

    fn push(&mut self, line: VerboseLog) {
        if self.log.len() == KEPT_LOG_LINES {
            self.log.pop_front();
        }
        // Clients send their lines later than they wrote them.
        let later = self
            .log
            .iter()
            .rev()
            .take_while(|known| known.timestamp > line.timestamp);
        let place = self.log.len() - later.count();
        self.log.insert(place, line);
    }
}

/// Returns whether a change is a part of every step, which the step's own note shows.
fn is_update(before: &EngineState, after: &EngineState) -> bool {
    use crate::protocol::swarm::EngineStatus::{Rolling, RollingPost, WeightSyncing};
    let in_step = |status| matches!(status, Rolling | RollingPost | WeightSyncing);
    before.global_step == after.global_step && in_step(before.status) && in_step(after.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::status::ExperimentInfo;

    fn observed(change: impl FnOnce(&mut Status)) -> Update {
        let mut status = Status::default();
        status.engine.status = EngineStatus::Rolling;
        status.engine.global_step = 3;
        change(&mut status);
        Update::Status(Box::new(Observed { status, missing: None }))
    }

    fn line(message: &str) -> VerboseLog {
        line_at(5.0, message)
    }

    fn line_at(timestamp: f64, message: &str) -> VerboseLog {
        VerboseLog {
            timestamp,
            tag: "client".into(),
            message: message.into(),
        }
    }

    /// Seen with a server that has no history: "no update yet" after many.
    #[test]
    fn the_last_update_is_known_without_a_history() {
        let mut known = Known::default();
        for step in [4.0, 5.0] {
            let update = observed(|status| {
                let name = "a".to_owned();
                status.experiment = Some(ExperimentInfo {
                    name,
                    ..ExperimentInfo::default()
                });
                status.latest_metrics = [("global_step".into(), step), ("reward_mean".into(), step / 10.0)].into();
            });
            known.apply(update, 0.0);
        }
        assert_eq!(known.curve("reward_mean"), [(4.0, 0.4), (5.0, 0.5)]);
        let update = observed(|status| {
            status.engine.global_step = 7;
            status.latest_metrics = [("reward_mean".into(), 0.75)].into();
        });
        known.apply(update, 0.0);
        assert_eq!(known.curve("reward_mean").last(), Some(&(6.0, 0.75)));
    }

    fn step(global_step: u64, reward: f64) -> StepMetrics {
        StepMetrics {
            global_step,
            metrics: [("reward_mean".to_owned(), reward)].into(),
        }
    }

    #[test]
    fn a_server_that_goes_away_and_comes_back_is_noted() {
        let mut known = Known::default();
        known.apply(observed(|status| status.log = vec![line("a")]), 10.0);
        known.apply(observed(|status| status.log = vec![line("a"), line("b")]), 11.0);
        known.apply(Update::Lost("connection refused".into()), 20.0);
        known.apply(Update::Lost("timed out".into()), 30.0);
        assert_eq!(known.failure, Some(("timed out".into(), 20.0)));
        assert!(known.status.is_some(), "the last state stays");
        known.apply(observed(|status| status.engine.global_step = 4), 40.0);
        known.apply(
            observed(|status| {
                status.engine.global_step = 4;
                status.engine.status = EngineStatus::WeightSyncing;
            }),
            45.0,
        );
        known.apply(
            observed(|status| {
                status.engine.status = EngineStatus::Offline;
                status.engine.detail = Some("out of memory".into());
            }),
            50.0,
        );
        let told: Vec<_> = known.log.iter().map(|line| line.message.as_str()).collect();
        let want = [
            "a",
            "b",
            "connection refused",
            "reconnected to the server",
            "step 3 is done",
        ];
        assert_eq!(told[..5], want);
        assert_eq!(told[5..], ["WEIGHT_SYNCING → OFFLINE: out of memory"]);
    }

    /// Seen: ages out of order, since clients send what they wrote before.
    #[test]
    fn log_lines_are_in_the_order_of_their_times() {
        let mut known = Known::default();
        for lines in [
            vec![line_at(5.0, "a"), line_at(9.0, "c")],
            vec![line_at(5.0, "a"), line_at(7.0, "b"), line_at(9.0, "d")],
        ] {
            known.apply(observed(|status| status.log = lines), 10.0);
        }
        let told: Vec<_> = known.log.iter().map(|line| line.message.as_str()).collect();
        assert_eq!(told, ["a", "b", "c", "d"]);
    }

    #[test]
    fn history_is_replaced_from_where_it_was_read() {
        let mut known = Known::default();
        let page = |run: &str, since, steps| Update::History {
            run: run.into(),
            since,
            steps,
        };
        known.apply(page("a", 1, vec![step(1, 0.1), step(2, 0.2), step(3, 0.3)]), 0.0);
        known.apply(page("a", 3, vec![step(3, 0.35), step(4, 0.4)]), 0.0);
        let curve = known.curve("reward_mean");
        assert_eq!(curve, [(1.0, 0.1), (2.0, 0.2), (3.0, 0.35), (4.0, 0.4)]);
        // An engine that came back with an earlier checkpoint.
        known.apply(page("a", 2, vec![step(2, 0.5)]), 0.0);
        assert_eq!(known.curve("reward_mean"), [(1.0, 0.1), (2.0, 0.5)]);
        known.apply(page("b", 1, vec![step(1, 0.9)]), 0.0);
        assert_eq!(known.curve("reward_mean"), [(1.0, 0.9)]);
        known.apply(
            observed(|status| {
                status.latest_metrics = [("global_step".into(), 2.0), ("reward_mean".into(), 0.8)].into()
            }),
            0.0,
        );
        assert_eq!(known.curve("reward_mean"), [(1.0, 0.9), (2.0, 0.8)]);
    }
}
