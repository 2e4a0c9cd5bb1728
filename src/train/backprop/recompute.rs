//! When a layer's intermediate results are thrown away after the forward pass and computed again in the backward pass.

use crate::config::schema::Recompute;
use crate::model::{ModelConfig, Weights, device};

/// What `auto` lets kept results take where the machine does not say how much memory is free.
const DEFAULT_BYTES: f64 = 8e9;
/// The share of free memory that `auto` lets kept results take.
const SHARE_OF_FREE: f64 = 0.3;

/// Whether to recompute in a pass over so many tokens.
pub fn wanted(setting: Recompute, weights: &Weights, tokens: usize) -> bool {
    match setting {
        Recompute::On => true,
        Recompute::Off => false,
        Recompute::Auto => {
            let free = match device::memory(&weights.device()) {
                Ok(Some(gpu)) => Some(gpu.free as f64),
                _ if weights.device().is_cpu() => free_memory(),
                _ => None,
            };
            let kept = kept_bytes(&weights.config, weights.dtype().size_in_bytes(), tokens);
            kept > free.map_or(DEFAULT_BYTES, |free| free * SHARE_OF_FREE)
        }
    }
}

/// About what a forward pass keeps for the backward one: a dozen results as wide as the residual stream or the heads
/// and four as wide as the MLP, a token and layer.
fn kept_bytes(config: &ModelConfig, number_bytes: usize, tokens: usize) -> f64 {
    let heads = (config.num_heads + config.num_kv_heads) * config.head_dim;
    let a_token = 6 * config.hidden_size + 4 * heads + 4 * config.intermediate_size;
    (tokens * config.num_layers * a_token * number_bytes) as f64
}

/// Bytes that the system could give, where it says so.
fn free_memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace()
        .next()?
        .parse::<f64>()
        .ok()
        .map(|kilobytes| kilobytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Family;

    #[test]
    fn kept_results_grow_with_tokens_and_layers() {
        let mut config = ModelConfig::small(Family::Llama);
        let one = kept_bytes(&config, 4, 100);
        config.num_layers *= 2;
        assert_eq!(kept_bytes(&config, 4, 100), 2.0 * one);
        assert_eq!(kept_bytes(&config, 2, 400), 4.0 * one);
    }
}
