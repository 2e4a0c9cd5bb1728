//! Merges the calls of an episode into training rows.
//!
//! A call is merged into a later one whose prompt starts with its prompt and its sampled tokens. So a linear
//! conversation is one row, and so is each branch. The token mask selects every sampled token exactly once.

use std::cmp::Reverse;

use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;

use super::call::{Call, Renderer, TurnEnd};
use super::counters::Counters;
use super::row::{Constrained, Row};
use crate::config::schema::CompareLevel;

/// How calls are merged into rows.
#[derive(Clone, Debug, PartialEq)]
pub struct MergePolicy {
    /// What is compared to find the call that another one continues.
    pub compare_level: CompareLevel,
    /// Whether calls with different tools may be in one row.
    pub ignore_tools: bool,
    /// Maximum number of tokens of a row.
    pub max_row_len: usize,
    /// Maximum number of rows of an episode.
    pub max_rows: usize,
    /// Seed of the choice of rows if there are more.
    pub seed: u64,
    /// Version of the weights to train; tokens sampled by other versions are context only.
    pub weight_version: u64,
}

/// Returns the training rows of an episode's calls, in the order of their last calls, and counters of truncated and
/// dropped rows.
///
/// Rows without a trainable token are omitted.
pub fn merge(mut calls: Vec<Call>, policy: &MergePolicy, renderer: &dyn Renderer) -> (Vec<Row>, Counters) {
    if policy.compare_level == CompareLevel::Text {
        adopt_sampled_tokens(&mut calls, policy, renderer);
    }
    let mut counters = Counters {
        turn_length_cut: calls.iter().filter(|call| call.end == TurnEnd::Length).count() as u64,
        ..Counters::default()
    };
    let mut rows: Vec<Row> = paths(&calls, policy)
        .iter()
        .map(|path| row(&calls, path, policy))
        .map(|row| cut(row, policy.max_row_len, &mut counters))
        .filter(|row| row.response_tokens() > 0)
        .collect();
    if rows.len() > policy.max_rows {
        counters.rows_left_out = (rows.len() - policy.max_rows) as u64;
        rows = sample_rows(rows, policy);
    }
    (rows, counters)
}

/// A row as the calls whose sampled tokens it trains, the last one first.
type Path = Vec<usize>;

fn paths(calls: &[Call], policy: &MergePolicy) -> Vec<Path> {
    let absorbs = |later: usize, earlier: usize| {
        calls[earlier].is_prefix_of(&calls[later].prompt)
            && (policy.ignore_tools || calls[earlier].conversation.tools == calls[later].conversation.tools)
    };
    let all = || 0..calls.len();
    let is_leaf = |call: &usize| !all().any(|later| absorbs(later, *call));
    // Parallel calls that sampled the same tokens, or a part of each other's, cannot share a place in a row: what no
    // leaf took becomes a row of its own, the longest first.
    let mut ends: Vec<usize> = all().filter(|call| !is_leaf(call)).collect();
    ends.sort_by_key(|call| Reverse(calls[*call].len()));
    let ends = all().filter(is_leaf).chain(ends).collect::<Vec<_>>();

    let mut taken = vec![false; calls.len()];
    let mut paths: Vec<Path> = Vec::new();
    for end in ends {
        if taken[end] {
            continue;
        }
        let mut path = vec![end];
        let mut earlier: Vec<usize> = all().filter(|call| !taken[*call] && absorbs(end, *call)).collect();
        earlier.sort_by_key(|call| Reverse(calls[*call].len()));
        for call in earlier {
            let free = calls[path[path.len() - 1]].prompt.len();
            if calls[call].len() <= free {
                path.push(call);
            }
        }
        path.iter().for_each(|call| taken[*call] = true);
        paths.push(path);
    }
    paths.sort_by_key(|path| path[0]);
    paths
}

fn row(calls: &[Call], path: &[usize], policy: &MergePolicy) -> Row {
    let end = &calls[path[0]];
    let token_ids = end.sequence();
    let mut row = Row {
        loss_mask: vec![false; token_ids.len()],
        logprobs: vec![0.0; token_ids.len()],
        token_ids,
        truncated: end.end == TurnEnd::Length,
        constrained: vec![],
    };
    let trained = path
        .iter()
        .map(|call| &calls[*call])
        .filter(|call| call.weight_version == policy.weight_version);
    for call in trained {
        row.loss_mask[call.prompt.len()..call.len()].fill(true);
        row.logprobs[call.prompt.len()..call.len()].copy_from_slice(&call.logprobs);
        // A token without an alternative is context.
        for index in &call.determined {
            row.loss_mask[call.prompt.len() + index] = false;
            row.logprobs[call.prompt.len() + index] = 0.0;
        }
        row.constrained.extend(call.grammar.as_ref().map(|grammar| Constrained {
            start: call.prompt.len(),
            len: call.sampled.len(),
            grammar: grammar.clone(),
        }));
    }
    row.constrained.sort_by_key(|constrained| constrained.start);
    row
}

fn cut(mut row: Row, max_len: usize, counters: &mut Counters) -> Row {
    if row.token_ids.len() > max_len {
        counters.row_cut += 1;
        row.token_ids.truncate(max_len);
        row.loss_mask.truncate(max_len);
        row.logprobs.truncate(max_len);
        row.constrained.retain(|constrained| constrained.start < max_len);
        if let Some(last) = row.constrained.last_mut() {
            last.len = last.len.min(max_len - last.start);
        }
        row.truncated = true;
    }
    row
}

fn sample_rows(rows: Vec<Row>, policy: &MergePolicy) -> Vec<Row> {
    let mut rng = ChaCha8Rng::seed_from_u64(policy.seed);
    let mut kept = vec![false; rows.len()];
    index::sample(&mut rng, rows.len(), policy.max_rows)
        .iter()
        .for_each(|row| kept[row] = true);
    rows.into_iter()
        .zip(kept)
        .filter_map(|(row, kept)| kept.then_some(row))
        .collect()
}

/// Replaces the beginning of prompts by sampled tokens, where a prompt continues an earlier call in its text but not in
/// its tokens.
fn adopt_sampled_tokens(calls: &mut [Call], policy: &MergePolicy, renderer: &dyn Renderer) {
    for later in 1..calls.len() {
        let (earlier, rest) = calls.split_at_mut(later);
        let later = &mut rest[0];
        let comparable = |call: &&Call| policy.ignore_tools || call.conversation.tools == later.conversation.tools;
        if earlier
            .iter()
            .filter(comparable)
            .any(|call| call.is_prefix_of(&later.prompt))
        {
            continue;
        }
        let prompt = renderer.decode(&later.prompt);
        let continued = earlier
            .iter()
            .filter(comparable)
            .map(|call| (call, renderer.decode(&call.sequence())))
            .filter(|(_, text)| prompt.starts_with(text))
            .max_by_key(|(_, text)| text.len());
        if let Some((call, text)) = continued
            && let Some(rest) = tokens_after(&later.prompt, &text, renderer)
        {
            later.prompt = [call.sequence().as_slice(), rest].concat();
        }
    }
}

/// Returns the tokens of `ids` after those that decode to `text`, if a token ends where the text does.
fn tokens_after<'a>(ids: &'a [u32], text: &str, renderer: &dyn Renderer) -> Option<&'a [u32]> {
    let boundaries: Vec<usize> = (0..=ids.len()).collect();
    let boundary = boundaries.partition_point(|at| renderer.decode(&ids[..*at]).len() < text.len());
    (boundary <= ids.len() && renderer.decode(&ids[..boundary]) == text).then(|| &ids[boundary..])
}
