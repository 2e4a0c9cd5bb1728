//! The soft penalty on long answers (DAPO, arXiv 2503.14476, eq. 13).

use crate::config::schema::Overlong;

/// Returns the penalty added to the reward of an answer of `length` tokens with a maximum of `limit`: 0 up to `limit −
/// buffer_len`, then linear down to −`penalty_factor` at the limit and beyond. A buffer of 0 disables it.
pub fn overlong_penalty(length: usize, limit: usize, overlong: &Overlong) -> f64 {
    let buffer = overlong.buffer_len.min(limit);
    if buffer == 0 {
        return 0.0;
    }
    let over = length.saturating_sub(limit - buffer);
    -(over as f64 / buffer as f64).min(1.0) * overlong.penalty_factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let penalty = |length, limit, buffer_len| {
            overlong_penalty(
                length,
                limit,
                &Overlong {
                    buffer_len,
                    penalty_factor: 2.0,
                },
            )
        };
        for (length, limit, buffer, expected) in [
            (0, 100, 20, 0.0),
            (80, 100, 20, 0.0),
            (85, 100, 20, -0.5),
            (100, 100, 20, -2.0),
            (150, 100, 20, -2.0),
            (150, 100, 0, 0.0),
            (50, 100, 500, -1.0),
        ] {
            assert_eq!(
                penalty(length, limit, buffer),
                expected,
                "{length} of {limit}, buffer {buffer}"
            );
        }
    }
}
