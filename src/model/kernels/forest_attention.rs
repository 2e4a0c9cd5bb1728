//! Grouped-query attention over a forest of segments. Nothing of tokens × tokens is kept: the backward pass computes
//! the weights again, block by block.
//!
//! A task is a tree and a key-value head with its group of query heads: it alone writes their results and gradients, so
//! sums have a fixed order. A block's rows are its tokens' query heads of the group, one token after the other.

use std::ops::Range;

use super::isa::Isa;
use super::product::{Compute, Into, Matrix, gemm};
use super::scores::{AttentionScores, soft_cap, soft_cap_slopes};
use super::softmax::{softmax, softmax_backward};
use super::sums::add_slice;
use super::threads::SharedMut;
use crate::model::packed_batch::PackedBatch;

/// Tokens of a block.
const BLOCK: usize = 64;

/// q and the result are tokens × (heads · head_dim), k and v are tokens × (kv_heads · head_dim).
#[derive(Clone, Copy)]
pub struct ForestAttention<'a> {
    /// The forest: what sees what.
    pub batch: &'a PackedBatch,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Scale, cap and window.
    pub scores: AttentionScores,
    /// Computes the products.
    pub compute: Compute<'a>,
}

/// Inputs of a backward pass: operands, result, and the result's gradient.
pub struct AttentionInputs<'a> {
    /// Queries.
    pub q: &'a [f32],
    /// Keys.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// The result.
    pub y: &'a [f32],
    /// Its gradient.
    pub g: &'a [f32],
}

/// Gradients of queries, keys and values.
pub struct AttentionGradients<'a> {
    /// Overwritten.
    pub dq: &'a mut [f32],
    /// Overwritten.
    pub dk: &'a mut [f32],
    /// Overwritten.
    pub dv: &'a mut [f32],
}

/// Segments of a tree, or of several that are mixed, and a key-value head.
#[derive(Clone)]
struct Task {
    segments: Range<usize>,
    kv_head: usize,
}

/// Some columns of a tokens × width matrix that tasks share: each task has columns or tokens of its own.
struct Columns {
    base: SharedMut<f32>,
    stride: usize,
    width: usize,
}

/// Keys and values that a segment sees, copied side by side.
struct Path {
    keys: Vec<f32>,
    values: Vec<f32>,
    ranges: Vec<Range<usize>>,
    /// Tokens before the segment's own.
    seen: usize,
}

/// A block of a segment's tokens.
#[derive(Clone)]
struct Block {
    first: usize,
    tokens: usize,
    /// Keys of the path that its tokens see; the last one's own is the last.
    keys: Range<usize>,
}

/// The softmax weights of a block, rows × keys, and what they come from.
#[derive(Default)]
struct Weights {
    values: Vec<f32>,
    /// Derivatives of capped scores by uncapped ones; empty without a cap.
    slopes: Vec<f32>,
}

