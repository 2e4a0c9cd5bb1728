//! Reading safetensors files, tensor by tensor, so that no more than one is in memory twice.

use std::io::SeekFrom;

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::files::{Files, Source};
use crate::model::error::ModelError;

/// Bytes of header that a file may have; larger ones are no safetensors.
const LARGEST_HEADER: u64 = 100_000_000;

/// One open file.
pub(super) struct Shard {
    place: String,
    source: Box<dyn Source>,
    metadata: Metadata,
    data_start: u64,
}

impl Shard {
    /// Opens a file, reads its header and checks that the file is whole; `None` where there is no file.
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
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|e| fail(format!("the header is damaged: {e}")))?;

        let data_start = 8 + length;
        let expected = data_start + metadata.data_len() as u64;
        if file_size != expected {
            return Err(fail(format!(
                "the file has {file_size} bytes, its header says {expected}\nhint: a download was cut short; fetch \
                 the file again"
            )));
        }
        Ok(Some(Self {
            place,
            source,
            metadata,
            data_start,
        }))
    }

    /// Names and shapes of its tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        self.metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, info.shape.clone()))
    }

    /// Reads a tensor.
    pub(super) fn read(&mut self, name: &str, device: &Device, dtype: DType) -> Result<Tensor, ModelError> {
        let fail = |reason: String| ModelError::file(format!("{} of {}", name, self.place), reason);
        let info = self
            .metadata
            .info(name)
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
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        self.source
            .seek(SeekFrom::Start(self.data_start + start as u64))
            .and_then(|_| self.source.read_exact(&mut bytes))
            .map_err(|e| fail(e.to_string()))?;
        let tensor = Tensor::from_raw_buffer(&bytes, stored, &info.shape, &Device::Cpu)?;
        drop(bytes);
        Ok(tensor.to_dtype(dtype)?.to_device(device)?)
    }
}
