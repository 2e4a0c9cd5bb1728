//! Weight updates: episodes in, changed weights and a report out.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use indexmap::IndexMap;

use super::advantage::estimate::{advantages, mean_std};
use super::advantage::reward::Shaping;
use super::backprop::Backprop;
use super::backprop::recompute;
use super::constraints::restrict;
use super::episode::TrainEpisode;
use super::error::{Result, TrainError};
use super::expert_load::ExpertLoad;
use super::gradients::{Gradients, clip_factor};
use super::loss::aggregate::token_weights;
use super::loss::kl::Kl;
use super::loss::objective::{Objective, RowTokens, Totals};
use super::loss::policy::PolicyLoss;
use super::mini_batch;
use super::optim::adamw::AdamW;
use super::optim::schedule::Schedule;
use super::packing::{MicroBatch, RowView, pack};
use super::prepare::{Prepared, TrainRow, prepare};
use super::ranks::{Part, Ranks};
use super::report::{Seconds, Untrained, UpdateReport, loss_metrics};
use super::settings::TrainSettings;
use crate::collective::{Alone, Collective};
use crate::config::schema::TrainerCommon;
use crate::grammar::Grammars;
use crate::model::kernels::Pool;
use crate::model::memory::retry_smaller;
use crate::model::{Transformer, Weights, compute_pool};

/// Maximum number of rows named in a message.
const NAMED_ROWS: usize = 8;

/// State that persists between updates.
pub struct Trainer {
    pub(super) settings: TrainSettings,
    pub(super) optimizer: AdamW,
    /// Number of updates so far, including earlier runs.
    pub(super) updates: u64,
    pub(super) ranks: Ranks,
    objective: Objective,
    shaping: Shaping,
    schedule: Schedule,
    /// Locked while a micro-batch is in it.
    backprop: Mutex<Backprop>,
    /// Memory of the last step's gradients, of which only that is used again.
    gradients: Mutex<Option<Gradients>>,
    /// Maximum number of tokens in a micro-batch: as configured, reduced when memory was insufficient.
    micro_batch_tokens: usize,
    /// Compute threads on a CPU.
    pool: Arc<Pool>,
    /// Reference weights of the KL divergence; `None` if it is not used, and for LoRA, where the reference is the model
    /// without its adapters.
    reference: Option<Weights>,
    /// Grammars of constrained answers.
    grammars: Option<Arc<Grammars>>,
}

impl Trainer {
    /// Creates a trainer before its first update. If the KL divergence is used and the whole model is trained, the
    /// current weights are copied as the reference.
    ///
    /// # Errors
    /// Fails for an unknown KL estimator, without trainable parameters, for an `AJET_ISA` that the machine lacks, or if
    /// out of memory.
    pub fn new(weights: &Weights, settings: impl Into<TrainSettings>) -> Result<Self> {
        let settings = settings.into();
        let reference = match Self::needs_reference(weights, &settings.common)? {
            true => Some(weights.frozen_copy()?),
            false => None,
        };
        Self::among(Arc::new(Alone), weights, settings, reference)
    }

