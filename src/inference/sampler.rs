//! Sampling of tokens from logits.
//!
//! The order is the grammar, bias, temperature, top-k, top-p over the tokens kept by top-k, min-p; the reported log-probability
//! includes only the temperature (see [`SampledToken`]). The token is the first one, in the order of ids, at which the
//! cumulative probability of the kept tokens passes a uniform number of their total; so every device samples the same
//! token.

use super::error::{InferenceError, Result};
use super::request::{SampledToken, SamplingParams};
use crate::model::kernels::{Isa, Pool, exp_and_sum};
use crate::model::token_set::{DISALLOWED_LOGIT, TokenSet};

/// Number of values summed at once in the search for a token.
const CHUNK: usize = 256;

/// How to sample one token.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// Sampling parameters.
    pub params: &'a SamplingParams,
    /// Uniform random number in [0, 1).
    pub uniform: f64,
    /// Token to use instead; it is reported like a sampled one.
    pub forced_token: Option<u32>,
    /// Biases of logits, each token at most once.
    pub added: &'a [(u32, f32)],
    /// Tokens that the grammar allows; `None` for all.
    pub allowed: Option<&'a TokenSet>,
}

impl Draw<'_> {
    /// Returns whether the grammar leaves no choice.
    pub fn is_determined(&self) -> bool {
        self.allowed.is_some_and(|allowed| allowed.len() == 1)
    }
}

/// Checks that the parameters are within their ranges.
///
/// # Errors
/// Returns the first invalid one, with its range.
pub fn check(params: &SamplingParams) -> Result<()> {
    let SamplingParams {
        temperature,
        top_p,
        top_k,
        min_p,
        bias,
        max_tokens,
        ..
    } = params;
    let checks = [
        (
            "temperature",
            temperature.to_string(),
            *temperature >= 0.0 && temperature.is_finite(),
            "at least 0 and finite",
        ),
        (
            "top_p",
            top_p.to_string(),
            *top_p > 0.0 && *top_p <= 1.0,
            "above 0 and at most 1",
        ),
        (
            "min_p",
            min_p.to_string(),
            (0.0..=1.0).contains(min_p),
            "between 0 and 1",
        ),
        (
            "top_k",
            top_k.unwrap_or(1).to_string(),
            top_k.is_none_or(|k| k > 0),
            "at least 1",
        ),
        ("max_tokens", max_tokens.to_string(), *max_tokens > 0, "at least 1"),
        ("bias", format!("{bias:?}"), bias.is_finite(), "finite"),
    ];
    for (name, given, fine, allowed) in checks {
        if !fine {
            return Err(InferenceError::Parameter { name, given, allowed });
        }
    }
    Ok(())
}

/// Samples from logits in host memory (rows × vocabulary), on the threads of `pool`.
pub fn draw_all(pool: &Pool, logits: &[f32], draws: &[Draw]) -> Vec<Option<SampledToken>> {
    let vocabulary = logits.len() / draws.len().max(1);
    let mut tokens = vec![None; draws.len()];
    pool.for_each(&mut tokens, |i, token| {
        *token = draw(pool.isa(), &logits[i * vocabulary..][..vocabulary], draws[i]);
    });
    tokens
}

/// Samples from one row of logits; `None` if they are not finite, due to a broken model.
pub fn draw(isa: Isa, logits: &[f32], how: Draw) -> Option<SampledToken> {
    let params = how.params;
    let greedy = params.temperature == 0.0;
    let scale = if greedy { 1.0 } else { 1.0 / params.temperature };
    let restricted = how.allowed.map(|allowed| {
        let mut logits = logits.to_vec();
        allowed.restrict(&mut logits, 0);
        logits
    });
    let logits = restricted.as_deref().unwrap_or(logits);
    let mut weights = vec![0.0; logits.len()]; // probabilities relative to the largest one
    let (max, sum) = exp_and_sum(isa, logits, scale, &mut weights);
    if !(max.is_finite() && sum.is_finite()) {
        return None;
    }
    let id = match how.forced_token {
        Some(id) => id as usize,
        None if how.added.is_empty() => choose(logits, max, &weights, how)?,
        None => {
            let biased = biased(logits, how.added);
            let mut weights = vec![0.0; logits.len()];
            let (max, _) = exp_and_sum(isa, &biased, scale, &mut weights);
            choose(&biased, max, &weights, how)?
        }
    };
    let log_sum = sum.ln();
    let logprob = |id: usize| scale * (logits[id] - max) - log_sum;
    let mut top = likeliest(logits, params.top_logprobs);
    top.retain(|id| logits[*id] > DISALLOWED_LOGIT);
    Some(SampledToken {
        id: id as u32,
        logprob: logprob(id),
        determined: how.is_determined(),
        top: top.into_iter().map(|id| (id as u32, logprob(id))).collect(),
    })
}

