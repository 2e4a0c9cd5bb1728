//! Decides whether the results of layers, and the logits, are recomputed in the backward pass instead of stored.

use crate::config::schema::Recompute;
use crate::model::{ModelConfig, Weights, device, memory};

/// Maximum bytes of stored results under `auto`, if the amount of free memory is unknown.
const DEFAULT_BYTES: f64 = 8e9;
/// Maximum share of free memory for stored results under `auto`.
const SHARE_OF_FREE: f64 = 0.3;
/// Maximum share of free memory for stored logits.
const SHARE_OF_FREE_FOR_LOGITS: f64 = 0.05;

/// Returns whether to recompute in a pass over this number of tokens.
pub fn wanted(setting: Recompute, weights: &Weights, tokens: usize) -> bool {
    match setting {
        Recompute::On => true,
        Recompute::Off => false,
        Recompute::Auto => {
            let free = match device::memory(&weights.device()) {
                Ok(Some(gpu)) => Some(gpu.free as f64),
                _ if weights.device().is_cpu() => memory::available().map(|bytes| bytes as f64),
                _ => None,
            };
            too_much_to_keep(&weights.config, weights.dtype().size_in_bytes(), tokens, free)
        }
    }
}

/// Returns whether `auto` recomputes in a pass over this number of tokens, with weights whose numbers have so many bytes and
/// this number of free bytes, if known.
pub fn too_much_to_keep(config: &ModelConfig, number_bytes: usize, tokens: usize, free: Option<f64>) -> bool {
    kept_bytes(config, number_bytes, tokens) > free.map_or(DEFAULT_BYTES, |free| free * SHARE_OF_FREE)
}

/// Returns whether the logits of `predictions` predictions are stored on a CPU, where they save the head's product in the
/// backward pass.
pub fn stores_logits(config: &ModelConfig, predictions: usize) -> bool {
    let free = memory::available().map_or(DEFAULT_BYTES, |free| free as f64);
    logits_fit(config, predictions, free)
}

fn logits_fit(config: &ModelConfig, predictions: usize, free: f64) -> bool {
    (predictions * config.vocab_size * size_of::<f32>()) as f64 <= free * SHARE_OF_FREE_FOR_LOGITS
}

/// Estimates the bytes that a forward pass stores: per token and layer, twelve results of the width of the residual
/// stream or the heads, and four of the width of the MLP.
fn kept_bytes(config: &ModelConfig, number_bytes: usize, tokens: usize) -> f64 {
    let heads = (config.num_heads + config.num_kv_heads) * config.head_dim;
    let a_token = 6 * config.hidden_size + 4 * heads + 4 * config.mlp_width();
    (tokens * config.layers.len() * a_token * number_bytes) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Family;

    #[test]
    fn logits_are_stored_where_they_are_a_small_part_of_free_memory() {
        let mut config = ModelConfig::small(Family::Llama);
        config.vocab_size = 50_000;
        assert!(logits_fit(&config, 2048, 16e9), "0.4 of 0.8 GB");
        assert!(!logits_fit(&config, 8192, 16e9), "1.6 of 0.8 GB");
    }

    #[test]
    fn kept_results_grow_with_tokens_and_layers() {
        let mut config = ModelConfig::small(Family::Llama);
        let one = kept_bytes(&config, 4, 100);
        config.layers.extend_from_within(..);
        assert_eq!(kept_bytes(&config, 4, 100), 2.0 * one);
        assert_eq!(kept_bytes(&config, 2, 400), 4.0 * one);
    }
}
