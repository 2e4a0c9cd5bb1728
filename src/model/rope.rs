//! Rotary position embedding: inverse frequencies and their scalings for long contexts.
//!
//! RoPE: Su et al. 2021, <https://arxiv.org/abs/2104.09864>. YaRN: Peng et al. 2023,
//! <https://arxiv.org/abs/2309.00071>. `linear` is position interpolation, `llama3` the banded form of Llama 3.1. All
//! computed in f32, as `transformers` does, so that logits agree to the last bits.

use std::f64::consts::TAU;

use serde_json::Value;

use super::config_fields::Fields;
use super::error::ModelError;

/// Scaled rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Inverse frequencies after scaling, half as many as the numbers of a head that are rotated (all, or its first ones).
    pub inv_freq: Vec<f32>,
    /// Factor of cos and sin: the attention factor of YaRN and LongRoPE, 1 otherwise.
    pub attention_factor: f32,
    /// Longest context that these frequencies are for; LongRoPE has others beyond it.
    pub max_context: Option<usize>,
}

/// Scaling of the frequencies for a longer context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    Default,
    /// All frequencies are divided by the factor.
    Linear {
        /// Ratio of the extended to the original context.
        factor: f32,
    },
    /// Low frequencies are divided by the factor, high ones kept, those in between interpolated.
    Llama3 {
        /// Ratio of the extended to the original context.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of pre-training.
        original_context: f32,
    },
    /// As `Llama3`, with the band given in rotations over the original context, and cos and sin scaled.
    Yarn {
        /// Ratio of the extended to the original context.
        factor: f32,
        /// Dimensions that turn more often than this are kept.
        beta_fast: f64,
        /// Dimensions that turn less often than this are divided by the factor.
        beta_slow: f64,
        /// Context length of pre-training.
        original_context: f64,
        /// Factor on cos and sin.
        attention_factor: f32,
        /// Whether the band's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (arXiv 2402.13753) within the original context: each frequency has a divisor of its own.
    LongRope {
        /// Divisors of the frequencies.
        short_factors: Vec<f32>,
        /// Context length of pre-training.
        original_context: usize,
        /// Factor on cos and sin.
        attention_factor: f32,
    },
}

impl Rope {
    /// Returns the cosines and sines of positions' angles, each positions × `head_dim / 2`, as transformers computes
    /// them: angles first, then their cosines and sines, in f32.
    pub fn tables(&self, positions: impl Iterator<Item = u32>) -> (Vec<f32>, Vec<f32>) {
        let angles = positions.flat_map(|position| self.inv_freq.iter().map(move |f| (position as f32 * f).sin_cos()));
        angles
            .map(|(sin, cos)| (cos * self.attention_factor, sin * self.attention_factor))
            .unzip()
    }

    /// Returns the frequencies for the base `theta` where the first `head_dim` numbers of a head are rotated.
    pub fn new(theta: f32, head_dim: usize, scaling: &RopeScaling) -> Self {
        let max_context = match scaling {
            RopeScaling::LongRope { original_context, .. } => Some(*original_context),
            _ => None,
        };
        let (inv_freq, attention_factor) = Self::frequencies(theta, head_dim, scaling);
        Self {
            inv_freq,
            attention_factor,
            max_context,
        }
    }

