//! AMX: products of bf16 tiles in eight tile registers of 16 rows of 64 bytes. Its instructions are written out, as the
//! compiler does not offer them yet.

use std::arch::asm;

use super::bf16::{self, Order, SQUARE};
use super::{Matrix, Shape, Side, Target};

/// Rows and columns of a result: two tiles each way.
const SIZE: usize = 2 * SQUARE;
/// Words of a packed tile.
const TILE: usize = 256;

pub(super) fn shape(parts: usize) -> Shape {
    Shape {
        rows: SIZE,
        columns: SIZE,
        depth: 2 * SQUARE,
        words: [2 * parts * TILE; 2],
        k_block: 384 / parts,
    }
}

/// Tile registers in use by this thread; given back at the end.
pub(super) struct Session(());

impl Session {
    /// All eight registers at their full size.
    pub fn begin() -> Self {
        #[repr(C, align(64))]
        struct Configuration([u8; 64]);
        let mut configuration = Configuration([0; 64]);
        configuration.0[0] = 1; // the palette of eight tiles
        for register in 0..8 {
            configuration.0[16 + 2 * register] = 64; // bytes a row
            configuration.0[48 + register] = 16; // rows
        }
        // SAFETY: a method of tiles is only made of an `Isa` that has them.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly)) }
        Self(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}

/// For each 32 inner steps and each part two tiles: of the first operand 16 lines, of the second 16 pairs of steps.
pub(super) fn pack(parts: usize, side: Side, lines: Matrix, scale: f32, into: &mut [u32]) {
    match parts {
        1 => pack_parts::<1>(side, lines, scale, into),
        _ => pack_parts::<3>(side, lines, scale, into),
    }
}

fn pack_parts<const PARTS: usize>(side: Side, lines: Matrix, scale: f32, into: &mut [u32]) {
    let order = match side {
        Side::First => Order::ByLine,
        Side::Second => Order::ByPair,
    };
    for (number, step) in into.chunks_exact_mut(2 * PARTS * TILE).enumerate() {
        let first = number * 2 * SQUARE;
        let steps = (2 * SQUARE).min(lines.columns - first);
        for half in 0..2 {
            let count = SQUARE.min(lines.rows.saturating_sub(half * SQUARE));
            let block = lines.part((half * SQUARE, count), (first, steps));
            // SAFETY: the machine has it, or this method would not be.
            let squares = unsafe { bf16::square::<PARTS>(block, scale, order) };
            for (part, square) in squares.iter().enumerate() {
                let tile = &mut step[(2 * part + half) * TILE..][..TILE];
                // SAFETY: a square is as many words as a tile.
                unsafe {
                    tile.as_mut_ptr()
                        .cast::<[std::arch::x86_64::__m512i; 16]>()
                        .write_unaligned(*square)
                }
            }
        }
    }
}

/// # Safety
/// As [`super::tile`]; within a [`Session`].
pub(super) unsafe fn tile(parts: usize, steps: usize, a: &[u32], b: &[u32], target: Target) {
    assert!(a.len() >= steps * 2 * parts * TILE && b.len() >= steps * 2 * parts * TILE && steps > 0);
    // SAFETY: the operands were measured; a tile that is cut goes through a buffer.
    unsafe {
        if (target.rows, target.columns) == (SIZE, SIZE) {
            whole(parts, steps, a, b, target);
            return;
        }
        let mut buffer = [0f32; SIZE * SIZE];
        if target.add {
            // Into the tile's sums, as in a whole one: in the same order.
            for row in 0..target.rows {
                let place = target.corner.add(row * target.stride);
                place.copy_to_nonoverlapping(buffer.as_mut_ptr().add(row * SIZE), target.columns);
            }
        }
        let all = Target {
            corner: buffer.as_mut_ptr(),
            stride: SIZE,
            rows: SIZE,
            columns: SIZE,
            add: target.add,
        };
        whole(parts, steps, a, b, all);
        Target { add: false, ..target }.put_part(&buffer, SIZE);
    }
}

/// # Safety
/// The target is valid for 32 × 32, the operands for their steps.
unsafe fn whole(parts: usize, steps: usize, a: &[u32], b: &[u32], target: Target) {
    let (out, stride) = (target.corner, 4 * target.stride);
    let lower = out.wrapping_add(SQUARE * target.stride);
    // SAFETY: the caller's promise. The compiler has no use for tile registers of its own.
    unsafe {
        match target.add {
            true => asm!(
                "tileloadd tmm0, [{upper} + {stride}]",
                "tileloadd tmm1, [{upper} + {stride} + 64]",
                "tileloadd tmm2, [{lower} + {stride}]",
                "tileloadd tmm3, [{lower} + {stride} + 64]",
                upper = in(reg) out, lower = in(reg) lower, stride = in(reg) stride,
                options(nostack, readonly),
            ),
            false => asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem),
            ),
        }
        match parts {
            1 => multiply_one(steps, a.as_ptr(), b.as_ptr()),
            _ => multiply_three(steps, a.as_ptr(), b.as_ptr()),
        }
        asm!(
            "tilestored [{upper} + {stride}], tmm0",
            "tilestored [{upper} + {stride} + 64], tmm1",
            "tilestored [{lower} + {stride}], tmm2",
            "tilestored [{lower} + {stride} + 64], tmm3",
            upper = in(reg) out, lower = in(reg) lower, stride = in(reg) stride,
            options(nostack),
        );
    }
}

