//! Devices to plan for: what data sheets say of GPUs, and what was measured of a CPU.

use serde::Serialize;

/// What a rank computes on. Figures are what the device reaches at most; [`Reached`] says how much of it counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Name, such as `NVIDIA H100 SXM`.
    pub name: String,
    /// Whether it is a CPU, for which the engine has kernels of its own.
    pub is_cpu: bool,
    /// Memory in bytes.
    pub memory: f64,
    /// Bytes per second from its memory.
    pub bandwidth: f64,
    /// Operations per second of dense matrix products, in bf16 on a GPU; a multiply-add counts as two.
    pub flops: f64,
    /// Bytes per second between its memory and the host's, in one direction.
    pub host_link: f64,
    /// Where the figures are from.
    pub source: String,
}

/// Shares of a device's figures that the engine reaches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// Of the bandwidth, while answers are sampled and the optimizer makes its step.
    pub bandwidth: f64,
    /// Of the operations, while answers are sampled.
    pub decoding: f64,
    /// Of the operations, while prompts are read.
    pub prompts: f64,
    /// Of the operations, in an update.
    pub training: f64,
    /// Seconds to start a kernel.
    pub launch: f64,
    /// Whether the shares are measured; otherwise they are assumed.
    pub measured: bool,
}

/// Of docs/performance.md, on two cores: decoding reads and computes at full speed, prompts reach 62 to 75 % of the
/// arithmetic, updates 48 to 58 %.
const CPU: Reached = Reached {
    bandwidth: 1.0,
    decoding: 1.0,
    prompts: 0.7,
    training: 0.55,
    launch: 0.0,
    measured: true,
};

/// Nobody has measured this engine on a GPU. These are what candle's operations, one kernel each, may reach.
const GPU: Reached = Reached {
    bandwidth: 0.7,
    decoding: 0.4,
    prompts: 0.4,
    training: 0.35,
    launch: 5e-6,
    measured: false,
};

impl Device {
    /// Returns what of its figures the engine reaches.
    pub fn reached(&self) -> Reached {
        if self.is_cpu { CPU } else { GPU }
    }

    /// Returns one of several equal parts of the device: ranks on a CPU share its cores and memory.
    #[must_use]
    pub fn part(&self, parts: usize) -> Self {
        let share = 1.0 / parts.max(1) as f64;
        Self {
            memory: self.memory * share,
            bandwidth: self.bandwidth * share,
            flops: self.flops * share,
            ..self.clone()
        }
    }
}

/// A line of the table: name on the command line, name, memory in GB, memory bandwidth in GB/s, dense bf16 TFLOP/s, GB/s
/// to the host in one direction, and the document.
type Line = (&'static str, &'static str, f64, f64, f64, f64, &'static str);

const A100: &str = "NVIDIA A100 Tensor Core GPU data sheet";
const H200: &str = "NVIDIA H200 Tensor Core GPU data sheet, without sparsity";

const GPUS: [Line; 10] = [
    ("a100-40g", "NVIDIA A100 40 GB", 40.0, 1_555.0, 312.0, 32.0, A100),
    ("a100", "NVIDIA A100 80 GB SXM", 80.0, 2_039.0, 312.0, 32.0, A100),
    (
        "h100",
        "NVIDIA H100 SXM",
        80.0,
        3_350.0,
        989.0,
        64.0,
        "NVIDIA H100 Tensor Core GPU data sheet, without sparsity",
    ),
    ("h200", "NVIDIA H200 SXM", 141.0, 4_800.0, 989.0, 64.0, H200),
    (
        "b200",
        "NVIDIA B200",
        180.0,
        8_000.0,
        2_250.0,
        64.0,
        "NVIDIA DGX B200 data sheet, an eighth of the system, without sparsity",
    ),
    (
        "l40s",
        "NVIDIA L40S",
        48.0,
        864.0,
        362.0,
        32.0,
        "NVIDIA L40S data sheet, without sparsity",
    ),
    (
        "l4",
        "NVIDIA L4",
        24.0,
        300.0,
        121.0,
        32.0,
        "NVIDIA L4 data sheet, without sparsity",
    ),
    (
        "a10",
        "NVIDIA A10",
        24.0,
        600.0,
        125.0,
        32.0,
        "NVIDIA A10 data sheet, without sparsity",
    ),
    (
        "rtx4090",
        "NVIDIA GeForce RTX 4090",
        24.0,
        1_008.0,
        165.0,
        32.0,
        "NVIDIA Ada GPU architecture white paper, bf16 with f32 accumulation, without sparsity",
    ),
    (
        "rtx3090",
        "NVIDIA GeForce RTX 3090",
        24.0,
        936.0,
        71.0,
        32.0,
        "NVIDIA Ampere GA102 white paper, bf16 with f32 accumulation, without sparsity",
    ),
];

/// Returns the GPU of this name, such as `h100`.
pub fn gpu(name: &str) -> Option<Device> {
    GPUS.iter().find(|line| line.0 == name).map(device)
}

/// Returns the names and devices of all GPUs in the table.
pub fn gpus() -> impl Iterator<Item = (&'static str, Device)> {
    GPUS.iter().map(|line| (line.0, device(line)))
}

fn device(&(_, name, memory, bandwidth, flops, host_link, source): &Line) -> Device {
    Device {
        name: name.into(),
        is_cpu: false,
        memory: memory * 1e9,
        bandwidth: bandwidth * 1e9,
        flops: flops * 1e12,
        host_link: host_link * 1e9,
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_name() {
        let h100 = gpu("h100").unwrap();
        assert_eq!((h100.memory, h100.bandwidth, h100.flops), (80e9, 3.35e12, 989e12));
        assert_eq!(gpu("none"), None);
        assert_eq!(gpus().count(), GPUS.len());
    }

    #[test]
    fn a_part_shares_everything_but_the_link() {
        let whole = gpu("a100").unwrap();
        let half = whole.part(2);
        assert_eq!((half.memory, half.bandwidth, half.flops), (40e9, 1_019.5e9, 156e12));
        assert_eq!(half.host_link, whole.host_link);
    }
}
