//! How quantised blocks lie in memory: 16 outputs side by side, so that vectors hold the same input of several outputs and
//! each output's sum stays one chain over its inputs, as in all products here.
//!
//! A line is a word of each of the 16 outputs. A block is lines of scales, then for each run of 32 inputs lines with the
//! lower bits of their numbers and lines with the upper ones. The values are the file's, and take nearly as many bytes.

use super::format::Block;
use crate::model::kernels::vector::Vector;

/// Outputs side by side.
pub(super) const LANES: usize = 16;
/// Inputs of a run.
pub(in crate::model::kernels::product) const RUN: usize = 32;
/// How far ahead of their use blocks are asked for.
pub(super) const PREFETCH_WORDS: usize = 1024;
/// Bits of a word.
const WORD: usize = 32;

/// A layout of blocks.
pub(super) trait Layout {
    /// Bits of a number in the lines of lower bits: 4 or 8, which is also the number of those lines in a run.
    const LOW: usize;
    /// Bits of a number in the lines of upper bits, likewise: 0, 1 or 2.
    const HIGH: usize;
    /// Inputs that share a scale and a shift.
    const GROUP: usize;
    /// Blocks of the file that are one block here.
    const FILE_BLOCKS: usize;
    /// Runs of a block.
    const RUNS: usize;
    /// Lines of scales.
    const HEADER: usize;
    /// Lines of a block.
    const LINES: usize = Self::HEADER + Self::RUNS * (Self::LOW + Self::HIGH);

    /// The scale and the shift of a group, given the header's first line at an output.
    ///
    /// # Safety
    /// As [`Vector::load`]; the header is valid for a vector of outputs from the first one on.
    unsafe fn scale_and_shift<V: Vector>(header: *const u32, group: usize) -> (V, V);

    /// The header's word of a line for one output, given its blocks of the file.
    fn header(blocks: &[Block], line: usize) -> u32;
}

/// Two scales a word; the shift is the scale times −2^(bits − 1): numbers are signed ones, stored as unsigned.
pub(super) struct Signed<const LOW: usize, const HIGH: usize>;

/// A scale and a shift.
pub(super) struct Shifted<const HIGH: usize>;

/// A scale of scales and one of minima, then the scales and the minima of groups, four a word.
pub(super) struct Nested<const HIGH: usize>;

/// A scale of signed scales, four a word.
pub(super) struct SixBits;

/// Runs `$body` with the layout `$layout` of a format.
macro_rules! with_layout {
    ($format:expr, $layout:ident => $body:expr) => {{
        use $crate::model::kernels::product::quantized::format::BlockFormat;
        use $crate::model::kernels::product::quantized::layout::{Nested, Shifted, Signed, SixBits};
        macro_rules! of {
            ($type:ty) => {{
                type $layout = $type;
                $body
            }};
        }
        match $format {
            BlockFormat::Q4_0 => of!(Signed<4, 0>),
            BlockFormat::Q4_1 => of!(Shifted<0>),
            BlockFormat::Q5_0 => of!(Signed<4, 1>),
            BlockFormat::Q5_1 => of!(Shifted<1>),
            BlockFormat::Q8_0 => of!(Signed<8, 0>),
            BlockFormat::Q4K => of!(Nested<0>),
            BlockFormat::Q5K => of!(Nested<1>),
            BlockFormat::Q6K => of!(SixBits),
        }
    }};
}
pub(super) use with_layout;

impl<const LOW: usize, const HIGH: usize> Layout for Signed<LOW, HIGH> {
    const LOW: usize = LOW;
    const HIGH: usize = HIGH;
    const GROUP: usize = 32;
    const FILE_BLOCKS: usize = 2;
    const RUNS: usize = 2;
    const HEADER: usize = 1;

    #[inline(always)]
    unsafe fn scale_and_shift<V: Vector>(header: *const u32, group: usize) -> (V, V) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = match group {
                0 => V::load_low_f16(header),
                _ => V::load_high_f16(header),
            };
            (scale, scale.mul(V::splat(-((1 << (LOW + HIGH - 1)) as f32))))
        }
    }

    fn header(blocks: &[Block], _: usize) -> u32 {
        pair([blocks[0].halves[0], blocks.get(1).map_or(0, |block| block.halves[0])])
    }
}

impl<const HIGH: usize> Layout for Shifted<HIGH> {
    const LOW: usize = 4;
    const HIGH: usize = HIGH;
    const GROUP: usize = 32;
    const FILE_BLOCKS: usize = 1;
    const RUNS: usize = 1;
    const HEADER: usize = 1;

    #[inline(always)]
    unsafe fn scale_and_shift<V: Vector>(header: *const u32, _: usize) -> (V, V) {
        // SAFETY: the caller's promise.
        unsafe { (V::load_low_f16(header), V::load_high_f16(header)) }
    }

    fn header(blocks: &[Block], _: usize) -> u32 {
        pair(blocks[0].halves)
    }
}

