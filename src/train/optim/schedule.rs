//! Learning-rate schedule.

use crate::config::schema::{LrScheduler, Optim};

/// Learning rate as a function of the update number.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    kind: LrScheduler,
    peak: f64,
    floor: f64,
    warmup: u64,
    total: Option<u64>,
}

impl Schedule {
    /// Returns the configured schedule. Without a total number of updates, the rate stays at its peak after warm-up,
    /// and a warm-up ratio has no effect.
    pub fn new(optim: &Optim, total_training_steps: Option<u64>) -> Self {
        let by_ratio = total_training_steps.map_or(0, |total| (optim.lr_warmup_steps_ratio * total as f64) as u64);
        let warmup = match optim.lr_warmup_steps {
            Some(steps) if steps >= 0 => steps as u64,
            _ => by_ratio,
        };
        Self {
            kind: optim.lr_scheduler_type,
            peak: optim.lr,
            floor: optim.lr * optim.min_lr_ratio,
            warmup,
            total: total_training_steps,
        }
    }

    /// Returns the learning rate of an update, the first being 0: `lr · update / warmup` during warm-up, as in verl,
    /// then constant, linear, or half a cosine down to `lr · min_lr_ratio`, reached at the last update.
    pub fn learning_rate(&self, update: u64) -> f64 {
        if update < self.warmup {
            return self.peak * update as f64 / self.warmup as f64;
        }
        let Some(total) = self.total.filter(|total| *total > self.warmup) else {
            return self.peak;
        };
        let progress = ((update - self.warmup) as f64 / (total - self.warmup) as f64).min(1.0);
        let share = match self.kind {
            LrScheduler::Constant => return self.peak,
            LrScheduler::Linear => 1.0 - progress,
            LrScheduler::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        };
        self.floor + (self.peak - self.floor) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: LrScheduler, warmup: Option<i64>, ratio: f64, total: Option<u64>) -> Schedule {
        let optim = Optim {
            lr: 1.0,
            lr_scheduler_type: kind,
            lr_warmup_steps: warmup,
            lr_warmup_steps_ratio: ratio,
            min_lr_ratio: 0.2,
            ..Optim::default()
        };
        Schedule::new(&optim, total)
    }

    #[test]
    fn courses() {
        use LrScheduler::{Constant, Cosine, Linear};
        let cases = [
            (schedule(Constant, None, 0.0, None), vec![(0, 1.0), (1000, 1.0)]),
            (
                schedule(Constant, Some(4), 0.0, Some(10)),
                vec![(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (9, 1.0)],
            ),
            (
                schedule(Linear, Some(-1), 0.5, Some(8)),
                vec![(0, 0.0), (2, 0.5), (4, 1.0), (6, 0.6), (8, 0.2), (99, 0.2)],
            ),
            (schedule(Cosine, None, 0.0, Some(8)), vec![(0, 1.0), (4, 0.6), (8, 0.2)]),
            (schedule(Cosine, None, 0.5, None), vec![(0, 1.0), (50, 1.0)]),
        ];
        for (schedule, points) in cases {
            for (update, expected) in points {
                let found = schedule.learning_rate(update);
                assert!(
                    (found - expected).abs() < 1e-12,
                    "{schedule:?} at {update}: {found}, not {expected}"
                );
            }
        }
    }
}
