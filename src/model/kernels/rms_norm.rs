//! Rms-norm of rows: x / √(mean(x²) + eps) · weight (Zhang & Sennrich 2019), forward and backward.

use super::isa::{Isa, kernel};
use super::sums::add_slice;
use super::threads::{Pool, SharedMut};
use super::vector::{dot, load, store, vectors};

/// Numbers that are worth a task of their own.
const TASK: usize = 1 << 13;
/// Rows of a task of the backward pass; fixed, so that the sum of the weight's gradient has a fixed order.
const ROWS: usize = 64;

kernel! {
    /// Writes the norm of one row to `y`, which may be the row itself.
    ///
    /// # Safety
    /// `x` and `y` are valid for as many elements as `weight` has.
    unsafe fn norm_row<V>(x: *const f32, weight: &[f32], eps: f32, y: *mut f32) {
        let n = weight.len();
        let scale = V::splat(1.0 / (dot::<V>(x, x, n) / n as f32 + eps).sqrt());
        for (i, lanes) in vectors::<V>(n) {
            let w: V = load(weight.as_ptr().add(i), lanes, 0.0);
            store(load::<V>(x.add(i), lanes, 0.0).mul(scale).mul(w), y.add(i), lanes);
        }
    }
}

/// Writes the norm of each row of `x`, of `weight.len()` elements, to `y`.
///
/// # Panics
/// Panics if the lengths of `x` and `y` differ.
pub fn rms_norm(pool: &Pool, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths of x and y");
    let width = weight.len();
    let y = SharedMut::new(y);
    pool.run_ranges(x.len() / width, TASK / width, |rows| {
        for row in rows {
            let x = &x[row * width..][..width];
            // SAFETY: rows are disjoint, each belongs to one task.
            unsafe { norm_row(pool.isa(), x.as_ptr(), weight, eps, y.at(row * width)) }
        }
    });
}

/// Adds `scale · added` to `x` and writes the norm of each row of the sum to `y`.
///
/// # Panics
/// Panics if the lengths of `x`, `added` and `y` differ.
pub fn add_rms_norm(
    pool: &Pool,
    x: &mut [f32],
    (added, scale): (&[f32], f32),
    weight: &[f32],
    eps: f32,
    y: &mut [f32],
) {
    assert_eq!(
        [added.len(), y.len()],
        [x.len(); 2],
        "lengths of what is added and of y"
    );
    let (width, rows) = (weight.len(), x.len() / weight.len());
    let (x, y) = (SharedMut::new(x), SharedMut::new(y));
    pool.run_ranges(rows, TASK / width, |rows| {
        for start in rows.map(|row| row * width) {
            // SAFETY: rows are disjoint, each belongs to one task; x and y are different slices.
            unsafe {
                let x = std::slice::from_raw_parts_mut(x.at(start), width);
                x.iter_mut().zip(&added[start..]).for_each(|(x, a)| *x += scale * a);
                norm_row(pool.isa(), x.as_ptr(), weight, eps, y.at(start));
            }
        }
    });
}

/// Normalizes each head of `x` (heads × `weight.len()`) in place.
pub fn rms_norm_heads(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    for head in x.chunks_exact_mut(weight.len()) {
        let head = head.as_mut_ptr();
        // SAFETY: the head is as long as the weight.
        unsafe { norm_row(isa, head, weight, eps, head) }
    }
}

/// From the gradient `g` of the norms, adds the gradient of the rows to `dx` and, if given, that of the weight to
/// `dw`.
///
/// # Panics
/// Panics if the lengths of `x`, `g` and `dx` differ.
pub fn rms_norm_backward(
    pool: &Pool,
    x: &[f32],
    weight: &[f32],
    g: &[f32],
    eps: f32,
    dx: &mut [f32],
    dw: Option<&mut [f32]>,
) {
    assert_eq!([g.len(), dx.len()], [x.len(); 2], "lengths of a norm's gradients");
    let block = ROWS * weight.len();
    let blocks = dx.chunks_mut(block).zip(x.chunks(block)).zip(g.chunks(block));
    let partials = pool.map(blocks, |((dx, x), g)| {
        let mut dw = vec![0.0; weight.len()];
        add_gradients(pool.isa(), x, weight, g, eps, dx, &mut dw);
        dw
    });
    if let Some(dw) = dw {
        partials.iter().for_each(|partial| add_slice(pool.isa(), dw, partial));
    }
}

kernel! {
    /// With r = 1 / rms: dx += r·(g·w − x·r²·mean(g·w·x)), dw += g·x·r.
    fn add_gradients<V>(x: &[f32], w: &[f32], g: &[f32], eps: f32, dx: &mut [f32], dw: &mut [f32]) {
        let n = w.len();
        for ((x, g), dx) in x.chunks_exact(n).zip(g.chunks_exact(n)).zip(dx.chunks_exact_mut(n)) {
            let inverse = 1.0 / (dot::<V>(x.as_ptr(), x.as_ptr(), n) / n as f32 + eps).sqrt();
            let mut along = V::splat(0.0);
            for (i, lanes) in vectors::<V>(n) {
                let (x, w): (V, V) = (load(x.as_ptr().add(i), lanes, 0.0), load(w.as_ptr().add(i), lanes, 0.0));
                along = load::<V>(g.as_ptr().add(i), lanes, 0.0).mul(w).mul_add(x, along);
            }
            let along = along.reduce_add() * inverse * inverse / n as f32;
            for i in 0..n {
                dw[i] += g[i] * x[i] * inverse;
                dx[i] += inverse * (g[i] * w[i] - x[i] * along);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, random};
    use super::*;

    #[test]
    fn rms_norm_agrees_with_its_definition() {
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
            for width in [1, 7, 16, 33, 576] {
                let (x, added, weight) = (random(5 * width, 1), random(5 * width, 2), random(width, 3));
                let sum: Vec<f32> = x.iter().zip(&added).map(|(x, a)| x + 0.5 * a).collect();
                let norm = |row: &[f32]| -> Vec<f32> {
                    let rms = (row.iter().map(|x| x * x).sum::<f32>() / width as f32 + 1e-5).sqrt();
                    row.iter().zip(&weight).map(|(x, w)| x / rms * w).collect()
                };
                let expected: Vec<f32> = sum.chunks(width).flat_map(norm).collect();
                let (mut x, mut y) = (x, vec![0.0; 5 * width]);
                add_rms_norm(&pool, &mut x, (&added, 0.5), &weight, 1e-5, &mut y);
                assert_eq!(x, sum);
                assert_close(&y, &expected, 1e-5);
                let added = y.clone();
                rms_norm(&pool, &x, &weight, 1e-5, &mut y);
                assert_eq!(y, added);
                rms_norm_heads(isa, &mut x, &weight, 1e-5);
                assert_eq!(x, y);
            }
        }
    }
}
