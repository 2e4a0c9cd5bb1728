//! The configuration that an experiment keeps from its last start, and how another one differs from it.

use std::path::Path;

use serde_json::Value;

use crate::config::schema::Ajet;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::config::{Strictness, dump_yaml, load};
use crate::protocol::run_files::CONFIG_FILE;
use crate::protocol::swarm::ConfigDifference;
use crate::runs::{HistoryQuery, MetricsIndex};
use crate::server::checkpoints;

/// Keeps the configuration with which the experiment in `dir` is started.
///
/// # Errors
///
/// The file cannot be written.
pub fn keep(dir: &Path, config_yaml: &str) -> std::io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".train_config").tempfile_in(dir)?;
    std::io::Write::write_all(&mut file, config_yaml.as_bytes())?;
    file.persist(dir.join(CONFIG_FILE))?;
    Ok(())
}

/// The configuration with which the experiment in `dir` was last started, where there is one that can be read.
pub fn kept(dir: &Path) -> Option<Ajet> {
    let yaml = read_text(&dir.join(CONFIG_FILE), DOCUMENT_BYTES).ok()?;
    Some(load(&yaml, Strictness::Synced).ok()?.ajet)
}

/// The same, of an experiment in which something was trained. Another one has nothing to continue: its next start may be
/// of any configuration.
pub fn of_training(dir: &Path) -> Option<Ajet> {
    was_trained(dir).then(|| kept(dir)).flatten()
}

/// Returns whether the experiment in `dir` had an update: there is a checkpoint, or a step has metrics that are not of an
/// evaluation.
fn was_trained(dir: &Path) -> bool {
    if !checkpoints::list(dir).checkpoints.is_empty() {
        return true;
    }
    let steps = MetricsIndex::new(dir).read(&HistoryQuery::default());
    // A file that cannot be read may have updates.
    steps.map_or(true, |(steps, _)| {
        let mut names = steps.iter().flat_map(|step| step.metrics.keys());
        names.any(|name| name != "global_step" && !name.starts_with("eval/"))
    })
}

/// Every key whose value differs, in the order of the schema.
pub fn differences(given: &Ajet, present: &Ajet) -> Vec<ConfigDifference> {
    // The configuration's keys are strings and its floats finite: it always is a value.
    let value = |ajet: &Ajet| serde_json::to_value(with_lengths(ajet)).unwrap_or_default();
    let mut found = Vec::new();
    compare("ajet", &value(given), &value(present), &mut found);
    found
}

/// Returns the configuration with the lengths that follow from others written out, as our clients send it. The task reader
/// is the client's own matter and is left out.
fn with_lengths(ajet: &Ajet) -> Ajet {
    match load(&dump_yaml(ajet), Strictness::Synced) {
        Ok(loaded) => loaded.ajet,
        Err(_) => ajet.clone(),
    }
}

fn compare(key: &str, given: &Value, present: &Value, found: &mut Vec<ConfigDifference>) {
    match (given, present) {
        (Value::Object(of_given), Value::Object(of_present)) => {
            let missing = of_present.keys().filter(|name| !of_given.contains_key(*name));
            for name in of_given.keys().chain(missing) {
                let side = |of: &serde_json::Map<String, Value>| of.get(name).cloned().unwrap_or_default();
                compare(&format!("{key}.{name}"), &side(of_given), &side(of_present), found);
            }
        }
        (given, present) if given != present => found.push(ConfigDifference {
            key: key.to_owned(),
            given: given.clone(),
            present: present.clone(),
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::run_files::METRICS_FILE;
    use serde_json::json;

    #[test]
    fn every_differing_key_is_named_with_both_values() {
        let mut present = Ajet::default();
        present.model.path = "builtin:small".into();
        assert_eq!(differences(&present, &present), []);
        let mut given = present.clone();
        given.model.path = "builtin:tiny".into();
        given.trainer_common.optim.lr = 0.5;
        given.rollout.max_model_len = Some(20_000);
        let found = differences(&given, &present);
        let keys: Vec<_> = found.iter().map(|difference| difference.key.as_str()).collect();
        assert_eq!(
            keys,
            [
                "ajet.model.path",
                "ajet.rollout.max_model_len",
                "ajet.trainer_common.optim.lr"
            ]
        );
        assert_eq!(found[1].given, json!(20_000));
        let implied = present.max_model_len();
        let mut explicit = present.clone();
        explicit.rollout.max_model_len = Some(implied);
        assert_eq!(differences(&explicit, &present), []);
    }

    #[test]
    fn what_an_experiment_was_started_with_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        assert!(kept(dir.path()).is_none());
        keep(dir.path(), "ajet: {model: {path: m}, data: {train_batch_size: 3}}").unwrap();
        assert_eq!(kept(dir.path()).unwrap().data.train_batch_size, 3);
    }

    /// Seen: a try with the wrong model, in which nothing was trained, blocked the corrected job.
    #[test]
    fn only_an_experiment_with_an_update_has_something_to_continue() {
        let dir = tempfile::tempdir().unwrap();
        keep(dir.path(), "ajet: {model: {path: m}}").unwrap();
        for (metrics, expected) in [
            ("", false),
            ("{\"global_step\":1,\"eval/reward_mean\":0.5}\n", false),
            ("{\"global_step\":1,\"actor/loss\":0.5}\n", true),
        ] {
            std::fs::write(dir.path().join(METRICS_FILE), metrics).unwrap();
            assert_eq!(of_training(dir.path()).is_some(), expected, "{metrics}");
        }
    }
}
