//! Makes `assets/models/tiny`, the model that the binary carries: a small byte-level Llama that learns a handful of
//! skills from generated conversations and is stopped early, so that reinforcement learning has room.
//!
//! ```text
//! cargo run --release --example make-tiny-model
//! ```
//!
//! The same arguments on the same kind of machine give the same file again: data and weights come from seeded
//! generators, and the pass runs on candle's plain operations.

use std::path::{Path, PathBuf};

use ajet_swarm::config::schema::Optim;
use ajet_swarm::model::kernels::Pool;
use ajet_swarm::model::tokenizer::Tokenizer;
use ajet_swarm::model::weights::random_tensors;
use ajet_swarm::model::{ModelConfig, PackedBatch, Trainable, Transformer, Weights};
use ajet_swarm::train::gradients::clip_factor;
use ajet_swarm::train::{AdamW, Gradients};
use anyhow::Context;
use candle_core::{Device, Tensor};
use clap::Parser;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

#[derive(Parser)]
struct Args {
    /// Optimizer steps.
    #[arg(long, default_value_t = 340)]
    steps: u64,
    /// Conversations a step.
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Peak learning rate.
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
    /// Of data and weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where the model goes.
    #[arg(long, default_value = "assets/models/tiny")]
    out: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let tokenizer_json = tokenizer_json();
    let tokenizer = Tokenizer::from_json(tokenizer_json.to_string().as_bytes())?;
    let config_json = config_json();
    let config = ModelConfig::from_json(&config_json)?;
    let tensors = random_tensors(&config, 0.05, args.seed)?;
    let mut weights = Weights::new(config, tensors, &Trainable::All)?;
    eprintln!("{} parameters", weights.parameter_count());
    train(&mut weights, &tokenizer, &args)?;
    write_model(&args.out, &weights, &tokenizer_json, &config_json)
}

// ---- what it learns

/// The skills, each a prompt over a payload and its answer.
#[derive(Clone, Copy)]
enum Skill {
    Reverse,
    Sort,
    Copy,
    Count,
    Add,
}

const SKILLS: [Skill; 5] = [Skill::Reverse, Skill::Sort, Skill::Copy, Skill::Count, Skill::Add];

impl Skill {
    /// A question and its answer.
    fn example(self, rng: &mut impl Rng) -> (String, String) {
        let word = random_word(rng);
        match self {
            Self::Reverse => (format!("Reverse the word: {word}"), word.chars().rev().collect()),
            Self::Sort => {
                let mut letters: Vec<char> = word.chars().collect();
                letters.sort_unstable();
                (format!("Sort the letters: {word}"), letters.into_iter().collect())
            }
            Self::Copy => (format!("Copy the word: {word}"), word),
            Self::Count => (format!("Count the letters: {word}"), word.len().to_string()),
            Self::Add => {
                let (a, b) = (rng.random_range(0..50), rng.random_range(0..50));
                (format!("What is {a} + {b}?"), (a + b).to_string())
            }
        }
    }
}

fn random_word(rng: &mut impl Rng) -> String {
    let length = rng.random_range(3..=6);
    (0..length).map(|_| rng.random_range(b'a'..=b'z') as char).collect()
}

/// Token ids of one question and its answer, and the places whose next token the assistant says.
struct Conversation {
    token_ids: Vec<u32>,
    answer_places: Vec<usize>,
}

impl Conversation {
    fn generate(rng: &mut impl Rng, tokenizer: &Tokenizer) -> anyhow::Result<Self> {
        SKILLS[rng.random_range(0..SKILLS.len())].conversation(rng, tokenizer)
    }
}

impl Skill {
    fn conversation(self, rng: &mut impl Rng, tokenizer: &Tokenizer) -> anyhow::Result<Conversation> {
        let (question, answer) = self.example(rng);
        let prompt = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
        let mut token_ids = tokenizer.encode(&prompt)?;
        let prompt_length = token_ids.len();
        token_ids.extend(tokenizer.encode(&format!("{answer}<|im_end|>"))?);
        let answer_places = (prompt_length - 1..token_ids.len() - 1).collect();
        Ok(Conversation {
            token_ids,
            answer_places,
        })
    }
}

// ---- how it learns

/// Next-token cross-entropy on the assistant's turns; AdamW with warm-up and linear decay.
fn train(weights: &mut Weights, tokenizer: &Tokenizer, args: &Args) -> anyhow::Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
    let optim = Optim {
        betas: [0.9, 0.99],
        ..Optim::default()
    };
    let pool = Pool::new(Pool::physical_cores());
    let mut optimizer = AdamW::new(weights, &optim, &pool)?;
    for step in 0..args.steps {
        let batch = (0..args.batch).map(|_| Conversation::generate(&mut rng, tokenizer));
        let batch = batch.collect::<anyhow::Result<Vec<_>>>()?;
        let loss = answer_log_probs(weights, &batch)?.mean_all()?.neg()?;
        let store = loss.backward()?;
        let mut gradients = Gradients::default();
        for (name, var) in weights.trainable() {
            if let Some(gradient) = store.get(&var) {
                gradients.add(&name, gradient)?;
            }
        }
        let warm_up = ((step + 1) as f64 / 50.0).min(1.0);
        let lr = args.lr * warm_up * (1.0 - 0.9 * step as f64 / args.steps as f64);
        optimizer.step(
            &pool,
            weights,
            &gradients,
            lr,
            clip_factor(gradients.global_norm(&pool)?, 1.0),
        )?;
        if (step + 1) % 100 == 0 {
            let shares = expected_accuracy(weights, tokenizer)?;
            eprintln!("step {}: loss {:.3}, {shares}", step + 1, loss.to_scalar::<f32>()?);
        }
    }
    Ok(())
}

