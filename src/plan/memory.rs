//! Memory of a rank, by part.

use serde::Serialize;

use super::Machines;
use crate::config::schema::{Dtype, Quantization, Recompute};
use crate::config::{ALL_LINEAR, Ajet, LINEAR_PROJECTIONS};
use crate::inference::backend;
use crate::model::ModelConfig;
use crate::train::backprop::{memory, recompute};
use crate::train::ranks::most_owned;

/// Bytes of a number.
const F32: f64 = 4.0;
const BF16: f64 = 2.0;
const INT8: f64 = 1.0;
/// Share of a GPU's memory that an update can use; the rest is the driver's, and gaps between tensors.
const USABLE: f64 = 0.95;

/// Bytes of a rank, by part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// Weights, and adapters.
    pub weights: f64,
    /// Second copy of the weights, the reference of a KL term; 0 if the model without its adapters is the reference.
    pub reference: f64,
    /// The sampler's packed copy of the weights, on a CPU.
    pub packed: f64,
    /// This rank's moments, and f32 weights where the model has narrower ones.
    pub optimizer: f64,
    /// The same of one rank alone.
    pub optimizer_alone: f64,
    /// f32 gradients of all trained parameters. Only in an update.
    pub gradients: f64,
    /// Results of a micro-batch. Only in an update.
    pub activations: f64,
    /// Number of tokens of that micro-batch.
    pub micro_batch: usize,
    /// Whether the backward pass recomputes layers.
    pub recompute: bool,
    /// Keys and values of one token.
    pub cached_token: f64,
    /// What caches can use while answers are sampled.
    pub cache_room: f64,
    /// Tokens of the longest sequence, which the cache must hold.
    pub longest: usize,
    /// Memory of the device.
    pub capacity: f64,
    /// How much of it an update can use.
    pub usable: f64,
}

impl Memory {
    /// Counts the bytes of each rank of these machines.
    pub fn new(model: &ModelConfig, ajet: &Ajet, machines: &Machines) -> Self {
        let on_cpu = machines.device.is_cpu;
        let narrow = !on_cpu && ajet.engine.dtype != Dtype::F32;
        let number = if narrow { BF16 } else { F32 };
        let parameters = model.num_parameters() as f64;
        let sizes = trained_sizes(model, ajet);
        let trained = sizes.iter().sum::<usize>() as f64;
        let adapters = if ajet.lora.is_on() { trained * F32 } else { 0.0 };
        // Moments, and f32 weights beside those of full training in bf16; adapters are f32 anyway.
        let state = if narrow && !ajet.lora.is_on() {
            3.0 * F32
        } else {
            2.0 * F32
        };
        let mut memory = Self {
            weights: parameters * number + adapters,
            reference: if needs_reference(ajet) {
                parameters * number
            } else {
                0.0
            },
            packed: if on_cpu { packed_bytes(model, ajet) } else { 0.0 },
            optimizer: state * most_owned(&sizes, machines.ranks()) as f64,
            optimizer_alone: state * trained,
            gradients: trained * F32,
            activations: 0.0,
            micro_batch: micro_batch(ajet, machines.ranks()),
            recompute: false,
            cached_token: model.cached_numbers() as f64 * if narrow { BF16 } else { F32 },
            cache_room: 0.0,
            longest: ajet.max_model_len().min(model.max_position_embeddings),
            capacity: machines.device.memory,
            usable: machines.device.memory * if on_cpu { 1.0 } else { USABLE },
        };
        let free = memory.capacity - memory.resident() - memory.gradients;
        memory.recompute = match ajet.trainer_common.recompute {
            Recompute::On => true,
            Recompute::Off => false,
            Recompute::Auto => recompute::too_much_to_keep(model, number as usize, memory.micro_batch, Some(free)),
        };
        memory.activations = match on_cpu {
            true => memory::kernel_bytes(model, memory.micro_batch, memory.recompute),
            false => memory::autograd_bytes(model, memory.micro_batch, memory.recompute),
        };
        memory.cache_room = match on_cpu {
            // The engine takes at least one sequence's.
            true => {
                ((memory.capacity - memory.resident()) * backend::MEMORY_SHARE).max(memory.sequence(memory.longest))
            }
            false => memory.capacity * ajet.rollout.gpu_memory_utilization - memory.resident(),
        };
        memory
    }

    /// Returns the bytes that are held all the time.
    pub fn resident(&self) -> f64 {
        self.weights + self.reference + self.packed + self.optimizer
    }

