//! Compiles grammars for a model's vocabulary.

use std::sync::{Mutex, OnceLock, PoisonError};

use indexmap::IndexMap;
use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;

use super::error::{GrammarError, Result, one_line};
use super::matcher::Matcher;
use super::vocabulary::parser_factory;
use crate::model::Tokenizer;

/// Number of compiled grammars that are kept.
const KEPT: usize = 64;

/// Compiles grammars for the vocabulary of one model, which is read at the first use.
pub struct Grammars {
    tokenizer: Tokenizer,
    end_tokens: Vec<u32>,
    factory: OnceLock<Result<ParserFactory>>,
    /// Compiled grammars by their text, the latest one last.
    compiled: Mutex<IndexMap<String, Matcher>>,
}

impl Grammars {
    /// Creates it for a model's tokenizer and the tokens that end an answer.
    pub fn new(tokenizer: Tokenizer, end_tokens: &[u32]) -> Self {
        Self {
            tokenizer,
            end_tokens: end_tokens.to_vec(),
            factory: OnceLock::new(),
            compiled: Mutex::default(),
        }
    }

    /// Returns a matcher at the beginning of a grammar. Computes for milliseconds if the grammar is new.
    ///
    /// # Errors
    /// Fails if the grammar is invalid or too large.
    pub fn matcher(&self, grammar: &str) -> Result<Matcher> {
        if let Some(known) = self.known(grammar) {
            return Ok(known);
        }
        let matcher = self.compile(TopLevelGrammar::from_lark(grammar.to_owned()))?;
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if compiled.len() >= KEPT {
            compiled.shift_remove_index(0);
        }
        compiled.insert(grammar.to_owned(), matcher.clone());
        Ok(matcher)
    }

    fn known(&self, grammar: &str) -> Option<Matcher> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let place = compiled.get_index_of(grammar)?;
        let last = compiled.len() - 1;
        compiled.move_index(place, last);
        compiled.get(grammar).cloned()
    }

    pub(super) fn compile(&self, grammar: TopLevelGrammar) -> Result<Matcher> {
        let factory = self
            .factory
            .get_or_init(|| parser_factory(&self.tokenizer, &self.end_tokens));
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let parser = factory.create_parser(grammar);
        parser
            .map(Matcher::new)
            .map_err(|error| GrammarError::Compile(one_line(&error.to_string())))
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars")
            .field("tokenizer", &self.tokenizer)
            .finish_non_exhaustive()
    }
}
