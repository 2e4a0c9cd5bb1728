//! Reads fields of `config.json`, with errors that name the field, its value and the allowed ones.

use serde_json::{Map, Value};

use super::error::ModelError;

/// Maximum sizes of a configuration, several times those of the largest models, so that no product of them overflows,
/// and a list of tensors does not exhaust memory.
const LARGEST: [(&str, usize); 14] = [
    ("hidden_size", 1 << 18),
    ("intermediate_size", 1 << 20),
    ("moe_intermediate_size", 1 << 20),
    ("num_experts", 1 << 12),
    ("num_local_experts", 1 << 12),
    ("num_experts_per_tok", 1 << 12),
    ("num_hidden_layers", 1 << 12),
    ("num_attention_heads", 1 << 12),
    ("num_key_value_heads", 1 << 12),
    ("head_dim", 1 << 12),
    ("vocab_size", 1 << 24),
    ("max_position_embeddings", 1 << 27),
    ("sliding_window", 1 << 27),
    ("original_max_position_embeddings", 1 << 27),
];

/// Fields of `config.json`.
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(super) fn of(json: &'a Value) -> Result<Self, ModelError> {
        match json {
            Value::Object(map) => Ok(Self(map)),
            _ => Err(ModelError::Config("it must be a JSON object".into())),
        }
    }

    pub(super) fn read<T>(
        &self,
        key: &str,
        must_be: &str,
        get: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match get(value) {
                Some(read) => Ok(Some(read)),
                None => Err(ModelError::Config(format!("`{key}` is {value}; it must be {must_be}"))),
            },
        }
    }

    /// Reads a dimension: at least 1 and at most its limit in [`LARGEST`].
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let bound = LARGEST.iter().find(|(bounded, _)| *bounded == key);
        let most = bound.map_or(i32::MAX as usize, |(_, most)| *most);
        self.read(key, &format!("a whole number from 1 to {most}"), |v| {
            let size = usize::try_from(v.as_u64()?).ok()?;
            (1..=most).contains(&size).then_some(size)
        })
    }

    pub(super) fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.optional_size(key)?
            .ok_or_else(|| ModelError::Config(format!("`{key}` is missing")))
    }

    /// Reads a whole number from 0.
    pub(super) fn optional_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.read(key, "a whole number from 0", |v| usize::try_from(v.as_u64()?).ok())
    }

    /// Reads from `layer_types` whether each of the layers attends over a sliding window.
    pub(super) fn layer_types(&self, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let must_be = format!("a list of {layers} names, `full_attention` or `sliding_attention`");
        self.read("layer_types", &must_be, |v| {
            let types = v.as_array().filter(|types| types.len() == layers)?;
            let slides = |name: &Value| match name.as_str()? {
                "full_attention" => Some(false),
                "sliding_attention" => Some(true),
                _ => None,
            };
            types.iter().map(slides).collect()
        })
    }

    pub(super) fn optional_number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.read(key, "a number, finite in f32", |v| {
            v.as_f64().filter(|number| (*number as f32).is_finite())
        })
    }

    /// Reads a number above 0, also in f32.
    pub(super) fn optional_positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.read(key, "a number above 0, finite in f32", |v| {
            v.as_f64()
                .filter(|number| *number as f32 > 0.0 && (*number as f32).is_finite())
        })
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        Ok(self.read(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }
}