    /// Returns the bytes of an update.
    pub fn update(&self) -> f64 {
        self.resident() + self.gradients + self.activations
    }

    /// Returns the bytes of a sequence in the cache.
    pub fn sequence(&self, tokens: usize) -> f64 {
        tokens as f64 * self.cached_token
    }

    /// Returns how many sequences of a length the cache holds at the same time.
    pub fn sequences(&self, tokens: usize) -> usize {
        (self.cache_room / self.sequence(tokens.max(1))).max(0.0) as usize
    }

    /// Returns how many bytes an update lacks; negative if it fits.
    pub fn update_lacks(&self) -> f64 {
        self.update() - self.usable
    }

    /// Returns how many bytes the cache lacks for the longest sequence; negative if it fits.
    pub fn cache_lacks(&self) -> f64 {
        self.sequence(self.longest) - self.cache_room
    }

    /// Returns whether sampling and updates fit.
    pub fn fits(&self) -> bool {
        self.update_lacks() <= 0.0 && self.cache_lacks() <= 0.0 && self.resident() <= self.usable
    }
}

/// Number of tokens of the largest micro-batch: as configured, but at most a rank's part of a step and at least one row.
fn micro_batch(ajet: &Ajet, ranks: usize) -> usize {
    let episodes = ajet.episodes_per_batch();
    let prompts = match ajet.trainer_common.share_prefixes {
        true => ajet.data.train_batch_size,
        false => episodes,
    };
    let prompts = prompts.saturating_mul(ajet.data.max_prompt_length);
    let batch = prompts.saturating_add(episodes.saturating_mul(ajet.data.max_response_length));
    let steps = ajet.trainer_common.mini_batch_num.max(1);
    let part = batch.div_ceil(steps).div_ceil(ranks);
    let configured = ajet.trainer_common.ppo_max_token_len_per_gpu;
    configured.min(part).max(ajet.max_row_len())
}

/// Returns the sizes of the trained parameters, each of which one rank owns.
pub fn trained_sizes(model: &ModelConfig, ajet: &Ajet) -> Vec<usize> {
    match ajet.lora.lora_rank {
        0 => {
            let shapes = model.tensor_shapes();
            shapes.iter().map(|(_, shape)| shape.iter().product()).collect()
        }
        rank => match ajet.lora.projections()[..] {
            [ALL_LINEAR] => model.adapter_sizes(rank, &LINEAR_PROJECTIONS),
            ref targets => model.adapter_sizes(rank, targets),
        },
    }
}

/// As `Trainer::needs_reference` decides for a model in memory.
fn needs_reference(ajet: &Ajet) -> bool {
    let trainer = &ajet.trainer_common;
    !ajet.lora.is_on() && trainer.kl_loss_coef != 0.0 && (trainer.use_kl_loss || trainer.use_kl_in_reward)
}

/// Bytes of the matrices as the sampler packs them on a CPU.
fn packed_bytes(model: &ModelConfig, ajet: &Ajet) -> f64 {
    let (layers, head) = packed_numbers(ajet);
    model.projection_weights() as f64 * layers + model.head_weights() as f64 * head
}

