//! y(M,N) = x(M,K) · W(N,K)ᵀ on weights packed once per weight version.
//!
//! W is cut in panels of as many output columns as two vectors have lanes; within a panel the columns of one k lie side
//! by side (in bfloat16: of two k, pair by pair), so that decoding streams the weights once, in order. Each output is one
//! chain of sums over k from 0 to K−1, kept in f32: it depends neither on the other rows nor on how the work is split.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod dot;
mod pack;
mod tile;

use std::mem::MaybeUninit;
use std::ops::Range;

use super::isa::{Bf16Product, Isa, kernel};
use super::memory::Memory;
use super::threads::{Pool, SharedMut};
pub(super) use tile::{Ahead, MultiplyAdd};

/// Rows whose inputs stay in the second-level cache while the panels pass.
const ROW_BLOCK: usize = 72;
/// Bytes of a panel's column per pass where there are many rows, so that its piece stays in the first-level cache.
const COLUMN_BYTES: usize = 1024;
/// Rows up to which a panel is taken in one piece: decoding.
const FEW_ROWS: usize = 24;
/// The tallest tile and the widest panel of any instruction set.
const MAX_TILE: (usize, usize) = (32, 32);
/// What the inner length of bfloat16 is filled up to, with zeros: a step of AMX.
const BF16_DEPTH: usize = 32;
/// Rows that a tile may read behind the last one.
const ROWS_BEHIND: usize = 31;

/// What weights are stored as. Sums are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// As they are.
    F32,
    /// Rounded. Where the machine has products of bfloat16, the rows that they are multiplied with are rounded too.
    Bf16,
}

impl Precision {
    /// Of a weight.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A linear layer's weight, packed for this machine, with its bias.
pub struct PackedMatrix {
    isa: Isa,
    outputs: usize,
    inputs: usize,
    panels: Panels,
    bias: Option<Vec<f32>>,
}

enum Panels {
    /// Panel × k × column.
    F32(Memory<f32>),
    /// Panel × pair of k × column: the even k's weight in the lower half.
    Bf16(Memory<u32>),
}

/// Room for the rows of a product in the form that the weights want.
#[derive(Default)]
pub struct RowScratch {
    pairs: Vec<u32>,
}

/// The rows of a product.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    plain: &'a [f32],
    /// Rounded, row by row as long as the weight is deep; empty where the weights do not ask for it.
    pairs: &'a [u32],
    count: usize,
}

impl PackedMatrix {
    /// Room for a weight of `outputs` × `inputs`, all zero.
    pub fn new(isa: Isa, precision: Precision, outputs: usize, inputs: usize) -> Self {
        let columns = outputs.next_multiple_of(panel_width(isa));
        let panels = match precision {
            Precision::F32 => Panels::F32(Memory::zeroed(columns * inputs)),
            Precision::Bf16 => Panels::Bf16(Memory::zeroed(columns * inputs.next_multiple_of(BF16_DEPTH) / 2)),
        };
        Self {
            isa,
            outputs,
            inputs,
            panels,
            bias: None,
        }
    }

    /// Takes the rows of `parts`, one matrix (out × in, row-major) under the other, and their biases. The total shape
    /// must be that of [`PackedMatrix::new`].
    pub fn pack(&mut self, pool: &Pool, parts: &[&[f32]], bias: Option<Vec<f32>>) {
        let (inputs, width) = (self.inputs, panel_width(self.isa));
        let rows: Vec<&[f32]> = parts.iter().flat_map(|part| part.chunks_exact(inputs)).collect();
        assert_eq!(rows.len(), self.outputs, "rows of the weight");
        assert!(
            bias.as_ref().is_none_or(|b| b.len() == self.outputs),
            "a bias for each output"
        );
        self.bias = bias;
        match &mut self.panels {
            Panels::F32(words) => pack::f32_panels(pool, words, &rows, width),
            Panels::Bf16(words) => pack::bf16_panels(pool, words, &rows, width),
        }
    }

