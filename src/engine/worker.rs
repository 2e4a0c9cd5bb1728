//! Worker of the model thread: the weights, the scheduler that samples from them and the trainer that changes them.

use std::path::Path;
use std::sync::Arc;

use super::events::EventHub;
use super::model_thread::{SamplingLoad, UpdateOutcome, Worker};
use super::session::{ChatModel, TextModel};
use super::storage::checkpoint::Checkpoint;
use crate::collective::Collective;
use crate::config::schema::Ajet;
use crate::config::validate;
use crate::inference::{SampleRequest, Scheduler};
use crate::model::kernels::Pool;
use crate::model::load::{LoadedModel, ModelFiles, load, load_quantized};
use crate::model::lora::LoraConfig;
use crate::model::{ModelError, Trainable, Weights, compute_pool, device, export, peft};
use crate::protocol::checkpoint::TRAINER_DIR;
use crate::protocol::engine::DropReason;
use crate::train::{TrainEpisode, Trainer, Untrained};

/// Weights, scheduler and trainer.
pub struct ModelWorker {
    weights: Weights,
    scheduler: Scheduler,
    trainer: Trainer,
    files: ModelFiles,
    /// `ajet.model.path`.
    base: String,
    hub: Arc<EventHub>,
}

/// Information about the model for the rest of the engine.
pub struct ModelInfo {
    /// Text side of the model.
    pub text: TextModel,
    /// Device, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Number of trained parameters.
    pub trainable_parameters: u64,
    /// Maximum context length of the model.
    pub max_position_embeddings: usize,
}

impl ModelWorker {
    /// Loads the configured model and, if a checkpoint is given, its weights and trainer state, as one of the ranks of
    /// `collective`. Errors are sentences.
    pub fn build(
        collective: Arc<dyn Collective>,
        config: &Ajet,
        resume: Option<&Checkpoint>,
        hub: Arc<EventHub>,
    ) -> Result<(Self, ModelInfo), String> {
        let device = device::choose(&config.engine.device).map_err(sentence)?;
        if let Some(warning) = validate::ranks(config, device.is_cuda(), collective.size())? {
            hub.warn(warning);
        }
        let (threads, cpus) = (config.engine.threads, Pool::logical_cpus());
        if let Some(asked) = threads.filter(|asked| *asked > cpus) {
            hub.warn(format!(
                "ajet.engine.threads is {asked}, but this machine has {cpus} CPUs; using {cpus} threads"
            ));
        }
        let dtype = device::dtype(config.engine.dtype, &device);
        let mut last = String::new();
        let mut progress = |share: f32, what: &str| {
            let line = format!("{what} {:.0}%", share * 100.0);
            if line != last {
                hub.detail(&line);
                last = line;
            }
        };
        let trainable = trainable(config);
        if config.model.keep_quantized && matches!(trainable, Trainable::All) {
            return Err(sentence(ModelError::QuantizedTraining)); // before minutes of loading
        }
        let base: LoadedModel = match config.model.keep_quantized {
            true => load_quantized(&config.model.path, &device, &mut progress),
            false => load(&config.model.path, &device, dtype, &mut progress),
        }
        .map_err(sentence)?;
        base.warnings.iter().for_each(|warning| hub.warn(warning.clone()));
        let text = TextModel::new(&base);
        for warning in text.trial().map_err(sentence)?.warnings {
            hub.warn(warning);
        }
        let (weights, reference) = match resume {
            // A full checkpoint is a complete model; the original is only needed as the reference of the KL divergence.
            Some(checkpoint) if !matches!(trainable, Trainable::Lora(_)) => {
                let dir = checkpoint.dir.to_string_lossy();
                let trained = load(&dir, &device, dtype, &mut progress).map_err(sentence)?;
                let weights = Weights::new(trained.config, trained.tensors, &trainable).map_err(sentence)?;
                let needed = Trainer::needs_reference(&weights, &config.trainer_common).map_err(sentence)?;
                let reference = needed.then(|| Weights::new(base.config, base.tensors, &Trainable::Nothing));
                (weights, reference.transpose().map_err(sentence)?)
            }
            _ => (
                Weights::with_quantized(base.config, base.tensors, base.quantized, &trainable).map_err(sentence)?,
                None,
            ),
        };
        if let Some(kept) = weights.describe_quantized() {
            hub.info(kept);
        }
        let reference = match reference {
            None if Trainer::needs_reference(&weights, &config.trainer_common).map_err(sentence)? => {
                Some(weights.frozen_copy().map_err(sentence)?)
            }
            reference => reference,
        };
        let trainer = Trainer::among(collective, &weights, config, reference).map_err(sentence)?;
        let trainer = trainer.with_grammars(text.grammars().clone());
        if device.is_cpu() {
            hub.info(compute_pool::describe(trainer.pool(), &config.engine));
        }
        // After the trainer, whose memory is not available for caches.
        let scheduler = Scheduler::on_pool(&weights, config, trainer.pool().clone()).map_err(sentence)?;
        let mut worker = Self {
            trainer,
            scheduler,
            weights,
            files: base.files,
            base: config.model.path.clone(),
            hub,
        };
        if let Some(checkpoint) = resume {
            worker.resume(checkpoint)?;
        }
        let info = ModelInfo {
            text,
            device: device::described(&device, worker.trainer.pool()),
            parameters: worker.weights.parameter_count() as u64,
            trainable_parameters: worker.weights.trainable_count() as u64,
            max_position_embeddings: worker.weights.config.max_position_embeddings,
        };
        Ok((worker, info))
    }

