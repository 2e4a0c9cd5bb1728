//! Weights of a linear layer and their gradients.

use super::weight::BorrowedWeight;
use crate::model::config::ProjectionNames;
use crate::model::kernels::linear::{Adapter, Linear};
use crate::model::kernels::sums::add_columns;
use crate::model::kernels::tensors::Numbers;
use crate::model::kernels::{Compute, Into};
use crate::model::param::Param;
use crate::model::{ModelError, Transformer};
use crate::train::error::Result;
use crate::train::gradients::Gradients;

/// Borrowed weights of a projection.
pub(super) struct Projection<'a> {
    module: String,
    weight: BorrowedWeight<'a>,
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

/// Projections of the same input: one each, or one whose result has theirs side by side (Phi-3).
pub(super) enum Projections<'a, const N: usize> {
    Separate([Projection<'a>; N]),
    Fused(Projection<'a>),
}

impl<'a, const N: usize> Projections<'a, N> {
    /// Borrows the projections of a block, of these names.
    ///
    /// # Errors
    /// As [`Projection::read`].
    pub fn read(
        model: &Transformer<'a>,
        block: &str,
        names: &ProjectionNames<N>,
        compute: Compute<'a>,
    ) -> Result<Self> {
        let read = |name: &str| Projection::read(model, format!("{block}.{name}"), compute);
        if model.weights().config.fused_projections {
            return Ok(Self::Fused(read(names.fused)?));
        }
        let separate = names
            .separate
            .iter()
            .map(|name| read(name))
            .collect::<Result<Vec<_>>>()?;
        let Ok(separate) = separate.try_into() else {
            unreachable!("there is a projection for each of {N} names");
        };
        Ok(Self::Separate(separate))
    }

    /// Computes the projections. `fused` has room for all results of a fused one.
    pub fn forward(&self, x: &[f32], outputs: [&mut [f32]; N], fused: &mut [f32]) {
        match self {
            Self::Separate(projections) => {
                for (projection, output) in projections.iter().zip(outputs) {
                    projection.linear().forward(x, output, Into::Replace);
                }
            }
            Self::Fused(projection) => {
                let tokens = x.len() / projection.inputs;
                let fused = &mut fused[..tokens * projection.outputs];
                projection.linear().forward(x, fused, Into::Replace);
                let mut start = 0;
                for output in outputs {
                    let width = output.len() / tokens;
                    let rows = fused.chunks_exact(projection.outputs);
                    for (output, row) in output.chunks_exact_mut(width).zip(rows) {
                        output.copy_from_slice(&row[start..start + width]);
                    }
                    start += width;
                }
            }
        }
    }

    /// As [`Projection::backward`], given the gradient of each result.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn backward(
        &self,
        x: &[f32],
        by: [&[f32]; N],
        mut dx: Option<(&mut [f32], Into)>,
        fused: &mut [f32],
        gradients: &mut Gradients,
    ) -> Result<()> {
        match self {
            Self::Separate(projections) => {
                for (projection, by) in projections.iter().zip(by) {
                    let place = dx
                        .as_mut()
                        .map(|(dx, into)| (&mut **dx, std::mem::replace(into, Into::Add)));
                    projection.backward(x, by, place, gradients)?;
                }
                Ok(())
            }
            Self::Fused(projection) => {
                let tokens = x.len() / projection.inputs;
                let fused = &mut fused[..tokens * projection.outputs];
                let mut start = 0;
                for by in by {
                    let width = by.len() / tokens;
                    let rows = fused.chunks_exact_mut(projection.outputs);
                    for (by, row) in by.chunks_exact(width).zip(rows) {
                        row[start..start + width].copy_from_slice(by);
                    }
                    start += width;
                }
                projection.backward(x, fused, dx, gradients)
            }
        }
    }
}

impl<'a> Projection<'a> {
    /// Borrows the weight of a module, and its bias and adapter, if any.
    ///
    /// # Errors
    /// Fails if the model has no such module, or it is not f32 on the CPU.
    pub fn read(model: &Transformer<'a>, module: String, compute: Compute<'a>) -> Result<Self> {
        let weights = model.weights();
        let name = format!("{module}.weight");
        let [outputs, inputs] = weights.param(&name)?.dims()[..] else {
            return Err(ModelError::Tensors(format!("`{name}` is not a matrix")).into());
        };
        let bias = weights.params.get(&format!("{module}.bias")).and_then(Param::tensor);
        let adapter = model.adapter(&name).map(|(adapter, scale)| -> Result<_> {
            Ok(Factors {
                a: Numbers::of(adapter.a.as_tensor())?,
                b: Numbers::of(adapter.b.as_tensor())?,
                rank: adapter.a.dim(0)?,
                scale: scale as f32,
            })
        });
        Ok(Self {
            weight: BorrowedWeight::of(weights, &name)?,
            trained: weights.is_trained(&name),
            bias: bias.map(Numbers::of).transpose()?,
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
            weight: self.weight.as_factor(),
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
    /// gradient of the input to `dx` where there is one.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn backward(
        &self,
        x: &[f32],
        g: &[f32],
        dx: Option<(&mut [f32], Into)>,
        gradients: &mut Gradients,
    ) -> Result<()> {
        let (linear, module) = (self.linear(), &self.module);
        if let Some((dx, into)) = dx {
            linear.input_gradient(g, dx, into);
        }
        if self.trained {
            let shape = (self.outputs, self.inputs);
            gradients.accumulate(&format!("{module}.weight"), shape, |sum, into| {
                linear.weight_gradient(x, g, sum, into)
            })?;
            if self.bias.is_some() {
                let pool = self.compute.pool;
                gradients.add_to(&format!("{module}.bias"), self.outputs, |sum| add_columns(pool, sum, g))?;
            }
        }
        if let Some(adapter) = linear.adapter {
            let (name, shape) = (format!("{module}.lora_A.weight"), (adapter.rank, self.inputs));
            gradients.accumulate(&name, shape, |sum, into| linear.a_gradient(&adapter, x, g, sum, into))?;
            let (name, shape) = (format!("{module}.lora_B.weight"), (self.outputs, adapter.rank));
            gradients.accumulate(&name, shape, |sum, into| linear.b_gradient(&adapter, x, g, sum, into))?;
        }
        Ok(())
    }
}
