//! The forward pass on the CPU kernels: decode tokens and prompt chunks of many sequences as the rows of one batch.

use candle_core::{Device, Tensor};

use super::error::Result;
use super::forward::{BLOCK_TOKENS, BlockId, Chunk, Forward};
use super::packed_model::{PackedLayer, PackedModel};
use crate::model::Weights;
use crate::model::kernels::{self, AttentionRows, BlockLayout, Element, Isa, Pool};

/// A packed model with its cache blocks.
pub struct CpuForward<E = f32> {
    pool: std::sync::Arc<Pool>,
    isa: Isa,
    model: PackedModel<E>,
    layout: BlockLayout,
    /// By [`BlockId`]; empty until first used.
    blocks: Vec<Box<[f32]>>,
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
}

/// Where the rows of a batch are.
struct Rows {
    /// Rows × half a head.
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// (row, chunk, position) of every row.
    places: Vec<(usize, usize)>,
}

impl<E: Element> CpuForward<E> {
    /// Packs the weights.
    ///
    /// # Errors
    /// A parameter is missing, or out of memory.
    pub fn new(weights: &Weights, pool: std::sync::Arc<Pool>, isa: Isa) -> Result<Self> {
        let c = &weights.config;
        Ok(Self {
            model: PackedModel::new(weights, isa, &pool)?,
            layout: BlockLayout::new(c.num_layers, c.num_kv_heads, c.head_dim),
            pool,
            isa,
            blocks: vec![],
            buffers: Buffers::default(),
        })
    }

    fn ensure_blocks(&mut self, ids: impl Iterator<Item = BlockId>) {
        for id in ids {
            if id >= self.blocks.len() {
                self.blocks.resize_with(id + 1, Box::default);
            }
            if self.blocks[id].is_empty() {
                self.blocks[id] = vec![0.0; self.layout.len()].into();
            }
        }
    }

    /// Positions and rope tables, as transformers computes them: angles, then cosines and sines, in f32.
    fn rows(&self, chunks: &[Chunk]) -> Rows {
        let rope = &self.model.config.rope;
        let mut rows = Rows {
            cos: vec![],
            sin: vec![],
            places: vec![],
        };
        for (i, chunk) in chunks.iter().enumerate() {
            for position in chunk.start..chunk.start + chunk.tokens.len() {
                rows.places.push((i, position));
                for frequency in &rope.inv_freq {
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    rows.cos.push(cos * rope.attention_factor);
                    rows.sin.push(sin * rope.attention_factor);
                }
            }
        }
        rows
    }

    fn embed(&self, chunks: &[Chunk]) -> Result<Vec<f32>> {
        let ids: Vec<u32> = chunks.iter().flat_map(|c| c.tokens.iter().copied()).collect();
        let ids = Tensor::new(ids, &Device::Cpu)?;
        Ok(self.model.embedding.index_select(&ids, 0)?.flatten_all()?.to_vec1()?)
    }

    /// Norms and turns queries and keys in place, and writes keys and values to the cache.
    fn prepare_attention(&mut self, layer: usize, chunks: &[Chunk], rows: &Rows) {
        let c = &self.model.config;
        let (q, kv, half) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.head_dim / 2);
        let (weights, eps, isa) = (&self.model.layers[layer], c.rms_norm_eps, self.isa);
        let mut lines: Vec<&mut [f32]> = self.buffers.qkv.chunks_exact_mut(q + 2 * kv).collect();
        let few = (1 << 14) / (q + 2 * kv);
        let per_task = lines.len().div_ceil(4 * self.pool.threads()).max(few).max(1);
        let mut groups: Vec<&mut [&mut [f32]]> = lines.chunks_mut(per_task).collect();
        self.pool.for_each(&mut groups, |group, lines| {
            for (i, line) in lines.iter_mut().enumerate() {
                let row = group * per_task + i;
                let (cos, sin) = (&rows.cos[row * half..][..half], &rows.sin[row * half..][..half]);
                let (queries, rest) = line.split_at_mut(q);
                let keys = &mut rest[..kv];
                if let Some((q_norm, k_norm)) = &weights.qk_norm {
                    kernels::rms_norm_heads(isa, queries, q_norm, eps);
                    kernels::rms_norm_heads(isa, keys, k_norm, eps);
                }
                kernels::rope(queries, cos, sin);
                kernels::rope(keys, cos, sin);
            }
        });
        for (line, &(chunk, position)) in lines.iter().zip(&rows.places) {
            let block = &mut self.blocks[chunks[chunk].blocks[position / BLOCK_TOKENS]];
            self.layout
                .write(block, layer, position, &line[q..q + kv], &line[q + kv..]);
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
            self.isa,
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
        kernels::rms_norm(
            &self.pool,
            self.isa,
            &mut wanted,
            None,
            &self.model.final_norm,
            c.rms_norm_eps,
            &mut normed,
        );
        let mut logits = vec![0.0; wanted.len() / c.hidden_size * c.vocab_size];
        head.multiply(&self.pool, &normed, &mut logits);
        logits
    }
}

impl<E: Element> Forward for CpuForward<E> {
    fn block_bytes(&self) -> usize {
        self.layout.len() * size_of::<f32>()
    }

    fn forward(&mut self, chunks: &[Chunk]) -> Result<Vec<f32>> {
        self.ensure_blocks(chunks.iter().flat_map(|c| {
            let touched = c.start / BLOCK_TOKENS..(c.start + c.tokens.len()).div_ceil(BLOCK_TOKENS);
            c.blocks[touched].iter().copied()
        }));
        let rows = self.rows(chunks);
        let mut x = self.embed(chunks)?;
        self.buffers.resize(&self.model, rows.places.len());
        for layer in 0..self.model.layers.len() {
            let (pool, eps) = (self.pool.clone(), self.model.config.rms_norm_eps);
            {
                let (weights, b) = (&self.model.layers[layer], &mut self.buffers);
                let added = (layer > 0).then_some(&b.added[..]);
                kernels::rms_norm(&pool, self.isa, &mut x, added, &weights.input_norm, eps, &mut b.normed);
                weights.qkv.multiply(&pool, &b.normed, &mut b.qkv);
            }
            self.prepare_attention(layer, chunks, &rows);
            self.attend(layer, chunks);
            let (weights, b): (&PackedLayer<E>, _) = (&self.model.layers[layer], &mut self.buffers);
            weights.o.multiply(&pool, &b.attended, &mut b.added);
            kernels::rms_norm(
                &pool,
                self.isa,
                &mut x,
                Some(&b.added),
                &weights.post_norm,
                eps,
                &mut b.normed,
            );
            kernels::gated_mlp(&pool, &b.normed, &weights.gate, &weights.up, &mut b.gated, &mut b.up);
            weights.down.multiply(&pool, &b.gated, &mut b.added);
        }
        Ok(self.logits(chunks, &x))
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        self.ensure_blocks([from, to].into_iter());
        let mut target = std::mem::take(&mut self.blocks[to]);
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
    fn resize<E: Element>(&mut self, model: &PackedModel<E>, rows: usize) {
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
