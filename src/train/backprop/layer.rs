//! Forward and backward pass of a decoder layer with the CPU kernels.

use super::arena::Rest;
use super::projection::Projection;
use crate::model::kernels::forest_attention::{AttentionGradients, AttentionInputs, ForestAttention};
use crate::model::kernels::tensors::Numbers;
use crate::model::kernels::{Compute, Into};
use crate::model::kernels::{Pool, Rotation, rms_norm, rms_norm_backward, rope_tokens, swiglu, swiglu_backward};
use crate::model::packed::PackedBatch;
use crate::model::{ModelConfig, Transformer};
use crate::train::error::Result;
use crate::train::gradients::Gradients;

/// Inputs that all layers of a pass share.
pub(super) struct Pass<'a> {
    pub config: &'a ModelConfig,
    pub batch: &'a PackedBatch,
    /// Cosines of the rotary embedding, tokens × head_dim / 2.
    pub cos: Numbers<'a>,
    /// Sines of the rotary embedding, tokens × head_dim / 2.
    pub sin: Numbers<'a>,
    pub compute: Compute<'a>,
}

/// Borrowed weights of a layer.
pub(super) struct Layer<'a> {
    input_norm: Norm<'a>,
    q: Projection<'a>,
    k: Projection<'a>,
    v: Projection<'a>,
    head_norms: Option<(Norm<'a>, Norm<'a>)>,
    o: Projection<'a>,
    post_norm: Norm<'a>,
    gate: Projection<'a>,
    up: Projection<'a>,
    down: Projection<'a>,
}

/// Borrowed weight of a norm.
pub(super) struct Norm<'a> {
    name: String,
    weight: Numbers<'a>,
    trained: bool,
    eps: f32,
}

/// Results that a layer's backward pass needs besides its input, with one row per token.
pub(super) struct Kept<'a> {
    /// Queries after norm and rotary embedding, of width heads · head_dim; keys likewise.
    q: &'a mut [f32],
    k: &'a mut [f32],
    v: &'a mut [f32],
    /// Queries and keys before their norms; empty if the model has no such norms.
    raw_q: &'a mut [f32],
    raw_k: &'a mut [f32],
    /// Result of attention.
    mixed: &'a mut [f32],
    /// Residual stream between attention and MLP.
    middle: &'a mut [f32],
    gate: &'a mut [f32],
    up: &'a mut [f32],
}

/// Temporary memory, shared by all layers.
pub(super) struct Scratch<'a> {
    /// tokens × hidden.
    normed: &'a mut [f32],
    /// tokens × hidden.
    by_normed: &'a mut [f32],
    /// tokens × intermediate. So for the next.
    inner: &'a mut [f32],
    by_inner: &'a mut [f32],
    /// tokens × (heads · head_dim). So for the next.
    by_mixed: &'a mut [f32],
    by_q: &'a mut [f32],
    /// tokens × (kv_heads · head_dim). So for the next.
    by_k: &'a mut [f32],
    by_v: &'a mut [f32],
}

impl<'a> Kept<'a> {
    /// Returns the number of floats per token.
    pub fn size(config: &ModelConfig) -> usize {
        let (q, kv) = widths(config);
        let raw = if config.qk_norm { q + kv } else { 0 };
        2 * q + 2 * kv + raw + config.hidden_size + 2 * config.intermediate_size
    }

    pub fn cut(config: &ModelConfig, tokens: usize, rest: &mut Rest<'a>) -> Self {
        let (q, kv) = widths(config);
        let raw = config.qk_norm as usize;
        let mut take = |width: usize| rest.take(tokens * width);
        Self {
            q: take(q),
            k: take(kv),
            v: take(kv),
            raw_q: take(q * raw),
            raw_k: take(kv * raw),
            mixed: take(q),
            middle: take(config.hidden_size),
            gate: take(config.intermediate_size),
            up: take(config.intermediate_size),
        }
    }
}

impl<'a> Scratch<'a> {
    /// Returns the number of floats per token.
    pub fn size(config: &ModelConfig) -> usize {
        let (q, kv) = widths(config);
        2 * config.hidden_size + 2 * config.intermediate_size + 2 * q + 2 * kv
    }

