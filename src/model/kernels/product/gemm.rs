//! Matrix products of operands that are packed for one product, each of which may be transposed.

use std::cell::Cell;
use std::ops::Range;

use super::matrix::Matrix;
use super::{Precision, Product, ROW_BLOCK, Rows, Start, Tile, pack};
use crate::model::kernels::memory::Memory;
use crate::model::kernels::threads::{Pool, SharedMut};

/// Threads and precision of matrix products.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    /// Threads and instruction set.
    pub pool: &'a Pool,
    precision: Precision,
    one_thread: bool,
}

impl<'a> Compute<'a> {
    /// Computes on all threads of a pool.
    pub fn new(pool: &'a Pool, precision: Precision) -> Self {
        Self {
            pool,
            precision,
            one_thread: false,
        }
    }

    /// On the calling thread alone, which is itself one of many tasks.
    pub(in crate::model::kernels) fn on_this_thread(self) -> Self {
        Self {
            one_thread: true,
            ..self
        }
    }

    fn tile(self) -> Tile {
        Tile::of_operands(self.pool.isa(), self.precision)
    }

    fn run(self, tasks: usize, task: impl Fn(usize) + Sync) {
        match self.one_thread {
            true => (0..tasks).for_each(task),
            false => self.pool.run(tasks, task),
        }
    }
}

/// How a product is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Into {
    /// Overwrites it.
    Replace,
    /// Adds to it.
    Add,
}

/// Maximum number of words that the packed second operand takes: 8 MB.
const MAX_WORDS: usize = 2 << 20;
/// Columns of the result that a task computes at least, where rows alone do not make enough tasks.
const LEAST_COLUMNS: usize = 128;
/// Tasks for each thread where they cost nothing, so that one that is held up is waited for shortly.
const TASKS: usize = 4;

/// out = scale · a·b, or out += scale · a·b; the rows of `out` are `out_stride` apart.
///
/// Rows of `a` whose numbers lie side by side are read where they are if tiles take f32; other operands are packed.
///
/// # Panics
/// Panics if shapes do not match or slices are too short.
pub(in crate::model::kernels) fn gemm(
    compute: Compute,
    (out, out_stride): (&mut [f32], usize),
    into: Into,
    scale: f32,
    a: Matrix,
    b: Matrix,
) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "inner sizes of a matrix product");
    assert!(
        a.extent() <= a.data.len() && b.extent() <= b.data.len(),
        "an operand is too short"
    );
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        out_stride >= n && (m - 1) * out_stride + n <= out.len(),
        "the result is too short"
    );
    if k == 0 {
        if into == Into::Replace {
            out.chunks_mut(out_stride).take(m).for_each(|row| row[..n].fill(0.0));
        }
        return;
    }
    let tile = compute.tile();
    let at_once = (MAX_WORDS / tile.panel_words(tile.depth(k))).max(1) * tile.width();
    let out = SharedMut::new(out);
    for first in (0..n).step_by(at_once) {
        let columns = b.part((0, k), (first, at_once.min(n - first)));
        some_columns(compute, (&out, first, out_stride), into, scale, a, columns);
    }
}

/// Packs the second operand and multiplies. The first number of the result is `first` behind the beginning of `out`,
/// which has room for it.
fn some_columns(
    compute: Compute,
    (out, first, out_stride): (&SharedMut<f32>, usize, usize),
    into: Into,
    scale: f32,
    a: Matrix,
    b: Matrix,
) {
    let (tile, inner, columns) = (compute.tile(), a.columns, b.columns);
    let words = tile.panel_words(tile.depth(inner));
    let panels = columns.div_ceil(tile.width());
    let mut packed = PACKED_COLUMNS.take();
    if packed.len() < panels * words {
        packed = Memory::zeroed(panels * words);
    }
    let panel_words = SharedMut::new(&mut packed[..panels * words]);
    compute.run(panels, |panel| {
        // SAFETY: panels do not overlap, and each is one task's.
        let panel_words = unsafe { std::slice::from_raw_parts_mut(panel_words.at(panel * words), words) };
        let column = panel * tile.width();
        let lines = b.t().part((column, tile.width().min(columns - column)), (0, inner));
        pack::panel(tile, lines, scale, panel_words);
    });
    let in_place = tile.takes_plain_rows() && a.has_whole_rows();
    let row_tiles = a.rows.div_ceil(tile.rows());
    let (row_blocks, column_blocks) = tasks(compute, in_place, row_tiles, columns);
    compute.run(row_blocks * column_blocks, |number| {
        let rows = share(row_tiles, row_blocks, number / column_blocks);
        let rows = rows.start * tile.rows()..a.rows.min(rows.end * tile.rows());
        let part = a.part((rows.start, rows.len()), (0, inner));
        let product = Product {
            tile,
            x: match in_place {
                true => Rows::InPlace(part.data.as_ptr().cast(), part.row_stride),
                false => Rows::Packed(part),
            },
            rows: rows.len(),
            panels: packed.as_ptr(),
            depth: tile.depth(inner),
            length: tile.length(inner),
            bias: None,
            // SAFETY: these rows are within the result.
            y: (unsafe { out.at(first + rows.start * out_stride) }, out_stride),
            columns,
            start: if into == Into::Add { Start::Output } else { Start::Zero },
        };
        let mut scratch = PACKED_ROWS.take();
        // SAFETY: operands and result are as long as the fields say, and no other task has these rows and columns.
        unsafe { product.run(share(panels, column_blocks, number % column_blocks), &mut scratch) }
        PACKED_ROWS.set(scratch);
    });
    PACKED_COLUMNS.set(packed);
}

/// Into how many blocks of rows and of columns the result is cut. They are as many for each thread, and alike.
fn tasks(compute: Compute, in_place: bool, row_tiles: usize, columns: usize) -> (usize, usize) {
    let row_blocks = (row_tiles * compute.tile().rows()).div_ceil(ROW_BLOCK);
    if compute.one_thread {
        return (row_blocks, 1);
    }
    let threads = compute.pool.threads();
    let row_blocks = row_blocks.next_multiple_of(threads).min(row_tiles);
    // Each block of columns packs the rows again.
    let tasks = if in_place { TASKS * threads } else { threads };
    let wanted = tasks.div_ceil(row_blocks);
    (row_blocks, wanted.min(columns.div_ceil(LEAST_COLUMNS)))
}

/// The `number`th of `shares` nearly equal parts of 0..total.
fn share(total: usize, shares: usize, number: usize) -> Range<usize> {
    total * number / shares..total * (number + 1) / shares
}

thread_local! {
    /// A thread's buffers for packed operands, kept from one product to the next; taken while in use.
    static PACKED_ROWS: Cell<Memory<u32>> = Cell::default();
    static PACKED_COLUMNS: Cell<Memory<u32>> = Cell::default();
}

#[cfg(test)]
#[path = "gemm_tests.rs"]
mod tests;