    /// As [`new`](Self::new), for one of several ranks, and with a given reference: a resumed run measures from the start
    /// of its experiment, not from the checkpoint. The reference is ignored if
    /// [`needs_reference`](Self::needs_reference) returns `false`.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does.
    pub fn among(
        collective: Arc<dyn Collective>,
        weights: &Weights,
        settings: impl Into<TrainSettings>,
        reference: Option<Weights>,
    ) -> Result<Self> {
        let settings = settings.into();
        let (common, engine) = (&settings.common, &settings.engine);
        if weights.trainable_count() == 0 {
            return Err(TrainError::NothingToTrain);
        }
        let in_loss = common.use_kl_loss && !common.use_kl_in_reward && common.kl_loss_coef != 0.0;
        let in_reward = common.use_kl_in_reward && common.kl_loss_coef != 0.0;
        let kl = parse_kl("ajet.trainer_common.kl_loss_type", &common.kl_loss_type)?;
        let penalty = parse_kl("ajet.trainer_common.kl_penalty_type", &common.kl_penalty_type)?;
        let pool = compute_pool(engine)?;
        let backprop = Backprop::choose(weights, engine.kernels, engine.dtype, pool.clone())?;
        let ranks = Ranks::new(weights, collective);
        Ok(Self {
            optimizer: AdamW::of_part(weights, &common.optim, &pool, |name| ranks.owns(name))?,
            ranks,
            updates: 0,
            objective: Objective {
                policy: PolicyLoss::new(common),
                importance: common.importance_sampling.clone(),
                kl: in_loss.then_some((kl, common.kl_loss_coef)),
                entropy_coefficient: common.entropy_coeff,
                scale: common.loss_extra_scale_ratio,
            },
            shaping: Shaping {
                response_limit: settings.response_limit,
                overlong: common.overlong.clone(),
                kl: in_reward.then_some((penalty, common.kl_loss_coef)),
            },
            schedule: Schedule::new(&common.optim, common.total_training_steps),
            backprop: Mutex::new(backprop),
            gradients: Mutex::default(),
            micro_batch_tokens: common.ppo_max_token_len_per_gpu,
            reference: reference.filter(|_| Self::needs_reference(weights, common).unwrap_or(false)),
            pool,
            settings,
            grammars: None,
        })
    }

    /// Trains on rows that a grammar constrained, too.
    #[must_use]
    pub fn with_grammars(self, grammars: Arc<Grammars>) -> Self {
        Self {
            grammars: Some(grammars),
            ..self
        }
    }

    /// Returns whether this configuration needs a second copy of the weights as the reference of the KL divergence.
    ///
    /// # Errors
    /// Fails for an unknown KL estimator.
    pub fn needs_reference(weights: &Weights, common: &TrainerCommon) -> Result<bool> {
        parse_kl("ajet.trainer_common.kl_penalty_type", &common.kl_penalty_type)?;
        let asked = (common.use_kl_loss || common.use_kl_in_reward) && common.kl_loss_coef != 0.0;
        Ok(asked && weights.lora.is_none())
    }

    /// The threads that compute on a CPU, to be shared with the sampler, which is idle during an update.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Trains on a batch. Each optimizer step changes the weights in place and increments their version; a step with
    /// any non-finite value is skipped. The result depends on the episodes, not on their order. `progress` receives the
    /// current activity. With several ranks, all of them make the same update at the same time.
    ///
    /// # Errors
    /// Fails for a token outside the vocabulary, or if out of memory.
    pub fn update(
        &mut self,
        weights: &mut Weights,
        episodes: &[TrainEpisode],
        progress: &mut dyn FnMut(&str),
    ) -> Result<UpdateReport> {
        let mut seconds = Seconds::default();
        let mut batch = prepare(episodes, &self.settings.limits);
        // A penalty in the reward needs every row's scores before there are advantages; otherwise rows without a signal
        // need none.
        let advantages = match self.settings.common.use_kl_in_reward {
            true => {
                seconds.scoring = self.score(weights, &mut batch, |_| true, progress)?;
                self.set_advantages(&mut batch)
            }
            false => {
                let advantages = self.set_advantages(&mut batch);
                seconds.scoring = self.score(weights, &mut batch, |row| self.has_signal(row), progress)?;
                advantages
            }
        };

        let lr = self.schedule.learning_rate(self.updates);
        let mut run = Run {
            seconds,
            advantages,
            ..Run::default()
        };
        let (epochs, parts, seed) = {
            let common = &self.settings.common;
            (common.ppo_epochs.max(1), common.mini_batch_num.max(1), common.seed)
        };
        for epoch in 0..epochs {
            let pass = self.updates * epochs as u64 + epoch as u64;
            for (number, rows) in mini_batch::split(&mut batch, parts, seed, pass).into_iter().enumerate() {
                self.set_weights(&mut batch, rows.clone());
                let mini_batch = MiniBatch {
                    name: format!("epoch {}, mini-batch {}", epoch + 1, number + 1),
                    rows: &batch.rows[rows],
                };
                self.step(weights, &mini_batch, lr, &mut run, progress)?;
            }
        }
        self.updates += 1;
        Ok(self.report(batch, run, lr))
    }

