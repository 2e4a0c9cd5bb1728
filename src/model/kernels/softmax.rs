//! Softmax and its sums, forward and backward.

use super::isa::kernel;
use super::vector::{Vector, dot, exp, load, store, vectors};

/// Terms that are summed in f32 before the sum goes to f64: keeps the error of long vocabularies small.
const PIECE: usize = 1024;

/// Returns the largest element, NaN where not all are finite.
///
/// # Safety
/// As [`Vector::load`]; `x` is valid for `n` elements.
#[inline(always)]
unsafe fn finite_max<V: Vector>(x: *const f32, n: usize) -> f32 {
    // SAFETY: offsets stay below n.
    unsafe {
        let mut max = V::splat(f32::NEG_INFINITY);
        let mut zero = V::splat(0.0); // stays 0 where all is finite, else NaN
        for (i, lanes) in vectors::<V>(n) {
            let x = load(x.add(i), lanes, *x);
            max = max.max(x);
            zero = x.mul_add(V::splat(0.0), zero);
        }
        max.reduce_max() + zero.reduce_add()
    }
}

/// Writes exp(scale · (logit − max)) to `out`, which may be the logits. Returns the largest logit and the sum.
///
/// # Safety
/// As [`Vector::load`]; both are valid for `n` elements.
#[inline(always)]
unsafe fn exp_sum<V: Vector>(logits: *const f32, n: usize, scale: f32, out: *mut f32) -> (f32, f32) {
    // SAFETY: offsets stay below n.
    unsafe {
        let max = finite_max::<V>(logits, n);
        let mut total = 0f64;
        for start in (0..n).step_by(PIECE) {
            let mut sum = V::splat(0.0);
            for (i, lanes) in vectors::<V>(PIECE.min(n - start)) {
                let x: V = load(logits.add(start + i), lanes, f32::NEG_INFINITY);
                let e = exp(x.sub(V::splat(max)).mul(V::splat(scale)));
                sum = sum.add(e);
                store(e, out.add(start + i), lanes);
            }
            total += f64::from(sum.reduce_add());
        }
        (max, total as f32)
    }
}

kernel! {
    /// Computes the softmax of `logits · scale` without its division: writes exp(scale · (logit − max)) to `out`,
    /// returns the largest logit (NaN where not all are finite) and the sum. The log-probability of token i is scale ·
    /// (logit − max) − ln(sum).
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn exp_and_sum<V>(logits: &[f32], scale: f32, out: &mut [f32]) -> (f32, f32) {
        assert_eq!(logits.len(), out.len(), "lengths of logits and out");
        exp_sum::<V>(logits.as_ptr(), logits.len(), scale, out.as_mut_ptr())
    }
}

kernel! {
    /// Replaces a row of scores with its softmax.
    pub(super) fn softmax<V>(row: &mut [f32]) {
        let (_, total) = exp_sum::<V>(row.as_ptr(), row.len(), 1.0, row.as_mut_ptr());
        let inverse = 1.0 / total;
        row.iter_mut().for_each(|x| *x *= inverse);
    }
}

kernel! {
    /// Replaces the gradient of a softmax `p` whose product with some values is `y` by the gradient of the scores:
    /// p · (dp − Σ g·y) · scale, with `g` the gradient of `y`.
    pub(super) fn softmax_backward<V>(dp: &mut [f32], p: &[f32], g: &[f32], y: &[f32], scale: f32) {
        let along = dot::<V>(g.as_ptr(), y.as_ptr(), g.len().min(y.len()));
        for (dp, p) in dp.iter_mut().zip(p) {
            *dp = p * (*dp - along) * scale;
        }
    }
}

/// Largest logit, and the sums from which log-probabilities and entropies are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LogitSums {
    pub largest: f32,
    /// Σ e^(x − largest).
    pub total: f32,
    /// Σ (x − largest)·e^(x − largest).
    pub weighted: f32,
}

impl LogitSums {
    /// Returns the sums over these logits and those of `next`.
    pub fn and(self, next: Self) -> Self {
        let largest = self.largest.max(next.largest);
        let shifted = |sums: Self| {
            let (by, factor) = (sums.largest - largest, (sums.largest - largest).exp());
            (factor * sums.total, factor * (sums.weighted + by * sums.total))
        };
        let ((total, weighted), (next_total, next_weighted)) = (shifted(self), shifted(next));
        Self {
            largest,
            total: total + next_total,
            weighted: weighted + next_weighted,
        }
    }
}

kernel! {
    /// Returns the sums over some logits.
    pub(super) fn logit_sums<V>(logits: &[f32]) -> LogitSums {
        let (p, n) = (logits.as_ptr(), logits.len());
        let largest = finite_max::<V>(p, n);
        let (mut total, mut weighted) = (V::splat(0.0), V::splat(0.0));
        for (i, lanes) in vectors::<V>(n) {
            let below = load::<V>(p.add(i), lanes, f32::MIN / 2.0).sub(V::splat(largest));
            let e = exp(below);
            total = total.add(e);
            weighted = below.mul_add(e, weighted);
        }
        LogitSums { largest, total: total.reduce_add(), weighted: weighted.reduce_add() }
    }
}

