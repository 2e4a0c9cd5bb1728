//! One transformer driven by the Hugging Face `config.json`: configuration, weights, tokenizer, the differentiable
//! forward pass and the kernels.
//!
//! [`config`] is the architecture, read from `config.json` (`config_json`) with the differences of `family`; [`mod@load`]
//! brings the weights and [`weights`] holds them, with adapters ([`lora`]). [`transformer`] is the forward pass of
//! training on any device, made of [`ops`]; [`kernels`] computes on CPUs. [`tokenizer`] and [`chat_template`] are the
//! text side. [`export`] and [`peft`] write models and adapters.

mod call_content;
pub mod chat_template;
pub mod compute_pool;
pub mod config;
mod config_fields;
mod config_json;
mod cost;
pub mod device;
pub mod error;
pub mod experts;
pub mod export;
mod family;
pub mod kernels;
mod known_fields;
pub mod load;
pub mod lora;
pub mod memory;
pub mod ops;
pub mod packed_batch;
pub mod param;
pub mod peft;
pub mod rope;
pub mod routing;
#[cfg(test)]
pub mod testing;
pub mod token_set;
pub mod tokenizer;
pub mod transformer;
pub mod weights;

pub use chat_template::{ChatTemplate, Trial};
pub use compute_pool::compute_pool;
pub use config::ModelConfig;
pub use cost::PassTokens;
pub use error::ModelError;
pub use load::{ADDITIONAL_CHAT_TEMPLATES, LoadedModel, load, load_quantized};
pub use packed_batch::PackedBatch;
pub use token_set::TokenSet;
pub use tokenizer::Tokenizer;
pub use transformer::Transformer;
pub use weights::{Trainable, Weights};
