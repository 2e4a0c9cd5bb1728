//! A model's weights in the layout of the CPU kernels, packed once per weight version.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::error::Result;
use crate::model::config::{GATE_UP, QKV};
use crate::model::experts::Experts;
use crate::model::kernels::tensors::Numbers;
use crate::model::kernels::{PackedMatrix, Pool, Precision, QuantizedMatrix};
use crate::model::param::Param;
use crate::model::weights::{EMBEDDING, FINAL_NORM};
use crate::model::{ModelConfig, Weights};

/// Packed weights of a decoder, with adapters merged; those that are quantised stay so, with adapters beside them.
pub struct PackedModel {
    /// The architecture.
    pub config: ModelConfig,
    /// Embeddings.
    pub embedding: Embedding,
    /// The decoder layers.
    pub layers: Vec<PackedLayer>,
    /// Norm before the head.
    pub final_norm: Vec<f32>,
    /// LM head.
    pub head: PackedMatrix,
}

/// Embeddings, vocabulary × hidden.
pub enum Embedding {
    /// f32; they share memory with the weights if these are f32 on the CPU.
    Numbers(Tensor),
    /// Quantised.
    Quantized(Arc<QuantizedMatrix>),
}

/// One decoder layer.
pub struct PackedLayer {
    /// Norms around attention and MLP, where the family has them.
    pub norms: PackedNorms,
    /// Query, key and value projections: concatenated, or one after the other if any is quantised.
    pub qkv: Vec<PackedMatrix>,
    /// Norms on queries and keys, if the family has them.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// Output projection.
    pub o: PackedMatrix,
    /// MLP, or the experts that take its place.
    pub mlp: PackedMlp,
}

/// What follows attention in a layer.
pub enum PackedMlp {
    /// One MLP for all tokens.
    Dense(PackedGlu),
    /// A mixture of experts.
    Experts(PackedExperts),
}

/// A mixture of experts.
pub struct PackedExperts {
    /// How it routes.
    pub config: Experts,
    /// Router, experts × hidden. It decides between experts, so it always stays in f32.
    pub router: PackedMatrix,
    /// The experts by number.
    pub experts: Vec<PackedGlu>,
}

/// A gated MLP.
pub struct PackedGlu {
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
        let own = |names: &[String], outputs, inputs, first| {
            matrix(weights, pool, precision, (outputs, inputs), names, first)
        };
        let layer = |i| {
            let names = LayerNames::new(weights, i);
            let one = |name: &String, outputs, inputs, first| own(std::slice::from_ref(name), outputs, inputs, first);
            let widths = match names.qkv.len() {
                1 => vec![q + 2 * kv],
                _ => vec![q, kv, kv],
            };
            let quantized = |name: &String| matches!(weights.params.get(name), Some(Param::Quantized(_)));
            let qkv = match names.qkv.iter().any(quantized) {
                true => {
                    let each = names.qkv.iter().zip(widths);
                    each.map(|(name, width)| one(name, width, c.hidden_size, 0)).collect()
                }
                false => vec![own(&names.qkv, q + 2 * kv, c.hidden_size, 0)],
            };
            let glu = |names: &GluNames, width: usize| PackedGlu {
                gate: one(&names.gate, width, c.hidden_size, 0),
                up: one(&names.up, width, c.hidden_size, names.up_row),
                down: one(&names.down, c.hidden_size, width, 0),
            };
            let mlp = match c.layer_experts(i) {
                None => PackedMlp::Dense(glu(&GluNames::of_layer(weights, i), c.intermediate_size)),
                Some(config) => {
                    let router = [router_name(config, i)];
                    let shape = (config.count, c.hidden_size);
                    let expert = |number| glu(&GluNames::of_expert(config, i, number), config.intermediate_size);
                    PackedMlp::Experts(PackedExperts {
                        config: config.clone(),
                        router: matrix(weights, pool, Precision::F32, shape, &router, 0),
                        experts: (0..config.count).map(expert).collect(),
                    })
                }
            };
            PackedLayer {
                norms: PackedNorms::default(),
                qkv,
                qk_norm: None,
                o: one(&names.o, c.hidden_size, q, 0),
                mlp,
            }
        };
        let head = [weights.head_name().to_owned()];
        let mut model = Self {
            config: c.clone(),
            embedding: embedding(weights)?,
            layers: (0..c.layers.len()).map(layer).collect(),
            final_norm: vec![],
            head: matrix(weights, pool, head_precision, (c.vocab_size, c.hidden_size), &head, 0),
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
            layer.refresh(weights, i, pool)?;
        }
        self.embedding = embedding(weights)?;
        self.final_norm = norm(weights, FINAL_NORM)?;
        pack(&mut self.head, weights, pool, &[weights.head_name().to_owned()], 0)
    }
}

