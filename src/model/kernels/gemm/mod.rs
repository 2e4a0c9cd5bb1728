//! Matrix products of the weight update.
//!
//! Operands are packed block by block into panels as the register tile wants them, so that any operand may be
//! transposed, and the tile is computed by what the machine has ([`Method`]). Where it reads a number of the first
//! operand at a time and a line's numbers lie side by side, that operand is read where it is. Each element of a result
//! is summed in an order that depends on the inner size alone: neither on the other rows nor on the threads.

#[cfg(target_arch = "x86_64")]
mod bf16;
mod fma;
mod panel;
#[cfg(target_arch = "x86_64")]
mod tiles;

use std::cell::Cell;
use std::ops::Range;

use super::isa::{Bf16Product, Isa};
use super::matmul::{Precision, panel_width};
use super::memory::Memory;
use super::threads::{Pool, SharedMut};

/// The threads and the precision of matrix products.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    /// Threads and instruction set.
    pub pool: &'a Pool,
    precision: Precision,
    one_thread: bool,
}

impl<'a> Compute<'a> {
    /// On all threads of a pool.
    pub fn new(pool: &'a Pool, precision: Precision) -> Self {
        Self {
            pool,
            precision,
            one_thread: false,
        }
    }

    /// On the calling thread alone, which is itself one of many tasks.
    pub(super) fn on_this_thread(self) -> Self {
        Self {
            one_thread: true,
            ..self
        }
    }

    fn run(self, tasks: usize, task: impl Fn(usize) + Sync) {
        match self.one_thread {
            true => (0..tasks).for_each(task),
            false => self.pool.run(tasks, task),
        }
    }
}

/// How a tile is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// f32 multiply-adds on vectors.
    Fma(Isa),
    /// AVX-512's products of pairs of bf16.
    #[cfg(target_arch = "x86_64")]
    Pairs,
    /// AMX's bf16 tiles. An operand is one bf16 or, for f32, the sum of three: 24 bits, of whose nine products the six
    /// that are not below f32's own rounding are summed.
    #[cfg(target_arch = "x86_64")]
    Tiles {
        /// 1 or 3 bf16 an operand.
        parts: usize,
    },
}

impl Method {
    fn of(compute: Compute) -> Self {
        let isa = compute.pool.isa();
        match (compute.precision, isa.bf16_product()) {
            #[cfg(target_arch = "x86_64")]
            (Precision::Bf16, Bf16Product::Dot) => Self::Pairs,
            #[cfg(target_arch = "x86_64")]
            (Precision::Bf16, Bf16Product::Tiles) => Self::Tiles { parts: 1 },
            #[cfg(target_arch = "x86_64")]
            (Precision::F32, Bf16Product::Tiles) => Self::Tiles { parts: 3 },
            _ => Self::Fma(isa),
        }
    }

    fn shape(self) -> Shape {
        match self {
            Self::Fma(isa) => fma::shape(isa),
            #[cfg(target_arch = "x86_64")]
            Self::Pairs => bf16::SHAPE,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles { parts } => tiles::shape(parts),
        }
    }
}

/// A register tile and how its operands are packed.
#[derive(Clone, Copy)]
struct Shape {
    /// Rows of the tile: lines of a panel of the first operand.
    rows: usize,
    /// Columns of the tile: lines of a panel of the second operand.
    columns: usize,
    /// Inner steps that are packed together.
    depth: usize,
    /// Words that a panel of the first and of the second operand takes for `depth` inner steps.
    words: [usize; 2],
    /// Most inner steps of a block: a panel of the second operand then stays in the first-level cache.
    k_block: usize,
}

/// Which operand is packed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    First,
    Second,
}

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// What a product does with what is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Into {
    /// Overwrites it.
    Replace,
    /// Adds to it.
    Add,
}

impl<'a> Matrix<'a> {
    /// Rows one behind the other.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows `row_stride` apart.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    /// The transposed matrix.
    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether the numbers of a row lie side by side.
    fn has_whole_rows(&self) -> bool {
        self.column_stride == 1
    }

