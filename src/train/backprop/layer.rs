//! Forward and backward pass of a decoder layer with the CPU kernels.

use std::ops::Deref;

use super::arena::Rest;
use super::mixture::{Inside, Mixture};
use super::pass::Pass;
use super::projection::{Projection, Projections};
use crate::model::config::{GATE_UP, QKV};
use crate::model::kernels::forest_attention::{AttentionGradients, AttentionInputs};
use crate::model::kernels::sums::add_scaled;
use crate::model::kernels::tensors::Numbers;
use crate::model::kernels::{Compute, Into};
use crate::model::kernels::{Pool, Rotation, glu, glu_backward, rms_norm, rms_norm_backward};
use crate::model::weights::EMBEDDING;
use crate::model::{ModelConfig, Transformer};
use crate::train::error::Result;
use crate::train::gradients::Gradients;

/// Borrowed weights of a layer.
pub(super) struct Layer<'a> {
    number: usize,
    /// Whether nothing before the layer is trained, so that its input needs no gradient.
    frozen_input: bool,
    /// Whether only predicting tokens need its MLP.
    last: bool,
    before_attention: Option<Norm<'a>>,
    qkv: Projections<'a, 3>,
    head_norms: Option<(Norm<'a>, Norm<'a>)>,
    attention_exit: Exit<'a>,
    before_mlp: Option<Norm<'a>>,
    feed_forward: FeedForward<'a>,
}

/// What follows attention.
#[expect(
    clippy::large_enum_variant,
    reason = "a few dozen are made at once, each read in every pass"
)]
enum FeedForward<'a> {
    /// One MLP for all tokens.
    Dense(Dense<'a>),
    /// A mixture of experts.
    Mixture(Mixture<'a>),
}

/// An MLP, and what is done with its result.
struct Dense<'a> {
    gate_up: Projections<'a, 2>,
    exit: Exit<'a>,
}

/// The end of attention or MLP: stream + scale · norm(projection(x)).
struct Exit<'a> {
    projection: Projection<'a>,
    norm: Option<Norm<'a>>,
    scale: f32,
}

/// Borrowed weight of a norm.
pub(super) struct Norm<'a> {
    name: String,
    weight: NormWeight<'a>,
    trained: bool,
    eps: f32,
}

/// What a norm multiplies by.
enum NormWeight<'a> {
    /// The parameter.
    Stored(Numbers<'a>),
    /// The parameter plus a constant, whose gradient is the parameter's.
    Offset(Vec<f32>),
}

/// Results that a layer's backward pass needs besides its input, with one row per token.
pub(super) struct Kept<'a> {
    /// Queries after norm and rotary embedding, of width heads · head_dim; keys likewise.
    q: &'a mut [f32],
    k: &'a mut [f32],
    v: &'a mut [f32],
    /// Queries and keys before their norms; empty if the model has none.
    raw_q: &'a mut [f32],
    raw_k: &'a mut [f32],
    /// Result of attention.
    mixed: &'a mut [f32],
    /// Results of the last projections of attention and MLP before their norms; empty if they have none.
    attention_raw: &'a mut [f32],
    mlp_raw: &'a mut [f32],
    /// Residual stream between attention and MLP.
    middle: &'a mut [f32],
    /// Results of the gate and up projections, of a token's experts one behind the other.
    gate: &'a mut [f32],
    up: &'a mut [f32],
    /// Logits of the router; empty if the model has none.
    router: &'a mut [f32],
}

/// Temporary memory, shared by all layers.
pub(super) struct Scratch<'a> {
    /// tokens × hidden.
    normed: &'a mut [f32],
    /// tokens × hidden.
    by_normed: &'a mut [f32],
    /// tokens × width inside the MLP, or the experts of a token. So for the next.
    inner: &'a mut [f32],
    by_inner: &'a mut [f32],
    /// Rows of an expert's tokens, each of tokens × hidden; empty if the model has no experts.
    expert_rows: [&'a mut [f32]; 2],
    /// tokens × (heads · head_dim). So for the next.
    by_mixed: &'a mut [f32],
    by_q: &'a mut [f32],
    /// tokens × (kv_heads · head_dim). So for the next.
    by_k: &'a mut [f32],
    by_v: &'a mut [f32],
    /// Result of a fused projection; empty if the model has none.
    fused: &'a mut [f32],
}

