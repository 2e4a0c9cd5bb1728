//! A linear layer's weight, packed once for many products.

use std::borrow::Cow;
use std::ops::Range;

use super::matrix::Matrix;
use super::tile::ROWS_BEHIND;
use super::{Panels, Precision, Product, Rows, Start, Tile, pack};
use crate::model::kernels::isa::Isa;
use crate::model::kernels::memory::Memory;
use crate::model::kernels::threads::{Pool, SharedMut};

/// A weight (out × in), packed for this machine, with its bias.
pub struct PackedMatrix {
    tile: Tile,
    outputs: usize,
    inputs: usize,
    panels: Memory<u32>,
    bias: Option<Vec<f32>>,
}

/// Room for the rows of a product in the form that the weights want.
#[derive(Default)]
pub struct RowScratch(Vec<u32>);

/// The rows of a product.
#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct RowsOf<'a> {
    words: &'a [u32],
    stride: usize,
    count: usize,
}

impl PackedMatrix {
    /// Makes room for a weight of `outputs` × `inputs`, all zero.
    pub fn new(isa: Isa, precision: Precision, outputs: usize, inputs: usize) -> Self {
        let tile = Tile::of_weights(isa, precision);
        let panels = outputs.div_ceil(tile.width());
        Self {
            tile,
            outputs,
            inputs,
            panels: Memory::zeroed(panels * tile.panel_len(tile.depth(inputs))),
            bias: None,
        }
    }

    /// Takes the rows of `parts`, one matrix (out × in, row-major) under the other, and their biases.
    ///
    /// # Panics
    /// Panics if the total shape is not that of [`PackedMatrix::new`].
    pub fn pack(&mut self, pool: &Pool, parts: &[&[f32]], bias: Option<Vec<f32>>) {
        let (tile, inputs, outputs) = (self.tile, self.inputs, self.outputs);
        let numbers: usize = parts.iter().map(|part| part.len()).sum();
        assert_eq!(numbers, outputs * inputs, "numbers of the weight");
        let biases = bias.as_ref().map_or(outputs, Vec::len);
        assert_eq!(biases, outputs, "a bias for each output");
        self.bias = bias;
        let words = tile.panel_len(tile.depth(inputs));
        pool.each(self.panels.chunks_exact_mut(words).enumerate(), |(number, panel)| {
            let columns = number * tile.width()..outputs.min((number + 1) * tile.width());
            let count = columns.len();
            let numbers = numbers_of(parts, columns.start * inputs..columns.end * inputs);
            pack::panel(tile, Matrix::new(&numbers, count, inputs), 1.0, panel);
        });
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes that one pass over the weight reads.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.panels[..])
    }

    /// y = x · Wᵀ + bias for every row of `x` (rows × inputs); `y` is rows × outputs.
    ///
    /// # Panics
    /// Panics if the lengths of `x` and `y` do not fit.
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
    pub(in crate::model::kernels) fn rows<'a>(
        &self,
        pool: &Pool,
        x: &'a [f32],
        scratch: &'a mut RowScratch,
    ) -> RowsOf<'a> {
        let (tile, inputs, count) = (self.tile, self.inputs, x.len() / self.inputs);
        assert_eq!(x.len(), count * inputs, "length of x");
        if tile.takes_plain_rows() {
            // SAFETY: an f32 has the size and alignment of a word, all of whose values are valid.
            let words = unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<u32>(), x.len()) };
            return RowsOf {
                words,
                stride: inputs,
                count,
            };
        }
        let stride = tile.row_len(tile.depth(inputs));
        let words = (count + ROWS_BEHIND) * stride;
        scratch.0.resize(scratch.0.len().max(words), 0);
        let at_once = (1 << 13) / inputs + 1;
        let blocks = scratch.0[..count * stride].chunks_mut(at_once * stride);
        pool.each(blocks.zip(x.chunks(at_once * inputs)), |(words, x)| {
            pack::rows(tile, Matrix::new(x, x.len() / inputs, inputs), words, stride);
        });
        RowsOf {
            words: &scratch.0,
            stride,
            count,
        }
    }

    /// Cuts the panels in ranges that are worth a thread's while, and runs them on the pool.
    pub(in crate::model::kernels) fn each_panel_range(
        &self,
        pool: &Pool,
        rows: usize,
        task: impl Fn(Range<usize>) + Sync,
    ) {
        let panels = self.outputs.div_ceil(self.tile.width());
        let work = rows.max(4) * self.inputs * self.tile.width();
        pool.run_ranges(panels, (1 << 15) / work.max(1), task);
    }

    /// The columns of `panels` for all rows, which come from [`PackedMatrix::rows`] of a weight of the same shape.
    ///
    /// # Safety
    /// `y` is rows × outputs; nothing else touches these columns of it meanwhile.
    pub(in crate::model::kernels) unsafe fn multiply_panels(&self, x: RowsOf, y: *mut f32, panels: Range<usize>) {
        let product = Product {
            tile: self.tile,
            x: Rows::InPlace(x.words.as_ptr(), x.stride),
            rows: x.count,
            panels: Panels::Packed(&self.panels, self.tile.depth(self.inputs)),
            length: self.tile.length(self.inputs),
            bias: self.bias.as_deref(),
            y: (y, self.outputs),
            columns: self.outputs,
            start: Start::Zero,
        };
        // SAFETY: the caller's promise; rows and panels are as long as the fields say.
        unsafe { product.run(panels, &mut Memory::default()) }
    }

    /// Columns of a panel.
    pub(in crate::model::kernels) fn panel_width(&self) -> usize {
        self.tile.width()
    }
}

/// Some of the numbers of all parts, one behind the other.
fn numbers_of<'a>(parts: &[&'a [f32]], range: Range<usize>) -> Cow<'a, [f32]> {
    let mut start = 0;
    let mut numbers = Cow::Borrowed(&[][..]);
    for part in parts {
        let (from, to) = (range.start.max(start), range.end.min(start + part.len()));
        if from < to {
            let piece = &part[from - start..to - start];
            match numbers.is_empty() {
                true => numbers = Cow::Borrowed(piece),
                false => numbers.to_mut().extend_from_slice(piece),
            }
        }
        start += part.len();
    }
    numbers
}
