//! Models that the binary carries.

use super::files::Files;

/// The files of one model by name.
type Embedded = (&'static str, &'static [(&'static str, &'static [u8])]);

macro_rules! embed {
    ($model:literal: $($file:literal),+) => {
        ($model, &[$(($file, include_bytes!(concat!("../../../assets/models/", $model, "/", $file)))),+])
    };
}

/// Made by `scripts/make-tiny-model.rs`.
const MODELS: &[Embedded] = &[
    embed!("tiny": "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
];

/// Names of the models, as in `builtin:NAME`.
pub(super) fn names() -> Vec<&'static str> {
    MODELS.iter().map(|(name, _)| *name).collect()
}

/// The files of the model of that name.
pub(super) fn files(name: &str) -> Option<Files> {
    let (name, files) = MODELS.iter().find(|(known, _)| *known == name)?;
    Some(Files::Embedded { name, files })
}
