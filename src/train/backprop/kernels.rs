//! Hand-written forward and backward pass with the CPU kernels: no graph, all results in one block of memory, and
//! gradients accumulated in place.

use super::arena::{Arena, Rest};
use super::layer::{Kept, Layer, Norm, Scratch};
use super::pass::Pass;
use super::recompute;
use super::weight::BorrowedWeight;
use crate::model::kernels::head::{Distributions, Head};
use crate::model::kernels::sums::add_rows;
use crate::model::kernels::tensors::Numbers;
use crate::model::kernels::{Compute, Weight};
use crate::model::ops::{BatchContext, RopeTables};
use crate::model::weights::{EMBEDDING, FINAL_NORM};
use crate::model::{ModelConfig, ModelError, Transformer};
use crate::train::error::Result;
use crate::train::gradients::Gradients;
use crate::train::packing::MicroBatch;

/// Result of a forward pass, for the backward pass.
pub(super) struct Forward<'a> {
    model: Transformer<'a>,
    micro: &'a MicroBatch,
    temperature: f64,
    compute: Compute<'a>,
    pub context: BatchContext,
    /// Residual stream before each layer, and after the last one that of the predicting tokens.
    inputs: Vec<&'a mut [f32]>,
    /// Stored results of each layer; of the last layer only if layers are recomputed.
    kept: Vec<Kept<'a>>,
    scratch: Scratch<'a>,
    head: HeadMemory<'a>,
    predicting: Predicting,
    /// Results of each prediction.
    pub found: Distributions,
}

/// Results of the head, for each prediction.
struct HeadMemory<'a> {
    /// Residual stream, its norm, and their gradients; each predictions × hidden.
    streams: [&'a mut [f32]; 4],
    logits: &'a mut [f32],
    /// Whether all logits are stored.
    keep: bool,
}

/// Tokens with a prediction; where rows branch, a token has several.
struct Predicting {
    /// Their indices in the batch, ascending.
    tokens: Vec<u32>,
    /// For each prediction, the index of its token among them.
    places: Vec<u32>,
}

impl Predicting {
    fn new(micro: &MicroBatch) -> Self {
        let mut tokens: Vec<u32> = micro.predictions.iter().map(|(at, _)| *at as u32).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let place = |(at, _): &(usize, u32)| tokens.partition_point(|token| (*token as usize) < *at) as u32;
        Self {
            places: micro.predictions.iter().map(place).collect(),
            tokens,
        }
    }
}

impl<'a> Forward<'a> {
    /// # Errors
    /// Fails if a parameter is not f32 on the CPU, or for a token outside the vocabulary.
    pub fn run(
        model: Transformer<'a>,
        compute: Compute<'a>,
        micro: &'a MicroBatch,
        temperature: f64,
        recompute: bool,
        arena: &'a mut Arena,
    ) -> Result<Self> {
        let config = &model.weights().config;
        let (tokens, layers) = (micro.batch.len(), config.layers.len());
        let keeps = kept_layers(config, recompute);
        let keep_logits = !recompute && recompute::stores_logits(config, micro.predictions.len());
        let layer_floats = tokens * floats_per_token(config, recompute);
        let mut rest = arena.cut(layer_floats + HeadMemory::size(&model, micro, compute, keep_logits)?);
        let mut pass = Self {
            context: model.context(&micro.batch)?,
            inputs: (0..=layers).map(|_| rest.take(tokens * config.hidden_size)).collect(),
            kept: (0..keeps).map(|_| Kept::cut(config, tokens, &mut rest)).collect(),
            scratch: Scratch::cut(config, tokens, &mut rest),
            head: HeadMemory::cut(&model, micro, compute, keep_logits, &mut rest)?,
            predicting: Predicting::new(micro),
            found: Distributions::default(),
            model,
            micro,
            temperature,
            compute,
        };
        pass.embed()?;
        for layer in 0..layers {
            pass.layer_forward(layer)?;
        }
        pass.head_forward()?;
        Ok(pass)
    }

    fn embed(&mut self) -> Result<()> {
        let weights = self.model.weights();
        let (embedding, width) = (BorrowedWeight::of(weights, EMBEDDING)?, weights.config.hidden_size);
        let rows = self.inputs[0].chunks_exact_mut(width);
        for (id, row) in self.micro.batch.token_ids.iter().zip(rows) {
            if !embedding.copy_row(self.compute.pool, *id as usize, row) {
                let vocabulary = weights.config.vocab_size;
                let message = format!("token {id} is outside the vocabulary of {vocabulary}");
                return Err(ModelError::Tensors(message).into());
            }
        }
        scale(self.inputs[0], weights.config.embedding_scale);
        Ok(())
    }

