//! Matrix products on slices, in safe clothes.

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// Whether a product may use the compute threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Threads {
    /// All of them.
    All,
    /// The calling one: the caller is itself one of many tasks.
    One,
}

/// What a product does with what is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    /// Overwrites it.
    Replace,
    /// Adds to it.
    Add,
}

impl<'a> Matrix<'a> {
    /// Rows one behind the other.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows `row_stride` apart.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    /// The transposed matrix.
    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// One more than the largest index.
    fn extent(&self) -> usize {
        match self.rows * self.columns {
            0 => 0,
            _ => (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride + 1,
        }
    }
}

/// out = scale · a·b, or out += scale · a·b; the rows of `out` are `out_stride` apart.
///
/// # Panics
/// Shapes that do not fit, or slices that are too short.
pub(super) fn gemm(out: &mut [f32], out_stride: usize, into: Into, scale: f32, a: Matrix, b: Matrix, threads: Threads) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "inner sizes of a matrix product");
    assert!(
        a.extent() <= a.data.len() && b.extent() <= b.data.len(),
        "an operand is too short"
    );
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        out_stride >= n && (m - 1) * out_stride + n <= out.len(),
        "the result is too short"
    );
    let parallelism = match threads {
        Threads::All => gemm::Parallelism::Rayon(rayon::current_num_threads()),
        Threads::One => gemm::Parallelism::None,
    };
    // SAFETY: all three matrices lie within their slices, as asserted; `out` is borrowed for writing alone.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            into == Into::Add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_by_hand() {
        // [1 2; 3 4] · [5 6; 7 8] = [19 22; 43 50]
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
        let mut out = [1.0; 6];
        gemm(
            &mut out,
            3,
            Into::Replace,
            1.0,
            Matrix::new(&a, 2, 2),
            Matrix::new(&b, 2, 2),
            Threads::One,
        );
        assert_eq!(out, [19.0, 22.0, 1.0, 43.0, 50.0, 1.0]);
        gemm(
            &mut out,
            3,
            Into::Add,
            2.0,
            Matrix::new(&a, 2, 2).t(),
            Matrix::new(&b, 2, 2),
            Threads::All,
        );
        // aᵀ·b = [26 30; 38 44]
        assert_eq!(out, [71.0, 82.0, 1.0, 119.0, 138.0, 1.0]);
    }

    #[test]
    fn an_empty_product_is_zero_or_nothing() {
        let mut out = [7.0; 2];
        gemm(
            &mut out,
            2,
            Into::Replace,
            1.0,
            Matrix::new(&[], 1, 0),
            Matrix::new(&[], 0, 2),
            Threads::One,
        );
        assert_eq!(out, [0.0, 0.0]);
        gemm(
            &mut [],
            2,
            Into::Replace,
            1.0,
            Matrix::new(&[], 0, 3),
            Matrix::new(&[0.0; 6], 3, 2),
            Threads::One,
        );
    }

    #[test]
    #[should_panic(expected = "operand is too short")]
    fn a_short_operand_is_caught() {
        gemm(
            &mut [0.0; 4],
            2,
            Into::Replace,
            1.0,
            Matrix::new(&[1.0; 3], 2, 2),
            Matrix::new(&[1.0; 4], 2, 2),
            Threads::One,
        );
    }
}
