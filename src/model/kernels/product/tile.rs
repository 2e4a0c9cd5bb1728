//! Register tiles: some rows of x times a piece of a panel. What they compute with, how their operands lie in memory,
//! and which memory they ask for while they compute.

#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::pairs;
#[cfg(target_arch = "x86_64")]
use super::tile_input::MAX_TILE;
use super::tile_input::{Ahead, Start};
use super::{Precision, bytes, fma};
use crate::model::kernels::isa::{Bf16Product, Isa, Vectors};
use crate::model::kernels::vector::{self, Vector};

/// How far ahead of its use a weight is asked for, where a panel is passed once.
const PREFETCH_BYTES: usize = 4096;
/// Bytes of a panel's column per pass where there are many rows, so that its piece stays in the first-level cache.
const COLUMN_BYTES: usize = 1024;
/// Inner steps of a panel that are widened at once, for several tiles: as many as f32 takes.
pub(super) const WIDENED_STEPS: usize = COLUMN_BYTES / 4;
/// What the inner length of bfloat16 is filled up to, with zeros: a step of AMX.
const BF16_DEPTH: usize = 32;
/// Rows that a tile may read behind the last one.
pub(super) const ROWS_BEHIND: usize = 31;

/// How tiles are computed. Sums are f32, each one chain over the inner length; those of bytes are integers.
///
/// A panel is some columns of the second operand: for each inner step k (in bfloat16 for each pair of steps, the even
/// one in the lower half of a word) the columns side by side. Rows are rows of the first operand, in words of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model::kernels) enum Tile {
    /// f32 multiply-adds.
    F32(Isa),
    /// f32 rows times bfloat16 panels, which are widened.
    Widened(Isa),
    /// 8-bit integers with a scale for each row and each column.
    Bytes(Isa),
    /// AVX-512's products of bfloat16 pairs: both operands are rounded.
    #[cfg(target_arch = "x86_64")]
    Pairs,
    /// AMX's tiles of bfloat16. An operand is one bfloat16 or, for f32, the sum of three: 24 bits, of whose nine
    /// products the six that are not below f32's own rounding are summed.
    #[cfg(target_arch = "x86_64")]
    Amx {
        /// 1 or 3 bfloat16 an operand.
        parts: usize,
    },
}

/// Rows and columns of a tile of two vectors a row.
fn of_vectors(isa: Isa) -> (usize, usize) {
    fn shape<V: Vector>() -> (usize, usize) {
        (V::TILE_ROWS, 2 * V::LANES)
    }
    match isa.vectors() {
        Vectors::Portable => shape::<[f32; 8]>(),
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => shape::<vector::Avx2>(),
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => shape::<vector::Avx512>(),
        #[cfg(target_arch = "aarch64")]
        Vectors::Neon => shape::<vector::Neon>(),
    }
}

impl Tile {
    /// Tiles for weights that are packed once and multiplied often: f32 weights are never split, since decoding waits
    /// for memory.
    pub fn of_weights(isa: Isa, precision: Precision) -> Self {
        match (precision, isa.bf16_product()) {
            (Precision::F32, _) => Self::F32(isa),
            (Precision::Int8, _) => Self::Bytes(isa),
            (Precision::Bf16, Bf16Product::Widen) => Self::Widened(isa),
            #[cfg(target_arch = "x86_64")]
            (Precision::Bf16, Bf16Product::Dot) => Self::Pairs,
            #[cfg(target_arch = "x86_64")]
            (Precision::Bf16, Bf16Product::Tiles) => Self::Amx { parts: 1 },
        }
    }

    /// The fastest tiles for operands that are packed for one product: f32 where bfloat16 is no faster.
    pub fn of_operands(isa: Isa, precision: Precision) -> Self {
        match (precision, isa.bf16_product()) {
            (_, Bf16Product::Widen) => Self::F32(isa),
            #[cfg(target_arch = "x86_64")]
            (Precision::Bf16, Bf16Product::Dot) => Self::Pairs,
            #[cfg(target_arch = "x86_64")]
            (_, Bf16Product::Dot) => Self::F32(isa),
            #[cfg(target_arch = "x86_64")]
            (Precision::Bf16, Bf16Product::Tiles) => Self::Amx { parts: 1 },
            #[cfg(target_arch = "x86_64")]
            (_, Bf16Product::Tiles) => Self::Amx { parts: 3 },
        }
    }

    /// Whether rows are f32 as they are.
    pub fn takes_plain_rows(self) -> bool {
        matches!(self, Self::F32(_) | Self::Widened(_))
    }

    /// Maximum number of rows.
    pub fn rows(self) -> usize {
        match self {
            Self::F32(isa) | Self::Widened(isa) => of_vectors(isa).0,
            Self::Bytes(isa) => bytes::shape(isa).0,
            #[cfg(target_arch = "x86_64")]
            Self::Pairs => pairs::ROWS,
            #[cfg(target_arch = "x86_64")]
            Self::Amx { .. } => amx::ROWS,
        }
    }