/// Memory of an MLP's forward and backward pass, with one row for each of its tokens.
struct Mlp<'a> {
    middle: &'a mut [f32],
    raw: &'a mut [f32],
    normed: &'a mut [f32],
    by_normed: &'a mut [f32],
    fused: &'a mut [f32],
    inside: Inside<'a>,
}

impl<'a> Kept<'a> {
    /// Returns the number of floats per token.
    pub fn size(config: &ModelConfig) -> usize {
        let (q, kv) = widths(config);
        let raw = if config.qk_norm.is_some() { q + kv } else { 0 };
        let streams = (1 + branch_norms(config)) * config.hidden_size;
        2 * q + 2 * kv + raw + streams + 2 * config.mlp_width() + expert_count(config)
    }

    pub fn cut(config: &ModelConfig, tokens: usize, rest: &mut Rest<'a>) -> Self {
        let (q, kv) = widths(config);
        let raw = usize::from(config.qk_norm.is_some());
        let mut take = |width: usize| rest.take(tokens * width);
        Self {
            q: take(q),
            k: take(kv),
            v: take(kv),
            raw_q: take(q * raw),
            raw_k: take(kv * raw),
            mixed: take(q),
            attention_raw: take(config.hidden_size * usize::from(config.norms.after_attention.is_some())),
            mlp_raw: take(config.hidden_size * usize::from(config.norms.after_mlp.is_some())),
            middle: take(config.hidden_size),
            gate: take(config.mlp_width()),
            up: take(config.mlp_width()),
            router: take(expert_count(config)),
        }
    }
}

impl<'a> Scratch<'a> {
    /// Returns the number of floats per token.
    pub fn size(config: &ModelConfig) -> usize {
        let (q, kv) = widths(config);
        2 * config.hidden_size
            + 2 * config.mlp_width()
            + 2 * expert_row_width(config)
            + 2 * q
            + 2 * kv
            + fused_width(config)
    }

    pub fn cut(config: &ModelConfig, tokens: usize, rest: &mut Rest<'a>) -> Self {
        let (q, kv) = widths(config);
        let mut take = |width: usize| rest.take(tokens * width);
        Self {
            normed: take(config.hidden_size),
            by_normed: take(config.hidden_size),
            inner: take(config.mlp_width()),
            by_inner: take(config.mlp_width()),
            expert_rows: [(); 2].map(|()| take(expert_row_width(config))),
            by_mixed: take(q),
            by_q: take(q),
            by_k: take(kv),
            by_v: take(kv),
            fused: take(fused_width(config)),
        }
    }
}

/// Moves the rows of the given tokens, which ascend, to the front.
fn gather(rows: &mut [f32], width: usize, tokens: &[u32]) {
    for (to, from) in tokens.iter().map(|token| *token as usize).enumerate() {
        rows.copy_within(from * width..(from + 1) * width, to * width);
    }
}

/// Moves the rows at the front back to the given tokens; all other rows become zero.
fn scatter(rows: &mut [f32], width: usize, tokens: &[u32]) {
    let mut end = rows.len();
    for (from, to) in tokens.iter().map(|token| *token as usize).enumerate().rev() {
        rows.copy_within(from * width..(from + 1) * width, to * width);
        rows[(to + 1) * width..end].fill(0.0);
        end = to * width;
    }
    rows[..end].fill(0.0);
}

/// Returns the widths of queries and of keys.
fn widths(config: &ModelConfig) -> (usize, usize) {
    (
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
}

/// Returns the number of norms after attention and MLP.
fn branch_norms(config: &ModelConfig) -> usize {
    let norms = &config.norms;
    [norms.after_attention, norms.after_mlp].iter().flatten().count()
}

/// Returns the number of experts of a layer; 0 if the model has none.
fn expert_count(config: &ModelConfig) -> usize {
    config.experts.as_ref().map_or(0, |experts| experts.count)
}

/// Returns the width of the rows that experts work on; 0 if the model has none.
fn expert_row_width(config: &ModelConfig) -> usize {
    config.experts.as_ref().map_or(0, |_| config.hidden_size)
}

/// Returns the width of the widest fused projection.
fn fused_width(config: &ModelConfig) -> usize {
    let (q, kv) = widths(config);
    match config.fused_projections {
        true => (q + 2 * kv).max(2 * config.intermediate_size),
        false => 0,
    }
}

impl Deref for NormWeight<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Stored(numbers) => numbers,
            Self::Offset(numbers) => numbers,
        }
    }
}

