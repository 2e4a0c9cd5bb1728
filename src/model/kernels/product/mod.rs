//! Matrix products y(M,N) = x(M,K) · w(K,N).
//!
//! w is cut in panels of as many columns as two vectors have lanes, so that a register tile streams it in order; see
//! `tile.rs` for how tiles compute. Weights are packed once per weight version ([`PackedMatrix`]) or for one product
//! ([`gemm()`]). Each output is one chain of sums over k from 0 to K−1, kept in f32: it depends neither on the other rows
//! nor on how the work is split.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
mod bytes;
mod factor;
mod fma;
mod gemm;
mod matrix;
mod pack;
mod packed_matrix;
#[cfg(target_arch = "x86_64")]
pub(super) mod pairs;
mod quantized;
#[cfg(target_arch = "x86_64")]
mod square;
mod tile;
mod tile_input;
mod transpose;

use std::mem::MaybeUninit;
use std::ops::Range;

use super::isa::Isa;
use super::memory::{CACHE_LINE, Memory, prefetch};
pub(super) use factor::Factor;
pub use factor::Weight;
pub use gemm::{Compute, Into};
pub(super) use gemm::{LowRank, adapted_gemm, gemm};
pub(super) use matrix::Matrix;
pub use packed_matrix::{PackedMatrix, RowScratch};
use quantized::RUN;
pub use quantized::{BlockFormat, MAX_PANEL_WIDTH, QuantizedMatrix};
pub(super) use tile::Tile;
use tile::{ROWS_BEHIND, WIDENED_STEPS};
use tile_input::MAX_TILE;
pub(super) use tile_input::{Ahead, Start};

/// Rows whose inputs stay in the second-level cache while the panels pass.
const ROW_BLOCK: usize = 72;
/// Rows up to which a panel is taken in one piece: decoding.
const FEW_ROWS: usize = 24;

/// Inner steps of blocks that are expanded at once for few rows: what they become stays in the first-level cache.
const FEW_ROWS_STEPS: usize = 4 * RUN;

/// Tiles over the same panel for which bfloat16 is widened once instead of by each of them.
const TILES_TO_WIDEN: usize = 3;

/// What operands are computed in. Sums are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// As exact as f32 multiply-adds.
    F32,
    /// Weights that are packed once are rounded to bfloat16; other operands where the machine has products of bfloat16.
    Bf16,
    /// Weights that are packed once, and the rows that they multiply, are rounded to 8-bit multiples of a scale for each
    /// output and for each row; products of other operands are as exact as f32.
    Int8,
}

impl Precision {
    /// Bytes of a weight.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// The first operand of a product.
#[derive(Clone, Copy)]
enum Rows<'a> {
    /// Rows as tiles take them, and the distance from one to the next in words.
    InPlace(*const u32, usize),
    /// To be packed, a block of rows and inner steps at a time.
    Packed(Matrix<'a>),
}

/// The second operand of a product.
#[derive(Clone, Copy)]
enum Panels<'a> {
    /// One behind the other, and the number of inner steps that each has room for.
    Packed(&'a [u32], usize),
    /// f32 whose columns lie side by side, and the distance from one line to the next in numbers; only whole panels.
    InPlace(&'a [f32], usize),
    /// Blocks, which are expanded to f32, from an output on that a panel can begin with.
    Blocks(&'a QuantizedMatrix, usize, Isa),
}

impl Panels<'_> {
    /// Where a panel's lines of some inner steps are, and from one line to the next. Blocks are expanded to `buffer`.
    ///
    /// # Safety
    /// The panel and the steps are within the operand; `buffer` has room for the lines.
    unsafe fn at(self, tile: Tile, panel: usize, (k, length): (usize, usize), buffer: *mut f32) -> (*const u32, usize) {
        let width = tile.width();
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Packed(words, depth) => {
                    let at = panel * tile.panel_len(depth) + tile.panel_words(k);
                    (words.as_ptr().add(at), width)
                }
                Self::InPlace(numbers, stride) => (numbers.as_ptr().add(panel * width + k * stride).cast(), stride),
                Self::Blocks(weight, first, isa) => {
                    let runs = (k / RUN, length / RUN);
                    weight.columns_of_runs(isa, first + panel * width, runs, buffer, width);
                    (buffer.cast_const().cast(), width)
                }
            }
        }
    }

    fn ahead(self, tile: Tile, w: *const u32, length: usize, part: (usize, usize)) -> Ahead {
        match self {
            Self::Packed(_, depth) => tile.ahead(w, depth, length, part),
            Self::InPlace(..) | Self::Blocks(..) => Ahead::none(w),
        }
    }
}