    /// Output features.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Input features.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes that one pass over the weight reads.
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::F32(words) => size_of_val(&words[..]),
            Panels::Bf16(words) => size_of_val(&words[..]),
        }
    }

    /// y = x · Wᵀ + bias for every row of `x` (rows × inputs); `y` is rows × outputs.
    pub fn multiply(&self, pool: &Pool, x: &[f32], y: &mut [f32], scratch: &mut RowScratch) {
        let rows = self.rows(pool, x, scratch);
        assert_eq!(y.len(), rows.count * self.outputs, "length of y");
        let y = SharedMut::new(y);
        self.each_panel_range(pool, rows.count, |panels| {
            // SAFETY: lengths are checked above; ranges of panels do not overlap, so tasks write other columns of y.
            unsafe { self.multiply_panels(rows, y.at(0), panels) }
        });
    }

    /// The rows of `x` (rows × inputs) as this weight's products take them.
    pub(super) fn rows<'a>(&self, pool: &Pool, x: &'a [f32], scratch: &'a mut RowScratch) -> Rows<'a> {
        let count = x.len() / self.inputs;
        assert_eq!(x.len(), count * self.inputs, "length of x");
        let mut pairs: &[u32] = &[];
        if matches!(self.panels, Panels::Bf16(_)) && self.isa.bf16_product() != Bf16Product::Widen {
            let depth = self.inputs.next_multiple_of(BF16_DEPTH) / 2;
            scratch
                .pairs
                .resize(scratch.pairs.len().max((count + ROWS_BEHIND) * depth), 0);
            let mut lines: Vec<&mut [u32]> = scratch.pairs.chunks_exact_mut(depth).take(count).collect();
            let at_once = (1 << 13) / self.inputs + 1;
            let mut lines: Vec<_> = lines.chunks_mut(at_once).zip(x.chunks(at_once * self.inputs)).collect();
            pool.for_each(&mut lines, |_, (lines, x)| {
                for (line, x) in lines.iter_mut().zip(x.chunks_exact(self.inputs)) {
                    pack::round_row(self.isa, x, line);
                }
            });
            pairs = &scratch.pairs;
        }
        Rows { plain: x, pairs, count }
    }

    /// Cuts the panels in ranges that are worth a thread's while, and runs them on the pool.
    pub(super) fn each_panel_range(&self, pool: &Pool, rows: usize, task: impl Fn(Range<usize>) + Sync) {
        let panels = self.outputs.div_ceil(panel_width(self.isa));
        let work = rows.max(4) * self.inputs * panel_width(self.isa);
        pool.run_ranges(panels, (1 << 15) / work.max(1), task);
    }

    /// The columns of `panels` for all rows, which come from [`PackedMatrix::rows`] of a weight of the same shape.
    ///
    /// # Safety
    /// `y` is rows × outputs; nothing else touches these columns of it meanwhile.
    pub(super) unsafe fn multiply_panels(&self, rows: Rows, y: *mut f32, panels: Range<usize>) {
        let depth = self.inputs.next_multiple_of(BF16_DEPTH);
        // SAFETY: the caller's promise is what the products ask for, and the weight's instruction set is there.
        unsafe {
            match (&self.panels, self.isa.bf16_product()) {
                (Panels::F32(words), _) => {
                    let x = (rows.plain.as_ptr(), self.inputs);
                    let product = self.product(x, (words, self.inputs), self.inputs, (y, rows.count), panels);
                    multiply_by_fma(self.isa, product);
                }
                (Panels::Bf16(words), Bf16Product::Widen) => {
                    let x = (rows.plain.as_ptr(), self.inputs);
                    let product = self.product(x, (words, depth), self.inputs, (y, rows.count), panels);
                    multiply_by_fma(self.isa, product);
                }
                #[cfg(target_arch = "x86_64")]
                (Panels::Bf16(words), by) => {
                    let x = (rows.pairs.as_ptr(), depth / 2);
                    let product = self.product(x, (words, depth), depth, (y, rows.count), panels);
                    match by {
                        Bf16Product::Tiles => amx::run(product),
                        _ => dot::run(product),
                    }
                }
            }
        }
    }

    fn product<X, W>(
        &self,
        x: (*const X, usize),
        (w, depth): (&[W], usize),
        length: usize,
        (y, rows): (*mut f32, usize),
        panels: Range<usize>,
    ) -> Product<'_, X, W> {
        Product {
            x,
            w: w.as_ptr(),
            depth,
            length,
            bias: self.bias.as_deref(),
            y: (y, self.outputs),
            rows,
            panels,
        }
    }

    /// Columns of a panel.
    pub(super) fn panel_width(&self) -> usize {
        panel_width(self.isa)
    }
}

kernel! {
    /// Columns of a panel: two vectors.
    pub(super) fn panel_width<V>() -> usize {
        2 * V::LANES
    }
}

/// What a tile's sums start from.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Start {
    Zero,
    Output,
}

/// The inner loops: some rows of x times a piece of a panel.
pub(super) trait Tile {
    /// A word of x.
    type Input;
    /// A word of a panel.
    type Word;
    /// Most rows.
    const ROWS: usize;
    /// Columns of a panel.
    const WIDTH: usize;
    /// How many k a word of x holds.
    const INPUT_K: usize;
    /// Bytes of one weight.
    const WEIGHT_BYTES: usize;
    /// Rows are written in multiples of it, and read up to the next.
    const ROWS_MULTIPLE: usize = 1;

