//! What is done to each row by itself: exponential, rms-norm, swiglu, rope, log-probabilities.

use super::matmul::{PackedMatrix, RowScratch};
use super::simd::{Isa, Kernel, Vector};
use super::threads::{Pool, SharedMut};

/// Below this, e^x is taken as 0 (the smallest normal number is e^−87.3).
const EXP_UNDERFLOW: f32 = -87.0;

/// e^x to within 2 units in the last place; 0 below −87, finite above 88.
///
/// The argument is x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r is a polynomial of degree 6 (Taylor, with the error below
/// f32's precision there), 2^n goes to the exponent bits.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn exp<V: Vector>(x: V) -> V {
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer, which stays in the low bits
    const LN2_HIGH: f32 = 0.693_359_4; // exact in few bits, so n · LN2_HIGH is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    // SAFETY: plain arithmetic with the caller's instruction set.
    unsafe {
        let limit = V::splat(EXP_UNDERFLOW);
        let bounded = V::splat(0.0).sub(V::splat(0.0).sub(x.max(limit)).max(V::splat(-88.0)));
        let shifted = bounded.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(SHIFT));
        let n = shifted.sub(V::splat(SHIFT));
        let r = n.mul_add(V::splat(-LN2_HIGH), bounded);
        let r = n.mul_add(V::splat(-LN2_LOW), r);
        let mut power = V::splat(COEFFICIENTS[0]);
        for c in &COEFFICIENTS[1..] {
            power = power.mul_add(r, V::splat(*c));
        }
        let power = power.mul_add(r, V::splat(1.0));
        power.mul(shifted.exp2_of_shifted()).where_at_least(x, limit)
    }
}

/// Every vector of `0..len` as (offset, lanes in use); the last may be partly in use.
#[inline(always)]
fn vectors<V: Vector>(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(V::LANES).map(move |i| (i, V::LANES.min(len - i)))
}

/// Loads `lanes` elements, the others as `fill`.
#[inline(always)]
unsafe fn load<V: Vector>(p: *const f32, lanes: usize, fill: f32) -> V {
    // SAFETY: reads `lanes` elements at `p`, which the caller vouches for; the buffer is as long as any vector.
    unsafe {
        if lanes == V::LANES {
            return V::load(p);
        }
        let mut buffer = [fill; 16];
        buffer.as_mut_ptr().copy_from_nonoverlapping(p, lanes);
        V::load(buffer.as_ptr())
    }
}

/// Stores the first `lanes` elements.
#[inline(always)]
unsafe fn store<V: Vector>(v: V, p: *mut f32, lanes: usize) {
    // SAFETY: writes `lanes` elements at `p`, which the caller vouches for; the buffer is as long as any vector.
    unsafe {
        if lanes == V::LANES {
            return v.store(p);
        }
        let mut buffer = [0f32; 16];
        v.store(buffer.as_mut_ptr());
        p.copy_from_nonoverlapping(buffer.as_ptr(), lanes);
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    y: *mut f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let n = self.x.len();
        // SAFETY: offsets stay below n, the length of x and weight; y is as long by the constructor's promise.
        unsafe {
            let mut squares = V::splat(0.0);
            for (i, lanes) in vectors::<V>(n) {
                let x: V = load(self.x.as_ptr().add(i), lanes, 0.0);
                squares = x.mul_add(x, squares);
            }
            let scale = V::splat(1.0 / (squares.reduce_add() / n as f32 + self.eps).sqrt());
            for (i, lanes) in vectors::<V>(n) {
                let x: V = load(self.x.as_ptr().add(i), lanes, 0.0);
                let w: V = load(self.weight.as_ptr().add(i), lanes, 0.0);
                store(x.mul(scale).mul(w), self.y.add(i), lanes);
            }
        }
    }
}

