//! Memory for what is read over and over: on cache-line bounds, so that no vector crosses one, and in huge pages where
//! it is large, so that streaming it does not wait for address translation.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use super::threads::Pool;

/// Bytes of a cache line.
pub(super) const CACHE_LINE: usize = 64;
/// A huge page of x86-64 and of aarch64 with small pages.
const HUGE_PAGE: usize = 2 << 20;

/// A number type whose value 0 has only zero bits.
///
/// # Safety
/// All bits zero must be a valid value; values are never dropped.
pub unsafe trait Number: Copy + Send + Sync + 'static {}

// SAFETY: all bits zero is +0.0.
unsafe impl Number for f32 {}
// SAFETY: two bfloat16, all bits zero is +0.0 twice.
unsafe impl Number for u32 {}

/// Zeroed memory of fixed length, in huge pages where it is large.
pub struct Memory<T> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its numbers as a `Box<[T]>` does.
unsafe impl<T: Number> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Number> Sync for Memory<T> {}

impl<T: Number> Memory<T> {
    /// Allocates `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let layout = layout::<T>(len);
        if layout.size() == 0 {
            return Self {
                start: NonNull::dangling(),
                len: 0,
            };
        }
        // SAFETY: the size is not 0; every byte is written before the numbers are seen.
        let start = unsafe {
            let start = alloc(layout);
            if start.is_null() {
                handle_alloc_error(layout);
            }
            prefer_huge_pages(std::slice::from_raw_parts(
                start.cast::<MaybeUninit<u8>>(),
                layout.size(),
            ));
            start.write_bytes(0, layout.size());
            NonNull::new_unchecked(start.cast())
        };
        Self { start, len }
    }

    /// Splits the memory into parts of `len` elements; the remainder is not used. It is freed with the last part.
    ///
    /// # Panics
    /// Panics if `len` is 0.
    pub fn into_parts(self, len: usize) -> impl Iterator<Item = Part<T>> {
        let count = self.len / len;
        let whole = Arc::new(self);
        (0..count).map(move |number| Part {
            // SAFETY: the part lies within the whole.
            start: unsafe { whole.start.add(number * len) },
            len,
            _whole: Some(whole.clone()),
        })
    }
}

/// An exclusive part of [`Memory`], or an empty one.
pub struct Part<T> {
    start: NonNull<T>,
    len: usize,
    _whole: Option<Arc<Memory<T>>>,
}

// SAFETY: parts do not overlap, and the whole is touched through nothing but them.
unsafe impl<T: Number> Send for Part<T> {}
// SAFETY: as above.
unsafe impl<T: Number> Sync for Part<T> {}

impl<T> Default for Part<T> {
    /// Nothing.
    fn default() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            _whole: None,
        }
    }
}

impl<T> Deref for Part<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is valid for `len` written numbers while the whole is held, or dangling with none.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Part<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and no other part has these numbers.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Prefetches the cache line at `p`, which need not be valid.
#[inline(always)]
pub(super) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has this instruction, and it changes nothing but caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Not on the bounds of huge pages: what is allocated and freed again on such bounds leaves holes in the heap.
#[expect(
    clippy::expect_used,
    reason = "lengths are those of matrices, far below the address space"
)]
fn layout<T>(len: usize) -> Layout {
    Layout::from_size_align(len * size_of::<T>(), CACHE_LINE).expect("the length fits the address space")
}

/// Requests huge pages where whole ones fit into memory that is fresh, such as a large tensor of zeros. Failures only
/// cost speed, so they are ignored.
pub fn prefer_huge_pages<T>(fresh: &[T]) {
    let Range { start, end } = fresh.as_ptr_range();
    let start = (start as usize).next_multiple_of(HUGE_PAGE);
    let end = end as usize / HUGE_PAGE * HUGE_PAGE;
    #[cfg(target_os = "linux")]
    if start < end {
        // SAFETY: advice about pages inside of the slice; what they hold stays.
        unsafe { nix::libc::madvise(start as *mut _, end - start, nix::libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, end);
}

/// Writes to every page of fresh zeros, on all threads: what writes to them later would otherwise wait for each page.
pub(super) fn touch(pool: &Pool, zeros: &mut [f32]) {
    const PAGE: usize = 4096;
    pool.each(zeros.chunks_mut(HUGE_PAGE / size_of::<f32>()), |part| {
        part.chunks_mut(PAGE / size_of::<f32>()).for_each(|page| page[0] = 0.0);
    });
}

impl<T> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is valid for `len` written numbers, or dangling with none.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Number> Default for Memory<T> {
    /// None.
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        let layout = layout::<T>(self.len);
        if layout.size() > 0 {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_apart_and_outlive_the_whole() {
        let mut parts: Vec<_> = Memory::<f32>::zeroed(10).into_parts(3).collect();
        assert_eq!(parts.len(), 3, "what is left is nobody's");
        for (number, part) in parts.iter_mut().enumerate() {
            part.fill(number as f32);
        }
        let last = parts.pop().unwrap();
        drop(parts);
        assert_eq!(&last[..], [2.0; 3]);
        assert!(Part::<f32>::default().is_empty());
    }

    #[test]
    fn it_is_zero_aligned_and_written_like_a_slice() {
        for len in [0, 1, 1000, HUGE_PAGE / 4 + 3] {
            let mut memory = Memory::<f32>::zeroed(len);
            assert!(memory.len() == len && memory.iter().all(|&x| x == 0.0));
            assert!(len == 0 || (memory.as_ptr() as usize).is_multiple_of(CACHE_LINE));
            memory.fill(1.5);
            prefer_huge_pages(&memory);
            assert!(memory.iter().all(|&x| x == 1.5), "advice changes nothing");
        }
    }
}
