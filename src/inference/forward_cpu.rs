//! The forward pass on the CPU kernels: decode tokens and prompt chunks of many sequences as the rows of one batch.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::error::Result;
use super::forward::{BLOCK_TOKENS, BlockId, Chunk, Forward, Logits};
use super::mixture_cpu::MixtureBuffers;
use super::packed_model::{Embedding, PackedMlp, PackedModel};
use crate::model::kernels::memory::{Memory, Part};
use crate::model::kernels::sums::add_scaled;
use crate::model::kernels::{self, AttentionRows, BlockLayout, Pool, Precision, Rotation, RowScratch};
use crate::model::{ModelConfig, Weights};

/// Numbers that cache blocks are allocated for at a time, 8 MB: the first touch of fresh memory goes by huge pages.
const SLAB: usize = 2 << 20;

/// A packed model with its cache blocks.
pub struct CpuForward {
    pool: Arc<Pool>,
    model: PackedModel,
    layout: BlockLayout,
    /// By [`BlockId`]; empty until one of its slab is used.
    blocks: Vec<Part<f32>>,
    buffers: Buffers,
}

/// What a pass computes in, rows × width each, kept from pass to pass.
#[derive(Default)]
struct Buffers {
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    added: Vec<f32>,
    gated: Vec<f32>,
    up: Vec<f32>,
    rows: RowScratch,
    mixture: MixtureBuffers,
}

/// Where the rows of a batch are.
struct Rows {
    /// Cosines and sines of each rotary embedding, rows × half of what is rotated of a head.
    ropes: Vec<(Vec<f32>, Vec<f32>)>,
    /// The rows cut by the blocks that they are written to, in order.
    runs: Vec<Run>,
}

/// Rows that go to one block.
struct Run {
    rows: Range<usize>,
    block: BlockId,
    /// Of the first row.
    slot: usize,
}

impl CpuForward {
    /// Packs the weights.
    ///
    /// # Errors
    /// Fails if a parameter is missing, or out of memory.
    pub fn new(weights: &Weights, pool: Arc<Pool>, precision: Precision) -> Result<Self> {
        let c = &weights.config;
        Ok(Self {
            model: PackedModel::new(weights, precision, &pool)?,
            layout: BlockLayout::new(c.layers.len(), c.num_kv_heads, c.head_dim),
            pool,
            blocks: vec![],
            buffers: Buffers::default(),
        })
    }

    fn ensure_blocks(&mut self, ids: impl Iterator<Item = BlockId>) {
        for id in ids {
            if id < self.blocks.len() && !self.blocks[id].is_empty() {
                continue;
            }
            let count = (SLAB / self.layout.len()).max(1);
            let first = id / count * count;
            if first + count > self.blocks.len() {
                self.blocks.resize_with(first + count, Part::default);
            }
            let slab = Memory::zeroed(count * self.layout.len()).into_parts(self.layout.len());
            self.blocks[first..first + count]
                .iter_mut()
                .zip(slab)
                .for_each(|(block, part)| *block = part);
        }
    }

    /// Positions and their rope tables.
    fn rows(&self, chunks: &[Chunk]) -> Rows {
        let positions = |chunk: &Chunk| chunk.start as u32..(chunk.start + chunk.tokens.len()) as u32;
        let ropes = self.model.config.ropes.iter();
        let ropes = ropes.map(|rope| rope.tables(chunks.iter().flat_map(positions)));
        let (mut runs, mut row) = (vec![], 0);
        for chunk in chunks {
            let end = chunk.start + chunk.tokens.len();
            let mut position = chunk.start;
            while position < end {
                let slot = position % BLOCK_TOKENS;
                let count = (BLOCK_TOKENS - slot).min(end - position);
                runs.push(Run {
                    rows: row..row + count,
                    block: chunk.blocks[position / BLOCK_TOKENS],
                    slot,
                });
                (row, position) = (row + count, position + count);
            }
        }
        Rows {
            ropes: ropes.collect(),
            runs,
        }
    }

