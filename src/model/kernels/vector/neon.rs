//! Vectors of aarch64.

use std::arch::aarch64::*;

use super::half_precision::{MAGNITUDE, REBASE, SHORTER_BY, SIGN};
use super::{HIGH_HALF, Vector};

/// Two registers, so that a panel is as wide as AVX2's. NEON is part of every aarch64.
#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct Neon(float32x4_t, float32x4_t);

impl Vector for Neon {
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(vdupq_n_f32(x), vdupq_n_f32(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(vld1q_f32(p), vld1q_f32(p.add(4)))
    }
    #[inline(always)]
    unsafe fn load_low_bf16(p: *const u32) -> Self {
        Self(
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vld1q_u32(p))),
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vld1q_u32(p.add(4)))),
        )
    }
    #[inline(always)]
    unsafe fn load_high_bf16(p: *const u32) -> Self {
        let high = vdupq_n_u32(HIGH_HALF);
        Self(
            vreinterpretq_f32_u32(vandq_u32(vld1q_u32(p), high)),
            vreinterpretq_f32_u32(vandq_u32(vld1q_u32(p.add(4)), high)),
        )
    }
    #[inline(always)]
    unsafe fn load_low_f16(p: *const u32) -> Self {
        Self(widen_f16(vld1q_u32(p)), widen_f16(vld1q_u32(p.add(4))))
    }
    #[inline(always)]
    unsafe fn load_high_f16(p: *const u32) -> Self {
        Self(
            widen_f16(vshrq_n_u32::<16>(vld1q_u32(p))),
            widen_f16(vshrq_n_u32::<16>(vld1q_u32(p.add(4)))),
        )
    }
    #[inline(always)]
    unsafe fn load_bits<const BITS: u32>(p: *const u32, shift: u32) -> Self {
        let (right, mask) = (vdupq_n_s32(-(shift as i32)), vdupq_n_u32((1 << BITS) - 1));
        let bits = |p| vcvtq_f32_u32(vandq_u32(vshlq_u32(vld1q_u32(p), right), mask));
        Self(bits(p), bits(p.add(4)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        vst1q_f32(p, self.0);
        vst1q_f32(p.add(4), self.1)
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(vaddq_f32(self.0, other.0), vaddq_f32(self.1, other.1))
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(vsubq_f32(self.0, other.0), vsubq_f32(self.1, other.1))
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(vmulq_f32(self.0, other.0), vmulq_f32(self.1, other.1))
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(vdivq_f32(self.0, other.0), vdivq_f32(self.1, other.1))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(vmaxq_f32(self.0, other.0), vmaxq_f32(self.1, other.1))
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(
            vfmaq_f32(addend.0, self.0, factor.0),
            vfmaq_f32(addend.1, self.1, factor.1),
        )
    }
    #[inline(always)]
    unsafe fn exp2_of_shifted(self) -> Self {
        let one = vdupq_n_u32(1f32.to_bits());
        let exp2 = |x| vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(x)), one));
        Self(exp2(self.0), exp2(self.1))
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        let zero = vdupq_n_f32(0.0);
        Self(
            vbslq_f32(vcltq_f32(x.0, limit.0), zero, self.0),
            vbslq_f32(vcltq_f32(x.1, limit.1), zero, self.1),
        )
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        vaddvq_f32(vaddq_f32(self.0, self.1))
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        vmaxvq_f32(vmaxq_f32(self.0, self.1))
    }
}

/// Half-precision numbers in the lower halves of words: conversions of them are not stable in Rust.
#[inline(always)]
unsafe fn widen_f16(words: uint32x4_t) -> float32x4_t {
    let magnitude = vshlq_n_u32::<SHORTER_BY>(vandq_u32(words, vdupq_n_u32(MAGNITUDE as u32)));
    let rebased = vmulq_f32(vreinterpretq_f32_u32(magnitude), vdupq_n_f32(REBASE));
    let sign = vshlq_n_u32::<16>(vandq_u32(words, vdupq_n_u32(SIGN as u32)));
    vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(rebased), sign))
}
