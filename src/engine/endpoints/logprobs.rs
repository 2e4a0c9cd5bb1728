//! What an endpoint's log-probabilities mean: servers differ in whether they are taken before or after temperature and
//! truncation.

use crate::inference::SamplingParams;

/// Difference between log-probabilities that are not the same. Servers compute in bf16.
const DIFFERENT: f32 = 0.02;

/// What the log-probabilities of an endpoint include. The engine's own include the temperature and no truncation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobSemantics {
    /// Whether the logits are divided by the temperature before.
    pub temperature: bool,
    /// Whether they are of the tokens that top-p, top-k and min-p keep.
    pub truncation: bool,
}

impl LogprobSemantics {
    /// Concludes it from the log-probability of the most likely token after the same prompt: as it is, at temperature 2,
    /// and with top-k 1. Where these cannot tell, the answer is the one that allows least.
    pub fn from_trials(plain: f32, at_temperature_2: f32, at_top_k_1: f32) -> Self {
        let differ = |other: f32| (plain - other).abs() > DIFFERENT;
        Self {
            temperature: differ(at_temperature_2),
            truncation: differ(at_top_k_1) || plain > -DIFFERENT,
        }
    }

    /// Returns whether the log-probabilities of such a request are the ones that the trainer computes.
    pub fn fit(self, params: &SamplingParams) -> bool {
        let truncates = params.top_p < 1.0 || params.top_k.is_some() || params.min_p > 0.0;
        let tempered = params.temperature != 1.0 && params.temperature != 0.0;
        (self.temperature || !tempered) && !(self.truncation && truncates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_kinds_of_servers_are_told_apart_and_get_what_they_can_sample() {
        let semantics = |temperature, truncation| LogprobSemantics {
            temperature,
            truncation,
        };
        let raw = LogprobSemantics::from_trials(-2.0, -2.001, -2.0);
        let processed = LogprobSemantics::from_trials(-2.0, -3.0, 0.0);
        let ours = LogprobSemantics::from_trials(-2.0, -3.0, -2.0);
        assert_eq!(raw, semantics(false, false));
        assert_eq!(processed, semantics(true, true));
        assert_eq!(ours, semantics(true, false));
        let certain = LogprobSemantics::from_trials(0.0, 0.0, 0.0);
        assert_eq!(certain, semantics(false, true), "nothing can be concluded");

        let plain = SamplingParams::unmodified();
        let greedy = SamplingParams {
            temperature: 0.0,
            ..plain.clone()
        };
        let warm = SamplingParams {
            temperature: 0.7,
            ..plain.clone()
        };
        let nucleus = SamplingParams {
            top_p: 0.9,
            ..plain.clone()
        };
        let fits = |params| [raw, processed, ours, certain].map(|kind| kind.fit(params));
        assert_eq!(fits(&plain), [true; 4]);
        assert_eq!(fits(&greedy), [true; 4]);
        assert_eq!(fits(&warm), [false, true, true, false]);
        assert_eq!(fits(&nucleus), [true, false, true, false]);
    }
}
