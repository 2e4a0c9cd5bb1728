//! Which server a command talks to.

use std::path::Path;

use anyhow::Context;

use crate::client::{ClientError, ServerUrl, SwarmClient};
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};

/// The server's URL and token.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The server.
    #[arg(
        long,
        value_name = "URL",
        env = "AJET_SWARM_URL",
        default_value = "http://localhost:10086"
    )]
    pub swarm_url: String,
    /// The server's access token, where it asks for one.
    #[arg(long, env = "AJET_SWARM_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// A URL with the token in it, unless it has one already.
pub(super) fn with_token(url: &str, token: Option<&str>) -> String {
    match token.map(str::trim).filter(|token| !token.is_empty()) {
        Some(token) if !url.contains("/t/") => format!("{}/t/{token}", url.trim_end_matches('/')),
        _ => url.to_string(),
    }
}

/// The token in a file, without the white space around it.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = read_given_text(path, DOCUMENT_BYTES);
    let text = text.with_context(|| format!("--token-file {} cannot be read", path.display()))?;
    Ok(text.trim().to_string())
}

impl ServerArgs {
    /// The URL with the token in it, unless it has one already.
    ///
    /// # Errors
    /// It is no URL of a server.
    pub fn url(&self) -> Result<ServerUrl, ClientError> {
        ServerUrl::parse(&with_token(&self.swarm_url, self.token.as_deref()))
    }

    /// A client of the server.
    ///
    /// # Errors
    /// As [`ServerArgs::url`], or HTTPS cannot be set up.
    pub fn client(&self) -> Result<SwarmClient, ClientError> {
        SwarmClient::new(&self.url()?.join(""))
    }
}
