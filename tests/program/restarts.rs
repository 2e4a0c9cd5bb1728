//! Servers and engines that are killed and restarted at once in the same directory, with a second server there now and
//! then, on disks that sync fast and slowly: no acknowledged end is lost, and none is there twice.
//!
//! `AJET_KILLS=200` kills that often instead of six times, `AJET_FSYNC_MS=10` is one delay instead of three, and
//! `AJET_PROGRAM` another program.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama");
const WORKERS: usize = 8;
/// Enough that a run has few updates to repeat.
const BATCH: usize = 256;
const BOOT: Duration = Duration::from_secs(120);

/// A `start` process with the engine below it. Both are killed when it is dropped.
struct Server {
    child: Child,
    url: String,
    _out: BufReader<ChildStdout>,
}

impl Server {
    fn start(place: &Place, args: &[&str]) -> Self {
        let program = std::env::var("AJET_PROGRAM").unwrap_or(env!("CARGO_BIN_EXE_ajet-swarm").into());
        let mut command = Command::new(program);
        command
            .args(["start", "--swarm-port", "0"])
            .args(args)
            .current_dir(place.dir.path());
        if let Some(shim) = &place.shim {
            command
                .env("LD_PRELOAD", shim)
                .env("AJET_FSYNC_MS", place.fsync_ms.to_string());
        }
        command
            .env_remove("AJET_SWARM_TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Ctrl-C") {
            assert!(out.read_line(&mut banner).unwrap() > 0, "ended after {banner:?}");
        }
        let (_, after) = banner.split_once(" port ").unwrap();
        let url = format!("http://127.0.0.1:{}", after.lines().next().unwrap());
        Self { child, url, _out: out }
    }

    /// As after a crash: it goes on with what was interrupted.
    fn restart(place: &Place) -> Self {
        Self::start(place, &[&format!("--continue={}", place.experiment().display())])
    }

    fn engine(&self) -> Option<Pid> {
        let children = format!("/proc/{0}/task", self.child.id());
        let threads = std::fs::read_dir(children).ok()?.flatten();
        let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let pid = children.collect::<String>().split_whitespace().next()?.parse().ok()?;
        Some(Pid::from_raw(pid))
    }

    fn kill_engine(&self) -> bool {
        self.engine().is_some_and(|pid| kill(pid, Signal::SIGKILL).is_ok())
    }

    /// Kills the server alone; its engine has to notice.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it was killed already
        let _ = self.child.wait();
    }
}

/// A directory in which servers run, and how slow its disk is.
struct Place {
    dir: tempfile::TempDir,
    fsync_ms: u64,
    shim: Option<PathBuf>,
}

impl Place {
    fn experiment(&self) -> PathBuf {
        self.dir.path().join("experiment")
    }

    fn config(&self) -> String {
        format!(
            "ajet:
  experiment_name: experiment
  experiment_dir: {}
  model: {{path: {MODEL}}}
  data: {{train_batch_size: {BATCH}, max_prompt_length: 64, max_response_length: 32}}
  rollout: {{num_repeat: 1, max_response_length_in_one_turn: 4, compute_madness_checklist: []}}
  trainer_common: {{save_freq: 100000, val_before_train: false}}
  engine: {{device: cpu, threads: 1}}
",
            self.experiment().display()
        )
    }

    /// How often each episode stands in the journal, and how many of its lines are not whole.
    fn journal(&self) -> (BTreeMap<String, usize>, usize) {
        let text = std::fs::read(self.experiment().join("journal.jsonl")).unwrap();
        let (mut episodes, mut damaged) = (BTreeMap::new(), 0);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice::<Value>(line) {
                Ok(record) if record["record"] == "episode" => {
                    *episodes
                        .entry(record["episode_uuid"].as_str().unwrap().to_owned())
                        .or_default() += 1;
                }
                Ok(record) if record["record"] == "lost" => damaged += 1,
                Ok(_) => {}
                Err(_) => damaged += 1,
            }
        }
        (episodes, damaged)
    }
}

/// What the clients share.
#[derive(Clone, Default)]
struct Swarm {
    urls: Arc<Mutex<Vec<String>>>,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
}

