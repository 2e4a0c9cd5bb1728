//! bfloat16 by AMX: products of 16 × 32 by 32 × 16 in one instruction.
//!
//! Rust has no stable functions for AMX, so the inner loop is assembly; a whole block is one piece of it, and nothing is
//! left in the tiles in between.

use std::arch::asm;

use super::{Ahead, Product, Start, Tile};

/// Rows of a tile register, and its columns of f32 or of pairs.
const TILE: usize = 16;
/// Inner length of one instruction.
const STEP: usize = 32;
const CACHE_LINE: usize = 64;

/// The shapes of the eight tiles: 16 rows of 64 bytes each.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPES: Shapes = Shapes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Rounded rows times panels of pairs; sums are f32.
struct Blocks;

/// Multiplies with it.
///
/// # Safety
/// The machine has AVX-512 and AMX for bfloat16; the product is valid, its depth a multiple of [`STEP`], and its x has
/// memory for 31 rows behind the last.
#[target_feature(enable = "avx512f,avx512bw,avx2,fma")]
pub(super) unsafe fn run(product: Product<u32, u32>) {
    // SAFETY: the shapes are valid for palette 1, and the tiles are this thread's until they are released.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &SHAPES, options(nostack, readonly, preserves_flags));
        product.run::<Blocks>();
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
}

/// Multiplies tiles with nothing to wait for; returns the operations.
///
/// # Safety
/// The machine has AMX for bfloat16.
pub(in crate::model::kernels) unsafe fn peak() -> usize {
    const TIMES: usize = 1 << 17;
    const SUMS: usize = 6;
    // SAFETY: registers only, which are released before anybody else computes on this thread.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &SHAPES, options(nostack, readonly, preserves_flags));
        asm!(
            "2:",
            "tdpbf16ps tmm0, tmm6, tmm7",
            "tdpbf16ps tmm1, tmm6, tmm7",
            "tdpbf16ps tmm2, tmm6, tmm7",
            "tdpbf16ps tmm3, tmm6, tmm7",
            "tdpbf16ps tmm4, tmm6, tmm7",
            "tdpbf16ps tmm5, tmm6, tmm7",
            "dec {times}",
            "jnz 2b",
            times = inout(reg) TIMES => _,
            options(nostack, nomem)
        );
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
    TIMES * SUMS * 2 * TILE * TILE * STEP
}

impl Tile for Blocks {
    type Input = u32;
    type Word = u32;
    const ROWS: usize = 2 * TILE;
    const WIDTH: usize = 2 * TILE;
    const INPUT_K: usize = 2;
    const WEIGHT_BYTES: usize = 2;
    const ROWS_MULTIPLE: usize = TILE;

    #[inline(always)]
    unsafe fn run(
        rows: usize,
        x: (*const u32, usize),
        w: (*const u32, usize),
        length: usize,
        y: (*mut f32, usize),
        start: Start,
        ahead: Ahead,
    ) {
        // SAFETY: the caller's promise, which for these tiles is of whole sixteens of rows.
        unsafe {
            if start == Start::Zero {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nostack, nomem)
                );
            }
            match rows > TILE {
                true => two(x, w, length, y, start, ahead),
                false => one(x, w, length, y, start, ahead),
            }
        }
    }
}

macro_rules! block {
    ($name:ident, $load_sums:literal, $products:literal, $store_sums:literal) => {
        #[inline(always)]
        unsafe fn $name(
            (x, x_stride): (*const u32, usize),
            (w, w_stride): (*const u32, usize),
            length: usize,
            (y, y_stride): (*mut f32, usize),
            start: Start,
            ahead: Ahead,
        ) {
            let (x_bytes, w_bytes, y_bytes) = (4 * x_stride, 4 * w_stride, 4 * y_stride);
            // SAFETY: the caller's promise. The sums stay in the tiles from the first piece of assembly to the last:
            // compiled code in between does not know of tiles, so it does not touch them.
            unsafe {
                if start == Start::Output {
                    asm!($load_sums, y = in(reg) y, y2 = in(reg) y.wrapping_add(TILE * y_stride), ys = in(reg) y_bytes,
                        options(nostack, readonly, preserves_flags));
                }
                asm!(
                    "2:",
                    "tileloadd tmm6, [{w} + {ws}]",
                    "tileloadd tmm7, [{w} + {ws} + 64]",
                    $products,
                    "add {x}, 64",
                    "add {x2}, 64",
                    "lea {w}, [{w} + {w_step}]",
                    "mov {n}, {lines}",
                    "test {n}, {n}",
                    "jz 4f",
                    "3:",
                    "prefetcht0 [{soon}]",
                    "add {soon}, 64",
                    "dec {n}",
                    "jnz 3b",
                    "4:",
                    "dec {k}",
                    "jnz 2b",
                    x = inout(reg) x => _,
                    x2 = inout(reg) x.wrapping_add(TILE * x_stride) => _,
                    xs = in(reg) x_bytes,
                    w = inout(reg) w => _,
                    ws = in(reg) w_bytes,
                    w_step = in(reg) w_bytes * TILE,
                    soon = inout(reg) ahead.from => _,
                    lines = in(reg) STEP * ahead.step / CACHE_LINE,
                    n = out(reg) _,
                    k = inout(reg) length / STEP => _,
                    options(nostack, readonly)
                );
                asm!($store_sums, y = in(reg) y, y2 = in(reg) y.wrapping_add(TILE * y_stride), ys = in(reg) y_bytes,
                    options(nostack, preserves_flags));
            }
        }
    };
}

block!(
    two,
    "tileloadd tmm0, [{y} + {ys}]
     tileloadd tmm1, [{y} + {ys} + 64]
     tileloadd tmm2, [{y2} + {ys}]
     tileloadd tmm3, [{y2} + {ys} + 64]",
    "tileloadd tmm4, [{x} + {xs}]
     tileloadd tmm5, [{x2} + {xs}]
     tdpbf16ps tmm0, tmm4, tmm6
     tdpbf16ps tmm1, tmm4, tmm7
     tdpbf16ps tmm2, tmm5, tmm6
     tdpbf16ps tmm3, tmm5, tmm7",
    "tilestored [{y} + {ys}], tmm0
     tilestored [{y} + {ys} + 64], tmm1
     tilestored [{y2} + {ys}], tmm2
     tilestored [{y2} + {ys} + 64], tmm3"
);
block!(
    one,
    "tileloadd tmm0, [{y} + {ys}]
     tileloadd tmm1, [{y} + {ys} + 64]
     /* {y2} */",
    "tileloadd tmm4, [{x} + {xs}]
     tdpbf16ps tmm0, tmm4, tmm6
     tdpbf16ps tmm1, tmm4, tmm7",
    "tilestored [{y} + {ys}], tmm0
     tilestored [{y} + {ys} + 64], tmm1
     /* {y2} */"
);