/// Some panels times all rows.
struct Product<'a> {
    tile: Tile,
    x: Rows<'a>,
    rows: usize,
    panels: Panels<'a>,
    /// How many inner steps are summed.
    length: usize,
    /// Added to each row; only where the sums do not start from the output.
    bias: Option<&'a [f32]>,
    /// The result, and the distance from one row to the next in numbers.
    y: (*mut f32, usize),
    /// Columns of all panels.
    columns: usize,
    start: Start,
}

impl Product<'_> {
    /// Multiplies `panels`, keeping packed rows in `scratch`.
    ///
    /// # Safety
    /// Lengths are as the fields say; nothing else touches these columns of y meanwhile.
    unsafe fn run(&self, panels: Range<usize>, scratch: &mut Memory<u32>) {
        if let (Panels::Blocks(weight, first, isa), Rows::InPlace(x, _), 1) = (self.panels, self.x, self.rows) {
            // SAFETY: the row is as long as the field says; the caller's promise.
            return unsafe {
                let x = std::slice::from_raw_parts(x.cast::<f32>(), self.length);
                self.one_row_of_blocks(x, weight, (first, isa), panels)
            };
        }
        let _session = self.tile.begin();
        let k_block = match self.panels {
            Panels::Packed(..) if self.rows <= FEW_ROWS => self.length,
            Panels::Blocks(..) if self.rows <= FEW_ROWS => FEW_ROWS_STEPS,
            // Panels in place share their lines' pages, which are left one after the other.
            _ => self.tile.k_block(),
        };
        let row_block = ROW_BLOCK / self.tile.rows() * self.tile.rows();
        // Blocks lie one behind the other in a panel: for few rows, which wait for memory, they are read in that order.
        let panels_at_once = match self.panels {
            Panels::Blocks(..) if self.rows <= FEW_ROWS => 1,
            _ => panels.len().max(1),
        };
        for row in (0..self.rows).step_by(row_block) {
            let rows = row_block.min(self.rows - row);
            for first in panels.clone().step_by(panels_at_once) {
                for k in (0..self.length).step_by(k_block) {
                    let length = k_block.min(self.length - k);
                    let x = self.piece((row, rows), (k, length), scratch);
                    for panel in first..panels.end.min(first + panels_at_once) {
                        // SAFETY: row, k and panel are within the matrices.
                        unsafe { self.panel(x, (row, rows), (k, length), panel) };
                    }
                }
            }
        }
    }

    /// Multiplies `panels` of blocks by one row, two panels at a time.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn one_row_of_blocks(
        &self,
        x: &[f32],
        weight: &QuantizedMatrix,
        (first, isa): (usize, Isa),
        panels: Range<usize>,
    ) {
        let width = self.tile.width();
        for panel in panels.clone().step_by(2) {
            let mut sums = [0.0; 2 * MAX_PANEL_WIDTH];
            let sums = &mut sums[..2.min(panels.end - panel) * width];
            let columns = sums.len().min(self.columns - panel * width);
            // SAFETY: these columns are within y, and nothing else touches them.
            let y = unsafe { std::slice::from_raw_parts_mut(self.y.0.add(panel * width), columns) };
            match (self.bias, self.start) {
                (Some(bias), _) => sums[..columns].copy_from_slice(&bias[panel * width..][..columns]),
                (None, Start::Output) => sums[..columns].copy_from_slice(y),
                (None, Start::Zero) => {}
            }
            weight.add_products(isa, x, first + panel * width, sums);
            y.copy_from_slice(&sums[..columns]);
        }
    }

    /// Some rows and inner steps as tiles take them, with their stride.
    fn piece(
        &self,
        (row, rows): (usize, usize),
        (k, length): (usize, usize),
        scratch: &mut Memory<u32>,
    ) -> (*const u32, usize) {
        match self.x {
            Rows::InPlace(x, stride) => (x.wrapping_add(row * stride + self.tile.row_words(k)), stride),
            Rows::Packed(x) => {
                // Not a power of two, so that rows begin in different sets of the caches.
                let stride = self.tile.row_words(length) + CACHE_LINE / size_of::<u32>();
                let words = (rows + ROWS_BEHIND) * stride;
                if scratch.len() < words {
                    *scratch = Memory::zeroed(words);
                }
                let part = x.part((row, rows), (k, length.min(x.columns() - k)));
                pack::rows(self.tile, part, scratch, stride);
                (scratch.as_ptr(), stride)
            }
        }
    }

    /// One panel's piece for a row block. The first piece starts from the bias, later ones add to y.
    #[inline]
    unsafe fn panel(
        &self,
        x: (*const u32, usize),
        (row, rows): (usize, usize),
        (k, length): (usize, usize),
        panel: usize,
    ) {
        let (tile, width) = (self.tile, self.tile.width());
        let columns = width.min(self.columns - panel * width);
        let bias = self
            .bias
            .map(|bias| &bias[panel * width..][..columns])
            .filter(|_| k == 0);
        let start = if k == 0 { self.start } else { Start::Output };
        let mut buffer = MaybeUninit::<[f32; WIDENED_STEPS * MAX_TILE.1]>::uninit();
        let into = buffer.as_mut_ptr().cast::<f32>();
        // SAFETY: the panel lies within the matrix; the buffer has room for a piece.
        let w = unsafe { self.panels.at(tile, panel, (k, length), into) };
        let tiles = rows.div_ceil(tile.rows());
        let stored = w.0;
        let (tile, w) = match tile {
            Tile::Widened(isa) if self.rows > FEW_ROWS && tiles >= TILES_TO_WIDEN => {
                // SAFETY: panels have room for whole pairs; a piece has at most the buffer's steps where there are many rows.
                unsafe { fma::widen(isa, w.0, length.div_ceil(2), into) };
                (Tile::F32(isa), (into.cast_const().cast::<u32>(), width))
            }
            tile => (tile, w),
        };
        for number in 0..tiles {
            let part = self.tile_rows(rows, number, tiles);
            let ahead = self.panels.ahead(self.tile, stored, length, (number, tiles));
            // SAFETY: these rows are within x and y, the columns within y, k within the panel.
            unsafe {
                let x = (x.0.add(part.start * x.1), x.1);
                let y = (self.y.0.add((row + part.start) * self.y.1 + panel * width), self.y.1);
                if start == Start::Output && number + 1 < tiles {
                    self.prefetch_sums((y.0, y.1), part.len(), self.tile_rows(rows, number + 1, tiles).len());
                }
                if columns == width && part.len().is_multiple_of(tile.rows_multiple()) && bias.is_none() {
                    tile.run(part.len(), x, w, length, y, start, ahead);
                } else {
                    let height = part.len();
                    Edge {
                        y,
                        height,
                        columns,
                        bias,
                        start,
                    }
                    .run(tile, x, w, length, ahead);
                }
            }
        }
    }

    /// The rows of the `number`th tile: all alike, or the last one cut where tiles are whole registers of rows.
    fn tile_rows(&self, rows: usize, number: usize, tiles: usize) -> Range<usize> {
        match self.tile.rows_multiple() {
            1 => rows * number / tiles..rows * (number + 1) / tiles,
            _ => number * self.tile.rows()..rows.min((number + 1) * self.tile.rows()),
        }
    }

    /// Asks for the sums that the next tile starts from, so that they are there when it does.
    fn prefetch_sums(&self, (y, stride): (*mut f32, usize), above: usize, rows: usize) {
        for row in above..above + rows {
            let line = y.wrapping_add(row * stride);
            prefetch(line);
            prefetch(line.wrapping_add(self.tile.width() - 1));
        }
    }
}

