//! What a `roll` leaves behind, however it ends: nothing. Real processes, no server.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ajet-swarm");

/// Processes of an agent that are hard to end: in the background, in a session of its own, twice forked, deaf to SIGTERM.
const AGENT: &str = r#"
echo "$2" >> "$3/started"
sleep "$1" & setsid sleep "$1" & setsid sh -c 'setsid sleep "$1" & exit 0' sh "$1"
sh -c 'trap "" TERM HUP INT; sleep "$1"; sleep "$1"' sh "$1" & (sleep "$1" &) ; exec sleep "$1"
"#;

/// `roll` of two such agents at once; they are told from others by how long they sleep.
struct Roll {
    child: Child,
    sleep: String,
    dir: tempfile::TempDir,
}

impl Roll {
    fn start(sleep: u32) -> Self {
        let (dir, sleep) = (tempfile::tempdir().unwrap(), format!("{sleep}.{}", std::process::id()));
        let job = serde_json::json!({
            "ajet": {
                "model": {"path": "builtin:tiny"},
                "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 2, "validation_tasks": 1}},
            },
            "roll": {
                "agent": {
                    "type": "command", "argv": ["sh", "-c", AGENT, "sh", sleep, "{{ episode_uuid }}", dir.path()],
                    "stop_argv": ["sh", "-c", "echo \"$0\" >> \"$1/stopped\"", "{{ episode_uuid }}", dir.path()],
                },
                "max_parallel": 2,
            },
        });
        let path = dir.path().join("job.yaml");
        std::fs::write(&path, job.to_string()).unwrap();
        // `roll` lets SIGHUP be where it is ignored, as it is in a test run that `nohup` began.
        let child = Command::new("env")
            .args(["--default-signal=HUP", PROGRAM, "roll"])
            .arg(&path)
            .args(["--api", "http://127.0.0.1:1/v1", "--api-model", "none"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let roll = Self { child, sleep, dir };
        assert!(
            roll.wait_until(|left| left >= 6),
            "{} processes of the agent",
            roll.left()
        );
        roll
    }

    /// Whether `stop_argv` ran for each episode that an agent began, and once.
    fn has_stopped_all(&self) -> bool {
        let lines = |file: &str| {
            let text = std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        let started = lines("started");
        !started.is_empty() && started == lines("stopped")
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Processes that sleep as this run's agents do.
    fn left(&self) -> usize {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let command_lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        let wanted = format!("sleep\0{}\0", self.sleep);
        command_lines.filter(|line| line == wanted.as_bytes()).count()
    }

    /// How it ended; a run that does not end is killed, and a failure.
    fn ended(&mut self) -> ExitStatus {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(30) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().unwrap();
        panic!("roll does not end");
    }

    fn wait_until(&self, holds: impl Fn(usize) -> bool) -> bool {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(30) {
            if holds(self.left()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

/// Seen with a second Ctrl-C, SIGHUP, SIGQUIT and a killed `roll`.
#[test]
#[cfg(target_os = "linux")]
fn no_agent_outlives_its_roll() {
    let twice = |signal| vec![signal, signal];
    for (number, (signals, by)) in [
        (vec![Signal::SIGINT], Some(130)),
        (twice(Signal::SIGINT), Some(130)),
        (vec![Signal::SIGTERM], Some(130)),
        (vec![Signal::SIGHUP], Some(130)),
        (twice(Signal::SIGHUP), Some(130)),
        (vec![Signal::SIGQUIT], Some(130)),
        (vec![Signal::SIGKILL], None),
        (vec![Signal::SIGABRT], None),
    ]
    .into_iter()
    .enumerate()
    {
        let mut roll = Roll::start(71_000 + number as u32);
        for signal in &signals {
            kill(roll.pid(), *signal).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        let status = roll.ended();
        assert_eq!(status.code(), by, "{signals:?}: {status}");
        assert_eq!(status.signal().is_some(), by.is_none(), "{signals:?}: {status}");
        assert!(roll.wait_until(|left| left == 0), "{signals:?} leaves {}", roll.left());
        assert!(
            roll.wait_until(|_| roll.has_stopped_all()),
            "{signals:?}: stop_argv did not run for each"
        );
    }
    // The whole foreground group, as a terminal signals it.
    let mut roll = Roll::start(72_000);
    killpg(roll.pid(), Signal::SIGINT).unwrap();
    roll.ended();
    assert!(roll.wait_until(|left| left == 0), "{} left", roll.left());
}

#[test]
fn a_server_that_roll_started_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Command::new(PROGRAM)
        .args(["start", "--swarm-port=0", "--end-with-stdin"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut banner = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(banner.any(|line| line.unwrap().contains("running in blocking mode")));
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}

/// Seen with `job show job.yaml > /dev/full`: half a file, and exit code 0.
#[test]
#[cfg(target_os = "linux")] // which has such a device
fn output_that_a_full_disk_swallowed_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job.yaml");
    let made = Command::new(PROGRAM).args(["job", "init"]).arg(&job).status().unwrap();
    assert!(made.success());
    let job = job.to_str().unwrap();
    for arguments in [
        vec!["job", "show", job],
        vec!["job", "check", job],
        vec!["roll", job, "--dry-run"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(PROGRAM).args(&arguments).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("cannot write to standard output"), "{said}");
    }
}

/// Seen with exit code 101, a panic.
#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job.yaml");
    let made = Command::new(PROGRAM).args(["job", "init"]).arg(&job).status().unwrap();
    assert!(made.success());
    let job = job.to_str().unwrap();
    let refused = ["--api", "http://127.0.0.1:1/v1", "--api-model", "none"];
    for arguments in [
        vec!["job", "show", job],
        vec!["job", "check", job],
        [&["roll", job, "--json"], &refused[..]].concat(),
        [&["roll", job], &refused[..]].concat(),
        [&["roll", job, "--debug-one"], &refused[..]].concat(),
        vec!["roll", job, "--dry-run"],
        vec!["start", "--swarm-port=0"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = Command::new(PROGRAM)
            .args(&arguments)
            .current_dir(dir.path())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(141), "{arguments:?}");
    }
}
