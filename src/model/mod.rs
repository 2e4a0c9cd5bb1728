//! One transformer driven by the Hugging Face `config.json`: configuration, weights, tokenizer, the differentiable
//! forward pass and the kernels.

pub mod config;
pub mod error;
pub mod kernels;
pub mod lora;
pub mod ops;
pub mod packed;
pub mod rope;
pub mod transformer;
pub mod weights;

pub use config::ModelConfig;
pub use error::ModelError;
pub use packed::PackedBatch;
pub use transformer::Transformer;
pub use weights::{Trainable, Weights};
