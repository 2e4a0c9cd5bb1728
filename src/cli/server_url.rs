//! Options that select the server of a command.

use std::path::{Path, PathBuf};

use anyhow::Context;

pub(super) use crate::client::with_token;
use crate::client::{ServerUrl, SwarmClient};
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};
use crate::protocol::swarm::TOKEN_VARIABLE;

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
    #[arg(long, env = TOKEN_VARIABLE, hide_env_values = true)]
    pub token: Option<String>,
    /// File with the access token of the server, instead of `--token`.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
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

/// Returns the token in a file or, where none is named, the given one.
///
/// # Errors
/// Fails if the file cannot be read.
pub(super) fn given_token(token: Option<&str>, file: Option<&Path>) -> anyhow::Result<Option<String>> {
    match file {
        Some(path) => read_token(path).map(Some),
        None => Ok(token.map(str::to_owned)),
    }
}

impl ServerArgs {
    /// Returns the URL with the token in it, unless it already has one.
    ///
    /// # Errors
    /// Fails if it is not a valid server URL, or the token's file cannot be read.
    pub fn url(&self) -> anyhow::Result<ServerUrl> {
        let token = given_token(self.token.as_deref(), self.token_file.as_deref())?;
        Ok(ServerUrl::parse(&with_token(&self.swarm_url, token.as_deref()))?)
    }

    /// Creates a client of the server.
    ///
    /// # Errors
    /// Fails as [`ServerArgs::url`] does, or if HTTPS cannot be set up.
    pub fn client(&self) -> anyhow::Result<SwarmClient> {
        Ok(SwarmClient::new(&self.url()?.join(""))?)
    }
}
