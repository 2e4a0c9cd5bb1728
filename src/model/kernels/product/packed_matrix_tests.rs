use half::bf16;

use super::super::isa::{Bf16Product, Isa};
use super::super::testing::{assert_close, random};
use super::super::threads::Pool;
use super::*;

fn plain(x: &[f32], w: &[f32], bias: Option<&[f32]>, inputs: usize) -> Vec<f32> {
    let row = |x: &[f32], n: usize, w: &[f32]| {
        let sum: f64 = x.iter().zip(w).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        sum as f32 + bias.map_or(0.0, |b| b[n])
    };
    x.chunks(inputs)
        .flat_map(|x| w.chunks(inputs).enumerate().map(move |(n, w)| row(x, n, w)))
        .collect()
}

fn packed(pool: &Pool, isa: Isa, precision: Precision, w: &[f32], inputs: usize) -> PackedMatrix {
    let mut packed = PackedMatrix::new(isa, precision, w.len() / inputs, inputs);
    packed.pack(pool, &[w], None);
    packed
}

fn rounded(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
}

/// Each line rounded to multiples of a 127th of its largest number.
fn rounded_to_bytes(x: &[f32], inputs: usize) -> Vec<f32> {
    let line = |line: &[f32]| -> Vec<f32> {
        let largest = line.iter().fold(0f32, |most, x| most.max(x.abs()));
        let round = |x: &f32| (x * (127.0 / largest)).round_ties_even() * (largest / 127.0);
        line.iter().map(round).collect()
    };
    x.chunks(inputs).flat_map(line).collect()
}

/// What the products see: bfloat16 weights are rounded, and where the machine multiplies those, the rows too; with
/// bytes both are.
fn seen(isa: Isa, precision: Precision, x: &[f32], w: &[f32], inputs: usize) -> (Vec<f32>, Vec<f32>) {
    match (precision, isa.bf16_product()) {
        (Precision::F32, _) => (x.to_vec(), w.to_vec()),
        (Precision::Int8, _) => (rounded_to_bytes(x, inputs), rounded_to_bytes(w, inputs)),
        (Precision::Bf16, Bf16Product::Widen) => (x.to_vec(), rounded(w)),
        (Precision::Bf16, _) => (rounded(x), rounded(w)),
    }
}

fn variants() -> impl Iterator<Item = (Isa, Precision)> {
    let each = |isa| [Precision::F32, Precision::Bf16, Precision::Int8].map(|precision| (isa, precision));
    Isa::available().into_iter().flat_map(each)
}

const SHAPES: [(usize, usize); 7] = [(1, 1), (3, 7), (16, 5), (17, 64), (31, 33), (32, 16), (35, 1385)];

#[test]
fn agrees_with_a_plain_loop_on_odd_shapes() {
    let pool = Pool::new(2);
    let mut scratch = RowScratch::default();
    for (isa, precision) in variants() {
        for (outputs, inputs) in SHAPES {
            for rows in [1, 2, 5, 13, 16, 25, 33, 75] {
                let (x, w) = (random(rows * inputs, 1), random(outputs * inputs, 2));
                let (seen_x, seen_w) = seen(isa, precision, &x, &w, inputs);
                let mut matrix = packed(&pool, isa, precision, &w, inputs);
                for bias in [None, Some(random(outputs, 3))] {
                    matrix.pack(&pool, &[&w], bias.clone());
                    let mut y = vec![f32::NAN; rows * outputs];
                    matrix.multiply(&pool, &x, &mut y, &mut scratch);
                    assert_close(&y, &plain(&seen_x, &seen_w, bias.as_deref(), inputs), 1e-4);
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_on_threads() {
    // Both are beyond a panel, and the inner length beyond a piece of it in either precision.
    let (outputs, inputs) = (45, 545);
    let (x, w) = (random(90 * inputs, 4), random(outputs * inputs, 5));
    for (isa, precision) in variants() {
        let mut scratch = RowScratch::default();
        let alone: Vec<u32> = {
            let pool = Pool::new(1);
            let matrix = packed(&pool, isa, precision, &w, inputs);
            let mut y = vec![0.0; 90 * outputs];
            x.chunks(inputs)
                .zip(y.chunks_mut(outputs))
                .for_each(|(x, y)| matrix.multiply(&pool, x, y, &mut scratch));
            y.iter().map(|y| y.to_bits()).collect()
        };
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let matrix = packed(&pool, isa, precision, &w, inputs);
            for rows in [1, 3, 12, 13, 24, 25, 32, 33, 64, 90] {
                let mut y = vec![0.0; rows * outputs];
                matrix.multiply(&pool, &x[..rows * inputs], &mut y, &mut scratch);
                let bits: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
                assert_eq!(
                    bits,
                    alone[..rows * outputs],
                    "{} rows, {threads} threads, {} {precision:?}",
                    rows,
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn parts_are_packed_one_under_the_other() {
    let pool = Pool::new(1);
    let (a, b) = (random(5 * 6, 1), random(7 * 6, 2));
    let mut joined = PackedMatrix::new(Isa::detect(), Precision::F32, 12, 6);
    joined.pack(&pool, &[&a, &b], None);
    let x = random(6, 3);
    let mut y = vec![0.0; 12];
    joined.multiply(&pool, &x, &mut y, &mut RowScratch::default());
    assert_close(&y, &plain(&x, &[a, b].concat(), None, 6), 1e-6);
}
