//! Memory of a forward and backward pass, by the model's shape.

use super::kernels;
use crate::model::ModelConfig;

/// Bytes that a pass on a GPU takes whatever the model: four tensors of a chunk's logits or scores.
const WORKSPACE: f64 = 4.0 * 256e6;
/// Bytes of a number in bf16.
const BF16: f64 = 2.0;

/// Returns the bytes of a pass over this number of tokens by the CPU kernels, without logits that are stored.
pub fn kernel_bytes(config: &ModelConfig, tokens: usize, recompute: bool) -> f64 {
    let head = 4 * config.hidden_size;
    (tokens * (kernels::floats_per_token(config, recompute) + head) * size_of::<f32>()) as f64
}

/// Estimates the bytes of a pass over this number of tokens by autograd in bf16. With `recompute` these are every layer's
/// input, the results of one layer and their gradients; otherwise the results of all layers.
///
/// For each token, a layer keeps norms in f32 and the sums around them, 36 bytes a number of the residual stream; queries,
/// keys and values with their rotation, 14; attention's output, 4; and four results of the MLP, 8.
pub fn autograd_bytes(config: &ModelConfig, tokens: usize, recompute: bool) -> f64 {
    let stream = config.hidden_size as f64;
    let queries = (config.num_heads * config.head_dim) as f64;
    let keys = (config.num_kv_heads * config.head_dim) as f64;
    let layer = 36.0 * stream + 14.0 * (queries + 2.0 * keys) + 4.0 * queries + 8.0 * config.mlp_width() as f64;
    let layers = config.layers.len() as f64;
    let kept = if recompute { 1.0 } else { layers };
    tokens as f64 * (layers * stream * BF16 + (kept + 1.0) * layer) + WORKSPACE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Family;

    // SmolLM2-135M's 8 × 256 tokens had a peak of 3,601 MB, of which weights, gradients and moments are 2,052 MiB; with
    // recompute 2,432 MB (docs/performance.md).
    #[test]
    fn passes_of_the_kernels_take_about_what_was_measured() {
        let mut config = ModelConfig::small(Family::Llama);
        (config.hidden_size, config.intermediate_size, config.vocab_size) = (576, 1536, 49_152);
        (config.num_heads, config.num_kv_heads, config.head_dim) = (9, 3, 64);
        config.layers = vec![config.layers[0].clone(); 30];
        let gb = |recompute| kernel_bytes(&config, 2048, recompute) / 1e9;
        assert!((gb(false) - 1.5).abs() < 0.1, "{}", gb(false));
        assert!((gb(true) - 0.28).abs() < 0.03, "{}", gb(true));
    }

    #[test]
    fn a_pass_of_autograd_is_counted_by_hand() {
        let config = ModelConfig::small(Family::Llama);
        // Width 16, queries 16, keys 8, MLP 24; two layers.
        let layer = 36.0 * 16.0 + 14.0 * 32.0 + 4.0 * 16.0 + 8.0 * 24.0;
        let of = |recompute| autograd_bytes(&config, 10, recompute) - WORKSPACE;
        assert_eq!(of(true), 10.0 * (2.0 * 16.0 * 2.0 + 2.0 * layer));
        assert_eq!(of(false), 10.0 * (2.0 * 16.0 * 2.0 + 3.0 * layer));
    }
}
