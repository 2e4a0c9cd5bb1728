//! Panels of f32: for each inner step the lines' numbers side by side.

use super::Matrix;

/// Packs `lines` times `scale`, `width` numbers for each inner step; lines that are missing are zero.
pub(super) fn pack(width: usize, lines: Matrix, scale: f32, into: &mut [u32]) {
    let whole = lines.rows == width && lines.row_stride == 1;
    match width {
        6 if whole => copy::<6>(lines, scale, into),
        12 if whole => copy::<12>(lines, scale, into),
        16 if whole => copy::<16>(lines, scale, into),
        32 if whole => copy::<32>(lines, scale, into),
        _ => gather(width, lines, scale, into),
    }
}

/// Packs the lines of several panels, each of `words`, as [`pack`] does those of one. Lines that lie side by side are read
/// through once: panel by panel, each step's few numbers would cost a cache line of their own.
pub(super) fn pack_all(width: usize, lines: Matrix, words: usize, into: &mut [u32]) {
    let whole = match (width, lines.row_stride) {
        (4, 1) => copy_all::<4>(lines, words, into),
        (6, 1) => copy_all::<6>(lines, words, into),
        (12, 1) => copy_all::<12>(lines, words, into),
        _ => 0,
    };
    for (panel, into) in into.chunks_mut(words).enumerate().skip(whole) {
        let line = panel * width;
        let Some(rows) = lines.rows.checked_sub(line).filter(|rows| *rows > 0) else {
            return;
        };
        let block = lines.part((line, width.min(rows)), (0, lines.columns));
        pack(width, block, 1.0, into);
    }
}

/// Steps between asking for lines' numbers and packing them; each step's are in another page.
const AHEAD: usize = 8;

/// Asks for the cache lines of some numbers, if they are there.
fn prefetch(data: &[f32], start: usize, count: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in data.get(start..start + count).unwrap_or_default().chunks(16) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has this instruction, and it changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, start, count);
}

/// Packs the panels that are whole; how many they are.
fn copy_all<const WIDTH: usize>(lines: Matrix, words: usize, into: &mut [u32]) -> usize {
    let panels = lines.rows / WIDTH;
    for k in 0..lines.columns {
        prefetch(lines.data, (k + AHEAD) * lines.column_stride, lines.rows);
        let (sources, _) = lines.data[k * lines.column_stride..][..lines.rows].as_chunks::<WIDTH>();
        for (panel, source) in sources.iter().enumerate() {
            let target = &mut into[panel * words + k * WIDTH..][..WIDTH];
            target.copy_from_slice(&source.map(f32::to_bits));
        }
    }
    panels
}

/// Whole lines that lie side by side already.
fn copy<const WIDTH: usize>(lines: Matrix, scale: f32, into: &mut [u32]) {
    let (steps, _) = into.as_chunks_mut::<WIDTH>();
    for (k, step) in steps.iter_mut().take(lines.columns).enumerate() {
        let source = &lines.data[k * lines.column_stride..][..WIDTH];
        for (word, value) in step.iter_mut().zip(source) {
            *word = (value * scale).to_bits();
        }
    }
}

/// Lines of any layout.
fn gather(width: usize, lines: Matrix, scale: f32, into: &mut [u32]) {
    #[allow(unused_mut, reason = "only some targets have a faster way")]
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if lines.column_stride == 1 && is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has AVX2.
        done = unsafe { avx2::transpose(width, lines, scale, into) };
    }
    let steps = into.chunks_exact_mut(width).take(lines.columns).enumerate();
    for (k, step) in steps.skip(done) {
        for (line, word) in step[..lines.rows].iter_mut().enumerate() {
            *word = (lines.data[line * lines.row_stride + k * lines.column_stride] * scale).to_bits();
        }
        step[lines.rows..].fill(0);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::Matrix;

    /// Lines and steps that are transposed in registers.
    const SQUARE: usize = 8;

    /// Packs the first inner steps of lines whose own numbers lie side by side; returns how many it packed.
    #[target_feature(enable = "avx2")]
    pub(super) fn transpose(width: usize, lines: Matrix, scale: f32, into: &mut [u32]) -> usize {
        let groups = width.div_ceil(SQUARE);
        // A store of the last group may reach into the next step, and at the end of the panel must not.
        let reach = groups * SQUARE - width;
        let steps = lines.columns.min((into.len() - reach.min(into.len())) / width) / SQUARE * SQUARE;
        let scale = _mm256_set1_ps(scale);
        for k in (0..steps).step_by(SQUARE) {
            // From the last, so that what reaches into the next step is overwritten there.
            for group in (0..groups).rev() {
                let mut square = [_mm256_setzero_ps(); SQUARE];
                let present = lines.rows.saturating_sub(group * SQUARE).min(SQUARE);
                for (line, row) in square[..present].iter_mut().enumerate() {
                    let source = &lines.data[(group * SQUARE + line) * lines.row_stride + k..][..SQUARE];
                    // SAFETY: the slice is as long as the vector.
                    *row = _mm256_mul_ps(unsafe { _mm256_loadu_ps(source.as_ptr()) }, scale);
                }
                for (step, column) in turn(square).into_iter().enumerate() {
                    let target = &mut into[(k + step) * width + group * SQUARE..][..SQUARE];
                    // SAFETY: as above.
                    unsafe { _mm256_storeu_ps(target.as_mut_ptr().cast(), column) }
                }
            }
        }
        steps
    }

    #[target_feature(enable = "avx2")]
    fn turn(rows: [__m256; SQUARE]) -> [__m256; SQUARE] {
        let [a, b, c, d, e, f, g, h] = rows;
        // In each half of 128 bits: columns of two rows, then of four; then the halves are put together.
        let (ab, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let (ef, ef_high) = (_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f));
        let (gh, gh_high) = (_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h));
        let fours = |x, y| (_mm256_shuffle_ps::<0x44>(x, y), _mm256_shuffle_ps::<0xee>(x, y));
        let ((u0, u1), (u2, u3)) = (fours(ab, cd), fours(ab_high, cd_high));
        let ((l0, l1), (l2, l3)) = (fours(ef, gh), fours(ef_high, gh_high));
        let low = |x, y| _mm256_permute2f128_ps::<0x20>(x, y);
        let high = |x, y| _mm256_permute2f128_ps::<0x31>(x, y);
        [
            low(u0, l0),
            low(u1, l1),
            low(u2, l2),
            low(u3, l3),
            high(u0, l0),
            high(u1, l1),
            high(u2, l2),
            high(u3, l3),
        ]
    }
}
