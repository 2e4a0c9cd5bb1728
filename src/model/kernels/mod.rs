//! What computes on a CPU: matrix products on packed weights, attention over block caches, row-wise operations, and the
//! threads they run on. Plain slices in and out; the only place with `unsafe`.
//!
//! Results do not depend on the batch a row is in, on how a prompt is cut in chunks or on the number of threads, bit by
//! bit; between instruction sets they differ in rounding.
#![allow(unsafe_code)]

mod attention;
pub mod ceilings;
mod matmul;
pub mod memory;
mod rowwise;
mod simd;
#[cfg(test)]
mod testing;
mod threads;
pub mod train;

pub use attention::{AttentionRows, BLOCK_TOKENS, BlockLayout, attention};
pub use matmul::{PackedMatrix, Precision, RowScratch};
pub use rowwise::{exp_and_sum, gated_mlp, max_and_exp_sum, rms_norm, rms_norm_heads, rope};
pub use simd::Isa;
pub use threads::Pool;
