//! Which settings to take, and what makes fit what does not.

use serde::Serialize;

use super::{Lengths, Machines, Memory, Time};
use crate::config::Ajet;
use crate::config::schema::Recompute;
use crate::model::ModelConfig;

/// Rank of the adapters that are proposed.
const LORA_RANK: usize = 16;

/// Settings to take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Keys below `ajet.` with their values. Of a configuration that does not fit: what makes it fit.
    pub settings: Vec<(String, String)>,
    /// Whether the model fits with these settings.
    pub fits: bool,
    /// What makes it fit alone, if it does not fit as configured.
    pub remedies: Vec<Remedy>,
}

impl Advice {
    /// Returns the settings as YAML to paste into a job.
    pub fn yaml(&self) -> String {
        let mut yaml = String::from("ajet:\n");
        let mut open: Vec<&str> = vec![];
        for (key, value) in &self.settings {
            let mut sections: Vec<&str> = key.split('.').collect();
            let name = sections.pop().unwrap_or_default();
            let shared = open.iter().zip(&sections).take_while(|(a, b)| a == b).count();
            for (depth, section) in sections.iter().enumerate().skip(shared) {
                yaml += &format!("{}{section}:\n", "  ".repeat(depth + 1));
            }
            yaml += &format!("{}{name}: {value}\n", "  ".repeat(sections.len() + 1));
            open = sections;
        }
        yaml
    }
}

/// A change of the configuration that saves memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// What changes, for people.
    pub what: String,
    /// Whether the model fits with this change alone.
    pub suffices: bool,
    /// Bytes of an update with it.
    pub update: f64,
}

