//! Host names that a server without an access token accepts.
//!
//! Any web page can make a browser send requests to this machine, and a page whose domain is made to resolve to this
//! machine (DNS rebinding) can even read the answers. Such a request has that domain as `Host`. An IP address cannot be
//! rebound, so the server accepts addresses, names that no outsider can own, and names that its user allows. The
//! headers that only browsers send (`Origin`, `Sec-Fetch-Site`) reveal pages of other sites.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method, Uri, header};

/// Names of this machine: its own, and those under which containers reach their host.
const OURS: [&str; 3] = ["localhost", "host.docker.internal", "host.containers.internal"];
/// Maximum number of characters shown of a refused name.
const SHOWN: usize = 100;

/// Accepted host names besides IP addresses, in lower case.
#[derive(Clone, Debug)]
pub struct Hosts(Vec<String>);

impl Default for Hosts {
    fn default() -> Self {
        Self::new([])
    }
}

/// Reasons to refuse a request.
#[derive(Debug, PartialEq)]
pub enum RefusedOrigin {
    /// `Host` is not an accepted name.
    Host(String),
    /// A web page of another site sent the request.
    Page,
}

impl Hosts {
    /// Accepts the names of this machine and the `allowed` ones.
    pub fn new(allowed: impl IntoIterator<Item = String>) -> Self {
        let machine = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let names = OURS.map(str::to_owned).into_iter().chain(machine).chain(allowed);
        Self(names.map(|name| normalised(&name)).collect())
    }

    /// Checks the host that a request names and the page that sends it. A request without `Host` passes: no browser
    /// sends one.
    ///
    /// # Errors
    ///
    /// Fails if the host is not accepted, or the page belongs to another site.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), RefusedOrigin> {
        let named: Vec<String> = uri.authority().map(ToString::to_string).into_iter().collect();
        let named = named.into_iter().chain(values(headers, header::HOST.as_str()));
        let named: Vec<String> = named.collect();
        let unserved = |authority: &&String| !Authority::parse(authority).is_some_and(|asked| self.serves(&asked.host));
        if let Some(host) = named.iter().find(unserved) {
            return Err(RefusedOrigin::Host(host.chars().take(SHOWN).collect()));
        }
        if headers.get_all(header::HOST).iter().count() > 1 {
            return Err(RefusedOrigin::Host(named.join(", ").chars().take(SHOWN).collect()));
        }
        let mut origins = values(headers, header::ORIGIN.as_str()).peekable();
        let is_ours = match origins.peek() {
            Some(_) => origins.all(|origin| self.is_our_page(&origin, named.first())),
            None => !is_of_another_site(headers) || is_followed_link(method, headers),
        };
        if is_ours { Ok(()) } else { Err(RefusedOrigin::Page) }
    }

    fn serves(&self, host: &Host) -> bool {
        match host {
            Host::Address(_) => true,
            Host::Name(name) => self.0.contains(name),
        }
    }

    /// Returns whether a page's origin is this machine, an allowed name, or the requested host itself.
    fn is_our_page(&self, origin: &str, asked: Option<&String>) -> bool {
        let authority = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        let Some(page) = authority.and_then(Authority::parse) else {
            return false; // such as `null`
        };
        match &page.host {
            Host::Name(_) => self.serves(&page.host),
            Host::Address(address) => {
                address.to_canonical().is_loopback() || asked.and_then(|asked| Authority::parse(asked)) == Some(page)
            }
        }
    }
}

/// Returns whether a page of another site sends this request without an origin.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    values(headers, "sec-fetch-site").any(|site| site == "cross-site")
}

/// Returns whether the user follows a link to a page of this server; a submitted form or an embedded frame is not that.
fn is_followed_link(method: &Method, headers: &HeaderMap) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
        && values(headers, "sec-fetch-mode").any(|mode| mode == "navigate")
        && values(headers, "sec-fetch-dest").all(|shown_in| shown_in == "document")
}

fn values<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = String> + 'a {
    let values = headers.get_all(name).iter();
    values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// `host` or `host:port`.
#[derive(Debug, PartialEq)]
struct Authority {
    host: Host,
    port: Option<u16>,
}

#[derive(Debug, PartialEq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl Authority {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                // A zone only selects one of this machine's networks.
                let address = address.split('%').next()?;
                (Host::Address(IpAddr::V6(address.parse().ok()?)), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                let name = normalised(name);
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                if name.is_empty() || !name.chars().all(is_plain) {
                    return None;
                }
                (name.parse().map_or(Host::Name(name), Host::Address), port)
            }
        };
        let port = match port.strip_prefix(':') {
            Some(port) if port.bytes().all(|digit| digit.is_ascii_digit()) => Some(port.parse().ok()?),
            Some(_) => return None,
            None if port.is_empty() => None,
            None => return None,
        };
        Some(Self { host, port })
    }
}

