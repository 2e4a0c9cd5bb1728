//! How a run advances: the reward and its trend, the time that is left, and which updates get a line of their own.

use std::collections::VecDeque;
use std::time::Instant;

use super::report::Step;
use crate::trend::{LONGEST, Trend};

/// Maximum number of lines for the updates of a run.
const MAX_LINES: u64 = 40;

/// Number of steps of which the mean duration is taken.
const STEPS_TIMED: usize = 10;

/// Pace of a run.
#[derive(Debug)]
pub(super) struct Pace {
    /// Last step of the run, if it has one.
    last: Option<u64>,
    /// Updates that share a line.
    every: u64,
    /// Step of the last update.
    step: u64,
    /// Mean rewards of the last updates.
    rewards: VecDeque<f64>,
    /// Seconds of the last steps.
    seconds: VecDeque<f64>,
    /// When the current batch began.
    batch_began: Instant,
}

impl Pace {
    /// Creates the pace of a run whose length is not known yet: every update gets a line.
    pub fn new(now: Instant) -> Self {
        Self {
            last: None,
            every: 1,
            step: 0,
            rewards: VecDeque::new(),
            seconds: VecDeque::new(),
            batch_began: now,
        }
    }

    /// Sets the last step of a run that begins at step `first`. Long runs get a line every 2, 5, 10, … updates, unless
    /// `every_step`.
    pub fn plan(&mut self, first: u64, last: Option<u64>, every_step: bool, now: Instant) {
        self.last = last;
        self.step = first.saturating_sub(1);
        self.batch_began = now;
        let updates = last.map_or(0, |last| (last + 1).saturating_sub(first));
        let scales = std::iter::successors(Some(1_u64), |scale| scale.checked_mul(10));
        let mut rounds = scales.flat_map(|scale| [1, 2, 5].map(|round| scale.saturating_mul(round)));
        self.every = match every_step {
            true => 1,
            false => rounds.find(|every| updates.div_ceil(*every) <= MAX_LINES).unwrap_or(1),
        };
    }

    /// Takes an update into account. Returns whether it gets a line.
    pub fn update(&mut self, step: &Step, now: Instant) -> bool {
        let is_first = self.rewards.is_empty() && self.seconds.is_empty();
        self.step = step.global_step;
        self.batch_began = now;
        keep(&mut self.rewards, step.summary.reward_mean, LONGEST);
        keep(&mut self.seconds, Some(step.seconds), STEPS_TIMED);
        is_first || step.global_step.is_multiple_of(self.every) || self.last == Some(step.global_step)
    }

    /// Returns the last reward and its trend, and the time that is left; empty before the first update.
    pub fn summary(&self) -> String {
        let reward = self.rewards.back().map(|reward| format!("reward {reward:.3}"));
        let (older, newer) = self.rewards.as_slices();
        let trend = Trend::of(&[older, newer].concat()).map(|trend| trend.to_string());
        let done = self.last.map(|last| format!("{}/{last} updates", self.step));
        let left = self.seconds_left().map(|seconds| format!("{} left", duration(seconds)));
        let learning: Vec<_> = [reward, trend].into_iter().flatten().collect();
        let parts = [Some(learning.join(" ")), done, left].into_iter().flatten();
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
    }

    /// Returns the estimated time until `done` of `target` episodes of the batch are all of them.
    pub fn next_update(&self, done: u64, target: u64, now: Instant) -> Option<String> {
        let took = now.duration_since(self.batch_began).as_secs_f64();
        let left = target.saturating_sub(done) as f64;
        (done > 0 && left > 0.0).then(|| format!("next update in about {}", duration(took * left / done as f64)))
    }

    fn seconds_left(&self) -> Option<f64> {
        let updates = self.last?.saturating_sub(self.step) as f64;
        let each = self.seconds.iter().sum::<f64>() / self.seconds.len() as f64;
        (!self.seconds.is_empty()).then_some(updates * each)
    }
}

fn keep(values: &mut VecDeque<f64>, value: Option<f64>, most: usize) {
    values.extend(value);
    let excess = values.len().saturating_sub(most);
    values.drain(..excess);
}

/// Formats seconds: `42s`, `3m 07s`, `2h 05m`.
fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m {:02}s", seconds % 60),
        (hours, minutes) => format!("{hours}h {minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::roll::report::Summary;

    fn step(global_step: u64, reward: f64) -> Step {
        let summary = Summary {
            reward_mean: Some(reward),
            ..Summary::default()
        };
        Step {
            global_step,
            summary,
            seconds: 2.0,
            metrics: [].into(),
        }
    }

    #[test]
    fn long_runs_get_few_lines() {
        let now = Instant::now();
        for (first, last, every_step, lines) in [
            (1, Some(3), false, vec![1, 2, 3]),
            (1, Some(40), false, (1..=40).collect()),
            (
                1,
                Some(45),
                false,
                [vec![1], (1..=22).map(|n| 2 * n).collect(), vec![45]].concat(),
            ),
            (
                1,
                Some(300),
                false,
                [vec![1], (1..=30).map(|n| 10 * n).collect()].concat(),
            ),
            (
                250,
                Some(300),
                false,
                [vec![250], (126..=150).map(|n| 2 * n).collect()].concat(),
            ),
            (1, Some(300), true, (1..=300).collect()),
            (1, None, false, (1..=300).collect()),
        ] {
            let mut pace = Pace::new(now);
            pace.plan(first, last, every_step, now);
            let steps = first..=last.unwrap_or(300);
            let told: Vec<u64> = steps.filter(|number| pace.update(&step(*number, 0.5), now)).collect();
            // 250 is a multiple of 2 and the first.
            let mut lines = lines;
            lines.dedup();
            assert_eq!(told, lines, "{first} {last:?}");
        }
    }

    #[test]
    fn reward_trend_and_time_left() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        assert_eq!(pace.summary(), "");
        pace.plan(1, Some(100), false, now);
        for number in 1..=20 {
            pace.update(&step(number, if number > 10 { 0.75 } else { 0.25 }), now);
        }
        assert_eq!(
            pace.summary(),
            "reward 0.750 ↑ +0.500 rising over 20 updates  20/100 updates  2m 40s left"
        );
        let mut flat = Pace::new(now);
        flat.plan(1, Some(999), false, now);
        for number in 1..=998 {
            flat.update(&step(number, 0.5), now);
        }
        let line = "reward 0.500 → no clear change over 200 updates  998/999 updates  2s left";
        assert_eq!(flat.summary(), line, "fits 80 columns");
        let later = now + Duration::from_secs(10);
        assert_eq!(pace.next_update(0, 8, later), None);
        assert_eq!(pace.next_update(2, 8, later).unwrap(), "next update in about 30s");
        assert_eq!(pace.next_update(8, 8, later), None);
    }
}