    /// One more than the largest index.
    fn extent(&self) -> usize {
        match self.rows * self.columns {
            0 => 0,
            _ => (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride + 1,
        }
    }

    /// The part of some rows and columns, each by the first and their number. There may be none.
    fn part(self, (row, rows): (usize, usize), (column, columns): (usize, usize)) -> Self {
        let start = row * self.row_stride + column * self.column_stride;
        Self {
            data: self.data.get(start..).unwrap_or_default(),
            rows,
            columns,
            ..self
        }
    }
}

/// Most rows of the result that a task computes: their block of the first operand stays in the second-level cache.
const ROW_BLOCK: usize = 192;
/// Most words that the packed second operand takes: 8 MB.
const MOST_WORDS: usize = 2 << 20;
/// Columns of the result that a task computes at least, where rows alone do not make enough tasks.
const LEAST_COLUMNS: usize = 128;
/// Tasks for each thread where they cost nothing, so that one that is held up is waited for shortly.
const TASKS: usize = 4;

/// out = scale · a·b, or out += scale · a·b; the rows of `out` are `out_stride` apart.
///
/// # Panics
/// Shapes that do not fit, or slices that are too short.
pub(super) fn gemm(
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
    let method = Method::of(compute);
    let product = Product {
        compute,
        method,
        shape: method.shape(),
        into,
        scale,
        a,
        out_stride,
    };
    let shape = product.shape;
    let panel_words = k.div_ceil(shape.depth) * shape.words[1];
    let columns = (MOST_WORDS / panel_words).max(1) * shape.columns;
    let out = SharedMut::new(out);
    for first in (0..n).step_by(columns) {
        product.columns(b, first, columns.min(n - first), &out);
    }
}

/// A product whose result is computed some columns at a time.
struct Product<'a> {
    compute: Compute<'a>,
    method: Method,
    shape: Shape,
    into: Into,
    scale: f32,
    a: Matrix<'a>,
    out_stride: usize,
}

impl Product<'_> {
    /// Packs `count` columns of the second operand and multiplies.
    fn columns(&self, b: Matrix, first: usize, count: usize, out: &SharedMut<f32>) {
        let Shape {
            depth, columns, words, ..
        } = self.shape;
        let k = self.a.columns;
        let panels = count.div_ceil(columns);
        let panel_words = k.div_ceil(depth) * words[1];
        let mut packed = PACKED_SECOND.take();
        grow(&mut packed, panels * panel_words);
        let lines = b.t();
        let packed_words = SharedMut::new(&mut packed[..panels * panel_words]);
        self.compute.run(panels, |panel| {
            // SAFETY: panels do not overlap, and each is one task's.
            let into = unsafe { std::slice::from_raw_parts_mut(packed_words.at(panel * panel_words), panel_words) };
            let line = first + panel * columns;
            let block = lines.part((line, columns.min(first + count - line)), (0, k));
            pack(self.method, Side::Second, block, self.scale, into);
        });
        let row_panels = self.a.rows.div_ceil(self.shape.rows);
        let (row_blocks, column_blocks) = self.tasks(row_panels, count);
        let task = |number: usize| {
            let rows = share(row_panels, row_blocks, number / column_blocks);
            let panels = share(panels, column_blocks, number % column_blocks);
            self.block(rows, panels, &packed, (first, count), out);
        };
        let tasks = row_blocks * column_blocks;
        self.compute.run(tasks, task);
        PACKED_SECOND.set(packed);
    }

    /// Into how many blocks of rows and of columns the result is cut. They are as many for each thread, and alike.
    fn tasks(&self, row_panels: usize, columns: usize) -> (usize, usize) {
        let row_blocks = (row_panels * self.shape.rows).div_ceil(ROW_BLOCK);
        match self.compute.one_thread {
            true => (row_blocks, 1),
            false => {
                let threads = self.compute.pool.threads();
                let row_blocks = row_blocks.next_multiple_of(threads).min(row_panels);
                // Each block of columns packs the rows again.
                let tasks = if self.in_place() { TASKS * threads } else { threads };
                let wanted = tasks.div_ceil(row_blocks);
                (row_blocks, wanted.min(columns.div_ceil(LEAST_COLUMNS)))
            }
        }
    }

    /// Whether tiles read the first operand where it is.
    fn in_place(&self) -> bool {
        matches!(self.method, Method::Fma(_)) && self.a.has_whole_rows()
    }

    /// Some panels of rows and of columns of the result, one inner block after the other.
    fn block(
        &self,
        row_panels: Range<usize>,
        panels: Range<usize>,
        second: &[u32],
        (first_column, count): (usize, usize),
        out: &SharedMut<f32>,
    ) {
        let Shape {
            rows,
            depth,
            columns,
            words,
            k_block,
        } = self.shape;
        #[cfg(target_arch = "x86_64")]
        let _session = matches!(self.method, Method::Tiles { .. }).then(tiles::Session::begin);
        let k = self.a.columns;
        let panel_words = k.div_ceil(depth) * words[1];
        let in_place = self.in_place();
        let present = |row_panel: usize| rows.min(self.a.rows - row_panel * rows);
        let mut packed = PACKED_FIRST.take();
        let k_block = k.div_ceil(k.div_ceil(k_block)).next_multiple_of(depth);
        for start in (0..k).step_by(k_block) {
            let length = k_block.min(k - start);
            let steps = length.div_ceil(depth);
            let first_words = steps * words[0];
            if !in_place {
                grow(&mut packed, row_panels.len() * first_words);
                let lines = row_panels.start * rows..self.a.rows.min(row_panels.end * rows);
                let lines = self.a.part((lines.start, lines.len()), (start, length));
                pack_first(self.method, lines, first_words, &mut packed);
            }
            let add = self.into == Into::Add || start > 0;
            for panel in panels.clone() {
                let b = &second[panel * panel_words + start / depth * words[1]..][..steps * words[1]];
                for row_panel in row_panels.clone() {
                    let (row, column) = (row_panel * rows, panel * columns);
                    let a = match in_place {
                        true => First::InPlace(self.a.part((row, present(row_panel)), (start, length))),
                        false => First::Packed(&packed[(row_panel - row_panels.start) * first_words..][..first_words]),
                    };
                    // SAFETY: the tile lies within the result, whose size was checked, and no other task has these
                    // rows and columns.
                    unsafe {
                        let target = Target {
                            corner: out.at(row * self.out_stride + first_column + column),
                            stride: self.out_stride,
                            rows: present(row_panel),
                            columns: columns.min(count - column),
                            add,
                        };
                        tile(self.method, steps, a, b, target);
                    }
                }
            }
        }
        PACKED_FIRST.set(packed);
    }
}

