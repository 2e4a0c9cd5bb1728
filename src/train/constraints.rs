//! Replays the grammars of rows, so that their log-probabilities are over the tokens that the sampler chose from.

use std::collections::HashSet;
use std::sync::Arc;

use super::error::{Result, TrainError};
use super::packing::MicroBatch;
use super::prepare::TrainRow;
use crate::grammar::Grammars;
use crate::model::TokenSet;

/// Sets the tokens that each prediction of a micro-batch is chosen from. Equal sets share their memory: 1 bit per token
/// of the vocabulary, a 32nd of the logits.
///
/// # Errors
/// Fails if a row does not match its grammar, or there are no `grammars` to replay it.
pub fn restrict(micro: &mut MicroBatch, rows: &[TrainRow], grammars: Option<&Grammars>) -> Result<()> {
    if micro.rows.iter().all(|packed| rows[packed.row].constrained.is_empty()) {
        return Ok(());
    }
    let grammars = grammars.ok_or(TrainError::NoGrammars)?;
    let mut known: HashSet<Arc<TokenSet>> = HashSet::new();
    let mut shared = |set: TokenSet| match known.get(&set) {
        Some(known) => known.clone(),
        None => {
            let set = Arc::new(set);
            known.insert(set.clone());
            set
        }
    };
    micro.allowed = vec![None; micro.predictions.len()];
    for packed in &micro.rows {
        let row = &rows[packed.row];
        let mut targets = row.targets.iter().zip(&packed.predictions).peekable();
        for constrained in &row.constrained {
            let wrong = |error| TrainError::Grammar {
                row: row.name.clone(),
                error,
            };
            let mut matcher = grammars.matcher(&constrained.grammar).map_err(wrong)?;
            while targets.next_if(|(target, _)| **target < constrained.start).is_some() {}
            for index in constrained.start..(constrained.start + constrained.len).min(row.fed() + 1) {
                if let Some((_, prediction)) = targets.next_if(|(target, _)| **target == index)
                    && micro.allowed[*prediction].is_none()
                {
                    micro.allowed[*prediction] = Some(shared(matcher.allowed().map_err(wrong)?));
                }
                matcher.push(row.tokens[index]).map_err(wrong)?;
            }
        }
    }
    Ok(())
}