/// Rows of `weight.len()` elements, normed to `y`: x / rms(x) · weight (Zhang & Sennrich 2019). Where `added` is given it
/// is first added to `x`, in place.
pub fn rms_norm(pool: &Pool, isa: Isa, x: &mut [f32], added: Option<&[f32]>, weight: &[f32], eps: f32, y: &mut [f32]) {
    let width = weight.len();
    assert_eq!((x.len() % width, x.len()), (0, y.len()), "lengths of x and y");
    assert!(added.is_none_or(|a| a.len() == x.len()), "length of what is added");
    let (x, y, rows) = (SharedMut::new(x), SharedMut::new(y), x.len() / width);
    pool.run_ranges(rows, (1 << 13) / width.max(1), |range| {
        for row in range {
            let place = row * width..(row + 1) * width;
            // SAFETY: rows are disjoint, each belongs to one task; x and y are different slices.
            let x = unsafe { std::slice::from_raw_parts_mut(x.at(place.start), width) };
            if let Some(added) = added {
                x.iter_mut().zip(&added[place.clone()]).for_each(|(x, a)| *x += a);
            }
            // SAFETY: y has room for the row.
            unsafe {
                isa.run(RmsNorm {
                    x,
                    weight,
                    eps,
                    y: y.at(place.start),
                })
            }
        }
    });
}

/// Norms each head of `x` (heads × `weight.len()`) in place.
pub fn rms_norm_heads(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    for head in x.chunks_exact_mut(weight.len()) {
        let y = head.as_mut_ptr();
        // SAFETY: the kernel reads each element before it writes the same place, through the one borrow of `head`.
        unsafe {
            isa.run(RmsNorm {
                x: std::slice::from_raw_parts(y, weight.len()),
                weight,
                eps,
                y,
            })
        }
    }
}

struct Swiglu {
    gate: *mut f32,
    up: *const f32,
    len: usize,
}

impl Kernel for Swiglu {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: offsets stay below `len`, the length of both by the constructor's promise.
        unsafe {
            let (zero, one) = (V::splat(0.0), V::splat(1.0));
            for (i, lanes) in vectors::<V>(self.len) {
                let gate: V = load(self.gate.add(i), lanes, 0.0);
                let up: V = load(self.up.add(i), lanes, 0.0);
                let silu = gate.div(one.add(exp(zero.sub(gate))));
                store(silu.mul(up), self.gate.add(i), lanes);
            }
        }
    }
}

/// silu(x · gateᵀ) ⊙ (x · upᵀ) for every row of `x`, to `y` (rows × outputs); `scratch` is as long as `y`.
pub fn gated_mlp(
    pool: &Pool,
    x: &[f32],
    gate: &PackedMatrix,
    up: &PackedMatrix,
    y: &mut [f32],
    scratch: &mut [f32],
    row_scratch: &mut RowScratch,
) {
    let (inputs, outputs, rows) = (gate.inputs(), gate.outputs(), x.len() / gate.inputs());
    assert_eq!(
        (up.inputs(), up.outputs(), x.len()),
        (inputs, outputs, rows * inputs),
        "shapes of x, gate and up"
    );
    assert_eq!(
        (y.len(), scratch.len()),
        (rows * outputs, rows * outputs),
        "lengths of y and scratch"
    );
    let (y, scratch) = (SharedMut::new(y), SharedMut::new(scratch));
    let x = gate.rows(pool, x, row_scratch);
    gate.each_panel_range(pool, 2 * rows, |panels| {
        let width = gate.panel_width();
        let columns = panels.start * width..outputs.min(panels.end * width);
        // SAFETY: lengths are checked above; ranges of panels do not overlap, so tasks touch other columns.
        unsafe {
            gate.multiply_panels(x, y.at(0), panels.clone());
            up.multiply_panels(x, scratch.at(0), panels);
            for row in 0..rows {
                let at = row * outputs + columns.start;
                gate.isa().run(Swiglu {
                    gate: y.at(at),
                    up: scratch.at(at),
                    len: columns.len(),
                });
            }
        }
    });
}