    fn layer_forward(&mut self, number: usize) -> Result<()> {
        let pass = pass(&self.model, self.micro, &self.context, &self.predicting, self.compute)?;
        let model = &self.model;
        let layer = Layer::read(model, number, self.compute)?;
        let kept = number.min(self.kept.len() - 1);
        let (before, after) = self.inputs.split_at_mut(number + 1);
        let (input, output) = (&*before[number], &mut *after[0]);
        layer.forward(&pass, input, &mut self.kept[kept], &mut self.scratch, Some(output));
        Ok(())
    }

    /// Computes the final norm and the head for each prediction.
    fn head_forward(&mut self) -> Result<()> {
        let width = self.model.weights().config.hidden_size;
        let HeadMemory { streams, logits, keep } = &mut self.head;
        let [stream, normed, ..] = streams;
        if let Some(last) = self.inputs.last() {
            for (row, place) in stream.chunks_exact_mut(width).zip(&self.predicting.places) {
                row.copy_from_slice(&last[*place as usize * width..][..width]);
            }
        }
        final_norm(&self.model)?.forward(self.compute.pool, stream, normed);
        let weight = head_weight(&self.model)?;
        let targets = targets(self.micro);
        let (model, weight) = (&self.model, weight.as_factor());
        let head = head(
            (model, self.micro),
            weight,
            &targets,
            self.temperature,
            self.compute,
            *keep,
        )?;
        self.found = head.forward(normed, logits);
        Ok(())
    }

    /// Runs the backward pass; see [`super::Forward::backward`].
    pub fn backward(
        mut self,
        by_log_prob: &[f32],
        by_entropy: &[f32],
        gradients: &mut Gradients,
    ) -> Result<Vec<usize>> {
        let width = self.model.weights().config.hidden_size;
        // The residual stream after the last layer is no longer needed: its memory holds the gradient.
        let Some(flow) = self.inputs.pop() else {
            return Ok(vec![]);
        };
        self.head_backward((by_log_prob, by_entropy), flow, gradients)?;
        for number in (0..self.inputs.len()).rev() {
            self.layer_backward(number, flow, gradients)?;
        }
        let weights = self.model.weights();
        if weights.is_trained(EMBEDDING) {
            let ids = &self.micro.batch.token_ids;
            let shape = (weights.config.vocab_size, width);
            scale(flow, weights.config.embedding_scale);
            gradients.add_to(EMBEDDING, shape, |sum| {
                add_rows(self.compute.pool, sum, width, ids, flow)
            })?;
        }
        let tokens = flow.chunks_exact(width).enumerate();
        let bad = tokens.filter(|(_, row)| !row.iter().all(|x| x.is_finite()));
        Ok(bad.map(|(token, _)| token).collect())
    }

    fn head_backward(&mut self, by: (&[f32], &[f32]), flow: &mut [f32], gradients: &mut Gradients) -> Result<()> {
        let weights = self.model.weights();
        let width = weights.config.hidden_size;
        let HeadMemory { streams, logits, keep } = &mut self.head;
        let [stream, normed, by_normed, by_stream] = streams;
        let weight = head_weight(&self.model)?;
        let targets = targets(self.micro);
        let (model, weight) = (&self.model, weight.as_factor());
        let head = head(
            (model, self.micro),
            weight,
            &targets,
            self.temperature,
            self.compute,
            *keep,
        )?;
        let name = weights.head_name();
        match weights.is_trained(name) {
            true => gradients.accumulate(name, (weights.config.vocab_size, width), |sum, into| {
                head.backward(normed, &self.found, by, logits, by_normed, Some((sum, into)))
            })?,
            false => head.backward(normed, &self.found, by, logits, by_normed, None),
        }
        by_stream.fill(0.0);
        final_norm(&self.model)?.backward(self.compute.pool, stream, by_normed, by_stream, gradients)?;
        let flow = &mut flow[..self.predicting.tokens.len() * width];
        flow.fill(0.0);
        add_rows(self.compute.pool, flow, width, &self.predicting.places, by_stream);
        Ok(())
    }

