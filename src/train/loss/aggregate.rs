//! Aggregation of token losses: the weight of each token.

use crate::config::schema::LossAggMode;

/// The weight of a masked-in token in the loss of a mini-batch, by sequence (an episode, or a row where rows weigh by
/// themselves). n is the sequence's masked-in tokens, N theirs all together, S the number of sequences that have any:
///
/// - `seq-mean-token-mean`: 1 / (S·n)
/// - `token-mean` (DAPO, arXiv 2503.14476): 1 / N
/// - `seq-mean-token-sum-norm` (Dr.GRPO, 2503.20783): 1 / (S·`norm`), `norm` being `max_response_length`
///
/// All refer to the whole mini-batch, so that the result does not depend on the packing of rows. A sequence without
/// tokens has weight 0.
pub fn token_weights(tokens: &[usize], mode: LossAggMode, norm: usize) -> Vec<f64> {
    let sequences = tokens.iter().filter(|n| **n > 0).count() as f64;
    let total: usize = tokens.iter().sum();
    let weight = |n: &usize| match mode {
        _ if *n == 0 => 0.0,
        LossAggMode::SeqMeanTokenMean => 1.0 / (sequences * *n as f64),
        LossAggMode::TokenMean => 1.0 / total as f64,
        LossAggMode::SeqMeanTokenSumNorm => 1.0 / (sequences * norm as f64),
    };
    tokens.iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use LossAggMode::{SeqMeanTokenMean, SeqMeanTokenSumNorm, TokenMean};

    #[test]
    fn by_hand() {
        for (mode, tokens, expected) in [
            (SeqMeanTokenMean, vec![2, 8], vec![0.25, 0.0625]),
            (TokenMean, vec![2, 8], vec![0.1, 0.1]),
            (SeqMeanTokenSumNorm, vec![2, 8], vec![0.005, 0.005]),
            (SeqMeanTokenMean, vec![1], vec![1.0]),
            (SeqMeanTokenMean, vec![0, 4], vec![0.0, 0.25]),
            (TokenMean, vec![0, 4], vec![0.0, 0.25]),
            (SeqMeanTokenSumNorm, vec![0, 4], vec![0.0, 0.01]),
            (TokenMean, vec![0, 0], vec![0.0, 0.0]),
            (SeqMeanTokenMean, vec![], vec![]),
        ] {
            assert_eq!(token_weights(&tokens, mode, 100), expected, "{mode:?} {tokens:?}");
        }
    }
}
