//! The state of a grammar within an answer.

use llguidance::TokenParser;

use super::error::{GrammarError, Result, one_line};
use crate::model::token_set::TokenSet;

/// A grammar and the tokens it has matched so far. A clone continues independently.
#[derive(Clone)]
pub struct Matcher(llguidance::Matcher);

impl Matcher {
    pub(super) fn new(parser: TokenParser) -> Self {
        Self(llguidance::Matcher::new(Ok(parser)))
    }

    /// Returns the tokens that may come next, at least one. If the grammar is complete, these are the end tokens.
    ///
    /// # Errors
    /// Fails if the computation exceeds its limits, or the grammar is complete and there are no end tokens.
    pub fn allowed(&mut self) -> Result<TokenSet> {
        let mask = self.0.compute_mask_or_eos();
        let mask = mask.map_err(|error| GrammarError::Mask(one_line(&error.to_string())))?;
        Ok(TokenSet::from_words(mask.as_slice()))
    }

    /// Adds the next token.
    ///
    /// # Errors
    /// Fails if the token is not allowed.
    pub fn push(&mut self, token: u32) -> Result<()> {
        if self.is_complete() {
            return Ok(()); // an end token
        }
        self.0.consume_token(token).map_err(|_| GrammarError::Token(token))
    }

    /// Returns whether the answer matches the grammar and nothing but an end token can follow.
    pub fn is_complete(&self) -> bool {
        self.0.is_stopped()
    }
}
