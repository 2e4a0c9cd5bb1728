//! Low-rank adapters (LoRA, arXiv 2106.09685): y = x·Wᵀ + (alpha / rank)·(x·Aᵀ)·Bᵀ, with W frozen.

use candle_core::{DType, Device, Tensor, Var};
use indexmap::IndexMap;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::error::{ModelError, Result};
use super::experts::Experts;
use super::param::Param;
use crate::config::{ALL_LINEAR, LINEAR_PROJECTIONS};

/// Shape of the adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rank of the adapters, at least 1.
    pub rank: usize,
    /// Scale of the adapters: alpha / rank.
    pub alpha: f64,
    /// Names of the adapted projections, such as `q_proj`; `all-linear` for all that the model has outside of experts,
    /// which are many.
    pub targets: Vec<String>,
    /// Seed of A's initial values.
    pub seed: u64,
}

/// The two factors of one adapted weight.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// rank × in, Kaiming-uniform at first.
    pub a: Var,
    /// out × rank, zero at first.
    pub b: Var,
}

/// All adapters of a model.
#[derive(Clone, Debug)]
pub struct Lora {
    /// Shape of the adapters, with the names of the adapted projections.
    pub config: LoraConfig,
    /// Adapters by name of the adapted weight, in the model's order. Always f32.
    pub adapters: IndexMap<String, Adapter>,
}

impl Lora {
    /// Creates adapters that add nothing yet.
    ///
    /// # Errors
    /// Fails if a target matches no projection of the model.
    pub fn new(lora: &LoraConfig, params: &IndexMap<String, Param>) -> Result<Self> {
        let is_of = |name: &str, target: &str| name.ends_with(&format!(".{target}.weight"));
        let mut available = LINEAR_PROJECTIONS.to_vec();
        available.retain(|target| params.keys().any(|name| is_of(name, target)));
        let is_of_expert = |target: &str| {
            let mut names = params.keys();
            names.any(|name| is_of(name, target) && Experts::is_of_expert(name))
        };
        let targets: Vec<String> = match lora.targets.iter().any(|target| target == ALL_LINEAR) {
            true => {
                let shared = available.iter().filter(|target| !is_of_expert(target));
                shared.map(|target| (*target).to_owned()).collect()
            }
            false => lora.targets.clone(),
        };
        if let Some(missing) = targets.iter().find(|target| !available.contains(&target.as_str())) {
            return Err(ModelError::LoraTarget {
                given: missing.clone(),
                available: available.join(", "),
            });
        }
        let mut rng = ChaCha8Rng::seed_from_u64(lora.seed);
        let mut adapters = IndexMap::new();
        for (name, param) in params {
            if !targets.iter().any(|target| is_of(name, target)) {
                continue;
            }
            let [rows, columns] = param.dims()[..] else {
                return Err(ModelError::Tensors(format!("`{name}` is not a matrix")));
            };
            let adapter = Adapter::new(rows, columns, lora.rank, &param.device(), &mut rng)?;
            adapters.insert(name.clone(), adapter);
        }
        Ok(Self {
            config: LoraConfig {
                targets,
                ..lora.clone()
            },
            adapters,
        })
    }

    /// Returns alpha / rank.
    pub fn scale(&self) -> f64 {
        self.config.alpha / self.config.rank as f64
    }

    /// Returns what the adapter of a weight adds to it, out × in in f32, without a gradient; `None` if it has no
    /// adapter.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn delta(&self, weight: &str) -> Result<Option<Tensor>> {
        let Some(adapter) = self.adapters.get(weight) else {
            return Ok(None);
        };
        let product = adapter.b.as_detached_tensor().matmul(&adapter.a.as_detached_tensor())?;
        Ok(Some((product * self.scale())?))
    }

    /// Returns both factors of every adapter, by their names in a PEFT model.
    pub fn trainable(&self) -> Vec<(String, Var)> {
        let mut vars = Vec::with_capacity(2 * self.adapters.len());
        for (weight, adapter) in &self.adapters {
            let module = weight.trim_end_matches(".weight");
            vars.push((format!("{module}.lora_A.weight"), adapter.a.clone()));
            vars.push((format!("{module}.lora_B.weight"), adapter.b.clone()));
        }
        vars
    }
}

impl Adapter {
    /// Initialises A uniformly in ±1/√in (Kaiming with a = √5, as PEFT does) and B with zeros.
    fn new(rows: usize, columns: usize, rank: usize, device: &Device, rng: &mut ChaCha8Rng) -> Result<Self> {
        let bound = 1.0 / (columns as f32).sqrt();
        let a: Vec<f32> = (0..rank * columns).map(|_| rng.random_range(-bound..bound)).collect();
        Ok(Self {
            a: Var::from_vec(a, (rank, columns), device)?,
            b: Var::zeros((rows, rank), DType::F32, device)?,
        })
    }
}
