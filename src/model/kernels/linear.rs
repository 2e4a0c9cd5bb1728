//! y = x·Wᵀ + bias, with a low-rank adapter where there is one, and backward passes that leave out what is frozen.

use super::product::{Compute, Into, LowRank, Matrix, Weight, adapted_gemm, gemm};
use super::sums::add_to_rows;

/// A linear layer. Rows of inputs and results lie one behind the other.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// W, outputs × inputs.
    pub weight: Weight<'a>,
    /// Added to each row of the result; `outputs` numbers.
    pub bias: Option<&'a [f32]>,
    /// Low-rank adapter, whose product scale·B·A is added to W.
    pub adapter: Option<Adapter<'a>>,
    /// Width of an input row.
    pub inputs: usize,
    /// Width of a result row.
    pub outputs: usize,
    /// Computes the products.
    pub compute: Compute<'a>,
}

/// Low-rank adapter of a frozen weight: the factors of what is added to it.
#[derive(Clone, Copy)]
pub struct Adapter<'a> {
    /// A, rank × inputs.
    pub a: &'a [f32],
    /// B, outputs × rank.
    pub b: &'a [f32],
    /// Rank.
    pub rank: usize,
    /// alpha / rank.
    pub scale: f32,
}

impl Linear<'_> {
    /// Computes y = x·(W + scale·B·A)ᵀ + bias from `rows` (x, rows × inputs) and writes it to `y` (rows × outputs), or adds
    /// it to what `y` holds.
    ///
    /// # Panics
    /// Panics if lengths do not match, like the other functions of this type.
    pub fn forward(&self, rows: &[f32], y: &mut [f32], into: Into) {
        let weight = self.weight.factor((0, self.outputs), self.inputs);
        let added = self.factors().map(|(a, b, scale)| LowRank {
            left: a.t(),
            right: b.t(),
            scale,
        });
        let (y_rows, x) = ((&mut *y, self.outputs), self.rows_in(rows));
        adapted_gemm(self.compute, y_rows, into, 1.0, x, (weight.t(), added));
        if let Some(bias) = self.bias {
            add_to_rows(self.compute.pool, y, bias);
        }
    }

    /// Computes the gradient of the input, g·(W + scale·B·A) (rows × inputs), from that of the result, `g`
    /// (rows × outputs).
    pub fn input_gradient(&self, g: &[f32], dx: &mut [f32], into: Into) {
        let weight = self.weight.factor((0, self.outputs), self.inputs);
        let added = self.factors().map(|(a, b, scale)| LowRank {
            left: b,
            right: a,
            scale,
        });
        let dx = (dx, self.inputs);
        adapted_gemm(self.compute, dx, into, 1.0, self.rows_out(g), (weight, added));
    }

    /// Computes the gradient of the weight, gᵀ·x (outputs × inputs).
    pub fn weight_gradient(&self, x: &[f32], g: &[f32], dw: &mut [f32], into: Into) {
        let (g, x) = (self.rows_out(g), self.rows_in(x));
        gemm(self.compute, (dw, self.inputs), into, 1.0, g.t(), x);
    }

    /// Computes the gradient of A, scale·(g·B)ᵀ·x (rank × inputs).
    pub fn a_gradient(&self, adapter: &Adapter, x: &[f32], g: &[f32], da: &mut [f32], into: Into) {
        let b = Matrix::new(adapter.b, self.outputs, adapter.rank);
        let narrow = self.narrow(adapter, self.rows_out(g), b);
        let (narrow, x) = (
            Matrix::new(&narrow, narrow.len() / adapter.rank, adapter.rank),
            self.rows_in(x),
        );
        gemm(self.compute, (da, self.inputs), into, 1.0, narrow.t(), x);
    }

    /// Computes the gradient of B, scale·gᵀ·(x·Aᵀ) (outputs × rank), as its transpose, so that g is not copied.
    pub fn b_gradient(&self, adapter: &Adapter, x: &[f32], g: &[f32], db: &mut [f32], into: Into) {
        let a = Matrix::new(adapter.a, adapter.rank, self.inputs);
        let narrow = self.narrow(adapter, self.rows_in(x), a.t());
        let (narrow, g) = (
            Matrix::new(&narrow, narrow.len() / adapter.rank, adapter.rank),
            self.rows_out(g),
        );
        let mut turned = vec![0.0; db.len()];
        gemm(
            self.compute,
            (&mut turned, self.outputs),
            Into::Replace,
            1.0,
            narrow.t(),
            g,
        );
        for (output, row) in db.chunks_exact_mut(adapter.rank).enumerate() {
            for (number, sum) in row.iter_mut().enumerate() {
                let found = turned[number * self.outputs + output];
                *sum = if into == Into::Add { *sum + found } else { found };
            }
        }
    }

    /// scale·rows·factor, rows × rank.
    fn narrow(&self, adapter: &Adapter, rows: Matrix, factor: Matrix) -> Vec<f32> {
        let mut narrow = vec![0.0; rows.rows() * adapter.rank];
        let out = (&mut narrow[..], adapter.rank);
        gemm(self.compute, out, Into::Replace, adapter.scale, rows, factor);
        narrow
    }

    /// A, B and the scale of their product.
    fn factors(&self) -> Option<(Matrix<'_>, Matrix<'_>, f32)> {
        self.adapter.map(|adapter| {
            let a = Matrix::new(adapter.a, adapter.rank, self.inputs);
            let b = Matrix::new(adapter.b, self.outputs, adapter.rank);
            (a, b, adapter.scale)
        })
    }

    fn rows_in<'x>(&self, x: &'x [f32]) -> Matrix<'x> {
        Matrix::new(x, x.len() / self.inputs, self.inputs)
    }

    fn rows_out<'x>(&self, g: &'x [f32]) -> Matrix<'x> {
        Matrix::new(g, g.len() / self.outputs, self.outputs)
    }
}
