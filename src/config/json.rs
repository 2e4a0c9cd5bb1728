//! A configuration as JSON, for a program of the same version: the engine, and a resume of its experiment.

use serde::{Deserialize, Serialize};

use super::schema::Ajet;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<T> {
    ajet: T,
}

/// The configuration with every value, an object with `ajet` at the top. It is YAML too.
pub fn to_json(ajet: &Ajet) -> String {
    // Plain data with text keys, whose numbers are finite, always has JSON.
    serde_json::to_string(&Document { ajet }).unwrap_or_default()
}

/// The configuration that [`to_json`] wrote. Keys must be known and values have their types; what is left out has its
/// default.
///
/// # Errors
/// Fails if the text is something else.
pub fn from_json(json: &str) -> Result<Ajet, serde_json::Error> {
    serde_json::from_str::<Document<Ajet>>(json).map(|document| document.ajet)
}

#[cfg(test)]
mod tests {
    use super::super::fit::Strictness;
    use super::super::load::load;
    use super::*;

    #[test]
    fn a_configuration_survives_as_json_and_as_yaml() {
        let yaml = "ajet: {model: {path: \"a\\n😀\"}, trainer_common: {optim: {lr: 3.0e-7, betas: [0, 0.95]}, save_freq: -1}, \
                    lora: {target_modules: [q_proj]}, rollout: {agent_madness_reward: -0.1}}";
        let ajet = load(yaml, Strictness::Job).unwrap().ajet;
        let json = to_json(&ajet);
        assert_eq!(from_json(&json).unwrap(), ajet);
        assert_eq!(load(&json, Strictness::Job).unwrap().ajet, ajet);
    }

    #[test]
    fn only_known_keys_with_values_of_their_types_are_read() {
        for json in [
            r#"{"ajet": {"zzz": 1}}"#,
            r#"{"ajet": {"data": {"train_batch_size": "8"}}}"#,
            r#"{"ajet": {"lora": {"rank": 8}}}"#,
            r#"{"ajet": {}, "roll": {}}"#,
            "ajet: {}",
        ] {
            assert!(from_json(json).is_err(), "{json}");
        }
    }
}
