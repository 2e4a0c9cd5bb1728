//! Memory for a pass's results, kept from one pass to the next: fresh pages for every result would cost more time than
//! much of what is computed.

use crate::model::kernels::memory::Memory;

/// Numbers that passes cut their results from.
#[derive(Default)]
pub struct Arena(Memory<f32>);

/// What is left of an arena.
pub(super) struct Rest<'a>(&'a mut [f32]);

impl Arena {
    /// At least `count` numbers, whatever they are.
    pub(super) fn cut(&mut self, count: usize) -> Rest<'_> {
        if self.0.len() < count {
            self.0 = Memory::default(); // the old ones go before the new ones come
            self.0 = Memory::zeroed(count);
        }
        Rest(&mut self.0[..count])
    }
}

impl<'a> Rest<'a> {
    /// The next `count` numbers.
    ///
    /// # Panics
    /// There are fewer left: [`Arena::cut`] was asked for too few.
    pub fn take(&mut self, count: usize) -> &'a mut [f32] {
        let (taken, left) = std::mem::take(&mut self.0).split_at_mut(count);
        self.0 = left;
        taken
    }
}