/// Log-probabilities of every answer token of the conversations, one behind the other.
fn answer_log_probs(weights: &Weights, conversations: &[Conversation]) -> anyhow::Result<Tensor> {
    let rows: Vec<&[u32]> = conversations.iter().map(|c| c.token_ids.as_slice()).collect();
    let batch = PackedBatch::from_rows(&rows);
    let (mut places, mut targets, mut start) = (Vec::new(), Vec::new(), 0);
    for conversation in conversations {
        places.extend(conversation.answer_places.iter().map(|place| (start + place) as u32));
        targets.extend(
            conversation
                .answer_places
                .iter()
                .map(|place| conversation.token_ids[place + 1]),
        );
        start += conversation.token_ids.len();
    }
    let model = Transformer::new(weights);
    let hidden = model
        .hidden(&batch)?
        .index_select(&Tensor::new(places, &Device::Cpu)?, 0)?;
    Ok(model.log_probs(&hidden, &targets, &[], 1.0)?.0)
}

/// For each skill, the probability of the exact answer under sampling at temperature 1, over fixed unseen questions.
fn expected_accuracy(weights: &Weights, tokenizer: &Tokenizer) -> anyhow::Result<String> {
    let names = ["reverse", "sort", "copy", "count", "add"];
    let mut shares = Vec::new();
    for (skill, name) in SKILLS.into_iter().zip(names) {
        let mut rng = ChaCha8Rng::seed_from_u64(u64::MAX);
        let questions = (0..64).map(|_| skill.conversation(&mut rng, tokenizer));
        let questions = questions.collect::<anyhow::Result<Vec<_>>>()?;
        let log_probs: Vec<f32> = answer_log_probs(weights, &questions)?.to_vec1()?;
        let mut rest = log_probs.as_slice();
        let mut sum = 0.0;
        for question in &questions {
            let (own, after) = rest.split_at(question.answer_places.len());
            sum += own.iter().sum::<f32>().exp();
            rest = after;
        }
        shares.push(format!("{name} {:.2}", sum / questions.len() as f32));
    }
    Ok(shares.join(", "))
}

// ---- what it is written as

const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

fn config_json() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": TURN_END,
        "pad_token_id": END_OF_TEXT,
        "torch_dtype": "float32",
        "use_cache": true
    })
}

fn write_model(dir: &Path, weights: &Weights, tokenizer: &Value, config: &Value) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    let generation = json!({ "bos_token_id": END_OF_TEXT, "eos_token_id": [TURN_END],
        "pad_token_id": END_OF_TEXT });
    let tokenizer_config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": false,
        "clean_up_tokenization_spaces": false,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE
    });
    let files = [
        ("config.json", config),
        ("generation_config.json", &generation),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", &tokenizer_config),
    ];
    for (name, content) in files {
        std::fs::write(dir.join(name), serde_json::to_string_pretty(content)? + "\n")?;
    }
    let tensors = weights
        .params
        .iter()
        .filter_map(|(name, param)| Some((name.clone(), param.tensor()?.clone())));
    let metadata = [("format".to_string(), "pt".to_string())].into_iter().collect();
    safetensors::serialize_to_file(tensors, Some(metadata), &dir.join("model.safetensors"))?;
    Ok(())
}

/// Words that are one token; everything else is spelled in bytes. A leading space belongs to the word.
const WORDS: [&str; 13] = [
    "system",
    "user",
    "assistant",
    "tool",
    "Reverse",
    "Sort",
    "Copy",
    "Count",
    "What",
    " the",
    " word",
    " letters",
    " is",
];

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const FIRST_SPECIAL: usize = 256 + WORDS.len();
const END_OF_TEXT: usize = FIRST_SPECIAL;
const TURN_END: usize = FIRST_SPECIAL + 2;
const VOCABULARY: usize = FIRST_SPECIAL + SPECIAL.len();

/// `tokenizer.json` of the Hugging Face tokenizers library: byte-level, without merges, so that letters stay letters.
fn tokenizer_json() -> Value {
    let spelling = byte_spelling();
    let spell = |text: &str| text.bytes().map(|b| spelling[usize::from(b)]).collect::<String>();
    let bytes = spelling.iter().map(char::to_string);
    let entries = bytes.chain(WORDS.into_iter().map(spell)).enumerate();
    let vocabulary: Map<String, Value> = entries.map(|(id, token)| (token, json!(id))).collect();
    let added = SPECIAL.into_iter().enumerate().map(|(i, content)| {
        json!({ "id": FIRST_SPECIAL + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    });
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocabulary, "merges": [] }
    })
}

/// The character that spells each byte, as in GPT-2: printable bytes as themselves, the others from U+0100 on.
fn byte_spelling() -> Vec<char> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut spare = '\u{100}'..;
    (0..=255u8)
        .map(|b| {
            if printable(b) {
                char::from(b)
            } else {
                spare.next().unwrap_or(' ')
            }
        })
        .collect()
}
