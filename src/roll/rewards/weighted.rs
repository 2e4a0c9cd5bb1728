//! The reward of type `weighted`: a weighted sum of named parts.

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::answer::Score;
use super::error::RewardError;

/// What a part is called and what its reward is multiplied by.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The part's name in metrics and messages.
    pub name: String,
    /// The factor.
    pub weight: f64,
}

/// The sum of the parts' scores, one a part. `success` names the part that says whether the goal was reached.
pub(super) fn sum<'a>(
    parts: impl IntoIterator<Item = &'a Weight>,
    success: Option<&str>,
    scores: Vec<Result<Score, RewardError>>,
) -> Result<Score, RewardError> {
    let mut total = Score::default();
    for (part, score) in parts.into_iter().zip(scores) {
        // A part without a reward counts for nothing less than the whole: 0 in its place would be made up.
        let score = score.map_err(|error| RewardError::Part {
            name: part.name.clone(),
            error: Box::new(error),
        })?;
        total.reward += part.weight * score.reward;
        if success == Some(part.name.as_str()) {
            total.is_success = score.is_success;
        }
        total.log_metrics.extend(metrics(&part.name, score));
    }
    Ok(total)
}

/// A part's reward as `reward/NAME`, and its own metrics below that.
fn metrics(name: &str, score: Score) -> IndexMap<String, Value> {
    let mut metrics = IndexMap::from([(format!("reward/{name}"), json!(score.reward))]);
    metrics.extend(score.log_metrics.into_iter().map(|(key, value)| {
        let key = key.strip_prefix("reward/").unwrap_or(&key);
        (format!("reward/{name}/{key}"), value)
    }));
    metrics
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(name: &str, weight: f64) -> Weight {
        Weight {
            name: name.into(),
            weight,
        }
    }

    fn score(reward: f64, is_success: Option<bool>) -> Result<Score, RewardError> {
        Ok(Score {
            reward,
            is_success,
            log_metrics: IndexMap::from([
                ("judge/calls".to_owned(), json!(1)),
                ("reward/inner".to_owned(), json!(2)),
            ]),
        })
    }

    #[test]
    fn each_part_is_reported_on_its_own() {
        let parts = [part("right", 2.0), part("brief", -0.5)];
        let scores = vec![score(1.0, Some(true)), score(0.5, Some(false))];
        let total = sum(&parts, Some("right"), scores).unwrap();
        assert_eq!((total.reward, total.is_success), (1.75, Some(true)));
        let metrics: Vec<(&str, &Value)> = total
            .log_metrics
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .collect();
        let (one, two) = (json!(1), json!(2));
        assert_eq!(
            metrics,
            [
                ("reward/right", &json!(1.0)),
                ("reward/right/judge/calls", &one),
                ("reward/right/inner", &two),
                ("reward/brief", &json!(0.5)),
                ("reward/brief/judge/calls", &one),
                ("reward/brief/inner", &two),
            ]
        );
        assert_eq!(
            sum(&parts, None, vec![score(1.0, Some(true)), score(1.0, None)])
                .unwrap()
                .is_success,
            None
        );
    }

    #[test]
    fn a_part_without_a_reward_is_the_error_of_the_whole() {
        let parts = [part("right", 1.0), part("kind", 0.0)];
        let error = sum(&parts, None, vec![score(1.0, None), Err(RewardError::Missing)]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("part `kind` of the reward: the agent returned no reward"),
            "{error}"
        );
        assert_eq!((error.reason(), error.is_permanent()), ("no_reward", false));
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_reported_parts(parts in prop::collection::vec((-10.0..10.0_f64, -1.0..1.0_f64), 1..8)) {
            let named: Vec<Weight> = parts.iter().enumerate().map(|(at, (weight, _))| part(&format!("p{at}"), *weight)).collect();
            let scores = parts.iter().map(|(_, reward)| score(*reward, None)).collect();
            let total = sum(&named, None, scores).unwrap();
            let reported = |part: &Weight| total.log_metrics[&format!("reward/{}", part.name)].as_f64().unwrap();
            let expected: f64 = named.iter().map(|part| part.weight * reported(part)).sum();
            prop_assert!((total.reward - expected).abs() < 1e-9);
        }
    }
}
