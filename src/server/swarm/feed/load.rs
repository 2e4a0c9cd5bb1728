//! Load and speed of sampling, from the engine's reports.

use std::collections::VecDeque;

use crate::protocol::engine::EngineLoad;
use crate::protocol::status::{Distribution, SamplingLoad};

/// Period in seconds over which rates are computed.
const WINDOW: f64 = 10.0;
/// Number of latencies of which the distribution is shown.
const LATENCIES: usize = 256;

/// Totals at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    at: f64,
    sampled_tokens: u64,
    computed_tokens: u64,
    ended_episodes: u64,
    /// Requests being sampled and queued, times the seconds for which they were.
    request_seconds: [f64; 2],
}

/// Follows the engine's reports.
#[derive(Debug, Default)]
pub struct LoadMonitor {
    latest: EngineLoad,
    /// When `latest` came.
    latest_at: f64,
    /// As in [`Totals`], up to `latest_at`.
    request_seconds: [f64; 2],
    ended_episodes: u64,
    /// Totals of the last [`WINDOW`] seconds and one before, oldest first.
    totals: VecDeque<Totals>,
    time_to_first_token: VecDeque<f64>,
    time_per_token: VecDeque<f64>,
}

impl LoadMonitor {
    /// Takes a report of the engine.
    pub fn report(&mut self, load: EngineLoad, now: f64) {
        keep_last(&mut self.time_to_first_token, &load.time_to_first_token);
        keep_last(&mut self.time_per_token, &load.time_per_token);
        self.request_seconds = self.request_seconds_at(now);
        (self.latest, self.latest_at) = (load, now);
        self.note_totals(now);
    }

    /// Counts a finished episode.
    pub fn episode_ended(&mut self, now: f64) {
        self.ended_episodes += 1;
        self.note_totals(now);
    }

    fn note_totals(&mut self, now: f64) {
        while self.totals.get(1).is_some_and(|next| next.at <= now - WINDOW) {
            self.totals.pop_front();
        }
        // A busy server ends thousands of episodes per second; a tenth of a second is fine enough for rates.
        let mut newest = self.totals.iter().rev();
        if let (Some(last), Some(before)) = (newest.next(), newest.next())
            && last.at - before.at < WINDOW / 100.0
        {
            self.totals.pop_back();
        }
        self.totals.push_back(Totals {
            at: now,
            sampled_tokens: self.latest.sampled_tokens,
            computed_tokens: self.latest.computed_tokens,
            ended_episodes: self.ended_episodes,
            request_seconds: self.request_seconds_at(now),
        });
    }

    fn request_seconds_at(&self, now: f64) -> [f64; 2] {
        let since = (now - self.latest_at).max(0.0);
        let [running, waiting] = self.request_seconds;
        [
            running + self.latest.running_requests as f64 * since,
            waiting + self.latest.waiting_requests as f64 * since,
        ]
    }

    /// Returns the latest report.
    pub fn latest(&self) -> &EngineLoad {
        &self.latest
    }

    /// Returns load and rates.
    pub fn sampling(&self, now: f64) -> SamplingLoad {
        let load = &self.latest;
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let tokens_per_second = self.rate(|totals| totals.sampled_tokens, now);
        let [running, waiting] = self.mean_requests(now);
        SamplingLoad {
            // Requests that begin and end between two reports are in none of them.
            running_requests: running.max(u64::from(tokens_per_second > 0.0)),
            waiting_requests: waiting,
            cache_usage: load.cache_usage,
            prefix_hit_rate: share(load.cached_tokens, load.prompt_tokens),
            tokens_per_second,
            prompt_tokens_per_second: self.rate(|totals| totals.computed_tokens, now),
            episodes_per_second: self.rate(|totals| totals.ended_episodes, now),
            time_to_first_token: Distribution::of(self.time_to_first_token.iter().copied()),
            time_per_token: Distribution::of(self.time_per_token.iter().copied()),
            memory_bytes: load.memory_bytes,
            endpoints: load.endpoints.clone(),
        }
    }

    /// Returns how much a total grew per second in the last [`WINDOW`] seconds, or since the first report.
    fn rate(&self, total: impl Fn(&Totals) -> u64, now: f64) -> f64 {
        let (Some(base), Some(last)) = (self.base(now), self.totals.back()) else {
            return 0.0;
        };
        let seconds = now - base.at;
        let grown = total(last).saturating_sub(total(base));
        if seconds > 0.0 { grown as f64 / seconds } else { 0.0 }
    }

