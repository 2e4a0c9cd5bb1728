//! Who gets in, from where, and what nobody gets to see: a real server, and this machine's loopback or a network of its
//! own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

const TOKEN: &str = "correct-horse-battery";

/// A server as a user starts it, logging everything to a file; killed when dropped.
struct Server {
    child: Child,
    port: u16,
    banner: String,
    dir: tempfile::TempDir,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        Self::run(&[&["--token-file", "token"], args].concat())
    }

    fn without_token(args: &[&str]) -> Self {
        Self::run(args)
    }

    fn run(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), TOKEN).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"))
            .args(["start", "--swarm-port", "0"])
            .args(args)
            .env_remove("AJET_SWARM_TOKEN")
            .env("RUST_LOG", "trace")
            .env("NO_COLOR", "1")
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Ctrl-C") {
            assert!(out.read_line(&mut banner).unwrap() > 0, "ended after {banner:?}");
        }
        let (_, after) = banner.split_once(" port ").unwrap();
        let port = after.lines().next().unwrap().parse().unwrap();
        Self {
            child,
            port,
            banner,
            dir,
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own: the status and the body. Plain sockets, so that nothing is added to it.
fn ask(address: &str, method: &str, path: &str, bearer: Option<&str>, body: &Value) -> (u16, String) {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let authorization = bearer.map_or(String::new(), |token| format!("\r\nauthorization: Bearer {token}"));
    send(
        address,
        &format!("{method} {path} HTTP/1.1\r\nhost: {address}{authorization}"),
        &body,
    )
}

/// The same with a request line and headers as they are given.
fn send(address: &str, head: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    write!(
        stream,
        "{head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Every path that the server says it has, with the method.
fn paths(address: &str) -> Vec<(String, String)> {
    let (status, document) = ask(address, "GET", &format!("/t/{TOKEN}/openapi.json"), None, &Value::Null);
    assert_eq!(status, 200, "{document}");
    let document: Value = serde_json::from_str(&document).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let methods = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys();
        methods.map(|method| (method.to_uppercase(), path.clone()))
    });
    methods.collect()
}

/// All paths without a token and with wrong ones: nothing but 401, `/health` and the files of the web page.
fn nothing_gets_in(address: &str) {
    for path in ["/ui", "/ui/main.mjs"] {
        assert_eq!(ask(address, "GET", path, None, &Value::Null).0, 200, "{path}");
    }
    let paths = paths(address);
    assert!(paths.len() > 20, "{paths:?}");
    for (method, path) in &paths {
        for bearer in [None, Some("wrong"), Some("correct-horse-batterz"), Some("sk-ajet-0000")] {
            let wanted = if path == "/health" { 200 } else { 401 };
            assert_eq!(
                ask(address, method, path, bearer, &json!({})).0,
                wanted,
                "{method} {path} {bearer:?}"
            );
            let prefixed = format!("/t/wrong-horse{path}");
            assert_eq!(
                ask(address, method, &prefixed, bearer, &json!({})).0,
                wanted,
                "{prefixed} {bearer:?}"
            );
        }
    }
    for path in [
        "/",
        "/nothing",
        "/t",
        "/t/",
        "/t//get_engine_status",
        "/t/x/t/y/get_engine_status",
        "//",
    ] {
        assert_eq!(ask(address, "GET", path, None, &Value::Null).0, 401, "{path}");
    }
    assert_eq!(ask(address, "POST", "/stop_engine", None, &json!({})).0, 401);
}

#[test]
fn from_another_host_without_the_token_there_is_nothing_but_health() {
    let name = format!("ajet{}", std::process::id());
    let Some(_network) = Network::new(&name) else {
        eprintln!("skipped: a network namespace needs root and iproute2");
        return;
    };
    let server = Server::start(&["--host", "0.0.0.0"]);
    // This very test program, run inside of the namespace.
    let inside = Command::new("ip")
        .args(["netns", "exec", &name])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "access::asked_from_inside_of_a_namespace",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("AJET_TEST_ADDRESS", format!("{}:{}", Network::HERE, server.port))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&inside.stdout) + String::from_utf8_lossy(&inside.stderr);
    assert!(inside.status.success(), "{said}");
    assert!(said.contains("nothing got in"), "{said}");
    assert!(!server.banner.contains(TOKEN) && !server.log().contains(TOKEN));
}

