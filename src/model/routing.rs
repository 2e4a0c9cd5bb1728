//! Which experts compute a token, and with which weights: the softmax of the router's logits in f32, of which the largest
//! ones are chosen, as transformers does it. Of equal logits the expert with the smaller number is chosen.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Tensor};

use super::error::Result;
use super::experts::Experts;

/// The experts of each token of a batch. The tokens of an expert are adjacent, so that they are computed as one block.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Number of experts.
    experts: usize,
    /// Whether the weights of a token add up to 1.
    normalized: bool,
    /// Token of each pair of token and expert; pairs are ordered by expert, then token.
    tokens: Vec<u32>,
    /// Weight of each pair.
    weights: Vec<f32>,
    /// The pairs of each expert that has some.
    blocks: Vec<Block>,
}

/// The pairs of one expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of the expert.
    pub expert: usize,
    /// Its pairs, at least one.
    pub pairs: Range<usize>,
}

impl Routing {
    /// Routes tokens by the router's logits, tokens × experts.
    pub fn new(experts: &Experts, logits: &[f32]) -> Self {
        let mut chosen: Vec<Vec<(u32, f32)>> = vec![vec![]; experts.count];
        let mut order: Vec<usize> = vec![];
        for (token, logits) in (0..).zip(logits.chunks_exact(experts.count)) {
            order.clear();
            order.extend(0..experts.count);
            order.sort_unstable_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            let best = &order[..experts.per_token];
            let exp = |expert: &usize| (logits[*expert] - logits[best[0]]).exp();
            let total: f32 = match experts.normalized {
                true => best.iter().map(exp).sum(),
                false => (0..experts.count).map(|expert| exp(&expert)).sum(),
            };
            for expert in best {
                chosen[*expert].push((token, exp(expert) / total));
            }
        }
        let mut blocks = vec![];
        let mut start = 0;
        for (expert, own) in chosen.iter().enumerate().filter(|(_, own)| !own.is_empty()) {
            let pairs = start..start + own.len();
            start = pairs.end;
            blocks.push(Block { expert, pairs });
        }
        let (tokens, weights) = chosen.into_iter().flatten().unzip();
        Self {
            experts: experts.count,
            normalized: experts.normalized,
            tokens,
            weights,
            blocks,
        }
    }

    /// Routes tokens by the router's logits on any device, tokens × experts, which are copied to the process's memory.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn of_tensor(experts: &Experts, logits: &Tensor) -> Result<Self> {
        let logits: Vec<f32> = logits.detach().to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Ok(Self::new(experts, &logits))
    }

    /// Returns the pairs of each expert that has some, by its number.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the token of each pair.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the weight of each pair.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Returns whether the weights of a token add up to 1.
    pub fn is_normalized(&self) -> bool {
        self.normalized
    }

    /// Returns the place of each pair in tokens × experts.
    pub fn places(&self) -> Vec<u32> {
        let of_block = |block: &Block| {
            let expert = block.expert;
            let tokens = self.tokens[block.pairs.clone()].iter();
            tokens.map(move |token| token * self.experts as u32 + expert as u32)
        };
        self.blocks.iter().flat_map(of_block).collect()
    }

    /// Copies the rows of a block's tokens, from tokens × width to pairs × width.
    pub fn gather(&self, block: &Block, x: &[f32], rows: &mut [f32]) {
        let width = rows.len() / block.pairs.len();
        let tokens = &self.tokens[block.pairs.clone()];
        for (row, token) in rows.chunks_exact_mut(width).zip(tokens) {
            row.copy_from_slice(&x[*token as usize * width..][..width]);
        }
    }

    /// Multiplies each of a block's rows, pairs × width, by its weight and a factor.
    pub fn weigh(&self, block: &Block, factor: f32, rows: &mut [f32]) {
        let width = rows.len() / block.pairs.len();
        for (row, weight) in rows.chunks_exact_mut(width).zip(&self.weights[block.pairs.clone()]) {
            row.iter_mut().for_each(|x| *x *= factor * weight);
        }
    }

    /// Adds a block's rows, pairs × width, to those of its tokens, tokens × width.
    pub fn scatter_add(&self, block: &Block, rows: &[f32], sum: &mut [f32]) {
        let width = rows.len() / block.pairs.len();
        for (row, token) in rows.chunks_exact(width).zip(&self.tokens[block.pairs.clone()]) {
            let sum = &mut sum[*token as usize * width..][..width];
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }

    /// Overwrites the router's logits with their gradient. `by_weights` has, for each pair, the gradient of the weight
    /// times the weight.
    ///
    /// With the softmax p over the experts that share in it, that of logit j is t_j − p_j·Σ t, where t is `by_weights`
    /// of the chosen experts and 0 of the others.
    pub fn logit_gradients(&self, logits: &mut [f32], by_weights: &[f32]) {
        let mut totals = vec![0.0; logits.len() / self.experts];
        for (token, by_weight) in self.tokens.iter().zip(by_weights) {
            totals[*token as usize] += by_weight;
        }
        for (logits, total) in logits.chunks_exact_mut(self.experts).zip(&totals) {
            match self.normalized {
                true => logits.fill(0.0),
                false => {
                    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    logits.iter_mut().for_each(|logit| *logit = (*logit - most).exp());
                    let factor = -total / logits.iter().sum::<f32>();
                    logits.iter_mut().for_each(|exp| *exp *= factor);
                }
            }
        }
        for (pair, place) in self.places().into_iter().enumerate() {
            let share = match self.normalized {
                true => self.weights[pair] * totals[self.tokens[pair] as usize],
                false => 0.0, // already subtracted
            };
            logits[place as usize] += by_weights[pair] - share;
        }
    }
}

