//! Views of matrices in slices of f32, also transposed and in parts, without a copy.

/// A view of rows × columns numbers: that of row r and column c is at `r · row_stride + c · column_stride`. One of the
/// strides is 1, so that either the numbers of a row or those of a column lie side by side.
#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Creates a matrix of contiguous rows.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Creates a matrix of rows `row_stride` elements apart.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    /// Returns the transposed matrix.
    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns whether the elements of a row are contiguous.
    pub(super) fn has_whole_rows(&self) -> bool {
        self.column_stride == 1
    }

    /// Returns the largest index plus one.
    pub(super) fn extent(&self) -> usize {
        match self.rows * self.columns {
            0 => 0,
            _ => (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride + 1,
        }
    }

    /// Returns the part with these rows and columns, each given by the first and their number, which may be 0.
    pub(super) fn part(self, (row, rows): (usize, usize), (column, columns): (usize, usize)) -> Self {
        let start = row * self.row_stride + column * self.column_stride;
        Self {
            data: self.data.get(start..).unwrap_or_default(),
            rows,
            columns,
            ..self
        }
    }
}