impl<'a> Norm<'a> {
    pub fn read(model: &Transformer<'a>, module: &str) -> Result<Self> {
        let (weights, name) = (model.weights(), format!("{module}.weight"));
        let (stored, offset) = (Numbers::of(weights.tensor(&name)?)?, weights.config.norm_offset);
        Ok(Self {
            weight: match offset == 0.0 {
                true => NormWeight::Stored(stored),
                false => NormWeight::Offset(stored.iter().map(|w| w + offset).collect()),
            },
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
        gradients.add_to(&self.name, self.weight.len(), |sum| {
            rms_norm_backward(pool, x, &self.weight, g, self.eps, dx, Some(sum))
        })
    }
}

impl<'a> Layer<'a> {
    /// # Errors
    /// Fails if a parameter is missing or not f32 on the CPU.
    pub fn read(model: &Transformer<'a>, number: usize, compute: Compute<'a>) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{number}.{part}");
        let config = &model.weights().config;
        let norm = |part: &str| Norm::read(model, &name(part));
        let exit = |part: &str, after: Option<&str>| -> Result<Exit<'a>> {
            Ok(Exit {
                projection: Projection::read(model, name(part), compute)?,
                norm: after.map(norm).transpose()?,
                scale: config.residual_scale,
            })
        };
        Ok(Self {
            number,
            frozen_input: number == 0 && !model.weights().is_trained(EMBEDDING),
            last: number + 1 == config.layers.len(),
            before_attention: config.norms.before_attention.map(norm).transpose()?,
            qkv: Projections::read(model, &name("self_attn"), &QKV, compute)?,
            head_norms: match config.qk_norm {
                Some(_) => Some((norm("self_attn.q_norm")?, norm("self_attn.k_norm")?)),
                None => None,
            },
            attention_exit: exit("self_attn.o_proj", config.norms.after_attention)?,
            before_mlp: config.norms.before_mlp.map(norm).transpose()?,
            feed_forward: match config.layer_experts(number) {
                Some(experts) => FeedForward::Mixture(Mixture::read(model, experts, number, compute)?),
                None => FeedForward::Dense(Dense {
                    gate_up: Projections::read(model, &name("mlp"), &GATE_UP, compute)?,
                    exit: exit("mlp.down_proj", config.norms.after_mlp)?,
                }),
            },
        })
    }

    /// Computes the stored results, and `output` if given: a recomputed layer has its output already. The last layer's is
    /// that of the predicting tokens, one after the other.
    pub fn forward(&self, pass: &Pass, x: &[f32], kept: &mut Kept, scratch: &mut Scratch, output: Option<&mut [f32]>) {
        let Scratch { normed, fused, .. } = scratch;
        let pool = pass.compute.pool;
        let (q, k) = match self.head_norms {
            Some(_) => (&mut *kept.raw_q, &mut *kept.raw_k),
            None => (&mut *kept.q, &mut *kept.k),
        };
        let input = entry(&self.before_attention, pool, x, normed);
        self.qkv.forward(input, [q, k, &mut *kept.v], fused);
        if let Some((q_norm, k_norm)) = &self.head_norms {
            q_norm.forward(pool, kept.raw_q, kept.q);
            k_norm.forward(pool, kept.raw_k, kept.k);
        }
        pass.rope(self.number, kept.q, kept.k, Rotation::Forward);
        pass.attention(self.number).forward(kept.q, kept.k, kept.v, kept.mixed);
        let exit = &self.attention_exit;
        exit.forward(
            pool,
            kept.mixed,
            x,
            (&mut *kept.attention_raw, &mut *normed),
            kept.middle,
        );
        if self.last {
            gather(kept.middle, pass.config.hidden_size, pass.predicting);
        }
        let mlp = self.mlp(pass, kept, scratch);
        let output = output.map(|output| &mut output[..mlp.middle.len()]);
        let input = entry(&self.before_mlp, pool, mlp.middle, mlp.normed);
        match &self.feed_forward {
            FeedForward::Mixture(mixture) => mixture.forward(pass, input, mlp.middle, mlp.inside, output),
            FeedForward::Dense(Dense { gate_up, exit }) => {
                let Inside { gate, up, inner, .. } = mlp.inside;
                gate_up.forward(input, [&mut *gate, &mut *up], mlp.fused);
                if output.is_none() && exit.norm.is_none() {
                    return;
                }
                glu(pool, pass.config.activation, gate, up, inner);
                match output {
                    Some(output) => exit.forward(pool, inner, mlp.middle, (mlp.raw, mlp.normed), output),
                    None => exit.projection.linear().forward(inner, mlp.raw, Into::Replace),
                }
            }
        }
    }

