//! A mixture of experts on the CPU kernels: the tokens of each expert are gathered into one block, so that its weights are
//! read once; experts that no token of the batch has chosen are not read.

use super::packed_model::PackedExperts;
use crate::model::kernels::{Activation, Pool, RowScratch, gated_mlp};
use crate::model::routing::Routing;

/// What a mixture computes in, kept from layer to layer.
#[derive(Default)]
pub(super) struct MixtureBuffers {
    /// tokens × experts.
    logits: Vec<f32>,
    /// Inputs of an expert's tokens, and what it computed for them, each tokens × hidden.
    rows: [Vec<f32>; 2],
    /// tokens × width of an expert.
    inner: [Vec<f32>; 2],
    scratch: RowScratch,
}

impl MixtureBuffers {
    /// Computes the mixture of every row of `x` into `y`, both tokens × hidden. A row's result does not depend on the
    /// others: its experts are added up in the order of their numbers.
    pub(super) fn forward(
        &mut self,
        pool: &Pool,
        activation: Activation,
        mixture: &PackedExperts,
        x: &[f32],
        y: &mut [f32],
    ) {
        let (hidden, width) = (mixture.router.inputs(), mixture.config.intermediate_size);
        let Self {
            logits,
            rows: [input, computed],
            inner: [gated, up],
            scratch,
        } = self;
        logits.resize(x.len() / hidden * mixture.config.count, 0.0);
        mixture.router.multiply(pool, x, logits, scratch);
        let routing = Routing::new(&mixture.config, logits);
        y.fill(0.0);
        for block in routing.blocks() {
            let (expert, tokens) = (&mixture.experts[block.expert], block.pairs.len());
            for buffer in [&mut *input, &mut *computed] {
                buffer.resize(tokens * hidden, 0.0);
            }
            for buffer in [&mut *gated, &mut *up] {
                buffer.resize(tokens * width, 0.0);
            }
            routing.gather(block, x, input);
            gated_mlp(pool, activation, input, (&expert.gate, &expert.up), gated, up, scratch);
            expert.down.multiply(pool, gated, computed, scratch);
            routing.weigh(block, 1.0, computed);
            routing.scatter_add(block, computed, y);
        }
    }
}
