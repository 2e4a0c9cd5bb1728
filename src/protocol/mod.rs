//! Wire types, named once: client ↔ server ([`swarm`]), dashboards ↔ server ([`status`]), server ↔ engine ([`engine`]),
//! engine ↔ samplers elsewhere ([`completions`]),
//! agent ↔ model API ([`openai`], [`responses`], [`anthropic`]; what becomes of each of their fields: [`fields`]); and the
//! layout of checkpoints ([`checkpoint`]) and of what dashboards read ([`run_files`]) on disk.
//!
//! Nothing here does I/O or holds state; every other layer may use it.

pub mod anthropic;
pub mod checkpoint;
pub mod completions;
pub mod engine;
pub mod fields;
pub mod openai;
pub mod responses;
pub mod run_files;
pub mod status;
pub mod swarm;
pub mod training_code;
pub mod type_error;

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::{anthropic, openai, responses};

    fn comes_back<T: serde::Serialize + DeserializeOwned>(text: &str) {
        let read: T = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    /// What serde gathers before it knows the type: tagged and untagged enums, flattened fields.
    #[test]
    fn numbers_in_gathered_fields_keep_their_digits() {
        for number in [
            "0",
            "-0",
            "42",
            "-42",
            "0.1",
            "1.10",
            "-2.50e-7",
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775809",
            "12345678901234567890123",
            "1e+400",
        ] {
            comes_back::<anthropic::ContentBlock>(&format!(
                r#"{{"type":"tool_use","id":"a","name":"f","input":{{"n":[{number}]}}}}"#
            ));
            comes_back::<anthropic::StreamEvent>(&format!(
                r#"{{"type":"content_block_start","index":3,"content_block":{{"type":"tool_use","id":"a","name":"f","input":{{"n":{number}}}}}}}"#
            ));
            comes_back::<responses::Reasoning>(&format!(r#"{{"effort":"low","n":{number}}}"#));
            comes_back::<responses::OutputItem>(&format!(
                r#"{{"type":"shell_call","id":"a","call_id":"b","action":{{"n":{number}}},"status":"completed"}}"#
            ));
            for wrong in [number.to_owned(), format!("[{number}]")] {
                assert!(serde_json::from_str::<openai::StopStrings>(&wrong).is_err(), "{wrong}");
            }
        }
    }
}
