//! Histograms of durations, as Prometheus has them.

/// Upper bounds of latencies in seconds, for a token or a request.
pub const LATENCY_BOUNDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
];
/// Upper bounds of durations in seconds, for an episode or an update.
pub const DURATION_BOUNDS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0, 7200.0,
];

/// Counts of durations by upper bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Durations up to each bound and above the one before; the last count is of those above all bounds.
    counts: Vec<u64>,
    /// Sum of all durations, in seconds.
    sum: f64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    /// Counts a duration in seconds; one that is no number is left out.
    pub fn observe(&mut self, seconds: f64) {
        if seconds.is_finite() {
            let place = self.bounds.partition_point(|bound| *bound < seconds);
            self.counts[place] += 1; // `place` is at most the number of bounds
            self.sum += seconds;
        }
    }

    /// Iterates over each bound and the number of durations up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let counts = self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        self.bounds.iter().copied().chain([f64::INFINITY]).zip(counts)
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all durations, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// Durations since the server started.
#[derive(Clone, Debug)]
pub struct Durations {
    /// From an LLM request to its first token.
    pub time_to_first_token: Histogram,
    /// Per further token of an answer.
    pub time_per_token: Histogram,
    /// From the claim of an episode to its end.
    pub episode: Histogram,
    /// Of updates.
    pub update: Histogram,
}

impl Default for Durations {
    fn default() -> Self {
        Self {
            time_to_first_token: Histogram::new(LATENCY_BOUNDS),
            time_per_token: Histogram::new(LATENCY_BOUNDS),
            episode: Histogram::new(DURATION_BOUNDS),
            update: Histogram::new(DURATION_BOUNDS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_up_to_and_including_each_bound() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for seconds in [0.5, 1.0, 1.5, 9.0, f64::NAN] {
            histogram.observe(seconds);
        }
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative, [(1.0, 2), (2.0, 3), (f64::INFINITY, 4)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 12.0));
    }
}
