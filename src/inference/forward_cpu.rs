//! The forward pass on the CPU kernels: decode tokens and prompt chunks of many sequences as the rows of one batch.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::error::Result;
use super::forward::{BLOCK_TOKENS, BlockId, Chunk, Forward, Logits};
use super::packed_model::{PackedLayer, PackedModel};
use crate::model::Weights;
use crate::model::kernels::memory::{Memory, Part};
use crate::model::kernels::{self, AttentionRows, BlockLayout, Pool, Precision, Rotation, RowScratch};

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
}

/// Where the rows of a batch are.
struct Rows {
    /// Rows × half a head.
    cos: Vec<f32>,
    sin: Vec<f32>,
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
            layout: BlockLayout::new(c.num_layers, c.num_kv_heads, c.head_dim),
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
        let (cos, sin) = self.model.config.rope.tables(chunks.iter().flat_map(positions));
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
        Rows { cos, sin, runs }
    }

    fn embed(&self, chunks: &[Chunk]) -> Result<Vec<f32>> {
        let ids: Vec<u32> = chunks.iter().flat_map(|c| c.tokens.iter().copied()).collect();
        let ids = Tensor::new(ids, &Device::Cpu)?;
        Ok(self.model.embedding.index_select(&ids, 0)?.flatten_all()?.to_vec1()?)
    }

    /// Norms and turns queries and keys in place, and writes keys and values to the cache.
    fn prepare_attention(&mut self, layer: usize, rows: &Rows) {
        let c = &self.model.config;
        let (q, kv, half) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.head_dim / 2);
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
                let (cos, sin) = (&rows.cos[row * half..][..half], &rows.sin[row * half..][..half]);
                let (queries, keys) = line[..q + kv].split_at_mut(q);
                if let Some((q_norm, k_norm)) = norms {
                    kernels::rms_norm_heads(isa, queries, q_norm, eps);
                    kernels::rms_norm_heads(isa, keys, k_norm, eps);
                }
                kernels::rope(isa, queries, cos, sin, Rotation::Forward);
                kernels::rope(isa, keys, cos, sin, Rotation::Forward);
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
                        .map(|(x, added)| x + added),
                );
            }
        }
        let mut normed = vec![0.0; wanted.len()];
        kernels::rms_norm(&self.pool, &wanted, &self.model.final_norm, c.rms_norm_eps, &mut normed);
        let mut logits = vec![0.0; wanted.len() / c.hidden_size * c.vocab_size];
        head.multiply(&self.pool, &normed, &mut logits, &mut self.buffers.rows);
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
        for layer in 0..self.model.layers.len() {
            let (pool, eps) = (self.pool.clone(), self.model.config.rms_norm_eps);
            {
                let (weights, b) = (&self.model.layers[layer], &mut self.buffers);
                match layer {
                    0 => kernels::rms_norm(&pool, &x, &weights.input_norm, eps, &mut b.normed),
                    _ => kernels::add_rms_norm(&pool, &mut x, &b.added, &weights.input_norm, eps, &mut b.normed),
                }
                weights.qkv.multiply(&pool, &b.normed, &mut b.qkv, &mut b.rows);
            }
            self.prepare_attention(layer, &rows);
            self.attend(layer, chunks);
            let (weights, b): (&PackedLayer, _) = (&self.model.layers[layer], &mut self.buffers);
            weights.o.multiply(&pool, &b.attended, &mut b.added, &mut b.rows);
            kernels::add_rms_norm(&pool, &mut x, &b.added, &weights.post_norm, eps, &mut b.normed);
            kernels::gated_mlp(
                &pool,
                &b.normed,
                &weights.gate,
                &weights.up,
                &mut b.gated,
                &mut b.up,
                &mut b.rows,
            );
            weights.down.multiply(&pool, &b.gated, &mut b.added, &mut b.rows);
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
