//! Values that follow from others where they are not set.

use super::schema::{
    Ajet, Dtype, ImportanceMode, ImportanceSampling, Lora, PolicyLoss, Quantization, TargetModules, TrainerCommon,
};

/// Value of `keep_best` that keeps no best checkpoint.
const KEEP_NONE: &str = "none";

/// Value of `target_modules` for all projections that a model has.
pub const ALL_LINEAR: &str = "all-linear";

/// Projections of the supported models, in a layer's order; the fused ones stand for those that they replace, and the
/// last ones for gate, up and down of Mixtral's experts.
pub const LINEAR_PROJECTIONS: [&str; 12] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
    "w1",
    "w3",
    "w2",
];

/// Default number of updates between checkpoints: a killed engine repeats at most this many.
const RESUME_POINTS_EVERY: u64 = 50;

impl Ajet {
    /// Returns the maximum number of tokens of prompt and answer together: as set, or the longest prompt and response.
    pub fn max_model_len(&self) -> usize {
        self.rollout.max_model_len.unwrap_or_else(|| self.max_row_len())
    }

    /// Returns the maximum number of tokens of a training row: the longest prompt and response.
    pub fn max_row_len(&self) -> usize {
        self.data
            .max_prompt_length
            .saturating_add(self.data.max_response_length)
    }

    /// Returns the maximum number of tokens sampled in one LLM call: as set, or 4096, but never more than the response.
    pub fn max_response_length_in_one_turn(&self) -> usize {
        let set = self.rollout.max_response_length_in_one_turn;
        set.unwrap_or_else(|| self.data.max_response_length.min(4096))
    }

    /// The correction of differences between sampler and trainer, with its mode decided.
    pub fn importance_sampling(&self) -> ImportanceSampling {
        let fewer_bits = self.rollout.quantization != Quantization::None || self.engine.dtype == Dtype::Bf16;
        let asked = self.trainer_common.importance_sampling.clone();
        let mode = match asked.mode {
            ImportanceMode::Auto if fewer_bits || !self.rollout.endpoints.is_empty() => ImportanceMode::Token,
            ImportanceMode::Auto => ImportanceMode::Off,
            mode => mode,
        };
        ImportanceSampling { mode, ..asked }
    }

    /// Episodes of a full batch, B·N.
    pub fn episodes_per_batch(&self) -> usize {
        self.data.train_batch_size.saturating_mul(self.rollout.num_repeat)
    }

    /// Returns the configured number of ranks: one for each GPU of all machines, at least 1.
    pub fn configured_ranks(&self) -> usize {
        let trainer = &self.trainer_common;
        trainer.n_gpus_per_node.max(1).saturating_mul(trainer.nnodes)
    }

    /// Returns the maximum number of episodes claimed at once.
    pub fn max_claimed_episodes(&self) -> usize {
        self.episodes_per_batch().min(self.rollout.max_env_worker)
    }
}

impl TrainerCommon {
    /// Clip range below 1; GSPO clips the ratio of whole rows and so much closer (arXiv 2507.18071).
    pub fn clip_ratio_low(&self) -> f64 {
        let usual = if self.policy_loss == PolicyLoss::Gspo {
            3e-4
        } else {
            0.2
        };
        self.clip_ratio_low.unwrap_or(usual)
    }

    /// Clip range above 1.
    pub fn clip_ratio_high(&self) -> f64 {
        let usual = if self.policy_loss == PolicyLoss::Gspo {
            4e-4
        } else {
            0.2
        };
        self.clip_ratio_high.unwrap_or(usual)
    }

    /// Updates between checkpoints.
    pub fn save_every(&self) -> u64 {
        u64::try_from(self.save_freq)
            .ok()
            .filter(|every| *every > 0)
            .unwrap_or(RESUME_POINTS_EVERY)
    }

    /// Metric by which the best checkpoint is kept, if one is.
    pub fn best_by(&self) -> Option<&str> {
        Some(self.keep_best.as_str()).filter(|metric| !["", KEEP_NONE].contains(metric))
    }

    /// Returns whether TensorBoard event files are written: by name, or in place of a logger that is not built in.
    pub fn logs_to_tensorboard(&self) -> bool {
        self.logger.iter().any(|name| name != "console")
    }

    /// Returns whether a step's metrics are logged as a line.
    pub fn logs_to_console(&self) -> bool {
        self.logger.iter().any(|name| name == "console")
    }
}

impl Lora {
    /// Returns whether an adapter is trained instead of the weights.
    pub fn is_on(&self) -> bool {
        self.lora_rank > 0
    }

    /// Returns the names of the projections that get an adapter, or [`ALL_LINEAR`].
    pub fn projections(&self) -> Vec<&str> {
        match &self.target_modules {
            TargetModules::Name(name) => vec![name],
            TargetModules::List(names) => names.iter().map(String::as_str).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampler_with_fewer_bits_is_corrected_unless_it_is_asked_not_to() {
        use ImportanceMode::{Auto, Off, Sequence, Token};
        let int8 = Quantization::Int8;
        for (quantization, dtype, asked, expected) in [
            (Quantization::None, Dtype::Auto, Auto, Off),
            (Quantization::None, Dtype::F32, Sequence, Sequence),
            (Quantization::None, Dtype::Bf16, Auto, Token),
            (int8, Dtype::Auto, Auto, Token),
            (int8, Dtype::Auto, Off, Off),
            (int8, Dtype::Auto, Sequence, Sequence),
        ] {
            let mut ajet = Ajet::default();
            ajet.rollout.quantization = quantization;
            ajet.engine.dtype = dtype;
            ajet.trainer_common.importance_sampling.mode = asked;
            let found = ajet.importance_sampling();
            assert_eq!(found.mode, expected, "{quantization:?}, {dtype:?}, {asked:?}");
            assert_eq!(found.cap, ajet.trainer_common.importance_sampling.cap);
        }
        let mut elsewhere = Ajet::default();
        elsewhere.rollout.endpoints.push("http://box2:8000".into());
        assert_eq!(elsewhere.importance_sampling().mode, Token);
    }
}
