//! Models that the binary carries.

use super::files::Files;

/// The files of one model by name.
type Embedded = (&'static str, &'static [(&'static str, &'static [u8])]);

macro_rules! asset {
    ($model:literal, $file:literal) => {
        include_bytes!(concat!("../../../assets/models/", $model, "/", $file)) as &[u8]
    };
}

const TOKENIZER: &[u8] = asset!("tiny", "tokenizer.json");
const TOKENIZER_CONFIG: &[u8] = asset!("tiny", "tokenizer_config.json");
const GENERATION_CONFIG: &[u8] = asset!("tiny", "generation_config.json");

const MODELS: &[Embedded] = &[
    // Made by `scripts/make-tiny-model.rs`.
    (
        "tiny",
        &[
            ("config.json", asset!("tiny", "config.json")),
            ("generation_config.json", GENERATION_CONFIG),
            ("model.safetensors", asset!("tiny", "model.safetensors")),
            ("tokenizer.json", TOKENIZER),
            ("tokenizer_config.json", TOKENIZER_CONFIG),
        ],
    ),
    // Its answers are given (`engine::session::script`). The template has tools and thinking, the context room for the
    // prompts of coding agents, and the few random weights compute them in seconds (`scripts/make-scripted-model.py`).
    (
        "scripted",
        &[
            ("config.json", asset!("scripted", "config.json")),
            ("chat_template.jinja", asset!("scripted", "chat_template.jinja")),
            ("generation_config.json", GENERATION_CONFIG),
            ("model.safetensors", asset!("scripted", "model.safetensors")),
            ("tokenizer.json", TOKENIZER),
            ("tokenizer_config.json", TOKENIZER_CONFIG),
        ],
    ),
];

/// Returns the names of the built-in models, the NAME of `builtin:NAME`.
pub(super) fn names() -> Vec<&'static str> {
    MODELS.iter().map(|(name, _)| *name).collect()
}

/// Returns the files of the built-in model `name`; `None` if there is none.
pub(super) fn files(name: &str) -> Option<Files> {
    let (name, files) = MODELS.iter().find(|(known, _)| *known == name)?;
    Some(Files::Embedded { name, files })
}
