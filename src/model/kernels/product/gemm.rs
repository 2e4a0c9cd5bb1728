//! Matrix products of operands that are packed for one product, each of which may be transposed.

use std::cell::Cell;
use std::ops::Range;

use super::factor::Factor;
use super::matrix::Matrix;
use super::pack::as_numbers;
use super::{Panels, Precision, Product, ROW_BLOCK, Rows, Start, Tile, pack};
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

    fn threads(self) -> usize {
        if self.one_thread { 1 } else { self.pool.threads() }
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
/// Rows up to which the second operand is read where it is, if it can be: packing it would take longer than the product.
const MOST_ROWS_IN_PLACE: usize = 48;
/// Tasks for each thread where they cost nothing, so that one that is held up is waited for shortly.
const TASKS: usize = 4;

/// scale · left·right, which is added to a matrix of as many rows and columns.
#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct LowRank<'a> {
    pub left: Matrix<'a>,
    pub right: Matrix<'a>,
    pub scale: f32,
}

impl LowRank<'_> {
    /// Some columns, by the first and their number.
    fn part(self, columns: (usize, usize)) -> Self {
        Self {
            right: self.right.part((0, self.right.rows), columns),
            ..self
        }
    }
}

/// out = scale · a·b, or out += scale · a·b; the rows of `out` are `out_stride` apart.
///
/// Rows of `a` whose numbers lie side by side are read where they are if tiles take f32; so is `b` for few rows. Other
/// operands are packed, which is also when blocks become numbers.
///
/// # Panics
/// Panics if shapes do not match or slices are too short.
pub(in crate::model::kernels) fn gemm(
    compute: Compute,
    out: (&mut [f32], usize),
    into: Into,
    scale: f32,
    a: Matrix,
    b: Matrix,
) {
    adapted_gemm(compute, out, into, scale, a, (Factor::Numbers(b), None));
}

/// As [`gemm`], with b + low rank instead of b. The sum is formed while b is packed, so that it costs an operation for
/// each number of b and rank, whatever the number of rows of a.
///
/// # Panics
/// As [`gemm`].
pub(in crate::model::kernels) fn adapted_gemm(
    compute: Compute,
    (out, out_stride): (&mut [f32], usize),
    into: Into,
    scale: f32,
    a: Matrix,
    (b, low_rank): (Factor, Option<LowRank>),
) {
    let (m, n, k) = (a.rows, b.columns(), a.columns);
    assert_eq!(k, b.rows(), "inner sizes of a matrix product");
    assert!(
        low_rank.is_none_or(|added| (added.left.rows, added.right.columns) == (k, n)),
        "shape of a product of low rank"
    );
    assert!(a.extent() <= a.data.len() && b.is_whole(), "an operand is too short");
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
    let out = SharedMut::new(out);
    let start = if into == Into::Add { Start::Output } else { Start::Zero };
    let result = Block {
        out: &out,
        first: 0,
        stride: out_stride,
        columns: n,
        start,
    };
    let in_place = n.is_multiple_of(tile.width()) && low_rank.is_none() && scale == 1.0;
    if let Factor::Numbers(b) = b
        && b.has_whole_rows()
        && in_place
        && m <= MOST_ROWS_IN_PLACE
        && tile == Tile::F32(compute.pool.isa())
    {
        return multiply(compute, a, Panels::InPlace(b.data, b.row_stride), &result);
    }
    let at_once = (MAX_WORDS / tile.panel_words(tile.depth(k))).max(1) * tile.width();
    for first in (0..n).step_by(at_once) {
        let columns = (first, at_once.min(n - first));
        let mut packed = PACKED_COLUMNS.take();
        let b = (b.part(columns), low_rank.map(|added| added.part(columns)));
        pack_panels(compute, scale, b, &mut packed);
        let panels = Panels::Packed(&packed, tile.depth(k));
        let result = Block {
            first,
            columns: columns.1,
            ..result
        };
        multiply(compute, a, panels, &result);
        PACKED_COLUMNS.set(packed);
    }
}

/// Some columns of the result, the first number of which is `first` behind the beginning of `out`.
#[derive(Clone, Copy)]
struct Block<'a> {
    out: &'a SharedMut<f32>,
    first: usize,
    stride: usize,
    columns: usize,
    start: Start,
}

