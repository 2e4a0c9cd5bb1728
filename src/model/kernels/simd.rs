//! Vectors of f32 as the instruction sets have them, and the choice between them at run time.
//!
//! A kernel is written once over [`Vector`]. [`Isa::run`] instantiates it behind a function with the matching
//! `#[target_feature]`, into which all of it is inlined.
#![allow(unsafe_op_in_unsafe_fn)] // Every unsafe function here is one instruction under the contract of its trait.

#[cfg(target_arch = "x86_64")]
use super::matmul::amx;

/// The upper one of two bfloat16 in a word.
const HIGH_HALF: u32 = 0xffff_0000;

/// A vector of f32.
///
/// # Safety
/// Every method needs the instruction set of the implementing type, and pointers valid for `LANES` elements.
pub(super) trait Vector: Copy {
    /// Elements.
    const LANES: usize;
    /// Rows of a register tile two vectors wide, so that accumulators and operands fit the registers.
    const TILE_ROWS: usize;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// Loads the lower halves of 32-bit words, each a bfloat16: the upper half of an f32.
    unsafe fn load_low_bf16(p: *const u32) -> Self;
    /// Loads the upper halves.
    unsafe fn load_high_bf16(p: *const u32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// `self * factor + addend`, fused where the machine can.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// 2^n for `self` = 1.5·2^23 + n, with n from −126 to 127: the integer is in the low bits.
    unsafe fn exp2_of_shifted(self) -> Self;
    /// `self` where `x >= limit`, else 0 (also for NaN `x`).
    unsafe fn where_at_least(self, x: Self, limit: Self) -> Self;
    unsafe fn reduce_add(self) -> f32;
    unsafe fn reduce_max(self) -> f32;
    /// Asks for the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const u8);
}

/// Work that is written over any vector.
pub(super) trait Kernel {
    type Output;

    /// Implementations are `#[inline(always)]`, as is everything they call.
    ///
    /// # Safety
    /// The machine has the instruction set of `V`; what the kernel points to is valid as its type says.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with products of bfloat16 pairs.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// As the one before, and tiles of bfloat16.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// How an instruction set multiplies by bfloat16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bf16Product {
    /// Weights are widened to f32.
    Widen,
    /// AVX-512's products of pairs; rows are rounded to bfloat16.
    #[cfg(target_arch = "x86_64")]
    Dot,
    /// AMX's tiles; rows are rounded to bfloat16.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

impl Isa {
    /// The best that this machine has.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self(Kind::Portable))
    }

    /// All that this machine has, the best last.
    pub fn available() -> Vec<Self> {
        let mut kinds = vec![Kind::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                kinds.push(Kind::Avx2);
            }
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                kinds.push(Kind::Avx512);
                if is_x86_feature_detected!("avx512bf16") {
                    kinds.push(Kind::Avx512Bf16);
                    if amx::is_available() {
                        kinds.push(Kind::Amx);
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        kinds.push(Kind::Neon);
        kinds.into_iter().map(Self).collect()
    }

    /// Its name, as in `avx2`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
        }
    }

    /// Rows of a register tile.
    pub(super) fn tile_rows(self) -> usize {
        match self.0 {
            Kind::Portable => <[f32; 8]>::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86::Avx2::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Bf16 | Kind::Amx => x86::Avx512::TILE_ROWS,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => neon::Neon::TILE_ROWS,
        }
    }

    /// Columns of a packed panel: two vectors.
    pub(super) fn panel_width(self) -> usize {
        match self.0 {
            Kind::Portable => 2 * <[f32; 8]>::LANES,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => 2 * x86::Avx2::LANES,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Bf16 | Kind::Amx => 2 * x86::Avx512::LANES,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => 2 * neon::Neon::LANES,
        }
    }

    /// How it multiplies by bfloat16.
    pub(super) fn bf16_product(self) -> Bf16Product {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => Bf16Product::Dot,
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => Bf16Product::Tiles,
            _ => Bf16Product::Widen,
        }
    }

    /// Runs the kernel with this instruction set.
    ///
    /// # Safety
    /// What the kernel points to is valid as its type says.
    pub(super) unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Kind::Portable => kernel.run::<[f32; 8]>(),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86::run_avx2(kernel),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Bf16 | Kind::Amx => x86::run_avx512(kernel),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => kernel.run::<neon::Neon>(),
        }
    }
}

impl Vector for [f32; 8] {
    const LANES: usize = 8;
    const TILE_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        p.cast::<Self>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn load_low_bf16(p: *const u32) -> Self {
        p.cast::<[u32; 8]>()
            .read_unaligned()
            .map(|word| f32::from_bits(word << 16))
    }
    #[inline(always)]
    unsafe fn load_high_bf16(p: *const u32) -> Self {
        p.cast::<[u32; 8]>()
            .read_unaligned()
            .map(|word| f32::from_bits(word & HIGH_HALF))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        p.cast::<Self>().write_unaligned(self)
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] + other[i])
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] - other[i])
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] * other[i])
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] / other[i])
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        std::array::from_fn(|i| if self[i] > other[i] { self[i] } else { other[i] })
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        std::array::from_fn(|i| self[i] * factor[i] + addend[i])
    }
    #[inline(always)]
    unsafe fn exp2_of_shifted(self) -> Self {
        self.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(1f32.to_bits())))
    }
    #[inline(always)]
    unsafe fn where_at_least(self, x: Self, limit: Self) -> Self {
        std::array::from_fn(|i| if x[i] >= limit[i] { self[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        self.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Avx512;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{HIGH_HALF, Kernel, Vector};
    use std::arch::x86_64::*;

    /// # Safety
    /// The machine has AVX2 and FMA; the kernel is valid.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2>()
    }

    /// # Safety
    /// The machine has AVX-512F and BW; the kernel is valid.
    #[target_feature(enable = "avx512f,avx512bw,avx2,fma")]
    pub unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx512>()
    }

    #[derive(Clone, Copy)]
    pub struct Avx2(__m256);

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
        unsafe fn where_at_least(self, x: Self, limit: Self) -> Self {
            Self(_mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_GE_OQ>(x.0, limit.0)))
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
        #[inline(always)]
        unsafe fn prefetch(p: *const u8) {
            _mm_prefetch::<_MM_HINT_T0>(p.cast())
        }
    }

    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    impl Vector for Avx512 {
        const LANES: usize = 16;
        const TILE_ROWS: usize = 12;

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
        unsafe fn where_at_least(self, x: Self, limit: Self) -> Self {
            Self(_mm512_maskz_mov_ps(
                _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x.0, limit.0),
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
        #[inline(always)]
        unsafe fn prefetch(p: *const u8) {
            _mm_prefetch::<_MM_HINT_T0>(p.cast())
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{HIGH_HALF, Vector};
    use std::arch::aarch64::*;

    /// Two registers, so that a panel is as wide as AVX2's. NEON is part of every aarch64.
    #[derive(Clone, Copy)]
    pub struct Neon(float32x4_t, float32x4_t);

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
        unsafe fn where_at_least(self, x: Self, limit: Self) -> Self {
            let zero = vdupq_n_f32(0.0);
            Self(
                vbslq_f32(vcgeq_f32(x.0, limit.0), self.0, zero),
                vbslq_f32(vcgeq_f32(x.1, limit.1), self.1, zero),
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
        #[inline(always)]
        unsafe fn prefetch(_: *const u8) {}
    }
}
