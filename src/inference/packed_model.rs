//! A model's weights in the layout of the CPU kernels, packed once per weight version.

use candle_core::{DType, Device, Tensor};

use super::error::Result;
use crate::model::kernels::{PackedMatrix, Pool, Precision};
use crate::model::weights::{EMBEDDING, FINAL_NORM};
use crate::model::{ModelConfig, Weights};

/// Packed weights of a decoder, with adapters merged.
pub struct PackedModel {
    /// The architecture.
    pub config: ModelConfig,
    /// Embeddings, vocabulary × hidden; share memory with the weights if these are f32 on the CPU.
    pub embedding: Tensor,
    /// The decoder layers.
    pub layers: Vec<PackedLayer>,
    /// Norm before the head.
    pub final_norm: Vec<f32>,
    /// LM head.
    pub head: PackedMatrix,
}

/// One decoder layer.
pub struct PackedLayer {
    /// Norm before attention.
    pub input_norm: Vec<f32>,
    /// Query, key and value projections, concatenated.
    pub qkv: PackedMatrix,
    /// Norms on each query and key head, if the family has them.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// Output projection.
    pub o: PackedMatrix,
    /// Norm before the MLP.
    pub post_norm: Vec<f32>,
    /// Gate projection.
    pub gate: PackedMatrix,
    /// Up projection.
    pub up: PackedMatrix,
    /// Down projection.
    pub down: PackedMatrix,
}

impl PackedModel {
    /// Packs the weights for the pool's instruction set, in the given precision.
    ///
    /// # Errors
    /// Fails if a parameter is missing or out of memory.
    pub fn new(weights: &Weights, precision: Precision, pool: &Pool) -> Result<Self> {
        let c = &weights.config;
        let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let matrix = |outputs, inputs| PackedMatrix::new(pool.isa(), precision, outputs, inputs);
        let layer = |_| PackedLayer {
            input_norm: vec![],
            qkv: matrix(q + 2 * kv, c.hidden_size),
            qk_norm: None,
            o: matrix(c.hidden_size, q),
            post_norm: vec![],
            gate: matrix(c.intermediate_size, c.hidden_size),
            up: matrix(c.intermediate_size, c.hidden_size),
            down: matrix(c.hidden_size, c.intermediate_size),
        };
        let mut model = Self {
            config: c.clone(),
            embedding: plain(weights, EMBEDDING)?,
            layers: (0..c.num_layers).map(layer).collect(),
            final_norm: vec![],
            head: matrix(c.vocab_size, c.hidden_size),
        };
        model.refresh(weights, pool)?;
        Ok(model)
    }

    /// Packs changed weights of the same architecture in place.
    ///
    /// # Errors
    /// Fails if a parameter is missing or out of memory.
    pub fn refresh(&mut self, weights: &Weights, pool: &Pool) -> Result<()> {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.refresh(weights, &format!("model.layers.{i}"), pool)?;
        }
        self.embedding = plain(weights, EMBEDDING)?;
        self.final_norm = vector(weights, FINAL_NORM)?;
        pack(&mut self.head, weights, pool, &[weights.head_name()])
    }
}

impl PackedLayer {
    fn refresh(&mut self, weights: &Weights, layer: &str, pool: &Pool) -> Result<()> {
        let projection = |name: &str| format!("{layer}.{name}_proj.weight");
        self.input_norm = vector(weights, &format!("{layer}.input_layernorm.weight"))?;
        self.post_norm = vector(weights, &format!("{layer}.post_attention_layernorm.weight"))?;
        if weights.config.qk_norm {
            let norm = |name: &str| vector(weights, &format!("{layer}.self_attn.{name}_norm.weight"));
            self.qk_norm = Some((norm("q")?, norm("k")?));
        }
        let qkv = ["self_attn.q", "self_attn.k", "self_attn.v"].map(projection);
        pack(&mut self.qkv, weights, pool, &qkv.each_ref().map(String::as_str))?;
        for (matrix, name) in [
            (&mut self.o, "self_attn.o"),
            (&mut self.gate, "mlp.gate"),
            (&mut self.up, "mlp.up"),
            (&mut self.down, "mlp.down"),
        ] {
            pack(matrix, weights, pool, &[&projection(name)])?;
        }
        Ok(())
    }
}

/// Returns a parameter as contiguous f32 on the CPU, without a copy if it already is.
fn plain(weights: &Weights, name: &str) -> Result<Tensor> {
    let tensor = weights.effective(name)?;
    Ok(tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?)
}

fn vector(weights: &Weights, name: &str) -> Result<Vec<f32>> {
    Ok(plain(weights, name)?.to_vec1()?)
}

/// Packs the named matrices concatenated, with their biases if they have any.
fn pack(matrix: &mut PackedMatrix, weights: &Weights, pool: &Pool, names: &[&str]) -> Result<()> {
    let mut bias = vec![];
    let mut tensors = vec![];
    for name in names {
        tensors.push(plain(weights, name)?);
        let name = name.replace(".weight", ".bias");
        if weights.params.contains_key(&name) {
            bias.extend(vector(weights, &name)?);
        }
    }
    let storages: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut parts = vec![];
    for (storage, layout) in &storages {
        let candle_core::Storage::Cpu(storage) = &**storage else {
            unreachable!("`plain` moves parameters to the CPU");
        };
        let (start, end) = layout
            .contiguous_offsets()
            .expect("`plain` makes parameters contiguous");
        parts.push(&storage.as_slice::<f32>()?[start..end]);
    }
    matrix.pack(pool, &parts, (!bias.is_empty()).then_some(bias));
    Ok(())
}