    /// Returns a message if an update has left a non-finite weight: such weights cannot be sampled from.
    fn not_finite(&self) -> Result<Option<String>, String> {
        let name = self.weights.non_finite().map_err(sentence)?;
        Ok(name.map(|name| {
            format!(
                "the weights of {} are not finite (NaN or infinity in {name}); hint: stop the engine and resume from an \
                 earlier checkpoint with a lower ajet.trainer_common.optim.lr",
                self.base
            )
        }))
    }

    fn resume(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        if let Some(lora) = &self.weights.lora {
            peft::read_adapter(&checkpoint.dir, lora).map_err(sentence)?;
            self.scheduler.refresh(&self.weights).map_err(sentence)?;
        }
        self.trainer.load_state(&checkpoint.trainer_dir()).map_err(sentence)
    }
}

impl Worker for ModelWorker {
    fn submit(&mut self, request: SampleRequest) {
        self.scheduler.submit(request);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn step(&mut self) -> Result<usize, String> {
        Ok(self.scheduler.step().map_err(sentence)?.sampled)
    }

    fn update(&mut self, global_step: u64, episodes: &[TrainEpisode]) -> Result<UpdateOutcome, String> {
        self.scheduler.cancel_all();
        self.scheduler.release_caches();
        let hub = &self.hub;
        let mut progress = |what: &str| hub.detail(format!("updating the weights of step {global_step}: {what}"));
        let report = self
            .trainer
            .update(&mut self.weights, episodes, &mut progress)
            .map_err(sentence)?;
        self.scheduler.refresh(&self.weights).map_err(sentence)?;
        Ok(UpdateOutcome {
            metrics: report.metrics,
            dropped: report.dropped.into_iter().map(|(id, why)| (id, why.into())).collect(),
            advantages: report.advantages,
            warnings: report.skipped_steps,
            trouble: self.not_finite()?,
        })
    }

    fn save(&mut self, dir: &Path) -> Result<(), String> {
        // An earlier checkpoint is worth more than one with non-finite weights.
        if let Some(why) = self.not_finite()? {
            return Err(why);
        }
        // Before any file is written, since all ranks take part, also where a disk is full.
        let state = self.trainer.state().map_err(sentence)?;
        let Some(state) = state else { return Ok(()) };
        match &self.weights.lora {
            Some(lora) => {
                peft::write_adapter(dir, lora, &self.base).map_err(sentence)?;
                export::write_tokenizer(dir, &self.files).map_err(sentence)?;
            }
            None => {
                let values = self.weights.params.iter();
                let values = values.map(|(name, param)| Ok((name.clone(), param.value()?)));
                let tensors = values.collect::<Result<Vec<_>, ModelError>>().map_err(sentence)?;
                export::write_directory(dir, &self.files, tensors, self.weights.dtype()).map_err(sentence)?;
            }
        }
        state.write(&dir.join(TRAINER_DIR)).map_err(sentence)
    }

    fn write_adapter(&self, dir: &Path) -> Result<(), String> {
        match &self.weights.lora {
            Some(lora) => peft::write_adapter(dir, lora, &self.base).map_err(sentence),
            None => Err("all parameters are trained, not an adapter".into()),
        }
    }

    fn weight_version(&self) -> u64 {
        self.weights.version
    }

    fn load(&self) -> SamplingLoad {
        SamplingLoad::of(&self.scheduler)
    }
}

impl From<Untrained> for DropReason {
    fn from(why: Untrained) -> Self {
        match why {
            Untrained::NoResponse => Self::NoResponse,
            Untrained::Truncated => Self::Truncated,
            Untrained::NonFinite => Self::NonFinite,
        }
    }
}

fn trainable(config: &Ajet) -> Trainable {
    match config.lora.lora_rank {
        0 if config.trainer_common.train_router => Trainable::AllAndRouters,
        0 => Trainable::All,
        rank => Trainable::Lora(LoraConfig {
            rank,
            alpha: config.lora.lora_alpha,
            targets: config.lora.projections().into_iter().map(str::to_owned).collect(),
            seed: config.trainer_common.seed,
        }),
    }
}

fn sentence(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Alone;
    use crate::config::schema::SingletonGroup;
    use crate::engine::batch::identity::RunIdentity;
    use crate::engine::storage::checkpoint::CheckpointStore;
    use crate::model::load::gguf_writer::quantized_fixture;
    use crate::timeline::Row;

    fn episode(reward: f64) -> TrainEpisode {
        TrainEpisode {
            episode_uuid: "e".into(),
            task_id: "t".into(),
            reward,
            rows: vec![Row {
                token_ids: vec![1, 2, 3],
                loss_mask: vec![false, true, true],
                logprobs: vec![0.0, -1.0, -1.0],
                truncated: false,
                ..Row::default()
            }],
        }
    }

    // Seen with weights that an update had made infinite: every chat was a 500, and checkpoints of them were written.
    #[test]
    fn weights_that_are_not_finite_are_told_and_never_saved() {
        let mut config = Ajet::default();
        config.model.path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama").into();
        config.engine.device = "cpu".into();
        let episode = episode(1.0);
        for lora_rank in [0, 4] {
            for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                config.lora.lora_rank = lora_rank;
                let mut worker = ModelWorker::build(Arc::new(Alone), &config, None, Arc::default())
                    .unwrap()
                    .0;
                assert_eq!(worker.not_finite(), Ok(None));
                let (name, broken) = worker.weights.trainable().pop().unwrap();
                broken.set(&broken.as_tensor().affine(0.0, value).unwrap()).unwrap();
                let outcome = worker.update(1, std::slice::from_ref(&episode)).unwrap();
                let trouble = outcome.trouble.unwrap();
                assert!(
                    trouble.contains(&format!("in {name})")) && trouble.contains("hint:"),
                    "{trouble}"
                );
                let dir = tempfile::tempdir().unwrap();
                assert_eq!(worker.save(dir.path()), Err(trouble));
                assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
            }
        }
    }