impl PackedLayer {
    fn refresh(&mut self, weights: &Weights, number: usize, pool: &Pool) -> Result<()> {
        let config = &weights.config;
        let own_norm = |name: &str| norm(weights, &format!("model.layers.{number}.{name}.weight"));
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
        let names = LayerNames::new(weights, number);
        let in_each = names.qkv.len() / self.qkv.len();
        for (matrix, names) in self.qkv.iter_mut().zip(names.qkv.chunks(in_each)) {
            pack(matrix, weights, pool, names, 0)?;
        }
        pack(&mut self.o, weights, pool, &[names.o], 0)?;
        match &mut self.mlp {
            PackedMlp::Dense(glu) => glu.refresh(weights, GluNames::of_layer(weights, number), pool),
            PackedMlp::Experts(PackedExperts {
                config,
                router,
                experts,
            }) => {
                pack(router, weights, pool, &[router_name(config, number)], 0)?;
                let mut experts = experts.iter_mut().enumerate();
                experts.try_for_each(|(expert, glu)| {
                    glu.refresh(weights, GluNames::of_expert(config, number, expert), pool)
                })
            }
        }
    }
}

impl PackedGlu {
    fn refresh(&mut self, weights: &Weights, names: GluNames, pool: &Pool) -> Result<()> {
        pack(&mut self.gate, weights, pool, &[names.gate], 0)?;
        pack(&mut self.up, weights, pool, &[names.up], names.up_row)?;
        pack(&mut self.down, weights, pool, &[names.down], 0)
    }
}

/// Names of the weights of a gated MLP.
struct GluNames {
    gate: String,
    up: String,
    /// First row of `up`: not 0 if it is the second half of a fused weight.
    up_row: usize,
    down: String,
}

impl GluNames {
    /// Of the MLP of a layer.
    fn of_layer(weights: &Weights, number: usize) -> Self {
        let own = |name: &str| format!("model.layers.{number}.mlp.{name}.weight");
        let (gate, up, up_row) = match weights.config.fused_projections {
            true => (GATE_UP.fused, GATE_UP.fused, weights.config.intermediate_size),
            false => (GATE_UP.separate[0], GATE_UP.separate[1], 0),
        };
        Self {
            gate: own(gate),
            up: own(up),
            up_row,
            down: own("down_proj"),
        }
    }

    /// Of an expert.
    fn of_expert(config: &Experts, layer: usize, number: usize) -> Self {
        let [gate, up, down] = config.expert(layer, number).map(|module| format!("{module}.weight"));
        Self {
            gate,
            up,
            up_row: 0,
            down,
        }
    }
}

fn router_name(config: &Experts, layer: usize) -> String {
    format!("{}.weight", config.router(layer))
}

/// Names of a layer's weights of attention.
struct LayerNames {
    /// One, or three.
    qkv: Vec<String>,
    o: String,
}

impl LayerNames {
    fn new(weights: &Weights, number: usize) -> Self {
        let own = |name: &str| format!("model.layers.{number}.self_attn.{name}.weight");
        Self {
            qkv: match weights.config.fused_projections {
                true => vec![own(QKV.fused)],
                false => QKV.separate.iter().map(|name| own(name)).collect(),
            },
            o: own("o_proj"),
        }
    }
}

/// Room for the named matrices concatenated; a single quantised one as it is, from a row on.
fn matrix(
    weights: &Weights,
    pool: &Pool,
    precision: Precision,
    (outputs, inputs): (usize, usize),
    names: &[String],
    first_row: usize,
) -> PackedMatrix {
    match names {
        [name] if let Some(Param::Quantized(blocks)) = weights.params.get(name) => {
            PackedMatrix::of_blocks(pool.isa(), blocks.clone(), first_row, outputs)
        }
        _ => PackedMatrix::new(pool.isa(), precision, outputs, inputs),
    }
}

fn embedding(weights: &Weights) -> Result<Embedding> {
    Ok(match weights.param(EMBEDDING)? {
        Param::Quantized(blocks) => Embedding::Quantized(blocks.clone()),
        _ => Embedding::Numbers(plain(weights, EMBEDDING)?),
    })
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
/// `first_row` on that the packed matrix has. Of a quantised one it takes bias and adapter.
fn pack(matrix: &mut PackedMatrix, weights: &Weights, pool: &Pool, names: &[String], first_row: usize) -> Result<()> {
    let outputs = matrix.outputs();
    let rows = |tensor: Tensor| match names.len() {
        1 => tensor.narrow(0, first_row, outputs),
        _ => Ok(tensor),
    };
    let mut bias = vec![];
    for name in names.iter().map(|name| name.replace(".weight", ".bias")) {
        if weights.params.contains_key(&name) {
            bias.extend(rows(plain(weights, &name)?)?.to_vec1::<f32>()?);
        }
    }
    let bias = (!bias.is_empty()).then_some(bias);
    if matrix.is_in_blocks() {
        matrix.set_bias(bias);
        let lora = weights.lora.as_ref();
        if let Some((lora, adapter)) = lora.and_then(|lora| Some((lora, lora.adapters.get(&names[0])?))) {
            let (a, b) = (adapter.a.as_detached_tensor(), rows(adapter.b.as_detached_tensor())?);
            matrix.set_adapter(pool, &Numbers::of(&a)?, &Numbers::of(&b)?, lora.scale() as f32);
        }
        return Ok(());
    }
    let tensors = names.iter().map(|name| Ok(rows(plain(weights, name)?)?));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let parts = tensors
        .iter()
        .map(Numbers::of)
        .collect::<candle_core::Result<Vec<_>>>()?;
    matrix.pack(pool, &parts.iter().map(|part| &**part).collect::<Vec<_>>(), bias);
    Ok(())
}
