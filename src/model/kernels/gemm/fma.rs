//! Tiles of f32 multiply-adds, on the vectors of any instruction set.

use super::{First, Shape, Target};
use crate::model::kernels::isa::{Isa, kernel};
use crate::model::kernels::matmul::panel_width;
use crate::model::kernels::vector::Vector;

/// The largest tile of any instruction set.
const LARGEST: usize = 12 * 32;

pub(super) fn shape(isa: Isa) -> Shape {
    let (rows, columns) = (tile_rows(isa), panel_width(isa));
    Shape {
        rows,
        columns,
        depth: 1,
        words: [rows, columns],
        // 20 kB of a panel 16 wide, 32 kB of one 32 wide.
        k_block: if columns <= 16 { 320 } else { 256 },
    }
}

kernel! {
    /// Rows of a tile.
    pub(super) fn tile_rows<V>() -> usize {
        V::TILE_ROWS
    }
}

/// # Safety
/// As [`super::tile`].
pub(super) unsafe fn tile(isa: Isa, steps: usize, a: First, b: &[u32], target: Target) {
    let shape = shape(isa);
    assert!(b.len() >= steps * shape.columns);
    match &a {
        First::Packed(words) => assert!(words.len() >= steps * shape.rows),
        First::InPlace(rows) => assert!(rows.rows == target.rows && rows.extent() <= rows.data.len()),
    }
    // SAFETY: the operands were measured, the result is the caller's promise.
    unsafe { tile_on(isa, steps, a, b.as_ptr().cast(), target) }
}

kernel! {
    unsafe fn tile_on<V>(steps: usize, a: First<'_>, b: *const f32, target: Target) {
        match V::TILE_ROWS {
            12 => rows::<V, 12>(steps, a, b, target),
            6 => rows::<V, 6>(steps, a, b, target),
            _ => rows::<V, 4>(steps, a, b, target),
        }
    }
}

#[inline(always)]
unsafe fn rows<V: Vector, const ROWS: usize>(steps: usize, a: First, b: *const f32, target: Target) {
    // SAFETY: `steps` lines of ROWS and of two vectors are there; a tile that is cut goes through a buffer.
    unsafe {
        for row in 0..target.rows {
            // Asked for now, the result's lines are there when the sums are.
            let start = target.corner.add(row * target.stride);
            V::prefetch(start.cast());
            V::prefetch(start.wrapping_add(2 * V::LANES - 1).cast());
        }
        let sums = match a {
            First::Packed(words) => {
                let a: *const f32 = words.as_ptr().cast();
                sums::<V, ROWS>(steps, |step, row| a.add(step * ROWS + row), b)
            }
            First::InPlace(rows) => {
                // The last row stands for those that are missing, whose sums nobody wants.
                let row = |row: usize| rows.data.as_ptr().add(row.min(rows.rows - 1) * rows.row_stride);
                let lines: [*const f32; ROWS] = std::array::from_fn(row);
                sums::<V, ROWS>(steps, |step, row| lines[row].add(step), b)
            }
        };
        if (target.rows, target.columns) == (ROWS, 2 * V::LANES) {
            put(&sums, target.corner, target.stride, target.add);
            return;
        }
        let mut whole = [0f32; LARGEST];
        put(&sums, whole.as_mut_ptr(), 2 * V::LANES, false);
        target.put_part(&whole, 2 * V::LANES);
    }
}

/// The sums of a tile's products. `a` says where the first operand's number for an inner step and a row is.
///
/// # Safety
/// `a` is valid for the steps and rows, `b` for two vectors a step.
#[inline(always)]
unsafe fn sums<V: Vector, const ROWS: usize>(
    steps: usize,
    a: impl Fn(usize, usize) -> *const f32,
    b: *const f32,
) -> [[V; 2]; ROWS] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); 2]; ROWS];
        for step in 0..steps {
            let b = b.add(step * 2 * V::LANES);
            let (left, right) = (V::load(b), V::load(b.add(V::LANES)));
            for (row, sum) in sums.iter_mut().enumerate() {
                let factor = V::splat(*a(step, row));
                sum[0] = left.mul_add(factor, sum[0]);
                sum[1] = right.mul_add(factor, sum[1]);
            }
        }
        sums
    }
}

/// # Safety
/// `out` is valid for the rows at its stride.
#[inline(always)]
unsafe fn put<V: Vector, const ROWS: usize>(sums: &[[V; 2]; ROWS], out: *mut f32, stride: usize, add: bool) {
    for (row, sum) in sums.iter().enumerate() {
        for (half, sum) in sum.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let target = out.add(row * stride + half * V::LANES);
                let value = if add { V::load(target).add(*sum) } else { *sum };
                value.store(target);
            }
        }
    }
}
