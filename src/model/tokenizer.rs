//! Tokenizer: text to token ids and back, and the bytes of each id.

use std::collections::HashMap;
use std::sync::Arc;

use tokenizers::decoders::DecoderWrapper;

use super::error::ModelError;

/// A model's tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    tokens: Arc<Vec<Token>>,
    /// Number of rows of the model's embedding.
    embedding_rows: usize,
}

/// Content of a token.
#[derive(Clone, Debug, Default)]
struct Token {
    bytes: Vec<u8>,
    special: bool,
}

/// Adds the missing `type` of the model in a `tokenizer.json`, derived from its fields.
fn with_model_type(json: &[u8]) -> Option<Vec<u8>> {
    let mut json: serde_json::Value = serde_json::from_slice(json).ok()?;
    let model = json
        .get_mut("model")?
        .as_object_mut()
        .filter(|model| !model.contains_key("type"))?;
    let kind = match model.get("vocab")? {
        serde_json::Value::Array(_) => "Unigram",
        _ if model.contains_key("merges") => "BPE",
        _ if model.contains_key("max_input_chars_per_word") => "WordPiece",
        _ => "WordLevel",
    };
    model.insert("type".into(), kind.into());
    serde_json::to_vec(&json).ok()
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. Truncation and padding in it are disabled, so that nothing is truncated silently.
    pub fn from_json(json: &[u8]) -> Result<Self, ModelError> {
        let inner = tokenizers::Tokenizer::from_bytes(json).or_else(|error| {
            // Old files do not name the model's type, and guessing it loses numbers that are kept as text.
            let named = with_model_type(json).ok_or(error)?;
            tokenizers::Tokenizer::from_bytes(named)
        });
        Self::new(inner.map_err(|e| ModelError::Tokenizer(format!("tokenizer.json cannot be read: {e}")))?)
    }

    /// Creates one from a tokenizer in memory.
    pub(super) fn new(mut inner: tokenizers::Tokenizer) -> Result<Self, ModelError> {
        inner
            .with_truncation(None)
            .map_err(|e| ModelError::Tokenizer(e.to_string()))?;
        inner.with_padding(None);
        let tokens = tokens_of(&inner)?;
        Ok(Self {
            inner: Arc::new(inner),
            tokens: Arc::new(tokens),
            embedding_rows: usize::MAX,
        })
    }

    /// Sets the number of rows of the model's embedding. Either may be the larger: embeddings are padded,
    /// and tokens may have been added that the model never learned. Texts with such a token are refused.
    pub fn for_embedding(self, rows: usize) -> Self {
        Self {
            embedding_rows: rows,
            ..self
        }
    }

    /// Encodes a text. Special tokens in it are recognised; none are added, since chat templates contain their own.
    ///
    /// # Errors
    /// Fails if the text has a token without a row in the model's embedding.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|e| ModelError::Tokenizer(e.to_string()))?;
        match encoding
            .get_ids()
            .iter()
            .find(|id| **id as usize >= self.embedding_rows)
        {
            None => Ok(encoding.get_ids().to_vec()),
            Some(&id) => Err(ModelError::Tokenizer(format!(
                "the text has the token {:?} with id {id}, but the model's embedding ends at {}; the tokenizer has {} \
                 tokens",
                self.inner.id_to_token(id).unwrap_or_default(),
                self.embedding_rows as i64 - 1,
                self.tokens.len()
            ))),
        }
    }

    /// Decodes ids; bytes that are not UTF-8 become U+FFFD. `skip_special` omits special tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let kept = ids.iter().filter(|id| !(skip_special && self.is_special(**id)));
        let bytes: Vec<u8> = kept.flat_map(|id| self.token_bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the bytes of an id; a character may need those of several ids. Empty for ids without a token (embeddings
    /// are often padded).
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |t| &t.bytes)
    }

    /// Returns whether an id is a special token, such as an end of turn.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|t| t.special)
    }

    /// Returns the id of a token by its name in the vocabulary, such as `<|im_end|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns the largest id plus 1. The model's `vocab_size` may be larger or smaller.
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of ids, from 0 on, that the model may have learned: those with a row in its embedding.
    pub fn embedded_ids(&self) -> usize {
        self.tokens.len().min(self.embedding_rows)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

/// Encoding of bytes in the vocabulary's names of tokens.
enum Spelling {
    /// GPT-2: each byte is one printable character.
    ByteLevel,
    /// SentencePiece: `▁` for a space, `<0x0A>` for bytes that no token covers.
    ByteFallback,
    /// Any other: the text that the decoder returns for the token alone.
    Decoder,
}

impl Spelling {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        fn find(decoder: &DecoderWrapper) -> Option<Spelling> {
            match decoder {
                DecoderWrapper::ByteLevel(_) => Some(Spelling::ByteLevel),
                DecoderWrapper::ByteFallback(_) => Some(Spelling::ByteFallback),
                DecoderWrapper::Sequence(parts) => parts.get_decoders().iter().find_map(find),
                _ => None,
            }
        }
        tokenizer.get_decoder().and_then(find).unwrap_or(Self::Decoder)
    }
}

