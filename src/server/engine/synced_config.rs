//! Reading a synced YAML as the configuration of the next start.

use crate::config::{Loaded, Strictness, load, load_over};
use crate::server::swarm::core::SyncedConfig;

/// Reads and checks `yaml`; the YAML document `defaults` provides the keys missing in it. Logs what has no effect.
///
/// # Errors
///
/// Returns what is wrong, as a sentence.
pub fn read(yaml: &str, defaults: Option<&str>) -> Result<SyncedConfig, String> {
    let loaded = read_quietly(yaml, defaults)?;
    if !loaded.ignored.is_empty() {
        tracing::info!("configuration keys ignored here: {}", loaded.ignored.join(", "));
    }
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(SyncedConfig {
        ajet: loaded.ajet,
        notice: (!loaded.warnings.is_empty()).then(|| loaded.warnings.join("; ")),
    })
}

/// As [`read`], without logging, for a configuration that is only compared.
///
/// # Errors
///
/// Returns what is wrong, as a sentence.
pub fn read_quietly(yaml: &str, defaults: Option<&str>) -> Result<Loaded, String> {
    let loaded = match defaults {
        Some(defaults) => load_over(defaults, yaml, Strictness::Synced),
        None => load(yaml, Strictness::Synced),
    };
    loaded.map_err(|error| error.to_string())
}
