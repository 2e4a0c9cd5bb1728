//! Weights in the type and on the device that the model computes with; each is a finite number.

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};

use crate::model::error::ModelError;

/// Converts a tensor in the process's memory. `tensor_name` and `file` name it in errors.
///
/// # Errors
/// Fails if some of its values are NaN or infinite in `dtype`, or if out of memory.
pub(super) fn weight(
    tensor: &Tensor,
    device: &Device,
    dtype: DType,
    tensor_name: &str,
    file: &str,
) -> Result<Tensor, ModelError> {
    let tensor = tensor.to_dtype(dtype)?.contiguous()?;
    check(&tensor, tensor_name, file)?;
    Ok(tensor.to_device(device)?)
}

/// Checks a contiguous tensor in the process's memory.
///
/// # Errors
/// Fails if some of its values are NaN or infinite.
pub(crate) fn check(tensor: &Tensor, tensor_name: &str, file: &str) -> Result<(), ModelError> {
    let (bad, all, dtype) = (count_non_finite(tensor), tensor.elem_count(), tensor.dtype());
    if bad == 0 {
        return Ok(());
    }
    Err(ModelError::file(
        format!("{tensor_name} of {file}"),
        format!(
            "{bad} of its {all} weights are NaN or infinite as {dtype:?}\nhint: the file is damaged, or the training \
             that wrote it diverged; use another copy or an earlier checkpoint"
        ),
    ))
}

fn count_non_finite(tensor: &Tensor) -> usize {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        return 0; // `weight` is given tensors of the CPU and makes them contiguous
    };
    match storage {
        CpuStorage::F32(x) => x[start..end].iter().filter(|x| !x.is_finite()).count(),
        CpuStorage::F64(x) => x[start..end].iter().filter(|x| !x.is_finite()).count(),
        CpuStorage::F16(x) => x[start..end].iter().filter(|x| !x.is_finite()).count(),
        CpuStorage::BF16(x) => x[start..end].iter().filter(|x| !x.is_finite()).count(),
        _ => 0, // whole numbers
    }
}
