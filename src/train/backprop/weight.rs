//! A weight of the model as the kernels take it.

use crate::model::Weights;
use crate::model::kernels::tensors::Numbers;
use crate::model::kernels::{Pool, QuantizedMatrix, Weight};
use crate::model::param::Param;
use crate::train::error::Result;

/// A borrowed weight (out × in).
pub(super) enum BorrowedWeight<'a> {
    Numbers(Numbers<'a>),
    Quantized(&'a QuantizedMatrix),
}

impl<'a> BorrowedWeight<'a> {
    /// # Errors
    /// Fails if the model has no such parameter, or it is not f32 on the CPU.
    pub fn of(weights: &'a Weights, name: &str) -> Result<Self> {
        Ok(match weights.param(name)? {
            Param::Quantized(matrix) => Self::Quantized(matrix),
            _ => Self::Numbers(Numbers::of(weights.tensor(name)?)?),
        })
    }

    /// As products take it.
    pub fn as_factor(&self) -> Weight<'_> {
        match self {
            Self::Numbers(numbers) => Weight::Numbers(numbers),
            Self::Quantized(matrix) => Weight::Blocks(matrix),
        }
    }

    /// Copies a row, and returns whether there is one of that number.
    pub fn copy_row(&self, pool: &Pool, number: usize, into: &mut [f32]) -> bool {
        match self {
            Self::Numbers(numbers) => match numbers.chunks_exact(into.len()).nth(number) {
                Some(row) => into.copy_from_slice(row),
                None => return false,
            },
            Self::Quantized(matrix) if number < matrix.outputs() => matrix.row(pool.isa(), number, into),
            Self::Quantized(_) => return false,
        }
        true
    }
}
