//! Sums of gradients, in place and in parallel.

use super::isa::kernel;
use super::threads::Pool;
use super::vector::dot;

/// Numbers of one task.
const CHUNK: usize = 32 * 1024;
/// Rows of one task of a sum over rows; fixed, so that the sum has a fixed order.
const ROWS: usize = 64;

/// Adds row i of `rows` to row `ids[i]` of `sum`, both of rows `width` wide.
///
/// # Panics
/// Panics if the length of `rows` does not fit the ids, or an id is outside `sum`.
pub fn add_rows(pool: &Pool, sum: &mut [f32], width: usize, ids: &[u32], rows: &[f32]) {
    assert_eq!(ids.len() * width, rows.len(), "rows and their ids");
    for (id, row) in ids.iter().zip(rows.chunks_exact(width)) {
        add_slice(pool.isa(), &mut sum[*id as usize * width..][..width], row);
    }
}

/// Adds the sum of all rows to `sum`.
pub fn add_columns(pool: &Pool, sum: &mut [f32], rows: &[f32]) {
    let width = sum.len();
    let partials = pool.map(rows.chunks(ROWS * width), |rows| {
        let mut partial = vec![0.0; width];
        rows.chunks_exact(width)
            .for_each(|row| add_slice(pool.isa(), &mut partial, row));
        partial
    });
    partials.iter().for_each(|partial| add_slice(pool.isa(), sum, partial));
}

/// Adds `row` to every row of `rows`.
pub fn add_to_rows(pool: &Pool, rows: &mut [f32], row: &[f32]) {
    pool.each(rows.chunks_mut(ROWS * row.len()), |rows| {
        rows.chunks_exact_mut(row.len())
            .for_each(|sum| add_slice(pool.isa(), sum, row));
    });
}

/// Adds `scale · part` to `sum`.
///
/// # Panics
/// Panics if the lengths differ.
pub fn add_scaled(pool: &Pool, sum: &mut [f32], part: &[f32], scale: f32) {
    assert_eq!(sum.len(), part.len(), "lengths of a sum and what is added");
    pool.each(sum.chunks_mut(CHUNK).zip(part.chunks(CHUNK)), |(sum, part)| {
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += scale * part);
    });
}

/// Returns Σ xᵢ², summed in a fixed order.
pub fn sum_of_squares(pool: &Pool, values: &[f32]) -> f64 {
    let parts = pool.map(values.chunks(CHUNK), |chunk| squares(pool.isa(), chunk));
    parts.iter().sum()
}

kernel! {
    pub(super) fn add_slice<V>(sum: &mut [f32], part: &[f32]) {
        for (sum, part) in sum.iter_mut().zip(part) {
            *sum += part;
        }
    }
}

kernel! {
    /// In pieces short enough that f32 loses nothing that matters.
    fn squares<V>(values: &[f32]) -> f64 {
        let mut total = 0.0;
        for piece in values.chunks(1024) {
            total += f64::from(dot::<V>(piece.as_ptr(), piece.as_ptr(), piece.len()));
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::*;

    #[test]
    fn sums_by_hand() {
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
            let mut sum = [1.0, 2.0, 3.0, 4.0];
            add_rows(&pool, &mut sum, 2, &[1, 1, 0], &[1.0, 0.0, 1.0, 5.0, 2.0, 2.0]);
            assert_eq!(sum, [3.0, 4.0, 5.0, 9.0]);
            assert_eq!(sum_of_squares(&pool, &sum), 131.0);
            let mut moved = sum;
            add_scaled(&pool, &mut moved, &sum, -0.5);
            assert_eq!(moved, [1.5, 2.0, 2.5, 4.5]);
            let mut columns = [10.0, 20.0];
            add_columns(&pool, &mut columns, &sum);
            assert_eq!(columns, [18.0, 33.0]);
            add_to_rows(&pool, &mut sum, &[1.0, -1.0]);
            assert_eq!(sum, [4.0, 3.0, 6.0, 8.0]);
        }
    }

    #[test]
    fn a_large_sum_loses_nothing() {
        let n = 3 * CHUNK + 17;
        assert_eq!(sum_of_squares(&Pool::new(2), &vec![0.5f32; n]), n as f64 / 4.0);
    }
}
