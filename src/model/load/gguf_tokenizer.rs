//! The tokenizer of a GGUF file, rebuilt from its metadata as the `tokenizer.json` it was converted from.
//!
//! The file names the way of pre-tokenizing (`tokenizer.ggml.pre`) but not its rules; they are those of the models the
//! names come from.

use tokenizers::decoders::byte_level::ByteLevel as ByteLevelDecoder;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::gguf_metadata::Metadata;
use crate::model::error::ModelError;

/// Words with their leading space, numbers, punctuation and white space, as GPT-2 has them.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3: contractions in any case, numbers of up to three digits.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2: as Llama 3 with single digits.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// What llama.cpp does to files that name no rule: punctuation apart, then GPT-2, then numbers in threes.
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

/// Kinds of tokens in `tokenizer.ggml.token_type`.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// How text is cut before merges apply.
struct Rules {
    pre_tokenizer: Vec<PreTokenizerWrapper>,
    nfc: bool,
    /// Whether whole words that are in the vocabulary are taken as they are.
    ignore_merges: bool,
}

impl Rules {
    fn of(pre: &str) -> Result<Self, ModelError> {
        let split = |pattern: &str| -> Result<PreTokenizerWrapper, ModelError> {
            let pattern = SplitPattern::Regex(pattern.to_string());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            Ok(split.map_err(|e| ModelError::Tokenizer(e.to_string()))?.into())
        };
        let bytes = ByteLevel::new(false, true, false);
        let mut rules = Self {
            pre_tokenizer: Vec::new(),
            nfc: false,
            ignore_merges: false,
        };
        match pre {
            "default" => rules.pre_tokenizer = DEFAULT.into_iter().map(split).collect::<Result<_, _>>()?,
            "gpt2" | "gpt-2" => rules.pre_tokenizer.push(split(GPT2)?),
            "smollm" | "starcoder" | "refact" | "command-r" => {
                rules.pre_tokenizer.extend([Digits::new(true).into(), split(GPT2)?]);
            }
            "llama3" | "llama-v3" | "llama-bpe" => {
                rules.pre_tokenizer.push(split(LLAMA3)?);
                rules.ignore_merges = true;
            }
            "qwen2" | "deepseek-r1-qwen" => {
                rules.pre_tokenizer.push(split(QWEN2)?);
                rules.nfc = pre == "qwen2";
            }
            other => {
                return Err(ModelError::file(
                    "tokenizer.ggml.pre",
                    format!(
                        "the pre-tokenizer `{other}` is not supported; supported are default, gpt-2, smollm, starcoder, \
                         refact, command-r, llama-bpe, qwen2 and deepseek-r1-qwen\nhint: load the model from its \
                         Hugging Face directory"
                    ),
                ));
            }
        }
        rules.pre_tokenizer.push(bytes.into());
        Ok(rules)
    }
}

/// Builds the tokenizer.
pub(super) fn build(metadata: &Metadata) -> Result<tokenizers::Tokenizer, ModelError> {
    let fail = |e: tokenizers::Error| ModelError::Tokenizer(e.to_string());
    let kind = metadata.text("tokenizer.ggml.model")?;
    if kind != "gpt2" {
        return Err(ModelError::file(
            "tokenizer.ggml.model",
            format!(
                "the tokenizer `{kind}` is not supported; supported is gpt2 (byte-level BPE)\nhint: load the model from \
                 its Hugging Face directory"
            ),
        ));
    }
    let rules = Rules::of(metadata.optional_text("tokenizer.ggml.pre")?.unwrap_or("default"))?;
    let tokens = metadata.texts("tokenizer.ggml.tokens")?;
    let types = metadata.numbers("tokenizer.ggml.token_type")?;
    let merges = metadata.texts("tokenizer.ggml.merges")?;
    let merges = merges.iter().map(|merge| {
        let (left, right) = merge.split_once(' ').ok_or_else(|| {
            ModelError::file(
                "tokenizer.ggml.merges",
                format!("`{merge}` must be two tokens with a space between"),
            )
        })?;
        Ok((left.to_string(), right.to_string()))
    });
    let merges = merges.collect::<Result<Vec<_>, ModelError>>()?;
    let vocabulary: Vocab = tokens.iter().map(|token| token.to_string()).zip(0..).collect();

    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(rules.ignore_merges)
        .build();
    let mut tokenizer = tokenizers::Tokenizer::new(model.map_err(fail)?);
    if rules.nfc {
        tokenizer.with_normalizer(Some(NFC)).map_err(fail)?;
    }
    tokenizer.with_pre_tokenizer(Some(Sequence::new(rules.pre_tokenizer)));
    tokenizer.with_decoder(Some(ByteLevelDecoder::new(true, true, true)));
    tokenizer.with_post_processor(post_processor(metadata, &tokens)?);

    // one list, in the order of ids, since tokens that are not in the vocabulary yet get the next id
    let added = tokens.iter().zip(types).filter_map(|(token, kind)| {
        let special = match kind {
            CONTROL => true,
            USER_DEFINED => false,
            _ => return None,
        };
        Some(AddedToken::from(token.to_string(), special).normalized(false))
    });
    tokenizer.add_tokens(added.collect::<Vec<_>>()).map_err(fail)?;
    Ok(tokenizer)
}

