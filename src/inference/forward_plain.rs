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
use crate::model::config::{GATE_UP, ProjectionNames, QKV, Rope};
use crate::model::experts::Experts;
use crate::model::kernels::LogitScaling;
use crate::model::ops::{RopeTables, plain, soft_cap, visible};
use crate::model::routing::{Block, Routing};
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
    /// Cosines and sines of each rotary embedding, positions × half of what is rotated of a head.
    ropes: Vec<RopeTables>,
    /// Number of cache blocks.
    blocks: usize,
    /// Of each layer (2 · kv heads) × slots × head_dim, the keys' heads first; empty while released.
    caches: Vec<Tensor>,
}

/// Rows of a batch; those of a group are adjacent.
struct Batch {
    tokens: Tensor,
    ropes: Vec<RopeTables>,
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
    /// sequences × 1 × height × keys: 0 where a row sees a key, otherwise −∞; one of each window of the model.
    masks: Vec<(Option<usize>, Tensor)>,
}

impl PlainForward {
    /// Creates the pass without memory for blocks; see [`Forward::reserve`].
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn new(weights: &Weights) -> Result<Self> {
        let config = weights.config.clone();
        let mut forward = Self {
            ropes: config
                .ropes
                .iter()
                .map(|rope| {
                    let positions = config.max_position_embeddings;
                    rope_tables(rope, positions, weights.dtype(), &weights.device())
                })
                .collect::<Result<_>>()?,
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
        while self.caches.len() < self.config.layers.len() {
            self.caches
                .push(Tensor::zeros(shape, self.head.dtype(), self.device())?);
        }
        Ok(())
    }

    fn tensor(&self, layer: usize, name: &str) -> Option<&Tensor> {
        self.tensors.get(&module(layer, name))
    }

    fn norm(&self, layer: usize, name: &str, x: &Tensor) -> Result<Tensor> {
        match self.tensor(layer, &format!("{name}.weight")) {
            Some(weight) => self.rms_norm(x, weight),
            None => Ok(x.clone()), // not every family has norms on queries and keys
        }
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let ModelConfig {
            norm_offset,
            rms_norm_eps,
            ..
        } = self.config;
        match norm_offset == 0.0 {
            true => Ok(ops::rms_norm(&x.contiguous()?, weight, rms_norm_eps)?),
            false => Ok(plain::rms_norm(x, weight, norm_offset, rms_norm_eps)?),
        }
    }

    /// A norm around attention or MLP, where the family has it.
    fn optional_norm(&self, layer: usize, name: Option<&str>, x: &Tensor) -> Result<Tensor> {
        name.map_or_else(|| Ok(x.clone()), |name| self.norm(layer, name, x))
    }

    /// Adds what a block computed to the residual stream.
    fn add(&self, x: &Tensor, computed: &Tensor) -> Result<Tensor> {
        match self.config.residual_scale {
            1.0 => Ok((x + computed)?),
            scale => Ok((x + (computed * f64::from(scale))?)?),
        }
    }

    /// The projections of one input, of these widths: one each, or one whose result is cut.
    fn project<const N: usize>(
        &self,
        layer: usize,
        block: &str,
        names: &ProjectionNames<N>,
        widths: [usize; N],
        x: &Tensor,
    ) -> Result<Vec<Tensor>> {
        if !self.config.fused_projections {
            let own = |name: &&str| self.linear(&module(layer, &format!("{block}.{name}")), x);
            return names.separate.iter().map(own).collect();
        }
        let all = self.linear(&module(layer, &format!("{block}.{}", names.fused)), x)?;
        let mut start = 0;
        let cut = widths.into_iter().map(|width| {
            start += width;
            Ok(all.narrow(1, start - width, width)?)
        });
        cut.collect()
    }

    fn linear(&self, module: &str, x: &Tensor) -> Result<Tensor> {
        let weight = format!("{module}.weight");
        let mut y = self.product(x, &self.tensors[&weight].t()?)?;
        if let Some((a, b)) = self.adapters.get(&weight) {
            y = (y + self.product(&self.product(x, a)?, b)?)?;
        }
        match self.tensors.get(&format!("{module}.bias")) {
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
        let at_positions = |tables: &RopeTables| -> Result<RopeTables> {
            Ok(RopeTables {
                cos: tables.cos.index_select(&positions, 0)?,
                sin: tables.sin.index_select(&positions, 0)?,
            })
        };
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
            ropes: self.ropes.iter().map(at_positions).collect::<Result<_>>()?,
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
        let mut masks: Vec<(Option<usize>, Tensor)> = vec![];
        for window in self.config.layers.iter().map(|layer| layer.window) {
            if !masks.iter().any(|(known, _)| *known == window) {
                masks.push((window, visible(&places, keys, window)?));
            }
        }
        Ok(Group {
            first_row,
            rows,
            sequences,
            height,
            padding,
            blocks: Tensor::new(ids, device)?,
            keys,
            masks,
        })
    }

    fn attention(&self, layer: usize, x: &Tensor, batch: &Batch) -> Result<Tensor> {
        let c = &self.config;
        let rows = x.dim(0)?;
        let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let projected = self.project(layer, "self_attn", &QKV, [q, kv, kv], x)?;
        let heads = |y: &Tensor, heads: usize| -> Result<Tensor> { Ok(y.reshape((rows, heads, c.head_dim))?) };
        let norm_widths = c.qk_norm_widths().unwrap_or([c.head_dim; 2]);
        let turned = |y: &Tensor, name: &str, norm_width: usize| -> Result<Tensor> {
            let width = y.dim(1)?;
            let y = y.reshape((rows, width / norm_width, norm_width))?;
            let y = heads(
                &self.norm(layer, &format!("self_attn.{name}_norm"), &y)?,
                width / c.head_dim,
            )?;
            match c.layers[layer].rope {
                Some(rope) => rotated(&y, &batch.ropes[rope]),
                None => Ok(y),
            }
        };
        let (q, k, v) = (
            turned(&projected[0], "q", norm_widths[0])?,
            turned(&projected[1], "k", norm_widths[1])?,
            heads(&projected[2], c.num_kv_heads)?,
        );
        let cache = &self.caches[layer];
        let new = Tensor::cat(&[k.transpose(0, 1)?, v.transpose(0, 1)?], 0)?;
        cache.scatter_set(&batch.writes, &new, 1)?;
        let mixed = batch.groups.iter().map(|group| self.attend(layer, group, &q, cache));
        let mixed = mixed.collect::<Result<Vec<Tensor>>>()?;
        let mixed = match &mixed[..] {
            [one] => one.clone(),
            several => Tensor::cat(several, 0)?,
        };
        self.linear(&module(layer, "self_attn.o_proj"), &mixed)
    }

    /// Attention of a group's rows (of all queries, rows × heads × head_dim): rows × (heads · head_dim).
    fn attend(&self, layer: usize, group: &Group, q: &Tensor, cache: &Tensor) -> Result<Tensor> {
        let scoring = self.config.attention_scores(layer);
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
        let scores = (q.matmul(&k.t()?)?.to_dtype(DType::F32)? * f64::from(scoring.scale))?;
        let scores = soft_cap(&scores, scoring.softcap)?;
        let scores = scores
            .reshape((kv, n, shared, height, keys))?
            .broadcast_add(group.mask(scoring.window))?;
        let shares = ops::softmax_last_dim(&scores)?.to_dtype(v.dtype())?;
        let mixed = shares.reshape((kv, n, shared * height, keys))?.matmul(&v)?;
        let mixed = mixed.reshape((kv, n, shared, height, d))?.permute((1, 3, 0, 2, 4))?;
        let mixed = mixed.reshape((n * height, kv * shared * d))?;
        match &group.padding {
            Some((_, order)) => Ok(mixed.index_select(order, 0)?),
            None => Ok(mixed),
        }
    }

    /// The experts that the router chooses for each row. The choice is made in the process's memory, so that a GPU
    /// computes the chosen experts only; it waits once a layer.
    fn experts(&self, experts: &Experts, layer: usize, x: &Tensor) -> Result<Tensor> {
        let routing = Routing::of_tensor(experts, &self.linear(&experts.router(layer), x)?)?;
        let rows = Tensor::new(routing.tokens(), self.device())?;
        let expert = |block: &Block| -> Result<Tensor> {
            let rows = rows.narrow(0, block.pairs.start, block.pairs.len())?;
            let x = x.index_select(&rows, 0)?;
            let [gate, up, down] = experts.expert(layer, block.expert);
            let gated = plain::glu(self.config.activation, &self.linear(&gate, &x)?, &self.linear(&up, &x)?)?;
            self.linear(&down, &gated)
        };
        let computed = routing.blocks().iter().map(expert).collect::<Result<Vec<_>>>()?;
        let weights = Tensor::new(routing.weights(), self.device())?;
        Ok(plain::mix(&Tensor::cat(&computed, 0)?, &weights, &routing, x.dim(0)?)?)
    }

    fn mlp(&self, layer: usize, x: &Tensor) -> Result<Tensor> {
        if let Some(experts) = self.config.layer_experts(layer) {
            return self.experts(experts, layer, x);
        }
        let widths = [self.config.intermediate_size; 2];
        let projected = self.project(layer, "mlp", &GATE_UP, widths, x)?;
        let gated = plain::glu(self.config.activation, &projected[0], &projected[1])?;
        self.linear(&module(layer, "mlp.down_proj"), &gated)
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
        self.config.cached_numbers() * BLOCK_TOKENS * self.head.dtype().size_in_bytes()
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
        if self.config.embedding_scale != 1.0 {
            x = (x * f64::from(self.config.embedding_scale))?;
        }
        let norms = self.config.norms;
        for layer in 0..self.config.layers.len() {
            let attended = self.attention(layer, &self.optional_norm(layer, norms.before_attention, &x)?, &batch)?;
            x = self.add(&x, &self.optional_norm(layer, norms.after_attention, &attended)?)?;
            let computed = self.mlp(layer, &self.optional_norm(layer, norms.before_mlp, &x)?)?;
            x = self.add(&x, &self.optional_norm(layer, norms.after_mlp, &computed)?)?;
        }
        let Some(wanted) = &batch.wanted else {
            return Ok(Logits::Host(vec![]));
        };
        let x = x.index_select(wanted, 0)?;
        let x = self.rms_norm(&x, &self.tensors[FINAL_NORM])?;
        let LogitScaling { scale, softcap } = self.config.logit_scaling(1.0);
        let products = self.product(&x, &self.head.t()?)?.to_dtype(DType::F32)?;
        let logits = match scale {
            1.0 => products,
            scale => (products * scale)?,
        };
        let logits = soft_cap(&logits, softcap.map(|cap| cap as f32))?;
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
        for name in weights.params.keys() {
            self.tensors.insert(name.clone(), weights.tensor(name)?.detach());
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

/// Returns the name of a part of a layer.
fn module(layer: usize, name: &str) -> String {
    format!("model.layers.{layer}.{name}")
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
fn rope_tables(rope: &Rope, positions: usize, dtype: DType, device: &Device) -> Result<RopeTables> {
    let (cos, sin) = rope.tables(0..positions as u32);
    let tensor = |table| Tensor::from_vec(table, (positions, rope.inv_freq.len()), device)?.to_dtype(dtype);
    Ok(RopeTables {
        cos: tensor(cos)?,
        sin: tensor(sin)?,
    })
}

/// Rotates rows × heads × head_dim, or of each head as much as the tables are wide.
fn rotated(x: &Tensor, tables: &RopeTables) -> Result<Tensor> {
    let (width, head_dim) = (2 * tables.cos.dim(1)?, x.dim(2)?);
    let turn = |x: &Tensor| rotary_emb::rope_thd(&x.unsqueeze(0)?.contiguous()?, &tables.cos, &tables.sin)?.squeeze(0);
    match width == head_dim {
        true => Ok(turn(x)?),
        false => {
            let rest = x.narrow(2, width, head_dim - width)?;
            Ok(Tensor::cat(&[turn(&x.narrow(2, 0, width)?)?, rest], 2)?)
        }
    }
}

impl Group {
    /// The mask of a window of the model.
    #[expect(clippy::expect_used, reason = "`group` makes a mask for the window of every layer")]
    fn mask(&self, window: Option<usize>) -> &Tensor {
        let found = self.masks.iter().find(|(known, _)| *known == window);
        &found.expect("every window has a mask").1
    }
}
