//! Weights that stay in the blocks of a GGUF file. Products expand the part that they are about to use.

mod expand;
mod format;
mod layout;
mod one_row;
#[cfg(test)]
mod tests;

use super::matrix::Matrix;
use super::pack::as_numbers;
use super::transpose::transpose;
use crate::model::kernels::isa::Isa;
use crate::model::kernels::memory::Memory;
pub use format::BlockFormat;
pub(super) use layout::RUN;
use layout::{Geometry, LANES, with_layout};

/// Columns of the widest panel, of which there is memory for multiples. What begins with a multiple of it can be taken as
/// a part.
pub const MAX_PANEL_WIDTH: usize = 32;

/// A frozen weight (out × in) in blocks, with the values of the file.
pub struct QuantizedMatrix {
    format: BlockFormat,
    outputs: usize,
    inputs: usize,
    blocks: Memory<u32>,
}

impl std::fmt::Debug for QuantizedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} × {} in {}", self.outputs, self.inputs, self.format.name())
    }
}

impl QuantizedMatrix {
    /// Takes the blocks of a file, row by row; `row_of` returns the file's row of an output.
    ///
    /// # Panics
    /// Panics if a row is not whole blocks, or `bytes` are not those of all rows.
    pub fn new(
        format: BlockFormat,
        (outputs, inputs): (usize, usize),
        bytes: &[u8],
        row_of: impl Fn(usize) -> usize,
    ) -> Self {
        let row_bytes = inputs / format.block_inputs() * format.block_bytes();
        assert!(inputs.is_multiple_of(format.block_inputs()), "rows of whole blocks");
        assert_eq!(bytes.len(), outputs * row_bytes, "bytes of all blocks");
        let geometry = geometry(format);
        let blocks_in_row = inputs.div_ceil(geometry.runs * RUN);
        let strips = outputs.next_multiple_of(MAX_PANEL_WIDTH) / LANES;
        let mut blocks = Memory::zeroed(strips * blocks_in_row * geometry.words);
        for output in 0..outputs {
            let row = &bytes[row_of(output) * row_bytes..][..row_bytes];
            let strip = output / LANES * blocks_in_row;
            let file_blocks: Vec<_> = row
                .chunks(format.block_bytes())
                .map(|bytes| format.read(bytes))
                .collect();
            for (number, together) in file_blocks.chunks(geometry.file_blocks).enumerate() {
                let place = &mut blocks[(strip + number) * geometry.words..][..geometry.words];
                geometry.write(together, output % LANES, place);
            }
        }
        Self {
            format,
            outputs,
            inputs,
            blocks,
        }
    }