/// Packs scale · (b + low rank).
fn pack_panels(compute: Compute, scale: f32, (b, low_rank): (Factor, Option<LowRank>), packed: &mut Memory<u32>) {
    let (tile, inner, columns) = (compute.tile(), b.rows(), b.columns());
    let words = tile.panel_words(tile.depth(inner));
    let panels = columns.div_ceil(tile.width());
    if packed.len() < panels * words {
        *packed = Memory::zeroed(panels * words);
    }
    let packed = SharedMut::new(&mut packed[..panels * words]);
    compute.run(panels, |panel| {
        // SAFETY: panels do not overlap, and each is one task's.
        let into = unsafe { std::slice::from_raw_parts_mut(packed.at(panel * words), words) };
        let column = panel * tile.width();
        let columns = (column, tile.width().min(columns - column));
        match (b.part(columns), low_rank) {
            (Factor::Numbers(b), None) => pack::panel(tile, b.t(), scale, into),
            (b, low_rank) => pack_sum(compute, b, low_rank.map(|added| added.part(columns)), scale, into),
        }
    });
}

/// Multiplies all rows of `a` by the panels, which hold as many columns as the result.
fn multiply(compute: Compute, a: Matrix, panels: Panels, result: &Block) {
    let (tile, inner, columns) = (compute.tile(), a.columns, result.columns);
    let in_place = tile.takes_plain_rows() && a.has_whole_rows();
    let row_tiles = a.rows.div_ceil(tile.rows());
    let count = columns.div_ceil(tile.width());
    let (row_blocks, column_blocks) = match panels {
        Panels::Packed(..) | Panels::Blocks(..) => tasks(compute, in_place, row_tiles, columns),
        // A few rows: each thread reads columns of its own.
        Panels::InPlace(..) => (1, compute.threads().min(count)),
    };
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
            panels,
            length: tile.length(inner),
            bias: None,
            y: (
                // SAFETY: these rows are within the result.
                unsafe { result.out.at(result.first + rows.start * result.stride) },
                result.stride,
            ),
            columns,
            start: result.start,
        };
        let mut scratch = PACKED_ROWS.take();
        // SAFETY: operands and result are as long as the fields say, and no other task has these rows and columns.
        unsafe { product.run(share(count, column_blocks, number % column_blocks), &mut scratch) }
        PACKED_ROWS.set(scratch);
    });
}

/// Packs the panel scale · (b + low rank): it is f32 first, also where tiles take something else.
fn pack_sum(compute: Compute, b: Factor, low_rank: Option<LowRank>, scale: f32, panel: &mut [u32]) {
    let (tile, plain) = (compute.tile(), Tile::F32(compute.pool.isa()));
    if tile == plain {
        return pack_plain_sum(compute, b, low_rank, scale, panel);
    }
    let words = plain.panel_words(b.rows());
    let mut sum = SUM.take();
    if sum.len() < words {
        sum = Memory::zeroed(words);
    }
    pack_plain_sum(compute, b, low_rank, scale, &mut sum[..words]);
    let lines = Matrix::strided(as_numbers(&mut sum), b.rows(), b.columns(), plain.width());
    pack::panel(tile, lines.t(), 1.0, panel);
    SUM.set(sum);
}

/// Packs a panel of f32 and adds to it.
fn pack_plain_sum(compute: Compute, b: Factor, low_rank: Option<LowRank>, scale: f32, panel: &mut [u32]) {
    let tile = Tile::F32(compute.pool.isa());
    match b {
        Factor::Numbers(b) => pack::panel(tile, b.t(), scale, panel),
        Factor::Blocks(b) => b.pack(compute.pool.isa(), scale, panel, tile.width()),
    }
    if let Some(added) = low_rank {
        let compute = Compute {
            precision: Precision::F32,
            ..compute.on_this_thread()
        };
        let out = (as_numbers(panel), tile.width());
        gemm(compute, out, Into::Add, scale * added.scale, added.left, added.right);
    }
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
    /// A panel of f32 before it is packed for other tiles.
    static SUM: Cell<Memory<u32>> = Cell::default();
}

#[cfg(test)]
#[path = "gemm_tests.rs"]
mod tests;
