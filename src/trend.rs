//! Whether a series of rewards rises: what the dashboard, the page (`assets/ui/series.mjs`) and `roll` say about
//! learning. The page has the same rule; `tests/fixtures/trends.json` holds both to it.
//!
//! The last 10, 15, 22, 33, … values are looked at, up to the last [`LONGEST`]: the shortest window with a clear change
//! counts. So a fast rise is seen at once, a slow one when there are enough values, and a collapse after a long rise
//! is not hidden by it.

/// Maximum number of values that are looked at.
pub const LONGEST: usize = 200;

/// Minimum number of values for a trend.
const SHORTEST: usize = 10;

/// Standard deviations of the Mann-Kendall statistic of noise that a clear change exceeds.
const CLEAR: f64 = 3.0;

/// Differences up to this one are those of rounding.
const ROUNDING: f64 = 1e-9;

/// Direction of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The values rise by more than chance.
    Rising,
    /// They fall by more than chance.
    Falling,
    /// No window has a change that exceeds the noise.
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

    /// Returns words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Rising => "rising",
            Self::Falling => "falling",
            Self::Flat => "no clear change",
        }
    }
}

/// The latest clear change of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Direction.
    pub direction: Direction,
    /// Mean of the window's last quarter minus the mean of its first quarter.
    pub difference: f64,
    /// Number of the last values in which the change is clear; of all that were looked at if none is.
    pub window: usize,
}

impl Trend {
    /// Looks at the end of a series; `None` for fewer than ten values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let values = &values[values.len().saturating_sub(LONGEST)..];
        if values.len() < SHORTEST {
            return None;
        }
        let shorter = std::iter::successors(Some(SHORTEST), |window| Some(window * 3 / 2));
        let shorter = shorter.take_while(|window| *window < values.len());
        let clear = shorter
            .chain([values.len()])
            .find_map(|window| clear_change(&values[values.len() - window..]));
        Some(clear.unwrap_or_else(|| Self {
            direction: Direction::Flat,
            difference: difference(values),
            window: values.len(),
        }))
    }
}

/// Such as `↑ +0.042 rising over 40 updates`; a difference within the noise is not told.
impl std::fmt::Display for Trend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.direction.arrow())?;
        if self.direction != Direction::Flat {
            write!(f, "{:+.3} ", self.difference)?;
        }
        write!(f, "{} over {} updates", self.direction.words(), self.window)
    }
}

/// Returns the change of all values if the Mann-Kendall test, which asks of every pair whether the later one is larger,
/// finds one and the means of first and last quarter agree.
fn clear_change(values: &[f64]) -> Option<Trend> {
    let pairs = values
        .iter()
        .enumerate()
        .flat_map(|(at, earlier)| values[at + 1..].iter().map(move |later| later - earlier));
    let statistic: f64 = pairs.filter(|step| step.abs() > ROUNDING).map(f64::signum).sum();
    let count = values.len() as f64;
    let deviation = (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
    let difference = difference(values);
    let direction = match difference > 0.0 {
        true => Direction::Rising,
        false => Direction::Falling,
    };
    let is_clear = statistic.abs() > CLEAR * deviation && difference * statistic > 0.0;
    is_clear.then_some(Trend {
        direction,
        difference,
        window: values.len(),
    })
}

/// Returns the mean of the last quarter minus that of the first.
fn difference(values: &[f64]) -> f64 {
    let quarter = values.len().div_ceil(4);
    mean(&values[values.len() - quarter..]) - mean(&values[..quarter])
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// A curve of `tests/fixtures/trends.json`.
    #[derive(Deserialize)]
    struct Curve {
        name: String,
        values: Vec<f64>,
        word: Option<String>,
        window: Option<usize>,
        difference: Option<f64>,
    }

    /// Seen: "no clear change" while a fast run rose, since ten steps were compared with the ten before.
    #[test]
    fn curves_are_told_from_noise() {
        let curves: Vec<Curve> = serde_json::from_str(include_str!("../tests/fixtures/trends.json")).unwrap();
        for curve in curves {
            let trend = Trend::of(&curve.values);
            let told = trend.map(|trend| (trend.direction.words().to_owned(), trend.window));
            assert_eq!(told, curve.word.zip(curve.window), "{}", curve.name);
            let off = trend.map(|trend| trend.difference).unwrap_or(0.0) - curve.difference.unwrap_or(0.0);
            assert!(off.abs() < 1e-3, "{}: {trend:?}", curve.name);
        }
    }

    #[test]
    fn a_trend_reads_as_a_sentence() {
        let values: Vec<f64> = (0..10).map(|step| 0.1 * f64::from(step)).collect();
        let trend = Trend::of(&values).unwrap();
        assert_eq!(trend.to_string(), "↑ +0.700 rising over 10 updates");
        assert_eq!(Trend::of(&values[1..]), None);
        assert_eq!(
            Trend::of(&[0.5; 1000]).unwrap().to_string(),
            "→ no clear change over 200 updates"
        );
    }
}
