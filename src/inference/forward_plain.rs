//! The forward pass on candle's tensor operations: any device, and what the kernels are compared with.
//!
//! Every layer keeps keys and values of all blocks in one tensor, slots × width. Attention is batched over sequences:
//! each one's slots are gathered, padded to the longest and masked. Sequences that decode and those in their prompt are
//! two batches, so that the former are not padded to the latter's chunks.

use candle_core::{DType, Device, Tensor};
use candle_nn::{ops, rotary_emb};
use indexmap::IndexMap;

use super::error::Result;
use super::forward::{BLOCK_TOKENS, BlockId, Chunk, Forward};
use crate::model::weights::{EMBEDDING, FINAL_NORM};
use crate::model::{ModelConfig, Weights};

/// A model's tensors, adapters merged, with its cache.
pub struct PlainForward {
    config: ModelConfig,
    tensors: IndexMap<String, Tensor>,
    head: Tensor,
    /// Keys and values of each layer, slots × (kv heads · head_dim); grown as blocks are first used.
    caches: Vec<(Tensor, Tensor)>,
    slots: usize,
}

/// Where a batch's rows are.
struct Places {
    cos: Tensor,
    sin: Tensor,
    /// Each row's slot, repeated over a cache's width.
    writes: Tensor,
    groups: Vec<Group>,
    /// For each row of the batch its place in the groups' outputs, one after the other.
    order: Tensor,
}

/// Sequences whose attention is computed together.
struct Group {
    sequences: usize,
    /// Rows of each, padded.
    rows: usize,
    /// Keys of each, padded.
    keys: usize,
    /// sequences · rows: rows of the batch.
    queries: Tensor,
    /// sequences · keys: slots of the caches.
    slots: Tensor,
    /// sequences × 1 × rows × keys: 0 where a row sees a key, else −∞.
    mask: Tensor,
}