impl ForestAttention<'_> {
    /// Computes the attention of q, k and v into `y`.
    ///
    /// # Panics
    /// Panics if lengths are not those of the batch; likewise the backward pass.
    pub fn forward(&self, q: &[f32], k: &[f32], v: &[f32], y: &mut [f32]) {
        self.check(q, k);
        assert!(
            y.len() == q.len() && v.len() == k.len(),
            "lengths of attention's operands"
        );
        let y = Columns::new(y, self.heads * self.head_dim, self.group_width());
        self.compute
            .pool
            .each(self.tasks(), |task| self.forward_task(&task, q, k, v, &y));
    }

    /// Computes the gradients of queries, keys and values.
    pub fn backward(&self, inputs: &AttentionInputs, gradients: AttentionGradients) {
        let AttentionGradients { dq, dk, dv } = gradients;
        self.check(inputs.q, inputs.k);
        self.check(dq, dk);
        assert!(inputs.y.len() == dq.len() && inputs.g.len() == dq.len() && inputs.v.len() == dv.len());
        assert_eq!(dk.len(), dv.len(), "lengths of attention's gradients");
        dk.fill(0.0);
        dv.fill(0.0);
        let dq = Columns::new(dq, self.heads * self.head_dim, self.group_width());
        let dk = Columns::new(dk, self.kv_heads * self.head_dim, self.head_dim);
        let dv = Columns::new(dv, self.kv_heads * self.head_dim, self.head_dim);
        self.compute
            .pool
            .each(self.tasks(), |task| self.backward_task(&task, inputs, [&dq, &dk, &dv]));
    }

    fn check(&self, q: &[f32], k: &[f32]) {
        let tokens = self.batch.len();
        let expected = [self.heads, self.kv_heads].map(|heads| tokens * heads * self.head_dim);
        assert_eq!([q.len(), k.len()], expected, "lengths of attention's operands");
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of a key-value head's query heads side by side.
    fn group_width(&self) -> usize {
        self.group() * self.head_dim
    }

    /// Runs of segments of which none has a parent outside, for each key-value head.
    fn tasks(&self) -> Vec<Task> {
        let segments = &self.batch.segments;
        let (mut starts, mut earliest) = (Vec::new(), usize::MAX);
        for (index, segment) in segments.iter().enumerate().rev() {
            earliest = earliest.min(segment.parent.unwrap_or(index));
            if earliest >= index {
                starts.push(index);
            }
        }
        starts.reverse();
        let ends = starts.iter().skip(1).copied().chain([segments.len()]);
        let trees = starts.iter().copied().zip(ends);
        let of_tree = |(start, end)| {
            (0..self.kv_heads).map(move |kv_head| Task {
                segments: start..end,
                kv_head,
            })
        };
        trees.flat_map(of_tree).collect()
    }

    fn path(&self, segment: usize, kv_head: usize, k: &[f32], v: &[f32]) -> Path {
        let own = self.batch.segments[segment];
        let mut ranges = self.batch.ancestors(segment);
        let seen = ranges.iter().map(|range| range.len()).sum();
        ranges.push(own.start..own.start + own.len);
        let gather = |x: &[f32]| {
            let mut out = Vec::with_capacity((seen + own.len) * self.head_dim);
            for token in ranges.iter().cloned().flatten() {
                out.extend_from_slice(self.row(x, token, kv_head, self.kv_heads, self.head_dim));
            }
            out
        };
        Path {
            keys: gather(k),
            values: gather(v),
            seen,
            ranges,
        }
    }

    /// What a token has of a key-value head, in a matrix of `heads` heads of which that one has `width` numbers.
    fn row<'x>(&self, x: &'x [f32], token: usize, kv_head: usize, kv_heads: usize, width: usize) -> &'x [f32] {
        &x[token * kv_heads * width + kv_head * width..][..width]
    }

    /// A block's rows, one token's query heads after the other's.
    fn gather(&self, x: &[f32], block: &Block, kv_head: usize, out: &mut Vec<f32>) {
        out.clear();
        for token in block.first..block.first + block.tokens {
            out.extend_from_slice(self.row(x, token, kv_head, self.kv_heads, self.group_width()));
        }
    }

    fn blocks(&self, segment: usize, seen: usize) -> Vec<Block> {
        let own = self.batch.segments[segment];
        let block = |start| {
            let tokens = BLOCK.min(own.len - start);
            Block {
                first: own.start + start,
                tokens,
                keys: self.scores.first_visible(seen + start)..seen + start + tokens,
            }
        };
        (0..own.len).step_by(BLOCK).map(block).collect()
    }

    fn rows<'x>(&self, block: &Block, x: &'x [f32]) -> Matrix<'x> {
        Matrix::new(x, block.tokens * self.group(), self.head_dim)
    }

    /// out = scale · a·b, or added to it, on the calling thread.
    fn product(&self, out: &mut [f32], into: Into, scale: f32, a: Matrix, b: Matrix) {
        gemm(self.compute.on_this_thread(), (out, b.columns()), into, scale, a, b);
    }

    /// Computes the softmax weights of a block's queries; their slopes too where a cap bends the scores, and `slopes`
    /// are wanted.
    fn attention_weights(&self, q: Matrix, block: &Block, path: &Path, out: &mut Weights, slopes: bool) {
        let (keys, isa) = (block.keys.len(), self.compute.pool.isa());
        let Weights { values, slopes: bent } = out;
        values.resize(block.tokens * self.group() * keys, 0.0);
        let path_keys = part(&path.keys, &block.keys, self.head_dim);
        self.product(values, Into::Replace, self.scores.scale, q, path_keys.t());
        if let Some(cap) = self.scores.softcap {
            soft_cap(isa, values, cap);
            if slopes {
                bent.resize(values.len(), 0.0);
                soft_cap_slopes(isa, values, cap, bent);
            }
        }
        for (row, weights) in values.chunks_exact_mut(keys).enumerate() {
            let position = block.keys.end - block.tokens + row / self.group();
            let first = self.scores.first_visible(position) - block.keys.start;
            let end = position + 1 - block.keys.start;
            weights[..first].fill(0.0);
            softmax(isa, &mut weights[first..end]);
            weights[end..].fill(0.0);
        }
    }

    fn forward_task(&self, task: &Task, q: &[f32], k: &[f32], v: &[f32], y: &Columns) {
        let [mut queries, mut mixed]: [Vec<f32>; 2] = Default::default();
        let mut weights = Weights::default();
        for segment in task.segments.clone() {
            let path = self.path(segment, task.kv_head, k, v);
            for block in &self.blocks(segment, path.seen) {
                self.gather(q, block, task.kv_head, &mut queries);
                self.attention_weights(self.rows(block, &queries), block, &path, &mut weights, false);
                mixed.resize(queries.len(), 0.0);
                let weights = Matrix::new(&weights.values, block.tokens * self.group(), block.keys.len());
                let values = part(&path.values, &block.keys, self.head_dim);
                self.product(&mut mixed, Into::Replace, 1.0, weights, values);
                y.put(block, task.kv_head, &mixed);
            }
        }
    }

    /// With P the weights, g the gradient of the result y: dV = Pᵀ·g, dP = g·Vᵀ, dS = P·(dP − rowsum(g·y))·scale, times
    /// the slopes of capped scores, dQ = dS·K, dK = dSᵀ·Q.
    fn backward_task(&self, task: &Task, inputs: &AttentionInputs, [dq, dk, dv]: [&Columns; 3]) {
        let (d, isa) = (self.head_dim, self.compute.pool.isa());
        let [mut queries, mut gradient, mut results]: [Vec<f32>; 3] = Default::default();
        let [mut gradients, mut by_queries]: [Vec<f32>; 2] = Default::default();
        let mut weights = Weights::default();
        for segment in task.segments.clone() {
            let path = self.path(segment, task.kv_head, inputs.k, inputs.v);
            let (mut path_dk, mut path_dv) = (vec![0.0; path.keys.len()], vec![0.0; path.keys.len()]);
            for block in &self.blocks(segment, path.seen) {
                let keys = block.keys.len();
                let path_rows = block.keys.start * d..block.keys.end * d;
                for (x, into) in [
                    (inputs.q, &mut queries),
                    (inputs.g, &mut gradient),
                    (inputs.y, &mut results),
                ] {
                    self.gather(x, block, task.kv_head, into);
                }
                let (q, g) = (self.rows(block, &queries), self.rows(block, &gradient));
                let k = part(&path.keys, &block.keys, d);
                let v = part(&path.values, &block.keys, d);
                self.attention_weights(q, block, &path, &mut weights, true);
                let p = Matrix::new(&weights.values, block.tokens * self.group(), keys);
                self.product(&mut path_dv[path_rows.clone()], Into::Add, 1.0, p.t(), g);
                gradients.resize(weights.values.len(), 0.0);
                self.product(&mut gradients, Into::Replace, 1.0, g, v.t());
                let rows = gradients.chunks_exact_mut(keys).zip(weights.values.chunks_exact(keys));
                for ((gradients, weights), (g, y)) in rows.zip(gradient.chunks_exact(d).zip(results.chunks_exact(d))) {
                    softmax_backward(isa, gradients, weights, g, y, self.scores.scale);
                }
                gradients
                    .iter_mut()
                    .zip(&weights.slopes)
                    .for_each(|(g, slope)| *g *= slope);
                let ds = Matrix::new(&gradients, block.tokens * self.group(), keys);
                by_queries.resize(queries.len(), 0.0);
                self.product(&mut by_queries, Into::Replace, 1.0, ds, k);
                dq.put(block, task.kv_head, &by_queries);
                self.product(&mut path_dk[path_rows], Into::Add, 1.0, ds.t(), q);
            }
            for (i, token) in path.ranges.iter().cloned().flatten().enumerate() {
                dk.add(isa, token, task.kv_head, &path_dk[i * d..][..d]);
                dv.add(isa, token, task.kv_head, &path_dv[i * d..][..d]);
            }
        }
    }
}