fn tokens_of(tokenizer: &tokenizers::Tokenizer) -> Result<Vec<Token>, ModelError> {
    let spelling = Spelling::of(tokenizer);
    let byte_of = byte_of_character();
    let added = tokenizer.get_added_tokens_decoder();
    let vocabulary = tokenizer.get_vocab(true);
    let largest = vocabulary.values().copied().max().map_or(0, |id| id as usize + 1);
    if largest > vocabulary.len().saturating_mul(16) + 65536 {
        return Err(ModelError::Tokenizer(format!(
            "{} tokens have ids up to {largest}",
            vocabulary.len()
        )));
    }
    let mut tokens = vec![Token::default(); largest];
    for (name, id) in vocabulary {
        let bytes = match (added.get(&id), &spelling) {
            (Some(added), _) => added.content.clone().into_bytes(),
            (None, Spelling::ByteLevel) => match name.chars().map(|c| byte_of.get(&c).copied()).collect() {
                Some(bytes) => bytes,
                None => name.into_bytes(), // a token from outside the byte alphabet stands for itself
            },
            (None, Spelling::ByteFallback) => match byte_token(&name) {
                Some(byte) => vec![byte],
                None => name.replace('▁', " ").into_bytes(),
            },
            (None, Spelling::Decoder) => tokenizer
                .decode(&[id], false)
                .map_err(|e| ModelError::Tokenizer(e.to_string()))?
                .into_bytes(),
        };
        tokens[id as usize] = Token {
            bytes,
            special: added.get(&id).is_some_and(|t| t.special),
        };
    }
    Ok(tokens)
}

