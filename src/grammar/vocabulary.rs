//! The tokens of a model as llguidance reads them.

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use std::sync::Arc;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use super::error::{GrammarError, Result};
use crate::model::Tokenizer;

/// Maximum number of states of a grammar's lexer, about 2 kB each.
const MAX_LEXER_STATES: usize = 50_000;

/// Trie of the vocabulary with the tokenizer, for texts that a grammar forces.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Tokens of a text as the tokenizer makes them, where they spell just that text: some tokenizers add a space, and
    /// the names of special tokens are no text.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let ids = self.tokenizer.encode(text).unwrap_or_default();
            match ids.iter().any(|id| self.trie.is_special_token(*id)) || self.trie.decode(&ids) != text.as_bytes() {
                true => self.trie.greedy_tokenize(text.as_bytes()),
                false => ids,
            }
        })
    }
}

/// Reads the vocabulary of a model.
///
/// # Errors
/// Fails if the tokenizer has no tokens.
pub(super) fn parser_factory(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<ParserFactory> {
    let vocab_size = tokenizer.embedded_ids();
    let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(|id| word(tokenizer, id)).collect();
    let info = TokRxInfo::new(vocab_size as u32, toktrie::INVALID_TOKEN);
    let mut trie = TokTrie::from(&info, &words);
    let known: Vec<u32> = end_tokens
        .iter()
        .copied()
        .filter(|id| (*id as usize) < vocab_size)
        .collect();
    if !known.is_empty() {
        trie = trie.with_eos_tokens(&known);
    }
    let vocabulary: TokEnv = Arc::new(Vocabulary {
        trie,
        tokenizer: tokenizer.clone(),
    });
    let factory = ParserFactory::new(
        &vocabulary,
        InferenceCapabilities::default(),
        &llguidance::earley::SlicedBiasComputer::json_slices(),
    );
    let mut factory = factory.map_err(|error| GrammarError::Vocabulary(error.to_string()))?;
    *factory.quiet().limits_mut() = ParserLimits {
        max_lexer_states: MAX_LEXER_STATES,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    Ok(factory)
}

/// Returns the bytes of a token; a special one has a mark before its name, so that no text contains it.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    match tokenizer.is_special(id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        false => bytes.to_vec(),
    }
}