    /// Type of the blocks.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.blocks[..])
    }

    /// Returns the weights of one output.
    ///
    /// # Panics
    /// Panics if there is no such output, or `into` is not as long as there are inputs.
    pub fn row(&self, isa: Isa, output: usize, into: &mut [f32]) {
        assert!(output < self.outputs, "output {output} of {}", self.outputs);
        assert_eq!(into.len(), self.inputs, "length of a row");
        for (run, into) in into.chunks_exact_mut(RUN).enumerate() {
            let lines = self.run(isa, output / LANES, run);
            for (number, line) in into.iter_mut().zip(lines.chunks_exact(LANES)) {
                *number = line[output % LANES];
            }
        }
    }

    /// Returns all weights, output by output.
    pub fn to_numbers(&self, isa: Isa) -> Vec<f32> {
        let mut numbers = vec![0.0; self.outputs * self.inputs];
        for (output, row) in numbers.chunks_exact_mut(self.inputs).enumerate() {
            self.row(isa, output, row);
        }
        numbers
    }

    /// Packs a panel of f32 for products with the transposed weight: a line for each input, with `width` outputs from
    /// `first_output` on, which is a multiple of `width`.
    ///
    /// # Panics
    /// Panics if there are no such outputs, or `panel` does not have a line for each input.
    pub(super) fn columns(&self, isa: Isa, first_output: usize, panel: &mut [u32], width: usize) {
        assert_eq!(panel.len(), self.inputs * width, "length of a panel");
        let (runs, lines) = ((0, self.inputs / RUN), as_numbers(panel).as_mut_ptr());
        // SAFETY: the panel is as long as just checked.
        unsafe { self.columns_of_runs(isa, first_output, runs, lines, width) }
    }

    /// As [`columns`](Self::columns), of the inputs in some runs, by the first and their number.
    ///
    /// # Safety
    /// `lines` is valid for a line of `width` numbers for each input.
    pub(super) unsafe fn columns_of_runs(
        &self,
        isa: Isa,
        first_output: usize,
        runs: (usize, usize),
        lines: *mut f32,
        width: usize,
    ) {
        assert!(
            first_output.is_multiple_of(width) && width.is_multiple_of(LANES) && width <= MAX_PANEL_WIDTH,
            "whole panels"
        );
        for side in 0..width / LANES {
            let strip = first_output / LANES + side;
            // SAFETY: the caller's promise; the sides of a line do not overlap.
            unsafe { self.expand(isa, strip, runs, lines.add(side * LANES), width) };
        }
    }

    /// Packs a panel of f32 for products with the weight itself, times `scale`: a line for each of some outputs, the first
    /// of which is a multiple of 16, with some inputs, which lie in one run. Both are given by the first and their number;
    /// the panel is `width` inputs wide.
    ///
    /// # Panics
    /// Panics if the weight has no such outputs or inputs, or the panel is too short.
    pub(super) fn rows(
        &self,
        isa: Isa,
        (first_output, outputs): (usize, usize),
        (first_input, inputs): (usize, usize),
        scale: f32,
        panel: &mut [u32],
        width: usize,
    ) {
        let (run, skipped) = (first_input / RUN, first_input % RUN);
        assert!(first_output.is_multiple_of(LANES), "whole strips of outputs");
        assert!(skipped + inputs <= RUN, "inputs of one run");
        for (number, panel) in panel[..outputs * width].chunks_mut(LANES * width).enumerate() {
            let lines = self.run(isa, first_output / LANES + number, run);
            let lines = Matrix::strided(&lines[skipped * LANES..], inputs, panel.len() / width, LANES);
            transpose(isa, lines, scale, panel, width);
        }
    }

    /// Adds the products of `x`, a number for each input, to the sums of two panels of outputs or of one, the first of which
    /// is a multiple of 16. Each sum is one chain over the inputs.
    ///
    /// # Panics
    /// Panics if the weight has no such outputs, or `x` not a number for each input.
    pub(super) fn add_products(&self, isa: Isa, x: &[f32], first_output: usize, sums: &mut [f32]) {
        let strips = sums.len() / LANES;
        assert!(
            first_output.is_multiple_of(LANES) && sums.len().is_multiple_of(LANES),
            "whole strips of outputs"
        );
        assert_eq!(x.len(), self.inputs, "a number for each input");
        let strip_words = self.strip_words();
        let blocks = &self.blocks[first_output / LANES * strip_words..][..strips * strip_words];
        let (blocks, x, sums) = (blocks.as_ptr(), x.as_ptr(), sums.as_mut_ptr());
        let runs = self.inputs / RUN;
        // SAFETY: blocks, x and sums are as long as just checked.
        unsafe {
            with_layout!(self.format, L => {
                one_row::add_products::<L>(isa, blocks, strip_words, strips, runs, x, sums)
            })
        }
    }

    /// Words of the blocks of 16 outputs.
    fn strip_words(&self) -> usize {
        let Geometry { runs, words, .. } = geometry(self.format);
        self.inputs.div_ceil(runs * RUN) * words
    }

    /// Returns the lines of 16 outputs for one run of inputs.
    fn run(&self, isa: Isa, strip: usize, run: usize) -> [f32; RUN * LANES] {
        let mut lines = [0.0; RUN * LANES];
        // SAFETY: there is room for a run.
        unsafe { self.expand(isa, strip, (run, 1), lines.as_mut_ptr(), LANES) };
        lines
    }

    /// Writes lines of 16 outputs, for some runs, by the first and their number.
    ///
    /// # Safety
    /// `into` is valid for a line for each input, `stride` numbers apart.
    unsafe fn expand(&self, isa: Isa, strip: usize, (first, runs): (usize, usize), into: *mut f32, stride: usize) {
        let strip_words = self.strip_words();
        let blocks = self.blocks[strip * strip_words..][..strip_words].as_ptr();
        assert!((first + runs) * RUN <= self.inputs, "runs of the weight");
        // SAFETY: the blocks are those of the strip, the runs within them; the caller's promise.
        unsafe { with_layout!(self.format, L => expand::expand::<L>(isa, blocks, first, runs, into, stride)) }
    }
}

/// How blocks of a format lie in memory.
fn geometry(format: BlockFormat) -> Geometry {
    with_layout!(format, L => Geometry::of::<L>())
}
