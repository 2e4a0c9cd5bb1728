//! The kernels as operations: contiguous input, and no gradient for what is frozen.

use candle_core::Tensor;

use super::BatchContext;
use crate::model::config::ModelConfig;
use crate::model::error::Result;
use crate::model::kernels::train::attention::Attention;
use crate::model::kernels::train::head::LogProbs;
use crate::model::kernels::train::linear::{AdaptedLinear, Linear};
use crate::model::kernels::train::rms_norm::RmsNorm;
use crate::model::kernels::train::rope::Rope;
use crate::model::kernels::train::swiglu::SwiGlu;

pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = x.contiguous()?.apply_op2(
        weight,
        Linear {
            train_weight: weight.is_variable(),
        },
    )?;
    with_bias(y, bias)
}

pub fn adapted_linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    (a, b): (&Tensor, &Tensor),
    scale: f64,
) -> Result<Tensor> {
    let op = AdaptedLinear {
        weight: weight.clone(),
        scale: scale as f32,
    };
    with_bias(x.contiguous()?.apply_op3(a, b, op)?, bias)
}

fn with_bias(y: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    Ok(match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    })
}

pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    Ok(x.contiguous()?.apply_op2(
        weight,
        RmsNorm {
            eps,
            train_weight: weight.is_variable(),
        },
    )?)
}

pub fn rope(x: &Tensor, context: &BatchContext) -> Result<Tensor> {
    Ok(x.contiguous()?.apply_op1(Rope {
        cos: context.cos.clone(),
        sin: context.sin.clone(),
    })?)
}

pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    Ok(gate.contiguous()?.apply_op2(&up.contiguous()?, SwiGlu)?)
}

pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, config: &ModelConfig, context: &BatchContext) -> Result<Tensor> {
    let op = Attention {
        batch: context.batch.clone(),
        heads: config.num_heads,
        kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
    };
    Ok(q.contiguous()?.apply_op3(&k.contiguous()?, &v.contiguous()?, op)?)
}

pub fn log_probs(hidden: &Tensor, head: &Tensor, targets: &[u32], temperature: f64) -> Result<(Tensor, Tensor)> {
    let op = LogProbs {
        targets: targets.to_vec(),
        temperature: temperature as f32,
        train_head: head.is_variable(),
    };
    let both = hidden.contiguous()?.apply_op2(head, op)?;
    Ok((both.get(0)?, both.get(1)?))
}
