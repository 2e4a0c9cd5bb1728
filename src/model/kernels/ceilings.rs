//! Measures the limits of this machine, memory bandwidth and arithmetic, with which benchmarks compare their speed.

use std::hint::black_box;
use std::time::Instant;

use super::isa::{Bf16Product, Isa, kernel};
use super::memory::{CACHE_LINE, prefetch};
#[cfg(target_arch = "x86_64")]
use super::product;
use super::product::Precision;
use super::threads::Pool;

/// Bytes that are read for the bandwidth: more than any cache holds.
const MEMORY_BYTES: usize = 256 << 20;
/// Number of repetitions, of which the fastest counts, since other processes only make it slower.
const REPEATS: usize = 8;
/// Independent chains of multiply-adds, so that their latency does not count.
const CHAINS: usize = 12;
/// Multiply-adds of each chain.
const CHAIN_LENGTH: usize = 1 << 20;

/// Returns the bytes per second that all threads of the pool together read from memory.
pub fn memory_bandwidth(pool: &Pool) -> f64 {
    let memory = vec![1f32; MEMORY_BYTES / size_of::<f32>()];
    let best = best_seconds(|| {
        pool.run_ranges(memory.len() / 1024, 1, |range| {
            let part = &memory[range.start * 1024..range.end * 1024];
            black_box(sum(pool.isa(), part));
        })
    });
    MEMORY_BYTES as f64 / best
}

/// Returns the operations per second of all threads of the pool together in products of this precision; a multiply-add
/// counts as two. For 8-bit integers it is the limit of f32.
pub fn arithmetic(pool: &Pool, precision: Precision) -> f64 {
    let tasks = 4 * pool.threads();
    let mut operations = 0;
    let best = best_seconds(|| {
        let mut counts = vec![0; tasks];
        pool.for_each(&mut counts, |_, count| {
            *count = multiply_registers(pool.isa(), precision)
        });
        operations = counts.iter().sum();
    });
    operations as f64 / best
}

/// Multiplies in registers only, on one thread. Returns the number of operations.
fn multiply_registers(isa: Isa, precision: Precision) -> usize {
    match (precision, isa.bf16_product()) {
        (Precision::F32 | Precision::Int8, _) | (_, Bf16Product::Widen) => multiply_adds(isa),
        // SAFETY: `isa` has these products, and only registers are touched.
        #[cfg(target_arch = "x86_64")]
        (_, Bf16Product::Dot) => unsafe { product::pairs::peak() },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (_, Bf16Product::Tiles) => unsafe { product::amx::peak() },
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

kernel! {
    /// Adds the numbers of a part, whose length is a multiple of 1024.
    fn sum<V>(part: &[f32]) -> f32 {
        let step = 4 * V::LANES;
        let (mut even, mut odd) = ([V::splat(0.0); 2], [V::splat(0.0); 2]);
        for i in (0..part.len() / step * step).step_by(step) {
            for line in (0..step).step_by(CACHE_LINE / size_of::<f32>()) {
                prefetch(part.as_ptr().wrapping_add(i + 1024 + line));
            }
            let p = part.as_ptr().add(i);
            even = [even[0].add(V::load(p)), even[1].add(V::load(p.add(2 * V::LANES)))];
            odd = [odd[0].add(V::load(p.add(V::LANES))), odd[1].add(V::load(p.add(3 * V::LANES)))];
        }
        even[0].add(even[1]).add(odd[0].add(odd[1])).reduce_add()
    }
}

kernel! {
    /// Runs independent chains of multiply-adds. Returns the number of operations.
    fn multiply_adds<V>() -> usize {
        let factor = V::splat(black_box(0.999));
        let mut sums = [V::splat(1.0); CHAINS];
        for _ in 0..CHAIN_LENGTH {
            for sum in &mut sums {
                *sum = sum.mul_add(factor, factor);
            }
        }
        for sum in sums {
            black_box(sum.reduce_add());
        }
        CHAIN_LENGTH * CHAINS * V::LANES * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_numbers() {
        let pool = Pool::new(1);
        assert!(arithmetic(&pool, Precision::F32) > 1e6);
        assert!(arithmetic(&pool, Precision::Bf16) > 1e6);
        assert!(memory_bandwidth(&pool) > 1e6);
    }
}
