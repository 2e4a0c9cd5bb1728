//! The URL of a swarm server: what is accepted, how calls are appended, what is shown.

use reqwest::Url;

use super::ClientError;

/// Scheme, authority and perhaps the access path `/t/TOKEN` of a swarm server.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Without a trailing slash.
    base: String,
    host: String,
    port: u16,
}

impl ServerUrl {
    /// Reads `http://host:port`, `host:port`, either with `/t/TOKEN` and trailing slashes.
    ///
    /// # Errors
    /// [`ClientError::Url`] for anything else; user and password among it, since HTTP libraries turn them into basic
    /// authorisation, which hides episode keys.
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
            return Err(error("its scheme is neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(error("a token goes into the path, as in http://host:10086/t/TOKEN"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(error("it has a query or a fragment"));
        }
        let host = url.host_str().ok_or_else(|| error("it has no host"))?.to_string();
        let port = url.port_or_known_default().ok_or_else(|| error("it has no port"))?;
        Ok(Self {
            base: url.as_str().trim_end_matches('/').to_string(),
            host,
            port,
        })
    }

    /// The URL of a call, such as `/claim_episode`.
    pub fn join(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A base URL that the server told, seen from here: its path behind our scheme, authority and token, since the
    /// server may sit behind a forwarded port.
    pub fn rebase(&self, told: &str) -> String {
        let path = Url::parse(told).map_or_else(|_| "/v1".to_string(), |url| url.path().to_string());
        self.join(path.trim_end_matches('/'))
    }

    /// Whether this machine is meant.
    pub fn is_local(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    }

    /// The port.
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

/// The text with what follows `/t/`, and what stands before an `@`, replaced by an ellipsis.
pub(super) fn blank_token(url: &str) -> String {
    let mut shown = url.to_string();
    if let (Some(scheme), Some(at)) = (shown.find("://"), shown.find('@'))
        && scheme + 3 < at
    {
        shown.replace_range(scheme + 3..at, "…");
    }
    if let Some(start) = shown.find("/t/").map(|at| at + 3) {
        let end = shown[start..].find('/').map_or(shown.len(), |length| start + length);
        shown.replace_range(start..end, "…");
    }
    shown
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
        assert_eq!(url.rebase("http://0.0.0.0:10086/v1"), "http://laptop:9/t/s3cret/v1");
        assert_eq!(url.rebase("http://0.0.0.0:10086/v1/"), "http://laptop:9/t/s3cret/v1");
        assert_eq!(url.rebase("nonsense"), "http://laptop:9/t/s3cret/v1");
    }

    #[test]
    fn other_urls_are_refused_without_telling_secrets() {
        for given in [
            "ftp://box:1",
            "http://u:s3cret@box:1",
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