/// Returns a name in lower case, without the trailing dot.
fn normalised(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uri: &str, headers: &[(&'static str, &str)]) -> Result<(), RefusedOrigin> {
        check_by(&Method::GET, uri, headers)
    }

    fn check_by(method: &Method, uri: &str, headers: &[(&'static str, &str)]) -> Result<(), RefusedOrigin> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let hosts = Hosts::new(["Swarm.Example.com".to_owned()]);
        hosts.check(method, &uri.parse().unwrap(), &map)
    }

    // Seen with `Host: evil:PORT` and the same `Origin`: DNS rebinding.
    #[test]
    fn only_addresses_our_names_and_allowed_names_are_served() {
        for host in [
            "localhost",
            "LOCALHOST:10086",
            "localhost.",
            "localhost.:1",
            "127.0.0.1:10086",
            "127.8.9.10",
            "[::1]:10086",
            "[::1]",
            "[fe80::1%25eth0]:80",
            "192.168.1.5:10086",
            "swarm.example.com",
            "SWARM.example.com.:443",
            "host.docker.internal:10086",
        ] {
            assert_eq!(check("/health", &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example:10086",
            "evil",
            "localhost.evil.example",
            "evil.localhost.example",
            "127.0.0.1.evil.example",
            "127.0.0.1.nip.io:10086",
            "localhost@evil.example",
            "localhost:x@evil.example",
            "localhost:10086:1",
            "localhost:99999",
            "localhost:+1",
            "localhost ",
            "localhost..",
            "[::1].evil.example",
            "[::1]evil",
            "[evil]",
            "2130706433",
            "0x7f000001",
            "127.1",
            "0177.0.0.1",
            "",
            ":10086",
            "swarm.example.com.evil",
            "xn--localhost-",
            "localhost,evil",
            "evil/localhost",
            "localhost#evil",
            "ⓛocalhost",
        ] {
            let shown = RefusedOrigin::Host(host.to_owned());
            assert_eq!(check("/health", &[("host", host)]), Err(shown), "{host}");
        }
        assert_eq!(
            check("/health", &[]),
            Ok(()),
            "HTTP/1.0 and programs: no browser leaves the host out"
        );
    }

    #[test]
    fn every_place_that_names_a_host_is_checked() {
        let evil = |host: &str| Err(RefusedOrigin::Host(host.to_owned()));
        assert_eq!(
            check("http://evil.example/health", &[("host", "localhost")]),
            evil("evil.example")
        );
        assert_eq!(
            check("http://localhost:1/health", &[("host", "evil.example")]),
            evil("evil.example")
        );
        assert_eq!(check("http://localhost:1/health", &[("host", "localhost:1")]), Ok(()));
        assert_eq!(check("http://a@localhost/health", &[]), evil("a@localhost"));
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check("/health", &twice), evil("evil.example"));
        let twice = [("host", "localhost"), ("host", "127.0.0.1")];
        assert_eq!(check("/health", &twice), evil("localhost, 127.0.0.1"));
    }

    #[test]
    fn pages_of_other_sites_are_told_from_clients_and_our_own_pages() {
        for (origin, host) in [
            ("http://localhost:3000", "127.0.0.1:10086"),
            ("http://[::1]:3000", "127.0.0.1:10086"),
            ("http://127.0.0.1:3000", "localhost:10086"),
            ("https://swarm.example.com", "swarm.example.com"),
            ("http://10.0.0.5:10086", "10.0.0.5:10086"),
        ] {
            assert_eq!(check("/", &[("host", host), ("origin", origin)]), Ok(()), "{origin}");
        }
        // Seen with `http://localhost:x@evil.com`.
        for origin in [
            "null",
            "",
            "https://evil.example",
            "http://127.0.0.1.evil.example",
            "http://localhost:x@evil.com",
            "http://localhost@evil.com",
            "http://10.0.0.6:10086",
            "http://10.0.0.5:80",
            "http://2130706433",
            "http://localhost.evil.example:10086",
            "file://",
            "file://localhost",
            "chrome-extension://localhost",
            "http://localhost/",
            "localhost",
        ] {
            let headers = [("host", "10.0.0.5:10086"), ("origin", origin)];
            assert_eq!(check("/", &headers), Err(RefusedOrigin::Page), "{origin}");
        }
        let twice = [
            ("host", "localhost"),
            ("origin", "http://localhost"),
            ("origin", "http://evil.com"),
        ];
        assert_eq!(check("/", &twice), Err(RefusedOrigin::Page));
    }

    #[test]
    fn what_other_pages_embed_is_refused_and_links_may_be_followed() {
        for (method, site, mode, dest, expected) in [
            (Method::GET, "cross-site", "navigate", "document", Ok(())),
            (Method::HEAD, "cross-site", "navigate", "document", Ok(())),
            (Method::GET, "same-origin", "cors", "empty", Ok(())),
            (Method::POST, "same-origin", "cors", "empty", Ok(())),
            (Method::GET, "none", "navigate", "document", Ok(())),
            (Method::GET, "cross-site", "no-cors", "image", Err(RefusedOrigin::Page)),
            (Method::GET, "cross-site", "cors", "empty", Err(RefusedOrigin::Page)),
            (
                Method::GET,
                "cross-site",
                "websocket",
                "websocket",
                Err(RefusedOrigin::Page),
            ),
            (
                Method::GET,
                "cross-site",
                "navigate",
                "iframe",
                Err(RefusedOrigin::Page),
            ),
            (Method::GET, "cross-site", "navigate", "embed", Err(RefusedOrigin::Page)),
            (
                Method::POST,
                "cross-site",
                "navigate",
                "document",
                Err(RefusedOrigin::Page),
            ),
            (
                Method::DELETE,
                "cross-site",
                "navigate",
                "document",
                Err(RefusedOrigin::Page),
            ),
        ] {
            let headers = [
                ("host", "localhost"),
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", dest),
            ];
            assert_eq!(check_by(&method, "/", &headers), expected, "{method} {headers:?}");
        }
        let old = [
            ("host", "localhost"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
        ];
        assert_eq!(check("/", &old), Ok(()), "browsers before Sec-Fetch-Dest");
        assert_eq!(
            check("/", &old[..2]),
            Err(RefusedOrigin::Page),
            "nothing says that a link is followed"
        );
    }
}