impl PlainForward {
    /// Merges adapters; other weights are shared, not copied.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(weights: &Weights) -> Result<Self> {
        let mut forward = Self {
            config: weights.config.clone(),
            tensors: IndexMap::new(),
            head: weights.head()?.clone(),
            caches: vec![],
            slots: 0,
        };
        forward.refresh(weights)?;
        Ok(forward)
    }

    fn device(&self) -> &Device {
        self.head.device()
    }

    /// Makes room for the blocks up to `last`: twice what there was, so that growing is rare.
    fn grow(&mut self, last: BlockId) -> Result<()> {
        let needed = (last + 1) * BLOCK_TOKENS;
        if needed <= self.slots {
            return Ok(());
        }
        let slots = needed.max(2 * self.slots);
        let width = self.config.num_kv_heads * self.config.head_dim;
        let added = Tensor::zeros((slots - self.slots, width), self.head.dtype(), self.device())?;
        let longer = |old: Option<&Tensor>| match old {
            Some(old) => Tensor::cat(&[old, &added], 0),
            None => added.copy(),
        };
        let old = std::mem::take(&mut self.caches);
        for layer in 0..self.config.num_layers {
            let old = old.get(layer);
            self.caches
                .push((longer(old.map(|c| &c.0))?, longer(old.map(|c| &c.1))?));
        }
        self.slots = slots;
        Ok(())
    }

    fn tensor(&self, layer: usize, name: &str) -> Option<&Tensor> {
        self.tensors.get(&format!("model.layers.{layer}.{name}"))
    }

    fn norm(&self, layer: usize, name: &str, x: &Tensor) -> Result<Tensor> {
        match self.tensor(layer, &format!("{name}.weight")) {
            Some(weight) => Ok(ops::rms_norm(&x.contiguous()?, weight, self.config.rms_norm_eps)?),
            None => Ok(x.clone()), // only the norms on queries and keys are not in every family
        }
    }

    fn linear(&self, layer: usize, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = &self.tensors[&format!("model.layers.{layer}.{name}.weight")];
        let y = x.matmul(&weight.t()?)?;
        match self.tensor(layer, &format!("{name}.bias")) {
            Some(bias) => Ok(y.broadcast_add(bias)?),
            None => Ok(y),
        }
    }

    fn places(&self, chunks: &[Chunk]) -> Result<Places> {
        let rope = &self.config.rope;
        let (mut angles, mut slots) = (vec![], vec![]);
        for chunk in chunks {
            for position in chunk.start..chunk.start + chunk.tokens.len() {
                angles.extend(rope.inv_freq.iter().map(|f| position as f32 * f));
                slots.push(slot(chunk, position));
            }
        }
        let shape = (slots.len(), rope.inv_freq.len());
        let table = |f: fn(f32) -> f32| -> Result<Tensor> {
            let values: Vec<f32> = angles.iter().map(|a| f(*a) * rope.attention_factor).collect();
            Ok(Tensor::from_vec(values, shape, self.device())?.to_dtype(self.head.dtype())?)
        };
        let width = self.config.num_kv_heads * self.config.head_dim;
        let writes = Tensor::new(slots, self.device())?
            .unsqueeze(1)?
            .broadcast_as((shape.0, width))?;
        let (groups, order) = self.groups(chunks)?;
        Ok(Places {
            cos: table(f32::cos)?,
            sin: table(f32::sin)?,
            writes: writes.contiguous()?,
            groups,
            order,
        })
    }

    fn groups(&self, chunks: &[Chunk]) -> Result<(Vec<Group>, Tensor)> {
        let mut first_row = 0;
        let (mut decoding, mut prompts) = (vec![], vec![]);
        for chunk in chunks {
            let group = if chunk.tokens.len() == 1 {
                &mut decoding
            } else {
                &mut prompts
            };
            group.push((first_row, *chunk));
            first_row += chunk.tokens.len();
        }
        let mut order = vec![0u32; first_row];
        let mut groups = vec![];
        let mut output = 0;
        for members in [decoding, prompts].iter().filter(|members| !members.is_empty()) {
            let group = self.group(members)?;
            for (i, (first_row, chunk)) in members.iter().enumerate() {
                for row in 0..chunk.tokens.len() {
                    order[first_row + row] = (output + i * group.rows + row) as u32;
                }
            }
            output += group.sequences * group.rows;
            groups.push(group);
        }
        Ok((groups, Tensor::new(order, self.device())?))
    }

    fn group(&self, members: &[(usize, Chunk)]) -> Result<Group> {
        let rows = members.iter().map(|(_, c)| c.tokens.len()).max().unwrap_or(0);
        let keys = members.iter().map(|(_, c)| c.start + c.tokens.len()).max().unwrap_or(0);
        let (mut queries, mut slots, mut mask) = (vec![], vec![], vec![]);
        for (first_row, chunk) in members {
            let end = chunk.start + chunk.tokens.len();
            // Padding repeats what is there; whatever it computes is not used.
            queries.extend((0..rows).map(|row| (first_row + row.min(chunk.tokens.len() - 1)) as u32));
            slots.extend((0..keys).map(|position| slot(chunk, position.min(end - 1))));
            for row in 0..rows {
                mask.extend((0..keys).map(|key| {
                    if key <= chunk.start + row {
                        0f32
                    } else {
                        f32::NEG_INFINITY
                    }
                }));
            }
        }
        Ok(Group {
            sequences: members.len(),
            rows,
            keys,
            queries: Tensor::new(queries, self.device())?,
            slots: Tensor::new(slots, self.device())?,
            mask: Tensor::from_vec(mask, (members.len(), 1, rows, keys), self.device())?,
        })
    }

    fn attention(&self, layer: usize, x: &Tensor, places: &Places) -> Result<Tensor> {
        let c = &self.config;
        let rows = x.dim(0)?;
        let turned = |name: &str, heads: usize| -> Result<Tensor> {
            let y = self.linear(layer, &format!("self_attn.{name}_proj"), x)?;
            let y = self.norm(
                layer,
                &format!("self_attn.{name}_norm"),
                &y.reshape((rows, heads, c.head_dim))?,
            )?;
            let y = rotary_emb::rope_thd(&y.unsqueeze(0)?.contiguous()?, &places.cos, &places.sin)?;
            Ok(y.reshape((rows, heads * c.head_dim))?)
        };
        let (q, k) = (turned("q", c.num_heads)?, turned("k", c.num_kv_heads)?);
        let v = self.linear(layer, "self_attn.v_proj", x)?;
        let (keys, values) = &self.caches[layer];
        keys.scatter_set(&places.writes, &k, 0)?;
        values.scatter_set(&places.writes, &v, 0)?;
        let outputs: Vec<Tensor> = places
            .groups
            .iter()
            .map(|g| self.attend(g, &q, keys, values))
            .collect::<Result<_>>()?;
        let mixed = Tensor::cat(&outputs, 0)?.index_select(&places.order, 0)?;
        self.linear(layer, "self_attn.o_proj", &mixed)
    }

    /// Attention of a group, sequences · rows × (heads · head_dim).
    fn attend(&self, group: &Group, q: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let (kv, d) = (self.config.num_kv_heads, self.config.head_dim);
        let (n, rows, shared) = (group.sequences, group.rows, self.config.num_heads / kv);
        let gathered = |cache: &Tensor| -> Result<Tensor> {
            let cache = cache.index_select(&group.slots, 0)?.reshape((n, group.keys, kv, d))?;
            Ok(cache.transpose(1, 2)?.contiguous()?)
        };
        let (k, v) = (gathered(keys)?, gathered(values)?);
        let q = q.index_select(&group.queries, 0)?.reshape((n, rows, kv, shared, d))?;
        let q = q
            .permute((0, 2, 3, 1, 4))?
            .contiguous()?
            .reshape((n, kv, shared * rows, d))?;
        let scores = (q.matmul(&k.t()?)?.to_dtype(DType::F32)? * (1.0 / (d as f64).sqrt()))?;
        let scores = scores
            .reshape((n, kv * shared, rows, group.keys))?
            .broadcast_add(&group.mask)?;
        let shares = ops::softmax_last_dim(&scores)?.to_dtype(v.dtype())?;
        let mixed = shares.reshape((n, kv, shared * rows, group.keys))?.matmul(&v)?;
        let mixed = mixed.reshape((n, kv * shared, rows, d))?.transpose(1, 2)?;
        Ok(mixed.reshape((n * rows, kv * shared * d))?)
    }

    fn mlp(&self, layer: usize, x: &Tensor) -> Result<Tensor> {
        let gate = ops::silu(&self.linear(layer, "mlp.gate_proj", x)?)?;
        self.linear(layer, "mlp.down_proj", &(gate * self.linear(layer, "mlp.up_proj", x)?)?)
    }
}

