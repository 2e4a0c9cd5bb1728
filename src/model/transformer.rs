//! The differentiable forward pass, driven by [`ModelConfig`](super::config::ModelConfig): one code for all families
//! and devices. On a CPU training has a faster one of its own, which this one is the measure of.

use candle_core::{DType, Tensor};

use super::config::{GATE_UP, ProjectionNames, QKV};
use super::error::{ModelError, Result};
use super::experts::Experts;
use super::kernels::LogitScaling;
use super::lora::Adapter;
use super::ops::{BatchContext, plain, soft_cap};
use super::packed_batch::PackedBatch;
use super::param::Param;
use super::routing::{Block, Routing};
use super::token_set::Allowed;
use super::weights::{EMBEDDING, FINAL_NORM, Weights};

/// A decoder with a set of weights, of which the trained ones receive gradients.
#[derive(Clone, Copy, Debug)]
pub struct Transformer<'a> {
    weights: &'a Weights,
    adapters: bool,
}

impl<'a> Transformer<'a> {
    /// Creates the model with its adapters.
    pub fn new(weights: &'a Weights) -> Self {
        Self {
            weights,
            adapters: true,
        }
    }

    /// Creates the model without its adapters: with LoRA, the reference of the KL term.
    pub fn without_adapters(self) -> Self {
        Self {
            adapters: false,
            ..self
        }
    }