/// Adds the product of tiles 4 and 5 (rows) with 6 and 7 (columns) to tiles 0 to 3.
macro_rules! multiply {
    () => {
        "tdpbf16ps tmm0, tmm4, tmm6
         tdpbf16ps tmm1, tmm4, tmm7
         tdpbf16ps tmm2, tmm5, tmm6
         tdpbf16ps tmm3, tmm5, tmm7"
    };
}

/// # Safety
/// The operands are valid for `steps` > 0; within a session.
unsafe fn multiply_one(steps: usize, a: *const u32, b: *const u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:",
            "tileloadd tmm4, [{a} + {row}]",
            "tileloadd tmm6, [{b} + {row}]",
            "tileloadd tmm7, [{b} + {row} + 1024]",
            "tileloadd tmm5, [{a} + {row} + 1024]",
            multiply!(),
            "add {a}, 2048",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 2b",
            a = inout(reg) a => _, b = inout(reg) b => _, steps = inout(reg) steps => _, row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

/// With a = a₁ + a₂ + a₃ and b alike: a₁b₁ + a₁b₃ + a₁b₂ + a₂b₂ + a₂b₁ + a₃b₁. What is left out is below 2⁻²⁵ of a₁b₁.
///
/// # Safety
/// As [`multiply_one`].
unsafe fn multiply_three(steps: usize, a: *const u32, b: *const u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:",
            "tileloadd tmm4, [{a} + {row}]",
            "tileloadd tmm6, [{b} + {row}]",
            "tileloadd tmm7, [{b} + {row} + 1024]",
            "tileloadd tmm5, [{a} + {row} + 1024]",
            multiply!(),
            "tileloadd tmm6, [{b} + {row} + 4096]",
            "tileloadd tmm7, [{b} + {row} + 5120]",
            multiply!(),
            "tileloadd tmm6, [{b} + {row} + 2048]",
            "tileloadd tmm7, [{b} + {row} + 3072]",
            multiply!(),
            "tileloadd tmm4, [{a} + {row} + 2048]",
            "tileloadd tmm5, [{a} + {row} + 3072]",
            multiply!(),
            "tileloadd tmm6, [{b} + {row}]",
            "tileloadd tmm7, [{b} + {row} + 1024]",
            multiply!(),
            "tileloadd tmm4, [{a} + {row} + 4096]",
            "tileloadd tmm5, [{a} + {row} + 5120]",
            multiply!(),
            "add {a}, 6144",
            "add {b}, 6144",
            "dec {steps}",
            "jnz 2b",
            a = inout(reg) a => _, b = inout(reg) b => _, steps = inout(reg) steps => _, row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}
