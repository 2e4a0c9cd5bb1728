//! From quantised blocks to numbers.

use super::layout::{LANES, Layout, PREFETCH_WORDS, RUN, number};
use crate::model::kernels::isa::kernel;
use crate::model::kernels::memory::prefetch;
use crate::model::kernels::vector::Vector;

kernel! {
    /// Writes the weights of 16 outputs, for `runs` runs of inputs from the `first` on: a line for each input, `stride`
    /// numbers from one to the next, with the outputs side by side.
    ///
    /// # Safety
    /// `blocks` are those of these outputs from the first run on, `into` is valid for the lines.
    pub(super) unsafe fn expand<V, L: Layout>(
        blocks: *const u32,
        first: usize,
        runs: usize,
        into: *mut f32,
        stride: usize,
    ) {
        for lane in (0..LANES).step_by(V::LANES) {
            for run in first..first + runs {
                let block = blocks.add(run / L::RUNS * L::LINES * LANES + lane);
                let into = into.add((run - first) * RUN * stride + lane);
                expand_run::<V, L>(block, run % L::RUNS, into, stride);
            }
        }
    }
}

#[inline(always)]
unsafe fn expand_run<V: Vector, L: Layout>(block: *const u32, run: usize, into: *mut f32, stride: usize) {
    let (in_low, in_high) = (32 / L::LOW, 32 / L::HIGH.max(1));
    // SAFETY: the run is within the block, by the caller's promise; prefetching needs no validity.
    unsafe {
        let low = block.add((L::HEADER + run * (L::LOW + L::HIGH)) * LANES);
        let high = low.add(L::LOW * LANES);
        let groups = RUN / L::GROUP;
        let (mut scale, mut shift) = L::scale_and_shift::<V>(block, run * groups);
        for line in 0..L::LOW {
            if groups > 1 && line == L::LOW / 2 {
                (scale, shift) = L::scale_and_shift::<V>(block, run * groups + 1);
            }
            let low = low.add(line * LANES);
            prefetch(low.wrapping_add(PREFETCH_WORDS));
            for i in 0..in_low {
                let step = line * in_low + i;
                let lower = (low, (i * L::LOW) as u32);
                let upper = (high.add(step / in_high * LANES), (L::HIGH * (step % in_high)) as u32);
                let number = number::<V, L>(lower, upper);
                number.mul_add(scale, shift).store(into.add(step * stride));
            }
        }
    }
}
