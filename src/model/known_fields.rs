//! Which fields of `config.json` are known. One that is not may change what the model computes, and is refused.

use serde_json::Value;

use super::config_fields::Fields;
use super::error::ModelError;
use super::family::Family;

/// Fields that are read for every family.
const READ: [&str; 17] = [
    "architectures",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
];

/// Fields that do not change the logits: token ids, dropout and initial values, outputs that Python can be asked for,
/// losses besides the policy's, sampling settings of old files, and what tools leave behind.
const WITHOUT_EFFECT: [&str; 63] = [
    "attention_dropout",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "full_attn_mod",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "interpolate_factor",
    "is_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "max_window_layers",
    "min_length",
    "model_max_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "sep_token_id",
    "suppress_tokens",
    "summary_first_dropout",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "use_bfloat16",
    "use_cache",
    "z_loss_coefficient",
];

/// Refuses fields that are neither known nor of a value that switches them off. Text names things, and Python's classes
/// keep fields that begin with an underscore to themselves: neither changes the result.
pub(super) fn check(fields: &Fields, family: Family) -> Result<(), ModelError> {
    let known = |key: &str| {
        READ.contains(&key)
            || family.traits().fields.contains(&key)
            || WITHOUT_EFFECT.contains(&key)
            || key.starts_with('_')
    };
    match fields.0.iter().find(|(key, value)| !known(key) && !is_off(key, value)) {
        None => Ok(()),
        Some((key, value)) => Err(ModelError::Config(format!(
            "`{key}` is {value}, which is not known for {} and may change what the model computes\nhint: if it does not, \
             remove it from config.json",
            family.architecture()
        ))),
    }
}

fn is_off(key: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) | Value::String(_) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) if key == "layer_types" => items.iter().all(|item| item == "full_attention"),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}
