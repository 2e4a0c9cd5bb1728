//! Rotary position embedding: each head is rotated by its position, the halves against each other as in Hugging Face's
//! files (Su et al. 2021).

use super::isa::kernel;
use super::threads::Pool;

/// Tokens of one task.
const TOKENS: usize = 32;

/// Direction of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// By the token's angles.
    Forward,
    /// Against them, as a gradient is.
    Backward,
}

kernel! {
    /// Rotates the first 2 · `cos.len()` numbers of each head of one token (heads × `head_dim`) in place.
    pub fn rope<V>(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32], rotation: Rotation) {
        let sign = if rotation == Rotation::Forward { 1.0 } else { -1.0 };
        for head in x.chunks_exact_mut(head_dim) {
            let (left, right) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in left.iter_mut().zip(right).zip(cos).zip(sin) {
                let sin = sign * sin;
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

/// Rotates the heads of many tokens (tokens × `width`) in place; the tables are tokens × `half`, half of what is rotated
/// of a head.
///
/// # Panics
/// Panics if the tables have fewer rows than there are tokens.
pub fn rope_tokens(
    pool: &Pool,
    x: &mut [f32],
    (width, head_dim): (usize, usize),
    (cos, sin): (&[f32], &[f32]),
    half: usize,
    rotation: Rotation,
) {
    assert!(
        x.len() / width * half <= cos.len().min(sin.len()),
        "angles of all tokens"
    );
    let tables = cos.chunks(TOKENS * half).zip(sin.chunks(TOKENS * half));
    pool.each(x.chunks_mut(TOKENS * width).zip(tables), |(x, (cos, sin))| {
        let tables = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        for (x, (cos, sin)) in x.chunks_exact_mut(width).zip(tables) {
            rope(pool.isa(), x, head_dim, cos, sin, rotation);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::*;

    #[test]
    fn halves_are_rotated_against_each_other_and_back() {
        for isa in Isa::available() {
            let mut x = [1.0, 2.0, 3.0, 4.0];
            rope(isa, &mut x, 4, &[0.0, 1.0], &[1.0, 0.0], Rotation::Forward);
            assert_eq!(x, [-3.0, 2.0, 1.0, 4.0]);
            let tables: (&[f32], &[f32]) = (&[0.0, 1.0], &[1.0, 0.0]);
            rope_tokens(&Pool::with_isa(1, isa), &mut x, (4, 4), tables, 2, Rotation::Backward);
            assert_eq!(x, [1.0, 2.0, 3.0, 4.0]);
            // a part of each head
            rope(isa, &mut x, 4, &[0.0], &[1.0], Rotation::Forward);
            assert_eq!(x, [-2.0, 1.0, 3.0, 4.0]);
        }
    }
}