    /// Returns the mean number of requests being sampled and queued in the same time, rounded up.
    fn mean_requests(&self, now: f64) -> [u64; 2] {
        let Some(base) = self.base(now).filter(|base| base.at < now) else {
            return [self.latest.running_requests, self.latest.waiting_requests];
        };
        let until_now = self.request_seconds_at(now);
        [0, 1].map(|kind| {
            let mean = (until_now[kind] - base.request_seconds[kind]) / (now - base.at);
            // Less than a thousandth of a request is rounding.
            (mean - 1e-3).max(0.0).ceil() as u64
        })
    }

    /// Returns the totals from which rates are computed: the last ones before the window, or the first ones.
    fn base(&self, now: f64) -> Option<&Totals> {
        let before = |totals: &&Totals| totals.at <= now - WINDOW;
        self.totals.iter().take_while(before).last().or(self.totals.front())
    }
}

fn keep_last(kept: &mut VecDeque<f64>, new: &[f64]) {
    kept.extend(&new[new.len().saturating_sub(LATENCIES)..]);
    kept.drain(..kept.len().saturating_sub(LATENCIES));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(sampled_tokens: u64) -> EngineLoad {
        EngineLoad {
            sampled_tokens,
            prompt_tokens: 8,
            cached_tokens: 2,
            time_to_first_token: vec![0.5],
            ..EngineLoad::default()
        }
    }

    #[test]
    fn rates_are_means_of_ten_seconds_and_fall_to_zero_after_the_last_report() {
        let mut monitor = LoadMonitor::default();
        assert_eq!(monitor.sampling(0.0), SamplingLoad::default());
        for second in 0..=20 {
            monitor.report(load(100 * second), second as f64);
        }
        monitor.episode_ended(20.0);
        let now = monitor.sampling(20.0);
        assert_eq!((now.tokens_per_second, now.episodes_per_second), (100.0, 0.1));
        assert_eq!(
            (now.prefix_hit_rate, now.time_to_first_token.unwrap().count),
            (0.25, 21)
        );
        assert_eq!(monitor.sampling(25.0).tokens_per_second, 50.0);
        assert_eq!(monitor.sampling(40.0).tokens_per_second, 0.0);
        assert!(monitor.totals.len() < 15, "{}", monitor.totals.len());
    }

    /// Seen: "0 requests sampled" beside thousands of tokens a second.
    #[test]
    fn requests_and_tokens_are_means_of_the_same_time() {
        let report = |running_requests, waiting_requests, tokens| EngineLoad {
            running_requests,
            waiting_requests,
            ..load(tokens)
        };
        let mut monitor = LoadMonitor::default();
        monitor.report(report(32, 8, 0), 0.0);
        monitor.report(report(0, 0, 1000), 5.0);
        for (now, running, waiting) in [(5.0, 32, 8), (10.0, 16, 4), (14.9, 11, 3), (15.0, 0, 0)] {
            let sampling = monitor.sampling(now);
            assert_eq!(
                (sampling.running_requests, sampling.waiting_requests),
                (running, waiting),
                "at {now}"
            );
            assert_eq!(sampling.tokens_per_second > 0.0, running > 0, "at {now}");
        }
        let mut monitor = LoadMonitor::default();
        monitor.report(report(0, 0, 0), 0.0);
        monitor.report(report(0, 0, 50), 1.0);
        assert_eq!(monitor.sampling(2.0).running_requests, 1, "too short to be in a report");
    }

    #[test]
    fn many_ends_and_latencies_take_bounded_memory() {
        let mut monitor = LoadMonitor::default();
        monitor.report(load(0), 0.0);
        for at in 0..50_000 {
            monitor.episode_ended(f64::from(at) / 1000.0);
        }
        let many = EngineLoad {
            time_per_token: vec![0.1; 10 * LATENCIES],
            ..load(0)
        };
        monitor.report(many, 50.0);
        assert!(monitor.totals.len() < 120, "{}", monitor.totals.len());
        assert_eq!(monitor.sampling(50.0).time_per_token.unwrap().count, LATENCIES as u64);
        assert!((monitor.sampling(50.0).episodes_per_second - 1000.0).abs() < 20.0);
    }
}
