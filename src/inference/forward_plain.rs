//! Forward pass with candle's tensor operations: for GPUs, and as reference of the CPU kernels.
//!
//! All layers' keys and values have a slot for every position of every block, allocated once. Attention is batched over
//! sequences of similar length: the blocks of each are gathered, padded to the longest and masked. Per step, only token
//! ids, positions and block numbers are copied to the device, and only sampled tokens are copied back.
//!
//! On a CPU, where launches are free, every row is computed separately: matrix products have one shape whatever the
//! batch is, so that a row's bits, and thus the tokens of a seed, do not depend on the rest of the batch. On a GPU the
//! last bits do.
//!
//! Counted for decoding 64 sequences at 1,000 tokens each with Qwen2.5-0.5B in bf16 (24 layers, 2 × 64 keys and as many
//! values a token, 0.99 GB of weights): the weights are read once, 0.99 GB, 0.3 ms at 3.3 TB/s. The caches are read and
//! written by the gather and read by the products, 3 × 0.79 GB, 0.7 ms; a kernel that follows the block numbers itself
//! would read them once. 30 launches per layer, 720 in total, take some 3 ms at 4 µs each: at this size launches bound a
//! step, not bytes. Weights of 7B (15.2 GB, 4.6 ms) turn that around. Writing to the slots is one scatter a layer, whose
//! threads go over the rows one by one: fine for a decode step's 64, about 0.3 ms for a prompt chunk's 2,048.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::{ops, rotary_emb};
use indexmap::IndexMap;

use super::error::Result;
use super::forward::{BLOCK_TOKENS, BlockId, Chunk, Forward, Logits};
use crate::model::config::Rope;
use crate::model::ops::visible;
use crate::model::weights::{EMBEDDING, FINAL_NORM};
use crate::model::{ModelConfig, Weights};

/// Contexts up to this length are computed together; longer ones with those of at most twice their length.
const SHORT_CONTEXT: usize = 1024;
/// Rows of every matrix product when rows are computed separately.
const TILE: usize = 16;

/// A model's tensors, shared with the trainer, and its cache.
pub struct PlainForward {
    config: ModelConfig,
    tensors: IndexMap<String, Tensor>,
    /// Of adapted weights Aᵀ and scale·Bᵀ, in the model's type. Adapters are not merged: a second copy of the weights
    /// would be needed for it, and in bf16 the sum would round away most of what an adapter has learned.
    adapters: IndexMap<String, (Tensor, Tensor)>,
    head: Tensor,
    /// Whether every row is computed separately.
    alone: bool,
    /// cos and sin of the rotary angles, positions × head_dim / 2.
    rotary: (Tensor, Tensor),
    /// Number of cache blocks.
    blocks: usize,
    /// Of each layer (2 · kv heads) × slots × head_dim, the keys' heads first; empty while released.
    caches: Vec<Tensor>,
}

/// Rows of a batch; those of a group are adjacent.
struct Batch {
    tokens: Tensor,
    cos: Tensor,
    sin: Tensor,
    /// Each row's slot, repeated over heads and their width, for the cache's scatter.
    writes: Tensor,
    groups: Vec<Group>,
    /// Rows whose logits are requested, in the order of the chunks; `None` if there are none.
    wanted: Option<Tensor>,
}

/// Sequences whose attention is computed together.
struct Group {
    first_row: usize,
    rows: usize,
    sequences: usize,
    /// Padded number of rows per sequence.
    height: usize,
    /// Where rows are padded: the group's row of each padded one, and the padded one of each row.
    padding: Option<(Tensor, Tensor)>,
    /// sequences · (keys / block): blocks of the cache.
    blocks: Tensor,
    /// Padded number of keys per sequence.
    keys: usize,
    /// sequences × 1 × height × keys: 0 where a row sees a key, otherwise −∞.
    mask: Tensor,
}

impl PlainForward {
    /// Creates the pass without memory for blocks; see [`Forward::reserve`].
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn new(weights: &Weights) -> Result<Self> {
        let config = weights.config.clone();
        let mut forward = Self {
            rotary: rotary_tables(
                &config.rope,
                config.max_position_embeddings,
                weights.dtype(),
                &weights.device(),
            )?,
            config,
            tensors: IndexMap::new(),
            adapters: IndexMap::new(),
            head: weights.head()?.clone(),
            alone: weights.device().is_cpu(),
            blocks: 0,
            caches: vec![],
        };
        forward.refresh(weights)?;
        Ok(forward)
    }

    fn device(&self) -> &Device {
        self.head.device()
    }

