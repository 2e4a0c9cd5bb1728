//! The `start` command as a process: what it prints, when it refuses, how it ends.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use ajet_swarm::client::{BeginEpisode, SwarmClient};
use ajet_swarm::engine::storage::lock::DirectoryLock;
use ajet_swarm::protocol::openai::ChatRequest;
use ajet_swarm::protocol::swarm::{EngineStatus, WorkflowOutput};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"));
    command
        .arg("start")
        .args(args)
        .env_remove("AJET_SWARM_TOKEN")
        .stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server that runs in a directory of its own; killed if a test fails before it ends.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    banner: String,
    dir: tempfile::TempDir,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        Self::from(command(args))
    }

    fn from(mut command: Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut child = command.current_dir(dir.path()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Ctrl-C") {
            assert!(out.read_line(&mut banner).unwrap() > 0, "ended after {banner:?}");
        }
        Self {
            child,
            out,
            banner,
            dir,
        }
    }

    fn port(&self) -> u16 {
        let (_, after) = self.banner.split_once(" port ").unwrap();
        after.lines().next().unwrap().parse().unwrap()
    }

    fn end_by(mut self, signal: Signal) -> i32 {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "nothing but the banner on standard output");
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Exit code, standard output, standard error of a start that is refused.
fn refused(args: &[&str]) -> (i32, String, String) {
    let output = command(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_banner_says_where_it_listens_and_a_signal_ends_it_well() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let server = Running::start(&["--swarm-port", "0"]);
        assert!(
            server
                .banner
                .contains("Interchange server is running in blocking mode\n")
        );
        let port = server.port();
        assert!(
            server.banner.contains(&format!("ssh -N -L {port}:127.0.0.1:{port}")),
            "{}",
            server.banner
        );
        assert!(
            server.banner.contains(&format!("http://127.0.0.1:{port}/ui\n")),
            "{}",
            server.banner
        );
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(server.end_by(signal), 0);
    }
}

#[test]
fn a_port_that_a_swarm_server_has_is_told_with_the_line_that_clients_wait_for() {
    let server = Running::start(&["--swarm-port", "0"]);
    let port = server.port().to_string();
    let (code, out, err) = refused(&["--swarm-port", &port]);
    assert_ne!(code, 0);
    assert_eq!(out, "Interchange server is running in blocking mode\n");
    assert!(
        err.contains(&format!("port {port} is in use by another swarm server")),
        "{err}"
    );
}

#[test]
fn a_port_that_another_program_has_is_told() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let (code, out, err) = refused(&["--swarm-port", &port]);
    assert_ne!(code, 0);
    assert_eq!(out, "");
    assert!(
        err.contains(&format!("port {port} is in use by another program")),
        "{err}"
    );
}

