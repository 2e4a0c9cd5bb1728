//! What all layers of a pass share.

use crate::model::ModelConfig;
use crate::model::kernels::forest_attention::ForestAttention;
use crate::model::kernels::tensors::Numbers;
use crate::model::kernels::{Compute, Rotation, rope_tokens};
use crate::model::packed_batch::PackedBatch;
use crate::model::routing::ExpertLoads;

/// Inputs that all layers of a pass share.
pub(super) struct Pass<'a> {
    pub config: &'a ModelConfig,
    pub batch: &'a PackedBatch,
    /// Cosines and sines of each rotary embedding, tokens × half of what is rotated of a head.
    pub ropes: Vec<(Numbers<'a>, Numbers<'a>)>,
    pub compute: Compute<'a>,
    /// Tokens whose last residual stream is used, ascending; the last layer's MLP leaves out all others.
    pub predicting: &'a [u32],
    /// Counts what experts compute.
    pub loads: &'a ExpertLoads,
}

impl Pass<'_> {
    /// Returns a layer's attention.
    pub fn attention(&self, layer: usize) -> ForestAttention<'_> {
        ForestAttention {
            batch: self.batch,
            heads: self.config.num_heads,
            kv_heads: self.config.num_kv_heads,
            head_dim: self.config.head_dim,
            scores: self.config.attention_scores(layer),
            compute: self.compute,
        }
    }

    /// Applies a layer's rotary embedding, or its inverse, to queries and keys.
    pub fn rope(&self, layer: usize, q: &mut [f32], k: &mut [f32], rotation: Rotation) {
        let Some(rope) = self.config.layers[layer].rope else {
            return;
        };
        let ((cos, sin), half) = (&self.ropes[rope], self.config.ropes[rope].inv_freq.len());
        let head_dim = self.config.head_dim;
        for (x, heads) in [(q, self.config.num_heads), (k, self.config.num_kv_heads)] {
            let widths = (heads * head_dim, head_dim);
            rope_tokens(self.compute.pool, x, widths, (cos, sin), half, rotation);
        }
    }
}
