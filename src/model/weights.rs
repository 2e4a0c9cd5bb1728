//! Weights of a model, shared by sampler and trainer.

use std::collections::BTreeSet;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use indexmap::IndexMap;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::config::ModelConfig;
use super::error::{ModelError, Result};
use super::kernels::QuantizedMatrix;
use super::lora::{Lora, LoraConfig};
use super::param::Param;

/// Name of the embedding, and of a tied head.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of an LM head that is not tied.
pub const LM_HEAD: &str = "lm_head.weight";
/// Name of the last norm.
pub const FINAL_NORM: &str = "model.norm.weight";

/// Set of trained parameters.
#[derive(Clone, Debug)]
pub enum Trainable {
    /// None, as of a model to sample from or a frozen reference.
    Nothing,
    /// All parameters but the routers of mixtures of experts.
    All,
    /// All parameters.
    AllAndRouters,
    /// Low-rank adapters of frozen weights.
    Lora(LoraConfig),
}

/// All parameters by their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`; linear weights are out × in).
#[derive(Clone, Debug)]
pub struct Weights {
    /// Architecture.
    pub config: ModelConfig,
    /// Parameters by name, in the model's order.
    pub params: IndexMap<String, Param>,
    /// Low-rank adapters, if these are trained.
    pub lora: Option<Lora>,
    /// Version, incremented by every update, by which packed copies and caches detect that they are stale.
    pub version: u64,
}

impl Weights {
    /// Creates weights from loaded tensors. Tensors that the architecture does not need (a stored copy of a tied head,
    /// tables of the rotary embedding) are dropped.
    ///
    /// # Errors
    /// Fails if a tensor is missing or has another shape than `config` gives it; a LoRA target matches nothing.
    pub fn new(config: ModelConfig, tensors: IndexMap<String, Tensor>, trainable: &Trainable) -> Result<Self> {
        Self::with_quantized(config, tensors, IndexMap::new(), trainable)
    }

    /// As [`new`](Self::new), with matrices that stay in the blocks of their file.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if all parameters are to be trained but some are quantised.
    pub fn with_quantized(
        config: ModelConfig,
        mut tensors: IndexMap<String, Tensor>,
        mut quantized: IndexMap<String, Arc<QuantizedMatrix>>,
        trainable: &Trainable,
    ) -> Result<Self> {
        if !quantized.is_empty() && matches!(trainable, Trainable::All | Trainable::AllAndRouters) {
            return Err(ModelError::QuantizedTraining);
        }
        let mut params = IndexMap::new();
        for (name, shape) in config.tensor_shapes() {
            let is_router = config.experts.as_ref().is_some_and(|experts| experts.is_router(&name));
            let is_trained = match trainable {
                Trainable::All => !is_router,
                Trainable::AllAndRouters => true,
                Trainable::Nothing | Trainable::Lora(_) => false,
            };
            let param = match (quantized.swap_remove(&name), tensors.swap_remove(&name), is_trained) {
                (Some(matrix), ..) => Param::Quantized(matrix),
                (None, Some(tensor), true) => Param::Trained(Var::from_tensor(&tensor)?),
                (None, Some(tensor), _) => Param::Frozen(tensor.contiguous()?),
                (None, None, _) => {
                    return Err(ModelError::Tensors(format!(
                        "the model has no tensor `{name}` (shape {shape:?})"
                    )));
                }
            };
            if param.dims() != shape {
                let found = param.dims();
                let message = format!("tensor `{name}` has shape {found:?}, config.json says {shape:?}");
                return Err(ModelError::Tensors(message));
            }
            params.insert(name, param);
        }
        let lora = match trainable {
            Trainable::Lora(lora) => Some(Lora::new(lora, &params)?),
            _ => None,
        };
        Ok(Self {
            config,
            params,
            lora,
            version: 0,
        })
    }

    /// Returns a parameter of the architecture, without adapters.
    ///
    /// # Errors
    /// Fails if the architecture has no such parameter.
    pub fn param(&self, name: &str) -> Result<&Param> {
        let missing = || ModelError::Tensors(format!("the model has no tensor `{name}`"));
        self.params.get(name).ok_or_else(missing)
    }

