use candle_core::Device;
use candle_core::quantized::{GgmlDType, ggml_file};
use half::f16;
use rand::{Rng, SeedableRng};

use super::*;
use crate::model::kernels::product::factor::Weight;
use crate::model::kernels::product::gemm::{LowRank, adapted_gemm};
use crate::model::kernels::product::{Compute, Into, PackedMatrix, Precision, RowScratch};
use crate::model::kernels::testing::random;
use crate::model::kernels::threads::Pool;
use std::sync::Arc;

fn candles(format: BlockFormat) -> GgmlDType {
    match format {
        BlockFormat::Q4_0 => GgmlDType::Q4_0,
        BlockFormat::Q4_1 => GgmlDType::Q4_1,
        BlockFormat::Q5_0 => GgmlDType::Q5_0,
        BlockFormat::Q5_1 => GgmlDType::Q5_1,
        BlockFormat::Q8_0 => GgmlDType::Q8_0,
        BlockFormat::Q4K => GgmlDType::Q4K,
        BlockFormat::Q5K => GgmlDType::Q5K,
        BlockFormat::Q6K => GgmlDType::Q6K,
    }
}

/// Where the half-precision numbers of a block are.
fn halves(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
        BlockFormat::Q6K => &[208],
    }
}

/// Any bytes, with scales of all sizes and signs, zero and subnormal ones among them.
fn blocks(format: BlockFormat, weights: usize, seed: u64) -> Vec<u8> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut bytes = vec![0; weights / format.block_inputs() * format.block_bytes()];
    rng.fill(&mut bytes[..]);
    for block in bytes.chunks_mut(format.block_bytes()) {
        for at in halves(format) {
            let scale = match rng.random_range(0..8) {
                0 => 0.0,
                1 => 3e-7,
                _ => rng.random_range(-2.0..2.0),
            };
            block[*at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
    bytes
}

/// The weights of a file's blocks, as candle dequantises them.
fn dequantized(format: BlockFormat, (outputs, inputs): (usize, usize), bytes: &[u8]) -> Vec<f32> {
    let tensor = ggml_file::qtensor_from_ggml(candles(format), bytes, vec![outputs, inputs], &Device::Cpu).unwrap();
    let numbers = tensor.dequantize(&Device::Cpu).unwrap();
    numbers.flatten_all().unwrap().to_vec1().unwrap()
}

fn same(shape: (usize, usize), format: BlockFormat, seed: u64) -> (Arc<QuantizedMatrix>, Vec<f32>) {
    let bytes = blocks(format, shape.0 * shape.1, seed);
    let numbers = dequantized(format, shape, &bytes);
    (
        Arc::new(QuantizedMatrix::new(format, shape, &bytes, |output| output)),
        numbers,
    )
}

#[test]
fn every_type_of_block_has_the_values_of_the_file() {
    for format in BlockFormat::ALL {
        let inputs = [format.block_inputs(), 3 * format.block_inputs()];
        for (outputs, inputs) in [(1, inputs[0]), (21, inputs[1]), (64, inputs[0])] {
            let (matrix, numbers) = same((outputs, inputs), format, 1);
            assert!(numbers.iter().all(|number| number.is_finite()));
            for isa in Isa::available() {
                let found = matrix.to_numbers(isa);
                let (name, isa) = (format.name(), isa.name());
                assert!(found == numbers, "{name} of {outputs} × {inputs} on {isa}");
            }
        }
    }
}

#[test]
fn blocks_take_hardly_more_memory_than_in_the_file() {
    for format in BlockFormat::ALL {
        let (outputs, inputs) = (64, 512);
        let (matrix, _) = same((outputs, inputs), format, 2);
        let file = outputs * inputs / format.block_inputs() * format.block_bytes();
        let share = matrix.bytes() as f64 / file as f64;
        assert!((0.99..1.04).contains(&share), "{}: {share}", format.name());
    }
}

#[test]
fn outputs_are_taken_from_the_rows_that_are_asked_for() {
    let (format, shape) = (BlockFormat::Q8_0, (6, 32));
    let bytes = blocks(format, 6 * 32, 3);
    let numbers = dequantized(format, shape, &bytes);
    let turned = QuantizedMatrix::new(format, shape, &bytes, |output| 5 - output);
    let mut row = [0.0; 32];
    turned.row(Isa::detect(), 1, &mut row);
    assert_eq!(row, numbers[4 * 32..5 * 32]);
}

#[test]
fn blocks_with_a_scale_that_is_not_finite_are_counted() {
    for format in BlockFormat::ALL {
        let mut bytes = blocks(format, 4 * format.block_inputs(), 4);
        assert_eq!(format.non_finite_blocks(&bytes), 0);
        for (block, value) in [(1, f16::NAN), (3, f16::NEG_INFINITY)] {
            let at = block * format.block_bytes() + halves(format).last().unwrap();
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        assert_eq!(format.non_finite_blocks(&bytes), 2, "{}", format.name());
    }
}

// Not nearly: what is sampled with few rows and what is computed with many are one policy.
#[test]
fn products_are_those_of_the_dequantised_weight_bit_by_bit() {
    for format in BlockFormat::ALL {
        let (outputs, inputs) = (75, 2 * format.block_inputs());
        let (matrix, numbers) = same((outputs, inputs), format, 5);
        let bias = random(outputs, 6);
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
            let mut packed = PackedMatrix::new(isa, Precision::F32, outputs, inputs);
            packed.pack(&pool, &[&numbers], Some(bias.clone()));
            let mut kept = PackedMatrix::of_blocks(isa, matrix.clone(), 0, outputs);
            kept.set_bias(Some(bias.clone()));
            for rows in [0, 1, 5, 30, 80] {
                let x = random(rows * inputs, 7);
                let product = |weight: &PackedMatrix| {
                    let mut y = vec![0.0; rows * outputs];
                    weight.multiply(&pool, &x, &mut y, &mut RowScratch::default());
                    y
                };
                let (name, isa) = (format.name(), isa.name());
                assert!(product(&kept) == product(&packed), "{rows} rows of {name} on {isa}");
            }
        }
    }
}

#[test]
fn a_part_of_the_outputs_goes_to_its_columns() {
    let isa = Isa::detect();
    let pool = Pool::with_isa(2, isa);
    let (matrix, numbers) = same((96, 64), BlockFormat::Q4_0, 8);
    let kept = PackedMatrix::of_blocks(isa, matrix, 32, 40);
    let mut packed = PackedMatrix::new(isa, Precision::F32, 40, 64);
    packed.pack(&pool, &[&numbers[32 * 64..72 * 64]], None);
    let x = random(2 * 64, 9);
    let (mut y, mut scratch) = (vec![0.0; 2 * 40], RowScratch::default());
    packed.multiply(&pool, &x, &mut y, &mut scratch);
    let mut wide = vec![7.0; 2 * 50];
    kept.multiply_columns(&pool, &x, (&mut wide, 50, 6), &mut scratch);
    for (wide, y) in wide.chunks(50).zip(y.chunks(40)) {
        assert_eq!(&wide[6..46], y);
        assert!(wide[..6].iter().chain(&wide[46..]).all(|untouched| *untouched == 7.0));
    }
}

#[test]
fn an_adapter_is_added_whatever_the_number_of_rows() {
    let (outputs, inputs, rank) = (75, 64, 3);
    let (matrix, numbers) = same((outputs, inputs), BlockFormat::Q8_0, 10);
    let (a, b) = (random(rank * inputs, 11), random(outputs * rank, 12));
    let mut merged = numbers;
    for (output, row) in merged.chunks_mut(inputs).enumerate() {
        for (input, weight) in row.iter_mut().enumerate() {
            let products = (0..rank).map(|r| b[output * rank + r] * a[r * inputs + input]);
            *weight += 0.5 * products.sum::<f32>();
        }
    }
    for isa in Isa::available() {
        let pool = Pool::with_isa(2, isa);
        let mut kept = PackedMatrix::of_blocks(isa, matrix.clone(), 0, outputs);
        kept.set_adapter(&pool, &a, &b, 0.5);
        let mut packed = PackedMatrix::new(isa, Precision::F32, outputs, inputs);
        packed.pack(&pool, &[&merged], None);
        let x = random(80 * inputs, 13);
        let product = |weight: &PackedMatrix, x: &[f32]| {
            let mut y = vec![0.0; x.len() / inputs * outputs];
            weight.multiply(&pool, x, &mut y, &mut RowScratch::default());
            y
        };
        let all = product(&kept, &x);
        let expected = product(&packed, &x);
        let largest = expected.iter().fold(0f32, |most, y| most.max(y.abs()));
        assert!(all.iter().zip(&expected).all(|(y, e)| (y - e).abs() < 1e-5 * largest));
        for (x, y) in x.chunks(inputs).zip(all.chunks(outputs)) {
            assert!(product(&kept, x) == y, "alone as in a batch, on {}", isa.name());
        }
    }
}

#[test]
fn both_directions_of_training_are_those_of_the_dequantised_weight() {
    let (rows, rank) = (50, 2);
    for format in BlockFormat::ALL {
        let (outputs, inputs) = (75, format.block_inputs());
        let (matrix, numbers) = same((outputs, inputs), format, 14);
        let (a, b) = (random(rank * inputs, 15), random(outputs * rank, 16));
        let (a, b) = (Matrix::new(&a, rank, inputs), Matrix::new(&b, outputs, rank));
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
            for (precision, adapted, forward) in [
                (Precision::F32, true, true),
                (Precision::F32, false, false),
                (Precision::F32, true, false),
                (Precision::Bf16, false, true),
                (Precision::Bf16, true, false),
            ] {
                let (width, inner) = if forward { (outputs, inputs) } else { (inputs, outputs) };
                let x = random(rows * inner, 17);
                let product = |weight: Weight| {
                    let factor = weight.factor((0, outputs), inputs);
                    let (left, right) = if forward { (a.t(), b.t()) } else { (b, a) };
                    let added = adapted.then_some(LowRank {
                        left,
                        right,
                        scale: 0.3,
                    });
                    let factor = if forward { factor.t() } else { factor };
                    let mut y = vec![0.0; rows * width];
                    let (compute, out) = (Compute::new(&pool, precision), (&mut y[..], width));
                    adapted_gemm(
                        compute,
                        out,
                        Into::Replace,
                        0.7,
                        Matrix::new(&x, rows, inner),
                        (factor, added),
                    );
                    y
                };
                let kept = product(Weight::Blocks(&matrix));
                let plain = product(Weight::Numbers(&numbers));
                let (name, isa) = (format.name(), isa.name());
                assert!(
                    kept == plain,
                    "{name}, {precision:?}, adapter {adapted}, forward {forward}, {isa}"
                );
            }
        }
    }
}
