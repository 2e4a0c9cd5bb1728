//! Shapes of known models, from their public `config.json`, and shapes given by numbers.

use serde_json::{Value, json};

use crate::model::{ModelConfig, ModelError};

/// Sizes of a dense decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    layers: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    vocabulary: usize,
    tied: bool,
}

/// A line of the table: name, family, and in their order the sizes.
type Line = (&'static str, &'static str, [usize; 6], bool);

const KNOWN: [Line; 11] = [
    ("smollm2-135m", "llama", [30, 576, 1_536, 9, 3, 49_152], true),
    ("smollm2-1.7b", "llama", [24, 2_048, 8_192, 32, 32, 49_152], true),
    ("llama-3.1-8b", "llama", [32, 4_096, 14_336, 32, 8, 128_256], false),
    ("llama-3.1-70b", "llama", [80, 8_192, 28_672, 64, 8, 128_256], false),
    ("qwen2.5-0.5b", "qwen2", [24, 896, 4_864, 14, 2, 151_936], true),
    ("qwen2.5-1.5b", "qwen2", [28, 1_536, 8_960, 12, 2, 151_936], true),
    ("qwen2.5-3b", "qwen2", [36, 2_048, 11_008, 16, 2, 151_936], true),
    ("qwen2.5-7b", "qwen2", [28, 3_584, 18_944, 28, 4, 152_064], false),
    ("qwen2.5-14b", "qwen2", [48, 5_120, 13_824, 40, 8, 152_064], false),
    ("qwen2.5-32b", "qwen2", [64, 5_120, 27_648, 40, 8, 152_064], false),
    ("qwen2.5-72b", "qwen2", [80, 8_192, 29_568, 64, 8, 152_064], false),
];

/// Returns the names of known shapes.
pub fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|line| line.0)
}

/// Returns the shape of a known model, such as `qwen2.5-7b`, whatever the case of its letters.
///
/// # Errors
/// Fails never for the shapes of the table.
pub fn known(name: &str) -> Result<Option<ModelConfig>, ModelError> {
    let name = name.to_lowercase();
    let line = KNOWN.iter().find(|line| line.0 == name);
    line.map(
        |&(_, family, [layers, hidden, intermediate, heads, kv_heads, vocabulary], tied)| {
            let sizes = Sizes {
                layers,
                hidden,
                intermediate,
                heads,
                kv_heads,
                vocabulary,
                tied,
            };
            sizes.config(family)
        },
    )
    .transpose()
}

/// Returns the shape of a Llama-like model given by numbers:
/// `layers=32,hidden=4096,intermediate=14336,heads=32,kv_heads=8,vocabulary=128256`, and `tied` if its head is the
/// embedding. `None` if the text is of another form.
///
/// # Errors
/// Returns a message for a number that is missing or wrong.
pub fn by_numbers(text: &str) -> Option<Result<ModelConfig, String>> {
    text.contains('=').then(|| {
        let number = |name: &str| -> Result<usize, String> {
            let pairs = text.split(',').filter_map(|part| part.split_once('='));
            let (_, value) = pairs
                .into_iter()
                .find(|(key, _)| key.trim() == name)
                .ok_or_else(|| format!("the shape {text:?} has no {name}=NUMBER"))?;
            let parsed = value.trim().parse().ok().filter(|number| *number > 0);
            parsed.ok_or_else(|| format!("{name} of the shape must be a positive number, got {value:?}"))
        };
        let sizes = Sizes {
            layers: number("layers")?,
            hidden: number("hidden")?,
            intermediate: number("intermediate")?,
            heads: number("heads")?,
            kv_heads: number("kv_heads")?,
            vocabulary: number("vocabulary")?,
            tied: text.split(',').any(|part| part.trim() == "tied"),
        };
        sizes.config("llama").map_err(|error| error.to_string())
    })
}

impl Sizes {
    fn config(self, family: &str) -> Result<ModelConfig, ModelError> {
        let json: Value = json!({
            "model_type": family,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "max_position_embeddings": 131_072,
        });
        ModelConfig::from_json(&json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Parameters as the model cards and checkpoints have them.
    #[test]
    fn known_shapes_have_the_parameters_of_their_models() {
        for (name, parameters) in [
            ("smollm2-135m", 134_515_008),
            ("smollm2-1.7b", 1_711_376_384),
            ("llama-3.1-8b", 8_030_261_248),
            ("llama-3.1-70b", 70_553_706_496),
            ("qwen2.5-0.5b", 494_032_768),
            ("Qwen2.5-7B", 7_615_616_512),
            ("qwen2.5-14b", 14_770_033_664),
            ("qwen2.5-32b", 32_763_876_352),
            ("qwen2.5-72b", 72_706_203_648),
        ] {
            assert_eq!(known(name).unwrap().unwrap().num_parameters(), parameters, "{name}");
        }
        assert!(names().all(|name| known(name).is_ok_and(|shape| shape.is_some())));
        assert_eq!(known("none").unwrap(), None);
    }

    #[test]
    fn shapes_are_given_by_numbers() {
        let text = "layers=32,hidden=4096,intermediate=14336,heads=32,kv_heads=8,vocabulary=128256";
        let shape = by_numbers(text).unwrap().unwrap();
        assert_eq!(shape.num_parameters(), 8_030_261_248);
        assert_eq!(
            by_numbers(&format!("{text},tied")).unwrap().unwrap().num_parameters(),
            8_030_261_248 - 128_256 * 4096
        );
        assert!(by_numbers("qwen2.5-7b").is_none());
        assert!(by_numbers("layers=2").unwrap().unwrap_err().contains("hidden=NUMBER"));
        assert!(
            by_numbers(&text.replace("=32", "=0"))
                .unwrap()
                .unwrap_err()
                .contains("got \"0\"")
        );
        assert!(by_numbers(&text.replace("kv_heads=8", "kv_heads=5")).unwrap().is_err());
    }
}
