//! y = x·Wᵀ + bias, with a low-rank adapter where there is one, and backward passes that leave out what is frozen.

use super::product::{Compute, Into, Matrix, gemm};
use super::sums::add_to_rows;

/// A projection. Weights are out × in.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// W.
    pub weight: &'a [f32],
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// scale·B·A, added to W.
    pub adapter: Option<Adapter<'a>>,
    /// Inputs.
    pub inputs: usize,
    /// Outputs.
    pub outputs: usize,
    /// Computes the products.
    pub compute: Compute<'a>,
}

/// The factors of what is added to a frozen weight.
#[derive(Clone, Copy)]
pub struct Adapter<'a> {
    /// rank × in.
    pub a: &'a [f32],
    /// out × rank.
    pub b: &'a [f32],
    /// Rank.
    pub rank: usize,
    /// alpha / rank.
    pub scale: f32,
}

impl Linear<'_> {
    /// y = x·Wᵀ + bias + scale·(x·Aᵀ)·Bᵀ, over what is in `y` or added to it.
    ///
    /// # Panics
    /// Panics if lengths do not match; likewise the other functions here.
    pub fn forward(&self, rows: &[f32], y: &mut [f32], into: Into) {
        let x = self.rows_in(rows);
        let weight = Matrix::new(self.weight, self.outputs, self.inputs);
        gemm(self.compute, (y, self.outputs), into, 1.0, x, weight.t());
        if let Some(bias) = self.bias {
            add_to_rows(self.compute.pool, y, bias);
        }
        if let Some(adapter) = self.adapter {
            let narrow = self.narrow(&adapter, rows);
            let narrow = Matrix::new(&narrow, x.rows(), adapter.rank);
            let b = Matrix::new(adapter.b, self.outputs, adapter.rank);
            gemm(self.compute, (y, self.outputs), Into::Add, adapter.scale, narrow, b.t());
        }
    }

    /// The gradient of the input through the weight, given that of the result.
    pub fn input_gradient(&self, g: &[f32], dx: &mut [f32], into: Into) {
        let weight = Matrix::new(self.weight, self.outputs, self.inputs);
        gemm(self.compute, (dx, self.inputs), into, 1.0, self.rows_out(g), weight);
    }

    /// The gradient of the weight.
    pub fn weight_gradient(&self, x: &[f32], g: &[f32], dw: &mut [f32], into: Into) {
        let (g, x) = (self.rows_out(g), self.rows_in(x));
        gemm(self.compute, (dw, self.inputs), into, 1.0, g.t(), x);
    }

    /// x·Aᵀ, rows × rank.
    pub fn narrow(&self, adapter: &Adapter, x: &[f32]) -> Vec<f32> {
        let x = self.rows_in(x);
        let mut narrow = vec![0.0; x.rows() * adapter.rank];
        let a = Matrix::new(adapter.a, adapter.rank, self.inputs);
        gemm(self.compute, (&mut narrow, adapter.rank), Into::Replace, 1.0, x, a.t());
        narrow
    }

    /// scale·g·B, rows × rank: the gradient of [`narrow`](Self::narrow).
    pub fn narrow_gradient(&self, adapter: &Adapter, g: &[f32]) -> Vec<f32> {
        let g = self.rows_out(g);
        let mut narrow = vec![0.0; g.rows() * adapter.rank];
        let b = Matrix::new(adapter.b, self.outputs, adapter.rank);
        gemm(
            self.compute,
            (&mut narrow, adapter.rank),
            Into::Replace,
            adapter.scale,
            g,
            b,
        );
        narrow
    }

    /// Adds the gradient of the input through the adapter, given that of [`narrow`](Self::narrow).
    pub fn add_input_gradient(&self, adapter: &Adapter, narrow_g: &[f32], dx: &mut [f32]) {
        let narrow_g = Matrix::new(narrow_g, narrow_g.len() / adapter.rank, adapter.rank);
        let a = Matrix::new(adapter.a, adapter.rank, self.inputs);
        gemm(self.compute, (dx, self.inputs), Into::Add, 1.0, narrow_g, a);
    }

    /// The gradient of A, given that of [`narrow`](Self::narrow).
    pub fn a_gradient(&self, adapter: &Adapter, x: &[f32], narrow_g: &[f32], da: &mut [f32], into: Into) {
        let narrow_g = Matrix::new(narrow_g, narrow_g.len() / adapter.rank, adapter.rank);
        gemm(
            self.compute,
            (da, self.inputs),
            into,
            1.0,
            narrow_g.t(),
            self.rows_in(x),
        );
    }

    /// The gradient of B, given [`narrow`](Self::narrow).
    pub fn b_gradient(&self, adapter: &Adapter, narrow: &[f32], g: &[f32], db: &mut [f32], into: Into) {
        let narrow = Matrix::new(narrow, narrow.len() / adapter.rank, adapter.rank);
        let g = self.rows_out(g);
        gemm(self.compute, (db, adapter.rank), into, adapter.scale, g.t(), narrow);
    }

    fn rows_in<'x>(&self, x: &'x [f32]) -> Matrix<'x> {
        Matrix::new(x, x.len() / self.inputs, self.inputs)
    }

    fn rows_out<'x>(&self, g: &'x [f32]) -> Matrix<'x> {
        Matrix::new(g, g.len() / self.outputs, self.outputs)
    }
}
