//! The numbers of contiguous f32 CPU tensors as slices, without a copy.

use std::cell::RefCell;
use std::ops::Deref;

use candle_core::{CpuStorage, DType, Device, Error, InplaceOp1, Layout, Result, Shape, Storage, Tensor};

use super::memory::{CACHE_LINE, prefer_huge_pages, touch};
use super::threads::Pool;

/// A tensor's numbers, borrowed.
pub struct Numbers<'a> {
    /// The lock, of a type that candle does not name.
    storage: Box<dyn Deref<Target = Storage> + 'a>,
    layout: &'a Layout,
}

impl<'a> Numbers<'a> {
    /// Borrows them; until it is dropped, nothing may write to the tensor.
    ///
    /// # Errors
    /// Fails if the tensor is not contiguous, not f32, or not on the CPU.
    pub fn of(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        slice(&storage, layout)?;
        Ok(Self {
            storage: Box::new(storage),
            layout,
        })
    }
}

impl Deref for Numbers<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        slice(&self.storage, self.layout).unwrap_or_default() // `of` saw that it is one
    }
}

fn slice<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [f32]> {
    let Storage::Cpu(storage) = storage else {
        candle_core::bail!("a CPU kernel got a tensor that is on another device")
    };
    let (start, end) = layout.contiguous_offsets().ok_or_else(not_contiguous)?;
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// Calls `f` with a tensor's numbers to write to. Every tensor that shares its storage changes with it.
///
/// # Errors
/// As [`Numbers::of`].
pub fn with_mut<R>(tensor: &Tensor, f: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    let lend = Lend(RefCell::new((Some(f), None)));
    tensor.inplace_op1(&lend)?;
    lend.0
        .into_inner()
        .1
        .ok_or_else(|| Error::Msg("an in-place CPU kernel did not run".into()))
}

/// Returns a tensor of f32 zeros on the CPU, in huge pages where it is large: fresh small pages cost more time than filling
/// them.
///
/// # Errors
/// Fails if out of memory.
pub fn zeros(shape: impl Into<Shape>) -> Result<Tensor> {
    let zeros = Tensor::zeros(shape, DType::F32, &Device::Cpu)?;
    with_mut(&zeros, |numbers| prefer_huge_pages(numbers))?;
    Ok(zeros)
}

/// Returns tensors of f32 zeros on the CPU, side by side in one block of which nearly all is huge pages. All threads have written
/// to its pages, so that no first use waits for the system.
///
/// # Errors
/// Fails if out of memory.
pub fn zeros_side_by_side(pool: &Pool, shapes: impl Iterator<Item = Shape>) -> Result<Vec<Tensor>> {
    const LINE: usize = CACHE_LINE / size_of::<f32>();
    let shapes: Vec<Shape> = shapes.collect();
    let room = |shape: &Shape| shape.elem_count().next_multiple_of(LINE);
    let block = zeros(LINE + shapes.iter().map(room).sum::<usize>())?;
    let mut start = with_mut(&block, |numbers| {
        touch(pool, numbers);
        numbers.as_ptr().align_offset(CACHE_LINE).min(LINE)
    })?;
    let mut cut = |shape: &Shape| {
        let part = block.narrow(0, start, shape.elem_count())?.reshape(shape);
        start += room(shape);
        part
    };
    shapes.iter().map(&mut cut).collect()
}

/// Carries a closure, and what it returns, through candle's in-place operation.
struct Lend<F, R>(RefCell<(Option<F>, Option<R>)>);

impl<F: FnOnce(&mut [f32]) -> R, R> InplaceOp1 for Lend<F, R> {
    fn name(&self) -> &'static str {
        "with_mut"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (start, end) = layout.contiguous_offsets().ok_or_else(not_contiguous)?;
        let CpuStorage::F32(values) = storage else {
            candle_core::bail!("an in-place CPU kernel needs f32")
        };
        let mut cell = self.0.borrow_mut();
        cell.1 = cell.0.take().map(|f| f(&mut values[start..end]));
        Ok(())
    }
}

fn not_contiguous() -> Error {
    Error::Msg("a CPU kernel needs contiguous input".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_side_by_side_do_not_overlap() {
        let shapes = [vec![3, 5], vec![], vec![7], vec![16, 2]].map(Shape::from);
        let tensors = zeros_side_by_side(&Pool::new(2), shapes.iter().cloned()).unwrap();
        for (i, tensor) in tensors.iter().enumerate() {
            with_mut(tensor, |numbers| {
                assert!(numbers.iter().all(|x| *x == 0.0));
                assert!((numbers.as_ptr() as usize).is_multiple_of(CACHE_LINE));
                numbers.fill(i as f32);
            })
            .unwrap();
        }
        for (i, (tensor, shape)) in tensors.iter().zip(&shapes).enumerate() {
            assert_eq!(tensor.shape(), shape);
            assert!(Numbers::of(tensor).unwrap().iter().all(|x| *x == i as f32));
        }
    }
}
