//! A job that joins an engine, or continues an experiment: what is different there, and whether that may be.

use std::fmt::Write as _;

use serde_json::Value;

use super::error::RollError;
use super::fleet::Member;
use super::run::Run;
use crate::protocol::swarm::{CompareTrainConfigAnswer, ComparedWith, ConfigDifference, EngineStatus};

/// Keys that change neither what is learned nor how; the keys below them too.
const HARMLESS: [&str; 14] = [
    // The server does not get it.
    "ajet.task_reader",
    "ajet.project_name",
    "ajet.experiment_dir",
    "ajet.swarm_mode_rolling_post_timeout",
    "ajet.trainer_common.save_freq",
    "ajet.trainer_common.keep_last",
    "ajet.trainer_common.keep_best",
    "ajet.trainer_common.logger",
    "ajet.trainer_common.total_training_steps",
    "ajet.trainer_common.save_trajectory_as_json_file",
    "ajet.trainer_common.trajectory_limit_mb",
    "ajet.trainer_common.train_print_to_markdown_file_path",
    "ajet.trainer_common.val_print_to_markdown_file_path",
    "ajet.engine",
];

/// Longest value that is shown.
const SHOWN: usize = 60;

impl Run {
    /// Compares the job with the engines that run or the experiments that it would continue.
    ///
    /// # Errors
    /// They differ in what matters, and the user has not said `--join`; or `--fresh` meets an engine that trains.
    pub async fn check_what_is_joined(&self) -> Result<(), RollError> {
        for member in self.fleet.members() {
            self.check_member(member).await?;
        }
        Ok(())
    }

    async fn check_member(&self, member: &Member) -> Result<(), RollError> {
        let swarm = &member.swarm;
        let is_up = swarm.status().await?.engine_status != EngineStatus::Offline;
        let stays_up = is_up && !self.job.roll.force_restart;
        if self.options.fresh && stays_up {
            return Err(RollError::Busy(swarm.url().to_string()));
        }
        if is_up && !stays_up {
            return Ok(());
        }
        let Some((compared, differences)) = differences(member).await? else {
            return Ok(());
        };
        let (there, hint) = match compared.compared_with {
            ComparedWith::Engine => (
                runs_differently(member),
                "`--join` takes part in its training as it is; `roll.force_restart: true` stops it first",
            ),
            _ => (
                format!(
                    "the experiment in {} was trained with another configuration",
                    compared.experiment_dir
                ),
                "`--join` continues it with this job's; `--fresh` begins a new experiment, as does another \
                 ajet.experiment_name",
            ),
        };
        match self.options.join {
            true => {
                self.progress.note(&format!("{there}:{differences}"));
                Ok(())
            }
            false => Err(RollError::Differs {
                there,
                differences,
                hint,
            }),
        }
    }
}

/// Returns a note if the engine that runs already has another configuration than the job: episodes have its model and its
/// limits, not the job's.
///
/// # Errors
/// The server cannot be reached.
pub(super) async fn note_of_engine(member: &Member) -> Result<Option<String>, RollError> {
    let differences = differences(member).await?;
    Ok(differences.map(|(_, table)| {
        format!(
            "{}, with which this episode was run:{table}\nhint: `ajet-swarm stop` stops it, so that the job's is used",
            runs_differently(member)
        )
    }))
}

fn runs_differently(member: &Member) -> String {
    format!("the engine at {} runs with another configuration", member.swarm.url())
}

/// What the server compared the job with, and a line for each difference that matters; `None` without one.
async fn differences(member: &Member) -> Result<Option<(CompareTrainConfigAnswer, String)>, RollError> {
    let Some(compared) = member.swarm.compare_train_config(&member.document).await? else {
        return Ok(None);
    };
    let differences = significant(&compared);
    let table = (!differences.is_empty()).then(|| table(&differences));
    Ok(table.map(|table| (compared, table)))
}

/// The differences that change what is learned. An experiment that is continued was found by its name.
fn significant(compared: &CompareTrainConfigAnswer) -> Vec<&ConfigDifference> {
    let is_below = |key: &str, of: &str| {
        key.strip_prefix(of)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let matters = |difference: &&ConfigDifference| {
        let key = difference.key.as_str();
        let is_its_name = compared.compared_with == ComparedWith::Experiment && key == "ajet.experiment_name";
        !is_its_name && !HARMLESS.iter().any(|harmless| is_below(key, harmless))
    };
    compared.differences.iter().filter(matters).collect()
}

/// A line for each difference.
fn table(differences: &[&ConfigDifference]) -> String {
    let mut table = String::new();
    for difference in differences {
        let (key, there, here) = (&difference.key, shown(&difference.present), shown(&difference.given));
        // Writing to a string cannot fail.
        let _ = write!(table, "\n  {key}: {there} there, {here} in this job");
    }
    table
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_matters_of_a_difference_depends_on_what_is_joined() {
        for (key, engine, experiment) in [
            ("ajet.model.path", true, true),
            ("ajet.trainer_common.optim.lr", true, true),
            ("ajet.task_reader.type", false, false),
            ("ajet.experiment_name", true, false),
            ("ajet.trainer_common.save_freq", false, false),
            ("ajet.engine.device", false, false),
        ] {
            for (compared_with, expected) in [(ComparedWith::Engine, engine), (ComparedWith::Experiment, experiment)] {
                let compared = CompareTrainConfigAnswer {
                    compared_with,
                    experiment_dir: String::new(),
                    differences: vec![ConfigDifference {
                        key: key.into(),
                        given: json!(1),
                        present: json!("x"),
                    }],
                };
                assert_eq!(!significant(&compared).is_empty(), expected, "{key} {compared_with:?}");
                assert_eq!(
                    table(&compared.differences.iter().collect::<Vec<_>>()),
                    format!("\n  {key}: \"x\" there, 1 in this job")
                );
            }
        }
    }
}
