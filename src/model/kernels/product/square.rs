//! Squares of 16 lines and 32 inner steps on AVX-512: rounded to bfloat16, split and transposed.

use std::arch::x86_64::*;

use super::matrix::Matrix;

/// Lines and pairs of inner steps of a square.
pub(super) const SQUARE: usize = 16;

/// Layout of a square of 16 lines and 32 inner steps in 16 registers of 16 pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// A register a line.
    ByLine,
    /// A register a pair of inner steps.
    ByPair,
}

/// Rounds a square (at most 16 lines, 32 steps; what is missing is zero) to bf16. Of several parts the first is the
/// rounded value and each next one what the ones before left over, rounded.
///
/// # Safety
/// The machine has AVX-512 with bfloat16; `lines` is within its slice, one of its strides being 1.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn square<const PARTS: usize>(lines: Matrix, scale: f32, order: Order) -> [[__m512i; 16]; PARTS] {
    let mut parts = [[_mm512_setzero_si512(); 16]; PARTS];
    let scale = _mm512_set1_ps(scale);
    let found = if lines.column_stride == 1 {
        Order::ByLine
    } else {
        Order::ByPair
    };
    let interleave = interleaving();
    let (count, first_mask, second_mask) = match found {
        Order::ByLine => (lines.rows, mask(lines.columns), mask(lines.columns.saturating_sub(16))),
        Order::ByPair => (lines.columns.div_ceil(2), mask(lines.rows), mask(lines.rows)),
    };
    for i in 0..count {
        let (first, second, second_mask) = match found {
            Order::ByLine => (i * lines.row_stride, i * lines.row_stride + 16, second_mask),
            Order::ByPair if 2 * i + 1 == lines.columns => (2 * i * lines.column_stride, 0, 0),
            Order::ByPair => (
                2 * i * lines.column_stride,
                (2 * i + 1) * lines.column_stride,
                second_mask,
            ),
        };
        let data = lines.data.as_ptr();
        // SAFETY: the masks leave out what is outside the matrix.
        let (mut low, mut high) = unsafe {
            (
                _mm512_maskz_loadu_ps(first_mask, data.wrapping_add(first)),
                _mm512_maskz_loadu_ps(second_mask, data.wrapping_add(second)),
            )
        };
        (low, high) = (_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale));
        for (number, part) in parts.iter_mut().enumerate() {
            // SAFETY: both are 64 bytes of plain numbers.
            let pairs: __m512i = unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(high, low)) };
            part[i] = match found {
                Order::ByLine => pairs,
                Order::ByPair => _mm512_permutexvar_epi16(interleave, pairs),
            };
            if number + 1 < PARTS {
                low = _mm512_sub_ps(low, widen(_mm512_castsi512_si256(pairs)));
                high = _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64::<1>(pairs)));
            }
        }
    }
    if found != order {
        for part in &mut parts {
            transpose(part);
        }
    }
    parts
}

/// Returns a mask of the lowest `count` lanes.
pub(super) fn mask(count: usize) -> __mmask16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}

/// Of 16 numbers and 16 others the pairs.
#[target_feature(enable = "avx512f,avx512bw")]
fn interleaving() -> __m512i {
    let pair = |i: i32| (16 + i) << 16 | i;
    _mm512_setr_epi32(
        pair(0),
        pair(1),
        pair(2),
        pair(3),
        pair(4),
        pair(5),
        pair(6),
        pair(7),
        pair(8),
        pair(9),
        pair(10),
        pair(11),
        pair(12),
        pair(13),
        pair(14),
        pair(15),
    )
}

#[target_feature(enable = "avx512f")]
fn widen(narrow: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrow)))
}

/// Transposes 16 × 16 words.
#[target_feature(enable = "avx512f")]
fn transpose(rows: &mut [__m512i; 16]) {
    let mut pairs = [_mm512_setzero_si512(); 16];
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // By fours of rows: in each lane of 128 bits a column of four rows.
    let mut fours = [_mm512_setzero_si512(); 16];
    for i in 0..4 {
        let [a, b, c, d] = [pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]];
        fours[4 * i] = _mm512_unpacklo_epi64(a, c);
        fours[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
        fours[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
        fours[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    // Lane l of fours[4·g + c] is column 4·l + c of rows 4·g to 4·g + 3.
    for c in 0..4 {
        let [a, b, x, y] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
        let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
        let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
        let even_late = _mm512_shuffle_i32x4::<0b10_00_10_00>(x, y);
        let odd_late = _mm512_shuffle_i32x4::<0b11_01_11_01>(x, y);
        rows[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even, even_late);
        rows[4 + c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd, odd_late);
        rows[8 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even, even_late);
        rows[12 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd, odd_late);
    }
}
