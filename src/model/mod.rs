//! One transformer driven by the Hugging Face `config.json`: configuration, weights, tokenizer, the differentiable
//! forward pass and the kernels.

pub mod config;
pub mod weights;

pub use config::ModelConfig;
pub use weights::Weights;