    /// Returns the weights.
    pub fn weights(&self) -> &'a Weights {
        self.weights
    }

    /// Returns the enabled adapter of a weight and its scale, if any.
    pub fn adapter(&self, weight: &str) -> Option<(&'a Adapter, f64)> {
        let lora = self.weights.lora.as_ref().filter(|_| self.adapters)?;
        Some((lora.adapters.get(weight)?, lora.scale()))
    }

    /// Computes the residual stream after the last norm, tokens × hidden.
    ///
    /// # Errors
    /// Fails if the batch is malformed or empty, or memory ran out.
    pub fn hidden(&self, batch: &PackedBatch) -> Result<Tensor> {
        let context = self.context(batch)?;
        let mut x = self.embed(batch)?;
        for layer in 0..self.weights.config.layers.len() {
            x = self.layer(layer, &x, &context)?;
        }
        self.final_norm(&x)
    }

    /// Returns the inputs of [`layer`](Self::layer) for a batch.
    ///
    /// # Errors
    /// Fails if the batch is malformed.
    pub fn context(&self, batch: &PackedBatch) -> Result<BatchContext> {
        BatchContext::new(batch, &self.weights.config, &self.weights.device())
    }

    /// Returns the embeddings of a batch's tokens, tokens × hidden.
    ///
    /// # Errors
    /// Fails for a token outside the vocabulary.
    pub fn embed(&self, batch: &PackedBatch) -> Result<Tensor> {
        // Here, since a GPU would read beyond the matrix.
        let vocabulary = self.weights.config.vocab_size;
        if let Some(token) = batch.token_ids.iter().find(|token| **token as usize >= vocabulary) {
            let message = format!(
                "token id {token} is larger than the largest id in the vocabulary, {}",
                vocabulary - 1
            );
            return Err(ModelError::Batch(message));
        }
        let ids = Tensor::new(batch.token_ids.as_slice(), &self.weights.device())?;
        let x = self.weights.tensor(EMBEDDING)?.index_select(&ids, 0)?;
        scaled(x, self.weights.config.embedding_scale)
    }

    /// Computes a decoder layer: attention and MLP, each added to the residual stream, with the family's norms before and
    /// after them.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn layer(&self, layer: usize, x: &Tensor, context: &BatchContext) -> Result<Tensor> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let (norms, scale) = (&self.weights.config.norms, self.weights.config.residual_scale);
        let norm = |part: Option<&str>, x: Tensor| match part {
            Some(part) => self.norm(&name(part), &x),
            None => Ok(x),
        };
        let attended = self.attention(
            layer,
            &norm(norms.before_attention, x.clone())?,
            &name("self_attn"),
            context,
        )?;
        let x = (x + scaled(norm(norms.after_attention, attended)?, scale)?)?;
        let input = norm(norms.before_mlp, x.clone())?;
        let computed = match self.weights.config.layer_experts(layer) {
            Some(experts) => self.experts(experts, layer, &input, context)?,
            None => self.mlp(&input, &name("mlp"))?,
        };
        Ok((x + scaled(norm(norms.after_mlp, computed)?, scale)?)?)
    }

    /// Computes the norm between the last layer and the head.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn final_norm(&self, x: &Tensor) -> Result<Tensor> {
        self.norm(FINAL_NORM.trim_end_matches(".weight"), x)
    }

    /// Computes the log-probability of each token's target and the entropy of its prediction, both f32 of length
    /// tokens, under softmax(logits / temperature) over the allowed tokens (`allowed` has an entry per target, or none).
    /// `hidden` is tokens × hidden (of [`hidden`](Self::hidden), or rows chosen from it).
    ///
    /// # Errors
    /// Fails for a target outside the vocabulary, or if out of memory.
    pub fn log_probs(
        &self,
        hidden: &Tensor,
        targets: &[u32],
        allowed: &[Allowed],
        temperature: f64,
    ) -> Result<(Tensor, Tensor)> {
        let scaling = self.weights.config.logit_scaling(temperature);
        plain::log_probs(hidden, self.weights.head()?, targets, allowed, scaling)
    }

    /// Computes the logits, tokens × vocabulary in f32.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let LogitScaling { scale, softcap } = self.weights.config.logit_scaling(1.0);
        let products = plain::linear(hidden, self.weights.head()?, None)?.to_dtype(DType::F32)?;
        Ok(soft_cap(&(products * scale)?, softcap.map(|cap| cap as f32))?)
    }

    fn attention(&self, layer: usize, x: &Tensor, block: &str, context: &BatchContext) -> Result<Tensor> {
        let config = &self.weights.config;
        let (q, kv) = (
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        );
        let [mut q, mut k, v] = self.project(x, block, &QKV, [q, kv, kv])?;
        if config.qk_norm.is_some() {
            q = self.narrow_norm(&format!("{block}.q_norm"), &q)?;
            k = self.narrow_norm(&format!("{block}.k_norm"), &k)?;
        }
        if let Some(rope) = config.layers[layer].rope {
            q = plain::rope(&q, config.num_heads, &context.ropes[rope])?;
            k = plain::rope(&k, config.num_kv_heads, &context.ropes[rope])?;
        }
        let mixed = plain::attention([&q, &k, &v], config, config.attention_scores(layer), context)?;
        self.linear(&format!("{block}.o_proj"), &mixed)
    }

    fn mlp(&self, x: &Tensor, block: &str) -> Result<Tensor> {
        let config = &self.weights.config;
        let [gate, up] = self.project(x, block, &GATE_UP, [config.intermediate_size; 2])?;
        self.linear(
            &format!("{block}.down_proj"),
            &plain::glu(config.activation, &gate, &up)?,
        )
    }

    /// Computes the experts that the router chooses for each token, and adds up their results by its weights.
    fn experts(&self, experts: &Experts, layer: usize, x: &Tensor, context: &BatchContext) -> Result<Tensor> {
        let logits = self.linear(&experts.router(layer), x)?;
        let routing = Routing::of_tensor(experts, &logits)?;
        context.loads.count(layer, &routing);
        let tokens = Tensor::new(routing.tokens(), x.device())?;
        let expert = |block: &Block| {
            let tokens = tokens.narrow(0, block.pairs.start, block.pairs.len())?;
            let x = x.index_select(&tokens, 0)?;
            let [gate, up, down] = experts.expert(layer, block.expert);
            let gated = plain::glu(
                self.weights.config.activation,
                &self.linear(&gate, &x)?,
                &self.linear(&up, &x)?,
            )?;
            self.linear(&down, &gated)
        };
        let computed = routing.blocks().iter().map(expert).collect::<Result<Vec<_>>>()?;
        let weights = plain::routing_weights(&logits, &routing)?;
        plain::mix(&Tensor::cat(&computed, 0)?, &weights, &routing, x.dim(0)?)
    }

    fn norm(&self, module: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.weights.tensor(&format!("{module}.weight"))?;
        let config = &self.weights.config;
        plain::rms_norm(x, weight, config.norm_offset, config.rms_norm_eps)
    }

    /// Applies a norm to each part of a row that is as wide as its weight: tokens × (heads · head_dim).
    fn narrow_norm(&self, module: &str, x: &Tensor) -> Result<Tensor> {
        let (tokens, width) = x.dims2()?;
        let part = self.weights.tensor(&format!("{module}.weight"))?.elem_count();
        Ok(self
            .norm(module, &x.reshape((tokens, width / part, part))?)?
            .reshape((tokens, width))?)
    }

    /// Computes the projections of one input, of these widths: one each, or one whose result is cut.
    fn project<const N: usize>(
        &self,
        x: &Tensor,
        block: &str,
        names: &ProjectionNames<N>,
        widths: [usize; N],
    ) -> Result<[Tensor; N]> {
        let parts: Vec<Tensor> = match self.weights.config.fused_projections {
            false => names
                .separate
                .iter()
                .map(|name| self.linear(&format!("{block}.{name}"), x))
                .collect::<Result<_>>()?,
            true => {
                let all = self.linear(&format!("{block}.{}", names.fused), x)?;
                let mut start = 0;
                let cut = widths.map(|width| {
                    start += width;
                    all.narrow(1, start - width, width)
                });
                cut.into_iter().collect::<candle_core::Result<_>>()?
            }
        };
        #[expect(clippy::expect_used, reason = "both arms make a part for each of the N names")]
        let parts = parts.try_into().expect("there is a part for each width");
        Ok(parts)
    }

    /// Computes a projection with its bias and its adapter, if any.
    fn linear(&self, module: &str, x: &Tensor) -> Result<Tensor> {
        let name = format!("{module}.weight");
        let bias = self.weights.params.get(&format!("{module}.bias"));
        let bias = bias.and_then(Param::tensor);
        let weight = self.weights.tensor(&name)?;
        match self.adapter(&name) {
            Some((adapter, scale)) => plain::adapted_linear(x, weight, bias, (&adapter.a, &adapter.b), scale),
            None => plain::linear(x, weight, bias),
        }
    }
}