impl Forward for PlainForward {
    fn block_bytes(&self) -> usize {
        let c = &self.config;
        2 * c.num_layers * c.num_kv_heads * c.head_dim * BLOCK_TOKENS * self.head.dtype().size_in_bytes()
    }

    fn forward(&mut self, chunks: &[Chunk]) -> Result<Vec<f32>> {
        let used = chunks
            .iter()
            .flat_map(|c| &c.blocks[..(c.start + c.tokens.len()).div_ceil(BLOCK_TOKENS)]);
        self.grow(used.copied().max().unwrap_or(0))?;
        let places = self.places(chunks)?;
        let tokens: Vec<u32> = chunks.iter().flat_map(|c| c.tokens.iter().copied()).collect();
        let mut x = self.tensors[EMBEDDING].index_select(&Tensor::new(tokens, self.device())?, 0)?;
        for layer in 0..self.config.num_layers {
            x = (&x + self.attention(layer, &self.norm(layer, "input_layernorm", &x)?, &places)?)?;
            x = (&x + self.mlp(layer, &self.norm(layer, "post_attention_layernorm", &x)?)?)?;
        }
        let (mut wanted, mut row) = (vec![], 0u32);
        for chunk in chunks {
            row += chunk.tokens.len() as u32;
            wanted.extend(chunk.logits.then_some(row - 1));
        }
        if wanted.is_empty() {
            return Ok(vec![]);
        }
        let x = x.index_select(&Tensor::new(wanted, self.device())?, 0)?;
        let x = ops::rms_norm(&x, &self.tensors[FINAL_NORM], self.config.rms_norm_eps)?;
        Ok(x.matmul(&self.head.t()?)?
            .to_dtype(DType::F32)?
            .flatten_all()?
            .to_vec1()?)
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        self.grow(from.max(to))?;
        for (keys, values) in &self.caches {
            for cache in [keys, values] {
                let block = cache.narrow(0, from * BLOCK_TOKENS, BLOCK_TOKENS)?.copy()?;
                cache.slice_set(&block, 0, to * BLOCK_TOKENS)?;
            }
        }
        Ok(())
    }

    fn refresh(&mut self, weights: &Weights) -> Result<()> {
        for name in weights.params.keys() {
            self.tensors.insert(name.clone(), weights.effective(name)?);
        }
        self.head = self.tensors[weights.head_name()].clone();
        Ok(())
    }

    fn release_blocks(&mut self) {
        (self.caches, self.slots) = (vec![], 0);
    }
}

fn slot(chunk: &Chunk, position: usize) -> u32 {
    (chunk.blocks[position / BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS) as u32
}
