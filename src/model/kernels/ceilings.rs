//! What this machine can do at most, measured: the measure for everything else.

use std::hint::black_box;
use std::time::Instant;

#[cfg(target_arch = "x86_64")]
use super::matmul;
use super::matmul::Precision;
use super::simd::{Bf16Product, Isa, Kernel, Vector};
use super::threads::Pool;

/// More than any cache holds.
const MEMORY_BYTES: usize = 256 << 20;
/// Each measurement is repeated; other processes only ever make it slower.
const REPEATS: usize = 8;
/// Independent chains of multiply-adds, so that their latency does not count.
const CHAINS: usize = 12;
const CHAIN_LENGTH: usize = 1 << 20;

/// Bytes a second that all threads of the pool read from memory.
pub fn memory_bandwidth(pool: &Pool, isa: Isa) -> f64 {
    let memory = vec![1f32; MEMORY_BYTES / size_of::<f32>()];
    let best = best_seconds(|| {
        pool.run_ranges(memory.len() / 1024, 1, |range| {
            let part = &memory[range.start * 1024..range.end * 1024];
            // SAFETY: the kernel holds a borrow, and the part is whole vectors long.
            black_box(unsafe { isa.run(Sum(part)) });
        })
    });
    MEMORY_BYTES as f64 / best
}

/// Operations a second of all threads of the pool in products of this precision, a multiply-add counted as two.
pub fn arithmetic(pool: &Pool, isa: Isa, precision: Precision) -> f64 {
    let tasks = 4 * pool.threads();
    let mut operations = 0;
    let best = best_seconds(|| {
        let mut counts = vec![0; tasks];
        pool.for_each(&mut counts, |_, count| *count = multiply_registers(isa, precision));
        operations = counts.iter().sum();
    });
    operations as f64 / best
}

/// Returns how many operations it were.
fn multiply_registers(isa: Isa, precision: Precision) -> usize {
    // SAFETY: `isa` is there, and only registers are touched.
    unsafe {
        match (precision, isa.bf16_product()) {
            (Precision::F32, _) | (_, Bf16Product::Widen) => isa.run(MultiplyAdd),
            #[cfg(target_arch = "x86_64")]
            (_, Bf16Product::Dot) => matmul::dot::peak(),
            #[cfg(target_arch = "x86_64")]
            (_, Bf16Product::Tiles) => matmul::amx::peak(),
        }
    }
}

fn best_seconds(mut work: impl FnMut()) -> f64 {
    let seconds = (0..REPEATS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}

struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        let step = 4 * V::LANES;
        // SAFETY: offsets stay below the length, a multiple of the step.
        unsafe {
            let mut sums = [V::splat(0.0); 4];
            for i in (0..self.0.len()).step_by(step) {
                for line in (0..step).step_by(64 / size_of::<f32>()) {
                    V::prefetch(self.0.as_ptr().wrapping_add(i + 1024 + line).cast());
                }
                for (lane, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add(V::load(self.0.as_ptr().add(i + lane * V::LANES)));
                }
            }
            sums.into_iter().map(|sum| sum.reduce_add()).sum()
        }
    }
}

struct MultiplyAdd;

impl Kernel for MultiplyAdd {
    /// Operations.
    type Output = usize;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> usize {
        // SAFETY: registers only.
        unsafe {
            let factor = V::splat(black_box(0.999));
            let mut sums = [V::splat(1.0); CHAINS];
            for _ in 0..CHAIN_LENGTH {
                for sum in &mut sums {
                    *sum = sum.mul_add(factor, factor);
                }
            }
            black_box(sums.into_iter().map(|sum| sum.reduce_add()).sum::<f32>());
            CHAIN_LENGTH * CHAINS * V::LANES * 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_numbers() {
        let pool = Pool::new(1);
        assert!(arithmetic(&pool, Isa::detect(), Precision::F32) > 1e6);
        assert!(arithmetic(&pool, Isa::detect(), Precision::Bf16) > 1e6);
        assert!(memory_bandwidth(&pool, Isa::detect()) > 1e6);
    }
}
