//! Attention over a batch's forest on any device, a segment and some of its rows at a time: scores are never kept, the
//! backward pass computes them again.
//!
//! For a segment of n tokens below s ancestors, with h heads of width d: 4·n·(s+n)·h·d operations forward and 10 of
//! them backward (scores again, and four products), both on matrix units; besides them the scores pass memory in f32
//! about 6 times forward and 12 times backward. A fused kernel would save these passes; they are what bounds long rows.

use std::sync::Arc;

use candle_core::{D, DType, Result, Tensor};
use candle_nn::ops;

use super::recorded::Recorded;
use super::{soft_cap, soft_cap_slopes, visible};
use crate::model::config::ModelConfig;
use crate::model::kernels::AttentionScores;
use crate::model::packed_batch::PackedBatch;

/// Maximum number of scores held at a time: 256 MB in f32.
const SCORES: usize = 64 << 20;

/// q tokens × (heads · head_dim), k and v tokens × (kv heads · head_dim) → like q. Softmax in f32.
pub(super) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    (config, scores): (&ModelConfig, AttentionScores),
    batch: &Arc<PackedBatch>,
) -> Result<Tensor> {
    in_steps(SCORES, [q, k, v], (config, scores), batch)
}

/// As [`attention`], with another bound on the scores held at a time.
pub(super) fn in_steps(
    most_scores: usize,
    [q, k, v]: [&Tensor; 3],
    (config, scores): (&ModelConfig, AttentionScores),
    batch: &Arc<PackedBatch>,
) -> Result<Tensor> {
    let op = Op {
        most_scores,
        batch: batch.clone(),
        kv_heads: config.num_kv_heads,
        group: config.num_heads / config.num_kv_heads,
        head_dim: config.head_dim,
        scores,
    };
    let value = op.forward(&q.detach(), &k.detach(), &v.detach())?;
    let backward = move |[q, k, v]: [&Tensor; 3], gradient: &Tensor| op.backward(q, k, v, gradient);
    let name = "attention";
    q.apply_op3(k, v, Recorded { name, value, backward })
}

struct Op {
    most_scores: usize,
    batch: Arc<PackedBatch>,
    kv_heads: usize,
    /// Query heads that share a kv head.
    group: usize,
    head_dim: usize,
    scores: AttentionScores,
}

/// Some rows of a segment, computed together.
struct Rows {
    /// Of the batch.
    start: usize,
    len: usize,
    /// Keys before the first of them: ancestors and the segment's earlier tokens.
    seen: usize,
}

impl Op {
    fn rows_of(&self, segment: usize, keys: usize) -> impl Iterator<Item = Rows> {
        let own = self.batch.segments[segment];
        let step = (self.most_scores / (self.kv_heads * self.group * keys)).max(1);
        (0..own.len).step_by(step).map(move |from| Rows {
            start: own.start + from,
            len: step.min(own.len - from),
            seen: keys - own.len + from,
        })
    }

    /// The token ranges whose keys a segment's tokens see, itself last, as indices of segments.
    fn path(&self, segment: usize) -> Vec<usize> {
        let parent = |at: &usize| self.batch.segments[*at].parent;
        let mut path: Vec<usize> = std::iter::successors(Some(segment), parent).collect();
        path.reverse();
        path
    }

    /// Keys or values along a path: kv heads × keys × head_dim.
    fn along(&self, path: &[usize], x: &Tensor) -> Result<Tensor> {
        let parts = path.iter().map(|&at| {
            let segment = self.batch.segments[at];
            x.narrow(0, segment.start, segment.len)
        });
        let parts = Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?;
        let keys = parts.dim(0)?;
        parts
            .reshape((keys, self.kv_heads, self.head_dim))?
            .transpose(0, 1)?
            .contiguous()
    }

    /// Rows of queries, or of something like them: kv heads × (group · rows) × head_dim.
    fn by_kv_head(&self, rows: &Rows, q: &Tensor) -> Result<Tensor> {
        let q = q.narrow(0, rows.start, rows.len)?;
        q.reshape((rows.len, self.kv_heads, self.group, self.head_dim))?
            .permute((1, 2, 0, 3))?
            .contiguous()?
            .reshape((self.kv_heads, self.group * rows.len, self.head_dim))
    }

    /// The way back of [`by_kv_head`](Self::by_kv_head).
    fn by_row(&self, rows: &Rows, x: &Tensor) -> Result<Tensor> {
        x.reshape((self.kv_heads, self.group, rows.len, self.head_dim))?
            .permute((2, 0, 1, 3))?
            .reshape((rows.len, self.kv_heads * self.group * self.head_dim))
    }

