//! Gated linear units, act(gate) · up element by element, forward and backward, and the first half of an MLP that ends
//! with one. Every activation here is x·s(z) with the logistic function s, z being the gate x itself or a polynomial of it.

use super::isa::kernel;
use super::product::{PackedMatrix, RowScratch};
use super::threads::{Pool, SharedMut};
use super::vector::{Vector, exp, load, store, vectors};

/// Elements per task.
const CHUNK: usize = 8 * 1024;

/// Activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + e⁻ˣ).
    Silu,
    /// ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), the approximation of GELU that PyTorch calls `tanh`.
    GeluTanh,
}

/// Argument of the logistic function, as a function of the gate.
///
/// # Safety
/// The machine has the instruction set of `V`.
trait Gate {
    /// z(x).
    unsafe fn argument<V: Vector>(x: V) -> V;
    /// y · z′(x).
    unsafe fn times_slope<V: Vector>(x: V, y: V) -> V;
}

struct Silu;

impl Gate for Silu {
    #[inline(always)]
    unsafe fn argument<V: Vector>(x: V) -> V {
        x
    }

    #[inline(always)]
    unsafe fn times_slope<V: Vector>(_: V, y: V) -> V {
        y
    }
}

/// ½·(1 + tanh u) is s(2u).
struct GeluTanh;

impl GeluTanh {
    /// 2·√(2/π).
    const LINEAR: f32 = 1.595_769;
    const CUBIC: f32 = 0.044_715 * Self::LINEAR;
}

impl Gate for GeluTanh {
    #[inline(always)]
    unsafe fn argument<V: Vector>(x: V) -> V {
        // SAFETY: as the caller promises.
        unsafe { x.mul(x).mul_add(V::splat(Self::CUBIC), V::splat(Self::LINEAR)).mul(x) }
    }

    #[inline(always)]
    unsafe fn times_slope<V: Vector>(x: V, y: V) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            x.mul(x)
                .mul_add(V::splat(3.0 * Self::CUBIC), V::splat(Self::LINEAR))
                .mul(y)
        }
    }
}

kernel! {
    /// y = act(gate) · up; `y` may be `gate`.
    ///
    /// # Safety
    /// All are valid for `len` elements.
    unsafe fn gated<V, A: Gate>(gate: *const f32, up: *const f32, y: *mut f32, len: usize) {
        let (zero, one) = (V::splat(0.0), V::splat(1.0));
        for (i, lanes) in vectors::<V>(len) {
            let (gate, up): (V, V) = (load(gate.add(i), lanes, 0.0), load(up.add(i), lanes, 0.0));
            let activated = gate.div(one.add(exp(zero.sub(A::argument(gate)))));
            store(activated.mul(up), y.add(i), lanes);
        }
    }
}

kernel! {
    /// With s = s(z(gate)): dgate = g·up·s·(1 + gate·(1 − s)·z′(gate)), dup = g·gate·s.
    ///
    /// # Safety
    /// All are valid for `len` elements.
    unsafe fn to_gradients<V, A: Gate>(gate: *mut f32, up: *mut f32, g: *const f32, len: usize) {
        let (zero, one) = (V::splat(0.0), V::splat(1.0));
        for (i, lanes) in vectors::<V>(len) {
            let (gate, up, g) = (gate.add(i), up.add(i), g.add(i));
            let (x, y, g): (V, V, V) = (load(gate, lanes, 0.0), load(up, lanes, 0.0), load(g, lanes, 0.0));
            let s = one.div(one.add(exp(zero.sub(A::argument(x)))));
            let slope = A::times_slope(x, x.mul(one.sub(s))).add(one).mul(s);
            store(g.mul(y).mul(slope), gate, lanes);
            store(g.mul(x).mul(s), up, lanes);
        }
    }
}

impl Activation {
    /// # Safety
    /// As `gated`.
    unsafe fn gate(self, pool: &Pool, gate: *const f32, up: *const f32, y: *mut f32, len: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::Silu => gated::<Silu>(pool.isa(), gate, up, y, len),
                Self::GeluTanh => gated::<GeluTanh>(pool.isa(), gate, up, y, len),
            }
        }
    }
}

/// Computes y = act(gate) ⊙ up (GLU variants: Shazeer 2020).
///
/// # Panics
/// Panics if the lengths differ.
pub fn glu(pool: &Pool, activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32]) {
    assert_eq!([gate.len(), up.len()], [y.len(); 2], "lengths of gate and up");
    let chunks = y.chunks_mut(CHUNK).zip(gate.chunks(CHUNK)).zip(up.chunks(CHUNK));
    pool.each(chunks, |((y, gate), up)| {
        // SAFETY: the chunks are equally long.
        unsafe { activation.gate(pool, gate.as_ptr(), up.as_ptr(), y.as_mut_ptr(), y.len()) }
    });
}

