//! Which server a command talks to.

use crate::client::{ClientError, ServerUrl, SwarmClient};

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

impl ServerArgs {
    /// The URL with the token in it, unless it has one already.
    ///
    /// # Errors
    /// It is no URL of a server.
    pub fn url(&self) -> Result<ServerUrl, ClientError> {
        match self.token.as_deref().filter(|token| !token.is_empty()) {
            Some(token) if !self.swarm_url.contains("/t/") => {
                ServerUrl::parse(&format!("{}/t/{token}", self.swarm_url.trim_end_matches('/')))
            }
            _ => ServerUrl::parse(&self.swarm_url),
        }
    }

    /// A client of the server.
    ///
    /// # Errors
    /// As [`ServerArgs::url`], or HTTPS cannot be set up.
    pub fn client(&self) -> Result<SwarmClient, ClientError> {
        SwarmClient::new(&self.url()?.join(""))
    }
}
