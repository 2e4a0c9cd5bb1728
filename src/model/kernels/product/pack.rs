//! Operands as tiles want them: columns of the second one to panels, rows of the first one to rows of words.

use half::bf16;

use super::bytes;
use super::matrix::Matrix;
#[cfg(target_arch = "x86_64")]
use super::square::{Order, SQUARE, mask, square};
use super::tile::Tile;
use super::transpose::transpose;
use crate::model::kernels::isa::kernel;

/// Packs a panel: `columns` are its columns × inner steps, multiplied by `scale`. Columns and steps that are missing
/// become 0.
///
/// # Panics
/// Panics if `into` is shorter than the panel.
pub(super) fn panel(tile: Tile, columns: Matrix, scale: f32, into: &mut [u32]) {
    match tile {
        Tile::F32(isa) => {
            let width = tile.width();
            match columns.has_whole_rows() {
                true => transpose(isa, columns, scale, into, width),
                false => copy_lines(isa, columns, scale, into, width),
            }
            if columns.rows < width {
                let steps = into.chunks_exact_mut(width).take(columns.columns);
                steps.for_each(|step| step[columns.rows..].fill(0));
            }
        }
        Tile::Widened(_) => round_pairs(columns, scale, into, tile.width()),
        Tile::Bytes(isa) => bytes::panel(isa, columns, scale, into),
        #[cfg(target_arch = "x86_64")]
        Tile::Pairs => squares::<1>(Order::ByPair, columns, scale, into, tile.width()),
        #[cfg(target_arch = "x86_64")]
        Tile::Amx { parts: 1 } => squares::<1>(Order::ByPair, columns, scale, into, tile.width()),
        #[cfg(target_arch = "x86_64")]
        Tile::Amx { .. } => squares::<3>(Order::ByPair, columns, scale, into, tile.width()),
    }
}

/// Packs rows × inner steps, each row `stride` words from the one before.
///
/// # Panics
/// Panics if `into` is too short.
pub(super) fn rows(tile: Tile, rows: Matrix, into: &mut [u32], stride: usize) {
    match tile {
        Tile::F32(isa) | Tile::Widened(isa) => transpose(isa, rows.t(), 1.0, into, stride),
        Tile::Bytes(isa) => bytes::rows(isa, rows, tile.depth(rows.columns()), into, stride),
        #[cfg(target_arch = "x86_64")]
        Tile::Pairs => squares::<1>(Order::ByLine, rows, 1.0, into, stride),
        #[cfg(target_arch = "x86_64")]
        Tile::Amx { parts: 1 } => squares::<1>(Order::ByLine, rows, 1.0, into, stride),
        #[cfg(target_arch = "x86_64")]
        Tile::Amx { .. } => squares::<3>(Order::ByLine, rows, 1.0, into, stride),
    }
}

/// The words of a panel of f32 as numbers.
pub(super) fn as_numbers(words: &mut [u32]) -> &mut [f32] {
    // SAFETY: both have the same size and alignment, and all their bits are values.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}

kernel! {
    /// For each inner step the columns, which lie side by side already.
    fn copy_lines<V>(columns: Matrix<'_>, scale: f32, into: &mut [u32], width: usize) {
        let steps = into.chunks_exact_mut(width).take(columns.columns).enumerate();
        for (k, step) in steps {
            let source = &columns.data[k * columns.column_stride..][..columns.rows];
            for (word, value) in step.iter_mut().zip(source) {
                *word = (value * scale).to_bits();
            }
        }
    }
}

/// For each pair of inner steps the columns' numbers in bfloat16, the even step's in the lower half.
fn round_pairs(columns: Matrix, scale: f32, into: &mut [u32], width: usize) {
    let bits = |column: usize, k: usize| match column < columns.rows && k < columns.columns {
        true => {
            let number = columns.data[column * columns.row_stride + k * columns.column_stride];
            u32::from(bf16::from_f32(number * scale).to_bits())
        }
        false => 0,
    };
    for (pair, words) in into.chunks_exact_mut(width).enumerate() {
        for (column, word) in words.iter_mut().enumerate() {
            *word = bits(column, 2 * pair) | bits(column, 2 * pair + 1) << 16;
        }
    }
}

/// Rounds lines × inner steps to bfloat16, square by square. For each 32 inner steps and each part of a number: by
/// line, 16 words of each line, lines `stride` words apart; by pair, 16 pairs of steps, each `stride` words for the
/// lines.
#[cfg(target_arch = "x86_64")]
fn squares<const PARTS: usize>(order: Order, lines: Matrix, scale: f32, into: &mut [u32], stride: usize) {
    let (line_words, group_words, part_words) = match order {
        Order::ByLine => (stride, PARTS * SQUARE, SQUARE),
        Order::ByPair => (1, PARTS * SQUARE * stride, SQUARE * stride),
    };
    // A panel is filled up to its width, rows are not.
    let (width, register_words) = match order {
        Order::ByLine => (lines.rows, stride),
        Order::ByPair => (stride, stride),
    };
    for (group, step) in (0..lines.columns).step_by(2 * SQUARE).enumerate() {
        let steps = (2 * SQUARE).min(lines.columns - step);
        for line in (0..width).step_by(SQUARE) {
            let count = SQUARE.min(lines.rows.saturating_sub(line));
            let block = lines.part((line, count), (step, steps));
            // SAFETY: the machine has these instructions, or there would be no such tile.
            let parts = unsafe { square::<PARTS>(block, scale, order) };
            let (registers, lanes) = match order {
                Order::ByLine => (count, u16::MAX),
                Order::ByPair => (SQUARE, mask(width - line)),
            };
            for (part, square) in parts.iter().enumerate() {
                for (i, words) in square.iter().take(registers).enumerate() {
                    let start = group * group_words + part * part_words + line * line_words + i * register_words;
                    let to = &mut into[start..][..lanes.count_ones() as usize];
                    // SAFETY: as above; the slice has as many words as there are lanes.
                    unsafe { store(to.as_mut_ptr(), lanes, *words) }
                }
            }
        }
    }
}

/// # Safety
/// The machine has AVX-512; `to` is valid for the lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn store(to: *mut u32, lanes: std::arch::x86_64::__mmask16, words: std::arch::x86_64::__m512i) {
    // SAFETY: the caller's promise.
    unsafe { std::arch::x86_64::_mm512_mask_storeu_epi32(to.cast(), lanes, words) }
}
