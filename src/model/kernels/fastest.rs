//! The choice of an instruction set by measurement. The newest one is not always the fastest: some processors compute
//! products of bfloat16 pairs more slowly than f32 multiply-adds, and AMX pays for packing its operands.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use super::isa::{Bf16Product, Isa, Vectors};
use super::product::{Compute, Into, Matrix, Precision, gemm};
use super::threads::Pool;

/// Rows, columns and inner length of the product that is timed, its packing included: an eighth of a billion
/// operations, about a millisecond.
const SHAPE: (usize, usize, usize) = (384, 320, 512);
/// Rounds of the measurement; other processes only ever make a product slower.
const ROUNDS: usize = 4;
/// How many times as fast as the others an instruction set must be to replace one that rounds less.
const MARGIN: f64 = 1.05;

/// An instruction set, and the speed of all that were compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The fastest one.
    pub isa: Isa,
    /// Operations per second of one thread; a multiply-add counts as two.
    pub measured: Vec<(Isa, f64)>,
}

/// Returns this machine's fastest instruction set for products of a precision. Measures it on the first call, which
/// takes about ten milliseconds where there is more than one way to compute such products.
pub fn fastest(precision: Precision) -> &'static Choice {
    static CHOICES: [OnceLock<Choice>; 3] = [const { OnceLock::new() }; 3];
    CHOICES[precision as usize].get_or_init(|| {
        let candidates = candidates(&Isa::available(), precision);
        let measured = match candidates.len() {
            1 => vec![(candidates[0], 0.0)], // nothing to compare
            _ => measure(&candidates, precision),
        };
        Choice {
            isa: choose(&measured),
            measured,
        }
    })
}

/// Of the instruction sets with the widest vectors, those that differ in how they compute such products; of two that do
/// not differ, the newer one.
fn candidates(available: &[Isa], precision: Precision) -> Vec<Isa> {
    let way = |isa: &Isa| -> (Vectors, Option<Bf16Product>) {
        let tiles_or_adds = |product| match precision {
            Precision::F32 | Precision::Int8 => is_tiles(product).then_some(product),
            Precision::Bf16 => Some(product),
        };
        (isa.vectors(), tiles_or_adds(isa.bf16_product()))
    };
    let widest = available.last().map(|isa| isa.vectors());
    let mut found: Vec<Isa> = vec![];
    for isa in available.iter().filter(|isa| Some(isa.vectors()) == widest) {
        match found.last_mut() {
            Some(last) if way(last) == way(isa) => *last = *isa,
            _ => found.push(*isa),
        }
    }
    found
}

/// Whether f32 is split into tiles of bfloat16.
fn is_tiles(product: Bf16Product) -> bool {
    match product {
        #[cfg(target_arch = "x86_64")]
        Bf16Product::Tiles => true,
        _ => false,
    }
}

/// Returns the fastest of several instruction sets, of which later ones round more.
fn choose(measured: &[(Isa, f64)]) -> Isa {
    let faster = |best: (Isa, f64), next: &(Isa, f64)| if next.1 > MARGIN * best.1 { *next } else { best };
    let first = measured.first().copied().unwrap_or((Isa::detect(), 0.0));
    measured.iter().fold(first, faster).0
}

/// Operations per second of each candidate, timed in turn.
fn measure(candidates: &[Isa], precision: Precision) -> Vec<(Isa, f64)> {
    let (rows, columns, inner) = SHAPE;
    let number = |i: usize| (i * 7919 % 1009) as f32 / 1009.0 - 0.5;
    let [a, b] = [rows, columns].map(|lines| (0..lines * inner).map(number).collect::<Vec<f32>>());
    let mut out = vec![0.0; rows * columns];
    let pools: Vec<Pool> = candidates.iter().map(|isa| Pool::with_isa(1, *isa)).collect();
    let mut seconds = vec![f64::INFINITY; candidates.len()];
    for _ in 0..ROUNDS {
        for (pool, best) in pools.iter().zip(&mut seconds) {
            let (a, b) = (Matrix::new(&a, rows, inner), Matrix::new(&b, columns, inner));
            let start = Instant::now();
            let out = (black_box(&mut out[..]), columns);
            gemm(Compute::new(pool, precision), out, Into::Replace, 1.0, a, b.t());
            *best = start.elapsed().as_secs_f64().min(*best);
        }
    }
    let operations = (2 * rows * columns * inner) as f64;
    candidates
        .iter()
        .zip(seconds)
        .map(|(isa, seconds)| (*isa, operations / seconds))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_taken_and_of_equals_the_one_that_rounds_less() {
        let isas = Isa::available();
        let [first, last] = [isas[0], isas[isas.len() - 1]];
        for (rates, expected) in [
            ([100.0, 60.0], first),
            ([100.0, 100.0], first),
            ([100.0, 104.0], first),
            ([100.0, 106.0], last),
            ([100.0, 300.0], last),
        ] {
            assert_eq!(choose(&[(first, rates[0]), (last, rates[1])]), expected, "{rates:?}");
        }
        assert_eq!(choose(&[(first, 0.0)]), first);
        assert_eq!(choose(&[]), Isa::detect());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn only_what_differs_is_compared() {
        let names = |isas: Vec<Isa>| -> Vec<&str> { isas.into_iter().map(Isa::name).collect() };
        let [portable, avx2, avx512, vnni, bf16, amx] = Isa::all_of_x86();
        for (available, f32s, bf16s) in [
            (&[portable][..], &["portable"][..], &["portable"][..]),
            (&[portable, avx2], &["avx2"], &["avx2"]),
            (&[portable, avx2, avx512], &["avx512"], &["avx512"]),
            (&[portable, avx2, avx512, vnni], &["avx512-vnni"], &["avx512-vnni"]),
            (
                &[portable, avx2, avx512, vnni, bf16],
                &["avx512-bf16"],
                &["avx512-vnni", "avx512-bf16"],
            ),
            (
                &[portable, avx2, avx512, vnni, bf16, amx],
                &["avx512-bf16", "amx"],
                &["avx512-vnni", "avx512-bf16", "amx"],
            ),
        ] {
            assert_eq!(names(candidates(available, Precision::F32)), f32s);
            assert_eq!(names(candidates(available, Precision::Bf16)), bf16s);
        }
    }

    #[test]
    fn what_is_chosen_was_measured_and_stays() {
        for precision in [Precision::F32, Precision::Bf16] {
            let choice = fastest(precision);
            assert!(choice.measured.iter().any(|(isa, _)| *isa == choice.isa));
            assert!(Isa::available().contains(&choice.isa));
            assert!(std::ptr::eq(choice, fastest(precision)));
        }
    }
}
