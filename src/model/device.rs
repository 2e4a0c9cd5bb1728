//! Where a model computes and in which type: what `ajet.engine.device` and `dtype` mean on this machine.

use candle_core::{DType, Device};

use super::error::{ModelError, Result};
use crate::config::schema::Dtype;

/// The device that a name asks for: `auto`, `cpu`, `cuda`, `cuda:N` or `metal`. `auto` is the first GPU that this build
/// can use, else the CPU.
///
/// # Errors
/// The name is none of these, or asks for a device that this build or machine does not have.
pub fn choose(name: &str) -> Result<Device> {
    match name {
        "auto" if cfg!(feature = "cuda") && candle_core::utils::cuda_is_available() => cuda(name, 0),
        "auto" if cfg!(feature = "metal") && candle_core::utils::metal_is_available() => metal(name),
        "auto" | "cpu" => Ok(Device::Cpu),
        "cuda" => cuda(name, 0),
        "metal" => metal(name),
        _ => match name.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
            Some(ordinal) => cuda(name, ordinal),
            None => Err(refused(name, "allowed are auto, cpu, cuda:N and metal")),
        },
    }
}

/// The type of weights and matrix products: f32 on the CPU and bf16 on a GPU, unless the configuration says.
pub fn dtype(asked: Dtype, device: &Device) -> DType {
    match asked {
        Dtype::F32 => DType::F32,
        Dtype::Bf16 => DType::BF16,
        Dtype::Auto if device.is_cpu() => DType::F32,
        Dtype::Auto => DType::BF16,
    }
}

/// The device's name, such as `cpu` or `cuda:0`.
pub fn name(device: &Device) -> String {
    match device.location() {
        candle_core::DeviceLocation::Cpu => "cpu".into(),
        candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        candle_core::DeviceLocation::Metal { .. } => "metal".into(),
    }
}

fn cuda(name: &str, ordinal: usize) -> Result<Device> {
    if !cfg!(feature = "cuda") {
        return Err(refused(
            name,
            "this program was built without CUDA\nhint: build it with `cargo build --release --features cuda`, or set \
             ajet.engine.device to cpu",
        ));
    }
    Device::new_cuda(ordinal).map_err(|e| refused(name, e))
}

fn metal(name: &str) -> Result<Device> {
    if !cfg!(feature = "metal") {
        return Err(refused(
            name,
            "this program was built without Metal\nhint: build it with `cargo build --release --features metal`, or set \
             ajet.engine.device to cpu",
        ));
    }
    Device::new_metal(0).map_err(|e| refused(name, e))
}

fn refused(name: &str, reason: impl ToString) -> ModelError {
    ModelError::Device {
        given: name.to_owned(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_always_there_and_computes_in_f32() {
        let device = choose("cpu").unwrap();
        assert_eq!(name(&device), "cpu");
        assert_eq!(dtype(Dtype::Auto, &device), DType::F32);
        assert_eq!(dtype(Dtype::Bf16, &device), DType::BF16);
        assert!(choose("auto").is_ok());
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error_that_says_what_to_do() {
        for (name, told) in [("tpu", "allowed are auto, cpu"), ("cuda:x", "allowed are")] {
            let error = choose(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(told), "{error}");
        }
        if cfg!(not(feature = "cuda")) {
            for name in ["cuda", "cuda:1"] {
                let error = choose(name).unwrap_err().to_string();
                assert!(
                    error.contains("built without CUDA") && error.contains("hint:"),
                    "{error}"
                );
            }
        }
    }
}