/// A change, in the order in which they are tried.
struct Change {
    what: String,
    settings: Vec<(&'static str, String)>,
    apply: fn(&mut Ajet),
}

/// Changes that are open to a configuration, those that cost least first.
fn changes(ajet: &Ajet) -> Vec<Change> {
    let trainer = &ajet.trainer_common;
    let (lora, row) = (ajet.lora.is_on(), ajet.max_row_len());
    let mut changes = vec![];
    let mut add = |open: bool, what: String, settings: Vec<(&'static str, String)>, apply: fn(&mut Ajet)| {
        if open {
            changes.push(Change { what, settings, apply });
        }
    };
    add(
        trainer.recompute != Recompute::On,
        "recompute: on".into(),
        vec![("trainer_common.recompute", "\"on\"".into())],
        |ajet| ajet.trainer_common.recompute = Recompute::On,
    );
    add(
        trainer.ppo_max_token_len_per_gpu > row,
        format!("micro-batches of one row of {row} tokens"),
        vec![("trainer_common.ppo_max_token_len_per_gpu", row.to_string())],
        |ajet| ajet.trainer_common.ppo_max_token_len_per_gpu = ajet.max_row_len(),
    );
    add(
        (trainer.use_kl_loss || trainer.use_kl_in_reward) && !lora,
        "no KL term, so no reference".into(),
        vec![
            ("trainer_common.use_kl_loss", "false".into()),
            ("trainer_common.use_kl_in_reward", "false".into()),
        ],
        |ajet| {
            ajet.trainer_common.use_kl_loss = false;
            ajet.trainer_common.use_kl_in_reward = false;
        },
    );
    add(
        !lora,
        format!("LoRA of rank {LORA_RANK}"),
        vec![
            ("lora.lora_rank", LORA_RANK.to_string()),
            ("trainer_common.optim.lr", "1.0e-4".into()),
        ],
        |ajet| ajet.lora.lora_rank = LORA_RANK,
    );
    add(
        ajet.data.max_response_length > 1,
        "responses and micro-batches of half the length".into(),
        vec![
            (
                "data.max_response_length",
                (ajet.data.max_response_length / 2).to_string(),
            ),
            (
                "trainer_common.ppo_max_token_len_per_gpu",
                (trainer.ppo_max_token_len_per_gpu / 2).to_string(),
            ),
        ],
        |ajet| {
            ajet.data.max_response_length /= 2;
            ajet.trainer_common.ppo_max_token_len_per_gpu /= 2;
            ajet.rollout.max_model_len = None;
        },
    );
    changes
}

/// Finds the settings to take. Returns them, and the configuration with them.
pub fn advice(model: &ModelConfig, ajet: &Ajet, machines: &Machines, lengths: Lengths) -> (Advice, Ajet) {
    let memory = |ajet: &Ajet| Memory::new(model, ajet, machines);
    let configured_tokens = ajet.trainer_common.ppo_max_token_len_per_gpu;
    let mut ajet = ajet.clone();
    let mut settings: Vec<(String, String)> = vec![];
    let mut remedies = vec![];
    if !memory(&ajet).fits() {
        let open = changes(&ajet);
        let alone = |change: &Change| {
            let mut changed = ajet.clone();
            (change.apply)(&mut changed);
            let memory = memory(&changed);
            Remedy {
                what: change.what.clone(),
                suffices: memory.fits(),
                update: memory.update(),
            }
        };
        remedies = open.iter().map(alone).collect();
        let first = remedies.iter().position(|remedy| remedy.suffices);
        // One that suffices alone, or as many as are needed.
        let taken = first.map_or(0..open.len(), |first| first..first + 1);
        for change in &open[taken] {
            (change.apply)(&mut ajet);
            let keys = change.settings.iter();
            settings.extend(keys.map(|(key, value)| ((*key).to_owned(), value.clone())));
            if memory(&ajet).fits() {
                break;
            }
        }
    }
    let fits = memory(&ajet).fits();
    if fits {
        let found = tune(model, &mut ajet, machines, lengths, configured_tokens);
        settings.retain(|(key, _)| found.iter().all(|(new, _)| new != key));
        settings.extend(found);
    }
    settings.sort();
    settings.dedup();
    let advice = Advice {
        settings,
        fits,
        remedies,
    };
    (advice, ajet)
}

/// Sizes a configuration that fits: micro-batches as large as memory allows, up to those that were configured, and as many
/// sequences as are useful. Returns the settings.
fn tune(
    model: &ModelConfig,
    ajet: &mut Ajet,
    machines: &Machines,
    lengths: Lengths,
    configured_tokens: usize,
) -> Vec<(String, String)> {
    let fits = |ajet: &Ajet| Memory::new(model, ajet, machines).fits();
    let lengths = Lengths {
        response: lengths.response.min(ajet.data.max_response_length),
        ..lengths
    };
    // After a remedy that made them small.
    while ajet.trainer_common.ppo_max_token_len_per_gpu * 2 <= configured_tokens {
        let mut larger = ajet.clone();
        larger.trainer_common.ppo_max_token_len_per_gpu *= 2;
        if !fits(&larger) {
            break;
        }
        *ajet = larger;
    }
    // What limits then are the cache and the batch.
    ajet.rollout.max_num_seqs = ajet.episodes_per_batch().div_ceil(machines.ranks());
    ajet.rollout.max_env_worker = ajet.episodes_per_batch();
    let memory = Memory::new(model, ajet, machines);
    let sequences = Time::new(model, ajet, machines, lengths, &memory).sequences;
    let running = (sequences * machines.ranks()).min(ajet.episodes_per_batch());
    ajet.rollout.max_num_seqs = sequences;
    ajet.rollout.max_env_worker = running;
    let setting = |key: &str, value: usize| (key.to_owned(), value.to_string());
    vec![
        setting("trainer_common.n_gpus_per_node", machines.per_node),
        setting("trainer_common.nnodes", machines.nodes),
        setting(
            "trainer_common.ppo_max_token_len_per_gpu",
            ajet.trainer_common.ppo_max_token_len_per_gpu,
        ),
        setting("rollout.max_num_seqs", sequences),
        setting("rollout.max_env_worker", running),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{device, shapes};
    use super::*;
    use crate::config::{Strictness, load};

    fn of(model: &str, gpu: &str, change: impl FnOnce(&mut Ajet)) -> Advice {
        let machines = Machines {
            device: device::gpu(gpu).unwrap(),
            per_node: 8,
            nodes: 1,
            network: 12.5e9,
        };
        let mut ajet = Ajet::default();
        (ajet.data.max_prompt_length, ajet.data.max_response_length) = (1000, 3000);
        change(&mut ajet);
        let lengths = Lengths {
            prompt: 1000,
            response: 3000,
        };
        advice(&shapes::known(model).unwrap().unwrap(), &ajet, &machines, lengths).0
    }

    fn value<'a>(advice: &'a Advice, key: &str) -> Option<&'a str> {
        let found = advice.settings.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    #[test]
    fn what_fits_keeps_its_micro_batches_and_gets_all_its_sequences() {
        let found = of("qwen2.5-0.5b", "h100", |_| ());
        assert!(found.fits && found.remedies.is_empty());
        assert_eq!(value(&found, "trainer_common.ppo_max_token_len_per_gpu"), Some("16384"));
        assert_eq!(value(&found, "rollout.max_num_seqs"), Some("16"));
        assert_eq!(value(&found, "rollout.max_env_worker"), Some("128"));
        assert_eq!(value(&found, "lora.lora_rank"), None);
    }

    #[test]
    fn the_remedy_that_costs_least_is_taken() {
        let found = of("qwen2.5-7b", "h100", |ajet| ajet.trainer_common.use_kl_loss = true);
        assert!(found.fits);
        let suffices = |words: &str| {
            let remedy = found.remedies.iter().find(|remedy| remedy.what.contains(words));
            remedy.unwrap().suffices
        };
        // 15 GB of weights, as many of the reference, 11 of the optimizer, 30 of gradients and 16 of activations.
        assert!(!suffices("recompute") && !suffices("micro-batches of one row"));
        assert!(suffices("no KL term") && suffices("LoRA"));
        assert_eq!(value(&found, "trainer_common.use_kl_loss"), Some("false"));
        assert_eq!(value(&found, "lora.lora_rank"), None);
    }

    #[test]
    fn several_remedies_are_combined_where_none_suffices() {
        let found = of("qwen2.5-7b", "l40s", |ajet| ajet.data.max_response_length = 31_000);
        assert!(found.fits, "{found:?}");
        assert!(found.remedies.iter().all(|remedy| !remedy.suffices));
        assert_eq!(value(&found, "lora.lora_rank"), Some("16"));
    }

    #[test]
    fn weights_that_do_not_fit_are_not_helped() {
        let found = of("llama-3.1-70b", "h100", |_| ());
        assert!(!found.fits);
        assert!(found.remedies.iter().all(|remedy| !remedy.suffices));
    }

    #[test]
    fn settings_are_a_valid_configuration() {
        for (model, gpu) in [
            ("qwen2.5-0.5b", "h100"),
            ("qwen2.5-7b", "l40s"),
            ("qwen2.5-14b", "l40s"),
        ] {
            let found = of(model, gpu, |_| ());
            let yaml = found.yaml();
            let yaml = yaml.replace("ajet:\n", "ajet:\n  model: {path: 'builtin:tiny'}\n");
            let with_lengths = yaml.replace("  data:\n", "  data:\n    max_prompt_length: 1000\n");
            load(&with_lengths, Strictness::Job).unwrap_or_else(|error| panic!("{yaml}{error}"));
        }
    }
}
