//! Means and t-tests.

/// Returns mean and unbiased standard deviation; the latter is 0 of a single number. `None` of no number.
pub fn mean_std(numbers: &[f64]) -> Option<(f64, f64)> {
    let n = numbers.len() as f64;
    let mean = (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / n)?;
    let squares: f64 = numbers.iter().map(|x| (x - mean).powi(2)).sum();
    Some((mean, (squares / (n - 1.0).max(1.0)).sqrt()))
}

/// Returns the probability of a difference of the means at least this large if both samples had the same mean: Welch's
/// two-sided t-test, for unequal variances (Biometrika 34, 1947). `None` if a sample has fewer than two numbers.
pub fn welch(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    let ((mean_a, std_a), (mean_b, std_b)) = (mean_std(a)?, mean_std(b)?);
    let (n_a, n_b) = (a.len() as f64, b.len() as f64);
    let (error_a, error_b) = (std_a.powi(2) / n_a, std_b.powi(2) / n_b);
    let error = error_a + error_b;
    let degrees = error * error / (error_a.powi(2) / (n_a - 1.0) + error_b.powi(2) / (n_b - 1.0));
    Some(two_sided(mean_a - mean_b, error, degrees))
}

/// The same by Student's t-test with one variance for all `samples`, which include `a` and `b`. A sample of two numbers says
/// little about its own variance, but all samples together about a common one. `None` where no sample varies.
pub fn pooled(a: &[f64], b: &[f64], samples: &[Vec<f64>]) -> Option<f64> {
    let (mean_a, mean_b) = (mean_std(a)?.0, mean_std(b)?.0);
    let (mut squares, mut degrees) = (0.0, 0.0);
    for sample in samples.iter().filter(|sample| sample.len() > 1) {
        let n = sample.len() as f64 - 1.0;
        squares += mean_std(sample)?.1.powi(2) * n;
        degrees += n;
    }
    let error = squares / degrees * (1.0 / a.len() as f64 + 1.0 / b.len() as f64);
    (degrees > 0.0).then(|| two_sided(mean_a - mean_b, error, degrees))
}

/// Probability of a difference at least this large, of which `error` is the variance, by Student's t.
fn two_sided(difference: f64, error: f64, degrees: f64) -> f64 {
    if error <= f64::MIN_POSITIVE {
        // Without any spread, only equality is compatible with chance.
        return if difference == 0.0 { 1.0 } else { 0.0 };
    }
    let t_squared = difference * difference / error;
    // The two-sided tail is I(ν/(ν + t²); ν/2, 1/2).
    incomplete_beta(degrees / (degrees + t_squared), degrees / 2.0, 0.5)
}

/// Regularized incomplete beta function I(x; a, b), by its continued fraction (DLMF 8.17.22).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges quickly on one side of its mean; the other side follows by symmetry.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln();
    front.exp() / (a * beta_fraction(x, a, b))
}

/// The continued fraction's denominator 1 + d₁/(1 + d₂/(1 + …)), from its end.
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    const TERMS: u32 = 300;
    (1..=TERMS).rev().fold(1.0, |rest, number| {
        let m = f64::from(number / 2);
        let d = match number % 2 {
            0 => m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            _ => -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        };
        1.0 + d / rest
    })
}

/// Logarithm of the gamma function of a positive number: Stirling's series after a shift to where it is exact.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 10.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        assert_eq!(mean_std(&[]), None);
        assert_eq!(mean_std(&[3.0]), Some((3.0, 0.0)));
        assert_eq!(mean_std(&[1.0, 3.0]), Some((2.0, std::f64::consts::SQRT_2)));
    }

    /// Values from numerical integration of Student's density.
    #[test]
    fn the_test_is_welchs() {
        let table: [(&[f64], &[f64], f64); 4] = [
            (&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 1.0),
            (&[0.60, 0.64], &[0.10, 0.12], 0.007_477_976_961_111_188),
            (
                &[1.0, 2.0, 3.0, 4.0],
                &[2.0, 4.0, 6.0, 8.0, 10.0],
                0.069_133_593_192_396_2,
            ),
            (
                &[27.5, 21.0, 19.0, 23.6, 17.0, 17.9],
                &[27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8],
                0.174_933_550_710_519_53,
            ),
        ];
        for (a, b, p) in table {
            let found = welch(a, b).unwrap();
            assert!((found - p).abs() < 1e-9, "{a:?} {b:?}: {found}, expected {p}");
            assert!((welch(b, a).unwrap() - p).abs() < 1e-9);
        }
    }

    /// With three degrees of freedom, P(|t| > t₀) has a closed form: 1 − 2/π·(θ + sin θ·cos θ), tan θ = t₀/√3.
    #[test]
    fn a_common_variance_is_that_of_all_samples() {
        let samples = [vec![0.60, 0.64], vec![0.10, 0.12], vec![0.3, 0.4]];
        let variance: f64 = (0.0008 + 0.0002 + 0.005) / 3.0;
        let theta = (0.51 / variance.sqrt() / 3_f64.sqrt()).atan();
        let expected = 1.0 - 2.0 / std::f64::consts::PI * (theta + theta.sin() * theta.cos());
        let found = pooled(&samples[0], &samples[1], &samples).unwrap();
        assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
    }

    #[test]
    fn samples_without_spread_or_of_one_are_no_division_by_zero() {
        assert_eq!(welch(&[1.0], &[2.0, 3.0]), None);
        assert_eq!(welch(&[1.0, 1.0], &[1.0, 1.0]), Some(1.0));
        assert_eq!(welch(&[1.0, 1.0], &[2.0, 2.0]), Some(0.0));
        assert_eq!(pooled(&[1.0], &[2.0], &[vec![1.0], vec![2.0]]), None);
    }
}