impl<const HIGH: usize> Layout for Nested<HIGH> {
    const LOW: usize = 4;
    const HIGH: usize = HIGH;
    const GROUP: usize = 32;
    const FILE_BLOCKS: usize = 1;
    const RUNS: usize = 8;
    const HEADER: usize = 5;

    #[inline(always)]
    unsafe fn scale_and_shift<V: Vector>(header: *const u32, group: usize) -> (V, V) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = V::load_low_f16(header).mul(byte_of_group(header.add(LANES), group));
            let minimum = V::load_high_f16(header).mul(byte_of_group(header.add(3 * LANES), group));
            (scale, V::splat(0.0).sub(minimum))
        }
    }

    fn header(blocks: &[Block], line: usize) -> u32 {
        let block = &blocks[0];
        match line {
            0 => pair(block.halves),
            1 | 2 => four(&block.scales[4 * (line - 1)..]),
            _ => four(&block.minima[4 * (line - 3)..]),
        }
    }
}

impl Layout for SixBits {
    const LOW: usize = 4;
    const HIGH: usize = 2;
    const GROUP: usize = 16;
    const FILE_BLOCKS: usize = 1;
    const RUNS: usize = 8;
    const HEADER: usize = 5;

    #[inline(always)]
    unsafe fn scale_and_shift<V: Vector>(header: *const u32, group: usize) -> (V, V) {
        // SAFETY: the caller's promise.
        unsafe {
            let signed = byte_of_group::<V>(header.add(LANES), group).sub(V::splat(128.0));
            let scale = V::load_low_f16(header).mul(signed);
            (scale, scale.mul(V::splat(-32.0)))
        }
    }

    fn header(blocks: &[Block], line: usize) -> u32 {
        match line {
            0 => pair(blocks[0].halves),
            _ => four(&blocks[0].scales[4 * (line - 1)..]),
        }
    }
}

/// The unsigned number of an input, given where its lower and its upper bits are: the word of the first output, and the
/// first bit.
///
/// # Safety
/// As [`Vector::load`]; there may be no upper bits.
#[inline(always)]
pub(super) unsafe fn number<V: Vector, L: Layout>(low: (*const u32, u32), high: (*const u32, u32)) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let number = match L::LOW {
            4 => V::load_bits::<4>(low.0, low.1),
            _ => V::load_bits::<8>(low.0, low.1),
        };
        let upper: V = match L::HIGH {
            0 => return number,
            1 => V::load_bits::<1>(high.0, high.1),
            _ => V::load_bits::<2>(high.0, high.1),
        };
        upper.mul_add(V::splat((1 << L::LOW) as f32), number)
    }
}

/// A group's byte, of lines with four groups each.
///
/// # Safety
/// As [`Vector::load`].
#[inline(always)]
unsafe fn byte_of_group<V: Vector>(lines: *const u32, group: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { V::load_bits::<8>(lines.add(group / 4 * LANES), 8 * (group as u32 % 4)) }
}

/// Two halves of a word, the first one in its lower bits.
fn pair([low, high]: [u16; 2]) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Four bytes of a word, the first one in its lowest bits.
fn four(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// What a layout's constants say, as values.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    low: usize,
    high: usize,
    header_lines: usize,
    header: fn(&[Block], usize) -> u32,
    /// Blocks of the file that are one block here.
    pub(super) file_blocks: usize,
    /// Runs of a block.
    pub(super) runs: usize,
    /// Words of a block of all outputs side by side.
    pub(super) words: usize,
}

impl Geometry {
    pub(super) fn of<L: Layout>() -> Self {
        Self {
            low: L::LOW,
            high: L::HIGH,
            header_lines: L::HEADER,
            header: L::header,
            file_blocks: L::FILE_BLOCKS,
            runs: L::RUNS,
            words: L::LINES * LANES,
        }
    }

    /// Puts one output's numbers and scales to its place in a block of zeros. `blocks` are those of the file, fewer at the
    /// end of a row.
    pub(super) fn write(&self, blocks: &[Block], lane: usize, into: &mut [u32]) {
        for line in 0..self.header_lines {
            into[line * LANES + lane] = (self.header)(blocks, line);
        }
        let run_lines = self.low + self.high;
        let runs_of_each = self.runs / self.file_blocks;
        for run in 0..blocks.len() * runs_of_each {
            let numbers = &blocks[run / runs_of_each].numbers[run % runs_of_each * RUN..][..RUN];
            let lines = &mut into[(self.header_lines + run * run_lines) * LANES..];
            for (step, number) in numbers.iter().map(|number| u32::from(*number)).enumerate() {
                let mut add = |first_line: usize, bits: usize, value: u32| {
                    let bit = step * bits;
                    lines[(first_line + bit / WORD) * LANES + lane] |= value << (bit % WORD);
                };
                add(0, self.low, number & ((1 << self.low) - 1));
                if self.high > 0 {
                    add(self.low, self.high, number >> self.low);
                }
            }
        }
    }
}