/// Some of a path's keys or values, keys × head_dim.
fn part<'x>(x: &'x [f32], keys: &Range<usize>, head_dim: usize) -> Matrix<'x> {
    Matrix::new(&x[keys.start * head_dim..keys.end * head_dim], keys.len(), head_dim)
}

impl Columns {
    fn new(matrix: &mut [f32], stride: usize, width: usize) -> Self {
        Self {
            base: SharedMut::new(matrix),
            stride,
            width,
        }
    }

    fn row(&self, token: usize, head: usize) -> *mut f32 {
        // SAFETY: tokens and heads are those of the batch, whose size the matrix was checked to have.
        unsafe { self.base.at(token * self.stride + head * self.width) }
    }

    fn put(&self, block: &Block, head: usize, rows: &[f32]) {
        for (token, row) in rows.chunks_exact(self.width).enumerate() {
            // SAFETY: a row of the matrix is `width` long from there; no other task has this head of this tree.
            unsafe {
                row.as_ptr()
                    .copy_to_nonoverlapping(self.row(block.first + token, head), self.width)
            }
        }
    }

    fn add(&self, isa: Isa, token: usize, head: usize, part: &[f32]) {
        // SAFETY: as for `put`; the slice ends with this call.
        add_slice(
            isa,
            unsafe { std::slice::from_raw_parts_mut(self.row(token, head), self.width) },
            part,
        );
    }
}
