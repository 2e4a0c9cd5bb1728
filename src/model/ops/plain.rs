//! The operations in candle's tensor operations: for every device and type, and what the CPU kernels are checked
//! against.
//!
//! Operations of candle that lose gradients without a word (its fused rms-norm, rope and softmax) must not be used
//! on a tape; in a forward pass whose backward pass is written here they may.

use candle_core::{D, DType, Tensor};

use super::linear::Linear;
use super::{BatchContext, RopeTables, attention, log_probs};
use crate::model::config::ModelConfig;
use crate::model::error::Result;
use crate::model::kernels::{Activation, AttentionScores, LogitScaling};
use crate::model::routing::Routing;
use crate::model::token_set::Allowed;

/// y = x·wᵀ (+ bias): tokens × in, out × in → tokens × out.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let train_weight = weight.is_variable();
    let y = x.contiguous()?.apply_op2(weight, Linear { train_weight })?;
    Ok(match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    })
}

/// The linear layer with a low-rank adapter, which is computed in its own type.
pub fn adapted_linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    (a, b): (&Tensor, &Tensor),
    scale: f64,
) -> Result<Tensor> {
    let y = linear(x, weight, bias)?;
    let added = (linear(&linear(&x.to_dtype(a.dtype())?, a, None)?, b, None)? * scale)?;
    Ok((&y + added.to_dtype(y.dtype())?)?)
}

/// x / rms(x) · (weight + offset) along the last dimension, in f32; with an offset the product too, as Gemma has it.
pub fn rms_norm(x: &Tensor, weight: &Tensor, offset: f32, eps: f32) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let mean_square = wide.sqr()?.mean_keepdim(D::Minus1)?;
    let normed = wide.broadcast_div(&(mean_square + eps as f64)?.sqrt()?)?;
    if offset == 0.0 {
        return Ok(normed.to_dtype(x.dtype())?.broadcast_mul(weight)?);
    }
    let weight = (weight.to_dtype(DType::F32)? + f64::from(offset))?;
    Ok(normed.broadcast_mul(&weight)?.to_dtype(x.dtype())?)
}

/// Rotary embedding, half-split: tokens × (heads · head_dim), the first numbers of each head (all, unless the tables are
/// narrower) turned by its token's position.
pub fn rope(x: &Tensor, heads: usize, tables: &RopeTables) -> Result<Tensor> {
    let (tokens, width) = x.dims2()?;
    let (head_dim, half) = (width / heads, tables.cos.dim(1)?);
    let x = x.reshape((tokens, heads, head_dim))?;
    let (first, second) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
    let rest = x.narrow(2, 2 * half, head_dim - 2 * half)?;
    let cos = tables.cos.to_dtype(x.dtype())?.unsqueeze(1)?;
    let sin = tables.sin.to_dtype(x.dtype())?.unsqueeze(1)?;
    let turned_first = (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?;
    let turned_second = (second.broadcast_mul(&cos)? + first.broadcast_mul(&sin)?)?;
    Ok(Tensor::cat(&[turned_first, turned_second, rest], 2)?.reshape((tokens, width))?)
}

/// act(gate) · up.
pub fn glu(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let gate = match activation {
        Activation::Silu => gate.silu()?,
        Activation::GeluTanh => gate.gelu()?, // candle's `gelu` is the approximation
    };
    Ok((gate * up)?)
}

/// The weights of a routing's pairs, in f32, from the router's logits, tokens × experts.
pub fn routing_weights(logits: &Tensor, routing: &Routing) -> Result<Tensor> {
    let device = logits.device();
    let logits = logits.to_dtype(DType::F32)?;
    let most = logits.detach().max_keepdim(D::Minus1)?;
    let exps = logits.broadcast_sub(&most)?.exp()?;
    let (tokens, places) = (
        Tensor::new(routing.tokens(), device)?,
        Tensor::new(routing.places(), device)?,
    );
    let chosen = exps.flatten_all()?.index_select(&places, 0)?;
    let totals = match routing.is_normalized() {
        true => Tensor::zeros(logits.dim(0)?, DType::F32, device)?.index_add(&tokens, &chosen, 0)?,
        false => exps.sum(D::Minus1)?,
    };
    Ok((chosen / totals.index_select(&tokens, 0)?)?)
}

/// Adds up what experts computed for a routing's pairs (pairs × width), each times its weight, by token: tokens × width.
pub fn mix(computed: &Tensor, weights: &Tensor, routing: &Routing, tokens: usize) -> Result<Tensor> {
    let weighted = computed.broadcast_mul(&weights.to_dtype(computed.dtype())?.unsqueeze(1)?)?;
    let sum = Tensor::zeros((tokens, computed.dim(1)?), computed.dtype(), computed.device())?;
    Ok(sum.index_add(&Tensor::new(routing.tokens(), computed.device())?, &weighted, 0)?)
}

/// Grouped-query attention over the batch's forest: q tokens × (heads · head_dim), k and v tokens × (kv heads ·
/// head_dim) → like q. Softmax in f32.
pub fn attention(
    [q, k, v]: [&Tensor; 3],
    config: &ModelConfig,
    scores: AttentionScores,
    context: &BatchContext,
) -> Result<Tensor> {
    Ok(attention::attention(q, k, v, (config, scores), &context.batch)?)
}

/// Log-probabilities of `targets` and entropies under the softmax of scaled hidden·headᵀ, both of length tokens, f32.
pub fn log_probs(
    hidden: &Tensor,
    head: &Tensor,
    targets: &[u32],
    allowed: &[Allowed],
    scaling: LogitScaling,
) -> Result<(Tensor, Tensor)> {
    let both = log_probs::log_probs(hidden, head, targets, allowed, scaling)?;
    Ok((both.get(0)?, both.get(1)?))
}
