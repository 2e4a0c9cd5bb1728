//! Device and data type of a model's computation, from `ajet.engine.device` and `dtype`.

use candle_core::{DType, Device};

use super::error::{ModelError, Result};
use super::kernels::Pool;
use crate::config::schema::Dtype;

/// The driver's errors for the toolkit's stub library, and for a machine without a GPU.
const NO_DRIVER: &str = "CUDA_ERROR_STUB_LIBRARY";
const NO_GPU: &str = "CUDA_ERROR_NO_DEVICE";
/// Compute capability of the first GPUs with bf16 (Ampere).
const BF16_CAPABILITY: (i32, i32) = (8, 0);

/// Returns the device of a name: `auto`, `cpu`, `cuda`, `cuda:N` or `metal`. `auto` is the first GPU that this build
/// can use, or else the CPU. A GPU that exists but cannot be used is an error, instead of a slow run.
///
/// # Errors
/// Fails if the name is none of these, or the build or the machine does not have the device.
pub fn choose(name: &str) -> Result<Device> {
    match name {
        "auto" if cfg!(feature = "cuda") => match open_cuda(0) {
            Err(error) if [NO_DRIVER, NO_GPU].iter().any(|why| error.to_string().contains(why)) => Ok(Device::Cpu),
            opened => opened.map_err(|e| refused(name, explain(&e.to_string()))),
        },
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

/// Returns the default type of the weights: f32 on cards older than Ampere, bf16 on other GPUs. On the
/// CPU it is f32 in any case; bf16 there is what the sampler's kernels pack the weights to.
pub fn dtype(asked: Dtype, device: &Device) -> DType {
    match asked {
        Dtype::F32 => DType::F32,
        _ if device.is_cpu() => DType::F32,
        Dtype::Auto if compute_capability(device).is_some_and(|capability| capability < BF16_CAPABILITY) => DType::F32,
        Dtype::Auto | Dtype::Bf16 => DType::BF16,
    }
}

/// Memory of a GPU in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Free memory.
    pub free: usize,
    /// Total memory.
    pub total: usize,
}

impl Memory {
    /// Returns the bytes available for caches, if a share of the total memory may be used, including what is in use
    /// now.
    pub fn left_of(&self, share: f64) -> usize {
        ((self.total as f64 * share) as usize).saturating_sub(self.total - self.free)
    }
}

/// Returns the memory of a GPU according to its driver, after unused memory was returned to it; `None` on other
/// devices.
///
/// # Errors
/// Fails if the driver failed.
pub fn memory(device: &Device) -> Result<Option<Memory>> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device {
        device.synchronize()?;
        let (free, total) = cuda
            .cuda_stream()
            .context()
            .mem_get_info()
            .map_err(candle_core::Error::wrap)?;
        return Ok(Some(Memory { free, total }));
    }
    let _ = device;
    Ok(None)
}

/// Returns the number of GPUs that a build with CUDA finds; 0 in other builds and without a driver.
pub fn gpu_count() -> usize {
    #[cfg(feature = "cuda")]
    let count = candle_core::cuda_backend::cudarc::driver::CudaContext::device_count().unwrap_or(0) as usize;
    #[cfg(not(feature = "cuda"))]
    let count = 0;
    count
}

/// Returns the compute capability of an NVIDIA GPU, such as (9, 0).
fn compute_capability(device: &Device) -> Option<(i32, i32)> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device {
        return cuda.cuda_stream().context().compute_capability().ok();
    }
    let _ = device;
    None
}

/// Returns the device's name, such as `cpu` or `cuda:0`.
pub fn name(device: &Device) -> String {
    match device.location() {
        candle_core::DeviceLocation::Cpu => "cpu".into(),
        candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        candle_core::DeviceLocation::Metal { .. } => "metal".into(),
    }
}

/// Returns the device's name, on a CPU with the instruction set that computes, such as `cpu (avx2)`.
pub fn described(device: &Device, pool: &Pool) -> String {
    match device.is_cpu() {
        true => format!("{} ({})", name(device), pool.isa().name()),
        false => name(device),
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
    open_cuda(ordinal).map_err(|e| refused(name, explain(&e.to_string())))
}

/// With a stream of its own: candle's other one is each thread's own, and the model is used by the model thread and by
/// the threads that train, whose work must not overtake each other.
fn open_cuda(ordinal: usize) -> candle_core::Result<Device> {
    Device::new_cuda_with_stream(ordinal)
}

/// Returns the driver's error with its meaning and a hint.
fn explain(error: &str) -> String {
    let known = [
        (
            NO_DRIVER,
            "NVIDIA's driver is missing: the libcuda.so.1 that was loaded is the toolkit's stand-in",
            "install the driver (580 or newer for CUDA 13) and take the stand-in's directory out of LD_LIBRARY_PATH, or \
             set ajet.engine.device to cpu",
        ),
        (
            NO_GPU,
            "NVIDIA's driver sees no GPU",
            "`nvidia-smi` lists those it sees; a container needs --gpus all, and CUDA_VISIBLE_DEVICES hides those that \
             it does not name",
        ),
        (
            "CUDA_ERROR_INVALID_DEVICE",
            "the driver knows no GPU of this number",
            "they are counted from 0, in the order of CUDA_VISIBLE_DEVICES",
        ),
        (
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "the driver's library and its kernel module are of different versions",
            "restart the machine after an update of the driver",
        ),
        (
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "the driver is older than the toolkit that built this program",
            "update the driver (580 or newer for CUDA 13)",
        ),
    ];
    let known = known.iter().find(|(code, ..)| error.contains(code));
    known.map_or(error.to_owned(), |(code, what, hint)| {
        format!("{what} ({code})\nhint: {hint}")
    })
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
        assert_eq!(dtype(Dtype::Bf16, &device), DType::F32);
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

    #[test]
    fn the_drivers_errors_are_told_with_their_meaning() {
        let error = r#"DriverError(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library")"#;
        let told = explain(error);
        assert!(told.starts_with("NVIDIA's driver is missing"), "{told}");
        assert!(
            told.contains("stand-in (CUDA_ERROR_STUB_LIBRARY)\nhint: install the driver"),
            "{told}"
        );
        assert_eq!(explain("CUDA_ERROR_ILLEGAL_ADDRESS"), "CUDA_ERROR_ILLEGAL_ADDRESS");
    }

    #[test]
    fn caches_get_what_is_left_of_the_share() {
        let memory = Memory { free: 60, total: 100 };
        assert_eq!(memory.left_of(0.85), 45);
        assert_eq!(memory.left_of(0.3), 0, "more is used already");
        assert_eq!(super::memory(&Device::Cpu).unwrap(), None);
    }
}
