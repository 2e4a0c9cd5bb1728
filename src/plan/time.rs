//! Where the time of a step goes. Agents' own work is not in it, nor what the server does.

use serde::Serialize;

use super::memory::packed_numbers;
use super::{Lengths, Machines, Memory};
use crate::config::Ajet;
use crate::config::schema::Dtype;
use crate::model::{ModelConfig, PassTokens};

/// Bytes of a gradient, and of a weight where ranks send it.
const F32: f64 = 4.0;
/// Kernels that sampling on a GPU starts for each layer and token: one for each of candle's operations.
const KERNELS: f64 = 40.0;
/// How often the keys and values of a batch are moved for a token on a GPU: gathered from their blocks and written, then
/// read.
const GPU_CACHE_MOVES: f64 = 3.0;
/// Share of the shorter one of reading and computing that is not hidden behind the longer one while answers are sampled:
/// measured on a CPU with 1, 8 and 16 requests (docs/performance.md), assumed on GPUs.
const NOT_HIDDEN: f64 = 0.7;
/// Bytes per second between ranks of a machine, through its memory; assumed.
const IN_MEMORY: f64 = 10e9;

/// What a phase waits for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// Reading weights and caches from memory.
    Bandwidth,
    /// Matrix products.
    Arithmetic,
    /// Starting kernels.
    Launches,
    /// Links between ranks.
    Network,
    /// Links between devices and their hosts.
    HostLink,
}

impl Binding {
    /// Returns words for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Bandwidth => "memory bandwidth",
            Self::Arithmetic => "arithmetic",
            Self::Launches => "starting kernels",
            Self::Network => "links between ranks",
            Self::HostLink => "link to the host",
        }
    }
}

/// Seconds of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// Seconds of all parts, one after the other.
    pub seconds: f64,
    /// The part that takes most of them.
    pub binding: Binding,
}

impl Phase {
    /// Adds up parts, at least one of them.
    fn of<const N: usize>(parts: [(f64, Binding); N]) -> Self {
        let longest = parts.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        Self {
            seconds: parts.iter().map(|part| part.0).sum(),
            binding: longest.map_or(Binding::Arithmetic, |part| part.1),
        }
    }
}

/// Time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Time {
    /// Sequences that a rank samples at the same time.
    pub sequences: usize,
    /// Reading prompts.
    pub prompts: Phase,
    /// Sampling answers.
    pub answers: Phase,
    /// Forward and backward passes, and log-probabilities before them.
    pub passes: Phase,
    /// Steps of the optimizer.
    pub optimizer: Phase,
    /// Sums of gradients, and new weights to all ranks.
    pub exchange: Phase,
}

impl Time {
    /// Estimates a step of full batches.
    pub fn new(model: &ModelConfig, ajet: &Ajet, machines: &Machines, lengths: Lengths, memory: &Memory) -> Self {
        let work = Work {
            model,
            ajet,
            machines,
            lengths,
            memory,
        };
        let sequences = work.sequences();
        Self {
            sequences,
            prompts: work.prompts(),
            answers: work.answers(sequences),
            passes: work.passes(),
            optimizer: work.optimizer(),
            exchange: work.exchange(),
        }
    }

    /// Returns the phases with their names.
    pub fn phases(&self) -> [(&'static str, Phase); 5] {
        [
            ("prompts", self.prompts),
            ("answers", self.answers),
            ("forward and backward", self.passes),
            ("optimizer", self.optimizer),
            ("exchange between ranks", self.exchange),
        ]
    }

    /// Returns the seconds of a step.
    pub fn seconds(&self) -> f64 {
        self.phases().iter().map(|(_, phase)| phase.seconds).sum()
    }
}

/// What a rank has to do.
struct Work<'a> {
    model: &'a ModelConfig,
    ajet: &'a Ajet,
    machines: &'a Machines,
    lengths: Lengths,
    memory: &'a Memory,
}

