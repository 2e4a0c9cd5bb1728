//! A model's weights in the layout of the CPU kernels, packed once per weight version.

use candle_core::{DType, Device, Tensor};

use super::error::Result;
use crate::model::config::{GATE_UP, QKV};
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
    /// Norms around attention and MLP, where the family has them.
    pub norms: PackedNorms,
    /// Query, key and value projections, concatenated.
    pub qkv: PackedMatrix,
    /// Norms on queries and keys, if the family has them.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// Output projection.
    pub o: PackedMatrix,
    /// Gate projection.
    pub gate: PackedMatrix,
    /// Up projection.
    pub up: PackedMatrix,
    /// Down projection.
    pub down: PackedMatrix,
}

/// Weights of the norms around attention and MLP.
#[derive(Default)]
pub struct PackedNorms {
    /// Norm of attention's input.
    pub before_attention: Option<Vec<f32>>,
    /// Norm of attention's result.
    pub after_attention: Option<Vec<f32>>,
    /// Norm of the MLP's input.
    pub before_mlp: Option<Vec<f32>>,
    /// Norm of the MLP's result.
    pub after_mlp: Option<Vec<f32>>,
}

impl PackedModel {
    /// Packs the weights for the pool's instruction set, those of layers in the given precision. The head decides between
    /// tokens, so 8-bit integers are not for it: it stays in f32 then.
    ///
    /// # Errors
    /// Fails if a parameter is missing or out of memory.
    pub fn new(weights: &Weights, precision: Precision, pool: &Pool) -> Result<Self> {
        let c = &weights.config;
        let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let head_precision = match precision {
            Precision::Int8 => Precision::F32,
            precision => precision,
        };
        let matrix = |outputs, inputs| PackedMatrix::new(pool.isa(), precision, outputs, inputs);
        let layer = |_| PackedLayer {
            norms: PackedNorms::default(),
            qkv: matrix(q + 2 * kv, c.hidden_size),
            qk_norm: None,
            o: matrix(c.hidden_size, q),
            gate: matrix(c.intermediate_size, c.hidden_size),
            up: matrix(c.intermediate_size, c.hidden_size),
            down: matrix(c.hidden_size, c.intermediate_size),
        };
        let mut model = Self {
            config: c.clone(),
            embedding: plain(weights, EMBEDDING)?,
            layers: (0..c.layers.len()).map(layer).collect(),
            final_norm: vec![],
            head: PackedMatrix::new(pool.isa(), head_precision, c.vocab_size, c.hidden_size),
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
        self.final_norm = norm(weights, FINAL_NORM)?;
        pack(&mut self.head, weights, pool, &[weights.head_name()], 0)
    }
}

impl PackedLayer {
    fn refresh(&mut self, weights: &Weights, layer: &str, pool: &Pool) -> Result<()> {
        let projection = |name: &str| format!("{layer}.{name}_proj.weight");
        let config = &weights.config;
        let own_norm = |name: &str| norm(weights, &format!("{layer}.{name}.weight"));
        let optional = |name: Option<&str>| name.map(own_norm).transpose();
        self.norms = PackedNorms {
            before_attention: optional(config.norms.before_attention)?,
            after_attention: optional(config.norms.after_attention)?,
            before_mlp: optional(config.norms.before_mlp)?,
            after_mlp: optional(config.norms.after_mlp)?,
        };
        if config.qk_norm.is_some() {
            self.qk_norm = Some((own_norm("self_attn.q_norm")?, own_norm("self_attn.k_norm")?));
        }
        let names = |block: &str, separate: &[&str], fused: &str| -> Vec<String> {
            let own = |name: &str| format!("{layer}.{block}.{name}.weight");
            match config.fused_projections {
                true => vec![own(fused)],
                false => separate.iter().map(|name| own(name)).collect(),
            }
        };
        let qkv = names("self_attn", &QKV.separate, QKV.fused);
        pack(
            &mut self.qkv,
            weights,
            pool,
            &qkv.iter().map(String::as_str).collect::<Vec<_>>(),
            0,
        )?;
        let gate_up = names("mlp", &GATE_UP.separate, GATE_UP.fused);
        let up_row = if config.fused_projections {
            config.intermediate_size
        } else {
            0
        };
        pack(&mut self.gate, weights, pool, &[&gate_up[0]], 0)?;
        pack(&mut self.up, weights, pool, &[&gate_up[gate_up.len() - 1]], up_row)?;
        pack(&mut self.o, weights, pool, &[&projection("self_attn.o")], 0)?;
        pack(&mut self.down, weights, pool, &[&projection("mlp.down")], 0)
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

/// Returns the weight of a norm, with what the family adds to it.
fn norm(weights: &Weights, name: &str) -> Result<Vec<f32>> {
    let mut weight = vector(weights, name)?;
    weight.iter_mut().for_each(|w| *w += weights.config.norm_offset);
    Ok(weight)
}

/// Packs the named matrices concatenated, with their biases if they have any: of a single one only the rows from
/// `first_row` on that the packed matrix has.
fn pack(matrix: &mut PackedMatrix, weights: &Weights, pool: &Pool, names: &[&str], first_row: usize) -> Result<()> {
    let mut bias = vec![];
    let mut tensors = vec![];
    let rows = |tensor: Tensor| match names.len() {
        1 => tensor.narrow(0, first_row, matrix.outputs()),
        _ => Ok(tensor),
    };
    for name in names {
        tensors.push(rows(plain(weights, name)?)?);
        let name = name.replace(".weight", ".bias");
        if weights.params.contains_key(&name) {
            bias.extend(rows(plain(weights, &name)?)?.to_vec1::<f32>()?);
        }
    }
    let storages: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut parts = vec![];
    for (storage, layout) in &storages {
        let candle_core::Storage::Cpu(storage) = &**storage else {
            unreachable!("`plain` moves parameters to the CPU");
        };
        #[expect(clippy::expect_used, reason = "`plain` makes parameters contiguous")]
        let (start, end) = layout.contiguous_offsets().expect("parameters are contiguous");
        parts.push(&storage.as_slice::<f32>()?[start..end]);
    }
    matrix.pack(pool, &parts, (!bias.is_empty()).then_some(bias));
    Ok(())
}
