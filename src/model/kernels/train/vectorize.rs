//! Loops over slices that the compiler turns into vector instructions, compiled for the baseline, for AVX2 and for
//! AVX-512, and the little arithmetic they share.

/// Defines a function whose body is compiled for the target's baseline, for AVX2 with FMA and for AVX-512, and chosen by
/// what the machine has.
macro_rules! vectorized {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name($($arg: $type),*) $(-> $output)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $type),*) $(-> $output)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx2($($arg: $type),*) $(-> $output)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx512($($arg: $type),*) $(-> $output)? {
                    body($($arg),*)
                }
                if $crate::model::kernels::train::vectorize::has_avx512() {
                    // SAFETY: the machine has what the function was compiled for.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the machine has what the function was compiled for.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(super) use vectorized;

/// Whether the machine has the vectors of 64 bytes with all that compilers take for granted beside them.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("fma")
}

/// Partial sums kept side by side, so that a sum can use vectors and has a fixed order.
const LANES: usize = 16;

/// e^x within 3 units of the last place, for x clamped to where the result is a normal number.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5·2²³: adding it leaves the nearest integer in the low bits
    const LN_2_HIGH: f32 = 0.693_359_4; // few digits: its products with small integers are exact
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let whole = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let rest = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    let tail = 1.0 / 24.0 + rest * (1.0 / 120.0 + rest * (1.0 / 720.0 + rest * (1.0 / 5040.0)));
    let fraction = 1.0 + rest * (1.0 + rest * (0.5 + rest * (1.0 / 6.0 + rest * tail)));
    fraction * f32::from_bits(((whole as i32 + 127) as u32) << 23)
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Sum of f(i) for i below `n`, in lanes.
#[inline(always)]
pub(super) fn sum(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let whole = n - n % LANES;
    let mut start = 0;
    while start < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f(start + lane);
        }
        start += LANES;
    }
    let rest: f32 = (whole..n).map(&f).sum();
    lanes.iter().sum::<f32>() + rest
}

/// Σ aᵢ·bᵢ.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    sum(n, |i| a[i] * b[i])
}

/// The largest element; −∞ of nothing.
#[inline(always)]
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    lanes.iter().copied().fold(rest, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_and_finite_everywhere() {
        let mut x = -87.0f32;
        while x < 88.0 {
            let relative = (exp(x) as f64 / (x as f64).exp() - 1.0).abs();
            assert!(relative < 4e-7, "exp({x}): {relative}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(1e30).is_finite() && exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_take_every_element() {
        for n in [0, 1, 15, 16, 17, 100] {
            let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let expected = (n * n - n.min(n * n)) as f32 / 2.0;
            assert_eq!(sum(n, |i| values[i]), expected);
            assert_eq!(dot(&values, &vec![2.0; n]), 2.0 * expected);
            assert_eq!(max(&values), if n == 0 { f32::NEG_INFINITY } else { n as f32 - 1.0 });
        }
    }
}
