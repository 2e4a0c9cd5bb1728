//! Products of one row with quantised blocks, as decoding for one client needs them: blocks become numbers in registers,
//! since memory is what such a product waits for.

use super::layout::{LANES, Layout, PREFETCH_WORDS, RUN, number};
use crate::model::kernels::isa::kernel;
use crate::model::kernels::memory::prefetch;
use crate::model::kernels::vector::Vector;

kernel! {
    /// Adds the products of `x` and so many runs of inputs to the sums of some outputs, 16 for each of the `strips`, which
    /// are `strip_words` apart. Each sum is one chain over the inputs.
    ///
    /// # Safety
    /// All are valid for these lengths; there are 2 or 4 vectors of outputs.
    pub(super) unsafe fn add_products<V, L: Layout>(
        blocks: *const u32,
        strip_words: usize,
        strips: usize,
        runs: usize,
        x: *const f32,
        sums: *mut f32,
    ) {
        match strips * LANES / V::LANES {
            2 => add_to_vectors::<V, L, 2>(blocks, strip_words, runs, x, sums),
            4 => add_to_vectors::<V, L, 4>(blocks, strip_words, runs, x, sums),
            vectors => debug_assert!(vectors == 0, "{vectors} vectors of outputs"),
        }
    }
}

/// Several vectors, so that their chains of sums are computed side by side.
#[inline(always)]
unsafe fn add_to_vectors<V: Vector, L: Layout, const N: usize>(
    blocks: *const u32,
    strip_words: usize,
    runs: usize,
    x: *const f32,
    sums: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut totals = [V::splat(0.0); N];
        let mut vectors = [blocks; N];
        for (i, (total, vector)) in totals.iter_mut().zip(&mut vectors).enumerate() {
            let first = i * V::LANES;
            *total = V::load(sums.add(first));
            *vector = blocks.add(first / LANES * strip_words + first % LANES);
        }
        for run in 0..runs {
            let block = run / L::RUNS * L::LINES * LANES;
            add_run::<V, L, N>(&vectors, block, run % L::RUNS, x.add(run * RUN), &mut totals);
        }
        for (i, total) in totals.iter().enumerate() {
            total.store(sums.add(i * V::LANES));
        }
    }
}

#[inline(always)]
unsafe fn add_run<V: Vector, L: Layout, const N: usize>(
    vectors: &[*const u32; N],
    block: usize,
    run: usize,
    x: *const f32,
    totals: &mut [V; N],
) {
    let (in_low, in_high, groups) = (32 / L::LOW, 32 / L::HIGH.max(1), RUN / L::GROUP);
    let low = block + (L::HEADER + run * (L::LOW + L::HIGH)) * LANES;
    let high = low + L::LOW * LANES;
    // SAFETY: the run is within the blocks, by the caller's promise; prefetching needs no validity.
    unsafe {
        let (mut scales, mut shifts) = ([V::splat(0.0); N], [V::splat(0.0); N]);
        for line in 0..L::LOW {
            if line.is_multiple_of(L::LOW / groups) {
                for (i, vector) in vectors.iter().enumerate() {
                    let group = run * groups + line * groups / L::LOW;
                    (scales[i], shifts[i]) = L::scale_and_shift::<V>(vector.add(block), group);
                }
            }
            let line_start = low + line * LANES;
            for vector in vectors {
                prefetch(vector.wrapping_add(line_start + PREFETCH_WORDS));
            }
            for i in 0..in_low {
                let step = line * in_low + i;
                let (upper_line, upper_shift) = (high + step / in_high * LANES, (L::HIGH * (step % in_high)) as u32);
                let factor = V::splat(*x.add(step));
                for (v, vector) in vectors.iter().enumerate() {
                    let lower = (vector.add(line_start), (i * L::LOW) as u32);
                    let number = number::<V, L>(lower, (vector.add(upper_line), upper_shift));
                    totals[v] = factor.mul_add(number.mul_add(scales[v], shifts[v]), totals[v]);
                }
            }
        }
    }
}