/// Run by the test above, in another network; does nothing otherwise.
#[test]
fn asked_from_inside_of_a_namespace() {
    let Ok(address) = std::env::var("AJET_TEST_ADDRESS") else {
        return;
    };
    nothing_gets_in(&address);
    eprintln!("nothing got in");
}

/// A network namespace with a link to this one.
struct Network {
    name: String,
}

impl Network {
    const HERE: &str = "10.213.77.1";

    fn new(name: &str) -> Option<Self> {
        let ip = |args: &str| {
            let run = Command::new("ip").args(args.split(' ')).stderr(Stdio::null()).status();
            run.is_ok_and(|status| status.success())
        };
        if !ip(&format!("netns add {name}")) {
            return None;
        }
        let network = Self { name: name.to_owned() };
        let linked = ip(&format!("link add {name}a type veth peer name {name}b netns {name}"))
            && ip(&format!("addr add {}/30 dev {name}a", Self::HERE))
            && ip(&format!("link set {name}a up"))
            && ip(&format!("-n {name} addr add 10.213.77.2/30 dev {name}b"))
            && ip(&format!("-n {name} link set {name}b up"));
        linked.then_some(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The link goes with the namespace that holds its other end.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Starts an engine and waits until it rolls.
fn roll(address: &str, dir: &Path) {
    let yaml = "ajet: {experiment_name: secrets, model: {path: 'builtin:tiny'}, engine: {device: cpu, threads: 1}}";
    let calls = [
        ("/sync_train_config", json!({"yaml_as_string": yaml})),
        ("/start_engine", json!({})),
    ];
    for (path, body) in calls {
        let (status, answer) = ask(address, "POST", path, Some(TOKEN), &body);
        assert_eq!(status, 200, "{answer}");
    }
    for _ in 0..6000 {
        let (_, status) = ask(address, "GET", "/get_engine_status", Some(TOKEN), &Value::Null);
        if status.contains("ENGINE.ROLLING") {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!(
        "the engine does not roll: {}",
        std::fs::read_to_string(dir.join("log")).unwrap()
    );
}

#[test]
fn logs_listings_and_errors_hold_no_secret() {
    let server = Server::start(&[]);
    let address = format!("127.0.0.1:{}", server.port);
    roll(&address, server.dir.path());
    let claim = json!({"client_uuid": "c", "episode_type": "train", "discard_episode_timeout": 240});
    let (_, claimed) = ask(&address, "POST", &format!("/t/{TOKEN}/claim_episode"), None, &claim);
    let claimed: Value = serde_json::from_str(&claimed).unwrap();
    let key = claimed["openai_api_key"].as_str().unwrap();
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
    let mut said = String::new();
    for (method, path, bearer, body) in [
        ("POST", "/v1/chat/completions", Some(key), &chat),
        ("POST", "/v1/chat/completions", Some(key), &json!([])),
        ("POST", &format!("/t/{TOKEN}/v1/chat/completions"), Some(key), &chat),
        ("GET", "/v1/models", Some(key), &Value::Null),
        ("GET", "/v1/episode/conversations", Some(key), &Value::Null),
        ("GET", &format!("/t/{TOKEN}/nothing"), None, &Value::Null),
        ("DELETE", &format!("/t/{TOKEN}/health"), None, &Value::Null),
        ("GET", &format!("/t/{TOKEN}/health%zz"), None, &Value::Null),
        ("POST", &format!("/t/{TOKEN}/get_episode_buffer"), None, &json!({})),
        ("POST", &format!("/t/{TOKEN}/replay_latest_llm_call"), None, &json!({})),
        (
            "GET",
            "/get_current_batch_rollout_pool_information",
            Some(TOKEN),
            &Value::Null,
        ),
        ("GET", "/metrics", Some(TOKEN), &Value::Null),
        ("GET", "/get_verbose_logs", Some(TOKEN), &Value::Null),
        ("GET", "/get_engine_status", Some("sk-ajet-made-up-key"), &Value::Null),
    ] {
        said += &ask(&address, method, path, bearer, body).1;
    }
    let environment = engine_environment(server.dir.path());
    said += &server.log();
    assert!(said.contains("hi"), "the replay tells what was asked");
    for secret in [TOKEN, key, "made-up-key"] {
        assert!(!said.contains(secret), "{secret} in {said}");
        assert!(!environment.contains(secret));
    }
}

/// What the engine that works in `dir` was given.
fn engine_environment(dir: &Path) -> String {
    let dir = dir.to_string_lossy();
    let processes = std::fs::read_dir("/proc").unwrap();
    let engines = processes.filter_map(|entry| {
        let process = entry.unwrap().path();
        let command = std::fs::read_to_string(process.join("cmdline")).ok()?;
        let is_ours = command.contains("engine\0--socket") && command.contains(&*dir);
        is_ours.then(|| std::fs::read(process.join("environ")).unwrap_or_default())
    });
    let environment = engines.flatten().collect::<Vec<_>>();
    assert!(!environment.is_empty(), "the engine's environment can be read");
    String::from_utf8_lossy(&environment).into_owned()
}

// Seen with a page whose name was made to resolve to this machine: it sends that name, and reads the answer.
#[test]
fn without_a_token_only_our_names_and_allowed_ones_are_answered_to() {
    let server = Server::without_token(&["--allowed-host", "swarm.example"]);
    let address = format!("127.0.0.1:{}", server.port);
    let paths = paths(&address);
    for (method, path) in paths.iter().map(|(m, p)| (m.as_str(), p.as_str())).chain([
        ("GET", "/nothing"),
        ("OPTIONS", "/health"),
        ("GET", "/ui"),
    ]) {
        for head in [
            "host: evil.example:10086",
            "host: localhost\r\norigin: http://localhost:x@evil.com",
            "host: localhost\r\nhost: evil",
        ] {
            let (status, answer) = send(&address, &format!("{method} {path} HTTP/1.1\r\n{head}"), "{}");
            assert_eq!(status, 403, "{method} {path} {head}: {answer}");
            assert_eq!(
                answer.contains("\"error\""),
                path.starts_with("/v1/"),
                "each API's own shape: {answer}"
            );
        }
        let absolute = format!("{method} http://evil.example{path} HTTP/1.1\r\nhost: {address}");
        assert_eq!(send(&address, &absolute, "{}").0, 403, "{absolute}");
    }
    let refused = send(&address, "GET /health HTTP/1.1\r\nhost: evil.example", "").1;
    assert!(refused.contains("--allowed-host NAME"), "{refused}");
    for head in [
        "HTTP/1.1\r\nhost: swarm.example:443",
        "HTTP/1.1\r\nhost: localhost:1",
        "HTTP/1.1\r\nhost: [::1]",
        "HTTP/1.0",
    ] {
        assert_eq!(
            send(&address, &format!("GET /get_engine_status {head}"), "").0,
            200,
            "{head}"
        );
    }
    assert_eq!(
        send(&address, "GET http://localhost/health HTTP/1.1\r\nhost: localhost", "").0,
        200
    );
}

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[tokio::test]
async fn with_a_certificate_it_speaks_tls_and_only_that() {
    let (certificate, key) = (fixture("cert.pem"), fixture("key.pem"));
    let server = Server::start(&["--tls-cert", &certificate, "--tls-key", &key]);
    assert!(server.banner.contains("https://"), "{}", server.banner);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let trusted = reqwest::Certificate::from_pem(&std::fs::read(&certificate).unwrap()).unwrap();
    let http = reqwest::Client::builder()
        .tls_certs_only([trusted])
        .no_proxy()
        .build()
        .unwrap();
    let url = format!("https://127.0.0.1:{}", server.port);
    let status = http
        .get(format!("{url}/t/{TOKEN}/get_engine_status"))
        .send()
        .await
        .unwrap();
    assert_eq!(status.status(), 200);
    assert_eq!(
        http.get(format!("{url}/get_engine_status"))
            .send()
            .await
            .unwrap()
            .status(),
        401
    );
    let plain = reqwest::Client::builder()
        .tls_certs_only([])
        .no_proxy()
        .build()
        .unwrap();
    let plain = plain.get(format!("http://127.0.0.1:{}/health", server.port));
    assert!(plain.send().await.is_err());
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let (certificate, key, other) = (fixture("cert.pem"), fixture("key.pem"), fixture("other-key.pem"));
    for (certificate, key, said) in [
        (
            "/no/such/cert",
            key.as_str(),
            "cannot read a certificate in PEM format from /no/such/cert",
        ),
        (key.as_str(), key.as_str(), "no certificate found"),
        (
            certificate.as_str(),
            certificate.as_str(),
            "cannot read a private key in PEM format",
        ),
        (
            certificate.as_str(),
            other.as_str(),
            "cannot use the certificate with this key",
        ),
    ] {
        let refused = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"))
            .args([
                "start",
                "--swarm-port",
                "0",
                "--tls-cert",
                certificate,
                "--tls-key",
                key,
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && err.contains(said), "{err}");
    }
}
