//! Kernels of the weight update on CPU, forward and backward, on plain slices of f32. Work is split in a fixed way, so
//! that the same input gives the same bits whatever the machine does besides.

pub mod accumulate;
pub mod adamw;
pub mod attention;
pub mod gemm;
pub mod head;
pub mod linear;
pub mod rms_norm;
pub mod rope;
pub mod slices;
pub mod swiglu;
mod vectorize;