impl Swarm {
    fn url(&self, rng: &mut ChaCha8Rng) -> Option<String> {
        self.urls.lock().unwrap().choose(rng).cloned()
    }

    /// Waits until one more end is acknowledged, so that there is something to lose however slow the machine is.
    async fn acknowledges(&self) {
        let count = || self.acknowledged.lock().unwrap().len();
        let (before, since) = (count(), Instant::now());
        while count() == before && since.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Plays episodes without end, whatever happens to the servers.
    async fn work(self, http: reqwest::Client, number: usize) {
        let mut rng = ChaCha8Rng::seed_from_u64(number as u64);
        loop {
            if self.episode(&http, number, &mut rng).await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn episode(&self, http: &reqwest::Client, number: usize, rng: &mut ChaCha8Rng) -> Option<()> {
        let mut url = self.url(rng)?;
        let client = format!("client-{number}");
        let claim = json!({"client_uuid": client, "episode_type": "train", "discard_episode_timeout": 60});
        let (_, claimed) = post(http, &url, "/claim_episode", None, &claim).await?;
        let (uuid, key) = (claimed["episode_uuid"].as_str()?, claimed["openai_api_key"].as_str()?);
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
        let (status, _) = post(http, &url, "/v1/chat/completions", Some(key), &chat).await?;
        if status != 200 {
            return None;
        }
        let task = format!("t{}", rng.random::<u32>());
        let output = json!({"reward": rng.random::<f64>(), "metadata": {"task_id": task}});
        let end = json!({"client_uuid": client, "episode_uuid": uuid, "task_id": task, "workflow_output": output});
        for _ in 0..10 {
            match post(http, &url, "/end_episode", None, &end).await {
                Some((200, answer)) if answer["success"] == true => {
                    self.acknowledged.lock().unwrap().insert(uuid.to_owned());
                    return Some(());
                }
                Some((status, _)) if status < 500 => return None,
                _ => {} // the answer was lost, or the server is gone: the end may be saved, and is tried again
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            url = self.url(rng)?;
        }
        None
    }
}

/// Status and body of the answer; nothing where none came.
async fn post(http: &reqwest::Client, url: &str, path: &str, key: Option<&str>, body: &Value) -> Option<(u16, Value)> {
    let mut request = http.post(format!("{url}{path}")).json(body);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let answer = request.send().await.ok()?;
    Some((answer.status().as_u16(), answer.json().await.ok()?))
}

/// Waits until a server rolls; why it never will.
async fn rolls(http: &reqwest::Client, url: &str) -> Result<(), String> {
    let since = Instant::now();
    let mut last = String::new();
    while since.elapsed() < BOOT {
        let answer = http.get(format!("{url}/get_engine_status")).send().await;
        if let Ok(answer) = answer
            && let Ok(status) = answer.json::<Value>().await
        {
            last = status.to_string();
            match status["engine_status"].as_str() {
                Some("ENGINE.ROLLING") => return Ok(()),
                Some("ENGINE.OFFLINE") if status["engine_status_detail"].is_string() => break,
                _ => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(last)
}

/// What came of a run.
#[derive(Debug, Default)]
struct Figures {
    kills: usize,
    acknowledged: usize,
    lost: usize,
    doubled: usize,
    damaged_lines: usize,
    second_servers: usize,
    /// Of a boot that failed, which ends the run.
    failure: Option<String>,
}

/// Kills until it has killed often enough.
async fn run(place: &Place, kills: usize, seed: u64) -> Figures {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let http = reqwest::Client::builder()
        .tls_certs_only([])
        .timeout(Duration::from_secs(20))
        .build()
        .unwrap();
    let swarm = Swarm::default();
    let mut figures = Figures::default();
    let mut server = Server::start(place, &[]);
    let config = json!({"yaml_as_string": place.config()});
    post(&http, &server.url, "/sync_train_config", None, &config)
        .await
        .unwrap();
    post(&http, &server.url, "/start_engine", None, &json!({}))
        .await
        .unwrap();
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| tokio::spawn(swarm.clone().work(http.clone(), n)))
        .collect();
    let serve = |servers: &[&Server]| {
        *swarm.urls.lock().unwrap() = servers.iter().map(|server| server.url.clone()).collect();
    };
    serve(&[&server]);
    while figures.kills < kills {
        // One in five is killed while it boots.
        if !rng.random_ratio(1, 5) {
            match rolls(&http, &server.url).await {
                Ok(()) => swarm.acknowledges().await,
                // Three crashes of an engine in a row end its server's patience; anything else is ours.
                Err(failure) if failure.contains("signal 9") => {}
                Err(failure) => {
                    figures.failure = Some(failure);
                    break;
                }
            }
        }
        let some_time = Duration::from_millis(rng.random_range(100..1500));
        tokio::time::sleep(some_time).await;
        let pause = Duration::from_millis(*[0, 0, 0, 100, 500, 2000].choose(&mut rng).unwrap());
        match rng.random_range(0..4) {
            0 => {
                figures.kills += usize::from(server.kill_engine());
            }
            1 => {
                // A second server on the same directory; either of the two is killed.
                figures.second_servers += 1;
                let mut second = Server::restart(place);
                serve(&[&server, &second]);
                tokio::time::sleep(some_time).await;
                if rng.random() {
                    std::mem::swap(&mut server, &mut second);
                }
                second.kill();
                figures.kills += 1;
            }
            both => {
                if both == 3 {
                    server.kill_engine();
                }
                server.kill();
                figures.kills += 1;
                tokio::time::sleep(pause).await;
                server = Server::restart(place);
            }
        }
        serve(&[&server]);
    }
    if figures.failure.is_none() {
        // The second server of the last round may have crashed its engine too often.
        server.kill();
        server = Server::restart(place);
        match rolls(&http, &server.url).await {
            Ok(()) => swarm.acknowledges().await,
            Err(failure) => figures.failure = Some(failure),
        }
    }
    workers.iter().for_each(|worker| worker.abort());
    for worker in workers {
        let _ = worker.await; // aborted
    }
    drop(server);
    tokio::time::sleep(Duration::from_secs(3)).await; // for its engine to notice
    let (journal, damaged) = place.journal();
    let acknowledged = swarm.acknowledged.lock().unwrap();
    figures.acknowledged = acknowledged.len();
    figures.lost = acknowledged.iter().filter(|uuid| !journal.contains_key(*uuid)).count();
    figures.doubled = journal.values().filter(|times| **times > 1).count();
    figures.damaged_lines = damaged;
    figures
}

/// The library that delays syncs, where a C compiler is there to build it.
fn shim(dir: &Path) -> Option<PathBuf> {
    let library = dir.join("slow_fsync.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/slow_fsync.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    built.is_ok_and(|status| status.success()).then_some(library)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_end_is_lost_or_doubled_by_restarts_and_second_servers() {
    let kills: usize = std::env::var("AJET_KILLS").map_or(6, |kills| kills.parse().unwrap());
    let delays = std::env::var("AJET_FSYNC_MS").unwrap_or("0,10,30".into());
    let delays: Vec<u64> = delays.split(',').map(|ms| ms.parse().unwrap()).collect();
    let built = tempfile::tempdir().unwrap();
    let shim = shim(built.path());
    if shim.is_none() {
        eprintln!("SKIPPED: no C compiler (cc), so syncs are not delayed");
    }
    let _ = rustls::crypto::ring::default_provider().install_default(); // another test did
    let mut bad = vec![];
    for (round, fsync_ms) in delays.iter().enumerate() {
        let place = Place {
            dir: tempfile::tempdir().unwrap(),
            fsync_ms: *fsync_ms,
            shim: shim.clone(),
        };
        let share = kills / delays.len() + usize::from(round < kills % delays.len());
        let figures = run(&place, share, kills as u64 + fsync_ms).await;
        println!("fsync +{fsync_ms} ms: {figures:?}");
        let clean = figures.lost + figures.doubled + figures.damaged_lines == 0 && figures.failure.is_none();
        if !clean || figures.acknowledged == 0 {
            bad.push((fsync_ms, figures));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}
