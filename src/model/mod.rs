//! One transformer driven by the Hugging Face `config.json`: configuration, weights, tokenizer, the differentiable
//! forward pass and the kernels.

pub mod config;
pub mod error;
pub mod rope;
pub mod weights;

pub use config::ModelConfig;
pub use error::ModelError;
pub use weights::Weights;
