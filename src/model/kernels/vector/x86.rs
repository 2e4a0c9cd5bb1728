//! Vectors of x86-64.

use std::arch::x86_64::*;

use super::half_precision::{MAGNITUDE, REBASE, SHORTER_BY, SIGN};
use super::{HIGH_HALF, Vector};

#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct Avx2(__m256);

impl Vector for Avx2 {
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(_mm256_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(_mm256_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn load_low_bf16(p: *const u32) -> Self {
        Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(
            p.cast(),
        ))))
    }
    #[inline(always)]
    unsafe fn load_high_bf16(p: *const u32) -> Self {
        let high = _mm256_set1_epi32(HIGH_HALF as i32);
        Self(_mm256_castsi256_ps(_mm256_and_si256(
            _mm256_loadu_si256(p.cast()),
            high,
        )))
    }
    #[inline(always)]
    unsafe fn load_low_f16(p: *const u32) -> Self {
        Self(widen_f16(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_high_f16(p: *const u32) -> Self {
        Self(widen_f16(_mm256_srli_epi32::<16>(_mm256_loadu_si256(p.cast()))))
    }
    #[inline(always)]
    unsafe fn load_bits<const BITS: u32>(p: *const u32, shift: u32) -> Self {
        let shifted = _mm256_srl_epi32(_mm256_loadu_si256(p.cast()), _mm_cvtsi32_si128(shift as i32));
        let masked = _mm256_and_si256(shifted, _mm256_set1_epi32((1 << BITS) - 1));
        Self(_mm256_cvtepi32_ps(masked))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        _mm256_storeu_ps(p, self.0)
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(_mm256_add_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(_mm256_sub_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(_mm256_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(_mm256_div_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(_mm256_max_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(_mm256_fmadd_ps(self.0, factor.0, addend.0))
    }
    #[inline(always)]
    unsafe fn exp2_of_shifted(self) -> Self {
        let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
        Self(_mm256_castsi256_ps(_mm256_add_epi32(
            shifted,
            _mm256_set1_epi32(1f32.to_bits() as i32),
        )))
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        Self(_mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, limit.0)))
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct Avx512(__m512);

impl Vector for Avx512 {
    const LANES: usize = 16;
    const TILE_ROWS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(_mm512_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn load_low_bf16(p: *const u32) -> Self {
        Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(
            p.cast(),
        ))))
    }
    #[inline(always)]
    unsafe fn load_high_bf16(p: *const u32) -> Self {
        let high = _mm512_set1_epi32(HIGH_HALF as i32);
        Self(_mm512_castsi512_ps(_mm512_and_si512(
            _mm512_loadu_si512(p.cast()),
            high,
        )))
    }
    #[inline(always)]
    unsafe fn load_low_f16(p: *const u32) -> Self {
        Self(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_loadu_si512(p.cast()))))
    }
    #[inline(always)]
    unsafe fn load_high_f16(p: *const u32) -> Self {
        let high = _mm512_srli_epi32::<16>(_mm512_loadu_si512(p.cast()));
        Self(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(high)))
    }
    #[inline(always)]
    unsafe fn load_bits<const BITS: u32>(p: *const u32, shift: u32) -> Self {
        let shifted = _mm512_srl_epi32(_mm512_loadu_si512(p.cast()), _mm_cvtsi32_si128(shift as i32));
        if BITS <= 4 {
            let table = _mm512_loadu_ps(Numbers::<BITS>::TABLE.as_ptr());
            return Self(_mm512_permutexvar_ps(shifted, table));
        }
        let masked = _mm512_and_si512(shifted, _mm512_set1_epi32((1 << BITS) - 1));
        Self(_mm512_cvtepi32_ps(masked))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        _mm512_storeu_ps(p, self.0)
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(_mm512_add_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(_mm512_sub_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(_mm512_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(_mm512_div_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(_mm512_max_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(_mm512_fmadd_ps(self.0, factor.0, addend.0))
    }
    #[inline(always)]
    unsafe fn exp2_of_shifted(self) -> Self {
        let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
        Self(_mm512_castsi512_ps(_mm512_add_epi32(
            shifted,
            _mm512_set1_epi32(1f32.to_bits() as i32),
        )))
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        Self(_mm512_maskz_mov_ps(
            _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, limit.0),
            self.0,
        ))
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        _mm512_reduce_add_ps(self.0)
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        _mm512_reduce_max_ps(self.0)
    }
}

/// Half-precision numbers in the lower halves of words: F16C is not part of AVX2.
#[inline(always)]
unsafe fn widen_f16(words: __m256i) -> __m256 {
    let magnitude = _mm256_slli_epi32::<SHORTER_BY>(_mm256_and_si256(words, _mm256_set1_epi32(MAGNITUDE)));
    let rebased = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(REBASE));
    let sign = _mm256_slli_epi32::<16>(_mm256_and_si256(words, _mm256_set1_epi32(SIGN)));
    _mm256_or_ps(rebased, _mm256_castsi256_ps(sign))
}

/// The numbers of f32 that integers of `BITS` bits stand for.
struct Numbers<const BITS: u32>;

impl<const BITS: u32> Numbers<BITS> {
    /// By the lowest four bits of a word, of which other bits may be set too.
    const TABLE: [f32; 16] = {
        let mut table = [0.0; 16];
        let mut bits = 0;
        while bits < 16 {
            table[bits] = (bits % (1 << BITS)) as f32;
            bits += 1;
        }
        table
    };
}