    /// Rows are written in multiples of it, and read up to the next.
    pub fn rows_multiple(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx { parts: 1 } => amx::ROWS / 2,
            #[cfg(target_arch = "x86_64")]
            Self::Amx { .. } => amx::ROWS,
            _ => 1,
        }
    }

    /// Columns of a panel.
    pub fn width(self) -> usize {
        match self {
            Self::F32(isa) | Self::Widened(isa) => of_vectors(isa).1,
            Self::Bytes(isa) => bytes::shape(isa).1,
            #[cfg(target_arch = "x86_64")]
            _ => MAX_TILE.1,
        }
    }

    /// Inner length that panels have room for.
    pub fn depth(self, inner: usize) -> usize {
        match self {
            Self::F32(_) => inner,
            _ => inner.next_multiple_of(BF16_DEPTH),
        }
    }

    /// Inner length that is summed.
    pub fn length(self, inner: usize) -> usize {
        if self.takes_plain_rows() {
            inner
        } else {
            self.depth(inner)
        }
    }

    /// Maximum inner length of a pass over many rows. Sums of bytes are scaled once, at the end.
    pub fn k_block(self) -> usize {
        match self {
            Self::Bytes(_) => usize::MAX,
            Self::Widened(_) => WIDENED_STEPS,
            _ => COLUMN_BYTES / self.weight_bytes() / BF16_DEPTH * BF16_DEPTH,
        }
    }

    /// Bytes of one weight in a panel.
    fn weight_bytes(self) -> usize {
        match self {
            Self::F32(_) => 4,
            Self::Bytes(_) => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Amx { parts } => 2 * parts,
            _ => 2,
        }
    }

    /// Words of a row for `k` inner steps, which are whole pairs.
    pub fn row_words(self, k: usize) -> usize {
        if self.takes_plain_rows() {
            k
        } else {
            k * self.weight_bytes() / 4
        }
    }

    /// Words of a whole row of a depth.
    pub fn row_len(self, depth: usize) -> usize {
        let scale = matches!(self, Self::Bytes(_)) as usize;
        self.row_words(depth) + scale
    }

    /// Words of a whole panel of a depth.
    pub fn panel_len(self, depth: usize) -> usize {
        let lines_behind = if matches!(self, Self::Bytes(_)) {
            bytes::LINES_BEHIND
        } else {
            0
        };
        self.panel_words(depth) + lines_behind * self.width()
    }

    /// Words of a panel for `k` inner steps, which are whole pairs.
    pub fn panel_words(self, k: usize) -> usize {
        self.width() * k * self.weight_bytes() / 4
    }

    /// Prepares the thread for some tiles.
    pub(super) fn begin(self) -> Session {
        Session {
            #[cfg(target_arch = "x86_64")]
            _amx: matches!(self, Self::Amx { .. }).then(amx::Session::begin),
        }
    }

    /// `y = start + Σₖ x[·][k] · w[k][·]`, for up to [`Tile::rows`] rows and `length` inner steps. Each pointer comes
    /// with its stride in words: x and y by row, w by line.
    ///
    /// # Safety
    /// Pointers are valid for these strides and lengths, y for whole panels; within a [`Session`] of these tiles.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn run(
        self,
        rows: usize,
        x: (*const u32, usize),
        w: (*const u32, usize),
        length: usize,
        y: (*mut f32, usize),
        start: Start,
        ahead: Ahead,
    ) {
        let plain = (x.0.cast::<f32>(), x.1);
        // SAFETY: the caller's promise; a tile is made of an `Isa` that has its instructions.
        unsafe {
            match self {
                Self::F32(isa) => fma::tile::<f32>(isa, rows, plain, (w.0.cast(), w.1), length, y, start, ahead),
                Self::Widened(isa) => fma::tile::<u32>(isa, rows, plain, w, length, y, start, ahead),
                Self::Bytes(isa) => bytes::tile(isa, rows, x, w.0, length, y, start, ahead),
                #[cfg(target_arch = "x86_64")]
                Self::Pairs => pairs::tile(rows, x, w, length, y, start, ahead),
                #[cfg(target_arch = "x86_64")]
                Self::Amx { parts } => amx::tile(parts, rows, x, w, length, y, start, ahead),
            }
        }
    }

    /// Which memory the `tile`th of `tiles` over the same panel asks for while it computes.
    ///
    /// Where one tile passes the panel, what it needs itself soon. Where several do, they find the panel in the cache:
    /// each asks for its part of the next panel, so that all the time is used to wait for memory. `depth` is the inner
    /// length of a panel, `length` what the tile passes of it.
    pub fn ahead(self, w: *const u32, depth: usize, length: usize, (tile, tiles): (usize, usize)) -> Ahead {
        let line = self.width() * self.weight_bytes();
        match tiles {
            1 => Ahead {
                from: w.cast::<u8>().wrapping_add(PREFETCH_BYTES),
                step: line,
            },
            _ => {
                let next = w.wrapping_add(self.panel_len(depth)).cast::<u8>();
                Ahead {
                    from: next.wrapping_add(length * line / tiles * tile),
                    step: line / tiles,
                }
            }
        }
    }
}

/// What a thread holds while it computes tiles.
pub(super) struct Session {
    #[cfg(target_arch = "x86_64")]
    _amx: Option<amx::Session>,
}