/// `<0x0A>` → 10.
fn byte_token(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The byte that a character of the byte-level alphabet stands for: printable Latin-1 characters stand for themselves,
/// the other bytes were given the characters from U+0100 on, in order.
fn byte_of_character() -> HashMap<char, u8> {
    let printable = |b: &u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let moved = (0..=255u8)
        .filter(|b| !printable(b))
        .zip('\u{100}'..)
        .map(|(b, c)| (c, b));
    (0..=255u8)
        .filter(printable)
        .map(|b| (char::from(b), b))
        .chain(moved)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::models::bpe::{BPE, Vocab};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{AddedToken, TruncationParams};

    use super::*;

    /// All bytes, a few merges, one special and one ordinary added token.
    fn byte_level() -> Tokenizer {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let mut names: Vec<String> = alphabet.into_iter().map(String::from).collect();
        let merges = [("h", "e"), ("Ġ", "he"), ("ã", "ģ")].map(|(a, b)| (a.to_string(), b.to_string()));
        names.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
        let vocabulary: Vocab = names.into_iter().zip(0..).collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary, merges.to_vec())
            .build()
            .unwrap();
        let mut inner = tokenizers::Tokenizer::new(bpe);
        inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        inner.with_decoder(Some(ByteLevel::default()));
        inner.add_special_tokens([AddedToken::from("<|end|>", true)]).unwrap();
        inner.add_tokens([AddedToken::from("<tool>", false)]).unwrap();
        inner
            .with_truncation(Some(TruncationParams {
                max_length: 2,
                ..Default::default()
            }))
            .unwrap();
        Tokenizer::from_json(inner.to_string(false).unwrap().as_bytes()).unwrap()
    }

    /// Scores are floats that serde gathers before it knows the kind of vocabulary.
    #[test]
    fn a_vocabulary_with_scores_is_read() {
        let json = r#"{"added_tokens":[],"model":{"type":"Unigram","unk_id":0,
            "vocab":[["<unk>",0.0],["a",-1.5],["b",-2.50e-1],["ab",-1e-7],["ba",-3]]}}"#;
        let tokenizer = Tokenizer::from_json(json.as_bytes()).unwrap();
        // Seen with old files, which do not say what their model is.
        let without_type = json.replace("\"type\":\"Unigram\",", "");
        assert_ne!(without_type, json);
        let old = Tokenizer::from_json(without_type.as_bytes()).unwrap();
        assert_eq!(old.encode("abba").unwrap(), tokenizer.encode("abba").unwrap());
        assert_eq!(tokenizer.encode("abba").unwrap(), [3, 2, 1], "the likeliest pieces");
    }

    #[test]
    fn special_tokens_are_recognised_but_not_added() {
        let tokenizer = byte_level();
        let (end, tool) = (
            tokenizer.token_id("<|end|>").unwrap(),
            tokenizer.token_id("<tool>").unwrap(),
        );
        let ids = tokenizer.encode("he the<|end|><tool>").unwrap();
        assert_eq!(
            ids.len(),
            6,
            "merged, and not cut by the truncation in tokenizer.json: {ids:?}"
        );
        assert_eq!(ids[4..], [end, tool]);
        assert!(tokenizer.is_special(end) && !tokenizer.is_special(tool) && !tokenizer.is_special(0));
        assert_eq!(tokenizer.decode(&ids, false), "he the<|end|><tool>");
        assert_eq!(tokenizer.decode(&ids, true), "he the<tool>");
        assert_eq!(tokenizer.vocab_size(), 256 + 3 + 2);
        assert_eq!(tokenizer.token_bytes(9999), b"");
    }

    #[test]
    fn a_character_may_be_spread_over_tokens() {
        let tokenizer = byte_level();
        let ids = tokenizer.encode("あ").unwrap();
        let pieces: Vec<&[u8]> = ids.iter().map(|id| tokenizer.token_bytes(*id)).collect();
        assert_eq!(pieces, [&[0xe3, 0x81][..], &[0x82]]);
        assert_eq!(tokenizer.decode(&ids[..1], false), "\u{fffd}");
    }

    #[test]
    fn sentencepiece_spelling() {
        let names = ["▁a", "b", "<0x0A>", "<0xZZ>"].map(String::from);
        let bpe = BPE::builder()
            .vocab_and_merges(names.into_iter().zip(0..).collect::<Vocab>(), vec![])
            .build();
        let mut inner = tokenizers::Tokenizer::new(bpe.unwrap());
        inner.with_decoder(Some(tokenizers::decoders::byte_fallback::ByteFallback::new()));
        let tokenizer = Tokenizer::new(inner).unwrap();
        assert_eq!(tokenizer.decode(&[0, 1, 2, 3], false), " ab\n<0xZZ>");
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let message = Tokenizer::from_json(b"{").unwrap_err().to_string();
        assert!(
            message.starts_with("tokenizer: tokenizer.json cannot be read"),
            "{message}"
        );
    }

    proptest! {
        #[test]
        fn any_text_survives_a_round_trip(text in "\\PC{0,40}[\n \t]{0,3}\\PC{0,10}") {
            let tokenizer = byte_level();
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false), text);
        }
    }
}