    /// The memory of the MLP's tokens: all of them or, in the last layer, those that predict, one after the other.
    fn mlp<'m>(&self, pass: &Pass, kept: &'m mut Kept, scratch: &'m mut Scratch) -> Mlp<'m> {
        let tokens = match self.last {
            true => pass.predicting.len(),
            false => pass.batch.len(),
        };
        let width = tokens * pass.config.hidden_size;
        let inner = tokens * pass.config.layer_mlp_width(self.number);
        let raw = width.min(kept.mlp_raw.len());
        let logits = tokens * expert_count(pass.config);
        let [rows, more_rows] = &mut scratch.expert_rows;
        Mlp {
            middle: &mut kept.middle[..width],
            raw: &mut kept.mlp_raw[..raw],
            normed: &mut scratch.normed[..width],
            by_normed: &mut scratch.by_normed[..width],
            fused: &mut *scratch.fused,
            inside: Inside {
                gate: &mut kept.gate[..inner],
                up: &mut kept.up[..inner],
                inner: &mut scratch.inner[..inner],
                by_inner: &mut scratch.by_inner[..inner],
                logits: &mut kept.router[..logits],
                rows: [rows, more_rows],
            },
        }
    }

    /// Turns `flow`, the gradient of the layer's output, into that of its input (where nothing before the layer is
    /// trained, into that between attention and MLP). Overwrites the stored results.
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
        let mlp = self.mlp(pass, kept, scratch);
        let width = mlp.middle.len();
        self.mlp_backward(pass, mlp, &mut flow[..width], gradients)?;
        if self.last {
            scatter(flow, pass.config.hidden_size, pass.predicting);
        }
        self.attention_backward(pass, x, kept, scratch, flow, gradients)
    }

    fn mlp_backward(&self, pass: &Pass, mlp: Mlp, flow: &mut [f32], gradients: &mut Gradients) -> Result<()> {
        let pool = pass.compute.pool;
        let (gate_up, exit) = match &self.feed_forward {
            FeedForward::Dense(Dense { gate_up, exit }) => (gate_up, exit),
            FeedForward::Mixture(mixture) => {
                let input = entry(&self.before_mlp, pool, mlp.middle, mlp.normed);
                mlp.by_normed.fill(0.0);
                mixture.backward(pass, input, mlp.inside, flow, mlp.by_normed, gradients)?;
                match &self.before_mlp {
                    Some(norm) => norm.backward(pool, mlp.middle, mlp.by_normed, flow, gradients)?,
                    None => add_scaled(pool, flow, mlp.by_normed, 1.0),
                }
                return Ok(());
            }
        };
        let activation = pass.config.activation;
        let Inside {
            gate,
            up,
            inner,
            by_inner,
            ..
        } = mlp.inside;
        glu(pool, activation, gate, up, inner);
        exit.backward(
            pool,
            inner,
            (&*mlp.raw, &*flow),
            [&mut *mlp.normed, &mut *mlp.by_normed],
            by_inner,
            gradients,
        )?;
        glu_backward(pool, activation, gate, up, by_inner);
        let by = [&*gate, &*up];
        let Some(norm) = &self.before_mlp else {
            let dx = Some((flow, Into::Add));
            return gate_up.backward(mlp.middle, by, dx, mlp.fused, gradients);
        };
        norm.forward(pool, mlp.middle, mlp.normed);
        let dx = Some((&mut *mlp.by_normed, Into::Replace));
        gate_up.backward(mlp.normed, by, dx, mlp.fused, gradients)?;
        norm.backward(pool, mlp.middle, mlp.by_normed, flow, gradients)
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
            fused,
            ..
        } = scratch;
        let pool = pass.compute.pool;
        let (exit, raw) = (&self.attention_exit, &*kept.attention_raw);
        exit.backward(
            pool,
            kept.mixed,
            (raw, &*flow),
            [&mut *normed, &mut *by_normed],
            by_mixed,
            gradients,
        )?;
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
        pass.attention(self.number).backward(&inputs, found);
        pass.rope(self.number, by_q, by_k, Rotation::Backward);
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
        let by: [&[f32]; 3] = [by_q, by_k, by_v];
        if self.frozen_input {
            let input = entry(&self.before_attention, pool, x, normed);
            return self.qkv.backward(input, by, None, fused, gradients);
        }
        let Some(norm) = &self.before_attention else {
            let dx = Some((flow, Into::Add));
            return self.qkv.backward(x, by, dx, fused, gradients);
        };
        norm.forward(pool, x, normed);
        let dx = Some((&mut **by_normed, Into::Replace));
        self.qkv.backward(normed, by, dx, fused, gradients)?;
        norm.backward(pool, x, by_normed, flow, gradients)
    }
}

