//! LM head, log-softmax, a target's log-probability and the entropy in one, a few rows of logits at a time: rows ×
//! vocabulary is never held, in neither direction.

use candle_core::{D, DType, Result, Tensor, bail};
use candle_nn::ops;

use super::recorded::Recorded;
use super::restricted::restricted;
use super::{soft_cap, soft_cap_slopes};
use crate::model::kernels::LogitScaling;
use crate::model::token_set::Allowed;

/// Maximum number of logits held at a time: 256 MB in f32, and three or four tensors of that size at once. 441 rows of
/// a vocabulary of 152 k: enough for a product to be bound by arithmetic.
const LOGITS: usize = 64 << 20;

/// Log-probabilities of `targets`, then entropies, under the softmax of scaled hidden·headᵀ: 2 × tokens, in f32 from
/// the logits on. The backward pass computes the logits again: 8·tokens·width·vocabulary operations in total if the
/// head is trained, against 6 with every logit kept.
pub(super) fn log_probs(
    hidden: &Tensor,
    head: &Tensor,
    targets: &[u32],
    allowed: &[Allowed],
    scaling: LogitScaling,
) -> Result<Tensor> {
    in_steps(LOGITS, hidden, head, targets, allowed, scaling)
}

/// As [`log_probs`], with another bound on the logits held at a time.
pub(super) fn in_steps(
    most_logits: usize,
    hidden: &Tensor,
    head: &Tensor,
    targets: &[u32],
    allowed: &[Allowed],
    scaling: LogitScaling,
) -> Result<Tensor> {
    let vocabulary = head.dim(0)?;
    if let Some(target) = targets.iter().find(|target| **target as usize >= vocabulary) {
        bail!("target token {target} is outside the vocabulary of {vocabulary}");
    }
    let op = Op {
        most_logits,
        targets: Tensor::new(targets, hidden.device())?.unsqueeze(1)?,
        allowed: allowed.to_vec(),
        scaling,
        train_head: head.is_variable(),
    };
    let value = op.forward(&hidden.detach(), &head.detach())?;
    let backward = move |hidden: &Tensor, head: &Tensor, gradient: &Tensor| op.backward(hidden, head, gradient);
    let name = "log_probs";
    hidden.contiguous()?.apply_op2(head, Recorded { name, value, backward })
}

struct Op {
    most_logits: usize,
    /// tokens × 1.
    targets: Tensor,
    /// Tokens that each target was chosen from; empty if none is restricted.
    allowed: Vec<Allowed>,
    scaling: LogitScaling,
    train_head: bool,
}

/// Some rows' distributions.
struct Rows {
    targets: Tensor,
    /// Log-probabilities of the whole vocabulary.
    log_probs: Tensor,
    /// −Σ p·log p, rows × 1.
    entropy: Tensor,
    /// Derivatives of capped logits by uncapped ones, rows × vocabulary, if there is a cap.
    bent: Option<Tensor>,
}

impl Op {
    /// The rows that are computed together, as start and length.
    fn steps(&self, vocabulary: usize) -> impl Iterator<Item = (usize, usize)> {
        let tokens = self.targets.elem_count();
        let step = (self.most_logits / vocabulary).max(1);
        (0..tokens)
            .step_by(step)
            .map(move |start| (start, step.min(tokens - start)))
    }

    fn rows(&self, hidden: &Tensor, head: &Tensor, start: usize) -> Result<Rows> {
        let logits = (hidden.matmul(&head.t()?)?.to_dtype(DType::F32)? * self.scaling.scale)?;
        let cap = self.scaling.softcap.map(|cap| cap as f32);
        let logits = soft_cap(&logits, cap)?;
        let bent = cap.map(|cap| soft_cap_slopes(&logits, cap)).transpose()?;
        let allowed = self.allowed.get(start..start + hidden.dim(0)?).unwrap_or_default();
        let logits = restricted(&logits, allowed.iter().map(Option::as_deref))?;
        let log_probs = ops::log_softmax(&logits, D::Minus1)?;
        let entropy = (log_probs.exp()? * &log_probs)?.sum_keepdim(D::Minus1)?.neg()?;
        let targets = self.targets.narrow(0, start, hidden.dim(0)?)?;
        Ok(Rows {
            targets,
            log_probs,
            entropy,
            bent,
        })
    }

    fn forward(&self, hidden: &Tensor, head: &Tensor) -> Result<Tensor> {
        let mut parts = vec![];
        for (start, len) in self.steps(head.dim(0)?) {
            let rows = self.rows(&hidden.narrow(0, start, len)?.contiguous()?, head, start)?;
            let chosen = rows.log_probs.gather(&rows.targets, 1)?;
            parts.push(Tensor::cat(&[chosen, rows.entropy], 1)?);
        }
        Tensor::cat(&parts, 0)?.t()?.contiguous()
    }

    fn backward(&self, hidden: &Tensor, head: &Tensor, gradient: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.t()?.contiguous()?;
        let mut by_hidden = vec![];
        let mut by_head: Option<Tensor> = None;
        for (start, len) in self.steps(head.dim(0)?) {
            let hidden = hidden.narrow(0, start, len)?.contiguous()?;
            let slopes = self
                .rows(&hidden, head, start)?
                .slopes(&gradient.narrow(0, start, len)?)?;
            let slopes = (slopes * self.scaling.scale)?.to_dtype(head.dtype())?;
            by_hidden.push(slopes.matmul(head)?);
            if self.train_head {
                let part = slopes.t()?.matmul(&hidden)?.to_dtype(DType::F32)?;
                by_head = Some(match by_head {
                    Some(sum) => (sum + part)?,
                    None => part,
                });
            }
        }
        let by_head = by_head.map(|sum| sum.to_dtype(head.dtype())).transpose()?;
        Ok((Some(Tensor::cat(&by_hidden, 0)?), by_head))
    }
}

impl Rows {
    /// The gradient by scaled products, given those by log-probability and entropy (rows × 2): with p = softmax,
    /// g·(onehot − p) − e·p·(log p + H), times the slopes of the cap.
    fn slopes(&self, gradient: &Tensor) -> Result<Tensor> {
        let (by_log_prob, by_entropy) = (gradient.narrow(1, 0, 1)?, gradient.narrow(1, 1, 1)?);
        let surprise = self
            .log_probs
            .broadcast_add(&self.entropy)?
            .broadcast_mul(&by_entropy)?;
        let slopes = (self.log_probs.exp()? * surprise.broadcast_add(&by_log_prob)?)?.neg()?;
        let slopes = slopes.scatter_add(&self.targets.contiguous()?, &by_log_prob.contiguous()?, 1)?;
        match &self.bent {
            Some(bent) => slopes * bent,
            None => Ok(slopes),
        }
    }
}
