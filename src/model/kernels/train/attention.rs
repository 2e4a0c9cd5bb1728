//! Grouped-query attention over a forest of segments. Nothing of tokens × tokens is kept: the backward pass computes the
//! shares again, block by block.
//!
//! A task is a tree and a key-value head with its group of query heads: it alone writes their gradients, so sums have a
//! fixed order. Inside, results are laid out by key-value head and turned to tokens × heads at the end.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::gemm::{Into, Matrix, Threads, gemm};
use super::slices::{slice, with};
use super::vectorize::{dot, exp, max, sum, vectorized};
use crate::model::packed::PackedBatch;

/// Queries of a block.
const BLOCK: usize = 64;

/// q is tokens × (heads · head_dim), k and v are tokens × (kv_heads · head_dim); the result is like q.
pub struct Attention {
    /// The forest: what sees what.
    pub batch: Arc<PackedBatch>,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (q, k, v) = (slice(q, ql)?, slice(k, kl)?, slice(v, vl)?);
        let mut out = vec![0.0; q.len()];
        let tasks = self.tasks([self.group_width()], [&mut out]);
        tasks.into_par_iter().for_each(
            |Task {
                 kv_head,
                 tree,
                 outputs: [out],
             }| {
                self.forward_tree(kv_head, &tree, q, k, v, out);
            },
        );
        Ok((
            CpuStorage::F32(self.by_token(&out, self.group_width())),
            ql.shape().clone(),
        ))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let (mut dq, mut dk, mut dv) = (
            vec![0.0; q.elem_count()],
            vec![0.0; k.elem_count()],
            vec![0.0; v.elem_count()],
        );
        let widths = [self.group_width(), self.head_dim, self.head_dim];
        let tasks = self.tasks(widths, [&mut dq, &mut dk, &mut dv]);
        with(q, |q| {
            with(k, |k| {
                with(v, |v| {
                    with(y, |y| {
                        with(&g, |g| {
                            let inputs = Inputs { q, k, v, y, g };
                            tasks.into_par_iter().for_each(|task| self.backward_tree(task, &inputs));
                            Ok(())
                        })
                    })
                })
            })
        })?;
        let tensor = |by_head: &[f32], width: usize, like: &Tensor| {
            Tensor::from_vec(self.by_token(by_head, width), like.shape(), &Device::Cpu)
        };
        Ok((
            Some(tensor(&dq, widths[0], q)?),
            Some(tensor(&dk, widths[1], k)?),
            Some(tensor(&dv, widths[2], v)?),
        ))
    }
}

/// What a backward pass reads.
struct Inputs<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    y: &'a [f32],
    g: &'a [f32],
}

/// A tree's segments.
#[derive(Clone)]
struct Tree {
    segments: Range<usize>,
    first_token: usize,
}

/// A tree and a key-value head, with the parts of N results that are theirs: rows of the tree's tokens.
struct Task<'a, const N: usize> {
    kv_head: usize,
    tree: Tree,
    outputs: [&'a mut [f32]; N],
}

/// Keys and values that a segment sees, copied side by side.
struct Path {
    keys: Vec<f32>,
    values: Vec<f32>,
    ranges: Vec<Range<usize>>,
    /// Tokens before the segment's own.
    seen: usize,
}