    /// A configuration for a model whose matrices are in blocks.
    fn keeping(path: &Path) -> Ajet {
        let mut config = Ajet::default();
        config.model.path = path.to_string_lossy().into_owned();
        config.model.keep_quantized = true;
        config.engine.device = "cpu".into();
        config.lora.lora_rank = 2;
        config.trainer_common.optim.lr = 1e-2;
        config.trainer_common.singleton_group = SingletonGroup::Raw;
        config
    }

    fn build(config: &Ajet, resume: Option<&Checkpoint>) -> Result<ModelWorker, String> {
        Ok(ModelWorker::build(Arc::new(Alone), config, resume, Arc::default())?.0)
    }

    fn adapters(worker: &ModelWorker) -> Vec<Vec<f32>> {
        let vars = worker.weights.trainable().into_iter();
        vars.map(|(_, var)| var.flatten_all().unwrap().to_vec1().unwrap())
            .collect()
    }

    #[test]
    fn a_model_in_blocks_trains_as_dequantised_and_goes_on_from_its_checkpoint() {
        let file = quantized_fixture("qwen2");
        let config = keeping(file.path());
        let mut dequantised = config.clone();
        dequantised.model.keep_quantized = false;
        let (mut kept, mut plain) = (build(&config, None).unwrap(), build(&dequantised, None).unwrap());
        assert!(kept.weights.describe_quantized().is_some());
        for step in 1..3 {
            kept.update(step, &[episode(0.5)]).unwrap();
            plain.update(step, &[episode(0.5)]).unwrap();
        }
        for (kept, plain) in adapters(&kept).iter().zip(adapters(&plain)) {
            assert!(kept.iter().zip(plain).all(|(kept, plain)| (kept - plain).abs() < 1e-5));
        }

        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(dir.path(), 1, RunIdentity::default());
        store.stage(2, |dir| kept.save(dir)).unwrap().publish().unwrap();
        let checkpoint = Checkpoint::find(dir.path()).unwrap();
        assert_eq!(peft::base_model(&checkpoint.dir).unwrap(), config.model.path);
        let mut resumed = build(&config, Some(&checkpoint)).unwrap();
        assert_eq!(adapters(&resumed), adapters(&kept));
        resumed.update(3, &[episode(0.5)]).unwrap();
        kept.update(3, &[episode(0.5)]).unwrap();
        assert_eq!(adapters(&resumed), adapters(&kept));
    }

    #[test]
    fn a_model_in_blocks_is_refused_without_adapters() {
        let file = quantized_fixture("qwen2");
        let mut config = keeping(file.path());
        config.lora.lora_rank = 0;
        let refused = build(&config, None).err().unwrap();
        assert!(refused.contains("hint: set ajet.lora.lora_rank"), "{refused}");
    }
}
