//! Sampling with tensor operations where the logits are: a GPU's logits stay on it, and only one small tensor with each
//! row's token and log-probabilities leaves it.
//!
//! Samples as [`sampler`](super::sampler) does, in f32, with one difference: tokens exactly as likely as the last one
//! kept by top-k or top-p are kept too.
//!
//! Cost for 64 rows of a vocabulary of 152 k (39 MB per pass): sampling without truncation takes about 30 launches and
//! 10 passes, 0.4 GB or 0.15 ms at 3 TB/s. Top-k and top-p find their bound with 24 bisections of about 8 launches and
//! 3 passes each: 3 GB or 1 ms. Sorting the whole vocabulary would do both at once, but candle sorts in a block's
//! shared memory, which is limited to about 50 k tokens.

use candle_core::{D, DType, Tensor};

use super::error::Result;
use super::request::SampledToken;
use super::sampler::Draw;
use crate::model::ops::restricted::restricted;

/// Size of the pieces in which the vocabulary is searched: cumulative sums are products with a triangular matrix of
/// this side, and with one whose side is the number of pieces.
const PIECE: usize = 512;
/// Range in nats below the most likely token in which top-k and top-p distinguish tokens: e⁻⁶⁴ is a negligible
/// probability.
const DEEPEST: f64 = -64.0;
/// Bisections of that range, to 4e-6: about as exact as the logits.
const HALVINGS: usize = 24;
/// Largest uniform number whose product with an f32 total is below the total.
const LARGEST_UNIFORM: f32 = 1.0 - f32::EPSILON;

/// Samples a token from each row of `logits` (rows × vocabulary, f32); `None` for rows that are not finite, due to a
/// broken model. Synchronises with the device once.
///
/// # Errors
/// Fails if out of memory.
pub fn draw(logits: &Tensor, draws: &[Draw]) -> Result<Vec<Option<SampledToken>>> {
    let top = draws.iter().map(|d| d.params.top_logprobs).max().unwrap_or(0);
    let logits = &restricted(logits, draws.iter().map(|draw| draw.allowed))?;
    let rows = Rows::new(logits, draws)?;
    let drawn = match biased(logits, draws)? {
        Some(biased) => Rows::new(&biased, draws)?.choose(draws)?,
        None => rows.choose(draws)?,
    };
    let id = with_given(drawn, draws)?;
    let log_sum = rows.weights.sum_keepdim(1)?.log()?;
    let logprob = |id: &Tensor| -> Result<Tensor> { Ok((rows.scaled.gather(&ids(id)?, 1)? - &log_sum)?) };
    let mut columns = vec![id.clone(), logprob(&id)?];
    let mut left = rows.scaled.clone();
    for _ in 0..top.min(logits.dim(1)?) {
        let id = rows.first_largest(&left)?;
        columns.extend([id.clone(), logprob(&id)?]);
        let taken = rows.places()?.broadcast_eq(&id)?;
        left = taken.where_cond(&left.zeros_like()?.affine(0.0, f64::NEG_INFINITY)?, &left)?;
    }
    let told: Vec<Vec<f32>> = Tensor::cat(&columns, 1)?.to_vec2()?;
    Ok(draws.iter().zip(told).map(|(draw, told)| token(draw, &told)).collect())
}

/// Returns the logits with their biases; `None` if there are none.
fn biased(logits: &Tensor, draws: &[Draw]) -> Result<Option<Tensor>> {
    let vocabulary = logits.dim(1)?;
    let rows = draws.iter().enumerate();
    let added = rows.flat_map(|(row, draw)| {
        let known = draw.added.iter().filter(|(id, _)| (*id as usize) < vocabulary);
        known.map(move |(id, more)| ((row * vocabulary + *id as usize) as u32, *more))
    });
    let (places, added): (Vec<u32>, Vec<f32>) = added.unzip();
    if places.is_empty() {
        return Ok(None);
    }
    let count = places.len();
    let places = Tensor::from_vec(places, count, logits.device())?;
    let added = Tensor::from_vec(added, count, logits.device())?;
    let biased = logits.flatten_all()?.index_add(&places, &added, 0)?;
    Ok(Some(biased.reshape(logits.shape())?))
}

/// Replaces sampled tokens by forced ones, rows × 1.
fn with_given(drawn: Tensor, draws: &[Draw]) -> Result<Tensor> {
    if draws.iter().all(|draw| draw.forced_token.is_none()) {
        return Ok(drawn);
    }
    let given = draws.iter().map(|draw| draw.forced_token.map_or(-1.0, |id| id as f32));
    let given = Tensor::from_vec(given.collect::<Vec<f32>>(), (draws.len(), 1), drawn.device())?;
    Ok(given.ge(0f32)?.where_cond(&given, &drawn)?)
}