    pub fn cut(config: &ModelConfig, tokens: usize, rest: &mut Rest<'a>) -> Self {
        let (q, kv) = widths(config);
        let mut take = |width: usize| rest.take(tokens * width);
        Self {
            normed: take(config.hidden_size),
            by_normed: take(config.hidden_size),
            inner: take(config.intermediate_size),
            by_inner: take(config.intermediate_size),
            by_mixed: take(q),
            by_q: take(q),
            by_k: take(kv),
            by_v: take(kv),
        }
    }
}

/// Returns the widths of queries and of keys.
fn widths(config: &ModelConfig) -> (usize, usize) {
    (
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
}

impl<'a> Norm<'a> {
    pub fn read(model: &Transformer<'a>, module: &str) -> Result<Self> {
        let (weights, name) = (model.weights(), format!("{module}.weight"));
        Ok(Self {
            weight: Numbers::of(weights.tensor(&name)?)?,
            trained: weights.is_trained(&name),
            eps: weights.config.rms_norm_eps,
            name,
        })
    }

    pub fn forward(&self, pool: &Pool, x: &[f32], y: &mut [f32]) {
        rms_norm(pool, x, &self.weight, self.eps, y);
    }

    /// Adds to the gradient `dx` of the input and, if the weight is trained, to its gradient.
    pub fn backward(&self, pool: &Pool, x: &[f32], g: &[f32], dx: &mut [f32], gradients: &mut Gradients) -> Result<()> {
        if !self.trained {
            rms_norm_backward(pool, x, &self.weight, g, self.eps, dx, None);
            return Ok(());
        }
        gradients.accumulate(&self.name, self.weight.len(), |sum, _| {
            rms_norm_backward(pool, x, &self.weight, g, self.eps, dx, Some(sum))
        })
    }
}

impl Pass<'_> {
    fn attention(&self) -> ForestAttention<'_> {
        ForestAttention {
            batch: self.batch,
            heads: self.config.num_heads,
            kv_heads: self.config.num_kv_heads,
            head_dim: self.config.head_dim,
            compute: self.compute,
        }
    }

    /// Applies the rotary embedding to queries or keys, or its inverse.
    fn rope(&self, x: &mut [f32], heads: usize, rotation: Rotation) {
        let d = self.config.head_dim;
        rope_tokens(self.compute.pool, x, heads * d, (&self.cos, &self.sin), d / 2, rotation);
    }
}

