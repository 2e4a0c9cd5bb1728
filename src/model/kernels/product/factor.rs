//! The second operand of a product: numbers, or a weight in blocks.

use super::matrix::Matrix;
use super::quantized::QuantizedMatrix;
use crate::model::kernels::isa::Isa;

/// A weight, out × in.
#[derive(Clone, Copy)]
pub enum Weight<'a> {
    /// Row by row.
    Numbers(&'a [f32]),
    /// Frozen, in the blocks of a GGUF file.
    Blocks(&'a QuantizedMatrix),
}

/// Inner × columns.
#[derive(Clone, Copy)]
pub(in crate::model::kernels) enum Factor<'a> {
    Numbers(Matrix<'a>),
    Blocks(Blocks<'a>),
}

/// Some outputs and inputs of a weight in blocks, or these transposed; each by the first and their number.
#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct Blocks<'a> {
    weight: &'a QuantizedMatrix,
    outputs: (usize, usize),
    inputs: (usize, usize),
    transposed: bool,
}

impl<'a> Weight<'a> {
    /// Returns the number of outputs of a weight with `inputs` inputs.
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len() / inputs,
            Self::Blocks(blocks) => blocks.outputs(),
        }
    }

    /// Some outputs × all inputs. Blocks are cut between multiples of 32 outputs.
    pub(in crate::model::kernels) fn factor(self, (first, outputs): (usize, usize), inputs: usize) -> Factor<'a> {
        match self {
            Self::Numbers(numbers) => Factor::Numbers(Matrix::new(&numbers[first * inputs..], outputs, inputs)),
            Self::Blocks(weight) => Factor::Blocks(Blocks {
                weight,
                outputs: (first, outputs),
                inputs: (0, inputs),
                transposed: false,
            }),
        }
    }
}

impl<'a> Factor<'a> {
    /// The transposed operand.
    pub(in crate::model::kernels) fn t(self) -> Self {
        match self {
            Self::Numbers(matrix) => Self::Numbers(matrix.t()),
            Self::Blocks(blocks) => Self::Blocks(Blocks {
                transposed: !blocks.transposed,
                ..blocks
            }),
        }
    }

    /// Inner size.
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Numbers(matrix) => matrix.rows,
            Self::Blocks(blocks) if blocks.transposed => blocks.inputs.1,
            Self::Blocks(blocks) => blocks.outputs.1,
        }
    }

    /// Number of columns.
    pub(super) fn columns(&self) -> usize {
        match self {
            Self::Numbers(matrix) => matrix.columns,
            Self::Blocks(blocks) if blocks.transposed => blocks.outputs.1,
            Self::Blocks(blocks) => blocks.inputs.1,
        }
    }

    /// Whether all elements are there.
    pub(super) fn is_whole(&self) -> bool {
        match self {
            Self::Numbers(matrix) => matrix.extent() <= matrix.data.len(),
            Self::Blocks(blocks) => {
                blocks.outputs.0 + blocks.outputs.1 <= blocks.weight.outputs()
                    && blocks.inputs.0 + blocks.inputs.1 <= blocks.weight.inputs()
            }
        }
    }

    /// Some columns, by the first and their number.
    pub(super) fn part(self, (first, count): (usize, usize)) -> Self {
        let cut = |(start, _): (usize, usize)| (start + first, count);
        match self {
            Self::Numbers(matrix) => Self::Numbers(matrix.part((0, matrix.rows), (first, count))),
            Self::Blocks(blocks) if blocks.transposed => Self::Blocks(Blocks {
                outputs: cut(blocks.outputs),
                ..blocks
            }),
            Self::Blocks(blocks) => Self::Blocks(Blocks {
                inputs: cut(blocks.inputs),
                ..blocks
            }),
        }
    }
}

impl Blocks<'_> {
    /// Packs a panel of f32, times `scale`, from no more columns than it is wide.
    pub(super) fn pack(self, isa: Isa, scale: f32, panel: &mut [u32], width: usize) {
        match self.transposed {
            true => {
                self.weight.columns(isa, self.outputs.0, panel, width);
                if scale != 1.0 {
                    let numbers = panel.iter_mut();
                    numbers.for_each(|number| *number = (f32::from_bits(*number) * scale).to_bits());
                }
            }
            false => self.weight.rows(isa, self.outputs, self.inputs, scale, panel, width),
        }
    }
}