impl Work<'_> {
    fn tasks(&self) -> f64 {
        self.ajet.data.train_batch_size as f64
    }

    fn repeats(&self) -> f64 {
        self.ajet.rollout.num_repeat as f64
    }

    fn ranks(&self) -> f64 {
        self.machines.ranks() as f64
    }

    fn prompt(&self) -> f64 {
        self.lengths.prompt as f64
    }

    fn response(&self) -> f64 {
        self.lengths.response as f64
    }

    /// Episodes of the rank with the most.
    fn episodes(&self) -> usize {
        self.ajet.episodes_per_batch().div_ceil(self.machines.ranks())
    }

    /// Sequences at the same time: those of a rank's episodes that run, that the sampler takes, and that the cache holds.
    fn sequences(&self) -> usize {
        let running = self.ajet.max_claimed_episodes().div_ceil(self.machines.ranks());
        let held = self.memory.sequences(self.lengths.prompt + self.lengths.response);
        self.episodes()
            .min(running)
            .min(self.ajet.rollout.max_num_seqs)
            .min(held)
            .max(1)
    }

    /// A task's prompt is read once by each rank that has some of its episodes.
    fn prompts(&self) -> Phase {
        let read = self.tasks() * self.repeats().min(self.ranks()) / self.ranks();
        let tokens = PassTokens {
            computed: read * self.prompt(),
            predicting: read,
            seen: self.prompt() / 2.0,
        };
        let device = &self.machines.device;
        let speed = device.flops * device.reached().prompts;
        Phase::of([(self.model.forward_operations(tokens) / speed, Binding::Arithmetic)])
    }

    /// A step of the sampler reads all weights and the caches of all sequences, and computes a token of each.
    fn answers(&self, sequences: usize) -> Phase {
        let device = &self.machines.device;
        let reached = device.reached();
        let (layers, head) = match device.is_cpu {
            true => packed_numbers(self.ajet),
            false if self.ajet.engine.dtype == Dtype::F32 => (F32, F32),
            false => (2.0, 2.0),
        };
        let weights = self.model.projection_weights() as f64 * layers + self.model.head_weights() as f64 * head;
        let batch = sequences as f64;
        let seen = self.prompt() + self.response() / 2.0;
        let moves = if device.is_cpu { 1.0 } else { GPU_CACHE_MOVES };
        let cached = batch * seen * self.memory.cached_token * moves;
        let tokens = PassTokens {
            computed: batch,
            predicting: batch,
            seen,
        };
        let steps = self.response() * (self.episodes() as f64 / batch).max(1.0);
        let reading = (weights + cached) / (device.bandwidth * reached.bandwidth);
        let computing = self.model.forward_operations(tokens) / (device.flops * reached.decoding);
        let (reading, computing) = match reading > computing {
            true => (reading, NOT_HIDDEN * computing),
            false => (NOT_HIDDEN * reading, computing),
        };
        let launching = self.model.layers.len() as f64 * KERNELS * reached.launch;
        Phase::of([
            (steps * reading, Binding::Bandwidth),
            (steps * computing, Binding::Arithmetic),
            (steps * launching, Binding::Launches),
        ])
    }

    /// Tokens of the batch that one rank computes: each prompt once, where prefixes are shared.
    fn trained_tokens(&self) -> PassTokens {
        let episodes = self.tasks() * self.repeats();
        let prompts = if self.ajet.trainer_common.share_prefixes {
            self.tasks()
        } else {
            episodes
        };
        let (prompt, response) = (self.prompt(), self.response());
        let computed = prompts * prompt + episodes * response;
        let seen = prompts * prompt * prompt / 2.0 + episodes * response * (prompt + response / 2.0);
        PassTokens {
            computed: computed / self.ranks(),
            predicting: episodes * response / self.ranks(),
            seen: seen / computed.max(1.0),
        }
    }

    /// Steps of the optimizer.
    fn optimizer_steps(&self) -> f64 {
        let trainer = &self.ajet.trainer_common;
        (trainer.ppo_epochs.max(1) * trainer.mini_batch_num.max(1)) as f64
    }

    fn passes(&self) -> Phase {
        let trainer = &self.ajet.trainer_common;
        let tokens = self.trained_tokens();
        let forward = self.model.forward_operations(tokens);
        let mut epoch = self.model.training_operations(tokens, !self.ajet.lora.is_on());
        if self.memory.recompute {
            epoch += forward;
        }
        let in_reward = trainer.use_kl_in_reward && trainer.kl_loss_coef != 0.0;
        let reference = in_reward || (trainer.use_kl_loss && trainer.kl_loss_coef != 0.0);
        let before = self.optimizer_steps() > 1.0 || in_reward;
        let scoring = f64::from(u8::from(reference) + u8::from(before)) * forward;
        let device = &self.machines.device;
        let operations = trainer.ppo_epochs.max(1) as f64 * epoch + scoring;
        Phase::of([(
            operations / (device.flops * device.reached().training),
            Binding::Arithmetic,
        )])
    }

    /// Reads gradient, moments and f32 weight of each parameter that the rank owns, and writes all but the gradient.
    fn optimizer(&self) -> Phase {
        let device = &self.machines.device;
        let narrow = self.memory.optimizer_alone > 2.0 * self.memory.gradients;
        // The moments are 8 bytes of the state of a parameter, which is 12 where there is a second, f32 weight.
        let owned = self.memory.optimizer / if narrow { 12.0 } else { 8.0 };
        let bytes = F32 + 2.0 * (2.0 * F32) + 2.0 * F32 + if narrow { 2.0 } else { 0.0 };
        Phase::of([(
            self.optimizer_steps() * owned * bytes / (device.bandwidth * device.reached().bandwidth),
            Binding::Bandwidth,
        )])
    }

    /// One parameter after the other goes from all ranks to its owner and, new, from there to all in a tree, through the
    /// hosts' memory.
    fn exchange(&self) -> Phase {
        let (ranks, per_node) = (self.ranks(), self.machines.per_node as f64);
        let bytes = self.memory.gradients * self.optimizer_steps();
        let away = ranks - per_node;
        let alone = self.machines.ranks() == 1;
        let in_memory = ((per_node - 1.0) + per_node.log2().ceil()) * bytes / IN_MEMORY;
        let between = match self.machines.nodes {
            1 => 0.0,
            nodes => (away + (nodes as f64).log2().ceil()) * bytes / self.machines.network,
        };
        // Down and up again for the gradients, and for the weights.
        let copies = match alone || self.machines.device.is_cpu {
            true => 0.0,
            false => 4.0 * bytes / self.machines.device.host_link,
        };
        Phase::of([(in_memory + between, Binding::Network), (copies, Binding::HostLink)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, device, shapes};
    use super::*;
    use crate::config::schema::Recompute;

    /// Two cores as in docs/performance.md: 28.5 GB/s and 200 GFLOP/s.
    fn cpu() -> Device {
        Device {
            name: "cpu".into(),
            is_cpu: true,
            memory: 20e9,
            bandwidth: 28.5e9,
            flops: 200e9,
            host_link: 0.0,
            source: "measured".into(),
        }
    }

    fn machines(device: Device, per_node: usize, nodes: usize) -> Machines {
        Machines {
            device,
            per_node,
            nodes,
            network: 12.5e9,
        }
    }

    fn time(machines: &Machines, model: &str, lengths: (usize, usize), change: impl FnOnce(&mut Ajet)) -> Time {
        let model = shapes::known(model).unwrap().unwrap();
        let mut ajet = Ajet::default();
        (ajet.data.max_prompt_length, ajet.data.max_response_length) = lengths;
        ajet.trainer_common.use_kl_loss = false;
        change(&mut ajet);
        let memory = Memory::new(&model, &ajet, machines);
        let lengths = Lengths {
            prompt: lengths.0,
            response: lengths.1,
        };
        Time::new(&model, &ajet, machines, lengths, &memory)
    }

    fn batch(ajet: &mut Ajet, tasks: usize, repeats: usize) {
        ajet.data.train_batch_size = tasks;
        ajet.rollout.num_repeat = repeats;
    }

    // docs/performance.md: 50.0, 291.6 and 436.7 tokens a second.
    #[test]
    fn sampling_on_a_cpu_is_predicted_within_5_percent() {
        for (requests, measured) in [(1, 50.0), (8, 291.6), (16, 436.7)] {
            let found = time(&machines(cpu(), 1, 1), "smollm2-135m", (64, 64), |ajet| {
                batch(ajet, 1, requests)
            });
            assert_eq!(found.sequences, requests);
            let speed = (requests * 64) as f64 / found.answers.seconds;
            let error = speed / measured - 1.0;
            assert!(error.abs() < 0.05, "{requests}: {speed}");
        }
    }

    // docs/performance.md: 8 × 256 tokens take 14.42 s, and 17.5 to 19.6 s in another round.
    #[test]
    fn an_update_on_a_cpu_is_predicted_within_20_percent() {
        let found = time(&machines(cpu(), 1, 1), "smollm2-135m", (1, 255), |ajet| {
            batch(ajet, 8, 1)
        });
        let error = found.passes.seconds / 14.42 - 1.0;
        assert!(error.abs() < 0.2, "{}", found.passes.seconds);
        assert!(
            (0.05..0.25).contains(&found.optimizer.seconds),
            "{}",
            found.optimizer.seconds
        );
    }

    #[test]
    fn the_weights_of_a_batch_of_one_bind_by_bandwidth() {
        let found = time(&machines(cpu(), 1, 1), "smollm2-135m", (64, 64), |ajet| {
            batch(ajet, 1, 1)
        });
        assert_eq!(found.answers.binding, Binding::Bandwidth);
        let found = time(&machines(cpu(), 1, 1), "smollm2-135m", (64, 64), |ajet| {
            batch(ajet, 4, 16)
        });
        assert_eq!(found.answers.binding, Binding::Arithmetic);
    }

    #[test]
    fn exchange_is_counted_by_hand() {
        let h100 = device::gpu("h100").unwrap();
        let gradients = 4.0 * 494_032_768.0;
        let of = |per_node, nodes| {
            time(
                &machines(h100.clone(), per_node, nodes),
                "qwen2.5-0.5b",
                (100, 100),
                |_| (),
            )
            .exchange
        };
        assert_eq!(of(1, 1).seconds, 0.0);
        let copies = 4.0 * gradients / 64e9;
        // One other rank sends, one receives.
        assert_eq!(of(2, 1).seconds, 2.0 * gradients / 10e9 + copies);
        // Seven send, three levels of a tree receive.
        assert_eq!(of(8, 1).seconds, 10.0 * gradients / 10e9 + copies);
        let two_nodes = 10.0 * gradients / 10e9 + (8.0 + 1.0) * gradients / 12.5e9 + copies;
        assert_eq!(of(8, 2).seconds, two_nodes);
        assert_eq!(of(8, 2).binding, Binding::Network);
    }

    #[test]
    fn ranks_share_episodes_and_rows() {
        let h100 = device::gpu("h100").unwrap();
        let of = |ranks| {
            time(&machines(h100.clone(), ranks, 1), "qwen2.5-0.5b", (100, 100), |ajet| {
                ajet.trainer_common.recompute = Recompute::Off;
            })
        };
        let (one, four) = (of(1), of(4));
        assert!((one.passes.seconds / four.passes.seconds - 4.0).abs() < 1e-9);
        // Four repeats on four ranks: each reads every prompt.
        assert_eq!(one.prompts, four.prompts);
        // 128 episodes, of which a rank alone samples 64 at the same time.
        assert_eq!((one.sequences, four.sequences), (64, 32));
    }

    #[test]
    fn scoring_and_recomputation_are_forward_passes() {
        let h100 = machines(device::gpu("h100").unwrap(), 1, 1);
        let of = |change: &dyn Fn(&mut Ajet)| time(&h100, "qwen2.5-0.5b", (100, 100), change).passes.seconds;
        let plain = of(&|ajet| ajet.trainer_common.recompute = Recompute::Off);
        let recomputed = of(&|ajet| ajet.trainer_common.recompute = Recompute::On);
        let scored = of(&|ajet| {
            ajet.trainer_common.recompute = Recompute::Off;
            ajet.trainer_common.use_kl_loss = true;
        });
        assert!((recomputed / plain - 4.0 / 3.0).abs() < 1e-9);
        assert!((scored - recomputed).abs() < 1e-9);
    }
}