    fn layer_backward(&mut self, number: usize, flow: &mut [f32], gradients: &mut Gradients) -> Result<()> {
        let pass = pass(&self.model, self.micro, &self.context, &self.predicting, self.compute)?;
        let model = &self.model;
        let layer = Layer::read(model, number, self.compute)?;
        let place = number.min(self.kept.len() - 1);
        let recompute = self.kept.len() < self.inputs.len() && number + 1 < self.inputs.len();
        let (kept, scratch, input) = (&mut self.kept[place], &mut self.scratch, &self.inputs[number]);
        // If layers share their memory, it still contains the results of the last one.
        if recompute {
            layer.forward(&pass, input, kept, scratch, None);
        }
        layer.backward(&pass, input, kept, scratch, flow, gradients)
    }
}

impl<'a> HeadMemory<'a> {
    fn size(model: &Transformer, micro: &MicroBatch, compute: Compute, keep: bool) -> Result<usize> {
        let (rows, width) = (micro.predictions.len(), model.weights().config.hidden_size);
        Ok(4 * rows * width + Self::logits(model, micro, compute, keep)?)
    }

    fn cut(model: &Transformer, micro: &MicroBatch, compute: Compute, keep: bool, rest: &mut Rest<'a>) -> Result<Self> {
        let (rows, width) = (micro.predictions.len(), model.weights().config.hidden_size);
        Ok(Self {
            streams: std::array::from_fn(|_| rest.take(rows * width)),
            logits: rest.take(Self::logits(model, micro, compute, keep)?),
            keep,
        })
    }

    fn logits(model: &Transformer, micro: &MicroBatch, compute: Compute, keep: bool) -> Result<usize> {
        let weight = head_weight(model)?;
        let targets = targets(micro);
        // Neither the temperature nor what is allowed changes the number of logits.
        let head = head((model, micro), weight.as_factor(), &targets, 1.0, compute, keep)?;
        Ok(head.buffer_len())
    }
}

/// Number of layers whose results are stored at the same time.
fn kept_layers(config: &ModelConfig, recompute: bool) -> usize {
    let layers = config.layers.len();
    if recompute { layers.min(1) } else { layers }
}

/// Returns the numbers that layers have in memory for each token.
pub(super) fn floats_per_token(config: &ModelConfig, recompute: bool) -> usize {
    let inputs = (config.layers.len() + 1) * config.hidden_size;
    inputs + kept_layers(config, recompute) * Kept::size(config) + Scratch::size(config)
}

fn pass<'p>(
    model: &Transformer<'p>,
    micro: &'p MicroBatch,
    context: &'p BatchContext,
    predicting: &'p Predicting,
    compute: Compute<'p>,
) -> Result<Pass<'p>> {
    let tables = |tables: &'p RopeTables| Ok((Numbers::of(&tables.cos)?, Numbers::of(&tables.sin)?));
    Ok(Pass {
        config: &model.weights().config,
        batch: &micro.batch,
        ropes: context.ropes.iter().map(tables).collect::<Result<_>>()?,
        compute,
        predicting: &predicting.tokens,
        loads: &context.loads,
    })
}

fn head_weight<'a>(model: &Transformer<'a>) -> Result<BorrowedWeight<'a>> {
    let weights = model.weights();
    BorrowedWeight::of(weights, weights.head_name())
}

fn final_norm<'a>(model: &Transformer<'a>) -> Result<Norm<'a>> {
    Norm::read(model, FINAL_NORM.trim_end_matches(".weight"))
}

/// Multiplies in place; by 1 nothing is done.
fn scale(x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

fn targets(micro: &MicroBatch) -> Vec<u32> {
    micro.predictions.iter().map(|(_, target)| *target).collect()
}

/// Returns the head over a micro-batch, whose `targets` are those of its predictions.
fn head<'h>(
    (model, micro): (&Transformer, &'h MicroBatch),
    weight: Weight<'h>,
    targets: &'h [u32],
    temperature: f64,
    compute: Compute<'h>,
    keep: bool,
) -> Result<Head<'h>> {
    let config = &model.weights().config;
    let width = config.hidden_size;
    let vocabulary = weight.outputs(width);
    if let Some(target) = targets.iter().find(|target| **target as usize >= vocabulary) {
        let message = format!("target token {target} is outside the vocabulary of {vocabulary}");
        return Err(ModelError::Tensors(message).into());
    }
    Ok(Head {
        weight,
        width,
        targets,
        allowed: &micro.allowed,
        scaling: config.logit_scaling(temperature),
        compute,
        keep,
    })
}
