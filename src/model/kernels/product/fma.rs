//! Tiles of f32 multiply-adds, on the vectors of any instruction set.

use super::tile_input::{Ahead, Start};
use crate::model::kernels::isa::kernel;
use crate::model::kernels::vector::Vector;

/// How weights lie in a panel.
pub(super) trait Weights: Copy {
    /// Bytes of one weight.
    const BYTES: usize;
    /// Inner steps in a line. A tile takes one line at a time: with the factors of two lines of f32 at once there are too
    /// few registers, and the compiler keeps sums on the stack, which takes a fifth longer.
    const STEP: usize;

    /// Where the weights of k are; k is a multiple of [`STEP`](Self::STEP).
    ///
    /// # Safety
    /// They are within the panel at `w`, whose lines are `stride` words apart.
    unsafe fn at(w: *const Self, stride: usize, k: usize) -> *const Self;

    /// The weights of a k for two vectors of columns, k being even or `ODD`.
    ///
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn pair<V: Vector, const ODD: bool>(line: *const Self, stride: usize) -> (V, V);
}

/// One weight a word, a line for each k.
impl Weights for f32 {
    const BYTES: usize = 4;
    const STEP: usize = 1;

    #[inline(always)]
    unsafe fn at(w: *const Self, stride: usize, k: usize) -> *const Self {
        // SAFETY: the caller's promise.
        unsafe { w.add(k * stride) }
    }

    #[inline(always)]
    unsafe fn pair<V: Vector, const ODD: bool>(line: *const Self, stride: usize) -> (V, V) {
        // SAFETY: the caller's promise.
        unsafe {
            let line = if ODD { line.add(stride) } else { line };
            (V::load(line), V::load(line.add(V::LANES)))
        }
    }
}

/// Two bfloat16 a word: those of an even k and the next, a line for both.
impl Weights for u32 {
    const BYTES: usize = 2;
    const STEP: usize = 2;

    #[inline(always)]
    unsafe fn at(w: *const Self, stride: usize, k: usize) -> *const Self {
        // SAFETY: the caller's promise.
        unsafe { w.add(k / 2 * stride) }
    }

    #[inline(always)]
    unsafe fn pair<V: Vector, const ODD: bool>(line: *const Self, _: usize) -> (V, V) {
        // SAFETY: the caller's promise.
        unsafe {
            let right = line.add(V::LANES);
            match ODD {
                true => (V::load_high_bf16(line), V::load_high_bf16(right)),
                false => (V::load_low_bf16(line), V::load_low_bf16(right)),
            }
        }
    }
}

kernel! {
    /// Widens a panel of bfloat16 to one of f32, for `pairs` pairs of inner steps.
    ///
    /// # Safety
    /// `w` is valid for the pairs, `into` for twice as many lines of two vectors.
    pub(super) unsafe fn widen<V>(w: *const u32, pairs: usize, into: *mut f32) {
        let width = 2 * V::LANES;
        for pair in 0..pairs {
            let (line, into) = (w.add(pair * width), into.add(2 * pair * width));
            for half in [0, V::LANES] {
                V::load_low_bf16(line.add(half)).store(into.add(half));
                V::load_high_bf16(line.add(half)).store(into.add(width + half));
            }
        }
    }
}

kernel! {
    /// # Safety
    /// As [`Tile::run`](super::tile::Tile::run).
    pub(super) unsafe fn tile<V, W: Weights>(
        height: usize,
        x: (*const f32, usize),
        w: (*const W, usize),
        length: usize,
        y: (*mut f32, usize),
        start: Start,
        ahead: Ahead,
    ) {
        macro_rules! heights {
            ($($rows:literal)*) => {
                match height {
                    // Heights beyond TILE_ROWS are cut when compiling.
                    $($rows if $rows <= V::TILE_ROWS => rows::<V, W, $rows>(x, w, length, y, start, ahead),)*
                    _ => debug_assert!(height == 0, "a tile of {height} rows"),
                }
            };
        }
        heights!(1 2 3 4 5 6 7 8)
    }
}

#[inline(always)]
unsafe fn rows<V: Vector, W: Weights, const ROWS: usize>(
    (x, x_stride): (*const f32, usize),
    (w, w_stride): (*const W, usize),
    length: usize,
    (y, y_stride): (*mut f32, usize),
    start: Start,
    ahead: Ahead,
) {
    // SAFETY: rows below ROWS and k below `length` are valid by the caller's promise; prefetching needs no validity.
    unsafe {
        let mut sums = [[V::splat(0.0); 2]; ROWS];
        if start == Start::Output {
            for (m, sum) in sums.iter_mut().enumerate() {
                *sum = [V::load(y.add(m * y_stride)), V::load(y.add(m * y_stride + V::LANES))];
            }
        }
        let whole = length / W::STEP * W::STEP;
        for k in (0..whole).step_by(W::STEP) {
            ahead.fetch(k, W::STEP, W::STEP * V::LANES * 2 * W::BYTES);
            let line = W::at(w, w_stride, k);
            add(&mut sums, (x.add(k), x_stride), W::pair::<V, false>(line, w_stride));
            if W::STEP == 2 {
                add(&mut sums, (x.add(k + 1), x_stride), W::pair::<V, true>(line, w_stride));
            }
        }
        if length > whole {
            let line = W::at(w, w_stride, whole);
            add(&mut sums, (x.add(whole), x_stride), W::pair::<V, false>(line, w_stride));
        }
        for (m, sum) in sums.iter().enumerate() {
            sum[0].store(y.add(m * y_stride));
            sum[1].store(y.add(m * y_stride + V::LANES));
        }
    }
}

/// The products of one k. A function and not a closure: those are not inlined for certain, and compiled on its own it
/// would not have the vector's instructions.
#[inline(always)]
unsafe fn add<V: Vector, const ROWS: usize>(
    sums: &mut [[V; 2]; ROWS],
    (x, x_stride): (*const f32, usize),
    (left, right): (V, V),
) {
    for (m, sum) in sums.iter_mut().enumerate() {
        // SAFETY: rows below ROWS are valid by the caller's promise.
        unsafe {
            let factor = V::splat(*x.add(m * x_stride));
            *sum = [factor.mul_add(left, sum[0]), factor.mul_add(right, sum[1])];
        }
    }
}
