//! Vectors of f32 as the instruction sets have them. Kernels are written once over [`Vector`]; see `isa.rs` for how an
//! instruction set is chosen.
#![allow(unsafe_op_in_unsafe_fn)] // Every unsafe function here is one instruction under the contract of its trait.

use half::f16;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

/// The upper one of two bfloat16 in a word.
const HIGH_HALF: u32 = 0xffff_0000;
/// Half precision without its sign, by how much its fraction is shorter than that of f32, and 2 to the power of how much
/// smaller exponents are then than those of f32 mean: numbers that are not normal become so.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod half_precision {
    pub const MAGNITUDE: i32 = 0x7fff;
    pub const SHORTER_BY: i32 = 13;
    pub const REBASE: f32 = f32::from_bits((127 + 112) << 23); // 2^112
    pub const SIGN: i32 = 0x8000;
}
/// Lanes of the widest vector.
const MAX_LANES: usize = 16;
/// [`exp`] is 0 below: the smallest normal number is e^−87.3.
const UNDERFLOW: f32 = -87.0;
/// [`exp`] does not rise above.
const OVERFLOW: f32 = 88.0;

/// A vector of f32.
///
/// # Safety
/// Every method needs the instruction set of the implementing type, and pointers valid for `LANES` elements.
pub(super) trait Vector: Copy {
    /// Elements.
    const LANES: usize;
    /// Maximum number of rows of a register tile two vectors wide, at most 8: accumulators and operands fit the registers,
    /// and the compiler keeps them there (12 rows on AVX-512 were three times slower).
    const TILE_ROWS: usize;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// Loads the lower halves of 32-bit words, each a bfloat16: the upper half of an f32.
    unsafe fn load_low_bf16(p: *const u32) -> Self;
    /// Loads the upper halves.
    unsafe fn load_high_bf16(p: *const u32) -> Self;
    /// Loads the lower halves of 32-bit words, each a finite half-precision number.
    unsafe fn load_low_f16(p: *const u32) -> Self;
    /// Loads the upper halves.
    unsafe fn load_high_f16(p: *const u32) -> Self;
    /// Loads the unsigned integers in `BITS` bits, at most 8, from bit `shift` of 32-bit words on.
    unsafe fn load_bits<const BITS: u32>(p: *const u32, shift: u32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// The larger one; `other` where either is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// `self * factor + addend`, fused where the machine can.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// 2^n for `self` = 1.5·2^23 + n, with n from −126 to 127: the integer is in the low bits.
    unsafe fn exp2_of_shifted(self) -> Self;
    /// 0 where `x < limit`, else `self` (also for NaN `x`).
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self;
    unsafe fn reduce_add(self) -> f32;
    unsafe fn reduce_max(self) -> f32;
}

/// Iterates over the vectors that cover `0..len`: offset and number of lanes in use, all but for the last.
#[inline(always)]
pub(super) fn vectors<V: Vector>(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(V::LANES).map(move |i| (i, V::LANES.min(len - i)))
}

/// Loads `lanes` elements, the others as `fill`.
///
/// # Safety
/// As [`Vector::load`], with `p` valid for `lanes` elements.
#[inline(always)]
pub(super) unsafe fn load<V: Vector>(p: *const f32, lanes: usize, fill: f32) -> V {
    if lanes == V::LANES {
        return V::load(p);
    }
    let mut buffer = [fill; MAX_LANES];
    buffer.as_mut_ptr().copy_from_nonoverlapping(p, lanes);
    V::load(buffer.as_ptr())
}

/// Stores the first `lanes` elements.
///
/// # Safety
/// As [`Vector::store`], with `p` valid for `lanes` elements.
#[inline(always)]
pub(super) unsafe fn store<V: Vector>(v: V, p: *mut f32, lanes: usize) {
    if lanes == V::LANES {
        return v.store(p);
    }
    let mut buffer = [0f32; MAX_LANES];
    v.store(buffer.as_mut_ptr());
    p.copy_from_nonoverlapping(buffer.as_ptr(), lanes);
}

/// Returns the first element.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn first<V: Vector>(v: V) -> f32 {
    let mut elements = [0f32; MAX_LANES];
    v.store(elements.as_mut_ptr());
    elements[0]
}

/// Returns Σ aᵢ·bᵢ of `len` elements.
///
/// # Safety
/// As [`Vector::load`], with `a` and `b` valid for `len` elements.
#[inline(always)]
pub(super) unsafe fn dot<V: Vector>(a: *const f32, b: *const f32, len: usize) -> f32 {
    let mut sum = V::splat(0.0);
    for (i, lanes) in vectors::<V>(len) {
        let a: V = load(a.add(i), lanes, 0.0);
        sum = a.mul_add(load(b.add(i), lanes, 0.0), sum);
    }
    sum.reduce_add()
}

/// Returns e^x to within 2 units in the last place; 0 below −87, finite above 88, NaN for NaN.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn exp<V: Vector>(x: V) -> V {
    let (q, r, power) = exp_parts(x);
    q.mul_add(r, V::splat(1.0))
        .mul(power)
        .zero_below(x, V::splat(UNDERFLOW))
}

/// tanh x = (e²ˣ − 1) / (e²ˣ + 1) to within a few units in the last place; NaN for NaN.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn tanh<V: Vector>(x: V) -> V {
    let (q, r, power) = exp_parts(x.add(x));
    // e²ˣ − 1 without subtracting 1 from what is nearly 1
    let less_one = q.mul(r).mul_add(power, power.sub(V::splat(1.0)));
    less_one.div(less_one.add(V::splat(2.0)))
}

