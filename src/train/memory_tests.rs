//! How much of a GPU's memory a model takes while it is trained and sampled from, counted from its shape: the table of
//! docs/gpu.md.

use crate::config::LINEAR_PROJECTIONS;
use crate::model::ModelConfig;

/// Bytes of a number in bf16 and in f32.
const BF16: f64 = 2.0;
const F32: f64 = 4.0;
/// What is held for a while whatever the model: four tensors of a chunk's logits or scores.
const WORKSPACE: f64 = 4.0 * 256e6;

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trained {
    /// All parameters, and whether a second copy of them is the reference of a KL term.
    All {
        /// Whether there is one.
        reference: bool,
    },
    /// Adapters of a rank on every projection; the reference is the model without them.
    Lora {
        /// Their rank.
        rank: usize,
    },
}

/// Bytes by purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The model in bf16, and the reference.
    pub weights: f64,
    /// f32 master weights (of adapters: the adapters) and both moments.
    pub optimizer: f64,
    /// f32 gradients; gone between updates, when caches have their place.
    pub gradients: f64,
    /// A micro-batch with recompute: every layer's input, one layer's intermediate results and their gradients. Gone
    /// between updates, too.
    pub activations: f64,
    /// Keys and values of 1,000 tokens.
    pub cache_per_1000: f64,
}

impl Estimate {
    /// Counts for a micro-batch of `tokens` tokens.
    pub fn new(config: &ModelConfig, trained: Trained, tokens: usize) -> Self {
        let parameters = config.num_parameters() as f64;
        let (copies, trained_parameters) = match trained {
            Trained::All { reference } => (if reference { 2.0 } else { 1.0 }, parameters),
            Trained::Lora { rank } => (1.0, adapter_parameters(config, rank)),
        };
        let cached = (2 * config.layers.len() * config.num_kv_heads * config.head_dim) as f64;
        Self {
            weights: copies * parameters * BF16,
            optimizer: 3.0 * trained_parameters * F32,
            gradients: trained_parameters * F32,
            activations: tokens as f64 * activation_bytes(config) + WORKSPACE,
            cache_per_1000: 1000.0 * cached * BF16,
        }
    }

    /// Returns the bytes of an update.
    pub fn update(&self) -> f64 {
        self.weights + self.optimizer + self.gradients + self.activations
    }
}

/// Parameters of two factors for each projection of every layer.
fn adapter_parameters(config: &ModelConfig, rank: usize) -> f64 {
    let is_projection = |name: &str| {
        LINEAR_PROJECTIONS
            .iter()
            .any(|p| name.ends_with(&format!(".{p}.weight")))
    };
    let shapes = config.tensor_shapes();
    let projections = shapes.iter().filter(|(name, _)| is_projection(name));
    projections
        .map(|(_, shape)| (rank * shape.iter().sum::<usize>()) as f64)
        .sum()
}

/// Bytes of a token: its residual stream at every layer, and twice (value and gradient) what one layer keeps: the norms
/// in f32 and the sums around them 36 bytes a number of the stream, queries, keys and values with their rotation 14,
/// attention's output 4, the MLP's four 8.
fn activation_bytes(config: &ModelConfig) -> f64 {
    let stream = config.hidden_size as f64;
    let queries = (config.num_heads * config.head_dim) as f64;
    let keys = (config.num_kv_heads * config.head_dim) as f64;
    let a_layer = 36.0 * stream + 14.0 * (queries + 2.0 * keys) + 4.0 * queries + 8.0 * config.intermediate_size as f64;
    config.layers.len() as f64 * stream * BF16 + 2.0 * a_layer
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "<!-- memory table: written by `UPDATE_DOCS=1 cargo test --lib train::memory` -->\n";
    const END: &str = "<!-- end of memory table -->";
    /// `ajet.trainer_common.ppo_max_token_len_per_gpu`'s default.
    const TOKENS: usize = 16384;

    fn shape(name: &str) -> ModelConfig {
        let path = format!("{}/scripts/shapes/qwen2.5-{name}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        ModelConfig::from_json(&serde_json::from_str(&text).unwrap()).unwrap()
    }

    fn line(size: &str, what: &str, trained: Trained) -> String {
        let e = Estimate::new(&shape(size), trained, TOKENS);
        let gb = |bytes: f64| format!("{:.1}", bytes / 1e9);
        let card = [24.0, 48.0, 80.0, 141.0, 192.0]
            .into_iter()
            .find(|card| card * 1e9 * 0.95 > e.update());
        let card = card.map_or("more than one".into(), |card| format!("{card:.0} GB"));
        format!(
            "| Qwen2.5-{} | {what} | {} | {} | {} | {} | {} | {card} | {:.0} MB |\n",
            size.to_uppercase(),
            gb(e.weights),
            gb(e.optimizer),
            gb(e.gradients),
            gb(e.activations),
            gb(e.update()),
            e.cache_per_1000 / 1e6,
        )
    }

    fn table() -> String {
        let mut table = "| model | trained | weights | optimizer | gradients | activations | an update | card | 1,000 cached tokens |\n\
                         |---|---|--:|--:|--:|--:|--:|--:|--:|\n"
            .to_string();
        for size in ["0.5b", "1.5b", "3b", "7b"] {
            table += &line(size, "all, with KL", Trained::All { reference: true });
            table += &line(size, "all, without KL", Trained::All { reference: false });
            table += &line(size, "LoRA of rank 16", Trained::Lora { rank: 16 });
        }
        table
    }

    #[test]
    fn the_documented_table_is_the_computed_one() {
        let path = format!("{}/docs/gpu.md", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (found, after) = rest.split_once(END).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            return std::fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
        }
        assert_eq!(found, table(), "run UPDATE_DOCS=1 cargo test --lib train::memory");
    }

    #[test]
    fn full_training_of_half_a_billion_parameters_takes_18_bytes_each_and_activations() {
        let config = shape("0.5b");
        let parameters = config.num_parameters() as f64;
        assert!((parameters / 1e9 - 0.494).abs() < 0.001, "{parameters}");
        let e = Estimate::new(&config, Trained::All { reference: false }, 0);
        let bytes = (e.update() - WORKSPACE) / parameters;
        assert!((bytes - 18.0).abs() < 1e-6, "{bytes}");
        let lora = Estimate::new(&config, Trained::Lora { rank: 16 }, 0);
        assert!(lora.optimizer < 0.02 * e.optimizer * 2.0);
        assert!(lora.weights + lora.optimizer < e.weights + e.optimizer);
    }
}