/// The `number`th of `shares` nearly equal parts of 0..total.
fn share(total: usize, shares: usize, number: usize) -> Range<usize> {
    total * number / shares..total * (number + 1) / shares
}

/// A panel of the first operand.
enum First<'a> {
    /// As the tile wants it.
    Packed(&'a [u32]),
    /// Rows of the operand itself.
    InPlace(Matrix<'a>),
}

#[cfg(target_arch = "x86_64")]
impl<'a> First<'a> {
    /// The words of a packed panel; none of one in place, which only multiply-adds read.
    fn packed(self) -> &'a [u32] {
        match self {
            Self::Packed(words) => words,
            Self::InPlace(_) => &[],
        }
    }
}

/// Packs lines × inner steps of the first operand into panels of `words`.
fn pack_first(method: Method, lines: Matrix, words: usize, into: &mut [u32]) {
    if let Method::Fma(isa) = method {
        return panel::pack_all(fma::tile_rows(isa), lines, words, into);
    }
    let rows = method.shape().rows;
    for (panel, into) in into.chunks_mut(words).take(lines.rows.div_ceil(rows)).enumerate() {
        let line = panel * rows;
        let block = lines.part((line, rows.min(lines.rows - line)), (0, lines.columns));
        pack(method, Side::First, block, 1.0, into);
    }
}

/// Packs a panel: `lines` is its lines × inner steps.
fn pack(method: Method, side: Side, lines: Matrix, scale: f32, into: &mut [u32]) {
    match (method, side) {
        (Method::Fma(isa), Side::First) => panel::pack(fma::tile_rows(isa), lines, scale, into),
        (Method::Fma(isa), Side::Second) => panel::pack(panel_width(isa), lines, scale, into),
        #[cfg(target_arch = "x86_64")]
        (Method::Pairs, side) => bf16::pack(side, lines, scale, into),
        #[cfg(target_arch = "x86_64")]
        (Method::Tiles { parts }, side) => tiles::pack(parts, side, lines, scale, into),
    }
}

/// Where a tile goes.
#[derive(Clone, Copy)]
struct Target {
    corner: *mut f32,
    stride: usize,
    /// Those that are wanted of the tile. So for columns.
    rows: usize,
    columns: usize,
    /// Whether it is added to what is there.
    add: bool,
}

impl Target {
    /// Puts a whole tile's part that is wanted.
    ///
    /// # Safety
    /// The target is valid; `tile` has rows of `width`, as many as the target.
    unsafe fn put_part(self, tile: &[f32], width: usize) {
        for row in 0..self.rows {
            for (column, value) in tile[row * width..][..self.columns].iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let place = self.corner.add(row * self.stride + column);
                    *place = if self.add { *place + value } else { *value };
                }
            }
        }
    }
}

/// Computes a tile.
///
/// # Safety
/// The target is valid for its rows and columns.
unsafe fn tile(method: Method, steps: usize, a: First, b: &[u32], target: Target) {
    // SAFETY: the caller's promise; a method is only made where the machine has it.
    unsafe {
        match method {
            Method::Fma(isa) => fma::tile(isa, steps, a, b, target),
            #[cfg(target_arch = "x86_64")]
            Method::Pairs => bf16::tile(steps, a.packed(), b, target),
            #[cfg(target_arch = "x86_64")]
            Method::Tiles { parts } => tiles::tile(parts, steps, a.packed(), b, target),
        }
    }
}

thread_local! {
    /// A thread's buffers for packed operands, kept from one product to the next; taken while in use.
    static PACKED_FIRST: Cell<Memory<u32>> = Cell::default();
    static PACKED_SECOND: Cell<Memory<u32>> = Cell::default();
}

fn grow(words: &mut Memory<u32>, count: usize) {
    if words.len() < count {
        *words = Memory::zeroed(count);
    }
}

#[cfg(test)]
mod tests;