    /// Returns the frequencies and the factor of cos and sin.
    fn frequencies(theta: f32, head_dim: usize, scaling: &RopeScaling) -> (Vec<f32>, f32) {
        let plain = (0..head_dim)
            .step_by(2)
            .map(|i| 1.0 / theta.powf(i as f32 / head_dim as f32));
        match scaling {
            RopeScaling::Default => (plain.collect(), 1.0),
            &RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let scale = |frequency: f32| {
                    let wavelength = TAU as f32 / frequency;
                    if wavelength < original_context / high_freq_factor {
                        frequency
                    } else if wavelength > original_context / low_freq_factor {
                        frequency / factor
                    } else {
                        let smooth =
                            (original_context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * frequency / factor + smooth * frequency
                    }
                };
                (plain.map(scale).collect(), 1.0)
            }
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_context,
                attention_factor,
                truncate,
            } => {
                let (low, high) = yarn_band(theta, head_dim, beta_fast, beta_slow, original_context, truncate);
                let scale = |(i, frequency): (usize, f32)| {
                    let kept = 1.0 - ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    frequency / factor * (1.0 - kept) + frequency * kept
                };
                (plain.enumerate().map(scale).collect(), attention_factor)
            }
            RopeScaling::LongRope {
                short_factors,
                attention_factor,
                ..
            } => {
                let divided = plain.zip(short_factors).map(|(frequency, factor)| frequency / factor);
                (divided.collect(), *attention_factor)
            }
        }
    }

    /// Reads the settings of one rotary embedding. `theta` is its base unless `parameters` have their own; `partial`
    /// says whether it may turn a part of each head only.
    pub(super) fn from_fields(
        config: &Fields,
        parameters: &Fields,
        theta: f64,
        (head_dim, partial): (usize, bool),
        max_position_embeddings: usize,
    ) -> Result<Self, ModelError> {
        let part = match parameters.optional_positive("partial_rotary_factor")? {
            Some(part) => part,
            None => config.optional_positive("partial_rotary_factor")?.unwrap_or(1.0),
        };
        if !partial && part != 1.0 {
            return Err(ModelError::Config(format!(
                "partial_rotary_factor is {part}; supported is 1, rope over whole heads"
            )));
        }
        let width = (head_dim as f64 * part) as usize;
        if width > head_dim || width == 0 || !width.is_multiple_of(2) {
            return Err(ModelError::Config(format!(
                "partial_rotary_factor is {part} and the width of a head {head_dim}; the part of a head that rope turns \
                 must be even, and at most the head"
            )));
        }
        let theta = parameters.optional_positive("rope_theta")?.unwrap_or(theta);
        let original_context = match config.optional_size("original_max_position_embeddings")? {
            Some(context) => context,
            None => parameters
                .optional_size("original_max_position_embeddings")?
                .unwrap_or(max_position_embeddings),
        };
        let scaling = RopeScaling::from_fields(parameters, original_context, max_position_embeddings, width)?;
        let rope = Self::new(theta as f32, width, &scaling);
        if !rope.attention_factor.is_finite() || rope.inv_freq.iter().any(|frequency| !frequency.is_finite()) {
            return Err(ModelError::Config(format!(
                "rope_theta {theta} and the rope scaling {scaling:?} give angles that are not finite"
            )));
        }
        Ok(rope)
    }
}

impl RopeScaling {
    fn from_fields(
        parameters: &Fields,
        original_context: usize,
        max_position_embeddings: usize,
        width: usize,
    ) -> Result<Self, ModelError> {
        let required = |key: &str| {
            parameters
                .optional_number(key)?
                .filter(|n| *n > 0.0)
                .ok_or_else(|| ModelError::Config(format!("rope scaling needs a positive `{key}`")))
        };
        let rope_type = ["rope_type", "type"]
            .iter()
            .find_map(|key| parameters.0.get(*key)?.as_str());
        match rope_type.unwrap_or("default") {
            "default" => Ok(Self::Default),
            "linear" => Ok(Self::Linear {
                factor: required("factor")? as f32,
            }),
            "llama3" => Ok(Self::Llama3 {
                factor: required("factor")? as f32,
                low_freq_factor: required("low_freq_factor")? as f32,
                high_freq_factor: required("high_freq_factor")? as f32,
                original_context: original_context as f32,
            }),
            // Phi-3's first files have other names for it.
            "longrope" | "su" => Self::longrope(parameters, original_context, max_position_embeddings, width),
            "yarn" if parameters.0.contains_key("short_factor") => {
                Self::longrope(parameters, original_context, max_position_embeddings, width)
            }
            "yarn" => {
                let factor = parameters
                    .optional_number("factor")?
                    .unwrap_or(max_position_embeddings as f64 / original_context as f64);
                let number = |key: &str| Ok::<_, ModelError>(parameters.optional_number(key)?.filter(|n| *n != 0.0));
                let magnitude = |m: f64| {
                    if factor <= 1.0 {
                        1.0
                    } else {
                        0.1 * m * factor.ln() + 1.0
                    }
                };
                let attention_factor = match (
                    parameters.optional_number("attention_factor")?,
                    number("mscale")?,
                    number("mscale_all_dim")?,
                ) {
                    (Some(given), _, _) => given,
                    (None, Some(m), Some(all)) => magnitude(m) / magnitude(all),
                    (None, _, _) => magnitude(1.0),
                };
                Ok(Self::Yarn {
                    factor: factor as f32,
                    beta_fast: number("beta_fast")?.unwrap_or(32.0),
                    beta_slow: number("beta_slow")?.unwrap_or(1.0),
                    original_context: original_context as f64,
                    attention_factor: attention_factor as f32,
                    truncate: parameters.0.get("truncate").and_then(Value::as_bool).unwrap_or(true),
                })
            }
            other => Err(ModelError::Config(format!(
                "rope type `{other}` is not supported; supported are default, linear, llama3, longrope and yarn"
            ))),
        }
    }
}

