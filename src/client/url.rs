//! URLs of swarm servers: parsing, joining, and hiding tokens.

use reqwest::Url;

use super::ClientError;

/// Scheme, authority and optional access path `/t/TOKEN` of a swarm server.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Without a trailing slash.
    base: String,
    host: String,
    port: u16,
}

impl ServerUrl {
    /// Parses `http://host:port` or `host:port`, optionally with `/t/TOKEN` and trailing slashes.
    ///
    /// # Errors
    /// [`ClientError::Url`] for anything else, including user and password, which HTTP libraries turn into basic
    /// authentication that hides episode keys.
    pub fn parse(given: &str) -> Result<Self, ClientError> {
        let given = given.trim();
        let error = |reason: &str| ClientError::Url {
            given: blank_token(given),
            reason: reason.into(),
        };
        let with_scheme = match given.contains("://") {
            true => given.to_string(),
            false => format!("http://{given}"),
        };
        let url = Url::parse(&with_scheme).map_err(|e| error(&e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(error("the scheme must be http or https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(error("the token must be in the path, as in http://host:10086/t/TOKEN"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(error("queries and fragments are not allowed"));
        }
        let host = url.host_str().ok_or_else(|| error("missing host"))?.to_string();
        let port = url.port_or_known_default().ok_or_else(|| error("missing port"))?;
        Ok(Self {
            base: url.as_str().trim_end_matches('/').to_string(),
            host,
            port,
        })
    }

    /// Returns the URL of a call, such as `/claim_episode`.
    pub fn join(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Rewrites a base URL reported by the server with our scheme and authority, since the server may be behind a
    /// forwarded port. Our token is left out: agents receive this URL, and an episode's key opens the model API without
    /// it.
    pub fn rebase(&self, told: &str) -> String {
        let path = Url::parse(told).map_or_else(|_| "/v1".to_string(), |url| url.path().to_string());
        let open = token_in(&self.base).map_or(self.base.as_str(), |token| {
            self.base[..token.start].trim_end_matches('/').trim_end_matches("/t")
        });
        format!("{open}{}", path.trim_end_matches('/'))
    }

    /// Returns the access token, if any.
    pub fn token(&self) -> Option<&str> {
        token_in(&self.base).map(|token| &self.base[token])
    }

    /// Returns whether the URL refers to this machine.
    pub fn is_local(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl std::fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blank_token(&self.base))
    }
}

impl std::fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServerUrl({self})")
    }
}

/// Path prefix of a token.
const TOKEN_PATH: &str = "/t/";

/// Returns a URL with the token in it, unless it already has one.
pub fn with_token(url: &str, token: Option<&str>) -> String {
    match token.map(str::trim).filter(|token| !token.is_empty()) {
        Some(token) if !url.contains("/t/") => format!("{}/t/{token}", url.trim_end_matches('/')),
        _ => url.to_string(),
    }
}

/// Replaces the token after `/t/`, and anything before an `@`, by an ellipsis.
pub fn blank_token(url: &str) -> String {
    let mut shown = url.to_string();
    let authority = shown.find("://").map_or(0, |scheme| scheme + 3);
    // The last one: a password may contain others.
    if let Some(at) = shown.rfind('@').filter(|at| authority < *at) {
        shown.replace_range(authority..at, "…");
    }
    if let Some(token) = token_in(&shown) {
        shown.replace_range(token, "…");
    }
    shown
}

/// Returns the range of the token. Like servers, treats doubled slashes as one.
fn token_in(url: &str) -> Option<std::ops::Range<usize>> {
    let path = url.find(TOKEN_PATH)? + TOKEN_PATH.len();
    let start = path + url[path..].len() - url[path..].trim_start_matches('/').len();
    let end = url[start..].find('/').map_or(url.len(), |length| start + length);
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_joined_and_shown_without_their_token() {
        for (given, joined, shown, local, port) in [
            (
                "http://localhost:10086",
                "http://localhost:10086/x",
                "http://localhost:10086",
                true,
                10086,
            ),
            (
                "http://127.0.0.1:7/",
                "http://127.0.0.1:7/x",
                "http://127.0.0.1:7",
                true,
                7,
            ),
            ("[::1]:7", "http://[::1]:7/x", "http://[::1]:7", true, 7),
            ("box:10086", "http://box:10086/x", "http://box:10086", false, 10086),
            (
                "https://box/t/s3cret//",
                "https://box/t/s3cret/x",
                "https://box/t/…",
                false,
                443,
            ),
        ] {
            let url = ServerUrl::parse(given).unwrap();
            assert_eq!(url.join("/x"), joined);
            assert_eq!(url.to_string(), shown);
            assert_eq!((url.is_local(), url.port()), (local, port), "{given}");
        }
    }

    #[test]
    fn a_model_base_url_is_reached_where_the_server_was_reached() {
        let url = ServerUrl::parse("http://laptop:9/t/s3cret").unwrap();
        assert_eq!(url.rebase("http://0.0.0.0:10086/v1"), "http://laptop:9/v1");
        assert_eq!(url.rebase("http://0.0.0.0:10086/v1/"), "http://laptop:9/v1");
        assert_eq!(url.rebase("nonsense"), "http://laptop:9/v1");
        for (given, base) in [
            ("http://laptop:9", "http://laptop:9/v1"),
            ("https://proxy/swarm/t/s3cret/", "https://proxy/swarm/v1"),
            ("http://laptop:9/t//s3cret", "http://laptop:9/v1"),
        ] {
            assert_eq!(ServerUrl::parse(given).unwrap().rebase("http://x/v1"), base, "{given}");
        }
    }

    #[test]
    fn other_urls_are_refused_without_telling_secrets() {
        for given in [
            "ftp://box:1",
            "http://u:s3cret@box:1",
            "u:s3cret@box:1",
            "http://u:p@s3cret@box:1",
            "http://u:p/s3cret@box:1",
            "http://box:1/t//s3cret?x=1",
            "http://box:1/t/s3cret?x=1",
            "http://",
            "http://box:99999",
        ] {
            let message = ServerUrl::parse(given).unwrap_err().to_string();
            assert!(message.contains("swarm server"), "{message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
    }
}
