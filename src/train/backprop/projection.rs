//! Weights of a linear layer and their gradients.

use crate::model::Transformer;
use crate::model::kernels::linear::{Adapter, Linear};
use crate::model::kernels::sums::add_columns;
use crate::model::kernels::tensors::Numbers;
use crate::model::kernels::{Compute, Into};
use crate::train::error::Result;
use crate::train::gradients::Gradients;

/// Borrowed weights of a projection.
pub(super) struct Projection<'a> {
    module: String,
    weight: Numbers<'a>,
    trained: bool,
    bias: Option<Numbers<'a>>,
    adapter: Option<Factors<'a>>,
    inputs: usize,
    outputs: usize,
    compute: Compute<'a>,
}

struct Factors<'a> {
    a: Numbers<'a>,
    b: Numbers<'a>,
    rank: usize,
    scale: f32,
}

impl<'a> Projection<'a> {
    /// Borrows the weight of a module, and its bias and adapter, if any.
    ///
    /// # Errors
    /// Fails if the model has no such module, or it is not f32 on the CPU.
    pub fn read(model: &Transformer<'a>, module: String, compute: Compute<'a>) -> Result<Self> {
        let weights = model.weights();
        let name = format!("{module}.weight");
        let weight = weights.tensor(&name)?;
        let (outputs, inputs) = weight.dims2()?;
        let bias = weights.params.get(&format!("{module}.bias"));
        let adapter = model.adapter(&name).map(|(adapter, scale)| -> Result<_> {
            Ok(Factors {
                a: Numbers::of(adapter.a.as_tensor())?,
                b: Numbers::of(adapter.b.as_tensor())?,
                rank: adapter.a.dim(0)?,
                scale: scale as f32,
            })
        });
        Ok(Self {
            weight: Numbers::of(weight)?,
            trained: weights.is_trained(&name),
            bias: bias.map(|bias| Numbers::of(bias.tensor())).transpose()?,
            adapter: adapter.transpose()?,
            module,
            inputs,
            outputs,
            compute,
        })
    }

    /// Computes the projection.
    pub fn linear(&self) -> Linear<'_> {
        Linear {
            weight: &self.weight,
            bias: self.bias.as_deref(),
            adapter: self.adapter.as_ref().map(|factors| Adapter {
                a: &factors.a,
                b: &factors.b,
                rank: factors.rank,
                scale: factors.scale,
            }),
            inputs: self.inputs,
            outputs: self.outputs,
            compute: self.compute,
        }
    }

    /// Given the input and the gradient of the result, adds to the gradients of trained weights, and writes or adds the
    /// gradient of the input to `dx`.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn backward(
        &self,
        x: &[f32],
        g: &[f32],
        (dx, into): (&mut [f32], Into),
        gradients: &mut Gradients,
    ) -> Result<()> {
        let (linear, module) = (self.linear(), &self.module);
        linear.input_gradient(g, dx, into);
        if self.trained {
            let shape = (self.outputs, self.inputs);
            gradients.accumulate(&format!("{module}.weight"), shape, |sum, into| {
                linear.weight_gradient(x, g, sum, into)
            })?;
            if self.bias.is_some() {
                let pool = self.compute.pool;
                gradients.accumulate(&format!("{module}.bias"), self.outputs, |sum, _| {
                    add_columns(pool, sum, g)
                })?;
            }
        }
        if let Some(adapter) = linear.adapter {
            let (narrow, narrow_g) = (linear.narrow(&adapter, x), linear.narrow_gradient(&adapter, g));
            linear.add_input_gradient(&adapter, &narrow_g, dx);
            let (name, shape) = (format!("{module}.lora_A.weight"), (adapter.rank, self.inputs));
            gradients.accumulate(&name, shape, |sum, into| {
                linear.a_gradient(&adapter, x, &narrow_g, sum, into)
            })?;
            let (name, shape) = (format!("{module}.lora_B.weight"), (self.outputs, adapter.rank));
            gradients.accumulate(&name, shape, |sum, into| {
                linear.b_gradient(&adapter, &narrow, g, sum, into)
            })?;
        }
        Ok(())
    }
}
