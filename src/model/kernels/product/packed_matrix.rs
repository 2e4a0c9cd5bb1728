//! A linear layer's weight, packed once for many products, or kept in the blocks of a GGUF file.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::matrix::Matrix;
use super::tile::ROWS_BEHIND;
use super::{MAX_PANEL_WIDTH, Panels, Precision, Product, QuantizedMatrix, Rows, Start, Tile, pack};
use crate::model::kernels::isa::Isa;
use crate::model::kernels::memory::Memory;
use crate::model::kernels::threads::{Pool, SharedMut};

/// A weight (out × in), packed for this machine, with its bias.
pub struct PackedMatrix {
    tile: Tile,
    outputs: usize,
    inputs: usize,
    store: Store,
    bias: Option<Vec<f32>>,
    /// Added to a frozen weight.
    adapter: Option<Box<PackedAdapter>>,
}

/// Where the weights are.
enum Store {
    /// In panels of their own.
    Panels(Memory<u32>),
    /// In blocks that others use too, from an output on.
    Blocks(Arc<QuantizedMatrix>, usize),
}

/// The factors of a low-rank adapter: rank × in, and out × rank times the adapter's scale.
struct PackedAdapter {
    a: PackedMatrix,
    b: PackedMatrix,
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
            store: Store::Panels(Memory::zeroed(panels * tile.panel_len(tile.depth(inputs)))),
            bias: None,
            adapter: None,
        }
    }

    /// Takes `outputs` outputs of a weight in blocks, from `first` on. Products are f32.
    ///
    /// # Panics
    /// Panics if there are no such outputs, or `first` is not a multiple of [`MAX_PANEL_WIDTH`].
    pub fn of_blocks(isa: Isa, weight: Arc<QuantizedMatrix>, first: usize, outputs: usize) -> Self {
        assert!(first.is_multiple_of(MAX_PANEL_WIDTH), "the first output begins a panel");
        assert!(first + outputs <= weight.outputs(), "outputs of the weight");
        Self {
            tile: Tile::F32(isa),
            outputs,
            inputs: weight.inputs(),
            store: Store::Blocks(weight, first),
            bias: None,
            adapter: None,
        }
    }

    /// Whether the weight is frozen, and only bias and adapter change.
    pub fn is_in_blocks(&self) -> bool {
        matches!(self.store, Store::Blocks(..))
    }

    /// Takes the bias of a weight in blocks.
    ///
    /// # Panics
    /// Panics if there is not one for each output.
    pub fn set_bias(&mut self, bias: Option<Vec<f32>>) {
        let biases = bias.as_ref().map_or(self.outputs, Vec::len);
        assert_eq!(biases, self.outputs, "a bias for each output");
        self.bias = bias;
    }

    /// Takes the adapter of a weight in blocks: `a` is rank × in, `b` out × rank, and `scale` is that of their product.
    ///
    /// # Panics
    /// Panics if their shapes do not fit.
    pub fn set_adapter(&mut self, pool: &Pool, a: &[f32], b: &[f32], scale: f32) {
        let rank = a.len() / self.inputs;
        let packed = |outputs, inputs, numbers: &[f32]| {
            let mut matrix = Self::new(pool.isa(), Precision::F32, outputs, inputs);
            matrix.pack(pool, &[numbers], None);
            matrix
        };
        let scaled: Vec<f32> = b.iter().map(|b| b * scale).collect();
        self.adapter = Some(Box::new(PackedAdapter {
            a: packed(rank, self.inputs, a),
            b: packed(self.outputs, rank, &scaled),
        }));
    }

    /// Takes the rows of `parts`, one matrix (out × in, row-major) under the other, and their biases.
    ///
    /// # Panics
    /// Panics if the total shape is not that of [`PackedMatrix::new`], or the weight is in blocks.
    pub fn pack(&mut self, pool: &Pool, parts: &[&[f32]], bias: Option<Vec<f32>>) {
        let (tile, inputs, outputs) = (self.tile, self.inputs, self.outputs);
        let numbers: usize = parts.iter().map(|part| part.len()).sum();
        assert_eq!(numbers, outputs * inputs, "numbers of the weight");
        self.set_bias(bias);
        let Store::Panels(panels) = &mut self.store else {
            panic!("a weight in blocks is not packed");
        };
        let words = tile.panel_len(tile.depth(inputs));
        pool.each(panels.chunks_exact_mut(words).enumerate(), |(number, panel)| {
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
        match &self.store {
            Store::Panels(panels) => size_of_val(&panels[..]),
            Store::Blocks(weight, _) => weight.bytes() / weight.outputs() * self.outputs,
        }
    }

    /// y = x · Wᵀ + bias for every row of `x` (rows × inputs); `y` is rows × outputs.
    ///
    /// # Panics
    /// Panics if the lengths of `x` and `y` do not fit.
    pub fn multiply(&self, pool: &Pool, x: &[f32], y: &mut [f32], scratch: &mut RowScratch) {
        self.multiply_columns(pool, x, (y, self.outputs, 0), scratch);
    }

    /// As [`multiply`](Self::multiply), to the columns of `y` from `first` on; its rows are `stride` numbers apart.
    ///
    /// # Panics
    /// Panics if the lengths of `x` and `y` do not fit.
    pub fn multiply_columns(
        &self,
        pool: &Pool,
        x: &[f32],
        (y, stride, first): (&mut [f32], usize, usize),
        scratch: &mut RowScratch,
    ) {
        let narrow = self.narrow(pool, x);
        let rows = self.rows(pool, x, scratch);
        assert!(
            y.len() == rows.count * stride && first + self.outputs <= stride,
            "length of y"
        );
        if rows.count == 0 {
            return;
        }
        let y = SharedMut::new(y);
        self.each_panel_range(pool, rows.count, |panels| {
            // SAFETY: lengths are checked above; ranges of panels do not overlap, so tasks write other columns of y.
            unsafe { self.multiply_panels(rows, &narrow, (y.at(first), stride), panels) }
        });
    }

    /// The products of the rows of `x` (rows × inputs) with the adapter's first factor; none without an adapter.
    pub(in crate::model::kernels) fn narrow(&self, pool: &Pool, x: &[f32]) -> Vec<f32> {
        let Some(adapter) = &self.adapter else { return vec![] };
        let mut narrow = vec![0.0; x.len() / self.inputs * adapter.a.outputs];
        adapter.a.multiply(pool, x, &mut narrow, &mut RowScratch::default());
        narrow
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

    /// The columns of `panels` for all rows, which come from [`PackedMatrix::rows`] of a weight of the same shape, and
    /// `narrow` from [`PackedMatrix::narrow`] of this one.
    ///
    /// # Safety
    /// `y` is rows × outputs and comes with the distance from one row to the next; nothing else touches these columns
    /// meanwhile.
    pub(in crate::model::kernels) unsafe fn multiply_panels(
        &self,
        x: RowsOf,
        narrow: &[f32],
        y: (*mut f32, usize),
        panels: Range<usize>,
    ) {
        let mut product = Product {
            tile: self.tile,
            x: Rows::InPlace(x.words.as_ptr(), x.stride),
            rows: x.count,
            panels: self.panels(),
            length: self.tile.length(self.inputs),
            bias: self.bias.as_deref(),
            y,
            columns: self.outputs,
            start: Start::Zero,
        };
        // SAFETY: the caller's promise; rows and panels are as long as the fields say.
        unsafe { product.run(panels.clone(), &mut Memory::default()) }
        if let Some(PackedAdapter { b, .. }) = self.adapter.as_deref() {
            product = Product {
                x: Rows::InPlace(narrow.as_ptr().cast(), b.inputs),
                panels: b.panels(),
                length: b.inputs,
                bias: None,
                start: Start::Output,
                ..product
            };
            // SAFETY: as above; both have f32 tiles, and so the same panels.
            unsafe { product.run(panels, &mut Memory::default()) }
        }
    }

    fn panels(&self) -> Panels<'_> {
        match &self.store {
            Store::Panels(panels) => Panels::Packed(panels, self.tile.depth(self.inputs)),
            Store::Blocks(weight, first) => match self.tile {
                Tile::F32(isa) => Panels::Blocks(weight, *first, isa),
                _ => unreachable!("`of_blocks` chooses tiles of f32"),
            },
        }
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
