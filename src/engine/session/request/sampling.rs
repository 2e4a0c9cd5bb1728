//! Sampling parameters: the configured ones in train episodes, the requested ones in eval episodes.

use std::collections::BTreeMap;

use super::fields::real;
use crate::config::schema::{LEAST_TEMPERATURE, Rollout};
use crate::engine::session::error::ChatError;
use crate::inference::Bias;
use crate::protocol::openai::ChatRequest;

/// Maximum number of tokens whose logits a request may change, and maximum change.
const MAX_BIASED: usize = 1024;
const MAX_BIAS: f64 = 100.0;

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    pub temperature: f64,
    pub top_p: f64,
    pub top_k: Option<usize>,
    pub min_p: f64,
    /// Logit bias; none in train episodes, whose tokens must be sampled from the unmodified model.
    pub bias: Bias,
    /// Requested seed; none in train episodes, whose answers to the same prompt must differ.
    pub seed: Option<i64>,
}

impl SamplingParams {
    pub(super) fn configured(rollout: &Rollout) -> Self {
        Self {
            temperature: rollout.temperature,
            top_p: rollout.top_p,
            top_k: usize::try_from(rollout.top_k).ok().filter(|k| *k > 0),
            min_p: 0.0,
            bias: Bias::default(),
            seed: None,
        }
    }

    pub(super) fn requested(request: &ChatRequest, rollout: &Rollout) -> Result<Self, ChatError> {
        let defaults = &rollout.val_kwargs;
        let temperature = if defaults.do_sample { defaults.temperature } else { 0.0 };
        let top_k = request.top_k.unwrap_or(defaults.top_k);
        if top_k < -1 {
            return Err(ChatError::invalid(
                "top_k",
                format!("`top_k` must be at least 1, or -1 or 0 for all tokens, got {top_k}"),
            ));
        }
        Ok(Self {
            temperature: real("temperature", request.temperature, 0.0, 2.0)?
                .or(Some(temperature))
                .filter(|temperature| *temperature >= LEAST_TEMPERATURE)
                .unwrap_or(0.0),
            top_p: real("top_p", request.top_p, 0.0, 1.0)?.unwrap_or(defaults.top_p),
            top_k: usize::try_from(top_k).ok().filter(|k| *k > 0),
            min_p: real("min_p", request.min_p, 0.0, 1.0)?.unwrap_or(0.0),
            bias: Bias {
                frequency_penalty: penalty("frequency_penalty", request.frequency_penalty)?,
                presence_penalty: penalty("presence_penalty", request.presence_penalty)?,
                logits: logit_bias(request)?,
            },
            seed: request.seed,
        })
    }
}

fn penalty(name: &str, given: Option<f64>) -> Result<f32, ChatError> {
    Ok(real(name, given, -2.0, 2.0)?.unwrap_or(0.0) as f32)
}

/// Returns the logit biases in the order of token ids.
fn logit_bias(request: &ChatRequest) -> Result<Vec<(u32, f32)>, ChatError> {
    let invalid = |message: String| Err(ChatError::invalid("logit_bias", message));
    let given = request.logit_bias.iter().flatten();
    if given.clone().count() > MAX_BIASED {
        return invalid(format!("`logit_bias` may have at most {MAX_BIASED} tokens"));
    }
    let mut added = BTreeMap::new();
    for (token, more) in given {
        let Ok(id) = token.parse::<u32>() else {
            return invalid(format!("the keys of `logit_bias` must be token ids, got {token:?}"));
        };
        if !(-MAX_BIAS..=MAX_BIAS).contains(more) {
            return invalid(format!(
                "`logit_bias` of token {id} must be between {} and {MAX_BIAS}, got {more}",
                -MAX_BIAS
            ));
        }
        added.insert(id, *more as f32);
    }
    added.retain(|_, more| *more != 0.0);
    Ok(added.into_iter().collect())
}

pub(super) fn refuse_bias(request: &ChatRequest) -> Result<(), ChatError> {
    let biased = request.logit_bias.iter().flatten().any(|(_, more)| *more != 0.0);
    for (name, asked) in [
        ("frequency_penalty", request.frequency_penalty.unwrap_or(0.0) != 0.0),
        ("presence_penalty", request.presence_penalty.unwrap_or(0.0) != 0.0),
        ("logit_bias", biased),
    ] {
        if asked {
            let message = format!(
                "`{name}` is not supported in train episodes, which train on samples of the unmodified model; hint: \
                 omit it"
            );
            return Err(ChatError::invalid(name, message));
        }
    }
    Ok(())
}
