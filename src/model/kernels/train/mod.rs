//! Kernels of the weight update, f32 on CPU. Work is split in a fixed way, so that the same input gives the same bits
//! whatever the number of threads is doing besides.

pub mod accumulate;
pub mod adamw;
pub mod attention;
mod gemm;
pub mod head;
pub mod linear;
pub mod rms_norm;
pub mod rope;
pub mod slices;
pub mod swiglu;
mod vectorize;