#[test]
fn a_host_that_others_reach_gets_a_token_unless_insecure() {
    let open = |args: &[&str]| {
        Running::start(&[&["--swarm-port", "0", "--host", "0.0.0.0"], args].concat())
            .banner
            .clone()
    };
    let made = open(&[]);
    let (_, token) = made.split_once("/t/").unwrap();
    let token = token.lines().next().unwrap();
    assert!(token.len() >= 32, "{made}");
    assert!(made.contains(&format!("/ui#token={token}\n")), "{made}");
    assert!(open(&["--insecure"]).contains("everyone who reaches this port"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "correct-horse\n").unwrap();
    let given = open(&["--token-file", file.to_str().unwrap()]);
    assert!(
        given.contains("/t/TOKEN") && !given.contains("correct-horse"),
        "{given}"
    );
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (args, said) in [
        (
            ["--token-file".to_owned(), file("short", "abc")],
            "at least 8 characters",
        ),
        (
            ["--token-file".to_owned(), "/no/such/token".to_owned()],
            "cannot read --token-file /no/such/token",
        ),
        (
            [
                "--conf".to_owned(),
                file("conf.yaml", "ajet: {data: {train_batch_size: many}}"),
            ],
            "train_batch_size",
        ),
    ] {
        let args: Vec<&str> = ["--swarm-port", "0"]
            .into_iter()
            .chain(args.iter().map(String::as_str))
            .collect();
        let (code, _, err) = refused(&args);
        assert_ne!(code, 0);
        assert!(err.contains(said), "{err}");
    }
}

/// A line of bash with this program as `$0`.
fn bash(line: &str, args: &[&str]) -> Command {
    let mut command = Command::new("bash");
    command
        .args(["-c", line, env!("CARGO_BIN_EXE_ajet-swarm")])
        .args(args)
        .env_remove("AJET_SWARM_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

// Seen with `roll <(gen-job)`, `--token-file <(pass show x)` and `--conf /dev/stdin`: "it is a pipe".
#[test]
fn files_that_the_user_names_may_be_pipes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.yaml");
    let made = bash(r#""$0" job init "$1""#, &[path.to_str().unwrap()])
        .status()
        .unwrap();
    assert!(made.success());
    let job = path.to_str().unwrap();
    for line in [
        r#""$0" job check <(cat "$1")"#,
        r#"cat "$1" | "$0" job check /dev/stdin"#,
        r#"(sleep 0.3; cat "$1") | "$0" job check /dev/fd/0"#,
        r#"mkfifo "$2"; cat "$1" > "$2" & "$0" job check "$2""#,
        r#""$0" roll <(cat "$1") --dry-run --token-file <(echo secret-token)"#,
    ] {
        let output = bash(line, &[job, dir.path().join("fifo").to_str().unwrap()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
    let endless = bash(r#""$0" job check <(yes)"#, &[]).output().unwrap();
    let said = String::from_utf8(endless.stderr).unwrap();
    assert!(
        !endless.status.success() && said.contains("the limit for this file"),
        "{said}"
    );

    let conf = dir.path().join("conf.yaml");
    std::fs::write(&conf, "ajet: {data: {train_batch_size: 7}}").unwrap();
    let line = r#"exec "$0" start --swarm-port 0 --token-file <(echo secret-token) --conf /dev/stdin < <(cat "$1")"#;
    let server = Running::from(bash(line, &[conf.to_str().unwrap()]));
    let (code, _, err) = asked(&["status"], server.port());
    assert!(code != 0 && err.contains("token"), "{err}");
    let (code, out, err) = asked(&["status", "--token", "secret-token"], server.port());
    assert!(code == 0 && out.contains("ENGINE.OFFLINE"), "{out} {err}");
}

/// Exit code, standard output, standard error of a command that talks to a server.
fn asked(args: &[&str], port: u16) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"))
        .args(args)
        .args(["--swarm-url", &format!("http://127.0.0.1:{port}")])
        .env_remove("AJET_SWARM_TOKEN")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_server_is_looked_at_given_code_and_stopped_from_the_command_line() {
    let server = Running::start(&["--swarm-port", "0"]);
    let port = server.port();
    let (code, out, _) = asked(&["status"], port);
    assert_eq!((code, out.as_str()), (0, "engine      ENGINE.OFFLINE\n"));
    let (code, out, _) = asked(&["status", "--json"], port);
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &status["status"]["engine_status"]),
        (0, &"ENGINE.OFFLINE".into())
    );
    let (code, out, err) = asked(&["stop"], port);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", "no engine was running\n"));

    let sources = tempfile::tempdir().unwrap();
    let directory = sources.path().to_str().unwrap();
    std::fs::write(sources.path().join("Cargo.toml"), "[package]\nname = \"ajet-swarm\"\n").unwrap();
    for args in [["init", "-q"], ["add", "Cargo.toml"]] {
        let git = std::process::Command::new("git")
            .arg("-C")
            .arg(directory)
            .args(args)
            .status();
        assert!(git.unwrap().success());
    }
    let (code, out, err) = asked(&["sync-code", "--dry-run", directory], port);
    assert_eq!((code, out.as_str()), (0, "ajet/Cargo.toml\n"), "{err}");
    let (code, out, err) = asked(&["sync-code", directory], port);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(
        err.contains("no access token") && err.contains("--allow-code-sync"),
        "{err}"
    );
    let (code, _, err) = asked(&["status", "--wait", "rolling", "--timeout", "0"], port);
    assert_eq!(code, 3, "{err}");

    assert_eq!(server.end_by(Signal::SIGTERM), 0);
    let (code, out, err) = asked(&["status"], port);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("error:"), "{err}");
}

#[test]
fn engines_are_run_from_the_program_that_is_named_if_it_can_be_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("engine");
    std::fs::write(&file, "no program").unwrap();
    for (path, said) in [
        (file.to_str().unwrap(), "not an executable file"),
        ("/no/such/engine", "cannot run"),
    ] {
        let (code, _, err) = refused(&["--swarm-port", "0", "--engine", path]);
        assert!(code != 0 && err.contains(said), "{err}");
    }
    let server = Running::start(&["--swarm-port=0", "--engine", env!("CARGO_BIN_EXE_ajet-swarm")]);
    assert_eq!(server.end_by(Signal::SIGTERM), 0);
}

#[test]
fn flags_of_agentjets_server_are_taken() {
    for debug in [
        &["--debug", "x"][..],
        &["--debug=x"],
        &["--db", "x"],
        &["--db=x"],
        &["--db"],
    ] {
        let args = [&["--swarm-port=0", "--kill=python", "--autokill"], debug].concat();
        assert_eq!(Running::start(&args).end_by(Signal::SIGTERM), 0);
    }
}

#[test]
fn the_dashboard_takes_agentjets_refresh_interval() {
    let server = Running::start(&["--swarm-port=0"]);
    for (command, seconds, fits) in [
        ("overwatch", "0.1", true),
        ("top", "2", true),
        ("top", "3600", true),
        ("overwatch", "0", false),
        ("top", "-1", false),
        ("overwatch", "nan", false),
        ("overwatch", "1e9", false),
        ("overwatch", "5s", false),
    ] {
        let interval = format!("--refresh-interval={seconds}");
        let (code, _, err) = asked(&[command, "--once", &interval], server.port());
        assert_eq!(code, if fits { 0 } else { 2 }, "{seconds}: {err}");
        let told = format!("expected a number of seconds from 0.1 to 3600, got {seconds}");
        assert_eq!(err.contains(&told), !fits, "{err}");
    }
}

/// A hard cap, as in AgentJet, by real engines. The run can be gone on with when it is raised.
#[tokio::test(flavor = "multi_thread")]
async fn after_the_last_update_that_is_allowed_there_is_a_checkpoint_and_no_engine() {
    let server = Running::start(&["--swarm-port=0"]);
    let client = SwarmClient::new(&format!("http://127.0.0.1:{}", server.port())).unwrap();
    let config = |cap: u64| {
        let ajet = json!({
            "experiment_name": "cap", "model": {"path": "builtin:tiny"},
            "data": {"train_batch_size": 1, "max_prompt_length": 96, "max_response_length": 32},
            "rollout": {"num_repeat": 2, "max_response_length_in_one_turn": 4},
            "trainer_common": {"total_training_steps": cap, "save_freq": 100},
            "engine": {"device": "cpu", "threads": 1},
        });
        json!({ "ajet": ajet }).to_string()
    };
    let mut done = 0;
    for cap in [1, 3] {
        client.sync_train_config(&config(cap)).await.unwrap();
        client.start_engine(|_| ()).await.unwrap();
        for number in 2 * done..2 * cap {
            let episode = client.begin_episode(&BeginEpisode::default()).await.unwrap();
            let request = json!({"messages": [{"role": "user", "content": "Say it."}]});
            let request: ChatRequest = serde_json::from_value(request).unwrap();
            episode.model().chat(&request).await.unwrap();
            let output = json!({"reward": number % 2});
            let output: WorkflowOutput = serde_json::from_value(output).unwrap();
            episode.end("t", output).await.unwrap();
        }
        let offline = async {
            loop {
                let status = client.status().await.unwrap();
                if status.engine_status == EngineStatus::Offline {
                    break status.engine_status_detail.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let detail = tokio::time::timeout(Duration::from_secs(60), offline).await.unwrap();
        assert!(
            detail.starts_with(&format!(
                "all {cap} updates of ajet.trainer_common.total_training_steps are done"
            )),
            "{detail}"
        );
        let checkpoint = format!("saved_experiments/cap/checkpoints/global_step_{cap}");
        assert!(server.dir.path().join(checkpoint).is_dir());
        done = cap;
    }
    // A run that is complete, or more than that, is not begun again.
    for cap in [3, 2] {
        client.sync_train_config(&config(cap)).await.unwrap();
        let refused = client.start_engine(|_| ()).await.unwrap_err().to_string();
        assert!(
            refused.contains("are done already") && refused.contains("global_step_3; hint: raise it"),
            "{refused}"
        );
    }
    assert_eq!(server.end_by(Signal::SIGTERM), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_the_log_as_json_say_which_request_and_episode_they_belong_to() {
    let mut server = Running::start(&["--swarm-port=0", "--log-format=json", "-v"]);
    let stderr = BufReader::new(server.child.stderr.take().unwrap());
    let log = std::thread::spawn(move || stderr.lines().map(Result::unwrap).collect::<Vec<_>>());
    let client = SwarmClient::new(&format!("http://127.0.0.1:{}", server.port())).unwrap();
    let ajet = json!({
        "experiment_name": "log", "model": {"path": "builtin:tiny"}, "engine": {"device": "cpu", "threads": 1},
        "data": {"max_prompt_length": 96, "max_response_length": 32},
    });
    client
        .sync_train_config(&json!({ "ajet": ajet }).to_string())
        .await
        .unwrap();
    client.start_engine(|_| ()).await.unwrap();
    let episode = client.begin_episode(&BeginEpisode::default()).await.unwrap();
    // Longer than the context: the engine logs a warning for this call.
    let request = json!({"messages": [{"role": "user", "content": "word ".repeat(400)}]});
    let answer = reqwest::Client::new()
        .post(format!("{}/chat/completions", episode.base_url()))
        .bearer_auth(episode.api_key())
        .json(&request)
        .send()
        .await
        .unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let uuid = episode.uuid().to_owned();
    episode.abort().await.unwrap();
    assert_eq!(server.end_by(Signal::SIGTERM), 0);
    let lines: Vec<Value> = log
        .join()
        .unwrap()
        .iter()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let has = |message: &str, span: Value| {
        let matches = |line: &&Value| {
            let said = line["message"].as_str().is_some_and(|said| said.contains(message));
            let fields = span.as_object().unwrap();
            said && fields.iter().all(|(name, value)| line["span"][name] == *value)
        };
        assert!(
            lines.iter().any(|line| matches(&line)),
            "no {message} with {span} in {lines:#?}"
        );
    };
    has(
        "answered",
        json!({"id": id, "episode": uuid, "path": "/v1/chat/completions"}),
    );
    has("answered", json!({"episode": uuid, "path": "/claim_episode"}));
    has(
        "dropped the episode: aborted",
        json!({"episode": uuid, "path": "/abort_episode"}),
    );
    has(
        "the prompt exceeds the context length",
        json!({"id": id, "episode": uuid, "name": "engine"}),
    );
}

/// The second engine gives up before the server does, so that clients which print nothing else learn who has the directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_in_a_directory_that_is_in_use_names_the_engine_that_uses_it() {
    let server = Running::start(&["--swarm-port=0"]);
    let held = server.dir.path().join("saved_experiments/held");
    std::fs::create_dir_all(&held).unwrap();
    let _lock = DirectoryLock::acquire(&held, Duration::ZERO, |_| ()).unwrap();
    let ajet = json!({
        "experiment_name": "held", "model": {"path": "builtin:tiny"}, "engine": {"device": "cpu", "threads": 1},
    });
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", server.port());
    let client = SwarmClient::new(&url("")).unwrap();
    client
        .sync_train_config(&json!({ "ajet": ajet }).to_string())
        .await
        .unwrap();
    let started = reqwest::Client::new()
        .post(url("/start_engine"))
        .timeout(Duration::from_secs(30));
    let refused = started.send().await.unwrap();
    assert_eq!(refused.status(), 400);
    let detail = refused.text().await.unwrap();
    let holder = format!("another engine (pid {} ", std::process::id());
    assert!(detail.contains(&holder), "{detail}");
    assert_eq!(server.end_by(Signal::SIGTERM), 0);
}