impl RopeScaling {
    fn longrope(
        parameters: &Fields,
        original_context: usize,
        max_position_embeddings: usize,
        width: usize,
    ) -> Result<Self, ModelError> {
        let must_be = format!("a list of {} numbers above 0", width / 2);
        let short_factors = parameters.read("short_factor", &must_be, |v| {
            let factors = v.as_array().filter(|factors| factors.len() == width / 2)?.iter();
            let factor = |factor: &Value| factor.as_f64().map(|f| f as f32).filter(|f| *f > 0.0 && f.is_finite());
            factors.map(factor).collect()
        })?;
        let original = original_context as f64;
        let factor = match parameters.optional_positive("factor")? {
            Some(factor) => factor,
            None => max_position_embeddings as f64 / original,
        };
        let attention_factor = match parameters.optional_number("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / original.ln()).sqrt(),
        };
        Ok(Self::LongRope {
            short_factors: short_factors
                .ok_or_else(|| ModelError::Config("rope type `longrope` needs `short_factor`".into()))?,
            original_context,
            attention_factor: attention_factor as f32,
        })
    }
}

/// First and last dimension (of `head_dim / 2`) of the band in which yarn passes from kept to divided frequencies.
fn yarn_band(
    theta: f32,
    head_dim: usize,
    beta_fast: f64,
    beta_slow: f64,
    original_context: f64,
    truncate: bool,
) -> (f32, f32) {
    let dimension_turning =
        |times: f64| head_dim as f64 * (original_context / (times * TAU)).ln() / (2.0 * (theta as f64).ln());
    let (mut low, mut high) = (dimension_turning(beta_fast), dimension_turning(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
    if low == high {
        high += 0.001; // a band of no width would divide by zero
    }
    (low as f32, high as f32)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use crate::model::ModelConfig;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        config: serde_json::Value,
        inv_freq: Vec<f32>,
        attention_factor: f32,
    }

    #[test]
    fn tables_hold_scaled_cosines_and_sines_of_every_position() {
        let rope = super::Rope {
            inv_freq: vec![1.0, 0.25],
            attention_factor: 2.0,
            max_context: None,
        };
        let (cos, sin) = rope.tables([0, 3].into_iter());
        assert_eq!(cos, [2.0, 2.0, 2.0 * 3f32.cos(), 2.0 * 0.75f32.cos()]);
        assert_eq!(sin, [0.0, 0.0, 2.0 * 3f32.sin(), 2.0 * 0.75f32.sin()]);
    }

    #[test]
    fn frequencies_equal_those_of_transformers() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("../../tests/fixtures/rope.json")).unwrap();
        assert!(cases.len() >= 15);
        for case in cases {
            let rope = &ModelConfig::from_json(&case.config).unwrap().ropes[0];
            assert!(
                (rope.attention_factor - case.attention_factor).abs() < 1e-6,
                "{}",
                case.name
            );
            assert_eq!(rope.inv_freq.len(), case.inv_freq.len(), "{}", case.name);
            for (ours, theirs) in rope.inv_freq.iter().zip(&case.inv_freq) {
                assert!(
                    (ours / theirs - 1.0).abs() < 2e-6,
                    "{}: {ours} instead of {theirs}",
                    case.name
                );
            }
        }
    }
}
