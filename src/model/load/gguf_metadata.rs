//! Metadata of a GGUF file, read with errors that name the key.

use std::collections::HashMap;
#[cfg(test)]
use std::io::BufReader;

use candle_core::quantized::gguf_file::Value as GgufValue;

#[cfg(test)]
use super::gguf_header::Header;
#[cfg(test)]
use crate::config::small_file::open_regular;
use crate::model::error::ModelError;

/// Key-value pairs of a file.
pub(super) struct Metadata(HashMap<String, GgufValue>);

impl Metadata {
    /// Wraps the key-value pairs of a header.
    pub(super) fn new(pairs: HashMap<String, GgufValue>) -> Self {
        Self(pairs)
    }

    /// Reads the metadata of a file.
    #[cfg(test)]
    pub(super) fn open(path: &std::path::Path) -> Result<Self, ModelError> {
        let file = open_regular(path).map_err(ModelError::io(path))?;
        let header = Header::read(&mut BufReader::new(file), &path.display().to_string())?;
        Ok(Self(header.metadata))
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        must_be: &str,
        get: impl FnOnce(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let wrong = || ModelError::file(key, format!("it is {:?}; it must be {must_be}", value.value_type()));
        get(value).map(Some).ok_or_else(wrong)
    }

    fn required<T>(key: &str, value: Option<T>) -> Result<T, ModelError> {
        value.ok_or_else(|| ModelError::file(key, "this key is missing from the GGUF file"))
    }

    pub(super) fn optional_text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.read(key, "a string", |value| value.to_string().ok().map(String::as_str))
    }

    pub(super) fn text(&self, key: &str) -> Result<&str, ModelError> {
        Self::required(key, self.optional_text(key)?)
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<&str>, ModelError> {
        let texts = self.read(key, "a list of strings", |value| {
            value
                .to_vec()
                .ok()?
                .iter()
                .map(|v| v.to_string().ok().map(String::as_str))
                .collect()
        })?;
        Self::required(key, texts)
    }

    pub(super) fn optional_number(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.read(key, "a whole number", whole_number)
    }

    pub(super) fn number(&self, key: &str) -> Result<u64, ModelError> {
        Self::required(key, self.optional_number(key)?)
    }

    pub(super) fn numbers(&self, key: &str) -> Result<Vec<u64>, ModelError> {
        let numbers = self.read(key, "a list of whole numbers", |value| {
            value.to_vec().ok()?.iter().map(whole_number).collect()
        })?;
        Self::required(key, numbers)
    }

    pub(super) fn optional_float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.read(key, "a number", |value| match value {
            GgufValue::F32(x) => Some(*x),
            GgufValue::F64(x) => Some(*x as f32),
            other => whole_number(other).map(|n| n as f32),
        })
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        Ok(self
            .read(key, "true or false", |value| value.to_bool().ok())?
            .unwrap_or(false))
    }
}

fn whole_number(value: &GgufValue) -> Option<u64> {
    match value {
        GgufValue::I8(n) => u64::try_from(*n).ok(),
        GgufValue::I16(n) => u64::try_from(*n).ok(),
        GgufValue::I32(n) => u64::try_from(*n).ok(),
        GgufValue::I64(n) => u64::try_from(*n).ok(),
        GgufValue::Bool(_) => None,
        other => other.to_u64().ok(),
    }
}