/// Turns each head of `x` (heads × head width) by its position, halves against each other as in Hugging Face's files
/// (Su et al. 2021). `cos` and `sin` have half a head's width.
pub fn rope(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in x.chunks_exact_mut(2 * half) {
        let (left, right) = head.split_at_mut(half);
        for (((a, b), cos), sin) in left.iter_mut().zip(right).zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

struct ExpSum<'a> {
    logits: &'a [f32],
    scale: f32,
    /// Takes each exp(scale · (logit − max)).
    out: Option<*mut f32>,
}

impl Kernel for ExpSum<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> (f32, f32) {
        let (p, n) = (self.logits.as_ptr(), self.logits.len());
        // SAFETY: offsets stay below n; `out` is as long by the constructor's promise.
        unsafe {
            let mut max = V::splat(f32::NEG_INFINITY);
            let mut zero = V::splat(0.0); // stays 0 where all is finite, else NaN
            for (i, lanes) in vectors::<V>(n) {
                let x = load(p.add(i), lanes, *p);
                max = max.max(x);
                zero = x.mul_add(V::splat(0.0), zero);
            }
            let max = max.reduce_max() + zero.reduce_add();
            // A partial sum for each piece keeps the error of long vocabularies small.
            let mut total = 0f64;
            for start in (0..n).step_by(1024) {
                let mut sum = V::splat(0.0);
                for (i, lanes) in vectors::<V>(1024.min(n - start)) {
                    let x: V = load(p.add(start + i), lanes, f32::NEG_INFINITY);
                    let e = exp(x.sub(V::splat(max)).mul(V::splat(self.scale)));
                    sum = sum.add(e);
                    if let Some(out) = self.out {
                        store(e, out.add(start + i), lanes);
                    }
                }
                total += f64::from(sum.reduce_add());
            }
            (max, total as f32)
        }
    }
}

/// Softmax of `logits · scale` before it is divided by its sum: writes exp(scale · (logit − max)) to `out`, returns the
/// largest logit (NaN where not all are finite) and the sum. The log-probability of token i is scale · (logit − max) − ln(sum).
pub fn exp_and_sum(isa: Isa, logits: &[f32], scale: f32, out: &mut [f32]) -> (f32, f32) {
    assert_eq!(logits.len(), out.len(), "lengths of logits and out");
    // SAFETY: out is as long as the logits.
    unsafe {
        isa.run(ExpSum {
            logits,
            scale,
            out: Some(out.as_mut_ptr()),
        })
    }
}