impl<'a> Layer<'a> {
    /// # Errors
    /// Fails if a parameter is missing or not f32 on the CPU.
    pub fn read(model: &Transformer<'a>, number: usize, compute: Compute<'a>) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{number}.{part}");
        let projection = |part: &str| Projection::read(model, name(part), compute);
        let head_norm = |part: &str| Norm::read(model, &name(part));
        let head_norms = match model.weights().config.qk_norm {
            true => Some((head_norm("self_attn.q_norm")?, head_norm("self_attn.k_norm")?)),
            false => None,
        };
        Ok(Self {
            input_norm: Norm::read(model, &name("input_layernorm"))?,
            q: projection("self_attn.q_proj")?,
            k: projection("self_attn.k_proj")?,
            v: projection("self_attn.v_proj")?,
            head_norms,
            o: projection("self_attn.o_proj")?,
            post_norm: Norm::read(model, &name("post_attention_layernorm"))?,
            gate: projection("mlp.gate_proj")?,
            up: projection("mlp.up_proj")?,
            down: projection("mlp.down_proj")?,
        })
    }

    /// Computes the stored results, and `output` if given: a recomputed layer has its output already.
    pub fn forward(&self, pass: &Pass, x: &[f32], kept: &mut Kept, scratch: &mut Scratch, output: Option<&mut [f32]>) {
        let Scratch { normed, inner, .. } = scratch;
        let pool = pass.compute.pool;
        let (heads, kv_heads) = (pass.config.num_heads, pass.config.num_kv_heads);
        self.input_norm.forward(pool, x, normed);
        let (q, k) = match self.head_norms {
            Some(_) => (&mut *kept.raw_q, &mut *kept.raw_k),
            None => (&mut *kept.q, &mut *kept.k),
        };
        self.q.linear().forward(normed, q, Into::Replace);
        self.k.linear().forward(normed, k, Into::Replace);
        self.v.linear().forward(normed, kept.v, Into::Replace);
        if let Some((q_norm, k_norm)) = &self.head_norms {
            q_norm.forward(pool, kept.raw_q, kept.q);
            k_norm.forward(pool, kept.raw_k, kept.k);
        }
        pass.rope(kept.q, heads, Rotation::Forward);
        pass.rope(kept.k, kv_heads, Rotation::Forward);
        pass.attention().forward(kept.q, kept.k, kept.v, kept.mixed);
        kept.middle.copy_from_slice(x);
        self.o.linear().forward(kept.mixed, kept.middle, Into::Add);
        self.post_norm.forward(pool, kept.middle, normed);
        self.gate.linear().forward(normed, kept.gate, Into::Replace);
        self.up.linear().forward(normed, kept.up, Into::Replace);
        if let Some(output) = output {
            swiglu(pool, kept.gate, kept.up, inner);
            output.copy_from_slice(kept.middle);
            self.down.linear().forward(inner, output, Into::Add);
        }
    }

    /// Turns `flow`, the gradient of the layer's output, into that of its input. Overwrites the stored results.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn backward(
        &self,
        pass: &Pass,
        x: &[f32],
        kept: &mut Kept,
        scratch: &mut Scratch,
        flow: &mut [f32],
        gradients: &mut Gradients,
    ) -> Result<()> {
        self.mlp_backward(pass.compute.pool, kept, scratch, flow, gradients)?;
        self.attention_backward(pass, x, kept, scratch, flow, gradients)
    }

    fn mlp_backward(
        &self,
        pool: &Pool,
        kept: &mut Kept,
        scratch: &mut Scratch,
        flow: &mut [f32],
        gradients: &mut Gradients,
    ) -> Result<()> {
        let Scratch {
            normed,
            by_normed,
            inner,
            by_inner,
            ..
        } = scratch;
        swiglu(pool, kept.gate, kept.up, inner);
        self.down.backward(inner, flow, (by_inner, Into::Replace), gradients)?;
        swiglu_backward(pool, kept.gate, kept.up, by_inner);
        self.post_norm.forward(pool, kept.middle, normed);
        self.gate
            .backward(normed, kept.gate, (by_normed, Into::Replace), gradients)?;
        self.up.backward(normed, kept.up, (by_normed, Into::Add), gradients)?;
        self.post_norm.backward(pool, kept.middle, by_normed, flow, gradients)
    }

    fn attention_backward(
        &self,
        pass: &Pass,
        x: &[f32],
        kept: &mut Kept,
        scratch: &mut Scratch,
        flow: &mut [f32],
        gradients: &mut Gradients,
    ) -> Result<()> {
        let Scratch {
            normed,
            by_normed,
            by_mixed,
            by_q,
            by_k,
            by_v,
            ..
        } = scratch;
        self.o
            .backward(kept.mixed, flow, (by_mixed, Into::Replace), gradients)?;
        let pool = pass.compute.pool;
        let inputs = AttentionInputs {
            q: kept.q,
            k: kept.k,
            v: kept.v,
            y: kept.mixed,
            g: by_mixed,
        };
        let found = AttentionGradients {
            dq: by_q,
            dk: by_k,
            dv: by_v,
        };
        pass.attention().backward(&inputs, found);
        pass.rope(by_q, pass.config.num_heads, Rotation::Backward);
        pass.rope(by_k, pass.config.num_kv_heads, Rotation::Backward);
        if let Some((q_norm, k_norm)) = &self.head_norms {
            // The inputs of attention are no longer needed: their memory holds the gradients before the norms.
            for (norm, raw, by, into) in [
                (q_norm, &*kept.raw_q, &mut *by_q, &mut *kept.q),
                (k_norm, &*kept.raw_k, &mut *by_k, &mut *kept.k),
            ] {
                into.fill(0.0);
                norm.backward(pool, raw, by, into, gradients)?;
                by.copy_from_slice(into);
            }
        }
        self.input_norm.forward(pool, x, normed);
        let mut into = Into::Replace;
        for (projection, by) in [(&self.q, by_q), (&self.k, by_k), (&self.v, by_v)] {
            projection.backward(normed, by, (by_normed, into), gradients)?;
            into = Into::Add;
        }
        self.input_norm.backward(pool, x, by_normed, flow, gradients)
    }
}