    /// Allocates the whole cache at once.
    fn allocate(&mut self) -> Result<()> {
        let c = &self.config;
        let shape = (2 * c.num_kv_heads, self.blocks * BLOCK_TOKENS, c.head_dim);
        while self.caches.len() < self.config.num_layers {
            self.caches
                .push(Tensor::zeros(shape, self.head.dtype(), self.device())?);
        }
        Ok(())
    }

    fn tensor(&self, layer: usize, name: &str) -> Option<&Tensor> {
        self.tensors.get(&format!("model.layers.{layer}.{name}"))
    }

    fn norm(&self, layer: usize, name: &str, x: &Tensor) -> Result<Tensor> {
        match self.tensor(layer, &format!("{name}.weight")) {
            Some(weight) => Ok(ops::rms_norm(&x.contiguous()?, weight, self.config.rms_norm_eps)?),
            None => Ok(x.clone()), // not every family has norms on queries and keys
        }
    }

    fn linear(&self, layer: usize, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = format!("model.layers.{layer}.{name}.weight");
        let mut y = self.product(x, &self.tensors[&weight].t()?)?;
        if let Some((a, b)) = self.adapters.get(&weight) {
            y = (y + self.product(&self.product(x, a)?, b)?)?;
        }
        match self.tensor(layer, &format!("{name}.bias")) {
            Some(bias) => Ok(y.broadcast_add(bias)?),
            None => Ok(y),
        }
    }

    /// Multiplies rows × inputs by inputs × outputs. A product's summation order depends on its shape, so when rows are
    /// computed separately it always has [`TILE`] rows, padded with zeros.
    fn product(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        if !self.alone {
            return Ok(x.matmul(weight)?);
        }
        let rows = x.dim(0)?;
        let x = x.pad_with_zeros(0, 0, rows.next_multiple_of(TILE) - rows)?;
        let tiles = (0..rows).step_by(TILE);
        let tiles = tiles.map(|row| x.narrow(0, row, TILE)?.contiguous()?.matmul(weight));
        let y = Tensor::cat(&tiles.collect::<candle_core::Result<Vec<_>>>()?, 0)?;
        Ok(y.narrow(0, 0, rows)?)
    }

    fn batch(&self, chunks: &[Chunk]) -> Result<Batch> {
        let groups = match self.alone {
            true => (0..chunks.len()).map(|number| vec![number]).collect(),
            false => grouped(chunks),
        };
        let (mut tokens, mut positions, mut slots) = (vec![], vec![], vec![]);
        let mut last_row = vec![0u32; chunks.len()];
        for &number in groups.iter().flatten() {
            let chunk = &chunks[number];
            tokens.extend_from_slice(chunk.tokens);
            positions.extend((chunk.start..chunk.start + chunk.tokens.len()).map(|p| p as u32));
            slots.extend((chunk.start..chunk.start + chunk.tokens.len()).map(|p| slot(chunk, p)));
            last_row[number] = tokens.len() as u32 - 1;
        }
        let rows = tokens.len();
        let wanted = chunks.iter().zip(last_row).filter(|(chunk, _)| chunk.logits);
        let wanted: Vec<u32> = wanted.map(|(_, row)| row).collect();
        let positions = Tensor::new(positions, self.device())?;
        let heads = 2 * self.config.num_kv_heads;
        let writes = Tensor::new(slots, self.device())?.reshape((1, rows, 1))?;
        let mut first_row = 0;
        let groups = groups.iter().map(|members| {
            let group = self.group(chunks, members, first_row)?;
            first_row += group.rows;
            Ok(group)
        });
        Ok(Batch {
            groups: groups.collect::<Result<_>>()?,
            tokens: Tensor::new(tokens, self.device())?,
            cos: self.rotary.0.index_select(&positions, 0)?,
            sin: self.rotary.1.index_select(&positions, 0)?,
            writes: writes.broadcast_as((heads, rows, self.config.head_dim))?.contiguous()?,
            wanted: match wanted.is_empty() {
                true => None,
                false => Some(Tensor::new(wanted, self.device())?),
            },
        })
    }

