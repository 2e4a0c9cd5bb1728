//! Worker of an engine that only samples: weights and a scheduler, without a trainer's memory.

use std::path::Path;

use super::events::EventHub;
use super::model_thread::{SamplingLoad, UpdateOutcome, Worker};
use super::session::TextModel;
use super::worker::ModelInfo;
use crate::config::schema::Ajet;
use crate::inference::{SampleRequest, Scheduler};
use crate::model::load::{load, load_quantized};
use crate::model::lora::Lora;
use crate::model::{Trainable, Weights, compute_pool, device, peft};
use crate::train::TrainEpisode;

/// Weights and scheduler.
pub struct SamplingWorker {
    weights: Weights,
    scheduler: Scheduler,
}

/// Reason why such an engine neither trains nor writes checkpoints.
const NO_TRAINER: &str = "this engine only samples; hint: `ajet-swarm start` trains";

impl SamplingWorker {
    /// Loads the configured model, and the LoRA adapter in a directory onto it. Errors are sentences.
    pub fn build(config: &Ajet, adapter: Option<&Path>, hub: &EventHub) -> Result<(Self, ModelInfo), String> {
        let device = device::choose(&config.engine.device).map_err(sentence)?;
        let dtype = device::dtype(config.engine.dtype, &device);
        let mut progress = |share: f32, what: &str| hub.detail(format!("{what} {:.0}%", share * 100.0));
        let model = match config.model.keep_quantized {
            true => load_quantized(&config.model.path, &device, &mut progress),
            false => load(&config.model.path, &device, dtype, &mut progress),
        }
        .map_err(sentence)?;
        model.warnings.iter().for_each(|warning| hub.warn(warning.clone()));
        let text = TextModel::new(&model);
        for warning in text.trial().map_err(sentence)?.warnings {
            hub.warn(warning);
        }
        let trainable = match adapter {
            Some(dir) => Trainable::Lora(peft::read_config(dir).map_err(sentence)?),
            None => Trainable::Nothing,
        };
        let weights = Weights::with_quantized(model.config, model.tensors, model.quantized, &trainable);
        let weights = weights.map_err(sentence)?;
        if let Some(kept) = weights.describe_quantized() {
            hub.info(kept);
        }
        if let (Some(dir), Some(lora)) = (adapter, &weights.lora) {
            peft::read_adapter(dir, lora).map_err(sentence)?;
        }
        let pool = compute_pool(&config.engine).map_err(sentence)?;
        if device.is_cpu() {
            hub.info(compute_pool::describe(&pool, &config.engine));
        }
        let scheduler = Scheduler::on_pool(&weights, config, pool.clone()).map_err(sentence)?;
        let info = ModelInfo {
            text,
            device: device::described(&device, &pool),
            parameters: weights.parameter_count() as u64,
            trainable_parameters: 0,
            max_position_embeddings: weights.config.max_position_embeddings,
        };
        Ok((Self { weights, scheduler }, info))
    }
}

impl Worker for SamplingWorker {
    fn submit(&mut self, request: SampleRequest) {
        self.scheduler.submit(request);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn step(&mut self) -> Result<usize, String> {
        Ok(self.scheduler.step().map_err(sentence)?.sampled)
    }

    fn update(&mut self, _global_step: u64, _episodes: &[TrainEpisode]) -> Result<UpdateOutcome, String> {
        Err(NO_TRAINER.into())
    }

    fn save(&mut self, _dir: &Path) -> Result<(), String> {
        Err(NO_TRAINER.into())
    }

    fn load_adapter(&mut self, dir: &Path) -> Result<(), String> {
        let config = peft::read_config(dir).map_err(sentence)?;
        let lora = Lora::new(&config, &self.weights.params).map_err(sentence)?;
        peft::read_adapter(dir, &lora).map_err(sentence)?;
        self.scheduler.cancel_all();
        self.weights.lora = Some(lora);
        self.weights.version += 1;
        self.scheduler.refresh(&self.weights).map_err(sentence)
    }

    fn weight_version(&self) -> u64 {
        self.weights.version
    }

    fn load(&self) -> SamplingLoad {
        SamplingLoad::of(&self.scheduler)
    }
}

fn sentence(error: impl std::fmt::Display) -> String {
    error.to_string()
}