/// Numbers of tokens that each expert computed, of all layers of a model. Clones count together.
#[derive(Clone, Debug)]
pub struct ExpertLoads(Arc<[Vec<AtomicU64>]>);

impl ExpertLoads {
    /// Begins to count for layers with these numbers of experts.
    pub fn new(experts: impl Iterator<Item = usize>) -> Self {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self(experts.map(zeros).collect())
    }

    /// Adds a routing of a layer.
    pub fn count(&self, layer: usize, routing: &Routing) {
        for block in &routing.blocks {
            self.0[layer][block.expert].fetch_add(block.pairs.len() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the numbers by layer and expert; empty for a layer without experts.
    pub fn counts(&self) -> Vec<Vec<u64>> {
        let loaded = |layer: &Vec<AtomicU64>| layer.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        self.0.iter().map(loaded).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::experts::ExpertNames;

    fn experts(count: usize, per_token: usize, normalized: bool) -> Experts {
        let names = ExpertNames {
            block: "mlp",
            projections: ["gate_proj", "up_proj", "down_proj"],
        };
        Experts {
            count,
            per_token,
            intermediate_size: 4,
            normalized,
            names,
        }
    }

    fn block(expert: usize, pairs: Range<usize>) -> Block {
        Block { expert, pairs }
    }

    #[test]
    fn the_largest_logits_are_chosen_and_of_equal_ones_the_first() {
        let logits = [0.0, 1.0, 1.0, 1.0, 3.0, -1.0, 0.5, 0.0];
        let routing = Routing::new(&experts(4, 2, true), &logits);
        assert_eq!(routing.blocks(), [block(0, 0..1), block(1, 1..2), block(2, 2..4)]);
        assert_eq!(routing.tokens(), [1, 0, 0, 1]);
        assert_eq!(routing.places(), [4, 1, 2, 6]);
        let second = (0.5f32 - 3.0).exp() / (1.0 + (0.5f32 - 3.0).exp());
        for (weight, expected) in routing.weights().iter().zip([1.0 - second, 0.5, 0.5, second]) {
            assert!((weight - expected).abs() < 1e-6, "{weight}, not {expected}");
        }
    }

    #[test]
    fn without_normalisation_weights_are_shares_of_all_experts() {
        let routing = Routing::new(&experts(3, 1, false), &[0.0, 1.0, -1.0]);
        let expected = 1f32.exp() / (1.0 + 1f32.exp() + (-1f32).exp());
        assert!((routing.weights()[0] - expected).abs() < 1e-6);
    }

    #[test]
    fn logits_that_are_not_finite_make_no_panic() {
        let routing = Routing::new(&experts(3, 2, true), &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!(routing.tokens().len(), 2);
        assert!(routing.weights().iter().any(|weight| weight.is_nan()));
    }

    #[test]
    fn loads_are_counted_by_layer_and_expert() {
        let loads = ExpertLoads::new([0, 3].into_iter());
        let routing = Routing::new(&experts(3, 1, true), &[0.0, 1.0, 0.0, 2.0, 1.0, 0.0]);
        for counted in [loads.clone(), loads.clone()] {
            counted.count(1, &routing);
        }
        assert_eq!(loads.counts(), [vec![], vec![2, 2, 0]]);
    }

    proptest! {
        #[test]
        fn blocks_partition_the_pairs_and_rows_return_to_their_tokens(
            (count, per_token, logits) in (1_usize..6).prop_flat_map(|count| {
                let tokens = (1_usize..8).prop_flat_map(move |n| prop::collection::vec(-3_f32..3.0, n * count));
                (Just(count), 1..=count, tokens)
            })
        ) {
            let experts = experts(count, per_token, true);
            let routing = Routing::new(&experts, &logits);
            let tokens = logits.len() / count;
            prop_assert_eq!(routing.tokens().len(), tokens * per_token);
            let x: Vec<f32> = (0..2 * tokens).map(|i| i as f32 + 1.0).collect();
            let mut sum = vec![0.0; x.len()];
            for block in routing.blocks() {
                let mut rows = vec![0.0; 2 * block.pairs.len()];
                routing.gather(block, &x, &mut rows);
                routing.weigh(block, 1.0, &mut rows);
                routing.scatter_add(block, &rows, &mut sum);
            }
            for (sum, x) in sum.iter().zip(&x) {
                prop_assert!((sum - x).abs() < 1e-4, "weights add up to 1");
            }
        }

        #[test]
        fn gradients_of_logits_are_those_of_finite_differences(
            normalized in any::<bool>(),
            logits in prop::collection::vec(-2_f32..2.0, 8),
            by in prop::collection::vec(-1_f32..1.0, 4),
        ) {
            let experts = experts(4, 2, normalized);
            let routing = Routing::new(&experts, &logits);
            let sum = |logits: &[f32]| -> Option<f64> {
                let moved = Routing::new(&experts, logits);
                let same = moved.tokens() == routing.tokens() && moved.blocks() == routing.blocks();
                let terms = moved.weights().iter().zip(&by).map(|(weight, by)| f64::from(weight * by));
                same.then(|| terms.sum())
            };
            let by_weights: Vec<f32> = routing.weights().iter().zip(&by).map(|(weight, by)| weight * by).collect();
            let mut found = logits.clone();
            routing.logit_gradients(&mut found, &by_weights);
            for (place, found) in found.iter().enumerate() {
                let at = |step: f32| {
                    let mut moved = logits.clone();
                    moved[place] += step;
                    sum(&moved)
                };
                // Where the step changes the choice, the sum has no derivative.
                if let (Some(up), Some(down)) = (at(5e-3), at(-5e-3)) {
                    let expected = (up - down) / 1e-2;
                    prop_assert!((f64::from(*found) - expected).abs() < 1e-3, "{} not {}", found, expected);
                }
            }
        }
    }
}