/// The input of attention or MLP: the norm of the residual stream, or the stream itself.
fn entry<'x>(norm: &Option<Norm>, pool: &Pool, x: &'x [f32], normed: &'x mut [f32]) -> &'x [f32] {
    match norm {
        Some(norm) => {
            norm.forward(pool, x, normed);
            normed
        }
        None => x,
    }
}

impl Exit<'_> {
    /// Writes the residual stream after the block to `output`. `raw` takes the projection's result if it is normed.
    fn forward(
        &self,
        pool: &Pool,
        x: &[f32],
        stream: &[f32],
        (raw, result): (&mut [f32], &mut [f32]),
        output: &mut [f32],
    ) {
        let linear = self.projection.linear();
        output.copy_from_slice(stream);
        match &self.norm {
            None if self.scale == 1.0 => return linear.forward(x, output, Into::Add),
            None => linear.forward(x, result, Into::Replace),
            Some(norm) => {
                linear.forward(x, raw, Into::Replace);
                norm.forward(pool, raw, result);
            }
        }
        add_scaled(pool, output, result, self.scale);
    }

    /// Given the gradient `flow` of the residual stream, writes that of the block's result to `by_x`. The temporary
    /// memory is of the stream's size.
    fn backward(
        &self,
        pool: &Pool,
        x: &[f32],
        (raw, flow): (&[f32], &[f32]),
        [scaled, by_raw]: [&mut [f32]; 2],
        by_x: &mut [f32],
        gradients: &mut Gradients,
    ) -> Result<()> {
        let into = Into::Replace;
        if self.norm.is_none() && self.scale == 1.0 {
            return self.projection.backward(x, flow, Some((by_x, into)), gradients);
        }
        scaled.fill(0.0);
        add_scaled(pool, scaled, flow, self.scale);
        let Some(norm) = &self.norm else {
            return self.projection.backward(x, scaled, Some((by_x, into)), gradients);
        };
        by_raw.fill(0.0);
        norm.backward(pool, raw, scaled, by_raw, gradients)?;
        self.projection.backward(x, by_raw, Some((by_x, into)), gradients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_return_to_their_tokens() {
        for tokens in [&[][..], &[0], &[2], &[1, 3], &[0, 1, 2, 3, 4], &[0, 4]] {
            let before: Vec<f32> = (1..=10).map(|x| x as f32).collect();
            let mut rows = before.clone();
            gather(&mut rows, 2, tokens);
            for (row, token) in rows.chunks(2).zip(tokens) {
                assert_eq!(row, &before[*token as usize * 2..][..2]);
            }
            scatter(&mut rows, 2, tokens);
            for (token, (row, before)) in rows.chunks(2).zip(before.chunks(2)).enumerate() {
                let there = tokens.contains(&(token as u32));
                assert_eq!(row, if there { before } else { &[0.0; 2] });
            }
        }
    }
}
