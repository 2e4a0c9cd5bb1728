//! Transposition of f32 matrices while they are packed, by squares of 8 × 8 in registers where there are AVX2 vectors.

use super::matrix::Matrix;
use crate::model::kernels::isa::{Isa, Vectors};

/// Rows and columns that are transposed in registers.
const SQUARE: usize = 8;
/// Columns after which the next rows are taken, so that what is written stays in the first-level cache.
const COLUMNS: usize = 64;

/// Writes the transposed matrix times `scale`, its rows `stride` apart. The columns of `from` lie side by side.
///
/// # Panics
/// Panics if `from` has another number of columns, or `into` is too short.
pub(super) fn transpose(isa: Isa, from: Matrix, scale: f32, into: &mut [u32], stride: usize) {
    assert!(
        from.column_stride == 1 || from.columns <= 1,
        "numbers of a row side by side"
    );
    assert!(from.extent() <= from.data.len(), "an operand is too short");
    assert!(
        from.rows * from.columns == 0 || (from.columns - 1) * stride + from.rows <= into.len(),
        "room for the transposed matrix"
    );
    let in_registers = match isa.vectors() {
        Vectors::Portable => false,
        #[cfg(target_arch = "x86_64")]
        _ => true,
        #[cfg(target_arch = "aarch64")]
        _ => false,
    };
    let whole = |count: usize| if in_registers { count / SQUARE * SQUARE } else { 0 };
    let (rows, columns) = (whole(from.rows), whole(from.columns));
    #[cfg(target_arch = "x86_64")]
    if in_registers {
        // SAFETY: every `Isa` with other vectors than the portable ones has AVX2; lengths are checked above.
        unsafe {
            avx2::squares(
                from.part((0, rows), (0, columns)),
                scale,
                into.as_mut_ptr().cast(),
                stride,
            )
        }
    }
    let mut one_by_one = |rows: std::ops::Range<usize>, columns: std::ops::Range<usize>| {
        for row in rows {
            for column in columns.clone() {
                into[column * stride + row] = (from.data[row * from.row_stride + column] * scale).to_bits();
            }
        }
    };
    one_by_one(0..rows, columns..from.columns);
    one_by_one(rows..from.rows, 0..from.columns);
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{COLUMNS, Matrix, SQUARE};

    /// # Safety
    /// The machine has AVX2; rows and columns are whole squares, `from` and `into` long enough for them.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn squares(from: Matrix, scale: f32, into: *mut f32, stride: usize) {
        let scale = _mm256_set1_ps(scale);
        for start in (0..from.columns).step_by(COLUMNS) {
            for row in (0..from.rows).step_by(SQUARE) {
                for column in (start..from.columns.min(start + COLUMNS)).step_by(SQUARE) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let source = from.data.as_ptr().add(row * from.row_stride + column);
                        let mut square = [_mm256_setzero_ps(); SQUARE];
                        for (i, line) in square.iter_mut().enumerate() {
                            *line = _mm256_mul_ps(_mm256_loadu_ps(source.add(i * from.row_stride)), scale);
                        }
                        for (i, line) in turn(square).into_iter().enumerate() {
                            _mm256_storeu_ps(into.add((column + i) * stride + row), line);
                        }
                    }
                }
            }
        }
    }

    /// Transposes a square.
    #[target_feature(enable = "avx2")]
    fn turn(rows: [__m256; SQUARE]) -> [__m256; SQUARE] {
        let [a, b, c, d, e, f, g, h] = rows;
        // In each half of 128 bits: columns of two rows, then of four; then the halves are put together.
        let (ab, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let (ef, ef_high) = (_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f));
        let (gh, gh_high) = (_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h));
        let fours = |x, y| (_mm256_shuffle_ps::<0x44>(x, y), _mm256_shuffle_ps::<0xee>(x, y));
        let ((u0, u1), (u2, u3)) = (fours(ab, cd), fours(ab_high, cd_high));
        let ((l0, l1), (l2, l3)) = (fours(ef, gh), fours(ef_high, gh_high));
        let low = |x, y| _mm256_permute2f128_ps::<0x20>(x, y);
        let high = |x, y| _mm256_permute2f128_ps::<0x31>(x, y);
        [
            low(u0, l0),
            low(u1, l1),
            low(u2, l2),
            low(u3, l3),
            high(u0, l0),
            high(u1, l1),
            high(u2, l2),
            high(u3, l3),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::random;
    use super::*;

    #[test]
    fn every_number_is_at_its_transposed_place() {
        for isa in Isa::available() {
            for (rows, columns, gap) in [
                (1, 1, 0),
                (8, 8, 0),
                (7, 9, 3),
                (32, 256, 1),
                (200, 12, 5),
                (17, 133, 0),
            ] {
                let data = random(rows * (columns + gap), 1);
                let from = Matrix::strided(&data, rows, columns, columns + gap);
                let stride = rows + 3;
                let mut into = vec![7; columns * stride];
                transpose(isa, from, 2.0, &mut into, stride);
                for (i, word) in into.iter().enumerate() {
                    let (column, row) = (i / stride, i % stride);
                    match row < rows {
                        true => assert_eq!(f32::from_bits(*word), 2.0 * data[row * (columns + gap) + column]),
                        false => assert_eq!(*word, 7, "written beside the result"),
                    }
                }
            }
        }
    }
}
