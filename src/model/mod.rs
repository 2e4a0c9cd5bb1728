//! One transformer driven by the Hugging Face `config.json`: configuration, weights, tokenizer, the differentiable
//! forward pass and the kernels.

mod call_content;
pub mod chat_template;
pub mod compute_pool;
pub mod config;
mod config_fields;
pub mod device;
pub mod error;
pub mod export;
mod family;
pub mod kernels;
mod known_fields;
pub mod load;
pub mod lora;
pub mod memory;
pub mod ops;
pub mod packed;
pub mod param;
pub mod peft;
pub mod rope;
pub mod token_set;
pub mod tokenizer;
pub mod transformer;
pub mod weights;

pub use chat_template::{ChatTemplate, Trial};
pub use compute_pool::compute_pool;
pub use config::ModelConfig;
pub use error::ModelError;
pub use load::{ADDITIONAL_CHAT_TEMPLATES, LoadedModel, load};
pub use packed::PackedBatch;
pub use token_set::TokenSet;
pub use tokenizer::Tokenizer;
pub use transformer::Transformer;
pub use weights::{Trainable, Weights};
