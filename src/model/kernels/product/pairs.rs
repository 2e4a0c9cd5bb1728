//! Tiles of AVX-512's products of bfloat16 pairs.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::tile_input::{Ahead, Start};

/// Maximum number of rows of a tile.
pub(super) const ROWS: usize = 12;

/// Multiplies registers with nothing to wait for; returns the operations.
///
/// # Safety
/// The machine has AVX-512 with bfloat16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx2,fma")]
pub(in crate::model::kernels) unsafe fn peak() -> usize {
    const TIMES: usize = 1 << 20;
    let factors = _mm512_set1_epi32(black_box(0x3f7f_3f7f)); // twice 0.996
    // SAFETY: as said at `bf16s`.
    let factors = unsafe { bf16s(factors) };
    let mut sums = [_mm512_set1_ps(1.0); 12];
    for _ in 0..TIMES {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, factors, factors);
        }
    }
    black_box(sums);
    TIMES * sums.len() * 2 * 2 * 16
}

/// # Safety
/// As [`Tile::run`](super::tile::Tile::run); the machine has AVX-512 with bfloat16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx2,fma")]
pub(super) unsafe fn tile(
    height: usize,
    x: (*const u32, usize),
    w: (*const u32, usize),
    length: usize,
    y: (*mut f32, usize),
    start: Start,
    ahead: Ahead,
) {
    macro_rules! heights {
        ($($rows:literal)*) => {
            match height {
                // SAFETY: the caller's promise.
                $($rows => unsafe { rows::<$rows>(x, w, length, y, start, ahead) },)*
                _ => debug_assert!(height == 0, "a tile of {height} rows"),
            }
        };
    }
    heights!(1 2 3 4 5 6 7 8 9 10 11 12)
}

#[inline(always)]
unsafe fn rows<const ROWS: usize>(
    (x, x_stride): (*const u32, usize),
    (w, w_stride): (*const u32, usize),
    length: usize,
    (y, y_stride): (*mut f32, usize),
    start: Start,
    ahead: Ahead,
) {
    // SAFETY: rows below ROWS and pairs below length / 2 are valid by the caller's promise; a vector of words is one of
    // pairs, they only differ in type.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        if start == Start::Output {
            for (m, sum) in sums.iter_mut().enumerate() {
                *sum = [
                    _mm512_loadu_ps(y.add(m * y_stride)),
                    _mm512_loadu_ps(y.add(m * y_stride + 16)),
                ];
            }
        }
        for pair in 0..length / 2 {
            ahead.fetch(2 * pair, 2, 128);
            let line = w.add(pair * w_stride);
            let left = bf16s(_mm512_loadu_si512(line.cast()));
            let right = bf16s(_mm512_loadu_si512(line.add(16).cast()));
            for (m, sum) in sums.iter_mut().enumerate() {
                let factors = bf16s(_mm512_set1_epi32(*x.add(m * x_stride + pair) as i32));
                *sum = [
                    _mm512_dpbf16_ps(sum[0], factors, left),
                    _mm512_dpbf16_ps(sum[1], factors, right),
                ];
            }
        }
        for (m, sum) in sums.iter().enumerate() {
            _mm512_storeu_ps(y.add(m * y_stride), sum[0]);
            _mm512_storeu_ps(y.add(m * y_stride + 16), sum[1]);
        }
    }
}

#[inline(always)]
unsafe fn bf16s(words: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits of which every pattern is valid.
    unsafe { std::mem::transmute(words) }
}