impl Attention {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of a key-value head's query heads side by side.
    fn group_width(&self) -> usize {
        self.group() * self.head_dim
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Runs of segments of which none has a parent outside, with their numbers of tokens: a tree each, or several that
    /// are mixed.
    fn trees(&self) -> Vec<(Tree, usize)> {
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
        let tree = |(&start, end): (&usize, usize)| {
            let first_token = segments[start].start;
            let last = segments[end - 1];
            (
                Tree {
                    segments: start..end,
                    first_token,
                },
                last.start + last.len - first_token,
            )
        };
        starts.iter().zip(ends).map(tree).collect()
    }

    /// Cuts results that are laid out kv_heads × tokens × width into tasks.
    fn tasks<'a, const N: usize>(&self, widths: [usize; N], results: [&'a mut Vec<f32>; N]) -> Vec<Task<'a, N>> {
        let trees = self.trees();
        let mut rest = results.map(|result| result.as_mut_slice());
        let mut tasks = Vec::with_capacity(self.kv_heads * trees.len());
        for kv_head in 0..self.kv_heads {
            for (tree, tokens) in &trees {
                let mut i = 0;
                let outputs = rest.each_mut().map(|rest| {
                    let (own, others) = std::mem::take(rest).split_at_mut(tokens * widths[i]);
                    *rest = others;
                    i += 1;
                    own
                });
                tasks.push(Task {
                    kv_head,
                    tree: tree.clone(),
                    outputs,
                });
            }
        }
        tasks
    }

    /// kv_heads × tokens × width → tokens × (kv_heads · width).
    fn by_token(&self, by_head: &[f32], width: usize) -> Vec<f32> {
        let tokens = self.batch.len();
        let mut out = vec![0.0; by_head.len()];
        out.par_chunks_mut(self.kv_heads * width)
            .enumerate()
            .for_each(|(token, row)| {
                for (kv_head, part) in row.chunks_exact_mut(width).enumerate() {
                    part.copy_from_slice(&by_head[(kv_head * tokens + token) * width..][..width]);
                }
            });
        out
    }

    fn path(&self, segment: usize, kv_head: usize, k: &[f32], v: &[f32]) -> Path {
        let own = self.batch.segments[segment];
        let mut ranges = self.batch.ancestors(segment);
        let seen = ranges.iter().map(|range| range.len()).sum();
        ranges.push(own.start..own.start + own.len);
        let (stride, d) = (self.kv_heads * self.head_dim, self.head_dim);
        let gather = |x: &[f32]| {
            let mut out = Vec::with_capacity((seen + own.len) * d);
            for token in ranges.iter().cloned().flatten() {
                out.extend_from_slice(&x[token * stride + kv_head * d..][..d]);
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

    /// Blocks of a segment's queries: first token, number of queries, number of keys they may see.
    fn blocks(&self, segment: usize, seen: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let own = self.batch.segments[segment];
        (0..own.len).step_by(BLOCK).map(move |start| {
            let queries = BLOCK.min(own.len - start);
            (own.start + start, queries, seen + start + queries)
        })
    }

    /// Rows of one query head in a tokens × (heads · head_dim) matrix.
    fn rows<'a>(&self, x: &'a [f32], token: usize, head: usize, rows: usize) -> Matrix<'a> {
        let stride = self.heads * self.head_dim;
        Matrix::strided(&x[token * stride + head * self.head_dim..], rows, self.head_dim, stride)
    }

    /// The shares of a block's queries in the keys before and at each of them: queries × keys.
    fn shares(&self, queries: Matrix, count: usize, keys: usize, path: &Path, out: &mut [f32]) {
        let k = Matrix::new(&path.keys, keys, self.head_dim);
        gemm(out, keys, Into::Replace, self.scale(), queries, k.t(), Threads::One);
        for (i, row) in out[..count * keys].chunks_exact_mut(keys).enumerate() {
            let visible = keys - count + i + 1;
            softmax(&mut row[..visible]);
            row[visible..].fill(0.0);
        }
    }

    fn forward_tree(&self, kv_head: usize, tree: &Tree, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
        let (d, width) = (self.head_dim, self.group_width());
        let mut shares = Vec::new();
        for segment in tree.segments.clone() {
            let path = self.path(segment, kv_head, k, v);
            for (token, count, keys) in self.blocks(segment, path.seen) {
                shares.resize(BLOCK * keys, 0.0);
                let values = Matrix::new(&path.values, keys, d);
                for member in 0..self.group() {
                    let head = kv_head * self.group() + member;
                    self.shares(self.rows(q, token, head, count), count, keys, &path, &mut shares);
                    let out = &mut out[(token - tree.first_token) * width + member * d..];
                    gemm(
                        out,
                        width,
                        Into::Replace,
                        1.0,
                        Matrix::new(&shares, count, keys),
                        values,
                        Threads::One,
                    );
                }
            }
        }
    }

    /// With P the shares, g the gradient of the result y: dV = Pᵀ·g, dP = g·Vᵀ, dS = P·(dP − rowsum(g·y))·scale,
    /// dQ = dS·K, dK = dSᵀ·Q.
    fn backward_tree(&self, task: Task<3>, inputs: &Inputs) {
        let Task {
            kv_head,
            tree,
            outputs: [dq, dk, dv],
        } = task;
        let (d, width) = (self.head_dim, self.group_width());
        let (mut shares, mut slopes) = (Vec::new(), Vec::new());
        for segment in tree.segments.clone() {
            let path = self.path(segment, kv_head, inputs.k, inputs.v);
            let (mut path_dk, mut path_dv) = (vec![0.0; path.keys.len()], vec![0.0; path.keys.len()]);
            for (token, count, keys) in self.blocks(segment, path.seen) {
                shares.resize(BLOCK * keys, 0.0);
                slopes.resize(BLOCK * keys, 0.0);
                let (k, v) = (Matrix::new(&path.keys, keys, d), Matrix::new(&path.values, keys, d));
                for member in 0..self.group() {
                    let head = kv_head * self.group() + member;
                    let (q, g) = (
                        self.rows(inputs.q, token, head, count),
                        self.rows(inputs.g, token, head, count),
                    );
                    self.shares(q, count, keys, &path, &mut shares);
                    let p = Matrix::new(&shares, count, keys);
                    gemm(&mut path_dv, d, Into::Add, 1.0, p.t(), g, Threads::One);
                    gemm(&mut slopes, keys, Into::Replace, 1.0, g, v.t(), Threads::One);
                    for i in 0..count {
                        let at = (token + i) * self.heads * d + head * d;
                        let row = i * keys..(i + 1) * keys;
                        let (g, y) = (&inputs.g[at..at + d], &inputs.y[at..at + d]);
                        softmax_slopes(&mut slopes[row.clone()], &shares[row], g, y, self.scale());
                    }
                    let ds = Matrix::new(&slopes, count, keys);
                    let dq = &mut dq[(token - tree.first_token) * width + member * d..];
                    gemm(dq, width, Into::Replace, 1.0, ds, k, Threads::One);
                    gemm(&mut path_dk, d, Into::Add, 1.0, ds.t(), q, Threads::One);
                }
            }
            let tokens = path
                .ranges
                .iter()
                .cloned()
                .flatten()
                .map(|token| token - tree.first_token);
            for (i, token) in tokens.enumerate() {
                add(&mut dk[token * d..(token + 1) * d], &path_dk[i * d..(i + 1) * d]);
                add(&mut dv[token * d..(token + 1) * d], &path_dv[i * d..(i + 1) * d]);
            }
        }
    }
}

fn add(sum: &mut [f32], part: &[f32]) {
    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
}

vectorized! {
    fn softmax(row: &mut [f32]) {
        let largest = max(row);
        for value in row.iter_mut() {
            *value = exp(*value - largest);
        }
        let inverse = 1.0 / sum(row.len(), |i| row[i]);
        for value in row.iter_mut() {
            *value *= inverse;
        }
    }
}

vectorized! {
    /// dP becomes dS.
    fn softmax_slopes(row: &mut [f32], shares: &[f32], g: &[f32], y: &[f32], scale: f32) {
        let along = dot(g, y);
        for (slope, share) in row.iter_mut().zip(shares) {
            *slope = share * (*slope - along) * scale;
        }
    }
}