/// Parses a row from the device: pairs of a token and its log-probability, the sampled one first.
fn token(draw: &Draw, told: &[f32]) -> Option<SampledToken> {
    let mut pairs = told.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1]));
    let (id, logprob) = pairs.next().filter(|(_, logprob)| logprob.is_finite())?;
    Some(SampledToken {
        id,
        logprob,
        determined: draw.is_determined(),
        top: pairs
            .take(draw.params.top_logprobs)
            .filter(|(id, _)| draw.allowed.is_none_or(|allowed| allowed.contains(*id)))
            .collect(),
    })
}

/// The batch on the device. Ids are f32 there, which is exact up to 2²⁴.
struct Rows {
    /// Logits over temperature, minus their maximum: at most 0.
    scaled: Tensor,
    /// Their exponentials: probabilities relative to the largest one.
    weights: Tensor,
    /// rows × 5: see [`Rows::new`].
    settings: Tensor,
}

impl Rows {
    fn new(logits: &Tensor, draws: &[Draw]) -> Result<Self> {
        let device = logits.device();
        let settings = draws.iter().flat_map(|draw| {
            let params = draw.params;
            let greedy = params.temperature == 0.0;
            let all = f32::INFINITY; // larger than any count, so that nothing is truncated
            [
                if greedy { 1.0 } else { 1.0 / params.temperature },
                if greedy {
                    -1.0
                } else {
                    (draw.uniform as f32).min(LARGEST_UNIFORM)
                },
                params.top_k.map_or(all, |k| k as f32),
                if params.top_p < 1.0 { params.top_p } else { all },
                params.min_p.ln(),
            ]
        });
        let settings = Tensor::from_vec(settings.collect::<Vec<f32>>(), (draws.len(), 5), device)?;
        let below = logits.broadcast_sub(&logits.max_keepdim(1)?)?;
        let scaled = below.broadcast_mul(&settings.narrow(1, 0, 1)?)?;
        Ok(Self {
            weights: scaled.exp()?,
            scaled,
            settings,
        })
    }

    /// Returns 0, 1, … of the vocabulary, one row.
    fn places(&self) -> Result<Tensor> {
        let vocabulary = self.scaled.dim(1)? as f32;
        Ok(Tensor::arange(0f32, vocabulary, self.scaled.device())?.unsqueeze(0)?)
    }

    fn setting(&self, number: usize) -> Result<Tensor> {
        Ok(self.settings.narrow(1, number, 1)?.contiguous()?)
    }

    /// Returns each row's token, rows × 1. Skips operations that no row needs.
    fn choose(&self, draws: &[Draw]) -> Result<Tensor> {
        let greedy = |draw: &Draw| draw.params.temperature == 0.0;
        if draws.iter().all(greedy) {
            return self.first_largest(&self.scaled);
        }
        let drawn = pick(&self.kept(draws)?, &self.setting(1)?.relu()?)?;
        if !draws.iter().any(greedy) {
            return Ok(drawn);
        }
        let is_greedy = self.setting(1)?.lt(0f32)?;
        Ok(is_greedy.where_cond(&self.first_largest(&self.scaled)?, &drawn)?)
    }

    /// Returns the weights kept by top-k, top-p and min-p; the others are 0.
    fn kept(&self, draws: &[Draw]) -> Result<Tensor> {
        let asked = |by: fn(&Draw) -> bool| draws.iter().any(by);
        let mut bound: Option<Tensor> = None;
        let kept = |bound: &Tensor| -> Result<Tensor> {
            let above = self.scaled.broadcast_ge(bound)?.to_dtype(DType::F32)?;
            Ok((above * &self.weights)?)
        };
        if asked(|d| d.params.top_k.is_some()) {
            let count = |bound: &Tensor| -> Result<Tensor> {
                Ok(self.scaled.broadcast_ge(bound)?.to_dtype(DType::F32)?.sum_keepdim(1)?)
            };
            bound = Some(highest_bound(count, &self.setting(2)?)?);
        }
        if asked(|d| d.params.top_p < 1.0) {
            let left = bound.as_ref().map(kept).transpose()?;
            let mass = left.as_ref().unwrap_or(&self.weights).sum_keepdim(1)?;
            let above = |bound: &Tensor| -> Result<Tensor> { Ok(kept(bound)?.sum_keepdim(1)?) };
            let nucleus = highest_bound(above, &(mass * self.setting(3)?)?)?;
            bound = Some(match bound {
                Some(bound) => bound.maximum(&nucleus)?,
                None => nucleus,
            });
        }
        if asked(|d| d.params.min_p > 0.0) {
            let least = self.setting(4)?;
            bound = Some(match bound {
                Some(bound) => bound.maximum(&least)?,
                None => least,
            });
        }
        match bound {
            Some(bound) => kept(&bound),
            None => Ok(self.weights.clone()),
        }
    }

