//! Reading safetensors files, tensor by tensor, so that no more than one is in memory twice.

use std::fmt;
use std::io::SeekFrom;

use candle_core::{DType, Device, Tensor};
use indexmap::IndexMap;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::files::{Files, Source};
use super::finite;
use crate::model::error::ModelError;

/// Bytes of header that a file may have; larger ones are no safetensors.
const LARGEST_HEADER: u64 = 100_000_000;

/// An open file of the safetensors format: <https://github.com/huggingface/safetensors#format>.
pub(super) struct Shard {
    place: String,
    source: Box<dyn Source>,
    tensors: IndexMap<String, TensorInfo>,
    data_start: u64,
}

impl Shard {
    /// Opens a file, reads its header and checks that it is complete; returns `None` if it does not exist.
    pub(super) fn open(files: &Files, file: &str) -> Result<Option<Self>, ModelError> {
        let Some(mut source) = files.open(file)? else {
            return Ok(None);
        };
        let place = files.place(file);
        let fail = |reason: String| ModelError::file(&place, reason);
        let file_size = source.seek(SeekFrom::End(0)).map_err(|e| fail(e.to_string()))?;
        source.rewind().map_err(|e| fail(e.to_string()))?;

        let mut length = [0; 8];
        source
            .read_exact(&mut length)
            .map_err(|_| fail(format!("{file_size} bytes are no safetensors file")))?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER.min(file_size) {
            return Err(fail(format!(
                "this is no safetensors file (header of {length} bytes, file of {file_size})"
            )));
        }
        let mut header = vec![0; length as usize];
        source
            .read_exact(&mut header)
            .map_err(|e| fail(format!("the header cannot be read: {e}")))?;
        let Header(tensors) =
            serde_json::from_slice(&header).map_err(|e| fail(format!("the header is damaged: {e}")))?;
        let data_start = 8 + length;
        check_layout(&tensors, data_start, file_size).map_err(fail)?;
        Ok(Some(Self {
            place,
            source,
            tensors,
            data_start,
        }))
    }

    /// Returns the name of the file for messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Returns the names and shapes of the tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), &info.shape[..]))
    }

    /// Reads a tensor, converted to `dtype` on `device`.
    pub(super) fn read(&mut self, name: &str, device: &Device, dtype: DType) -> Result<Tensor, ModelError> {
        let fail = |reason: String| ModelError::file(format!("{} of {}", name, self.place), reason);
        let info = self
            .tensors
            .get(name)
            .ok_or_else(|| fail("there is no such tensor".into()))?;
        let stored = match info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::F64 => DType::F64,
            other => {
                return Err(fail(format!(
                    "weights of type {other:?} are not supported; F32, BF16, F16, F64 are"
                )));
            }
        };
        let (start, end) = info.data_offsets; // within the file: `check_layout`
        let mut bytes = vec![0; end - start];
        self.source
            .seek(SeekFrom::Start(self.data_start + start as u64))
            .and_then(|_| self.source.read_exact(&mut bytes))
            .map_err(|e| fail(e.to_string()))?;
        let tensor = Tensor::from_raw_buffer(&bytes, stored, &info.shape, &Device::Cpu)?;
        drop(bytes);
        finite::weight(&tensor, device, dtype, name, &self.place)
    }
}

/// The tensors of a header. The format's own reader takes the last of several with one name.
struct Header(IndexMap<String, TensorInfo>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut tensors = IndexMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info = map.next_value::<serde_json::Value>()?;
            let info = TensorInfo::deserialize(info).map_err(|e| A::Error::custom(format!("tensor {name}: {e}")))?;
            if tensors.insert(name.clone(), info).is_some() {
                return Err(A::Error::custom(format!("tensor {name} is there twice")));
            }
        }
        Ok(Header(tensors))
    }
}

/// Checks that the tensors have as many bytes as their shapes say and cover the rest of the file, one behind the other.
fn check_layout(tensors: &IndexMap<String, TensorInfo>, data_start: u64, file_size: u64) -> Result<(), String> {
    let mut by_place: Vec<(&String, &TensorInfo)> = tensors.iter().collect();
    by_place.sort_by_key(|(_, info)| info.data_offsets);
    let mut at = 0;
    for (name, info) in by_place {
        let (start, end) = info.data_offsets;
        let count = info.shape.iter().try_fold(1_usize, |count, n| count.checked_mul(*n));
        let bits = count.and_then(|count| count.checked_mul(info.dtype.bitsize()));
        if bits.is_none() || end.checked_sub(start) != bits.map(|bits| bits / 8) {
            return Err(format!(
                "the header is damaged: tensor {name} has shape {:?} of type {:?} and the bytes {start} to {end}",
                info.shape, info.dtype
            ));
        }
        if start != at {
            return Err(format!(
                "the header is damaged: tensor {name} begins at byte {start} of the data, the one before it ends at {at}"
            ));
        }
        at = end;
    }
    let expected = u128::from(data_start) + at as u128;
    if u128::from(file_size) != expected {
        return Err(format!(
            "the file has {file_size} bytes, its header says {expected}\nhint: a download was cut short; fetch the file \
             again"
        ));
    }
    Ok(())
}
