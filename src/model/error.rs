//! What can go wrong while a model is loaded, rendered for or written.

use std::path::PathBuf;

/// An error of the model layer. Messages are sentences for the user; where something can be done about it, a second
/// line begins with `hint:`.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The path names nothing.
    #[error(
        "there is no model at `{path}`\nhint: a model is a Hugging Face directory (config.json, *.safetensors, \
         tokenizer.json), a .gguf file, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or builtin:NAME with NAME one of {}",
        .builtin.join(", ")
    )]
    NotFound {
        /// As given.
        path: String,
        /// Models that the binary carries.
        builtin: Vec<&'static str>,
    },
    /// `config.json` asks for something that is not built.
    #[error("config.json: {0}")]
    Config(String),
    /// A file of the model is missing, damaged, or says something impossible.
    #[error("{file}: {reason}")]
    File {
        /// The file's path or, inside a GGUF, the metadata key.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The tensors in the files are not those of the architecture.
    #[error("{0}")]
    Tensors(String),
    /// The hub could not be asked, or said no.
    #[error(
        "there is no directory `{repo}` here, and the hub did not give its `{file}`: {reason}\nhint: check the id and the network (HF_ENDPOINT names a \
         mirror, HF_TOKEN opens gated models), or give the path of a downloaded directory or .gguf file"
    )]
    Hub {
        /// `org/name`.
        repo: String,
        /// The file asked for.
        file: String,
        /// The client's message.
        reason: String,
    },
    /// The tokenizer's files are damaged, or text could not be encoded.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template is missing, damaged, or refused the conversation.
    #[error("chat template: {0}")]
    ChatTemplate(String),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// LoRA targets that name no projection of the model.
    #[error("lora target module `{given}` matches nothing in the model; its projections are {available}")]
    LoraTarget {
        /// The name that was asked for.
        given: String,
        /// The names there are, comma-separated.
        available: String,
    },
    /// A device that this build or machine does not have.
    #[error("ajet.engine.device is `{given}`: {reason}")]
    Device {
        /// As configured.
        given: String,
        /// Why not.
        reason: String,
    },
    /// A packed batch that is not a forest of segments.
    #[error("a packed batch is malformed: {0}")]
    Batch(String),
    /// A tensor operation failed (most often: out of memory).
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The model layer's result.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

impl ModelError {
    /// `file: reason`.
    pub(crate) fn file(file: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::File {
            file: file.into(),
            reason: reason.to_string(),
        }
    }

    /// An I/O error at a path; for use in `map_err`.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