    /// Returns the first index of each row's maximum, rows × 1.
    fn first_largest(&self, values: &Tensor) -> Result<Tensor> {
        let largest = values.max_keepdim(1)?;
        let places = self.places()?.broadcast_as(values.shape())?;
        let nowhere = places.ones_like()?.affine(places.dim(1)? as f64, -1.0)?;
        let first = values.broadcast_eq(&largest)?.where_cond(&places, &nowhere)?;
        Ok(first.min_keepdim(1)?)
    }
}

/// Returns the highest bound (rows × 1) at which `measure`, which falls as the bound rises, still reaches `enough`; −∞
/// if it never does.
fn highest_bound(measure: impl Fn(&Tensor) -> Result<Tensor>, enough: &Tensor) -> Result<Tensor> {
    let deepest = enough.zeros_like()?.affine(0.0, DEEPEST)?;
    let (mut low, mut high) = (deepest.clone(), deepest.zeros_like()?);
    for _ in 0..HALVINGS {
        let middle = ((&low + &high)? * 0.5)?;
        let reaches = measure(&middle)?.ge(enough)?;
        low = reaches.where_cond(&middle, &low)?;
        high = reaches.where_cond(&high, &middle)?;
    }
    let none = low.zeros_like()?.affine(0.0, f64::NEG_INFINITY)?;
    Ok(low.le(&deepest)?.where_cond(&none, &low)?)
}

/// Returns the indices (rows × 1) at which the cumulative sums of `weights` (rows × vocabulary, at least 0) pass
/// `uniform` of their totals.
fn pick(weights: &Tensor, uniform: &Tensor) -> Result<Tensor> {
    let (rows, vocabulary) = weights.dims2()?;
    let pieces = vocabulary.div_ceil(PIECE);
    let padded = weights.pad_with_zeros(1, 0, pieces * PIECE - vocabulary)?;
    let padded = padded.reshape((rows, pieces, PIECE))?;
    let sums = padded.sum(2)?;
    let running = running_sums(&sums)?;
    let target = (running.narrow(1, pieces - 1, 1)? * uniform)?;
    let piece = first_past(&sums, &running, &target)?;
    let before = (running.gather(&ids(&piece)?, 1)? - sums.gather(&ids(&piece)?, 1)?)?;
    let which = ids(&piece)?
        .unsqueeze(2)?
        .broadcast_as((rows, 1, PIECE))?
        .contiguous()?;
    let within = padded.gather(&which, 1)?.squeeze(1)?;
    let place = first_past(&within, &running_sums(&within)?, &(target - before)?)?;
    Ok(((piece * PIECE as f64)? + place)?)
}

/// Returns the first index with a weight at which the cumulative sum exceeds `target`; rounding may leave none, then
/// the last index with a weight.
fn first_past(weights: &Tensor, running: &Tensor, target: &Tensor) -> Result<Tensor> {
    let count = weights.dim(1)?;
    let places = Tensor::arange(0f32, count as f32, weights.device())?.unsqueeze(0)?;
    let places = places.broadcast_as(weights.shape())?.contiguous()?;
    let (before, beyond) = (
        places.ones_like()?.neg()?,
        places.ones_like()?.affine(0.0, count as f64)?,
    );
    let last = weights.gt(0f32)?.where_cond(&places, &before)?;
    let past = running.broadcast_gt(target)?.where_cond(&last, &before)?;
    let first = past.ge(0f32)?.where_cond(&places, &beyond)?.min_keepdim(1)?;
    Ok(first.minimum(&last.max_keepdim(1)?.relu()?)?)
}

/// Returns the cumulative sums along the last dimension.
fn running_sums(values: &Tensor) -> Result<Tensor> {
    let side = values.dim(D::Minus1)?;
    Ok(values.matmul(&Tensor::triu2(side, DType::F32, values.device())?)?)
}

fn ids(places: &Tensor) -> Result<Tensor> {
    Ok(places.to_dtype(DType::U32)?)
}