    /// Returns the current value of a parameter of the architecture, without adapters.
    ///
    /// # Errors
    /// Fails if the architecture has no such parameter, or it is quantised.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.param(name)?.tensor().ok_or(ModelError::QuantizedNeedsKernels)
    }

    /// Returns the effective value of a parameter: the base weight plus its adapter, without a gradient.
    ///
    /// # Errors
    /// Fails if the architecture has no such parameter.
    pub fn effective(&self, name: &str) -> Result<Tensor> {
        let base = self.param(name)?.value()?;
        match self.lora.as_ref().and_then(|lora| lora.delta(name).transpose()) {
            None => Ok(base),
            Some(delta) => Ok((&base + delta?.to_dtype(base.dtype())?)?),
        }
    }

    /// Returns the LM head, vocabulary × hidden.
    ///
    /// # Errors
    /// Never fails for weights made by [`Weights::new`].
    pub fn head(&self) -> Result<&Tensor> {
        self.tensor(self.head_name())
    }

    /// Returns the name of the LM head, which is the embedding's if it is tied.
    pub fn head_name(&self) -> &'static str {
        if self.config.tie_word_embeddings {
            EMBEDDING
        } else {
            LM_HEAD
        }
    }

    /// Returns the trained parameters, in the model's order. Adapters are named as PEFT names them in a model
    /// (`model.layers.0.self_attn.q_proj.lora_A.weight`).
    pub fn trainable(&self) -> Vec<(String, Var)> {
        if let Some(lora) = &self.lora {
            return lora.trainable();
        }
        let trained = |(name, param): (&String, &Param)| match param {
            Param::Trained(var) => Some((name.clone(), var.clone())),
            Param::Frozen(_) | Param::Quantized(_) => None,
        };
        self.params.iter().filter_map(trained).collect()
    }

    /// Returns the name of the first trained parameter with a value that is not finite.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn non_finite(&self) -> Result<Option<String>> {
        for (name, var) in self.trainable() {
            let tensor = var.as_detached_tensor();
            // A sum says it at once, but may also overflow.
            let sum = tensor.sum_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
            if !sum.is_finite() {
                let values = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
                if values.iter().any(|value| !value.is_finite()) {
                    return Ok(Some(name));
                }
            }
        }
        Ok(None)
    }

    /// Returns whether a parameter has a gradient.
    pub fn is_trained(&self, name: &str) -> bool {
        matches!(self.params.get(name), Some(Param::Trained(_)))
    }

    /// Returns the number of parameters of the model, without adapters.
    pub fn parameter_count(&self) -> usize {
        self.params.values().map(Param::count).sum()
    }

    /// Returns the bytes of the parameters in memory, without adapters.
    pub fn parameter_bytes(&self) -> usize {
        self.params.values().map(Param::bytes).sum()
    }

    /// Describes the matrices that stay in the blocks of their file; `None` if there are none.
    pub fn describe_quantized(&self) -> Option<String> {
        let matrices = self.params.values().filter_map(|param| match param {
            Param::Quantized(matrix) => Some(&**matrix),
            _ => None,
        });
        let (mut count, mut formats) = (0, BTreeSet::new());
        for matrix in matrices {
            count += 1;
            formats.insert(matrix.format().name());
        }
        let formats = Vec::from_iter(formats).join(", ");
        let (bytes, in_f32) = (self.parameter_bytes(), self.parameter_count() * size_of::<f32>());
        (count > 0).then(|| {
            format!(
                "{count} of {} tensors stay quantised ({formats}): the weights take {:.0} MB instead of {:.0} MB in f32",
                self.params.len(),
                bytes as f64 / 1e6,
                in_f32 as f64 / 1e6
            )
        })
    }

    /// Returns the number of trained parameters.
    pub fn trainable_count(&self) -> usize {
        self.trainable().iter().map(|(_, var)| var.elem_count()).sum()
    }

    /// Returns the device of the weights.
    pub fn device(&self) -> Device {
        self.params.values().next().map_or(Device::Cpu, Param::device)
    }

    /// Returns the data type of the computation.
    pub fn dtype(&self) -> DType {
        self.params.values().next().map_or(DType::F32, Param::dtype)
    }

    /// Returns a copy that updates do not change: the reference of the KL term.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn frozen_copy(&self) -> Result<Self> {
        let mut params = IndexMap::new();
        for name in self.params.keys() {
            params.insert(name.clone(), Param::Frozen(self.effective(name)?.copy()?));
        }
        Ok(Self {
            config: self.config.clone(),
            params,
            lora: None,
            version: self.version,
        })
    }
}

/// Creates random weights in f32 on the CPU: matrices normally distributed with standard deviation `std`, norms
/// with weight 1 in effect, biases 0. The same seed gives the same weights.
///
/// # Errors
/// Fails if out of memory.
pub fn random_tensors(config: &ModelConfig, std: f32, seed: u64) -> Result<IndexMap<String, Tensor>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tensors = IndexMap::new();
    for (name, shape) in config.tensor_shapes() {
        let count = shape.iter().product();
        let values: Vec<f32> = match shape.len() {
            1 if name.ends_with(".bias") => vec![0.0; count],
            1 => vec![1.0 - config.norm_offset; count],
            _ => (0..count).map(|_| std * normal(&mut rng)).collect(),
        };
        tensors.insert(name, Tensor::from_vec(values, shape, &Device::Cpu)?);
    }
    Ok(tensors)
}

/// Returns a standard normal sample (Box–Muller).
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.random::<f32>()).ln()).sqrt();
    radius * (std::f32::consts::TAU * rng.random::<f32>()).cos()
}
