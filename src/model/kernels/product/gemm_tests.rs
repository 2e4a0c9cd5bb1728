use super::*;
use crate::model::kernels::isa::{Bf16Product, Isa};

/// Values whose products need more than 8 bits.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A matrix of rows × columns, stored as it is or transposed.
fn matrix(data: &[f32], rows: usize, columns: usize, turned: bool) -> Matrix<'_> {
    match turned {
        false => Matrix::new(data, rows, columns),
        true => Matrix::new(data, columns, rows).t(),
    }
}

/// Every way in which this machine multiplies, and its error relative to the root of the sum of the squared products:
/// that of f32 rounding, or of bf16 operands.
fn ways() -> Vec<(Pool, Precision, f64)> {
    let both = |isa: Isa| {
        let rounded = if isa.bf16_product() == Bf16Product::Widen {
            1e-6
        } else {
            8e-3
        };
        [(Precision::F32, 1e-6), (Precision::Bf16, rounded)].map(|(p, error)| (Pool::with_isa(3, isa), p, error))
    };
    Isa::available().into_iter().flat_map(both).collect()
}

#[test]
fn every_method_gives_what_a_plain_loop_gives() {
    let shapes = [
        (1, 1, 1),
        (1, 33, 2),
        (2, 7, 31),
        (12, 32, 33),
        (13, 31, 64),
        (33, 65, 100),
        (32, 32, 400),
        (200, 130, 37),
        (197, 40, 1030),
        (3, 1200, 5),
    ];
    for (pool, precision, tolerance) in ways() {
        let compute = Compute::new(&pool, precision);
        let tile = compute.tile();
        for (m, n, k) in shapes {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            for (turned, into) in [(0, Into::Replace), (1, Into::Add), (2, Into::Replace), (3, Into::Add)] {
                for compute in [compute.on_this_thread(), compute] {
                    let a = matrix(&a, m, k, turned & 1 == 1);
                    let b = matrix(&b, k, n, turned & 2 == 2);
                    let stride = n + 3;
                    let mut out = values(m * stride, 3);
                    let before = out.clone();
                    gemm(compute, (&mut out, stride), into, 0.5, a, b);
                    for i in 0..m {
                        for j in 0..stride {
                            let at = i * stride + j;
                            if j >= n {
                                assert_eq!(out[at], before[at], "written beside the result");
                                continue;
                            }
                            let product = |l: usize| {
                                a.data[i * a.row_stride + l * a.column_stride] as f64
                                    * b.data[l * b.row_stride + j * b.column_stride] as f64
                            };
                            let sum: f64 = (0..k).map(product).sum();
                            let size = (0..k).map(|l| product(l).powi(2)).sum::<f64>().sqrt().max(0.1);
                            let start = if into == Into::Add { before[at] as f64 } else { 0.0 };
                            let error = (out[at] as f64 - start - 0.5 * sum).abs() / (size + start.abs());
                            let limit = tolerance * (1.0 + (k as f64).sqrt() / 10.0);
                            assert!(
                                error < limit,
                                "{tile:?}, {m} × {n} × {k}, {turned}: {error} at {i}, {j}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// The l2 error relative to f64 of a product of ordinary numbers.
#[test]
fn tiles_of_three_parts_are_as_exact_as_multiply_adds() {
    let (m, n, k) = (40, 40, 2048);
    let (a, b) = (values(m * k, 1), values(k * n, 2));
    let error = |isa: Isa| {
        let pool = Pool::with_isa(1, isa);
        let mut out = vec![0.0; m * n];
        let (a, b) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
        gemm(
            Compute::new(&pool, Precision::F32),
            (&mut out, n),
            Into::Replace,
            1.0,
            a,
            b,
        );
        let (mut wrong, mut size) = (0.0, 0.0);
        for i in 0..m {
            for j in 0..n {
                let exact: f64 = (0..k)
                    .map(|l| a.data[i * k + l] as f64 * b.data[l * n + j] as f64)
                    .sum();
                wrong += (out[i * n + j] as f64 - exact).powi(2);
                size += exact.powi(2);
            }
        }
        (wrong / size).sqrt()
    };
    let multiply_adds = error(Isa::available()[0]);
    for isa in Isa::available() {
        assert!(
            error(isa) < 3.0 * multiply_adds + 1e-7,
            "{}: {}, multiply-adds {multiply_adds}",
            isa.name(),
            error(isa)
        );
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    for (pool, precision, _) in ways() {
        let compute = Compute::new(&pool, precision);
        let tile = compute.tile();
        for bad in [f32::NAN, f32::INFINITY] {
            let mut a = values(5 * 40, 1);
            a[3] = bad;
            let b = values(40 * 3, 2);
            let mut out = vec![0.0; 15];
            let (a, b) = (Matrix::new(&a, 5, 40), Matrix::new(&b, 40, 3));
            gemm(compute, (&mut out, 3), Into::Replace, 1.0, a, b);
            assert!(out[..3].iter().all(|x| !x.is_finite()), "{tile:?}, {bad}: {out:?}");
            assert!(out[3..].iter().all(|x| x.is_finite()), "{tile:?}, {bad}: {out:?}");
        }
    }
}

#[test]
fn rows_do_not_depend_on_each_other_or_on_threads() {
    let (m, n, k) = (400, 70, 700);
    let (a, b) = (values(m * k, 1), values(k * n, 2));
    for (pool, precision, _) in ways() {
        let compute = Compute::new(&pool, precision);
        let tile = compute.tile();
        let product = |rows: usize, compute: Compute| {
            let mut out = vec![0.0; rows * n];
            let (a, b) = (Matrix::new(&a[..rows * k], rows, k), Matrix::new(&b, k, n));
            gemm(compute, (&mut out, n), Into::Replace, 1.0, a, b);
            out
        };
        let all = product(m, compute);
        assert!(all == product(m, compute.on_this_thread()), "{tile:?}");
        assert!(all[..77 * n] == product(77, compute), "{tile:?}");
    }
}

/// Few rows read the second operand where it is, many pack it.
#[test]
fn few_rows_give_the_bits_of_many() {
    let (m, n, k, gap) = (MOST_ROWS_IN_PLACE + 1, 96, 700, 5);
    let (a, b) = (values(m * k, 1), values(k * (n + gap), 2));
    for (pool, precision, _) in ways() {
        let compute = Compute::new(&pool, precision);
        for into in [Into::Replace, Into::Add] {
            let product = |rows: usize| {
                let mut out = values(rows * n, 3);
                let (a, b) = (Matrix::new(&a[..rows * k], rows, k), Matrix::strided(&b, k, n, n + gap));
                gemm(compute, (&mut out, n), into, 1.0, a, b);
                out
            };
            let all = product(m);
            for rows in [1, 9, 16, MOST_ROWS_IN_PLACE] {
                assert!(all[..rows * n] == product(rows), "{:?}, {rows} rows", compute.tile());
            }
        }
    }
}

#[test]
fn a_product_of_low_rank_is_added_to_the_second_operand() {
    let rank = 5;
    for (pool, precision, tolerance) in ways() {
        let compute = Compute::new(&pool, precision);
        for (m, n, k, turned) in [(70, 45, 33, false), (70, 45, 33, true), (2, 600, 4000, true)] {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let (left, right) = (values(k * rank, 3), values(rank * n, 4));
            let added = LowRank {
                left: matrix(&left, k, rank, turned),
                right: matrix(&right, rank, n, turned),
                scale: 0.7,
            };
            let (a, b) = (matrix(&a, m, k, false), matrix(&b, k, n, turned));
            let at = |x: Matrix, i: usize, j: usize| f64::from(x.data[i * x.row_stride + j * x.column_stride]);
            let sum: Vec<f32> = (0..k * n)
                .map(|i| {
                    let product = |r| at(added.left, i / n, r) * at(added.right, r, i % n);
                    (at(b, i / n, i % n) + 0.7 * (0..rank).map(product).sum::<f64>()) as f32
                })
                .collect();
            let [mut found, mut expected] = [values(m * n, 5), values(m * n, 5)];
            let b = Factor::Numbers(b);
            adapted_gemm(compute, (&mut found, n), Into::Add, 0.5, a, (b, Some(added)));
            gemm(compute, (&mut expected, n), Into::Add, 0.5, a, Matrix::new(&sum, k, n));
            let limit = 10.0 * tolerance * (k as f64).sqrt();
            let pairs = found.iter().zip(&expected);
            let worst = pairs.map(|(x, y)| f64::from((x - y).abs())).fold(0.0, f64::max);
            assert!(
                worst < limit,
                "{:?}, {m} × {n} × {k}, {turned}: {worst}",
                compute.tile()
            );
        }
    }
}

#[test]
fn an_empty_product_is_zero_or_nothing() {
    for (pool, precision, _) in ways() {
        let compute = Compute::new(&pool, precision);
        let empty = |rows, columns| Matrix::new(&[], rows, columns);
        let mut out = [7.0; 2];
        gemm(compute, (&mut out, 2), Into::Replace, 1.0, empty(1, 0), empty(0, 2));
        assert_eq!(out, [0.0, 0.0]);
        gemm(
            compute,
            (&mut [], 2),
            Into::Replace,
            1.0,
            empty(0, 3),
            Matrix::new(&[0.0; 6], 3, 2),
        );
    }
}

#[test]
#[should_panic(expected = "operand is too short")]
fn a_short_operand_is_caught() {
    let (a, b) = (Matrix::new(&[1.0; 3], 2, 2), Matrix::new(&[1.0; 4], 2, 2));
    gemm(
        Compute::new(&Pool::new(1), Precision::F32),
        (&mut [0.0; 4], 2),
        Into::Replace,
        1.0,
        a,
        b,
    );
}
