//! The dashboard in a terminal: keys, sizes, a server that goes away, and what is left of it on the terminal. The
//! terminal is that of `script`; what is on its screen is read by an emulator.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ajet-swarm");

/// Most that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program in a terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<vt100::Parser>>,
    dir: tempfile::TempDir,
}

impl Terminal {
    /// Runs a shell command in a terminal of a size.
    fn run(command: &str, (rows, columns): (u16, u16)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tty = dir.path().join("tty");
        let command = format!(
            "tty > {}; stty rows {rows} cols {columns}; exec {command}",
            tty.display()
        );
        let mut child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"])
            .env("TERM", "xterm-256color")
            // A backtrace would push a message off the screen.
            .env("RUST_BACKTRACE", "0")
            .env_remove("NO_COLOR")
            .env_remove("AJET_SWARM_TOKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self {
            child,
            keys,
            screen,
            dir,
        }
    }

    fn overwatch(port: u16, size: (u16, u16)) -> Self {
        Self::run(
            &format!("{PROGRAM} overwatch --swarm-url http://127.0.0.1:{port}"),
            size,
        )
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn wait_for(&self, text: &str) {
        let begun = Instant::now();
        while !self.text().contains(text) {
            assert!(
                begun.elapsed() < PATIENCE,
                "{text:?} is not on the screen:\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn resize(&self, (rows, columns): (u16, u16)) {
        let tty = std::fs::read_to_string(self.dir.path().join("tty")).unwrap();
        self.screen.lock().unwrap().screen_mut().set_size(rows, columns);
        let (rows, columns) = (rows.to_string(), columns.to_string());
        let status = Command::new("stty")
            .args(["-F", tty.trim(), "rows", &rows, "cols", &columns])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end of the program; returns its exit code. The terminal must be as before.
    fn end(mut self) -> i32 {
        let begun = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code().unwrap();
            }
            assert!(begun.elapsed() < PATIENCE, "the program goes on:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        };
        // What was written last is read by the other thread.
        std::thread::sleep(Duration::from_millis(200));
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        assert!(
            !screen.alternate_screen() && !screen.hide_cursor(),
            "{}",
            screen.contents()
        );
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
        code
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server at a port, which is ended with the test.
struct Server(Child);

impl Server {
    fn start(port: u16, dir: &std::path::Path) -> Self {
        let mut command = Command::new(PROGRAM);
        command
            .args(["start", "--swarm-port", &port.to_string()])
            .current_dir(dir)
            .env_remove("AJET_SWARM_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

#[test]
fn tabs_open_sizes_change_and_the_terminal_is_left_as_it_was() {
    let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
    let _server = Server::start(port, dir.path());
    let mut terminal = Terminal::overwatch(port, (24, 80));
    terminal.wait_for("OFFLINE");
    terminal.wait_for("no engine runs; start a job with");
    for (key, text) in [
        ("2", "0 running episodes, oldest first"),
        ("s", "longest idle first"),
        ("/", "filter:"),
        ("x7\r", "with 'x7'"),
        ("\t", "no episode of this batch has ended"),
        ("4", "no update yet: curves begin with the first one"),
        ("5", "active clients"),
        ("6", "Transcript"),
        ("7", "log, "),
        ("?", "keys and words"),
        ("\x1b", "log, "),
        ("p", "PAUSED"),
    ] {
        terminal.press(key);
        terminal.wait_for(text);
    }
    terminal.press("p1");
    terminal.wait_for("doing");
    // A click on the second tab (SGR mouse report).
    terminal.press("\x1b[<0;18;2M\x1b[<0;18;2m");
    terminal.wait_for("running episodes");
    terminal.resize((50, 180));
    terminal.wait_for("finished train episode");
    terminal.resize((5, 20));
    std::thread::sleep(Duration::from_millis(300));
    terminal.resize((24, 80));
    terminal.press("1");
    terminal.wait_for("? help  q quit");
    terminal.press("q");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_server_that_goes_away_is_waited_for() {
    let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
    let terminal = Terminal::overwatch(port, (24, 80));
    terminal.wait_for("CANNOT_CONNECT");
    let server = Server::start(port, dir.path());
    terminal.wait_for("OFFLINE");
    drop(server);
    terminal.wait_for("retrying (");
    let _server = Server::start(port, dir.path());
    terminal.wait_for("OFFLINE");
    let mut terminal = terminal;
    terminal.press("7");
    terminal.wait_for("reconnected to the server");
    terminal.press("\x03");
    assert_eq!(terminal.end(), 0);
}

/// The panic is that of another thread, while the dashboard is shown by this same test program.
#[test]
fn a_panic_restores_the_terminal() {
    let program: PathBuf = std::env::current_exe().unwrap();
    let command = format!(
        "{} --exact overwatch::shows_the_dashboard_and_panics --ignored --nocapture",
        program.display()
    );
    let terminal = Terminal::run(&command, (24, 80));
    terminal.wait_for("CANNOT_CONNECT");
    terminal.wait_for("the end of the dashboard");
    terminal.end();
}

#[test]
#[ignore = "is run by `a_panic_restores_the_terminal` in a terminal"]
fn shows_the_dashboard_and_panics() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.spawn(async {
        let swarm = ajet_swarm::client::SwarmClient::new("http://127.0.0.1:1").unwrap();
        let source = ajet_swarm::overwatch::Source::Server(swarm);
        ajet_swarm::overwatch::watch(source, "a server".into(), true, Duration::from_millis(100)).await
    });
    std::thread::sleep(Duration::from_secs(2));
    panic!("the end of the dashboard");
}

#[test]
fn a_finished_run_is_replayed_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("my_run");
    let step = run.join("trajectories/train/step_2");
    std::fs::create_dir_all(&step).unwrap();
    let metrics =
        "{\"global_step\":1,\"reward_mean\":0.25}\ndamaged\n{\"global_step\":2,\"reward_mean\":0.75,\"kl\":null}\n";
    std::fs::write(run.join("metrics.jsonl"), metrics).unwrap();
    for (id, reward, answer) in [("e1", 0.0, "wrong\\u001b[2J"), ("e2", 1.0, "right")] {
        let episode = format!(
            "{{\"summary\":{{\"episode_uuid\":\"{id}\",\"task_id\":\"t\",\"client_uuid\":\"c\",\"global_step\":2,\"reward\":{reward},\
             \"llm_calls\":1,\"prompt_tokens\":3,\"completion_tokens\":2,\"has_transcript\":true}},\
             \"running\":false,\"log_metrics\":{{}},\"conversations\":[{{\"model\":\"m\",\"tools\":[],\"messages\":[\
             {{\"role\":\"assistant\",\"content\":\"the answer is {answer}\"}}]}}]}}"
        );
        std::fs::write(step.join(format!("{id}.json")), episode).unwrap();
    }
    let mut terminal = Terminal::run(&format!("{PROGRAM} overwatch --replay {}", run.display()), (24, 80));
    terminal.wait_for("ended after 2 updates");
    terminal.press("w");
    terminal.wait_for("the answer is wrong\\u{1b}[2J");
    terminal.press("b");
    terminal.wait_for("the answer is right");
    terminal.press("3");
    terminal.wait_for("0.00 1.00");
    terminal.press("q");
    assert_eq!(terminal.end(), 0);

    let output = Command::new(PROGRAM)
        .args(["overwatch", "--once", "--json", "--replay"])
        .arg(&run)
        .output()
        .unwrap();
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["latest_metrics"]["reward_mean"], 0.75);
    let output = Command::new(PROGRAM)
        .args(["overwatch", "--replay"])
        .arg(dir.path())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("cannot replay") && error.contains("hint: "),
        "{error}"
    );
}
