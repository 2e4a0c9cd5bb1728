//! Logits of the tokens that a grammar allows.

use candle_core::{Result, Tensor};

use crate::model::token_set::{DISALLOWED_LOGIT, TokenSet};

/// Returns logits (rows × vocabulary) with those of tokens that are not allowed in their row replaced.
///
/// # Errors
/// Fails if out of memory.
pub fn restricted<'a>(logits: &Tensor, allowed: impl Iterator<Item = Option<&'a TokenSet>> + Clone) -> Result<Tensor> {
    if allowed.clone().all(|set| set.is_none()) {
        return Ok(logits.clone());
    }
    let (rows, vocabulary) = logits.dims2()?;
    let mut flags = Vec::with_capacity(rows * vocabulary);
    for set in allowed {
        match set {
            Some(set) => flags.extend(set.flags(vocabulary)),
            None => flags.resize(flags.len() + vocabulary, 1),
        }
    }
    let flags = Tensor::from_vec(flags, (rows, vocabulary), logits.device())?;
    let floor = Tensor::full(DISALLOWED_LOGIT, (1, 1), logits.device())?.broadcast_as((rows, vocabulary))?;
    flags.where_cond(logits, &floor)
}