fn scaled(x: Tensor, scale: f32) -> Result<Tensor> {
    Ok(if scale == 1.0 { x } else { (x * f64::from(scale))? })
}

#[cfg(test)]
mod tests {
    use candle_core::backprop::GradStore;

    use super::*;
    use crate::config::ALL_LINEAR;
    use crate::model::config::{Family, ModelConfig};
    use crate::model::lora::LoraConfig;
    use crate::model::weights::{Trainable, random_tensors};

    fn weights(config: ModelConfig, trainable: &Trainable) -> Weights {
        let tensors = random_tensors(&config, 0.3, 7).unwrap();
        Weights::new(config, tensors, trainable).unwrap()
    }

    fn lora() -> Trainable {
        let targets = vec![ALL_LINEAR.to_string()];
        Trainable::Lora(LoraConfig {
            rank: 2,
            alpha: 4.0,
            targets,
            seed: 0,
        })
    }

    /// Rows that begin alike, as a tree and one by one, with the place of each row's last token in either.
    fn tree_and_rows() -> (PackedBatch, [usize; 3], PackedBatch, [usize; 3]) {
        let mut tree = PackedBatch::default();
        let root = tree.push(&[1, 2, 3], None);
        let left = tree.push(&[4, 5], root);
        tree.push(&[6, 7, 8], left);
        tree.push(&[9], left);
        tree.push(&[10, 11], root);
        let rows = PackedBatch::from_rows(&[&[1, 2, 3, 4, 5, 6, 7, 8][..], &[1, 2, 3, 4, 5, 9], &[1, 2, 3, 10, 11]]);
        (tree, [7, 8, 10], rows, [7, 13, 18])
    }

    fn gradients(weights: &Weights, batch: &PackedBatch, at: [usize; 3]) -> (Vec<f32>, GradStore) {
        let model = Transformer::new(weights);
        let at = Tensor::new(at.map(|i| i as u32).as_slice(), &weights.device()).unwrap();
        let hidden = model.hidden(batch).unwrap().index_select(&at, 0).unwrap();
        let (log_probs, entropy) = model.log_probs(&hidden, &[12, 13, 14], &[], 0.7).unwrap();
        let loss = (&log_probs + (entropy * 0.1).unwrap()).unwrap().sum_all().unwrap();
        (log_probs.to_vec1().unwrap(), loss.backward().unwrap())
    }

    fn relative_difference(a: &Tensor, b: &Tensor) -> f32 {
        let norm = |t: &Tensor| t.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
        norm(&(a - b).unwrap()) / norm(a).max(norm(b))
    }

    /// All families, trained whole and by adapters (which are given values, as fresh ones pass no gradient to A).
    fn models() -> Vec<(String, Weights)> {
        let mut models = Vec::new();
        for family in Family::ALL {
            for trainable in [Trainable::AllAndRouters, lora()] {
                let weights = weights(ModelConfig::small(family), &trainable);
                for (_, var) in weights
                    .trainable()
                    .iter()
                    .filter(|(name, _)| name.ends_with("lora_B.weight"))
                {
                    var.set(&var.ones_like().unwrap().affine(0.1, 0.0).unwrap()).unwrap();
                }
                models.push((format!("{family:?}, lora {}", weights.lora.is_some()), weights));
            }
        }
        models
    }

    #[test]
    fn a_tree_gives_what_its_rows_give_one_by_one() {
        for (what, weights) in models() {
            let (tree, tree_ends, rows, row_ends) = tree_and_rows();
            let (shared, shared_gradients) = gradients(&weights, &tree, tree_ends);
            let (single, single_gradients) = gradients(&weights, &rows, row_ends);
            for (a, b) in shared.iter().zip(&single) {
                assert!((a - b).abs() < 1e-5, "{what}: {a} and {b}");
            }
            for (name, var) in weights.trainable() {
                let [a, b] = [&shared_gradients, &single_gradients].map(|g| g.get(&var).unwrap());
                let distance = relative_difference(a, b);
                assert!(distance < 1e-4, "{what}: {name} is off by {distance}");
            }
        }
    }

    #[test]
    fn adapters_change_what_is_computed_as_the_merged_weight_would() {
        let adapted = weights(ModelConfig::small(Family::Llama), &lora());
        for (name, var) in adapted.trainable() {
            let fill = if name.contains("lora_A") { 0.05 } else { -0.03 };
            var.set(&(var.ones_like().unwrap() * fill).unwrap()).unwrap();
        }
        let merged = adapted.frozen_copy().unwrap();
        let base = Transformer::new(&adapted).without_adapters();
        let batch = PackedBatch::from_rows(&[[1, 2, 3, 4]]);
        let with = Transformer::new(&adapted).hidden(&batch).unwrap();
        let from_merged = Transformer::new(&merged).hidden(&batch).unwrap();
        assert!(relative_difference(&with, &from_merged) < 1e-5);
        assert!(relative_difference(&with, &base.hidden(&batch).unwrap()) > 1e-3);
    }
}