    fn embed(&self, chunks: &[Chunk]) -> Result<Vec<f32>> {
        let ids: Vec<u32> = chunks.iter().flat_map(|c| c.tokens.iter().copied()).collect();
        let mut x: Vec<f32> = match &self.model.embedding {
            Embedding::Numbers(table) => {
                let ids = Tensor::new(ids, &Device::Cpu)?;
                table.index_select(&ids, 0)?.flatten_all()?.to_vec1()?
            }
            Embedding::Quantized(table) => {
                let mut x = vec![0.0; ids.len() * table.inputs()];
                let rows = ids.iter().zip(x.chunks_exact_mut(table.inputs()));
                self.pool
                    .each(rows, |(id, row)| table.row(self.pool.isa(), *id as usize, row));
                x
            }
        };
        let scale = self.model.config.embedding_scale;
        if scale != 1.0 {
            x.iter_mut().for_each(|x| *x *= scale);
        }
        Ok(x)
    }

    /// Norms and turns queries and keys in place, and writes keys and values to the cache.
    fn prepare_attention(&mut self, layer: usize, rows: &Rows) {
        let c = &self.model.config;
        let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let rope = c.layers[layer]
            .rope
            .map(|rope| (&rows.ropes[rope], c.ropes[rope].inv_freq.len()));
        let (norms, eps, isa, layout) = (
            &self.model.layers[layer].qk_norm,
            c.rms_norm_eps,
            self.pool.isa(),
            self.layout,
        );
        let mut lines = self.buffers.qkv.chunks_exact_mut(q + 2 * kv);
        // A block belongs to one sequence, so each run can have its own for the while.
        let mut tasks: Vec<_> = rows
            .runs
            .iter()
            .map(|run| {
                (
                    run,
                    lines.by_ref().take(run.rows.len()).collect::<Vec<_>>(),
                    mem::take(&mut self.blocks[run.block]),
                )
            })
            .collect();
        self.pool.for_each(&mut tasks, |_, (run, lines, block)| {
            for (line, row) in lines.iter_mut().zip(run.rows.clone()) {
                let (queries, keys) = line[..q + kv].split_at_mut(q);
                if let Some((q_norm, k_norm)) = norms {
                    kernels::rms_norm_heads(isa, queries, q_norm, eps);
                    kernels::rms_norm_heads(isa, keys, k_norm, eps);
                }
                if let Some(((cos, sin), half)) = rope {
                    let (cos, sin) = (&cos[row * half..][..half], &sin[row * half..][..half]);
                    kernels::rope(isa, queries, c.head_dim, cos, sin, Rotation::Forward);
                    kernels::rope(isa, keys, c.head_dim, cos, sin, Rotation::Forward);
                }
            }
            layout.write(block, layer, run.slot, lines, q);
        });
        for (run, _, block) in tasks {
            self.blocks[run.block] = block;
        }
    }

    fn attend(&mut self, layer: usize, chunks: &[Chunk]) {
        let c = &self.model.config;
        let width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
        let mut first_row = 0;
        let mut sequences = vec![];
        for chunk in chunks {
            let rows = chunk.tokens.len();
            let used = (chunk.start + rows).div_ceil(BLOCK_TOKENS);
            let blocks = chunk.blocks[..used].iter().map(|&id| &*self.blocks[id]).collect();
            sequences.push(AttentionRows {
                first_row,
                rows,
                start: chunk.start,
                blocks,
            });
            first_row += rows;
        }
        kernels::attention(
            &self.pool,
            self.layout,
            layer,
            c.num_heads,
            c.attention_scores(layer),
            (&self.buffers.qkv, width),
            &sequences,
            &mut self.buffers.attended,
        );
    }

    /// The rows of the residual stream that logits are wanted for, normed, then times the head.
    fn logits(&mut self, chunks: &[Chunk], x: &[f32]) -> Vec<f32> {
        let (c, head) = (&self.model.config, &self.model.head);
        let (mut wanted, mut row) = (vec![], 0);
        for chunk in chunks {
            row += chunk.tokens.len();
            if chunk.logits {
                let line = (row - 1) * c.hidden_size..row * c.hidden_size;
                wanted.extend(
                    x[line.clone()]
                        .iter()
                        .zip(&self.buffers.added[line])
                        .map(|(x, added)| x + c.residual_scale * added),
                );
            }
        }
        let mut normed = vec![0.0; wanted.len()];
        kernels::rms_norm(&self.pool, &wanted, &self.model.final_norm, c.rms_norm_eps, &mut normed);
        let mut logits = vec![0.0; wanted.len() / c.hidden_size * c.vocab_size];
        head.multiply(&self.pool, &normed, &mut logits, &mut self.buffers.rows);
        c.logit_scaling(1.0).apply(&self.pool, &mut logits);
        logits
    }
}

impl Forward for CpuForward {
    fn block_bytes(&self) -> usize {
        self.layout.len() * size_of::<f32>()
    }

