//! Estimators of the KL divergence from the reference model, from one sampled token each (Schulman, "Approximating KL
//! divergence").

/// Bound of d before exp.
pub const MAX_LOG_RATIO: f64 = 20.0;
/// Bound of `low_var_kl`.
const MAX_K3: f64 = 10.0;

/// Estimate of KL(π_θ‖π_ref), with d = logπ_θ − logπ_ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// `kl`, k1: d.
    K1,
    /// `mse`, k2: d²/2.
    K2,
    /// `low_var_kl`, k3: e⁻ᵈ + d − 1, never negative.
    K3,
}

/// A parsed `kl_loss_type` or `kl_penalty_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kl {
    /// Reported estimate.
    pub value: Estimator,
    /// Estimate whose derivative is back-propagated: k2 after a trailing `+`, since its derivative d is unbiased.
    pub slope: Estimator,
}

impl Kl {
    /// Parses `kl`, `mse` or `low_var_kl` (also verl's names `k1`, `k2`, `k3`), with or without a trailing `+`.
    pub fn parse(name: &str) -> Option<Self> {
        let (base, straight) = match name.strip_suffix('+') {
            Some(base) => (base, false),
            None => (name, true),
        };
        let value = match base {
            "kl" | "k1" => Estimator::K1,
            "mse" | "k2" => Estimator::K2,
            "low_var_kl" | "k3" => Estimator::K3,
            _ => return None,
        };
        Some(Self {
            value,
            slope: if straight { value } else { Estimator::K2 },
        })
    }

    /// Returns the estimate at d and its derivative by d (0 where clamped).
    pub fn at(self, d: f64) -> (f64, f64) {
        (self.value.at(d).0, self.slope.at(d).1)
    }
}

impl Estimator {
    fn at(self, d: f64) -> (f64, f64) {
        let inside = if d.abs() <= MAX_LOG_RATIO { 1.0 } else { 0.0 };
        let d = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
        match self {
            Self::K1 => (d, inside),
            Self::K2 => (d * d / 2.0, d * inside),
            Self::K3 => {
                let k3 = (-d).exp() + d - 1.0;
                if k3 > MAX_K3 {
                    (MAX_K3, 0.0)
                } else {
                    (k3, (1.0 - (-d).exp()) * inside)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let e = std::f64::consts::E;
        for (name, d, value, slope) in [
            ("kl", 0.5, 0.5, 1.0),
            ("kl", -3.0, -3.0, 1.0),
            ("mse", -3.0, 4.5, -3.0),
            ("low_var_kl", 0.0, 0.0, 0.0),
            ("low_var_kl", 1.0, 1.0 / e, 1.0 - 1.0 / e),
            ("low_var_kl", -1.0, e - 2.0, 1.0 - e),
            ("low_var_kl+", 1.0, 1.0 / e, 1.0),
            ("kl+", -3.0, -3.0, -3.0),
            ("mse+", -3.0, 4.5, -3.0),
            // clamped: no slope
            ("kl", 1e6, 20.0, 0.0),
            ("mse", -1e6, 200.0, 0.0),
            ("low_var_kl", -1e6, 10.0, 0.0),
            ("low_var_kl", -5.0, 10.0, 0.0),
            ("low_var_kl", f64::INFINITY, 10.0, 0.0),
        ] {
            let (v, s) = Kl::parse(name).unwrap().at(d);
            assert!(
                (v - value).abs() < 1e-9 && (s - slope).abs() < 1e-9,
                "{name} at {d}: {v}, {s}"
            );
        }
    }

    #[test]
    fn slopes_are_derivatives() {
        for name in ["kl", "mse", "low_var_kl"] {
            let kl = Kl::parse(name).unwrap();
            for d in [-2.0, -0.3, 0.0, 0.7, 5.0] {
                let h = 1e-5;
                let numeric = (kl.at(d + h).0 - kl.at(d - h).0) / (2.0 * h);
                assert!((kl.at(d).1 - numeric).abs() < 1e-6, "{name} at {d}");
            }
        }
    }

    #[test]
    fn unknown_names_are_not_taken() {
        for name in ["", "+", "KL", "low_var_kl++", "full"] {
            assert_eq!(Kl::parse(name), None, "{name}");
        }
    }
}
