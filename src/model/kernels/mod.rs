//! Hand-written CPU kernels: the only place of `unsafe`.

pub mod train;
