//! Weights (out × in, row-major) to panels.

use half::bf16;

use super::super::isa::kernel;
use super::super::threads::Pool;

/// Inner length at a time: a cache line of each row is read whole.
const PIECE: usize = 16;

/// Panel × k × column.
pub(super) fn f32_panels(pool: &Pool, words: &mut [f32], rows: &[&[f32]], width: usize) {
    let depth = words.len() / rows.len().next_multiple_of(width);
    each_piece(pool, words, depth * width, rows, width, |panel, column, k, piece| {
        for (i, &x) in piece.iter().enumerate() {
            panel[(k + i) * width + column] = x;
        }
    });
}

/// Panel × pair of k × column, rounded. What lies behind the last input stays as it is.
pub(super) fn bf16_panels(pool: &Pool, words: &mut [u32], rows: &[&[f32]], width: usize) {
    let pairs = words.len() / rows.len().next_multiple_of(width);
    each_piece(pool, words, pairs * width, rows, width, |panel, column, k, piece| {
        for (i, pair) in piece.chunks(2).enumerate() {
            panel[(k / 2 + i) * width + column] = rounded_pair(pair[0], pair.get(1).copied().unwrap_or(0.0));
        }
    });
}

/// Two numbers as bfloat16 in a word, the first in the lower half.
#[inline(always)]
pub(super) fn rounded_pair(first: f32, second: f32) -> u32 {
    u32::from(bf16::from_f32(first).to_bits()) | u32::from(bf16::from_f32(second).to_bits()) << 16
}

kernel! {
    /// Rounds a row to pairs; what is left of the line becomes 0.
    pub(super) fn round_row<V>(x: &[f32], pairs: &mut [u32]) {
        let (whole, rest) = x.as_chunks::<2>();
        let (pairs, behind) = pairs.split_at_mut(whole.len());
        for (pair, x) in pairs.iter_mut().zip(whole) {
            *pair = rounded_pair(x[0], x[1]);
        }
        behind.fill(0);
        if let ([pair, ..], [x]) = (behind, rest) {
            *pair = rounded_pair(*x, 0.0);
        }
    }
}

/// Calls `put` with each panel, a column of it, and a piece of that column's weights from k on.
fn each_piece<W: Send>(
    pool: &Pool,
    words: &mut [W],
    panel_words: usize,
    rows: &[&[f32]],
    width: usize,
    put: impl Fn(&mut [W], usize, usize, &[f32]) + Sync,
) {
    let inputs = rows.first().map_or(0, |row| row.len());
    let mut panels: Vec<&mut [W]> = words.chunks_exact_mut(panel_words).collect();
    pool.for_each(&mut panels, |p, panel| {
        let columns = &rows[p * width..rows.len().min((p + 1) * width)];
        for k in (0..inputs).step_by(PIECE) {
            for (column, row) in columns.iter().enumerate() {
                put(panel, column, k, &row[k..inputs.min(k + PIECE)]);
            }
        }
    });
}
