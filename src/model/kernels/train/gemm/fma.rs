//! Tiles of f32 multiply-adds, on the vectors of any instruction set.

use super::{Matrix, Shape, Side, Target, panel};
use crate::model::kernels::simd::{Isa, Kernel, Vector};

/// The largest tile of any instruction set.
const LARGEST: usize = 12 * 32;

pub(super) fn shape(isa: Isa) -> Shape {
    let (rows, columns) = (isa.tile_rows(), isa.panel_width());
    Shape {
        rows,
        columns,
        depth: 1,
        words: [rows, columns],
        k_block: 256,
    }
}

/// Lines side by side for each inner step.
pub(super) fn pack(isa: Isa, side: Side, lines: Matrix, scale: f32, into: &mut [u32]) {
    let width = match side {
        Side::First => isa.tile_rows(),
        Side::Second => isa.panel_width(),
    };
    panel::pack(width, lines, scale, into);
}

/// # Safety
/// As [`super::tile`].
pub(super) unsafe fn tile(isa: Isa, steps: usize, a: &[u32], b: &[u32], target: Target) {
    let shape = shape(isa);
    assert!(a.len() >= steps * shape.rows && b.len() >= steps * shape.columns);
    let kernel = Tile {
        steps,
        a: a.as_ptr().cast(),
        b: b.as_ptr().cast(),
        target,
    };
    // SAFETY: the operands were measured, the result is the caller's promise.
    unsafe { isa.run(kernel) }
}

struct Tile {
    steps: usize,
    a: *const f32,
    b: *const f32,
    target: Target,
}

impl Kernel for Tile {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match V::TILE_ROWS {
                12 => self.rows::<V, 12>(),
                6 => self.rows::<V, 6>(),
                _ => self.rows::<V, 4>(),
            }
        }
    }
}

impl Tile {
    #[inline(always)]
    unsafe fn rows<V: Vector, const ROWS: usize>(self) {
        // SAFETY: `steps` lines of ROWS and of two vectors are there; a tile that is cut goes through a buffer.
        unsafe {
            let mut sums = [[V::splat(0.0); 2]; ROWS];
            for step in 0..self.steps {
                let b = self.b.add(step * 2 * V::LANES);
                let (left, right) = (V::load(b), V::load(b.add(V::LANES)));
                let a = self.a.add(step * ROWS);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let factor = V::splat(*a.add(row));
                    sum[0] = left.mul_add(factor, sum[0]);
                    sum[1] = right.mul_add(factor, sum[1]);
                }
            }
            let target = self.target;
            if (target.rows, target.columns) == (ROWS, 2 * V::LANES) {
                put(&sums, target.corner, target.stride, target.add);
                return;
            }
            let mut whole = [0f32; LARGEST];
            put(&sums, whole.as_mut_ptr(), 2 * V::LANES, false);
            target.put_part(&whole, 2 * V::LANES);
        }
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
