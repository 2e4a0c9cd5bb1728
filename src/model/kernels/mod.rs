//! What computes on a CPU, for sampling and for training: matrix products, attention, row-wise operations, the optimizer,
//! and the threads that they run on. Plain slices in and out; the only place with `unsafe`.
//!
//! Sampling's results do not depend on the batch a row is in, on how a prompt is cut in chunks or on the number of
//! threads, bit by bit; training's do not depend on the number of threads. Between instruction sets they differ in
//! rounding.
#![allow(unsafe_code)]

pub mod adamw;
mod cached_attention;
pub mod ceilings;
mod fastest;
pub mod forest_attention;
mod glu;
pub mod head;
mod isa;
pub mod linear;
pub mod memory;
mod product;
mod rms_norm;
mod rope;
mod scores;
mod softmax;
pub mod sums;
pub mod tensors;
#[cfg(test)]
mod testing;
mod threads;
mod vector;

pub use cached_attention::{AttentionRows, BLOCK_TOKENS, BlockLayout, attention};
pub use fastest::{Choice, fastest};
pub use glu::{Activation, gated_mlp, glu, glu_backward};
pub use isa::Isa;
pub use product::{
    BlockFormat, Compute, Into, MAX_PANEL_WIDTH, PackedMatrix, Precision, QuantizedMatrix, RowScratch, Weight,
};
pub use rms_norm::{add_rms_norm, rms_norm, rms_norm_backward, rms_norm_heads};
pub use rope::{Rotation, rope, rope_tokens};
pub use scores::{AttentionScores, LogitScaling, soft_cap, soft_cap_slopes};
pub use softmax::exp_and_sum;
pub use threads::Pool;
