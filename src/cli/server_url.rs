//! Options that select the server of a command.

use std::path::Path;

use anyhow::Context;

use crate::client::{ClientError, ServerUrl, SwarmClient};
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};

/// URL and token of the server.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// URL of the swarm server.
    #[arg(
        long,
        value_name = "URL",
        env = "AJET_SWARM_URL",
        default_value = "http://localhost:10086"
    )]
    pub swarm_url: String,
    /// Access token of the server, if it requires one.
    #[arg(long, env = "AJET_SWARM_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// Returns a URL with the token in it, unless it already has one.
pub(super) fn with_token(url: &str, token: Option<&str>) -> String {
    match token.map(str::trim).filter(|token| !token.is_empty()) {
        Some(token) if !url.contains("/t/") => format!("{}/t/{token}", url.trim_end_matches('/')),
        _ => url.to_string(),
    }
}

/// Reads the token in a file; surrounding white space is removed.
///
/// # Errors
/// Fails if the file cannot be read.
pub(super) fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = read_given_text(path, DOCUMENT_BYTES);
    let text = text.with_context(|| format!("cannot read --token-file {}", path.display()))?;
    Ok(text.trim().to_string())
}

impl ServerArgs {
    /// Returns the URL with the token in it, unless it already has one.
    ///
    /// # Errors
    /// Fails if it is not a valid server URL.
    pub fn url(&self) -> Result<ServerUrl, ClientError> {
        ServerUrl::parse(&with_token(&self.swarm_url, self.token.as_deref()))
    }

    /// Creates a client of the server.
    ///
    /// # Errors
    /// Fails as [`ServerArgs::url`] does, or if HTTPS cannot be set up.
    pub fn client(&self) -> Result<SwarmClient, ClientError> {
        SwarmClient::new(&self.url()?.join(""))
    }
}
