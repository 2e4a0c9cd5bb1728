//! Gradients by parameter name, summed over micro-batches.

use candle_core::{DType, Shape, Tensor};
use indexmap::IndexMap;

use super::error::Result;
use crate::model::Weights;
use crate::model::kernels::Into;
use crate::model::kernels::Pool;
use crate::model::kernels::sums;
use crate::model::kernels::tensors::{Numbers, with_mut, zeros, zeros_side_by_side};

/// Gradients of the trained parameters in f32, in order of insertion.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    /// Gradients by parameter name, each of its parameter's shape.
    pub by_name: IndexMap<String, Tensor>,
    /// Memory for gradients that are not there yet, with unspecified values.
    spare: IndexMap<String, Tensor>,
}

impl Gradients {
    /// Allocates memory for the gradients of all trained parameters, which kernels write in place.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn with_memory(weights: &Weights, pool: &Pool) -> Result<Self> {
        let (names, vars): (Vec<_>, Vec<_>) = weights.trainable().into_iter().unzip();
        let memory = zeros_side_by_side(pool, vars.iter().map(|var| var.shape().clone()))?;
        Ok(Self {
            by_name: IndexMap::new(),
            spare: names.into_iter().zip(memory).collect(),
        })
    }

    /// Returns no gradients, with the memory of these for the next ones.
    pub fn recycled(mut self) -> Self {
        self.spare.extend(self.by_name.drain(..));
        self
    }

    /// Removes a parameter's gradient and keeps its memory. Returns the gradient, if there was one.
    pub fn forget(&mut self, name: &str) -> Option<Tensor> {
        let gradient = self.by_name.swap_remove(name)?;
        self.spare.insert(name.to_owned(), gradient.clone());
        Some(gradient)
    }

    /// Adds to a parameter's gradient.
    ///
    /// # Errors
    /// Fails if out of memory, or if the shape differs from before.
    pub fn add(&mut self, name: &str, gradient: &Tensor) -> Result<()> {
        let gradient = gradient.to_dtype(DType::F32)?.contiguous()?;
        let sum = match self.by_name.get(name) {
            Some(sum) => (sum + gradient)?,
            None => gradient,
        };
        self.by_name.insert(name.to_string(), sum);
        Ok(())
    }

    /// Lends a parameter's gradient on the CPU to a kernel that adds to it, or overwrites it the first time.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn accumulate(
        &mut self,
        name: &str,
        shape: impl std::convert::Into<Shape>,
        kernel: impl FnOnce(&mut [f32], Into),
    ) -> Result<()> {
        if let Some(sum) = self.by_name.get(name) {
            return Ok(with_mut(sum, |sum| kernel(sum, Into::Add))?);
        }
        let shape = shape.into();
        let sum = match self.spare.swap_remove(name).filter(|spare| *spare.shape() == shape) {
            Some(spare) => spare,
            None => zeros(shape)?,
        };
        with_mut(&sum, |sum| kernel(sum, Into::Replace))?;
        self.by_name.insert(name.to_string(), sum);
        Ok(())
    }

    /// Lends a parameter's gradient on the CPU, zero the first time, to a kernel that adds to it.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn add_to(
        &mut self,
        name: &str,
        shape: impl std::convert::Into<Shape>,
        kernel: impl FnOnce(&mut [f32]),
    ) -> Result<()> {
        self.accumulate(name, shape, |sum, into| {
            if into == Into::Replace {
                sum.fill(0.0);
            }
            kernel(sum);
        })
    }

    /// Adds rows to a matrix parameter's gradient: row i of `rows` to row `ids[i]`.
    ///
    /// # Errors
    /// Fails if out of memory, or if an id is outside the matrix.
    pub fn add_rows(&mut self, name: &str, parameter: &Tensor, ids: &[u32], rows: &Tensor) -> Result<()> {
        let rows = rows.to_dtype(DType::F32)?.contiguous()?;
        let sum = match self.by_name.get(name) {
            Some(sum) => sum.clone(),
            None => Tensor::zeros(parameter.shape(), DType::F32, parameter.device())?,
        };
        let sum = sum.index_add(&Tensor::new(ids, sum.device())?, &rows, 0)?;
        self.by_name.insert(name.to_string(), sum);
        Ok(())
    }

    /// Returns the l2 norm over all parameters; not finite if any gradient is not.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn global_norm(&self, pool: &Pool) -> Result<f64> {
        let (here, elsewhere): (Vec<&Tensor>, Vec<&Tensor>) =
            self.by_name.values().partition(|gradient| gradient.device().is_cpu());
        let mut squares = sum_of_squares(&elsewhere)?;
        for gradient in here {
            squares += sums::sum_of_squares(pool, &Numbers::of(gradient)?);
        }
        Ok(squares.sqrt())
    }
}

/// Computes the norm on the gradients' device, synchronising once.
fn sum_of_squares(gradients: &[&Tensor]) -> Result<f64> {
    if gradients.is_empty() {
        return Ok(0.0);
    }
    let sums = gradients.iter().map(|gradient| gradient.sqr()?.sum_all());
    let sums = sums.collect::<candle_core::Result<Vec<_>>>()?;
    Ok(f64::from(Tensor::stack(&sums, 0)?.sum_all()?.to_scalar::<f32>()?))
}

/// Returns the factor that limits the global norm to `limit`, as torch's `clip_grad_norm_`: limit / (norm + 1e-6), at
/// most 1.
pub fn clip_factor(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    #[test]
    fn micro_batches_add_up() {
        let mut gradients = Gradients::default();
        gradients.add("a", &tensor(&[1.0, 2.0])).unwrap();
        gradients.add("a", &tensor(&[2.0, -2.0])).unwrap();
        gradients.add("b", &tensor(&[4.0])).unwrap();
        assert_eq!(gradients.by_name["a"].to_vec1::<f32>().unwrap(), [3.0, 0.0]);
        assert_eq!(gradients.global_norm(&Pool::new(1)).unwrap(), 5.0);
        let all: Vec<&Tensor> = gradients.by_name.values().collect();
        assert_eq!(sum_of_squares(&all).unwrap(), 25.0, "as on a GPU");
    }

    #[test]
    fn used_memory_gives_the_same_sums() {
        let mut gradients = Gradients::default();
        for _ in 0..2 {
            for part in [1.0, 2.0] {
                let overwrite = |sum: &mut [f32], into| match into {
                    Into::Replace => sum.fill(part),
                    Into::Add => sum.iter_mut().for_each(|x| *x += part),
                };
                gradients.accumulate("a", 3, overwrite).unwrap();
                gradients.add_to("b", 2, |sum| sum[1] += part).unwrap();
            }
            let values = |name: &str| gradients.by_name[name].to_vec1::<f32>().unwrap();
            assert_eq!((values("a"), values("b")), (vec![3.0; 3], vec![0.0, 3.0]));
            gradients = gradients.recycled();
            assert!(gradients.by_name.is_empty());
        }
        gradients.accumulate("a", 4, |sum, _| sum.fill(1.0)).unwrap();
        assert_eq!(
            gradients.by_name["a"].dims(),
            [4],
            "memory of another shape is not used"
        );
    }

    #[test]
    fn a_non_finite_gradient_shows_in_the_norm() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut gradients = Gradients::default();
            gradients.add("a", &tensor(&[1.0, bad])).unwrap();
            gradients.add("b", &tensor(&[1.0])).unwrap();
            assert!(!gradients.global_norm(&Pool::new(1)).unwrap().is_finite());
        }
    }

    #[test]
    fn clipping_shrinks_and_never_grows() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(0.0, 1.0), 1.0);
        assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
    }
}