    fn group(&self, chunks: &[Chunk], members: &[usize], first_row: usize) -> Result<Group> {
        let device = self.device();
        let members: Vec<&Chunk> = members.iter().map(|&number| &chunks[number]).collect();
        let height = members.iter().map(|c| c.tokens.len()).max().unwrap_or(0);
        let blocks = members.iter().map(|c| blocks_used(c)).max().unwrap_or(0);
        let (mut queries, mut order, mut places, mut ids) = (vec![], vec![], vec![], vec![]);
        let mut rows = 0;
        for (number, chunk) in members.iter().enumerate() {
            let (len, own) = (chunk.tokens.len(), &chunk.blocks[..blocks_used(chunk)]);
            // Padding repeats existing rows; its results are not used.
            queries.extend((0..height).map(|row| (rows + row.min(len - 1)) as u32));
            order.extend((0..len).map(|row| (number * height + row) as u32));
            places.extend((0..height).map(|row| (chunk.start + row) as f32));
            ids.extend((0..blocks).map(|block| own[block.min(own.len() - 1)] as u32));
            rows += len;
        }
        let (sequences, keys) = (members.len(), blocks * BLOCK_TOKENS);
        let padding = match rows == sequences * height {
            true => None,
            false => Some((Tensor::new(queries, device)?, Tensor::new(order, device)?)),
        };
        let places = Tensor::from_vec(places, (sequences, 1, height, 1), device)?;
        Ok(Group {
            first_row,
            rows,
            sequences,
            height,
            padding,
            blocks: Tensor::new(ids, device)?,
            keys,
            mask: visible(&places, keys)?,
        })
    }

    fn attention(&self, layer: usize, x: &Tensor, batch: &Batch) -> Result<Tensor> {
        let c = &self.config;
        let rows = x.dim(0)?;
        let heads = |name: &str, heads: usize| -> Result<Tensor> {
            let y = self.linear(layer, &format!("self_attn.{name}_proj"), x)?;
            Ok(y.reshape((rows, heads, c.head_dim))?)
        };
        let turned = |name: &str, number: usize| -> Result<Tensor> {
            let y = self.norm(layer, &format!("self_attn.{name}_norm"), &heads(name, number)?)?;
            Ok(rotary_emb::rope_thd(&y.unsqueeze(0)?.contiguous()?, &batch.cos, &batch.sin)?.squeeze(0)?)
        };
        let (q, k, v) = (
            turned("q", c.num_heads)?,
            turned("k", c.num_kv_heads)?,
            heads("v", c.num_kv_heads)?,
        );
        let cache = &self.caches[layer];
        let new = Tensor::cat(&[k.transpose(0, 1)?, v.transpose(0, 1)?], 0)?;
        cache.scatter_set(&batch.writes, &new, 1)?;
        let mixed = batch.groups.iter().map(|group| self.attend(group, &q, cache));
        let mixed = mixed.collect::<Result<Vec<Tensor>>>()?;
        let mixed = match &mixed[..] {
            [one] => one.clone(),
            several => Tensor::cat(several, 0)?,
        };
        self.linear(layer, "self_attn.o_proj", &mixed)
    }

    /// Attention of a group's rows (of all queries, rows × heads × head_dim): rows × (heads · head_dim).
    fn attend(&self, group: &Group, q: &Tensor, cache: &Tensor) -> Result<Tensor> {
        let (kv, d) = (self.config.num_kv_heads, self.config.head_dim);
        let (n, height, keys) = (group.sequences, group.height, group.keys);
        let shared = self.config.num_heads / kv;
        let mut q = q.narrow(0, group.first_row, group.rows)?;
        if let Some((queries, _)) = &group.padding {
            q = q.index_select(queries, 0)?;
        }
        let q = q.reshape((n, height, kv, shared, d))?.permute((2, 0, 3, 1, 4))?;
        let q = q.contiguous()?.reshape((kv, n, shared * height, d))?;
        let gathered = cache
            .reshape((2 * kv, self.blocks, BLOCK_TOKENS * d))?
            .index_select(&group.blocks, 1)?
            .reshape((2 * kv, n, keys, d))?;
        let (k, v) = (gathered.narrow(0, 0, kv)?, gathered.narrow(0, kv, kv)?);
        let scores = (q.matmul(&k.t()?)?.to_dtype(DType::F32)? * (1.0 / (d as f64).sqrt()))?;
        let scores = scores
            .reshape((kv, n, shared, height, keys))?
            .broadcast_add(&group.mask)?;
        let shares = ops::softmax_last_dim(&scores)?.to_dtype(v.dtype())?;
        let mixed = shares.reshape((kv, n, shared * height, keys))?.matmul(&v)?;
        let mixed = mixed.reshape((kv, n, shared, height, d))?.permute((1, 3, 0, 2, 4))?;
        let mixed = mixed.reshape((n * height, kv * shared * d))?;
        match &group.padding {
            Some((_, order)) => Ok(mixed.index_select(order, 0)?),
            None => Ok(mixed),
        }
    }

    fn mlp(&self, layer: usize, x: &Tensor) -> Result<Tensor> {
        let gate = ops::silu(&self.linear(layer, "mlp.gate_proj", x)?)?;
        self.linear(layer, "mlp.down_proj", &(gate * self.linear(layer, "mlp.up_proj", x)?)?)
    }
}