fn biased(logits: &[f32], added: &[(u32, f32)]) -> Vec<f32> {
    let mut biased = logits.to_vec();
    for (id, more) in added {
        if let Some(logit) = biased.get_mut(*id as usize) {
            *logit += more;
        }
    }
    biased
}

fn choose(logits: &[f32], max: f32, weights: &[f32], how: Draw) -> Option<usize> {
    match how.params.temperature {
        0.0 => logits.iter().position(|&logit| logit == max),
        _ => Some(pick(weights, how.params, how.uniform)),
    }
}

/// Returns the token at `uniform` (0 to 1) of the truncated distribution.
fn pick(weights: &[f32], params: &SamplingParams, uniform: f64) -> usize {
    let top_k = params.top_k.unwrap_or(usize::MAX);
    let all = top_k >= weights.len();
    if all && params.top_p >= 1.0 && params.min_p <= 0.0 {
        return pick_from_all(weights, uniform);
    }
    let mut kept = if all {
        nucleus_candidates(weights, params.top_p)
    } else {
        likeliest(weights, top_k)
    };
    if params.top_p < 1.0 {
        let nucleus = f64::from(params.top_p) * if all { sum(weights) } else { total(weights, &kept) };
        let mut mass = 0.0;
        let within = kept.iter().take_while(|&&id| {
            let before = mass;
            mass += f64::from(weights[id]);
            before < nucleus
        });
        let count = within.count();
        kept.truncate(count.max(1));
    }
    // The largest weight is 1 and is always kept; that of a token that is not allowed is 0.
    kept.retain(|&id| weights[id] >= params.min_p && weights[id] > 0.0);
    kept.sort_unstable();
    let target = uniform * total(weights, &kept);
    let mut mass = 0.0;
    let found = kept.iter().copied().find(|&id| {
        mass += f64::from(weights[id]);
        mass > target
    });
    found.unwrap_or(kept[kept.len() - 1])
}

/// Returns the ids of the `count` largest values, largest first, smaller ids first among equals.
fn likeliest(values: &[f32], count: usize) -> Vec<usize> {
    if count == 0 {
        return vec![];
    }
    let mut ids: Vec<usize> = (0..values.len()).collect();
    if count < ids.len() {
        ids.select_nth_unstable_by(count - 1, |&a, &b| order(values, a, b));
        ids.truncate(count);
    }
    ids.sort_unstable_by(|&a, &b| order(values, a, b));
    ids
}

/// Returns the largest weights, largest first, that make up a share of `top_p`: few if the distribution is narrow.
fn nucleus_candidates(weights: &[f32], top_p: f32) -> Vec<usize> {
    let enough = f64::from(top_p) * sum(weights);
    for least in [0.1, 0.01, 1e-3, 1e-4] {
        let mut ids: Vec<usize> = (0..weights.len()).filter(|&id| weights[id] >= least).collect();
        if total(weights, &ids) > enough {
            ids.sort_unstable_by(|&a, &b| order(weights, a, b));
            return ids;
        }
    }
    likeliest(weights, weights.len())
}

fn order(values: &[f32], a: usize, b: usize) -> std::cmp::Ordering {
    values[b].total_cmp(&values[a]).then(a.cmp(&b))
}

/// Returns the id where the cumulative sum of all weights passes `uniform` of their total.
fn pick_from_all(weights: &[f32], uniform: f64) -> usize {
    let mut left = uniform * sum(weights);
    for (i, chunk) in weights.chunks(CHUNK).enumerate() {
        let here = chunk_sum(chunk);
        if left >= here {
            left -= here;
            continue;
        }
        for (j, &weight) in chunk.iter().enumerate() {
            left -= f64::from(weight);
            if left < 0.0 {
                return i * CHUNK + j;
            }
        }
    }
    // Rounding at the very end: use the last token with a weight.
    weights.iter().rposition(|&w| w > 0.0).unwrap_or(0)
}

fn sum(weights: &[f32]) -> f64 {
    weights.chunks(CHUNK).map(chunk_sum).sum()
}

/// Sums in eight lanes, which the compiler vectorises.
fn chunk_sum(chunk: &[f32]) -> f64 {
    let mut lanes = [0f32; 8];
    let (eights, rest) = chunk.as_chunks::<8>();
    for eight in eights {
        lanes.iter_mut().zip(eight).for_each(|(lane, x)| *lane += x);
    }
    lanes.iter().chain(rest).map(|&x| f64::from(x)).sum()
}

