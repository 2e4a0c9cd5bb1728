//! Sums of gradients, in place and in parallel.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::slices::{with, with_mut};
use super::vectorize::{dot, vectorized};

/// Numbers of one task.
const CHUNK: usize = 32 * 1024;

/// sum += part, of one shape. Both are contiguous f32 CPU tensors, as for the other functions here.
///
/// # Errors
/// They are not.
pub fn add(sum: &Tensor, part: &Tensor) -> Result<()> {
    if sum.dims() != part.dims() {
        candle_core::bail!(
            "a gradient of shape {:?} cannot be added to one of {:?}",
            part.dims(),
            sum.dims()
        );
    }
    with_mut(sum, |sum| {
        with(part, |part| {
            sum.par_chunks_mut(CHUNK)
                .zip(part.par_chunks(CHUNK))
                .for_each(|(sum, part)| add_slice(sum, part));
            Ok(())
        })
    })
}

/// Row i of `rows` is added to row `ids[i]` of the matrix `sum`.
///
/// # Errors
/// As [`add`]; an id is outside the matrix.
pub fn add_rows(sum: &Tensor, ids: &[u32], rows: &Tensor) -> Result<()> {
    let (height, width) = sum.dims2()?;
    if rows.dims() != [ids.len(), width] || ids.iter().any(|id| *id as usize >= height) {
        candle_core::bail!(
            "rows of shape {:?} cannot be added to a matrix of {height} x {width}",
            rows.dims()
        );
    }
    with_mut(sum, |sum| {
        with(rows, |rows| {
            for (id, row) in ids.iter().zip(rows.chunks_exact(width)) {
                add_slice(&mut sum[*id as usize * width..][..width], row);
            }
            Ok(())
        })
    })
}

/// Σ xᵢ², summed in a fixed order.
///
/// # Errors
/// As [`add`].
pub fn sum_of_squares(tensor: &Tensor) -> Result<f64> {
    with(tensor, |values| {
        let parts: Vec<f64> = values.par_chunks(CHUNK).map(squares).collect();
        Ok(parts.iter().sum())
    })
}

vectorized! {
    fn add_slice(sum: &mut [f32], part: &[f32]) {
        for (sum, part) in sum.iter_mut().zip(part) {
            *sum += part;
        }
    }
}

vectorized! {
    /// In pieces short enough that f32 loses nothing that matters.
    fn squares(values: &[f32]) -> f64 {
        let mut total = 0.0;
        for piece in values.chunks(1024) {
            total += dot(piece, piece) as f64;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn sums_by_hand() {
        let tensor = |values: &[f32], rows: usize| {
            Tensor::from_vec(values.to_vec(), (rows, values.len() / rows), &Device::Cpu).unwrap()
        };
        let sum = tensor(&[1.0, 2.0, 3.0, 4.0], 2);
        add(&sum, &tensor(&[1.0, 1.0, 0.0, -4.0], 2)).unwrap();
        add_rows(&sum, &[1, 1, 0], &tensor(&[1.0, 0.0, 1.0, 5.0, 2.0, 2.0], 3)).unwrap();
        assert_eq!(sum.to_vec2::<f32>().unwrap(), [[4.0, 5.0], [5.0, 5.0]]);
        assert_eq!(sum_of_squares(&sum).unwrap(), 91.0);
        assert!(add(&sum, &tensor(&[1.0, 2.0], 1)).is_err());
        assert!(add_rows(&sum, &[2], &tensor(&[1.0, 2.0], 1)).is_err());
    }

    #[test]
    fn a_large_sum_loses_nothing() {
        let n = 3 * CHUNK + 17;
        let tensor = Tensor::from_vec(vec![0.5f32; n], n, &Device::Cpu).unwrap();
        assert_eq!(sum_of_squares(&tensor).unwrap(), n as f64 / 4.0);
    }
}