    /// Returns whether a row has a gradient: without an advantage, only a KL divergence or an entropy in the loss moves
    /// the weights.
    fn has_signal(&self, row: &TrainRow) -> bool {
        row.advantage != 0.0 || self.objective.kl.is_some() || self.objective.entropy_coefficient != 0.0
    }

    /// Computes logπ_old and logπ_ref of the wanted rows if they are needed before the first step. Returns the seconds
    /// that it took.
    fn score(
        &self,
        weights: &Weights,
        batch: &mut Prepared,
        wanted: impl Fn(&TrainRow) -> bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<f64> {
        let started = Instant::now();
        let common = &self.settings.common;
        if common.ppo_epochs.max(1) * common.mini_batch_num.max(1) > 1 || common.use_kl_in_reward {
            progress("computing log-probabilities before the first step");
            let scores = self.log_probs(Transformer::new(weights), &batch.rows, &wanted)?;
            let rows = batch.rows.iter_mut().zip(scores);
            rows.for_each(|(row, scores)| row.old = scores);
        }
        if self.objective.kl.is_some() || (common.use_kl_in_reward && common.kl_loss_coef != 0.0) {
            progress("computing log-probabilities of the reference model");
            let reference = self.reference.as_ref().unwrap_or(weights);
            let model = Transformer::new(reference).without_adapters();
            let scores = self.log_probs(model, &batch.rows, &wanted)?;
            let rows = batch.rows.iter_mut().zip(scores);
            rows.for_each(|(row, scores)| row.reference = scores);
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Returns the log-probabilities of the wanted rows' targets; of the other rows, none.
    fn log_probs(
        &self,
        model: Transformer,
        rows: &[TrainRow],
        wanted: impl Fn(&TrainRow) -> bool,
    ) -> Result<Vec<Vec<f32>>> {
        let compute = |tokens, scores: &mut Vec<Vec<f32>>| {
            for mut micro in self.ranks.share(tokens, |tokens| self.pack(rows, tokens, &wanted)) {
                restrict(&mut micro, rows, self.grammars.as_deref())?;
                let found = self.backprop().log_probs(model, &micro, self.settings.temperature)?;
                for packed in &micro.rows {
                    scores[packed.row] = packed.predictions.iter().map(|p| found[*p]).collect();
                }
            }
            Ok(Part::default())
        };
        let attempt = |tokens| {
            let mut scores = vec![vec![]; rows.len()];
            self.ranks.combine(compute(tokens, &mut scores))?;
            let lengths = rows.iter().map(|row| if wanted(row) { row.targets.len() } else { 0 });
            self.ranks.complete(&mut scores, lengths)?;
            Ok(scores)
        };
        Ok(self.fitting(rows, attempt)?.0)
    }

    /// Runs `f` with a number of tokens per micro-batch, halved whenever memory is insufficient; returns the number to
    /// continue with.
    fn fitting<T>(&self, rows: &[TrainRow], attempt: impl FnMut(usize) -> Result<T>) -> Result<(T, usize)> {
        let lengths = rows.iter().map(|row| row.tokens.len());
        let longest = lengths.clone().max().unwrap_or(0);
        let most = self.micro_batch_tokens.min(lengths.sum()).max(longest);
        let (done, tokens) =
            retry_smaller(most, longest, TrainError::is_out_of_memory, attempt).map_err(TrainError::or_no_memory)?;
        let unchanged = tokens == most;
        Ok((done, if unchanged { self.micro_batch_tokens } else { tokens }))
    }

    /// What computes passes.
    fn backprop(&self) -> MutexGuard<'_, Backprop> {
        lock(&self.backprop)
    }

    /// Packs the wanted rows into micro-batches of up to `tokens` tokens, or of one row.
    fn pack(&self, rows: &[TrainRow], tokens: usize, wanted: impl Fn(&TrainRow) -> bool) -> Vec<MicroBatch> {
        let views: Vec<RowView> = rows
            .iter()
            .map(|row| RowView {
                targets: if wanted(row) { &row.targets } else { &[] },
                tokens: &row.tokens,
                constrained: &row.constrained,
            })
            .collect();
        pack(&views, tokens, self.settings.common.share_prefixes)
    }

    /// Computes each row's advantage from the rewards with penalties. Returns the advantages of the compared samples.
    fn set_advantages(&self, batch: &mut Prepared) -> Vec<f64> {
        let common = &self.settings.common;
        let by_episode = common.advantage_estimation_episode_level;
        let samples = self.shaping.samples(batch, by_episode);
        let found = advantages(&samples, &common.algorithm, common.singleton_group);
        for (number, row) in batch.rows.iter_mut().enumerate() {
            row.advantage = found[if by_episode { row.episode } else { number }];
        }
        found
    }

    /// Computes each row's token weight in the loss of its mini-batch.
    fn set_weights(&self, batch: &mut Prepared, rows: Range<usize>) {
        let common = &self.settings.common;
        let mut sequences: IndexMap<usize, usize> = IndexMap::new();
        let by_episode = common.loss_weight_normalization_episode_level;
        for number in rows.clone() {
            let row = &batch.rows[number];
            *sequences
                .entry(if by_episode { row.episode } else { number })
                .or_default() += row.targets.len();
        }
        let tokens: Vec<usize> = sequences.values().copied().collect();
        let weights = token_weights(&tokens, common.loss_agg_mode, self.settings.response_limit);
        for number in rows {
            let row = &mut batch.rows[number];
            let sequence = sequences.get_index_of(&if by_episode { row.episode } else { number });
            row.weight = sequence.map_or(0.0, |sequence| weights[sequence]);
        }
    }

    /// Performs one optimizer step on the rows of a mini-batch.
    fn step(
        &mut self,
        weights: &mut Weights,
        mini_batch: &MiniBatch,
        lr: f64,
        run: &mut Run,
        progress: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let (found, tokens) = self.fitting(mini_batch.rows, |tokens| {
            self.gradients(weights, mini_batch, tokens, run, progress)
        })?;
        self.micro_batch_tokens = tokens;
        let Some((gradients, totals)) = found else {
            return Ok(());
        };
        let started = Instant::now();
        let norm = self.ranks.norm(gradients.global_norm(&self.pool)?)?;
        if !norm.is_finite() {
            run.skip(mini_batch, &(0..mini_batch.rows.len()).collect::<Vec<_>>());
            return Ok(());
        }
        let clip = clip_factor(norm, self.settings.common.optim.grad_clip);
        self.optimizer.step(&self.pool, weights, &gradients, lr, clip)?;
        self.ranks.spread(weights)?;
        weights.device().synchronize().map_err(TrainError::from)?;
        run.seconds.optimizer += started.elapsed().as_secs_f64();
        run.norms.push(norm);
        run.steps += 1;
        run.trained.extend(mini_batch.rows.iter().map(|row| row.episode));
        run.totals.add(&totals);
        if self.backprop().writes_in_place() {
            *lock(&self.gradients) = Some(gradients.recycled());
        }
        Ok(())
    }

    /// Computes the gradients of a mini-batch, in micro-batches of at most this many tokens; `None` if any value is not
    /// finite. With several ranks, those of the parameters that this rank owns.
    fn gradients(
        &self,
        weights: &Weights,
        mini_batch: &MiniBatch,
        tokens: usize,
        run: &mut Run,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<(Gradients, Totals)>> {
        let mut gradients = self.empty_gradients(weights)?;
        let share = |tokens| self.pack(mini_batch.rows, tokens, |row| self.has_signal(row));
        let micros = self.ranks.share(tokens, share);
        let part = self.accumulate_all(weights, mini_batch, micros, &mut gradients, &mut run.seconds, progress);
        let part = self.ranks.combine(part)?;
        run.tokens += part.tokens;
        run.shared_tokens += part.shared_tokens;
        run.experts.merge(&part.experts);
        if !part.broken.is_empty() {
            run.skip(mini_batch, &part.broken);
            return Ok(None);
        }
        self.ranks.reduce(weights, &mut gradients)?;
        Ok(Some((gradients, part.totals)))
    }

    /// Adds the gradients of micro-batches, up to the first one with non-finite values.
    fn accumulate_all(
        &self,
        weights: &Weights,
        mini_batch: &MiniBatch,
        micros: Vec<MicroBatch>,
        gradients: &mut Gradients,
        seconds: &mut Seconds,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Part> {
        let mut part = Part::default();
        let count = micros.len();
        for (number, mut micro) in micros.into_iter().enumerate() {
            progress(&format!("{}: micro-batch {} of {count}", mini_batch.name, number + 1));
            restrict(&mut micro, mini_batch.rows, self.grammars.as_deref())?;
            self.accumulate(weights, mini_batch.rows, &micro, gradients, &mut part, seconds)?;
            if !part.broken.is_empty() {
                break;
            }
        }
        Ok(part)
    }

    /// Returns no gradients, with the memory for them if kernels write them in place.
    fn empty_gradients(&self, weights: &Weights) -> Result<Gradients> {
        let used = lock(&self.gradients).take();
        match used {
            Some(gradients) => Ok(gradients),
            None if self.backprop().writes_in_place() => Gradients::with_memory(weights, &self.pool),
            None => Ok(Gradients::default()),
        }
    }

    /// Adds a micro-batch's gradients and sums, or the rows with non-finite values.
    fn accumulate(
        &self,
        weights: &Weights,
        rows: &[TrainRow],
        micro: &MicroBatch,
        gradients: &mut Gradients,
        part: &mut Part,
        seconds: &mut Seconds,
    ) -> Result<()> {
        let started = Instant::now();
        let keep_less = recompute::wanted(self.settings.common.recompute, weights, micro.batch.len());
        let mut backprop = self.backprop();
        let forward = backprop.forward(Transformer::new(weights), micro, self.settings.temperature, keep_less)?;
        let (log_probs, entropies) = forward.outputs()?;
        part.experts.add(&forward.expert_loads());
        seconds.forward += started.elapsed().as_secs_f64();
        part.tokens += micro.batch.len();
        part.shared_tokens += micro.rows.iter().map(|packed| rows[packed.row].fed()).sum::<usize>() - micro.batch.len();

        let mut by_log_prob = vec![0.0; log_probs.len()];
        let mut by_entropy = vec![0.0; log_probs.len()];
        for packed in &micro.rows {
            let row = &rows[packed.row];
            let of = |values: &[f32]| -> Vec<f32> { packed.predictions.iter().map(|p| values[*p]).collect() };
            let (new, entropy) = (of(&log_probs), of(&entropies));
            let tokens = RowTokens {
                advantage: row.advantage,
                weight: row.weight,
                new: &new,
                old: if row.old.is_empty() { &new } else { &row.old },
                sampler: &row.sampler,
                reference: &row.reference,
                entropy: &entropy,
            };
            let Some(slopes) = self.objective.row(&tokens, &mut part.totals) else {
                part.broken.push(packed.row);
                continue;
            };
            for (t, &prediction) in packed.predictions.iter().enumerate() {
                by_log_prob[prediction] += slopes.by_log_prob[t];
                by_entropy[prediction] += slopes.by_entropy[t];
            }
        }
        if !part.broken.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let bad_tokens = forward.backward(&by_log_prob, &by_entropy, gradients)?;
        seconds.backward += started.elapsed().as_secs_f64();
        part.broken = micro.rows_through(&bad_tokens);
        Ok(())
    }

    fn report(&self, mut batch: Prepared, run: Run, lr: f64) -> UpdateReport {
        let with_rows: BTreeSet<usize> = batch.rows.iter().map(|row| row.episode).collect();
        let skipped = with_rows.difference(&run.trained);
        batch
            .dropped
            .extend(skipped.map(|number| (*number, Untrained::NonFinite)));
        let name = |(number, why): (&usize, &Untrained)| (batch.episodes[*number].episode_uuid.clone(), *why);
        let seconds = run.seconds.total();
        let without_signal = batch.rows.iter().filter(|row| !self.has_signal(row)).count();
        let (advantage_mean, advantage_std) = mean_std(&run.advantages);
        let named = [
            ("advantage_mean", advantage_mean),
            ("advantage_std", advantage_std),
            (
                "grad_norm",
                run.norms.iter().sum::<f64>() / run.norms.len().max(1) as f64,
            ),
            ("lr", lr),
            ("optimizer_steps", run.steps as f64),
            ("skipped_steps", run.skipped.len() as f64),
            ("tokens_computed", run.tokens as f64),
            ("shared_tokens", run.shared_tokens as f64),
            ("skipped_rows", without_signal as f64),
            ("entropy_sampled", batch.sampled_entropy()),
            (
                "tokens_per_second/training",
                if seconds > 0.0 {
                    run.tokens as f64 / seconds
                } else {
                    0.0
                },
            ),
            ("counts/row_cut", batch.rows_cut as f64),
            ("counts/row_masked", batch.rows_masked as f64),
        ];
        let mut metrics = IndexMap::new();
        metrics.extend(loss_metrics(&run.totals, run.steps, self.objective.kl.is_some()));
        metrics.extend(
            named
                .into_iter()
                .chain(run.seconds.metrics())
                .chain(run.experts.metrics())
                .map(|(name, value)| (name.to_string(), value)),
        );
        UpdateReport {
            metrics,
            advantages: batch.advantages(),
            dropped: batch.dropped.iter().map(name).collect(),
            skipped_steps: run.skipped,
        }
    }
}

/// The rows of one optimizer step.
struct MiniBatch<'a> {
    /// For messages, such as `epoch 1, mini-batch 2`.
    name: String,
    rows: &'a [TrainRow],
}

/// Totals over the optimizer steps of an update.
#[derive(Default)]
struct Run {
    advantages: Vec<f64>,
    totals: Totals,
    steps: usize,
    norms: Vec<f64>,
    /// Episodes of steps that were made.
    trained: BTreeSet<usize>,
    tokens: usize,
    shared_tokens: usize,
    experts: ExpertLoad,
    skipped: Vec<String>,
    seconds: Seconds,
}

impl Run {
    /// Notes that a mini-batch changed nothing, since some of its rows are broken.
    fn skip(&mut self, mini_batch: &MiniBatch, broken: &[usize]) {
        let names: Vec<&str> = broken
            .iter()
            .take(NAMED_ROWS)
            .map(|row| mini_batch.rows[*row].name.as_str())
            .collect();
        let more = broken.len().saturating_sub(NAMED_ROWS);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        self.skipped.push(format!(
            "skipped {}, the weights are unchanged: loss or gradient is not finite at {}{more}",
            mini_batch.name,
            names.join(", ")
        ));
    }
}

/// Locks memory for passes or gradients: whatever a panic left in it is overwritten.
fn lock<T>(memory: &Mutex<T>) -> MutexGuard<'_, T> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parse_kl(key: &'static str, name: &str) -> Result<Kl> {
    Kl::parse(name).ok_or_else(|| TrainError::KlType {
        key,
        given: name.to_string(),
    })
}

#[cfg(test)]
mod tests;