/// Adds the begin-of-sequence token if the model expects it, for other readers of the exported tokenizer.
fn post_processor(metadata: &Metadata, tokens: &[&str]) -> Result<Option<PostProcessorWrapper>, ModelError> {
    let bos = metadata.optional_number("tokenizer.ggml.bos_token_id")?;
    let bos = bos.and_then(|id| Some((tokens.get(id as usize)?.to_string(), id as u32)));
    match bos {
        Some((token, id)) if metadata.flag("tokenizer.ggml.add_bos_token")? => {
            let template = TemplateProcessing::builder()
                .try_single(vec![token.clone(), "$A".into()])
                .map_err(ModelError::Tokenizer)?
                .special_tokens(vec![(token, id)])
                .build()
                .map_err(|e| ModelError::Tokenizer(e.to_string()))?;
            Ok(Some(template.into()))
        }
        _ => Ok(Some(ByteLevel::new(true, false, true).into())),
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;
    use crate::model::tokenizer::Tokenizer;

    /// Pieces that a rule cuts a text into, in the byte-level alphabet.
    fn pieces(pre: &str, text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        Sequence::new(Rules::of(pre).unwrap().pre_tokenizer)
            .pre_tokenize(&mut cut)
            .unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(piece, _, _)| piece.replace('Ġ', "_").replace('Ċ', "⏎"))
            .collect()
    }

    #[test]
    fn rules_differ_where_their_models_differ() {
        let text = "I'Ve 1234 (it's)\n\n  x";
        for (pre, expected) in [
            ("gpt-2", "I ' Ve _1234 _( it 's ) ⏎⏎_ _x"),
            ("smollm", "I ' Ve _ 1 2 3 4 _( it 's ) ⏎⏎_ _x"),
            ("llama-bpe", "I 'Ve _ 123 4 _( it 's )⏎⏎ _ _x"),
            ("qwen2", "I 'Ve _ 1 2 3 4 _( it 's )⏎⏎ _ _x"),
            ("default", "I ' Ve _ 123 4 _ ( it ' s ) ⏎⏎_ _x"),
        ] {
            assert_eq!(pieces(pre, text).join(" "), expected, "{pre}");
        }
    }

    #[test]
    fn an_unknown_rule_is_refused() {
        let message = Rules::of("martian").err().unwrap().to_string();
        assert!(
            message.starts_with("tokenizer.ggml.pre: the pre-tokenizer `martian` is not supported"),
            "{message}"
        );
    }

    /// llama.cpp keeps vocabularies of published models with texts and the ids that the models' own tokenizers give.
    #[test]
    fn ids_equal_those_of_the_models_tokenizers() {
        let Some(directory) = std::env::var_os("LLAMA_CPP_MODELS").map(std::path::PathBuf::from) else {
            eprintln!("skipped: set LLAMA_CPP_MODELS to the folder `models` of llama.cpp's sources");
            return;
        };
        for name in ["llama-bpe", "qwen2", "starcoder", "refact", "command-r", "gpt-2"] {
            let path = directory.join(format!("ggml-vocab-{name}.gguf"));
            let tokenizer = Tokenizer::new(build(&Metadata::open(&path).unwrap()).unwrap()).unwrap();
            let read = |suffix: &str| std::fs::read_to_string(format!("{}.{suffix}", path.display())).unwrap();
            let (texts, ids) = (read("inp"), read("out"));
            let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
            let mut checked = 0;
            for (text, ids) in texts.iter().zip(ids.lines()) {
                let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
                assert_eq!(tokenizer.encode(text).unwrap(), expected, "{name}: {text:?}");
                checked += 1;
            }
            eprintln!("{name}: {checked} texts agree");
            assert!(checked > 40);
        }
    }
}
