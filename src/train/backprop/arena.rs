//! Memory for the results of a pass, reused by the next one: allocating fresh pages for every result would take longer
//! than many of the computations.

use crate::model::kernels::memory::Memory;

/// Memory that passes allocate their results from.
#[derive(Default)]
pub struct Arena(Memory<f32>);

/// Remaining memory of an arena.
pub(super) struct Rest<'a>(&'a mut [f32]);

impl Arena {
    /// Returns at least `count` numbers with unspecified values.
    pub(super) fn cut(&mut self, count: usize) -> Rest<'_> {
        if self.0.len() < count {
            self.0 = Memory::default(); // the old ones go before the new ones come
            self.0 = Memory::zeroed(count);
        }
        Rest(&mut self.0[..count])
    }
}

impl<'a> Rest<'a> {
    /// Takes the next `count` numbers.
    ///
    /// # Panics
    /// Panics if fewer are left, because [`Arena::cut`] was called with too small a count.
    pub fn take(&mut self, count: usize) -> &'a mut [f32] {
        let (taken, left) = std::mem::take(&mut self.0).split_at_mut(count);
        self.0 = left;
        taken
    }
}
