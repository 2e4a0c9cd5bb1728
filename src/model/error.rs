//! Errors of loading, rendering for and writing a model.

use std::path::PathBuf;

/// An error of the model layer. Messages are for the user, with a second line `hint:` where there is something to do.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No model has this name.
    #[error(
        "no model found at `{path}`\nhint: use a Hugging Face directory (config.json, *.safetensors, \
         tokenizer.json), a .gguf file, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or builtin:NAME with NAME one of {}",
        .builtin.join(", ")
    )]
    NotFound {
        /// Given path.
        path: String,
        /// Names of built-in models.
        builtin: Vec<&'static str>,
    },
    /// `AJET_ISA` names an instruction set that this machine does not have.
    #[error("AJET_ISA is `{given}`, which this machine does not have\nhint: use one of {}", .available.join(", "))]
    Isa {
        /// Given name.
        given: String,
        /// Names of the machine's own.
        available: Vec<&'static str>,
    },
    /// `config.json` requires something unsupported.
    #[error("config.json: {0}")]
    Config(String),
    /// A file of the model is missing or invalid.
    #[error("{file}: {reason}")]
    File {
        /// Path of the file or, inside a GGUF, the metadata key.
        file: String,
        /// Reason.
        reason: String,
    },
    /// The tensors do not match the architecture.
    #[error("{0}")]
    Tensors(String),
    /// Only GGUF files have quantised weights.
    #[error(
        "ajet.model.keep_quantized needs a .gguf file, and {0} is none\n\
         hint: set ajet.model.path to a .gguf file, or ajet.model.keep_quantized to false"
    )]
    NothingQuantized(String),
    /// Quantised weights are for the CPU kernels.
    #[error(
        "quantised weights are computed with on a CPU and with its kernels only\n\
         hint: set ajet.engine.device to cpu and ajet.engine.kernels to auto, or ajet.model.keep_quantized to false"
    )]
    QuantizedNeedsKernels,
    /// Quantised weights cannot be trained.
    #[error(
        "quantised weights stay as they are, so that only LoRA adapters can be trained\n\
         hint: set ajet.lora.lora_rank, such as to 16, or ajet.model.keep_quantized to false"
    )]
    QuantizedTraining,
    /// The hub cannot be reached, or refused.
    #[error(
        "no directory `{repo}` found, and cannot download its {file} from the hub: {reason}\nhint: check the id and the network (HF_ENDPOINT names a \
         mirror, HF_TOKEN opens gated models), or use the path of a downloaded directory or .gguf file"
    )]
    Hub {
        /// `org/name`.
        repo: String,
        /// Requested file.
        file: String,
        /// Message of the client.
        reason: String,
    },
    /// The tokenizer is invalid, or a text cannot be encoded.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template is missing or invalid, or rejects the conversation.
    #[error("chat template: {0}")]
    ChatTemplate(String),
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A LoRA target matches no projection of the model.
    #[error("ajet.lora.target_modules: `{given}` matches no projection of the model; available are {available}")]
    LoraTarget {
        /// Given name.
        given: String,
        /// Available names, comma-separated.
        available: String,
    },
    /// The device is not supported by this build or machine.
    #[error("unsupported ajet.engine.device `{given}`: {reason}")]
    Device {
        /// Given device.
        given: String,
        /// Reason.
        reason: String,
    },
    /// A packed batch is not a forest of segments.
    #[error("malformed packed batch: {0}")]
    Batch(String),
    /// A tensor operation failed (mostly: out of memory).
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The model layer's result.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

impl ModelError {
    /// Creates an error about a file.
    pub(crate) fn file(file: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::File {
            file: file.into(),
            reason: reason.to_string(),
        }
    }

    /// Creates an I/O error at a path, for use in `map_err`.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        insta::assert_snapshot!(messages!(ModelError:
            ModelError::NotFound { .. } => ModelError::NotFound {
                path: "/models/none".into(),
                builtin: vec!["tiny", "scripted"],
            },
            ModelError::Isa { .. } => ModelError::Isa {
                given: "mmx".into(),
                available: vec!["portable", "avx2"],
            },
            ModelError::Config(_) => ModelError::Config("unsupported model_type `mamba`".into()),
            ModelError::File { .. } => ModelError::file("/models/a/model.safetensors", "unexpected end of file"),
            ModelError::Tensors(_) => ModelError::Tensors("missing tensor `lm_head.weight`".into()),
            ModelError::NothingQuantized(_) => ModelError::NothingQuantized("builtin:tiny".into()),
            ModelError::QuantizedNeedsKernels => ModelError::QuantizedNeedsKernels,
            ModelError::QuantizedTraining => ModelError::QuantizedTraining,
            ModelError::Hub { .. } => ModelError::Hub {
                repo: "org/name".into(),
                file: "config.json".into(),
                reason: "status 404".into(),
            },
            ModelError::Tokenizer(_) => ModelError::Tokenizer("unknown type `foo`".into()),
            ModelError::ChatTemplate(_) => ModelError::ChatTemplate("roles must alternate".into()),
            ModelError::Io { .. } => ModelError::io("/models/a")(std::io::ErrorKind::NotFound.into()),
            ModelError::LoraTarget { .. } => ModelError::LoraTarget {
                given: "qkv".into(),
                available: "q_proj, k_proj, v_proj, o_proj".into(),
            },
            ModelError::Device { .. } => ModelError::Device {
                given: "cuda:1".into(),
                reason: "this machine has 1 GPU".into(),
            },
            ModelError::Batch(_) => ModelError::Batch("segment 1 starts after its end".into()),
            ModelError::Tensor(_) => ModelError::Tensor(candle_core::Error::Msg("out of memory".into())),
        ));
    }
}