#[cfg(test)]
impl PlainForward {
    /// Computes sequences together, as on a GPU.
    pub(super) fn together(weights: &Weights) -> Result<Self> {
        Ok(Self {
            alone: false,
            ..Self::new(weights)?
        })
    }
}

impl Forward for PlainForward {
    fn block_bytes(&self) -> usize {
        let c = &self.config;
        2 * c.num_layers * c.num_kv_heads * c.head_dim * BLOCK_TOKENS * self.head.dtype().size_in_bytes()
    }

    fn reserve(&mut self, blocks: usize) {
        self.release_blocks();
        self.blocks = blocks;
    }

    fn forward(&mut self, chunks: &[Chunk]) -> Result<Logits> {
        self.allocate()?;
        let rows: Vec<Chunk> = chunks.iter().flat_map(by_row).collect();
        let chunks = if self.alone { &rows } else { chunks };
        let batch = self.batch(chunks)?;
        let mut x = self.tensors[EMBEDDING].index_select(&batch.tokens, 0)?;
        for layer in 0..self.config.num_layers {
            x = (&x + self.attention(layer, &self.norm(layer, "input_layernorm", &x)?, &batch)?)?;
            x = (&x + self.mlp(layer, &self.norm(layer, "post_attention_layernorm", &x)?)?)?;
        }
        let Some(wanted) = &batch.wanted else {
            return Ok(Logits::Host(vec![]));
        };
        let x = x.index_select(wanted, 0)?;
        let x = ops::rms_norm(&x, &self.tensors[FINAL_NORM], self.config.rms_norm_eps)?;
        let logits = self.product(&x, &self.head.t()?)?.to_dtype(DType::F32)?;
        match self.alone {
            true => Ok(Logits::Host(logits.flatten_all()?.to_vec1()?)), // sampled from row by row
            false => Ok(Logits::Device(logits)),
        }
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        self.allocate()?;
        for cache in &self.caches {
            let block = cache.narrow(1, from * BLOCK_TOKENS, BLOCK_TOKENS)?.force_contiguous()?;
            cache.slice_set(&block, 1, to * BLOCK_TOKENS)?;
        }
        Ok(())
    }

    fn refresh(&mut self, weights: &Weights) -> Result<()> {
        for (name, param) in &weights.params {
            self.tensors.insert(name.clone(), param.tensor().detach());
        }
        self.head = self.tensors[weights.head_name()].clone();
        let Some(lora) = &weights.lora else {
            return Ok(());
        };
        let turned = |factor: &Tensor| factor.to_dtype(weights.dtype())?.t()?.contiguous();
        for (name, adapter) in &lora.adapters {
            let b = (adapter.b.detach() * lora.scale())?;
            self.adapters
                .insert(name.clone(), (turned(&adapter.a.detach())?, turned(&b)?));
        }
        Ok(())
    }

    fn release_blocks(&mut self) {
        self.caches = vec![];
    }
}

/// The chunks by number, those that are attended to together in one group: of about the same length, before contexts
/// of about the same length, so that padding at most doubles either.
fn grouped(chunks: &[Chunk]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (number, chunk) in chunks.iter().enumerate() {
        let context = (chunk.start + chunk.tokens.len()).max(SHORT_CONTEXT);
        let size = (chunk.tokens.len().next_power_of_two(), context.next_power_of_two());
        groups.entry(size).or_default().push(number);
    }
    groups.into_values().collect()
}

/// Splits a chunk into chunks of one token.
fn by_row<'a>(chunk: &Chunk<'a>) -> impl Iterator<Item = Chunk<'a>> + use<'a> {
    let chunk = *chunk;
    (0..chunk.tokens.len()).map(move |row| Chunk {
        tokens: &chunk.tokens[row..=row],
        start: chunk.start + row,
        logits: chunk.logits && row + 1 == chunk.tokens.len(),
        ..chunk
    })
}

fn blocks_used(chunk: &Chunk) -> usize {
    (chunk.start + chunk.tokens.len()).div_ceil(BLOCK_TOKENS)
}

fn slot(chunk: &Chunk, position: usize) -> u32 {
    (chunk.blocks[position / BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS) as u32
}

/// Angles in f32, then cosines and sines, then the model's type, as transformers computes them.
fn rotary_tables(rope: &Rope, positions: usize, dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let (cos, sin) = rope.tables(0..positions as u32);
    let tensor = |table| Tensor::from_vec(table, (positions, rope.inv_freq.len()), device)?.to_dtype(dtype);
    Ok((tensor(cos)?, tensor(sin)?))
}
