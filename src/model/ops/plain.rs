//! candle's differentiable operations: correct on every device, and what the kernels are checked against.
//!
//! Operations of candle that lose gradients without a word (its fused rms-norm, rope and softmax) must not be used
//! here.

use candle_core::{D, DType, Tensor};

use super::BatchContext;
use crate::model::config::ModelConfig;
use crate::model::error::Result;

/// y = x·wᵀ (+ bias): tokens × in, out × in → tokens × out.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = x.matmul(&weight.t()?)?;
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
    let segments = &context.batch.segments;
    let outputs = (0..segments.len()).map(|s| segment_attention(q, k, v, config, context, s));
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    Ok(Tensor::cat(&outputs, 0)?)
}

/// Attention of one segment's tokens to its ancestors and, causally, to itself.
fn segment_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    config: &ModelConfig,
    context: &BatchContext,
    segment: usize,
) -> Result<Tensor> {
    let (kv_heads, d) = (config.num_kv_heads, config.head_dim);
    let group = config.num_heads / kv_heads;
    let own = context.batch.segments[segment];
    let path = context.batch.ancestors(segment);
    let seen: usize = path.iter().map(|range| range.len()).sum();
    let (len, keys) = (own.len, seen + own.len);
    let along_path = |x: &Tensor| -> Result<Tensor> {
        let mut parts = Vec::with_capacity(path.len() + 1);
        for range in &path {
            parts.push(x.narrow(0, range.start, range.len())?);
        }
        parts.push(x.narrow(0, own.start, own.len)?);
        Ok(Tensor::cat(&parts, 0)?
            .reshape((keys, kv_heads, d))?
            .transpose(0, 1)?
            .contiguous()?)
    };
    let (k, v) = (along_path(k)?, along_path(v)?);
    let q = q.narrow(0, own.start, len)?.reshape((len, kv_heads, group, d))?;
    let q = q
        .permute((1, 2, 0, 3))?
        .contiguous()?
        .reshape((kv_heads, group * len, d))?;
    let scores = (q.matmul(&k.t()?)?.to_dtype(DType::F32)? * (1.0 / (d as f64).sqrt()))?;
    let mask = causal_mask(len, seen, q.device())?;
    let scores = scores.reshape((kv_heads, group, len, keys))?.broadcast_add(&mask)?;
    let shares = candle_nn::ops::softmax(&scores, D::Minus1)?.to_dtype(v.dtype())?;
    let mixed = shares.reshape((kv_heads, group * len, keys))?.matmul(&v)?;
    let mixed = mixed
        .reshape((kv_heads, group, len, d))?
        .permute((2, 0, 1, 3))?
        .contiguous()?;
    Ok(mixed.reshape((len, kv_heads * group * d))?)
}

/// 0 where token i of a segment sees key j (`seen` ancestors first), −∞ elsewhere.
fn causal_mask(len: usize, seen: usize, device: &candle_core::Device) -> Result<Tensor> {
    let keys = seen + len;
    let hidden = |i: usize, j: usize| if j > seen + i { f32::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f32> = (0..len).flat_map(|i| (0..keys).map(move |j| hidden(i, j))).collect();
    Ok(Tensor::from_vec(mask, (len, keys), device)?)
}

/// Log-probabilities of `targets` and entropies under softmax(hidden·headᵀ / temperature), both of length tokens, f32.
pub fn log_probs(hidden: &Tensor, head: &Tensor, targets: &[u32], temperature: f64) -> Result<(Tensor, Tensor)> {
    let logits = (hidden.matmul(&head.t()?)?.to_dtype(DType::F32)? / temperature)?;
    let log_probs = candle_nn::ops::log_softmax(&logits, D::Minus1)?;
    let targets = Tensor::new(targets, hidden.device())?.unsqueeze(1)?;
    let chosen = log_probs.gather(&targets, 1)?.squeeze(1)?;
    let entropy = (log_probs.exp()? * &log_probs)?.sum(D::Minus1)?.neg()?;
    Ok((chosen, entropy))
}
