//! A matrix in a slice, of which one stride is 1.

/// Rows or columns lie side by side; either may be some distance apart.
#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
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

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether the numbers of a row lie side by side.
    pub(super) fn has_whole_rows(&self) -> bool {
        self.column_stride == 1
    }

    /// One more than the largest index.
    pub(super) fn extent(&self) -> usize {
        match self.rows * self.columns {
            0 => 0,
            _ => (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride + 1,
        }
    }

    /// The part of some rows and columns, each by the first and their number. There may be none.
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
