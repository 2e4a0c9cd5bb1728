//! How evenly the experts of a mixture are used.

use serde::{Deserialize, Serialize};

/// Numbers of tokens that each expert has computed, by layer; empty for a layer without experts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpertLoad(Vec<Vec<u64>>);

impl ExpertLoad {
    /// Adds the numbers of a pass.
    pub fn add(&mut self, layers: &[Vec<u64>]) {
        self.0.resize_with(layers.len().max(self.0.len()), Vec::new);
        for (sum, counts) in self.0.iter_mut().zip(layers) {
            sum.resize(counts.len().max(sum.len()), 0);
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Adds the numbers of another rank, or of another step.
    pub fn merge(&mut self, other: &Self) {
        self.add(&other.0);
    }

    /// Returns the metrics by their names in `metrics.jsonl`: means over the layers with experts, without which there are
    /// none.
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        let used = self.0.iter().filter(|counts| counts.iter().any(|count| *count > 0));
        let layers: Vec<[f64; 3]> = used.map(|counts| layer(counts)).collect();
        let names = [
            "experts/busiest_share",
            "experts/load_variation",
            "experts/unused_share",
        ];
        let mean = |number: usize| layers.iter().map(|layer| layer[number]).sum::<f64>() / layers.len() as f64;
        match layers.is_empty() {
            true => vec![],
            false => names
                .into_iter()
                .enumerate()
                .map(|(number, name)| (name, mean(number)))
                .collect(),
        }
    }
}

/// Returns the share of the busiest expert, the coefficient of variation, and the share of experts without a token.
fn layer(counts: &[u64]) -> [f64; 3] {
    let experts = counts.len() as f64;
    let total = counts.iter().sum::<u64>() as f64;
    let mean = total / experts;
    let variance = counts.iter().map(|count| (*count as f64 - mean).powi(2)).sum::<f64>() / experts;
    let busiest = counts.iter().copied().max().unwrap_or(0) as f64;
    let unused = counts.iter().filter(|count| **count == 0).count() as f64;
    [busiest / total, variance.sqrt() / mean, unused / experts]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(layers: &[Vec<u64>]) -> Vec<f64> {
        let mut load = ExpertLoad::default();
        load.add(layers);
        load.metrics().into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn a_model_without_experts_has_no_metrics() {
        assert!(metrics(&[vec![], vec![]]).is_empty());
        assert!(metrics(&[vec![0, 0]]).is_empty());
    }

    #[test]
    fn metrics_are_means_over_the_layers_with_experts() {
        assert_eq!(metrics(&[vec![], vec![5, 5, 5, 5]]), [0.25, 0.0, 0.0]);
        assert_eq!(metrics(&[vec![8, 0]]), [1.0, 1.0, 0.5]);
        assert_eq!(metrics(&[vec![4, 4], vec![8, 0]]), [0.75, 0.5, 0.25]);
    }

    #[test]
    fn passes_and_ranks_add_up() {
        let (mut one, mut other) = (ExpertLoad::default(), ExpertLoad::default());
        one.add(&[vec![], vec![1, 2]]);
        other.add(&[vec![], vec![3, 0]]);
        other.add(&[vec![], vec![0, 1]]);
        one.merge(&ExpertLoad::default());
        one.merge(&other);
        assert_eq!(one, ExpertLoad(vec![vec![], vec![4, 3]]));
    }
}
