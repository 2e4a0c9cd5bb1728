//! Tiles of 8-bit integers: each row of the first operand and each column of the second are rounded to multiples of a
//! scale of their own, of which integers from −127 to 127 are stored. Sums are exact integers, scaled at the end.
//!
//! A word holds four inner steps. A row is its words and then its scale; a panel is its words, a line for every four
//! steps, then a line of offsets and a line of scales. VNNI multiplies unsigned by signed bytes: its rows are stored 128
//! larger, and the offsets take off what that adds. Elsewhere rows are signed and offsets 0.

use super::matrix::Matrix;
use super::tile_input::{Ahead, Start};
use crate::model::kernels::isa::{Int8Product, Isa, kernel};
use crate::model::kernels::vector::{load, vectors};

/// Inner steps of a word.
pub(super) const STEPS: usize = 4;
/// Lines behind those of a panel's steps.
pub(super) const LINES_BEHIND: usize = 2;
/// Largest integer.
const LARGEST: f32 = 127.0;
/// What VNNI's rows are larger by, and the bit that adds it to a signed byte.
const SHIFT: i32 = 128;
const SHIFT_BIT: u8 = 0x80;

/// Maximum number of rows and number of columns of a tile.
pub(super) fn shape(isa: Isa) -> (usize, usize) {
    match isa.int8_product() {
        Int8Product::Portable => (4, 16),
        #[cfg(target_arch = "x86_64")]
        Int8Product::Avx2 => (4, 16),
        #[cfg(target_arch = "x86_64")]
        Int8Product::Vnni => (12, 32),
    }
}

/// Packs rows × inner steps, each row `stride` words from the one before. `depth` is the inner length, filled up.
///
/// # Panics
/// Panics if `into` is too short.
pub(super) fn rows(isa: Isa, rows: Matrix, depth: usize, into: &mut [u32], stride: usize) {
    for (row, words) in into.chunks_mut(stride).take(rows.rows).enumerate() {
        let numbers = &rows.data[row * rows.row_stride..][..rows.columns];
        let (steps, scale) = words[..depth / STEPS + 1].split_at_mut(depth / STEPS);
        scale[0] = quantize(isa, numbers, bytes_of(steps), shift_bit(isa)).to_bits();
    }
}

/// Packs a panel, given as columns × inner steps, multiplied by `factor`. Columns and steps that are missing become 0.
///
/// # Panics
/// Panics if `into` is shorter than the panel.
pub(super) fn panel(isa: Isa, columns: Matrix, factor: f32, into: &mut [u32]) {
    let width = shape(isa).1;
    let words = into.len() / width - LINES_BEHIND;
    let (lines, behind) = into.split_at_mut(words * width);
    let (offsets, scales) = behind.split_at_mut(width);
    let mut column_words = vec![0u32; words];
    for column in 0..width {
        column_words.fill(0);
        let (mut offset, mut scale) = (0, 0.0);
        if column < columns.rows {
            let numbers = &columns.data[column * columns.row_stride..][..columns.columns];
            let bytes = bytes_of(&mut column_words);
            scale = factor * quantize(isa, numbers, bytes, 0);
            if shift_bit(isa) != 0 {
                offset = -SHIFT * bytes.iter().map(|byte| i32::from(*byte as i8)).sum::<i32>();
            }
        }
        for (line, word) in lines.chunks_exact_mut(width).zip(&column_words) {
            line[column] = *word;
        }
        offsets[column] = offset as u32;
        scales[column] = f32::to_bits(scale);
    }
}

fn shift_bit(isa: Isa) -> u8 {
    match isa.int8_product() {
        #[cfg(target_arch = "x86_64")]
        Int8Product::Vnni => SHIFT_BIT,
        _ => 0,
    }
}

/// The words' bytes, in the order of memory.
fn bytes_of(words: &mut [u32]) -> &mut [u8] {
    // SAFETY: the same memory, all of whose bytes are values; a byte needs no alignment.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

kernel! {
    /// Rounds numbers to multiples of the returned scale, with the bits of `flip` changed in each byte; bytes behind the
    /// numbers are 0 before that. The scale is NaN where a number is not finite, so that products show it.
    fn quantize<V>(numbers: &[f32], bytes: &mut [u8], flip: u8) -> f32 {
        let (zero, mut largest, mut finite) = (V::splat(0.0), V::splat(0.0), V::splat(0.0));
        for (i, lanes) in vectors::<V>(numbers.len()) {
            let x: V = load(numbers.as_ptr().add(i), lanes, 0.0);
            largest = largest.max(x.max(zero.sub(x)));
            finite = x.mul_add(zero, finite); // 0, or NaN
        }
        let largest = largest.reduce_max();
        let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
        const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer, which stays in the low bits
        let (filled, rest) = bytes.split_at_mut(numbers.len());
        for (byte, x) in filled.iter_mut().zip(numbers) {
            *byte = (x * inverse + ROUND).to_bits() as u8 ^ flip;
        }
        rest.fill(flip);
        largest / LARGEST + finite.reduce_add()
    }
}

/// `y = start + Σₖ x[·][k] · w[k][·]`, with the scales of both, for up to the tile's rows. Each pointer comes with its
/// stride in words.
///
/// # Safety
/// As [`Tile::run`](super::tile::Tile::run); operands are whole rows and a whole panel of `length` steps as packed here.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn tile(
    isa: Isa,
    rows: usize,
    x: (*const u32, usize),
    w: *const u32,
    length: usize,
    y: (*mut f32, usize),
    start: Start,
    ahead: Ahead,
) {
    debug_assert_eq!(length % STEPS, 0, "whole words");
    let words = length / STEPS;
    // SAFETY: the caller's promise; the machine has what its instruction set stands for.
    unsafe {
        match isa.int8_product() {
            Int8Product::Portable => portable(rows, x, w, words, y, start),
            #[cfg(target_arch = "x86_64")]
            Int8Product::Avx2 => x86::avx2(rows, x, w, words, y, start, ahead),
            #[cfg(target_arch = "x86_64")]
            Int8Product::Vnni => x86::vnni(rows, x, w, words, y, start, ahead),
        }
    }
    let _ = ahead;
}

