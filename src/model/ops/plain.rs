//! The operations in candle's tensor operations: for every device and type, and what the CPU kernels are checked
//! against.
//!
//! Operations of candle that lose gradients without a word (its fused rms-norm, rope and softmax) must not be used
//! on a tape; in a forward pass whose backward pass is written here they may.

use candle_core::{D, DType, Tensor};

use super::linear::Linear;
use super::{BatchContext, attention, log_probs};
use crate::model::config::ModelConfig;
use crate::model::error::Result;
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

/// x / rms(x) · weight along the last dimension, in f32.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let mean_square = wide.sqr()?.mean_keepdim(D::Minus1)?;
    let normed = wide.broadcast_div(&(mean_square + eps as f64)?.sqrt()?)?;
    Ok(normed.to_dtype(x.dtype())?.broadcast_mul(weight)?)
}

/// Rotary embedding, half-split: tokens × (heads · head_dim), each head turned by its token's position.
pub fn rope(x: &Tensor, heads: usize, context: &BatchContext) -> Result<Tensor> {
    let (tokens, width) = x.dims2()?;
    let half = width / heads / 2;
    let x = x.reshape((tokens, heads, 2 * half))?;
    let (first, second) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
    let cos = context.cos.to_dtype(x.dtype())?.unsqueeze(1)?;
    let sin = context.sin.to_dtype(x.dtype())?.unsqueeze(1)?;
    let turned_first = (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?;
    let turned_second = (second.broadcast_mul(&cos)? + first.broadcast_mul(&sin)?)?;
    Ok(Tensor::cat(&[turned_first, turned_second], 2)?.reshape((tokens, width))?)
}

/// silu(gate) · up.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    Ok((gate.silu()? * up)?)
}

/// Grouped-query attention over the batch's forest: q tokens × (heads · head_dim), k and v tokens × (kv heads ·
/// head_dim) → like q. Softmax in f32.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, config: &ModelConfig, context: &BatchContext) -> Result<Tensor> {
    Ok(attention::attention(q, k, v, config, &context.batch)?)
}

/// Log-probabilities of `targets` and entropies under softmax(hidden·headᵀ / temperature), both of length tokens, f32.
pub fn log_probs(
    hidden: &Tensor,
    head: &Tensor,
    targets: &[u32],
    allowed: &[Allowed],
    temperature: f64,
) -> Result<(Tensor, Tensor)> {
    let both = log_probs::log_probs(hidden, head, targets, allowed, temperature)?;
    Ok((both.get(0)?, both.get(1)?))
}