/// [`exp_and_sum`] without keeping the single values.
pub fn max_and_exp_sum(isa: Isa, logits: &[f32], scale: f32) -> (f32, f32) {
    // SAFETY: nothing is written.
    unsafe {
        isa.run(ExpSum {
            logits,
            scale,
            out: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::matmul::Precision;
    use super::super::testing::{assert_close, random};
    use super::*;

    struct ExpAll<'a>(&'a mut [f32]);

    impl Kernel for ExpAll<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<V: Vector>(self) {
            let (p, n) = (self.0.as_mut_ptr(), self.0.len());
            // SAFETY: offsets stay below n.
            unsafe {
                for (i, lanes) in vectors::<V>(n) {
                    store(exp(load::<V>(p.add(i), lanes, 0.0)), p.add(i), lanes);
                }
            }
        }
    }

    #[test]
    fn exp_is_exact_to_the_last_places() {
        let inputs: Vec<f32> = (-8700..=8800).map(|i| i as f32 / 100.0).collect();
        let exact: Vec<f32> = inputs.iter().map(|&x| f64::from(x).exp() as f32).collect();
        for isa in Isa::available() {
            let mut given = inputs.clone();
            // SAFETY: the kernel holds a borrow.
            unsafe { isa.run(ExpAll(&mut given)) };
            for ((x, g), e) in inputs.iter().zip(&given).zip(&exact) {
                assert!(
                    (g / e - 1.0).abs() < 4e-7,
                    "exp({x}) = {g}, expected {e} ({})",
                    isa.name()
                );
            }
            let mut edges = [f32::NEG_INFINITY, -1e30, -88.0, 0.0, 1e30];
            // SAFETY: the kernel holds a borrow.
            unsafe { isa.run(ExpAll(&mut edges)) };
            assert_eq!(edges[..4], [0.0, 0.0, 0.0, 1.0], "{}", isa.name());
            assert!(edges[4].is_finite());
        }
    }

    #[test]
    fn rms_norm_agrees_with_its_definition() {
        let pool = Pool::new(2);
        for isa in Isa::available() {
            for width in [1, 7, 16, 33, 576] {
                let (x, added, weight) = (random(5 * width, 1), random(5 * width, 2), random(width, 3));
                let sum: Vec<f32> = x.iter().zip(&added).map(|(x, a)| x + a).collect();
                let expected: Vec<f32> = sum
                    .chunks(width)
                    .flat_map(|row| {
                        let rms = (row.iter().map(|x| x * x).sum::<f32>() / width as f32 + 1e-5).sqrt();
                        row.iter().zip(&weight).map(move |(x, w)| x / rms * w)
                    })
                    .collect();
                let (mut x, mut y) = (x, vec![0.0; 5 * width]);
                rms_norm(&pool, isa, &mut x, Some(&added), &weight, 1e-5, &mut y);
                assert_eq!(x, sum);
                assert_close(&y, &expected, 1e-5);
                rms_norm_heads(isa, &mut x, &weight, 1e-5);
                assert_eq!(x, y);
            }
        }
    }

    #[test]
    fn gated_mlp_agrees_with_its_definition() {
        let pool = Pool::new(2);
        let (rows, inputs, outputs) = (3, 10, 45);
        let (x, g, u) = (
            random(rows * inputs, 1),
            random(outputs * inputs, 2),
            random(outputs * inputs, 3),
        );
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let expected: Vec<f32> = x
            .chunks(inputs)
            .flat_map(|x| {
                g.chunks(inputs).zip(u.chunks(inputs)).map(move |(g, u)| {
                    let gate = dot(x, g);
                    gate / (1.0 + (-gate).exp()) * dot(x, u)
                })
            })
            .collect();
        for isa in Isa::available() {
            let [gate, up] = [&g, &u].map(|w| {
                let mut packed = PackedMatrix::new(isa, Precision::F32, outputs, inputs);
                packed.pack(&pool, &[w], None);
                packed
            });
            let (mut y, mut scratch) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs]);
            gated_mlp(&pool, &x, &gate, &up, &mut y, &mut scratch, &mut RowScratch::default());
            assert_close(&y, &expected, 1e-5);
        }
    }

    #[test]
    fn rope_turns_halves_against_each_other() {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        rope(&mut x, &[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!(x, [-3.0, 2.0, 1.0, 4.0]);
    }

    #[test]
    fn softmax_sums_agree_with_f64() {
        for isa in Isa::available() {
            for n in [1, 5, 1023, 1025, 5000] {
                let logits: Vec<f32> = random(n, 7).iter().map(|x| x * 20.0).collect();
                let max = logits.iter().copied().fold(f32::MIN, f32::max);
                let exact: Vec<f64> = logits.iter().map(|&x| (f64::from(x - max) * 0.7).exp()).collect();
                let mut out = vec![0.0; n];
                let (m, sum) = exp_and_sum(isa, &logits, 0.7, &mut out);
                assert_eq!((m, sum), max_and_exp_sum(isa, &logits, 0.7));
                assert_eq!(m, max);
                assert_close(&[sum], &[exact.iter().sum::<f64>() as f32], 1e-6);
                assert_close(&out, &exact.iter().map(|&x| x as f32).collect::<Vec<_>>(), 1e-6);
            }
        }
    }
}
