//! Sums of gradients, in place and in parallel.

use rayon::prelude::*;

use super::vectorize::{dot, vectorized};

/// Numbers of one task.
const CHUNK: usize = 32 * 1024;
/// Rows of one task of a sum over rows.
const ROWS: usize = 64;

/// sum += part.
///
/// # Panics
/// Their lengths differ. So for the other functions here.
pub fn add(sum: &mut [f32], part: &[f32]) {
    assert_eq!(sum.len(), part.len(), "lengths of a sum and its part");
    sum.par_chunks_mut(CHUNK)
        .zip(part.par_chunks(CHUNK))
        .for_each(|(sum, part)| add_slice(sum, part));
}

/// Row i of `rows` is added to row `ids[i]` of `sum`, both of rows `width` wide.
pub fn add_rows(sum: &mut [f32], width: usize, ids: &[u32], rows: &[f32]) {
    assert_eq!(ids.len() * width, rows.len(), "rows and their ids");
    for (id, row) in ids.iter().zip(rows.chunks_exact(width)) {
        add_slice(&mut sum[*id as usize * width..][..width], row);
    }
}

/// The sum of all rows is added to `sum`.
pub fn add_columns(sum: &mut [f32], rows: &[f32]) {
    let width = sum.len();
    let partial = |rows: &[f32]| {
        let mut partial = vec![0.0; width];
        rows.chunks_exact(width).for_each(|row| add_slice(&mut partial, row));
        partial
    };
    let partials: Vec<_> = rows.par_chunks(ROWS * width).map(partial).collect();
    partials.iter().for_each(|partial| add_slice(sum, partial));
}

/// The same row is added to all rows.
pub fn add_to_rows(rows: &mut [f32], row: &[f32]) {
    rows.par_chunks_mut(ROWS * row.len())
        .for_each(|rows| rows.chunks_exact_mut(row.len()).for_each(|sum| add_slice(sum, row)));
}

/// Σ xᵢ², summed in a fixed order.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    let parts: Vec<f64> = values.par_chunks(CHUNK).map(squares).collect();
    parts.iter().sum()
}

vectorized! {
    pub(super) fn add_slice(sum: &mut [f32], part: &[f32]) {
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

    #[test]
    fn sums_by_hand() {
        let mut sum = [1.0, 2.0, 3.0, 4.0];
        add(&mut sum, &[1.0, 1.0, 0.0, -4.0]);
        add_rows(&mut sum, 2, &[1, 1, 0], &[1.0, 0.0, 1.0, 5.0, 2.0, 2.0]);
        assert_eq!(sum, [4.0, 5.0, 5.0, 5.0]);
        assert_eq!(sum_of_squares(&sum), 91.0);
        let mut columns = [10.0, 20.0];
        add_columns(&mut columns, &sum);
        assert_eq!(columns, [19.0, 30.0]);
        add_to_rows(&mut sum, &[1.0, -1.0]);
        assert_eq!(sum, [5.0, 4.0, 6.0, 4.0]);
    }

    #[test]
    fn a_large_sum_loses_nothing() {
        let n = 3 * CHUNK + 17;
        assert_eq!(sum_of_squares(&vec![0.5f32; n]), n as f64 / 4.0);
    }
}
