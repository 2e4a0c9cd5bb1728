//! What a model costs by its shape: weights that are multiplied, numbers that are cached, operations.

use super::config::ModelConfig;
use crate::config::LINEAR_PROJECTIONS;

/// Tokens of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassTokens {
    /// Number of tokens computed.
    pub computed: f64,
    /// Number of tokens whose logits are computed.
    pub predicting: f64,
    /// Mean number of positions that a token sees.
    pub seen: f64,
}

/// Sizes and operations that follow from a model's shape.
impl ModelConfig {
    /// Returns the number of weights in the matrices of all layers. Each is multiplied and added once for every token, but
    /// for those of experts that do not compute it.
    pub fn projection_weights(&self) -> usize {
        self.projections(&LINEAR_PROJECTIONS)
            .map(|(outputs, inputs)| outputs * inputs)
            .sum()
    }

    /// Returns the number of weights in the head. Each is multiplied once for every token whose logits are computed.
    pub fn head_weights(&self) -> usize {
        self.vocab_size * self.hidden_size
    }

    /// Returns the number of parameters of each factor of LoRA adapters on the projections of these names.
    pub fn adapter_sizes(&self, rank: usize, targets: &[&str]) -> Vec<usize> {
        self.projections(targets)
            .flat_map(|(outputs, inputs)| [rank * inputs, rank * outputs])
            .collect()
    }

    /// Returns the number of keys and values that a token has in the cache, in all layers.
    pub fn cached_numbers(&self) -> usize {
        2 * self.layers.len() * self.num_kv_heads * self.head_dim
    }

    /// Returns the number of multiply-adds of attention for a token that sees `positions` tokens: its queries with their
    /// keys, and as many with their values. Counts windows as if they were open.
    pub fn attention_products(&self, positions: usize) -> usize {
        2 * self.layers.len() * self.num_heads * self.head_dim * positions
    }

    /// Returns the operations of a forward pass; a multiply-add counts as two.
    pub fn forward_operations(&self, tokens: PassTokens) -> f64 {
        self.operations(tokens, 1.0, 1.0)
    }

    /// Returns the operations of a forward and a backward pass: as many as forward for the gradients of activations, and
    /// again as many for those of weights if these are trained. Those of attention are all of activations.
    pub fn training_operations(&self, tokens: PassTokens, weights_trained: bool) -> f64 {
        self.operations(tokens, if weights_trained { 3.0 } else { 2.0 }, 3.0)
    }

    fn operations(&self, tokens: PassTokens, passes: f64, attention_passes: f64) -> f64 {
        let layers = self.multiplied_weights() as f64 * tokens.computed;
        let head = self.head_weights() as f64 * tokens.predicting;
        let attention = self.attention_products(1) as f64 * tokens.seen * tokens.computed;
        2.0 * (passes * (layers + head) + attention_passes * attention)
    }

    /// Returns the number of weights in the matrices of all layers that a token is multiplied with.
    fn multiplied_weights(&self) -> usize {
        let idle = |layer: usize| match self.layer_experts(layer) {
            Some(experts) => (experts.count - experts.per_token) * 3 * experts.intermediate_size * self.hidden_size,
            None => 0,
        };
        self.projection_weights() - (0..self.layers.len()).map(idle).sum::<usize>()
    }

    /// Outputs and inputs of each projection of these names, in all layers.
    fn projections(&self, names: &[&str]) -> impl Iterator<Item = (usize, usize)> {
        let is_projection = |name: &str| names.iter().any(|p| name.ends_with(&format!(".{p}.weight")));
        self.tensor_shapes()
            .into_iter()
            .filter(|(name, _)| is_projection(name))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(_, shape)| (shape[0], shape.iter().skip(1).product()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Family;

    /// 2 layers of width 64 with 4 query heads and 2 key-value heads of 16, an MLP of 128 and 100 tokens.
    fn config() -> ModelConfig {
        let mut config = ModelConfig::small(Family::Llama);
        config.layers.truncate(1);
        config.layers.extend_from_within(..);
        (config.hidden_size, config.intermediate_size) = (64, 128);
        (config.num_heads, config.num_kv_heads, config.head_dim) = (4, 2, 16);
        config.vocab_size = 100;
        config
    }

    #[test]
    fn costs_are_those_counted_by_hand() {
        let config = config();
        // q and o 64 × 64, k and v 32 × 64, gate, up and down 64 × 128; twice.
        assert_eq!(config.projection_weights(), 2 * (2 * 4096 + 2 * 2048 + 3 * 8192));
        assert_eq!(config.head_weights(), 6400);
        let adapters = config.adapter_sizes(8, &LINEAR_PROJECTIONS);
        assert_eq!(
            (adapters.len(), adapters.iter().sum()),
            (2 * 7 * 2, 2 * 8 * (2 * 128 + 2 * 96 + 3 * 192))
        );
        assert_eq!(config.adapter_sizes(8, &["k_proj"]), [512, 256, 512, 256]);
        assert_eq!(config.cached_numbers(), 2 * 2 * 32);
        assert_eq!(config.attention_products(10), 2 * 2 * 64 * 10);
        let tokens = PassTokens {
            computed: 5.0,
            predicting: 3.0,
            seen: 10.0,
        };
        let (products, attention) = (5.0 * 73_728.0 + 3.0 * 6400.0, 5.0 * 2560.0);
        assert_eq!(config.forward_operations(tokens), 2.0 * (products + attention));
        assert_eq!(config.training_operations(tokens, true), 6.0 * (products + attention));
        assert_eq!(
            config.training_operations(tokens, false),
            4.0 * products + 6.0 * attention
        );
    }

    #[test]
    fn only_the_experts_of_a_token_are_computed() {
        let config = ModelConfig::small(Family::Mixtral);
        let tokens = PassTokens {
            computed: 1.0,
            ..PassTokens::default()
        };
        // q and o 16 × 16, k and v 8 × 16, two of three experts of three matrices of 12 × 16; twice.
        let weights = 2 * (2 * 256 + 2 * 128 + 2 * 3 * 192);
        assert_eq!(config.forward_operations(tokens), 2.0 * f64::from(weights));
    }
}