kernel! {
    /// Replaces logits by the gradients of a loss by them, the target's own 1 left out: with p the softmax and H the
    /// entropy, −p·(by_log_prob + by_entropy·(log p + H)).
    pub(super) fn logit_gradients<V>(
        logits: &mut [f32],
        log_sum: f32,
        entropy: f32,
        by_log_prob: f32,
        by_entropy: f32,
    ) {
        let p = logits.as_mut_ptr();
        let (by_log_prob, by_entropy) = (V::splat(-by_log_prob), V::splat(-by_entropy));
        for (i, lanes) in vectors::<V>(logits.len()) {
            let log_p = load::<V>(p.add(i), lanes, 0.0).sub(V::splat(log_sum));
            let by_log_p = log_p.add(V::splat(entropy)).mul_add(by_entropy, by_log_prob);
            store(exp(log_p).mul(by_log_p), p.add(i), lanes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::super::testing::{assert_close, random};
    use super::*;

    fn logits(n: usize) -> (Vec<f32>, f32) {
        let logits: Vec<f32> = random(n, 7).iter().map(|x| x * 20.0).collect();
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        (logits, max)
    }

    #[test]
    fn softmax_sums_agree_with_f64() {
        for isa in Isa::available() {
            for n in [1, 5, 1023, 1025, 5000] {
                let (logits, max) = logits(n);
                let exact: Vec<f64> = logits.iter().map(|&x| (f64::from(x - max) * 0.7).exp()).collect();
                let mut out = vec![0.0; n];
                let (m, sum) = exp_and_sum(isa, &logits, 0.7, &mut out);
                assert_eq!(m, max);
                assert_close(&[sum], &[exact.iter().sum::<f64>() as f32], 1e-6);
                assert_close(&out, &exact.iter().map(|&x| x as f32).collect::<Vec<_>>(), 1e-6);
            }
        }
    }

    #[test]
    fn softmax_adds_up_to_one_and_keeps_what_is_not_finite() {
        for isa in Isa::available() {
            let (mut row, _) = logits(77);
            softmax(isa, &mut row);
            assert_close(&[row.iter().sum()], &[1.0], 1e-6);
            row[3] = f32::NAN;
            softmax(isa, &mut row);
            assert!(row.iter().all(|x| x.is_nan()), "{}", isa.name());
        }
    }

    #[test]
    fn sums_of_two_parts_are_those_of_the_whole() {
        for isa in Isa::available() {
            let (logits, max) = logits(100);
            let whole = logit_sums(isa, &logits);
            let exact = |f: fn(f64) -> f64| logits.iter().map(|x| f(f64::from(x - max))).sum::<f64>() as f32;
            assert_eq!(whole.largest, max);
            assert_close(&[whole.total], &[exact(f64::exp)], 1e-5);
            assert_close(&[whole.weighted], &[exact(|x| x * x.exp())], 1e-5);
            let joined = logit_sums(isa, &logits[..33]).and(logit_sums(isa, &logits[33..]));
            let numbers = |sums: LogitSums| [sums.largest, sums.total, sums.weighted];
            assert_close(&numbers(joined), &numbers(whole), 1e-5);
        }
    }

    #[test]
    fn gradients_agree_with_differences() {
        // Of 0.3·log p₀ + 0.2·H, by each logit.
        let loss = |logits: &[f64]| {
            let total: f64 = logits.iter().map(|x| x.exp()).sum();
            let log_p: Vec<f64> = logits.iter().map(|x| x - total.ln()).collect();
            0.3 * log_p[0] - 0.2 * log_p.iter().map(|l| l * l.exp()).sum::<f64>()
        };
        let logits: Vec<f64> = random(19, 3).iter().map(|&x| f64::from(x)).collect();
        let total: f64 = logits.iter().map(|x| x.exp()).sum();
        let entropy: f64 = -logits.iter().map(|x| (x - total.ln()) * x.exp() / total).sum::<f64>();
        let by_difference = |i: usize| {
            let moved = |by: f64| {
                let mut logits = logits.clone();
                logits[i] += by;
                loss(&logits)
            };
            ((moved(1e-4) - moved(-1e-4)) / 2e-4) as f32
        };
        let expected: Vec<f32> = (0..19).map(by_difference).collect();
        for isa in Isa::available() {
            let mut row: Vec<f32> = logits.iter().map(|&x| x as f32).collect();
            logit_gradients(isa, &mut row, total.ln() as f32, entropy as f32, 0.3, 0.2);
            row[0] += 0.3;
            assert_close(&row, &expected, 1e-5);
        }
    }
}