/// A tile that does not fill its place in y, or starts from a bias: it is computed beside it.
struct Edge<'a> {
    y: (*mut f32, usize),
    height: usize,
    columns: usize,
    bias: Option<&'a [f32]>,
    start: Start,
}

impl Edge<'_> {
    unsafe fn run(self, tile: Tile, x: (*const u32, usize), w: (*const u32, usize), length: usize, ahead: Ahead) {
        let mut buffer = [MaybeUninit::<f32>::uninit(); MAX_TILE.0 * MAX_TILE.1];
        let (buffer, width) = (buffer.as_mut_ptr().cast::<f32>(), tile.width());
        // SAFETY: the buffer holds the tallest and widest tile; what of it was not written is computed with and thrown
        // away.
        unsafe {
            let mut start = self.start;
            for m in 0..self.height {
                let line = buffer.add(m * width);
                let from = match (self.bias, self.start) {
                    (Some(bias), _) => bias.as_ptr(),
                    (None, Start::Output) => self.y.0.add(m * self.y.1).cast_const(),
                    (None, Start::Zero) => break,
                };
                line.copy_from_nonoverlapping(from, self.columns);
                start = Start::Output;
            }
            tile.run(self.height, x, w, length, (buffer, width), start, ahead);
            for m in 0..self.height {
                let line = self.y.0.add(m * self.y.1);
                line.copy_from_nonoverlapping(buffer.add(m * width), self.columns);
            }
        }
    }
}

#[cfg(test)]
mod packed_matrix_tests;