unsafe fn portable(
    rows: usize,
    (x, x_stride): (*const u32, usize),
    w: *const u32,
    words: usize,
    (y, y_stride): (*mut f32, usize),
    start: Start,
) {
    const WIDTH: usize = 16;
    // SAFETY: the caller's promise.
    unsafe {
        let line = |number: usize| w.add(number * WIDTH).cast::<[u32; WIDTH]>().read();
        let scales = line(words + 1).map(f32::from_bits);
        for row in 0..rows {
            let x = std::slice::from_raw_parts(x.add(row * x_stride), words + 1);
            let mut sums = [0i32; WIDTH];
            for (number, word) in x[..words].iter().enumerate() {
                let x = word.to_ne_bytes().map(|byte| i32::from(byte as i8));
                for (sum, word) in sums.iter_mut().zip(line(number)) {
                    let w = word.to_ne_bytes().map(|byte| i32::from(byte as i8));
                    *sum += x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3];
                }
            }
            let (scale, y) = (
                f32::from_bits(x[words]),
                &mut *y.add(row * y_stride).cast::<[f32; WIDTH]>(),
            );
            for ((y, sum), column_scale) in y.iter_mut().zip(sums).zip(scales) {
                let value = sum as f32 * (scale * column_scale);
                *y = if start == Start::Output { *y + value } else { value };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::tile_input::{Ahead, Start};
    use super::STEPS;

    macro_rules! heights {
        ($name:ident, $height:ident, ($($rows:literal)*), $arguments:tt) => {
            match $height {
                // SAFETY: the caller's promise.
                $($rows => unsafe { $name::<$rows> $arguments },)*
                _ => debug_assert!($height == 0, "a tile of {} rows", $height),
            }
        };
    }

    /// # Safety
    /// As [`super::tile`], which says what `words` are.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    pub(super) unsafe fn vnni(
        height: usize,
        x: (*const u32, usize),
        w: *const u32,
        words: usize,
        y: (*mut f32, usize),
        start: Start,
        ahead: Ahead,
    ) {
        heights!(vnni_rows, height, (1 2 3 4 5 6 7 8 9 10 11 12), (x, w, words, y, start, ahead))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn vnni_rows<const ROWS: usize>(
        (x, x_stride): (*const u32, usize),
        w: *const u32,
        words: usize,
        (y, y_stride): (*mut f32, usize),
        start: Start,
        ahead: Ahead,
    ) {
        const WIDTH: usize = 32;
        // SAFETY: rows below ROWS and lines of the panel are valid by the caller's promise.
        unsafe {
            let line = |number: usize| {
                let line = w.add(number * WIDTH);
                [_mm512_loadu_si512(line.cast()), _mm512_loadu_si512(line.add(16).cast())]
            };
            let mut sums = [line(words); ROWS];
            for number in 0..words {
                ahead.fetch(STEPS * number, STEPS, 4 * WIDTH);
                let [left, right] = line(number);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let factors = _mm512_set1_epi32(*x.add(row * x_stride + number) as i32);
                    *sum = [
                        _mm512_dpbusd_epi32(sum[0], factors, left),
                        _mm512_dpbusd_epi32(sum[1], factors, right),
                    ];
                }
            }
            let scales = line(words + 1);
            for (row, sum) in sums.iter().enumerate() {
                let scale = _mm512_castsi512_ps(_mm512_set1_epi32(*x.add(row * x_stride + words) as i32));
                for (half, (sum, scales)) in sum.iter().zip(scales).enumerate() {
                    let y = y.add(row * y_stride + 16 * half);
                    let scale = _mm512_mul_ps(scale, _mm512_castsi512_ps(scales));
                    let value = _mm512_mul_ps(_mm512_cvtepi32_ps(*sum), scale);
                    match start {
                        Start::Zero => _mm512_storeu_ps(y, value),
                        Start::Output => _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), value)),
                    }
                }
            }
        }
    }

    /// Without a product of signed bytes: |x| · (w with the sign of x). Two such products of at most 127 · 127 fit the 16
    /// bits in which they are added.
    ///
    /// # Safety
    /// As [`super::tile`], which says what `words` are.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(
        height: usize,
        x: (*const u32, usize),
        w: *const u32,
        words: usize,
        y: (*mut f32, usize),
        start: Start,
        ahead: Ahead,
    ) {
        heights!(avx2_rows, height, (1 2 3 4), (x, w, words, y, start, ahead))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2_rows<const ROWS: usize>(
        (x, x_stride): (*const u32, usize),
        w: *const u32,
        words: usize,
        (y, y_stride): (*mut f32, usize),
        start: Start,
        ahead: Ahead,
    ) {
        const WIDTH: usize = 16;
        // SAFETY: rows below ROWS and lines of the panel are valid by the caller's promise.
        unsafe {
            let line = |number: usize| {
                let line = w.add(number * WIDTH);
                [_mm256_loadu_si256(line.cast()), _mm256_loadu_si256(line.add(8).cast())]
            };
            let ones = _mm256_set1_epi16(1);
            let mut sums = [line(words); ROWS];
            for number in 0..words {
                ahead.fetch(STEPS * number, STEPS, 4 * WIDTH);
                let halves = line(number);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let x = _mm256_set1_epi32(*x.add(row * x_stride + number) as i32);
                    let size = _mm256_abs_epi8(x);
                    for (sum, w) in sum.iter_mut().zip(halves) {
                        let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w, x));
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            let scales = line(words + 1);
            for (row, sum) in sums.iter().enumerate() {
                let scale = _mm256_castsi256_ps(_mm256_set1_epi32(*x.add(row * x_stride + words) as i32));
                for (half, (sum, scales)) in sum.iter().zip(scales).enumerate() {
                    let y = y.add(row * y_stride + 8 * half);
                    let scale = _mm256_mul_ps(scale, _mm256_castsi256_ps(scales));
                    let value = _mm256_mul_ps(_mm256_cvtepi32_ps(*sum), scale);
                    match start {
                        Start::Zero => _mm256_storeu_ps(y, value),
                        Start::Output => _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), value)),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::kernels::testing::random;

    #[test]
    fn numbers_are_rounded_to_the_nearest_multiple_of_their_scale() {
        for isa in Isa::available() {
            let mut bytes = [9u8; 8];
            let scale = quantize(isa, &[0.0, 254.0, -127.0, 1.9, -3.1, 0.9], &mut bytes, 0);
            assert_eq!(scale, 2.0);
            assert_eq!(
                bytes.map(|byte| byte as i8),
                [0, 127, -64, 1, -2, 0, 0, 0],
                "{}",
                isa.name()
            );
            quantize(isa, &[-2.0, 1.0], &mut bytes[..3], SHIFT_BIT);
            assert_eq!(bytes[..3], [1, 192, 128], "128 larger");
            assert_eq!(quantize(isa, &[0.0; 5], &mut bytes, 0), 0.0);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let numbers: Vec<f32> = (0..20).map(|i| if i == 17 { bad } else { 1.0 }).collect();
                assert!(
                    quantize(isa, &numbers, &mut [0; 20], 0).is_nan(),
                    "{bad} on {}",
                    isa.name()
                );
            }
        }
    }

    #[test]
    fn products_are_those_of_the_rounded_numbers() {
        let (height, depth, inner) = (3, 96, 90);
        let a = random(height * inner, 1);
        for isa in Isa::available() {
            let (most, width) = shape(isa);
            assert!(height <= most);
            let b = random((width - 1) * inner, 2);
            let rounded = |numbers: &[f32]| -> Vec<f64> {
                let mut bytes = vec![0; inner];
                let scale = quantize(isa, numbers, &mut bytes, 0);
                bytes
                    .iter()
                    .map(|byte| f64::from(*byte as i8) * f64::from(scale))
                    .collect()
            };
            let stride = depth / STEPS + 5;
            let mut x = vec![0; height * stride];
            rows(isa, Matrix::new(&a, height, inner), depth, &mut x, stride);
            let mut w = vec![0; (depth / STEPS + LINES_BEHIND) * width];
            panel(isa, Matrix::new(&b, width - 1, inner), 1.0, &mut w);
            for start in [Start::Zero, Start::Output] {
                let mut y = vec![0.5; height * width];
                let ahead = Ahead::none(w.as_ptr());
                // SAFETY: operands and result are as long as their strides and lengths say.
                unsafe {
                    let y = (y.as_mut_ptr(), width);
                    tile(isa, height, (x.as_ptr(), stride), w.as_ptr(), depth, y, start, ahead);
                }
                for (row, y) in y.chunks(width).enumerate() {
                    let x = rounded(&a[row * inner..][..inner]);
                    for (column, y) in y.iter().enumerate() {
                        let w = match column < width - 1 {
                            true => rounded(&b[column * inner..][..inner]),
                            false => vec![0.0; inner],
                        };
                        let sum: f64 = x.iter().zip(&w).map(|(x, w)| x * w).sum();
                        let expected = if start == Start::Output { 0.5 + sum } else { sum };
                        assert!(
                            (f64::from(*y) - expected).abs() < 1e-5,
                            "{}: {y}, not {expected}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}
