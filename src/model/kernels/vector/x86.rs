//! Vectors of x86-64.

use std::arch::x86_64::*;

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