/// Bytes of a number of layers' matrices and of the head, as the sampler reads them on a CPU.
pub fn packed_numbers(ajet: &Ajet) -> (f64, f64) {
    match (ajet.rollout.quantization, ajet.engine.dtype) {
        (Quantization::Int8, _) => (INT8, F32),
        (Quantization::None, Dtype::Bf16) => (BF16, BF16),
        (Quantization::None, _) => (F32, F32),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{device, shapes};
    use super::*;

    fn on(gpu: &str, ranks: usize, model: &str, change: impl FnOnce(&mut Ajet)) -> Memory {
        let machines = Machines {
            device: device::gpu(gpu).unwrap(),
            per_node: ranks,
            nodes: 1,
            network: 12.5e9,
        };
        let mut ajet = Ajet::default();
        ajet.data.max_prompt_length = 1000;
        ajet.data.max_response_length = 3000;
        change(&mut ajet);
        Memory::new(&shapes::known(model).unwrap().unwrap(), &ajet, &machines)
    }

    /// Parameters of Qwen2.5-0.5B, and of its embedding, its largest matrix.
    const HALF: f64 = 494_032_768.0;
    const EMBEDDING: f64 = 151_936.0 * 896.0;

    #[test]
    fn full_training_takes_18_bytes_of_a_parameter_and_2_for_the_reference() {
        let m = on("h100", 1, "qwen2.5-0.5b", |ajet| ajet.trainer_common.use_kl_loss = true);
        assert_eq!((m.weights, m.reference), (2.0 * HALF, 2.0 * HALF));
        assert_eq!((m.optimizer, m.gradients, m.packed), (12.0 * HALF, 4.0 * HALF, 0.0));
        // 24 layers with 2 heads of 64, keys and values in bf16.
        assert_eq!(m.cached_token, 12_288.0);
        assert_eq!(m.micro_batch, 16_384);
        assert!(m.fits());
    }

    #[test]
    fn ranks_share_the_optimizer_and_nothing_else() {
        let [one, two, eight] = [1, 2, 8].map(|ranks| on("h100", ranks, "qwen2.5-0.5b", |_| ()));
        assert!((two.optimizer / one.optimizer - 0.5).abs() < 0.01);
        // One rank has the embedding alone, which is more than an eighth.
        assert_eq!(eight.optimizer, 12.0 * EMBEDDING);
        assert_eq!((eight.weights, eight.gradients), (one.weights, one.gradients));
        assert_eq!(eight.optimizer_alone, one.optimizer);
    }

    #[test]
    fn lora_trains_adapters_in_f32_and_needs_no_reference() {
        let m = on("h100", 1, "qwen2.5-7b", |ajet| {
            ajet.lora.lora_rank = 16;
            ajet.trainer_common.use_kl_loss = true;
        });
        // 16 · (in + out) of q, k, v, o, gate, up and down in each of 28 layers.
        let a_layer = 2 * 7168 + 2 * 4096 + 3 * 22_528;
        let adapters = (16 * 28 * a_layer) as f64;
        assert_eq!(
            (m.optimizer, m.gradients, m.reference),
            (8.0 * adapters, 4.0 * adapters, 0.0)
        );
        assert_eq!(m.weights, 2.0 * 7_615_616_512.0 + 4.0 * adapters);
    }

    #[test]
    fn a_micro_batch_holds_the_longest_row_and_no_more_than_there_is() {
        let m = on("h100", 1, "qwen2.5-0.5b", |ajet| ajet.data.max_response_length = 30_000);
        assert_eq!(m.micro_batch, 31_000);
        let few = |ranks| {
            let m = on("h100", ranks, "qwen2.5-0.5b", |ajet| {
                (ajet.data.train_batch_size, ajet.rollout.num_repeat) = (1, 3);
            });
            m.micro_batch
        };
        assert_eq!((few(1), few(2), few(3), few(4)), (10_000, 5_000, 4_000, 4_000));
    }

    #[test]
    fn caches_get_what_is_left_of_the_share() {
        let m = on("h100", 1, "qwen2.5-0.5b", |ajet| {
            ajet.rollout.gpu_memory_utilization = 0.5
        });
        assert_eq!(m.cache_room, 40e9 - m.resident());
        assert_eq!(m.sequences(4000), (m.cache_room / (4000.0 * 12_288.0)) as usize);
    }

    #[test]
    fn what_does_not_fit_is_known_by_how_much() {
        let m = on("h100", 8, "qwen2.5-7b", |_| ());
        assert!(!on("a10", 8, "qwen2.5-7b", |_| ()).fits());
        assert_eq!(m.update_lacks(), m.update() - 76e9);
        let large = on("h100", 8, "llama-3.1-70b", |ajet| ajet.lora.lora_rank = 8);
        assert!(large.cache_lacks() > 0.0 && !large.fits());
    }

    #[test]
    fn a_cpu_has_a_packed_copy() {
        let mut machines = Machines {
            device: device::gpu("h100").unwrap(),
            per_node: 1,
            nodes: 1,
            network: 1e9,
        };
        machines.device.is_cpu = true;
        let model = shapes::known("smollm2-135m").unwrap().unwrap();
        let mut ajet = Ajet::default();
        let m = Memory::new(&model, &ajet, &machines);
        let parameters = 134_515_008.0;
        assert_eq!((m.weights, m.optimizer), (4.0 * parameters, 8.0 * parameters));
        // All but the norms.
        assert_eq!(m.packed, 4.0 * (parameters - 61.0 * 576.0));
        ajet.rollout.quantization = Quantization::Int8;
        let head = 49_152.0 * 576.0;
        let packed = Memory::new(&model, &ajet, &machines).packed;
        assert_eq!(packed, (parameters - 61.0 * 576.0 - head) + 4.0 * head);
    }
}