    /// `y = start + Σₖ x[·][k] · w[k][·]`, for `rows` up to [`Tile::ROWS`] and `length` k. Each pointer comes with its
    /// stride in words: x and y by row, w by line.
    ///
    /// # Safety
    /// The machine has the instructions; pointers are valid for these strides and lengths.
    unsafe fn run(
        rows: usize,
        x: (*const Self::Input, usize),
        w: (*const Self::Word, usize),
        length: usize,
        y: (*mut f32, usize),
        start: Start,
        ahead: Ahead,
    );
}

/// Some panels of a weight times all rows. Pointers to rows come with their stride in words.
struct Product<'a, X, W> {
    x: (*const X, usize),
    w: *const W,
    /// How many k a panel has room for, and how many are summed.
    depth: usize,
    length: usize,
    bias: Option<&'a [f32]>,
    /// The stride is the number of outputs.
    y: (*mut f32, usize),
    rows: usize,
    panels: Range<usize>,
}

kernel! {
    unsafe fn multiply_by_fma<V, W: tile::Weights>(product: Product<'_, f32, W>) {
        product.run::<MultiplyAdd<V, W>>()
    }
}

impl<X, W> Product<'_, X, W> {
    /// # Safety
    /// The machine has the tile's instructions; lengths are as the fields say.
    #[inline(always)]
    unsafe fn run<T: Tile<Input = X, Word = W>>(self) {
        let k_block = match self.rows <= FEW_ROWS {
            true => self.length,
            false => COLUMN_BYTES / T::WEIGHT_BYTES,
        };
        let row_block = ROW_BLOCK / T::ROWS * T::ROWS;
        for row in (0..self.rows).step_by(row_block) {
            let rows = row_block.min(self.rows - row);
            for k in (0..self.length).step_by(k_block) {
                let length = k_block.min(self.length - k);
                for panel in self.panels.clone() {
                    // SAFETY: row, k and panel are within the matrices.
                    unsafe { self.panel::<T>((row, rows), (k, length), panel) };
                }
            }
        }
    }

    /// One panel's piece for up to a row block. The first piece starts from the bias, later ones add to y.
    #[inline(always)]
    unsafe fn panel<T: Tile<Input = X, Word = W>>(
        &self,
        (row, rows): (usize, usize),
        (k, length): (usize, usize),
        panel: usize,
    ) {
        let columns = T::WIDTH.min(self.y.1 - panel * T::WIDTH);
        let bias = self.bias.map(|bias| &bias[panel * T::WIDTH..][..columns]);
        let bias = bias.filter(|_| k == 0);
        let start = if k == 0 { Start::Zero } else { Start::Output };
        let words = size_of::<W>() / T::WEIGHT_BYTES; // k of a word
        let tiles = rows.div_ceil(T::ROWS);
        for tile in 0..tiles {
            let (from, to) = (rows * tile / tiles, rows * (tile + 1) / tiles);
            let height = to - from;
            // SAFETY: rows `from..to` are within x and y, columns within y, k within the panel.
            unsafe {
                let w = self.w.add((panel * self.depth + k) / words * T::WIDTH);
                let ahead = Ahead::of(w, T::WIDTH * T::WEIGHT_BYTES, self.depth, length, tile, tiles);
                let x = (self.x.0.add((row + from) * self.x.1 + k / T::INPUT_K), self.x.1);
                let y = (self.y.0.add((row + from) * self.y.1 + panel * T::WIDTH), self.y.1);
                let whole = columns == T::WIDTH && height.is_multiple_of(T::ROWS_MULTIPLE);
                if whole && bias.is_none() {
                    T::run(height, x, (w, T::WIDTH), length, y, start, ahead);
                } else {
                    Edge {
                        y,
                        height,
                        columns,
                        bias,
                        start,
                    }
                    .run::<T>(x, w, length, ahead);
                }
            }
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
    #[inline(always)]
    unsafe fn run<T: Tile>(self, x: (*const T::Input, usize), w: *const T::Word, length: usize, ahead: Ahead) {
        let mut buffer = [MaybeUninit::<f32>::uninit(); MAX_TILE.0 * MAX_TILE.1];
        let buffer = buffer.as_mut_ptr().cast::<f32>();
        // SAFETY: the buffer holds the tallest and widest tile; what of it was not written is computed with and thrown
        // away.
        unsafe {
            let mut start = self.start;
            for m in 0..self.height {
                let line = buffer.add(m * T::WIDTH);
                let from = match (self.bias, self.start) {
                    (Some(bias), _) => bias.as_ptr(),
                    (None, Start::Output) => self.y.0.add(m * self.y.1).cast_const(),
                    (None, Start::Zero) => break,
                };
                line.copy_from_nonoverlapping(from, self.columns);
                start = Start::Output;
            }
            T::run(self.height, x, (w, T::WIDTH), length, (buffer, T::WIDTH), start, ahead);
            for m in 0..self.height {
                let line = self.y.0.add(m * self.y.1);
                line.copy_from_nonoverlapping(buffer.add(m * T::WIDTH), self.columns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, random};
    use super::*;
    use half::bf16;

    fn plain(x: &[f32], w: &[f32], bias: Option<&[f32]>, inputs: usize) -> Vec<f32> {
        let row = |x: &[f32], n: usize, w: &[f32]| {
            let sum: f64 = x.iter().zip(w).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            sum as f32 + bias.map_or(0.0, |b| b[n])
        };
        x.chunks(inputs)
            .flat_map(|x| w.chunks(inputs).enumerate().map(move |(n, w)| row(x, n, w)))
            .collect()
    }

    fn packed(pool: &Pool, isa: Isa, precision: Precision, w: &[f32], inputs: usize) -> PackedMatrix {
        let mut packed = PackedMatrix::new(isa, precision, w.len() / inputs, inputs);
        packed.pack(pool, &[w], None);
        packed
    }

    fn rounded(x: &[f32]) -> Vec<f32> {
        x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
    }

    /// What the products see: bfloat16 weights are rounded, and where the machine multiplies those, the rows too.
    fn seen(isa: Isa, precision: Precision, x: &[f32], w: &[f32]) -> (Vec<f32>, Vec<f32>) {
        match (precision, isa.bf16_product()) {
            (Precision::F32, _) => (x.to_vec(), w.to_vec()),
            (Precision::Bf16, Bf16Product::Widen) => (x.to_vec(), rounded(w)),
            (Precision::Bf16, _) => (rounded(x), rounded(w)),
        }
    }

    fn variants() -> impl Iterator<Item = (Isa, Precision)> {
        let both = |isa| [(isa, Precision::F32), (isa, Precision::Bf16)];
        Isa::available().into_iter().flat_map(both)
    }

    const SHAPES: [(usize, usize); 7] = [(1, 1), (3, 7), (16, 5), (17, 64), (31, 33), (32, 16), (35, 1385)];

    #[test]
    fn agrees_with_a_plain_loop_on_odd_shapes() {
        let pool = Pool::new(2);
        let mut scratch = RowScratch::default();
        for (isa, precision) in variants() {
            for (outputs, inputs) in SHAPES {
                for rows in [1, 2, 5, 13, 16, 25, 33, 75] {
                    let (x, w) = (random(rows * inputs, 1), random(outputs * inputs, 2));
                    let (seen_x, seen_w) = seen(isa, precision, &x, &w);
                    let mut matrix = packed(&pool, isa, precision, &w, inputs);
                    for bias in [None, Some(random(outputs, 3))] {
                        matrix.pack(&pool, &[&w], bias.clone());
                        let mut y = vec![f32::NAN; rows * outputs];
                        matrix.multiply(&pool, &x, &mut y, &mut scratch);
                        assert_close(&y, &plain(&seen_x, &seen_w, bias.as_deref(), inputs), 1e-4);
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_batch_or_on_threads() {
        // Both are beyond a panel, and the inner length beyond a piece of it in either precision.
        let (outputs, inputs) = (45, 545);
        let (x, w) = (random(90 * inputs, 4), random(outputs * inputs, 5));
        for (isa, precision) in variants() {
            let mut scratch = RowScratch::default();
            let alone: Vec<u32> = {
                let pool = Pool::new(1);
                let matrix = packed(&pool, isa, precision, &w, inputs);
                let mut y = vec![0.0; 90 * outputs];
                x.chunks(inputs)
                    .zip(y.chunks_mut(outputs))
                    .for_each(|(x, y)| matrix.multiply(&pool, x, y, &mut scratch));
                y.iter().map(|y| y.to_bits()).collect()
            };
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                let matrix = packed(&pool, isa, precision, &w, inputs);
                for rows in [1, 3, 12, 13, 24, 25, 32, 33, 64, 90] {
                    let mut y = vec![0.0; rows * outputs];
                    matrix.multiply(&pool, &x[..rows * inputs], &mut y, &mut scratch);
                    let bits: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
                    assert_eq!(
                        bits,
                        alone[..rows * outputs],
                        "{} rows, {threads} threads, {} {precision:?}",
                        rows,
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn parts_are_packed_one_under_the_other() {
        let pool = Pool::new(1);
        let (a, b) = (random(5 * 6, 1), random(7 * 6, 2));
        let mut joined = PackedMatrix::new(Isa::detect(), Precision::F32, 12, 6);
        joined.pack(&pool, &[&a, &b], None);
        let x = random(6, 3);
        let mut y = vec![0.0; 12];
        joined.multiply(&pool, &x, &mut y, &mut RowScratch::default());
        assert_close(&y, &plain(&x, &[a, b].concat(), None, 6), 1e-6);
    }
}