/// Returns q, r and 2ⁿ with eˣ = (q·r + 1)·2ⁿ, for x limited to −87 and 88.
///
/// The argument is x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r is a polynomial of degree 6 (Taylor, with the error below
/// f32's precision there), 2^n goes to the exponent bits.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
unsafe fn exp_parts<V: Vector>(x: V) -> (V, V, V) {
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer, which stays in the low bits
    const LN2_HIGH: f32 = 0.693_359_4; // exact in few bits, so n · LN2_HIGH is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    let (zero, limit) = (V::splat(0.0), V::splat(UNDERFLOW));
    // `x` and what comes of it is the second argument of `max`, which therefore lets NaN through.
    let bounded = zero.sub(V::splat(-OVERFLOW).max(zero.sub(limit.max(x))));
    let shifted = bounded.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(SHIFT));
    let n = shifted.sub(V::splat(SHIFT));
    let r = n.mul_add(V::splat(-LN2_HIGH), bounded);
    let r = n.mul_add(V::splat(-LN2_LOW), r);
    let mut power = V::splat(COEFFICIENTS[0]);
    for c in &COEFFICIENTS[1..] {
        power = power.mul_add(r, V::splat(*c));
    }
    (power, r, shifted.exp2_of_shifted())
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
    unsafe fn load_low_f16(p: *const u32) -> Self {
        p.cast::<[u32; 8]>()
            .read_unaligned()
            .map(|word| f16::from_bits(word as u16).to_f32())
    }
    #[inline(always)]
    unsafe fn load_high_f16(p: *const u32) -> Self {
        p.cast::<[u32; 8]>()
            .read_unaligned()
            .map(|word| f16::from_bits((word >> 16) as u16).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bits<const BITS: u32>(p: *const u32, shift: u32) -> Self {
        p.cast::<[u32; 8]>()
            .read_unaligned()
            .map(|word| (word >> shift & ((1 << BITS) - 1)) as f32)
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
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        std::array::from_fn(|i| if x[i] < limit[i] { 0.0 } else { self[i] })
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
}

#[cfg(test)]
mod tests {
    use super::super::isa::{Isa, kernel};
    use super::*;

    kernel! {
        fn exp_all<V>(x: &mut [f32]) {
            for (i, lanes) in vectors::<V>(x.len()) {
                store(exp(load::<V>(x.as_ptr().add(i), lanes, 0.0)), x.as_mut_ptr().add(i), lanes);
            }
        }
    }

    kernel! {
        fn dot_of<V>(a: &[f32], b: &[f32]) -> f32 {
            dot::<V>(a.as_ptr(), b.as_ptr(), a.len().min(b.len()))
        }
    }

    #[test]
    fn exp_is_exact_to_the_last_places() {
        let inputs: Vec<f32> = (-8700..=8800).map(|i| i as f32 / 100.0).collect();
        for isa in Isa::available() {
            let mut results = inputs.clone();
            exp_all(isa, &mut results);
            for (x, result) in inputs.iter().zip(&results) {
                let error = (f64::from(*result) / f64::from(*x).exp() - 1.0).abs();
                assert!(error < 4e-7, "exp({x}) = {result}, off by {error} ({})", isa.name());
            }
            let mut edges = [f32::NEG_INFINITY, -1e30, -88.0, 0.0, 1e30, f32::INFINITY, f32::NAN];
            exp_all(isa, &mut edges);
            assert_eq!(edges[..4], [0.0, 0.0, 0.0, 1.0], "{}", isa.name());
            assert!(edges[4].is_finite() && edges[5].is_finite() && edges[6].is_nan());
        }
    }

    kernel! {
        fn tanh_all<V>(x: &mut [f32]) {
            for (i, lanes) in vectors::<V>(x.len()) {
                store(tanh(load::<V>(x.as_ptr().add(i), lanes, 0.0)), x.as_mut_ptr().add(i), lanes);
            }
        }
    }

    #[test]
    fn tanh_is_exact_to_the_last_places() {
        let large = (-4000..=4000).map(|i| i as f32 / 100.0);
        let inputs: Vec<f32> = large.chain((1..1000).map(|i| i as f32 * 1e-6)).collect();
        for isa in Isa::available() {
            let mut results = inputs.clone();
            tanh_all(isa, &mut results);
            for (x, result) in inputs.iter().zip(&results) {
                let exact = f64::from(*x).tanh();
                let error = (f64::from(*result) - exact).abs() / exact.abs().max(1e-30);
                assert!(error < 6e-7, "tanh({x}) = {result}, off by {error} ({})", isa.name());
            }
            let mut edges = [f32::NEG_INFINITY, -1e30, 0.0, 1e30, f32::INFINITY, f32::NAN];
            tanh_all(isa, &mut edges);
            assert_eq!(edges[..5], [-1.0, -1.0, 0.0, 1.0, 1.0], "{}", isa.name());
            assert!(edges[5].is_nan());
        }
    }

    #[test]
    fn a_dot_product_takes_every_element() {
        for isa in Isa::available() {
            for n in [0, 1, 15, 16, 17, 100] {
                let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
                let sum: f32 = values.iter().sum();
                assert_eq!(
                    dot_of(isa, &values, &vec![2.0; n]),
                    2.0 * sum,
                    "{n} elements, {}",
                    isa.name()
                );
            }
        }
    }
}
