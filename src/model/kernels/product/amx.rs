//! Tiles of bfloat16 by AMX: products of 16 × 32 by 32 × 16 in one instruction.
//!
//! Rust has no stable functions for AMX, so the inner loop is assembly; the sums of a tile are in tile registers from
//! its first piece of assembly to the last, between which compiled code does not touch them.

use std::arch::asm;

use super::tile_input::{Ahead, MAX_TILE, Start};
use crate::model::kernels::memory::CACHE_LINE;

/// Rows of a tile register, and its columns of f32 or of pairs.
const SQUARE: usize = 16;
/// Inner length of one instruction.
const STEP: usize = 32;
/// Maximum number of rows of a tile: two registers.
pub(super) const ROWS: usize = 2 * SQUARE;
/// Words of a line of a panel.
const WIDTH: usize = MAX_TILE.1;

/// The shapes of the eight tile registers: 16 rows of 64 bytes each.
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

/// Use of the tile registers by this thread, released on drop.
pub(super) struct Session(());

impl Session {
    /// Configures all eight registers at their full size.
    pub fn begin() -> Self {
        // SAFETY: the shapes are valid for palette 1. A session is only begun for tiles of an `Isa` that has them.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &SHAPES, options(nostack, readonly, preserves_flags)) }
        Self(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// Multiplies tiles with nothing to wait for; returns the operations.
///
/// # Safety
/// The machine has AMX for bfloat16.
pub(in crate::model::kernels) unsafe fn peak() -> usize {
    const TIMES: usize = 1 << 17;
    const SUMS: usize = 6;
    let _session = Session::begin();
    // SAFETY: registers only.
    unsafe {
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
    }
    TIMES * SUMS * 2 * SQUARE * SQUARE * STEP
}

/// Multiplies operands of 1 or 3 parts. Rows fill whole registers; those of 3 parts fill two.
///
/// # Safety
/// As [`Tile::run`](super::tile::Tile::run); the machine has AMX for bfloat16.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn tile(
    parts: usize,
    rows: usize,
    x: (*const u32, usize),
    (w, w_stride): (*const u32, usize),
    length: usize,
    y: (*mut f32, usize),
    start: Start,
    ahead: Ahead,
) {
    debug_assert_eq!((w_stride, length % STEP), (WIDTH, 0), "a panel of whole steps");
    // SAFETY: the caller's promise.
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
        match (parts, rows > SQUARE) {
            (1, true) => two_registers(x, w, length, y, start, ahead),
            (1, false) => one_register(x, w, length, y, start, ahead),
            _ => three_parts(x, w, length, y, start, ahead),
        }
    }
}

/// Loads the left and right half of a panel's lines for the part at a byte offset from {w}.
macro_rules! load_columns {
    ($left:literal, $right:literal) => {
        concat!(
            "tileloadd tmm6, [{w} + {ws} + ",
            $left,
            "]\ntileloadd tmm7, [{w} + {ws} + ",
            $right,
            "]\n"
        )
    };
}

/// Loads the rows' numbers for the part at a byte offset from {x}.
macro_rules! load_rows {
    ($from:literal) => {
        concat!(
            "tileloadd tmm4, [{x} + {xs} + ",
            $from,
            "]\ntileloadd tmm5, [{x2} + {xs} + ",
            $from,
            "]\n"
        )
    };
}

/// Adds the products of both registers of rows with both of columns.
macro_rules! multiply {
    () => {
        "tdpbf16ps tmm0, tmm4, tmm6
         tdpbf16ps tmm1, tmm4, tmm7
         tdpbf16ps tmm2, tmm5, tmm6
         tdpbf16ps tmm3, tmm5, tmm7
         "
    };
}

macro_rules! tile {
    ($(#[$meta:meta])* $name:ident, $parts:literal, $load_sums:expr, $products:expr, $store_sums:expr) => {
        $(#[$meta])*
        #[inline(always)]
        unsafe fn $name(
            (x, x_stride): (*const u32, usize),
            w: *const u32,
            length: usize,
            (y, y_stride): (*mut f32, usize),
            start: Start,
            ahead: Ahead,
        ) {
            const LINE_BYTES: usize = 4 * WIDTH;
            let (x_bytes, y_bytes) = (4 * x_stride, 4 * y_stride);
            // SAFETY: the caller's promise. The sums stay in the tiles from the first piece of assembly to the last:
            // compiled code in between does not know of tiles, so it does not touch them.
            unsafe {
                if start == Start::Output {
                    asm!($load_sums, y = in(reg) y, y2 = in(reg) y.wrapping_add(SQUARE * y_stride), ys = in(reg) y_bytes,
                        options(nostack, readonly, preserves_flags));
                }
                asm!(
                    "2:",
                    $products,
                    concat!("add {x}, 64*", $parts),
                    concat!("add {x2}, 64*", $parts),
                    concat!("add {w}, 2048*", $parts),
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
                    x2 = inout(reg) x.wrapping_add(SQUARE * x_stride) => _,
                    xs = in(reg) x_bytes,
                    w = inout(reg) w => _,
                    ws = in(reg) LINE_BYTES,
                    soon = inout(reg) ahead.from => _,
                    lines = in(reg) STEP * ahead.step / CACHE_LINE,
                    n = out(reg) _,
                    k = inout(reg) length / STEP => _,
                    options(nostack, readonly)
                );
                asm!($store_sums, y = in(reg) y, y2 = in(reg) y.wrapping_add(SQUARE * y_stride), ys = in(reg) y_bytes,
                    options(nostack, preserves_flags));
            }
        }
    };
}

/// Loads the sums of 32 rows.
macro_rules! load_sums {
    () => {
        "tileloadd tmm0, [{y} + {ys}]
         tileloadd tmm1, [{y} + {ys} + 64]
         tileloadd tmm2, [{y2} + {ys}]
         tileloadd tmm3, [{y2} + {ys} + 64]"
    };
}

/// Stores the sums of 32 rows.
macro_rules! store_sums {
    () => {
        "tilestored [{y} + {ys}], tmm0
         tilestored [{y} + {ys} + 64], tmm1
         tilestored [{y2} + {ys}], tmm2
         tilestored [{y2} + {ys} + 64], tmm3"
    };
}

tile!(
    /// 32 rows.
    two_registers,
    1,
    load_sums!(),
    concat!(load_columns!(0, 64), load_rows!(0), multiply!()),
    store_sums!()
);
tile!(
    /// 16 rows.
    one_register,
    1,
    "tileloadd tmm0, [{y} + {ys}]
     tileloadd tmm1, [{y} + {ys} + 64]
     /* {y2} */",
    concat!(
        load_columns!(0, 64),
        "tileloadd tmm4, [{x} + {xs}]
         tdpbf16ps tmm0, tmm4, tmm6
         tdpbf16ps tmm1, tmm4, tmm7"
    ),
    "tilestored [{y} + {ys}], tmm0
     tilestored [{y} + {ys} + 64], tmm1
     /* {y2} */"
);
tile!(
    /// 32 rows. With a = a₁ + a₂ + a₃ and b alike: a₁b₁ + a₁b₃ + a₁b₂ + a₂b₂ + a₂b₁ + a₃b₁. What is left out is below
    /// 2⁻²⁵ of a₁b₁.
    three_parts,
    3,
    load_sums!(),
    concat!(
        load_rows!(0),
        load_columns!(0, 64),
        multiply!(),
        load_columns!(4096, 4160),
        multiply!(),
        load_columns!(2048, 2112),
        multiply!(),
        load_rows!(64),
        multiply!(),
        load_columns!(0, 64),
        multiply!(),
        load_rows!(128),
        multiply!()
    ),
    store_sums!()
);
