//! Rotary embedding, half-split, with a table row for each token.

use rayon::prelude::*;

use super::vectorize::vectorized;

/// Tokens of one task.
const TOKENS: usize = 32;

/// Which way heads are turned: a gradient is turned back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// By the token's angles.
    Forward,
    /// Against them.
    Back,
}

/// Turns tokens × `width` in place, `width` being any number of heads of 2·`half`; the tables are tokens × `half`.
///
/// # Panics
/// There are fewer angles than tokens.
pub fn rope(x: &mut [f32], width: usize, (cos, sin): (&[f32], &[f32]), half: usize, turn: Turn) {
    assert!(
        x.len() / width * half <= cos.len().min(sin.len()),
        "angles of all tokens"
    );
    let direction = if turn == Turn::Forward { 1.0 } else { -1.0 };
    let tables = cos.par_chunks(TOKENS * half).zip(sin.par_chunks(TOKENS * half));
    x.par_chunks_mut(TOKENS * width)
        .zip(tables)
        .for_each(|(x, (cos, sin))| turn_tokens(x, cos, sin, width, half, direction));
}

vectorized! {
    fn turn_tokens(x: &mut [f32], cos: &[f32], sin: &[f32], width: usize, half: usize, direction: f32) {
        let angles = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        for (x, (cos, sin)) in x.chunks_exact_mut(width).zip(angles) {
            for head in x.chunks_exact_mut(2 * half) {
                let (first, second) = head.split_at_mut(half);
                for i in 0..half {
                    let (x0, x1, s) = (first[i], second[i], direction * sin[i]);
                    first[i] = x0 * cos[i] - x1 * s;
                    second[i] = x1 * cos[i] + x0 * s;
                }
            }
        }
    }
}
