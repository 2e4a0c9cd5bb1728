//! Identity of a training run: the settings on which its checkpoints and journal depend.

use serde::{Deserialize, Serialize};

use crate::config::schema::{Ajet, TargetModules};

/// Model and adapter of a run. An experiment can only be resumed with an equal identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// `ajet.model.path`.
    pub model: String,
    /// `ajet.lora.lora_rank`; 0 is full fine-tuning.
    pub lora_rank: usize,
    /// `ajet.lora.lora_alpha`; 0 without LoRA.
    pub lora_alpha: f64,
    /// `ajet.lora.target_modules`, sorted; empty without LoRA.
    pub target_modules: Vec<String>,
}

/// The configuration does not match the experiment directory.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "{key} is {asked}, but the experiment in this directory was started with {begun}; hint: set another ajet.experiment_name, or the old value"
)]
pub struct IdentityMismatch {
    key: &'static str,
    asked: String,
    begun: String,
}

impl RunIdentity {
    /// Returns the identity of a configuration.
    pub fn new(config: &Ajet) -> Self {
        let lora = &config.lora;
        if lora.lora_rank == 0 {
            return Self {
                model: config.model.path.clone(),
                ..Self::default()
            };
        }
        let mut target_modules = match &lora.target_modules {
            TargetModules::Name(name) => vec![name.clone()],
            TargetModules::List(names) => names.clone(),
        };
        target_modules.sort();
        Self {
            model: config.model.path.clone(),
            lora_rank: lora.lora_rank,
            lora_alpha: lora.lora_alpha,
            target_modules,
        }
    }

    /// Checks that a job with this identity can resume a run with `begun`. The error contains both values.
    pub fn check_resumes(&self, begun: &Self) -> Result<(), IdentityMismatch> {
        let differing = [
            (
                "ajet.model.path",
                format!("`{}`", self.model),
                format!("`{}`", begun.model),
            ),
            (
                "ajet.lora.lora_rank",
                self.lora_rank.to_string(),
                begun.lora_rank.to_string(),
            ),
            (
                "ajet.lora.lora_alpha",
                self.lora_alpha.to_string(),
                begun.lora_alpha.to_string(),
            ),
            (
                "ajet.lora.target_modules",
                format!("{:?}", self.target_modules),
                format!("{:?}", begun.target_modules),
            ),
        ]
        .into_iter()
        .find(|(_, asked, begun)| asked != begun);
        match differing {
            Some((key, asked, begun)) => Err(IdentityMismatch { key, asked, begun }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lora(rank: usize, modules: &[&str]) -> Ajet {
        let mut config = Ajet::default();
        config.model.path = "builtin:tiny".into();
        config.lora.lora_rank = rank;
        config.lora.target_modules = TargetModules::List(modules.iter().map(|m| (*m).into()).collect());
        config
    }

    #[test]
    fn the_order_of_target_modules_and_lora_settings_without_lora_do_not_matter() {
        let a = RunIdentity::new(&lora(8, &["q_proj", "v_proj"]));
        assert_eq!(a, RunIdentity::new(&lora(8, &["v_proj", "q_proj"])));
        assert_eq!(
            RunIdentity::new(&lora(0, &["q_proj"])),
            RunIdentity::new(&lora(0, &["v_proj"]))
        );
    }

    #[test]
    fn a_mismatch_names_the_key_and_both_values() {
        let asked = RunIdentity::new(&lora(16, &["q_proj"]));
        let begun = RunIdentity::new(&lora(8, &["q_proj"]));
        assert_eq!(asked.check_resumes(&asked), Ok(()));
        let error = asked.check_resumes(&begun).unwrap_err().to_string();
        assert!(
            error.starts_with("ajet.lora.lora_rank is 16, but the experiment in this directory was started with 8")
        );
        let mut other = asked.clone();
        other.model = "elsewhere".into();
        let error = other.check_resumes(&asked).unwrap_err().to_string();
        assert!(error.contains("`elsewhere`") && error.contains("`builtin:tiny`"));
    }
}
