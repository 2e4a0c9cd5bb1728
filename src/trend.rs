//! Whether a series of rewards rises: what the dashboard and `roll` say about learning.

/// Maximum number of steps that are compared with as many before them.
pub const WINDOW: usize = 10;

/// Minimum number of steps for a trend.
const MIN_STEPS: usize = 10;

/// Standard errors that a difference must exceed to be no chance.
const STANDARD_ERRORS: f64 = 2.0;

/// Direction of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The last values are larger than those before by more than chance.
    Rising,
    /// They are smaller by more than chance.
    Falling,
    /// The difference is within the noise.
    Flat,
}

impl Direction {
    /// Returns an arrow.
    pub fn arrow(self) -> char {
        match self {
            Self::Rising => '↑',
            Self::Falling => '↓',
            Self::Flat => '→',
        }
    }

    /// Returns a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Rising => "rising",
            Self::Falling => "falling",
            Self::Flat => "no clear change",
        }
    }
}

/// Difference between the last values of a series and as many before them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Direction.
    pub direction: Direction,
    /// Mean of the last `window` values minus the mean of the `window` values before.
    pub difference: f64,
    /// Number of values in each mean, at most [`WINDOW`].
    pub window: usize,
}

impl Trend {
    /// Compares the ends of a series; `None` for fewer than ten values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let window = (values.len() / 2).min(WINDOW);
        if values.len() < MIN_STEPS {
            return None;
        }
        let (rest, last) = values.split_at(values.len() - window);
        let before = &rest[rest.len() - window..];
        let difference = mean(last) - mean(before);
        let error = ((variance(last) + variance(before)) / window as f64).sqrt();
        // Rounding of equal values is no change.
        let is_noise = difference.abs() <= (STANDARD_ERRORS * error).max(1e-9);
        let direction = match difference {
            _ if is_noise => Direction::Flat,
            difference if difference > 0.0 => Direction::Rising,
            _ => Direction::Falling,
        };
        Some(Self {
            direction,
            difference,
            window,
        })
    }
}

/// Such as `↑ +0.042 rising`.
impl std::fmt::Display for Trend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {:+.3} {}",
            self.direction.arrow(),
            self.difference,
            self.direction.word()
        )
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Unbiased; 0 for a single value.
fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    squares / (values.len().max(2) - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trends() {
        let noisy = |slope: f64| -> Vec<f64> {
            (0..40)
                .map(|step| slope * f64::from(step) + [0.1, -0.1, 0.05, -0.05][step as usize % 4])
                .collect()
        };
        let direction = |values: &[f64]| Trend::of(values).map(|trend| trend.direction);
        for (values, want) in [
            (vec![], None),
            ((0..9).map(f64::from).collect(), None),
            ((0..10).map(f64::from).collect(), Some(Direction::Rising)),
            ((0..10).rev().map(f64::from).collect(), Some(Direction::Falling)),
            (vec![0.5; 30], Some(Direction::Flat)),
            (noisy(0.0), Some(Direction::Flat)),
            (noisy(0.02), Some(Direction::Rising)),
            (noisy(-0.02), Some(Direction::Falling)),
        ] {
            assert_eq!(direction(&values), want, "{values:?}");
        }
    }

    #[test]
    fn the_last_ten_are_compared_with_the_ten_before() {
        let mut values = vec![9.0; 5];
        values.extend([0.25; 10]);
        values.extend([0.75; 10]);
        let trend = Trend::of(&values).unwrap();
        assert_eq!((trend.window, trend.difference), (10, 0.5));
        assert_eq!(trend.to_string(), "↑ +0.500 rising");
    }
}