    fn reserve(&mut self, _: usize) {} // memory comes block by block

    fn forward(&mut self, chunks: &[Chunk]) -> Result<Logits> {
        self.ensure_blocks(chunks.iter().flat_map(|c| {
            let touched = c.start / BLOCK_TOKENS..(c.start + c.tokens.len()).div_ceil(BLOCK_TOKENS);
            c.blocks[touched].iter().copied()
        }));
        let rows = self.rows(chunks);
        let mut x = self.embed(chunks)?;
        self.buffers
            .resize(&self.model, rows.runs.last().map_or(0, |run| run.rows.end));
        self.buffers.added.fill(0.0);
        for layer in 0..self.model.layers.len() {
            let pool = self.pool.clone();
            {
                let (c, weights, b) = (&self.model.config, &self.model.layers[layer], &mut self.buffers);
                b.add_and_norm(&pool, &mut x, weights.norms.before_attention.as_deref(), c);
                let (width, mut column) = ((c.num_heads + 2 * c.num_kv_heads) * c.head_dim, 0);
                for matrix in &weights.qkv {
                    matrix.multiply_columns(&pool, &b.normed, (&mut b.qkv, width, column), &mut b.rows);
                    column += matrix.outputs();
                }
            }
            self.prepare_attention(layer, &rows);
            self.attend(layer, chunks);
            let (c, weights, b) = (&self.model.config, &self.model.layers[layer], &mut self.buffers);
            weights.o.multiply(&pool, &b.attended, &mut b.added, &mut b.rows);
            b.norm_added(&pool, weights.norms.after_attention.as_deref(), c);
            b.add_and_norm(&pool, &mut x, weights.norms.before_mlp.as_deref(), c);
            match &weights.mlp {
                PackedMlp::Dense(glu) => {
                    let (gated, up) = (&mut b.gated, &mut b.up);
                    let gate_up = (&glu.gate, &glu.up);
                    kernels::gated_mlp(&pool, c.activation, &b.normed, gate_up, gated, up, &mut b.rows);
                    glu.down.multiply(&pool, &b.gated, &mut b.added, &mut b.rows);
                }
                PackedMlp::Experts(experts) => b.mixture.forward(&pool, c.activation, experts, &b.normed, &mut b.added),
            }
            b.norm_added(&pool, weights.norms.after_mlp.as_deref(), c);
        }
        Ok(Logits::Host(self.logits(chunks, &x)))
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        self.ensure_blocks([from, to].into_iter());
        let mut target = mem::take(&mut self.blocks[to]);
        target.copy_from_slice(&self.blocks[from]);
        self.blocks[to] = target;
        Ok(())
    }

    fn refresh(&mut self, weights: &Weights) -> Result<()> {
        self.model.refresh(weights, &self.pool)
    }

    fn release_blocks(&mut self) {
        self.blocks = vec![];
        self.buffers = Buffers::default();
    }
}

impl Buffers {
    /// Adds what the last block computed to the residual stream, and puts the next block's input to `normed`.
    fn add_and_norm(&mut self, pool: &Pool, x: &mut [f32], norm: Option<&[f32]>, config: &ModelConfig) {
        let scale = config.residual_scale;
        match norm {
            Some(weight) => {
                let added = (&self.added[..], scale);
                kernels::add_rms_norm(pool, x, added, weight, config.rms_norm_eps, &mut self.normed);
            }
            None => {
                add_scaled(pool, x, &self.added, scale);
                self.normed.copy_from_slice(x);
            }
        }
    }

    /// Norms what a block computed, before it is added to the residual stream.
    fn norm_added(&mut self, pool: &Pool, norm: Option<&[f32]>, config: &ModelConfig) {
        if let Some(weight) = norm {
            kernels::rms_norm(pool, &self.added, weight, config.rms_norm_eps, &mut self.normed);
            mem::swap(&mut self.added, &mut self.normed);
        }
    }

    fn resize(&mut self, model: &PackedModel, rows: usize) {
        let c = &model.config;
        let q = c.num_heads * c.head_dim;
        self.normed.resize(rows * c.hidden_size, 0.0);
        self.qkv.resize(rows * (q + 2 * c.num_kv_heads * c.head_dim), 0.0);
        self.attended.resize(rows * q, 0.0);
        self.added.resize(rows * c.hidden_size, 0.0);
        self.gated.resize(rows * c.intermediate_size, 0.0);
        self.up.resize(rows * c.intermediate_size, 0.0);
    }
}
