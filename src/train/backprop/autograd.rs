//! Forward and backward pass with candle's autograd, for any device. Each layer has its own graph, so that it can be
//! recomputed, or dropped as soon as its gradients are known.

use candle_core::{Tensor, Var};

use crate::model::Transformer;
use crate::model::ops::BatchContext;
use crate::model::weights::EMBEDDING;
use crate::train::error::Result;
use crate::train::gradients::Gradients;
use crate::train::packing::MicroBatch;

/// Result of a forward pass, for the backward pass.
pub(super) struct Forward<'a> {
    model: Transformer<'a>,
    micro: &'a MicroBatch,
    pub context: BatchContext,
    layers: Vec<LayerTape>,
    last: Var,
    log_probs: Tensor,
    entropies: Tensor,
}

/// Stored results of a layer.
struct LayerTape {
    input: Var,
    /// Output with its graph; `None` if the layer will be recomputed.
    output: Option<Tensor>,
}

impl<'a> Forward<'a> {
    /// # Errors
    /// Fails if out of memory, or for a token outside the vocabulary.
    pub fn run(model: Transformer<'a>, micro: &'a MicroBatch, temperature: f64, recompute: bool) -> Result<Self> {
        let context = model.context(&micro.batch)?;
        let mut x = model.embed(&micro.batch)?.detach();
        let mut layers = Vec::with_capacity(model.weights().config.layers.len());
        for layer in 0..model.weights().config.layers.len() {
            let input = Var::from_tensor(&x)?;
            let output = model.layer(layer, &input, &context)?;
            x = output.detach();
            layers.push(LayerTape {
                input,
                output: (!recompute).then_some(output),
            });
        }
        let last = Var::from_tensor(&x)?;
        let (log_probs, entropies) = head(&model, &last, micro, temperature)?;
        Ok(Self {
            model,
            micro,
            context,
            layers,
            last,
            log_probs,
            entropies,
        })
    }

    /// Returns the log-probability and entropy of each prediction of the micro-batch.
    ///
    /// # Errors
    /// Fails if the device does.
    pub fn outputs(&self) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok((self.log_probs.to_vec1()?, self.entropies.to_vec1()?))
    }

    /// Runs the backward pass; see [`super::Forward::backward`].
    pub fn backward(self, by_log_prob: &[f32], by_entropy: &[f32], gradients: &mut Gradients) -> Result<Vec<usize>> {
        let trained = self.model.weights().trainable();
        let weigh = |x: &Tensor, by: &[f32]| -> Result<Tensor> { Ok((x * Tensor::new(by, x.device())?)?.sum_all()?) };
        let mut loss = weigh(&self.log_probs, by_log_prob)?;
        if by_entropy.iter().any(|by| *by != 0.0) {
            loss = (loss + weigh(&self.entropies, by_entropy)?)?;
        }
        let mut flow = step_back(&loss, &self.last, &trained, gradients)?;
        drop((self.log_probs, self.entropies));
        for (number, tape) in self.layers.into_iter().enumerate().rev() {
            let output = match tape.output {
                Some(output) => output,
                None => self.model.layer(number, &tape.input, &self.context)?,
            };
            flow = step_back(&(output * flow)?.sum_all()?, &tape.input, &trained, gradients)?;
        }
        if self.model.weights().is_trained(EMBEDDING) {
            let (weights, ids) = (self.model.weights(), &self.micro.batch.token_ids);
            let by_row = (&flow * f64::from(weights.config.embedding_scale))?;
            gradients.add_rows(EMBEDDING, weights.tensor(EMBEDDING)?, ids, &by_row)?;
        }
        let sums: Vec<f32> = flow.to_dtype(candle_core::DType::F32)?.abs()?.sum(1)?.to_vec1()?;
        Ok((0..sums.len()).filter(|token| !sums[*token].is_finite()).collect())
    }
}

/// Returns the log-probability of each prediction of a micro-batch, without a graph.
///
/// # Errors
/// Fails if out of memory, or for a token outside the vocabulary.
pub(super) fn log_probs(model: Transformer, micro: &MicroBatch, temperature: f64) -> Result<Vec<f32>> {
    let context = model.context(&micro.batch)?;
    let mut x = model.embed(&micro.batch)?.detach();
    for layer in 0..model.weights().config.layers.len() {
        x = model.layer(layer, &x, &context)?.detach();
    }
    Ok(head(&model, &x, micro, temperature)?.0.to_vec1()?)
}

/// Computes the final norm and the head for the tokens with a prediction.
fn head(model: &Transformer, x: &Tensor, micro: &MicroBatch, temperature: f64) -> Result<(Tensor, Tensor)> {
    let at: Vec<u32> = micro.predictions.iter().map(|(at, _)| *at as u32).collect();
    let targets: Vec<u32> = micro.predictions.iter().map(|(_, target)| *target).collect();
    let hidden = model.final_norm(&x.index_select(&Tensor::new(at, x.device())?, 0)?)?;
    Ok(model.log_probs(&hidden, &targets, &micro.allowed, temperature)?)
}

/// Computes the gradients of a scalar: takes those of the parameters and returns that of `input`.
fn step_back(scalar: &Tensor, input: &Var, trained: &[(String, Var)], gradients: &mut Gradients) -> Result<Tensor> {
    let mut store = scalar.backward()?;
    for (name, var) in trained {
        if let Some(gradient) = store.remove(var) {
            gradients.add(name, &gradient)?;
        }
    }
    match store.remove(input) {
        Some(flow) => Ok(flow),
        None => Ok(input.zeros_like()?),
    }
}