fn total(weights: &[f32], ids: &[usize]) -> f64 {
    ids.iter().map(|&id| f64::from(weights[id])).sum()
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn params() -> SamplingParams {
        SamplingParams::unmodified()
    }

    fn logits(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.5) * 6.0).collect()
    }

    /// Softmax of logits / temperature in f64.
    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let exp: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.iter().map(|e| e / sum).collect()
    }

    fn draw(params: &SamplingParams, uniform: f64, logits: &[f32]) -> Option<SampledToken> {
        let how = Draw {
            params,
            uniform,
            forced_token: None,
            added: &[],
            allowed: None,
        };
        super::draw(Isa::detect(), logits, how)
    }

    fn draws(params: SamplingParams, logits: &[f32], count: usize) -> Vec<usize> {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut counts = vec![0; logits.len()];
        (0..count).for_each(|_| counts[draw(&params, rng.random(), logits).unwrap().id as usize] += 1);
        counts
    }

    /// Pearson's statistic stays below its 99.9 % quantile (Wilson and Hilferty's approximation).
    fn assert_distributed(counts: &[usize], probabilities: &[f64]) {
        let n: usize = counts.iter().sum();
        let likely: Vec<(f64, f64)> = counts
            .iter()
            .zip(probabilities)
            .filter(|&(&count, &p)| {
                assert!(p > 0.0 || count == 0, "an excluded token was drawn");
                p > 0.0
            })
            .map(|(&count, &p)| (count as f64, p * n as f64))
            .collect();
        let statistic: f64 = likely
            .iter()
            .map(|(count, expected)| (count - expected).powi(2) / expected)
            .sum();
        let freedom = (likely.len() - 1) as f64;
        let quantile = freedom * (1.0 - 2.0 / (9.0 * freedom) + 3.09 * (2.0 / (9.0 * freedom)).sqrt()).powi(3);
        assert!(
            statistic < quantile,
            "chi-square {statistic:.1}, 99.9 % quantile {quantile:.1}"
        );
    }

    /// The distribution after zeroing what `keep` excludes.
    fn kept(probabilities: &[f64], keep: impl Fn(usize) -> bool) -> Vec<f64> {
        let kept: Vec<f64> = probabilities
            .iter()
            .enumerate()
            .map(|(i, &p)| if keep(i) { p } else { 0.0 })
            .collect();
        let sum: f64 = kept.iter().sum();
        kept.iter().map(|p| p / sum).collect()
    }

    fn rank(probabilities: &[f64], id: usize) -> usize {
        let before = |&(i, &p): &(usize, &f64)| p > probabilities[id] || (p == probabilities[id] && i < id);
        probabilities.iter().enumerate().filter(before).count()
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = logits(300);
        for temperature in [0.7, 1.0, 1.5] {
            let counts = draws(
                SamplingParams {
                    temperature,
                    ..params()
                },
                &logits,
                60_000,
            );
            assert_distributed(&counts, &softmax(&logits, f64::from(temperature)));
        }
    }

    #[test]
    fn truncation_leaves_the_likeliest_and_their_shares() {
        let logits = logits(100);
        let p = softmax(&logits, 1.0);
        let before = |id: usize| {
            (0..100)
                .filter(|&i| rank(&p, i) < rank(&p, id))
                .map(|i| p[i])
                .sum::<f64>()
        };
        let largest = p.iter().copied().fold(0.0, f64::max);

        let counts = draws(
            SamplingParams {
                top_k: Some(7),
                ..params()
            },
            &logits,
            20_000,
        );
        assert_distributed(&counts, &kept(&p, |id| rank(&p, id) < 7));
        let counts = draws(SamplingParams { top_p: 0.6, ..params() }, &logits, 20_000);
        assert_distributed(&counts, &kept(&p, |id| before(id) < 0.6));
        let counts = draws(SamplingParams { min_p: 0.2, ..params() }, &logits, 20_000);
        assert_distributed(&counts, &kept(&p, |id| p[id] >= 0.2 * largest));
        let seven: f64 = (0..100).filter(|&i| rank(&p, i) < 7).map(|i| p[i]).sum();
        let counts = draws(
            SamplingParams {
                top_k: Some(7),
                top_p: 0.5,
                ..params()
            },
            &logits,
            20_000,
        );
        assert_distributed(&counts, &kept(&p, |id| rank(&p, id) < 7 && before(id) < 0.5 * seven));
        let counts = draws(
            SamplingParams {
                top_p: 1e-6,
                ..params()
            },
            &logits,
            10,
        );
        assert_eq!(counts.iter().filter(|&&c| c > 0).count(), 1);
    }

    #[test]
    fn biased_logits_are_drawn_from_and_told_as_without_bias() {
        let logits = logits(60);
        let added = [(3, 100.0), (10, -100.0), (41, 1.5), (99, 5.0)];
        let biased = |rows: &[(u32, f32)]| biased(&logits, rows);
        let plain = softmax(&logits, 1.0);
        let drawn = |params: &SamplingParams, added: &[(u32, f32)], uniform: f64| {
            let how = Draw {
                params,
                uniform,
                forced_token: None,
                added,
                allowed: None,
            };
            super::draw(Isa::detect(), &logits, how).unwrap()
        };
        let greedy = SamplingParams {
            temperature: 0.0,
            ..params()
        };
        for kind in [params(), greedy] {
            let token = drawn(&kind, &added, 0.5);
            assert_eq!(token.id, 3, "+100 is always drawn");
            assert!((f64::from(token.logprob) - plain[3].ln()).abs() < 1e-4);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut counts = vec![0; logits.len()];
        (0..30_000).for_each(|_| counts[drawn(&params(), &added[1..], rng.random()).id as usize] += 1);
        assert_eq!(counts[10], 0, "-100 is never drawn");
        let expected = kept(&softmax(&biased(&added[1..]), 1.0), |id| id != 10);
        assert_distributed(&counts, &expected);
    }

    #[test]
    fn only_allowed_tokens_are_drawn_and_share_the_probability() {
        let logits = logits(60);
        let allowed: TokenSet = [2, 17, 18, 41].into_iter().collect();
        let p = kept(&softmax(&logits, 0.8), |id| allowed.contains(id as u32));
        let given = SamplingParams {
            temperature: 0.8,
            top_logprobs: 7,
            ..params()
        };
        let drawn = |params: &SamplingParams, allowed: &TokenSet, uniform: f64| {
            let how = Draw {
                params,
                uniform,
                forced_token: None,
                added: &[(5, 100.0)],
                allowed: Some(allowed),
            };
            super::draw(Isa::detect(), &logits, how).unwrap()
        };
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut counts = vec![0; logits.len()];
        for _ in 0..20_000 {
            let token = drawn(&given, &allowed, rng.random());
            assert!((f64::from(token.logprob) - p[token.id as usize].ln()).abs() < 1e-5);
            assert!(!token.determined && token.top.iter().all(|(id, _)| allowed.contains(*id)));
            assert_eq!(token.top.len(), 4);
            counts[token.id as usize] += 1;
        }
        assert_distributed(&counts, &p);
        let greedy = SamplingParams {
            temperature: 0.0,
            top_k: Some(3),
            ..params()
        };
        let truncated = SamplingParams {
            top_k: Some(50),
            top_p: 0.999,
            ..params()
        };
        for params in [&given, &greedy, &truncated] {
            for uniform in [0.0, 0.5, 1.0 - f64::EPSILON] {
                let only = drawn(params, &[33].into_iter().collect(), uniform);
                assert_eq!((only.id, only.logprob, only.determined), (33, 0.0, true));
                assert!(allowed.contains(drawn(params, &allowed, uniform).id));
            }
        }
    }

    #[test]
    fn logprobs_are_of_temperature_alone() {
        let logits = logits(50);
        for (temperature, effective) in [(0.0, 1.0), (0.5, 0.5), (2.0, 2.0)] {
            let given = SamplingParams {
                temperature,
                top_k: Some(3),
                top_logprobs: 4,
                ..params()
            };
            let token = draw(&given, 0.3, &logits).unwrap();
            let p = softmax(&logits, effective);
            assert!((f64::from(token.logprob) - p[token.id as usize].ln()).abs() < 1e-5);
            assert_eq!(token.top.len(), 4);
            for (place, (id, logprob)) in token.top.iter().enumerate() {
                assert_eq!(rank(&p, *id as usize), place);
                assert!((f64::from(*logprob) - p[*id as usize].ln()).abs() < 1e-5);
            }
            if temperature == 0.0 {
                assert_eq!(token.id, token.top[0].0);
            }
        }
    }

    #[test]
    fn broken_logits_are_told_and_bad_parameters_named() {
        for broken in [f32::NAN, f32::INFINITY] {
            assert_eq!(draw(&params(), 0.5, &[0.0, broken]), None);
        }
        for (given, name) in [
            (
                SamplingParams {
                    temperature: f32::NAN,
                    ..params()
                },
                "temperature",
            ),
            (
                SamplingParams {
                    temperature: -1.0,
                    ..params()
                },
                "temperature",
            ),
            (SamplingParams { top_p: 0.0, ..params() }, "top_p"),
            (SamplingParams { min_p: 1.5, ..params() }, "min_p"),
            (
                SamplingParams {
                    top_k: Some(0),
                    ..params()
                },
                "top_k",
            ),
            (
                SamplingParams {
                    max_tokens: 0,
                    ..params()
                },
                "max_tokens",
            ),
        ] {
            assert!(
                check(&given)
                    .unwrap_err()
                    .to_string()
                    .starts_with(&format!("{name} must be "))
            );
        }
        check(&params()).unwrap();
    }
}
