//! What can be wrong with a configuration.

use std::fmt;

/// Why a configuration was refused. All problems of a document are reported together.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The text is not YAML.
    #[error("the configuration is not valid YAML: {0}")]
    Syntax(String),
    /// The document is a list or a single value.
    #[error("the configuration is {0}, not a mapping with an `ajet:` section")]
    NotAMapping(String),
    /// The `ajet:` section is missing.
    #[error("the configuration has no `ajet:` section\nhint: its keys, such as `model` and `data`, go below `ajet:`")]
    NoAjetSection,
    /// Keys that are unknown or have values that are not allowed.
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
}

/// What is wrong with one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its path, such as `ajet.data.train_batch_size`.
    pub key: String,
    /// The value given and what is allowed.
    pub message: String,
}

impl Problem {
    /// A problem of `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Strictness, load};

    #[test]
    fn messages() {
        insta::assert_snapshot!(messages!(Error:
            Error::Syntax(_) => load("ajet: [", Strictness::Job).unwrap_err(),
            Error::NotAMapping(_) => load("- ajet", Strictness::Job).unwrap_err(),
            Error::NoAjetSection => Error::NoAjetSection,
            Error::Problems(_) => Error::Problems(vec![Problem::new("ajet.data.train_batch_size", "0 is not 1 or more")]),
        ));
    }

    /// One wrong value of every kind; the rules themselves are tested beside them.
    #[test]
    fn problems_and_warnings() {
        let wrong = "
            ajet:
              experiment_name: a/b
              model: {}
              data: {train_batch_size: 0, max_prompt_lenght: 8, max_response_length: many, max_prompt_length: 3.5}
              rollout: {temperature: 0, top_p: 2, top_k: 0, num_repeat: -1, tool_parser: xml, on_context_overflow: skip}
              trainer_common: {loss_agg_mode: mean, kl_loss_type: k4, optim: {betas: [0.9], lr: -1}, use_kl_loss: maybe}
              lora: {target_modules: [qkv], lora_alpha: 0}
              engine: {device: tpu, threads: [1]}
              task_reader: command";
        let combined = "
            ajet:
              model: {path: builtin:tiny}
              data: {max_prompt_length: 100, max_response_length: 50, train_batch_size: 4}
              rollout:
                max_model_len: 120
                max_response_length_in_one_turn: 60
                num_repeat: 1
              swarm_mode_sample_collection_method: rollout_until_finish_enough_non_dummy_tasks
              swarm_mode_sample_collection_max_cached_episodes: 2
              trainer_common: {overlong: {buffer_len: 60}, optim: {lr_scheduler_type: cosine}}
              lora: {target_modules: []}";
        let mut text = String::new();
        for document in [wrong, combined] {
            text += &format!("{}\n\n", load(document, Strictness::Job).unwrap_err());
        }
        let odd = "
            ajet:
              model: {path: builtin:tiny}
              rollout: {num_repeat: 1, tensor_model_parallel_size: 2}
              trainer_common: {logger: [wandb], optim: {lr: 1e-6}}
              lora: {lora_rank: 8}
              dta: {}";
        text += &load(odd, Strictness::Synced).unwrap().warnings.join("\n");
        insta::assert_snapshot!(text);
    }
}