    fn scale(&self) -> f64 {
        f64::from(self.scores.scale)
    }

    /// The scores of the rows' queries for each key before they are masked, kv heads × (group · rows) × keys, f32.
    fn scores(&self, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        let scores = (q.matmul(&k.t()?)?.to_dtype(DType::F32)? * self.scale())?;
        soft_cap(&scores, self.scores.softcap)
    }

    /// The share that each of the rows' queries gives each key, like `scores`.
    fn shares(&self, rows: &Rows, scores: &Tensor) -> Result<Tensor> {
        let keys = scores.dim(2)?;
        let places = Tensor::arange(rows.seen as f32, (rows.seen + rows.len) as f32, scores.device())?;
        let scores = scores
            .reshape((self.kv_heads, self.group, rows.len, keys))?
            .broadcast_add(&visible(&places.unsqueeze(1)?, keys, self.scores.window)?)?;
        ops::softmax_last_dim(&scores)?.reshape((self.kv_heads, self.group * rows.len, keys))
    }

    fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let mut outputs = vec![];
        for segment in 0..self.batch.segments.len() {
            let path = self.path(segment);
            let (k, v) = (self.along(&path, k)?, self.along(&path, v)?);
            for rows in self.rows_of(segment, k.dim(1)?) {
                let scores = self.scores(&self.by_kv_head(&rows, q)?, &k)?;
                let shares = self.shares(&rows, &scores)?;
                let mixed = shares.to_dtype(v.dtype())?.matmul(&v)?;
                outputs.push(self.by_row(&rows, &mixed)?);
            }
        }
        Tensor::cat(&outputs, 0)
    }

    /// With P the shares and g the gradient: by v Pᵀ·g; by the scores S = P∘(g·vᵀ − Σ P∘(g·vᵀ)), times the slopes of the
    /// cap; by q S·k, by k Sᵀ·q, both scaled.
    fn backward(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let mut by_q = vec![];
        let (mut by_k, mut by_v) = (self.nothing(), self.nothing());
        for segment in 0..self.batch.segments.len() {
            let path = self.path(segment);
            let (k, v) = (self.along(&path, k)?, self.along(&path, v)?);
            for rows in self.rows_of(segment, k.dim(1)?) {
                let (q, g) = (self.by_kv_head(&rows, q)?, self.by_kv_head(&rows, &gradient)?);
                let scores = self.scores(&q, &k)?;
                let shares = self.shares(&rows, &scores)?;
                let by_shares = g.matmul(&v.t()?)?.to_dtype(DType::F32)?;
                let mean = (&shares * &by_shares)?.sum_keepdim(D::Minus1)?;
                let mut by_scores = ((&shares * by_shares.broadcast_sub(&mean)?)? * self.scale())?;
                if let Some(cap) = self.scores.softcap {
                    by_scores = (by_scores * soft_cap_slopes(&scores, cap)?)?;
                }
                let by_scores = by_scores.to_dtype(q.dtype())?;
                let shares = shares.to_dtype(v.dtype())?;
                by_q.push(self.by_row(&rows, &by_scores.matmul(&k)?)?);
                self.add(&mut by_k, &path, &by_scores.t()?.matmul(&q)?)?;
                self.add(&mut by_v, &path, &shares.t()?.matmul(&g)?)?;
            }
        }
        let whole = |parts: Vec<Option<Tensor>>| -> Result<Tensor> {
            let parts: Vec<Tensor> = parts.into_iter().flatten().collect(); // every segment sees itself
            Tensor::cat(&parts, 0)?.to_dtype(k.dtype())
        };
        Ok((Some(Tensor::cat(&by_q, 0)?), Some(whole(by_k)?), Some(whole(by_v)?)))
    }

    /// No gradient yet for any segment.
    fn nothing(&self) -> Vec<Option<Tensor>> {
        vec![None; self.batch.segments.len()]
    }

    /// Adds a gradient along a path to those of its segments, in f32: a prompt's gradient is the sum of many.
    fn add(&self, sums: &mut [Option<Tensor>], path: &[usize], along: &Tensor) -> Result<()> {
        let along = along.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()?;
        let mut from = 0;
        for &at in path {
            let len = self.batch.segments[at].len;
            let part = along
                .narrow(0, from, len)?
                .reshape((len, self.kv_heads * self.head_dim))?;
            sums[at] = Some(match sums[at].take() {
                Some(sum) => (sum + part)?,
                None => part,
            });
            from += len;
        }
        Ok(())
    }
}
