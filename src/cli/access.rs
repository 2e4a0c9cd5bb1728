//! Options that select who can reach a server of this program.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;

use super::server_url::read_token;
use crate::server::{TOKEN_VARIABLE, Token};

/// Address and token of a server.
#[derive(Debug, clap::Args)]
pub struct Access {
    /// Address to listen on. Any non-loopback address requires a token, or --insecure.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// File with the access token that clients must send; also settable as AJET_SWARM_TOKEN.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Allow access without a token: everyone who reaches the port can use the server, and the machine's GPU.
    #[arg(long, conflicts_with = "token_file")]
    insecure: bool,
    /// Host name under which clients reach a server without a token, such as that of a container or reverse proxy.
    /// Repeatable. IP addresses, localhost and this machine's name are always accepted.
    #[arg(long, value_name = "NAME")]
    pub allowed_host: Vec<String>,
}

/// An access token that clients need.
pub struct AccessToken {
    /// What requests are compared with.
    pub token: Token,
    /// Its text.
    pub text: String,
    /// Whether it was generated here, so that it must be shown.
    pub is_generated: bool,
}

impl Access {
    /// Returns the token that clients need; `None` if anyone who reaches the port may use the server.
    ///
    /// # Errors
    /// Fails if the token cannot be read, or is not valid.
    pub fn token(&self) -> anyhow::Result<Option<AccessToken>> {
        if let Some(path) = &self.token_file {
            return given(read_token(path)?, &format!("--token-file {}", path.display()));
        }
        if let Some(text) = std::env::var_os(TOKEN_VARIABLE).filter(|text| !text.is_empty() && !self.insecure) {
            return given(text.to_string_lossy().into_owned(), TOKEN_VARIABLE);
        }
        if self.host.is_loopback() || self.insecure {
            return Ok(None);
        }
        let (token, text) = Token::random();
        Ok(Some(AccessToken {
            token,
            text,
            is_generated: true,
        }))
    }
}

fn given(text: String, source: &str) -> anyhow::Result<Option<AccessToken>> {
    let token = Token::new(&text).with_context(|| format!("invalid token in {source}"))?;
    Ok(Some(AccessToken {
        token,
        text,
        is_generated: false,
    }))
}
