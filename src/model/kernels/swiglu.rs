//! silu(gate) · up element by element, forward and backward, and the first half of an MLP that ends with it.

use super::isa::kernel;
use super::product::{PackedMatrix, RowScratch};
use super::threads::{Pool, SharedMut};
use super::vector::{exp, load, store, vectors};

/// Numbers of one task.
const CHUNK: usize = 8 * 1024;

kernel! {
    /// y = silu(gate) · up; `y` may be `gate`.
    ///
    /// # Safety
    /// All are valid for `len` elements.
    unsafe fn gated<V>(gate: *const f32, up: *const f32, y: *mut f32, len: usize) {
        let (zero, one) = (V::splat(0.0), V::splat(1.0));
        for (i, lanes) in vectors::<V>(len) {
            let (gate, up): (V, V) = (load(gate.add(i), lanes, 0.0), load(up.add(i), lanes, 0.0));
            let silu = gate.div(one.add(exp(zero.sub(gate))));
            store(silu.mul(up), y.add(i), lanes);
        }
    }
}

kernel! {
    /// With s = 1 / (1 + e⁻ᵍᵃᵗᵉ): dgate = g·up·s·(1 + gate·(1 − s)), dup = g·gate·s.
    fn to_gradients<V>(gate: &mut [f32], up: &mut [f32], g: &[f32]) {
        let (zero, one) = (V::splat(0.0), V::splat(1.0));
        for (i, lanes) in vectors::<V>(gate.len().min(up.len()).min(g.len())) {
            let (gate, up, g) = (gate.as_mut_ptr().add(i), up.as_mut_ptr().add(i), g.as_ptr().add(i));
            let (x, y, g): (V, V, V) = (load(gate, lanes, 0.0), load(up, lanes, 0.0), load(g, lanes, 0.0));
            let s = one.div(one.add(exp(zero.sub(x))));
            let slope = x.mul(one.sub(s)).add(one).mul(s);
            store(g.mul(y).mul(slope), gate, lanes);
            store(g.mul(x).mul(s), up, lanes);
        }
    }
}

/// y = silu(gate) · up.
///
/// # Panics
/// Panics if the lengths differ.
pub fn swiglu(pool: &Pool, gate: &[f32], up: &[f32], y: &mut [f32]) {
    assert_eq!([gate.len(), up.len()], [y.len(); 2], "lengths of gate and up");
    let chunks = y.chunks_mut(CHUNK).zip(gate.chunks(CHUNK)).zip(up.chunks(CHUNK));
    pool.each(chunks, |((y, gate), up)| {
        // SAFETY: the chunks are equally long.
        unsafe { gated(pool.isa(), gate.as_ptr(), up.as_ptr(), y.as_mut_ptr(), y.len()) }
    });
}

/// Given the gradient `g` of the result, gate and up become their gradients.
///
/// # Panics
/// Panics if the lengths differ.
pub fn swiglu_backward(pool: &Pool, gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    assert_eq!([gate.len(), up.len()], [g.len(); 2], "lengths of gate and up");
    let chunks = gate.chunks_mut(CHUNK).zip(up.chunks_mut(CHUNK)).zip(g.chunks(CHUNK));
    pool.each(chunks, |((gate, up), g)| to_gradients(pool.isa(), gate, up, g));
}

/// silu(x · gateᵀ) ⊙ (x · upᵀ) for every row of `x`, to `y` (rows × outputs); `scratch` is as long as `y`.
///
/// # Panics
/// Panics if the shapes do not fit.
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
        [y.len(), scratch.len()],
        [rows * outputs; 2],
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
                gated(pool.isa(), y.at(at), scratch.at(at), y.at(at), columns.len());
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::super::product::Precision;
    use super::super::testing::{assert_close, random};
    use super::*;

    fn sigmoid(x: f32) -> f32 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn gated_mlp_agrees_with_its_definition() {
        let (rows, inputs, outputs) = (3, 10, 45);
        let (x, g, u) = (
            random(rows * inputs, 1),
            random(outputs * inputs, 2),
            random(outputs * inputs, 3),
        );
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let of_row = |x: &[f32]| -> Vec<f32> {
            let outputs = g.chunks(inputs).zip(u.chunks(inputs));
            outputs
                .map(|(g, u)| dot(x, g) * sigmoid(dot(x, g)) * dot(x, u))
                .collect()
        };
        let expected: Vec<f32> = x.chunks(inputs).flat_map(of_row).collect();
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
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
    fn forward_and_backward_agree_with_their_definitions() {
        let n = CHUNK + 13;
        let (gate, up, g) = (random(n, 1), random(n, 2), random(n, 3));
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
            let mut y = vec![0.0; n];
            swiglu(&pool, &gate, &up, &mut y);
            let expected: Vec<f32> = gate.iter().zip(&up).map(|(x, u)| x * sigmoid(*x) * u).collect();
            assert_close(&y, &expected, 1e-6);
            let (mut dgate, mut dup) = (gate.clone(), up.clone());
            swiglu_backward(&pool, &mut dgate, &mut dup, &g);
            let slope = |x: f32| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
            let by_gate: Vec<f32> = (0..n).map(|i| g[i] * up[i] * slope(gate[i])).collect();
            let by_up: Vec<f32> = (0..n).map(|i| g[i] * gate[i] * sigmoid(gate[i])).collect();
            assert_close(&dgate, &by_gate, 1e-6);
            assert_close(&dup, &by_up, 1e-6);
        }
    }
}
