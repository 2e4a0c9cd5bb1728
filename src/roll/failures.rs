//! Decides when a run stops because too many episodes fail, and its message.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use indexmap::IndexMap;

use super::error::RollError;

/// Why an episode failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// Name under which it is counted.
    pub reason: Cow<'static, str>,
    /// Message.
    pub detail: String,
    /// Whether every attempt would fail.
    pub permanent: bool,
}

impl Failure {
    /// Creates a failure that a retry may avoid.
    pub fn passing(reason: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            detail: detail.into(),
            permanent: false,
        }
    }
}

/// Number of last episodes that are considered.
const WINDOW: usize = 64;

/// Reason of failures caused by the server, not the agent: an update or a restart ends many episodes at once.
pub(super) const LOST: &str = "episode_lost";

/// Outcomes of the last episodes.
#[derive(Debug)]
pub(super) struct Failures {
    /// Maximum share of failures among the last [`WINDOW`].
    max_rate: f64,
    /// Number of consecutive failures of any kind that ends a run.
    max_streak: usize,
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    /// Reason of each failure; `None` for a finished episode.
    window: VecDeque<Option<Cow<'static, str>>>,
    streak: usize,
}

impl Failures {
    /// Creates the record of a run with this number of parallel episodes.
    pub fn new(max_rate: f64, max_parallel: usize) -> Self {
        Self {
            max_rate,
            // All that run at once may fail for one passing reason; twice that is none.
            max_streak: (2 * max_parallel).max(20),
            recent: Mutex::default(),
        }
    }

    /// Records a finished episode.
    pub fn ended(&self) {
        self.push(None);
    }

    /// Records a failed episode.
    ///
    /// # Errors
    /// Fails if every episode would fail, or too many have failed.
    pub fn failed(&self, failure: &Failure, task_id: &str) -> Result<(), RollError> {
        if failure.permanent {
            return Err(RollError::Job {
                task_id: task_id.to_string(),
                detail: failure.detail.clone(),
            });
        }
        let (counts, episodes, streak) = self.push(Some(failure.reason.clone()));
        let blamed: usize = counts
            .iter()
            .filter(|(reason, _)| *reason != LOST)
            .map(|(_, count)| count)
            .sum();
        let is_too_many = episodes == WINDOW && blamed as f64 > self.max_rate * WINDOW as f64;
        if !is_too_many && (streak < self.max_streak || self.max_rate >= 1.0) {
            return Ok(());
        }
        let reasons: Vec<_> = counts
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        Err(RollError::TooManyFailures {
            failed: counts.values().sum(),
            episodes,
            reasons: reasons.join(", "),
            allowed: self.max_rate,
            detail: failure.detail.clone(),
        })
    }

    /// Remembers an episode; failures among the last by reason, how many the last are, and failures in a row.
    fn push(&self, reason: Option<Cow<'static, str>>) -> (IndexMap<Cow<'static, str>, usize>, usize, usize) {
        // Nothing panics while it holds the lock.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.streak = if reason.is_some() { recent.streak + 1 } else { 0 };
        recent.window.push_back(reason);
        if recent.window.len() > WINDOW {
            recent.window.pop_front();
        }
        let mut counts = IndexMap::new();
        for reason in recent.window.iter().flatten() {
            *counts.entry(reason.clone()).or_default() += 1;
        }
        (counts, recent.window.len(), recent.streak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Episodes until a run stops, of which each ended (`.`), failed (`f`), hung (`h`) or was lost (`l`).
    fn stops_after(max_rate: f64, max_parallel: usize, episodes: &str) -> Option<(usize, String)> {
        let failures = Failures::new(max_rate, max_parallel);
        for (number, episode) in episodes.chars().enumerate() {
            let failure = match episode {
                '.' => {
                    failures.ended();
                    continue;
                }
                'h' => Failure::passing("agent_timeout", "it hung"),
                'l' => Failure::passing(LOST, "an update"),
                _ => Failure::passing("agent_failed", "exit status: 1"),
            };
            if let Err(error) = failures.failed(&failure, "t") {
                return Some((number + 1, error.to_string()));
            }
        }
        None
    }

    #[test]
    fn a_run_stops_above_its_share_of_failures() {
        for (max_rate, max_parallel, episodes, expected) in [
            (0.5, 4, "f".repeat(100), Some(20)),
            (0.5, 64, "f".repeat(100), Some(64)),
            (0.5, 64, ".f".repeat(100), None),
            (0.5, 64, "..f".repeat(20) + &"f".repeat(100), Some(77)),
            (0.2, 64, "..f".repeat(100), Some(66)),
            (1.0, 4, "f".repeat(1000), None),
            (0.0, 64, ".".repeat(64) + "f", Some(65)),
            // An engine that restarts ends all that run.
            (0.5, 64, ".".repeat(64) + &"l".repeat(64) + ".", None),
            (0.5, 64, "l".repeat(200), Some(128)),
        ] {
            let stop = stops_after(max_rate, max_parallel, &episodes);
            assert_eq!(
                stop.as_ref().map(|(number, _)| *number),
                expected,
                "{max_rate} {max_parallel} {stop:?}"
            );
        }
    }

    #[test]
    fn it_says_how_many_failed_and_why() {
        let (_, message) = stops_after(0.5, 4, &("..ff".to_string() + &"h".repeat(30))).unwrap();
        assert!(
            message.starts_with(
                "20 of the last 22 episodes failed (2 agent_failed, 18 agent_timeout), the last one: it hung\nhint: "
            ),
            "{message}"
        );
        let permanent = Failure {
            permanent: true,
            ..Failure::passing("template_error", "no such field")
        };
        let error = Failures::new(1.0, 4).failed(&permanent, "t7").unwrap_err().to_string();
        assert_eq!(error, "task t7: no such field");
    }
}