/// Overwrites gate and up with their gradients, from the gradient `g` of the result.
///
/// # Panics
/// Panics if the lengths differ.
pub fn glu_backward(pool: &Pool, activation: Activation, gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    assert_eq!([gate.len(), up.len()], [g.len(); 2], "lengths of gate and up");
    let chunks = gate.chunks_mut(CHUNK).zip(up.chunks_mut(CHUNK)).zip(g.chunks(CHUNK));
    pool.each(chunks, |((gate, up), g)| {
        let (isa, gate, up, g, len) = (pool.isa(), gate.as_mut_ptr(), up.as_mut_ptr(), g.as_ptr(), g.len());
        // SAFETY: the chunks are equally long.
        unsafe {
            match activation {
                Activation::Silu => to_gradients::<Silu>(isa, gate, up, g, len),
                Activation::GeluTanh => to_gradients::<GeluTanh>(isa, gate, up, g, len),
            }
        }
    });
}

/// Computes act(x · gateᵀ) ⊙ (x · upᵀ) for every row of `x` into `y` (rows × outputs); `scratch` is as long as `y`.
///
/// # Panics
/// Panics if the shapes do not fit.
pub fn gated_mlp(
    pool: &Pool,
    activation: Activation,
    x: &[f32],
    (gate, up): (&PackedMatrix, &PackedMatrix),
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
    let narrow = [gate.narrow(pool, x), up.narrow(pool, x)];
    let x = gate.rows(pool, x, row_scratch);
    gate.each_panel_range(pool, 2 * rows, |panels| {
        let width = gate.panel_width();
        let columns = panels.start * width..outputs.min(panels.end * width);
        // SAFETY: lengths are checked above; ranges of panels do not overlap, so tasks touch other columns.
        unsafe {
            gate.multiply_panels(x, &narrow[0], (y.at(0), outputs), panels.clone());
            up.multiply_panels(x, &narrow[1], (scratch.at(0), outputs), panels);
            for row in 0..rows {
                let at = row * outputs + columns.start;
                activation.gate(pool, y.at(at), scratch.at(at), y.at(at), columns.len());
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
            let (silu, rows) = (Activation::Silu, &mut RowScratch::default());
            gated_mlp(&pool, silu, &x, (&gate, &up), &mut y, &mut scratch, rows);
            assert_close(&y, &expected, 1e-5);
        }
    }

    /// An activation and its derivative, in f64.
    fn defined(activation: Activation, x: f64) -> (f64, f64) {
        match activation {
            Activation::Silu => {
                let s = 1.0 / (1.0 + (-x).exp());
                (x * s, s * (1.0 + x * (1.0 - s)))
            }
            Activation::GeluTanh => {
                let a = (2.0 / std::f64::consts::PI).sqrt();
                let t = (a * (x + 0.044715 * x.powi(3))).tanh();
                let slope = a * (1.0 + 3.0 * 0.044715 * x * x);
                (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
            }
        }
    }

    #[test]
    fn forward_and_backward_agree_with_their_definitions() {
        let n = CHUNK + 13;
        let gate: Vec<f32> = random(n, 1).iter().map(|x| x * 6.0).collect();
        let (up, g) = (random(n, 2), random(n, 3));
        let zipped = |f: &dyn Fn(usize) -> f64| -> Vec<f32> { (0..n).map(|i| f(i) as f32).collect() };
        let wide = |x: &[f32], i: usize| f64::from(x[i]);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let at = |i: usize| defined(activation, f64::from(gate[i]));
            for isa in Isa::available() {
                let pool = Pool::with_isa(2, isa);
                let mut y = vec![0.0; n];
                glu(&pool, activation, &gate, &up, &mut y);
                assert_close(&y, &zipped(&|i| at(i).0 * wide(&up, i)), 2e-6);
                let (mut dgate, mut dup) = (gate.clone(), up.clone());
                glu_backward(&pool, activation, &mut dgate, &mut dup, &g);
                assert_close(&dgate, &zipped(&|i| at(i).1 * wide(&up, i) * wide(&g, i)), 2e-6);
                assert_close(&dup, &zipped(&|i| at(i).0 * wide(&g, i)), 2e-6);
            }
        }
    }
}
