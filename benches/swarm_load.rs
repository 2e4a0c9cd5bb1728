//! The swarm server under load, with engines that only echo: `cargo bench --bench swarm_load`.
//!
//! 64 clients keep 1,000 episodes running until 100,000 went from claim over a chat to their end, while 200 more poll the
//! status and 4 dashboards the pool. Server and engine are a process of their own. Told are the latencies, the server's
//! memory and processor time; it fails on any error, and on an episode that is lost or counted twice. `AJET_LOAD_CYCLES`
//! shortens it.

#[allow(dead_code, reason = "a benchmark uses a part of what the tests share")]
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ajet_swarm::server::Options;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use support::swarm::Swarm;

const CLIENTS: u64 = 64;
const RUNNING: u64 = 1000;
const CYCLES: u64 = 100_000;
const STATUS_POLLERS: u64 = 200;
const DASHBOARDS: u64 = 4;
/// Episodes of a batch.
const BATCH: u64 = 4 * RUNNING;
/// An agent's own work before its chat and after it: between this and three times this.
const WORK: Duration = Duration::from_millis(800);
/// Wait after a refused claim, as the clients have it; up to half as much again.
const RETRY: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_secs(1);

fn main() {
    // A test run of all targets is not the time for this.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    match std::env::args().any(|arg| arg == "serve") {
        true => runtime.block_on(serve()),
        false => runtime.block_on(load()),
    }
}

// ---- the server's process ----

/// Serves until its input closes, then tells what its engine was given.
async fn serve() {
    let swarm = Swarm::with(Options {
        slow_poll: Duration::ZERO,
        ..Options::default()
    })
    .await;
    swarm
        .rolling_with(json!({
            "data": {"train_batch_size": BATCH / 4}, "rollout": {"num_repeat": 4, "max_env_worker": RUNNING},
            "swarm_mode_sample_collection_method": "rollout_until_finish_enough_episodes",
        }))
        .await;
    say(&json!(swarm.url));
    let input_closed = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let (mut ids, mut rewards) = (HashSet::new(), 0);
    let mut ends = 0;
    while !input_closed.is_finished() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        // Taken out, so that the memory is the server's and not the record's.
        for (id, end) in swarm.engines.take_ends() {
            ids.insert(id.parse::<uuid::Uuid>().unwrap().as_u128());
            rewards += end.reward as u64;
            ends += 1;
        }
    }
    let dropped = swarm.pool().await["dropped_episodes"].clone();
    say(&json!({
        "ends": ends, "distinct": ids.len(), "rewards": rewards, "dropped": dropped,
        "updates": swarm.engines.record().updates,
    }));
}

fn say(value: &Value) {
    println!("{value}");
    std::io::stdout().flush().unwrap();
}

// ---- the load ----

#[derive(Default)]
struct Tally {
    next: AtomicU64,
    ended: AtomicU64,
    rewards: AtomicU64,
    running: AtomicU64,
    most_running: AtomicU64,
    done: AtomicBool,
    claimed: Mutex<HashSet<String>>,
    latencies: Mutex<[Vec<Duration>; 5]>,
}

const CALLS: [&str; 5] = ["claim", "chat", "end", "status", "pool"];

impl Tally {
    async fn timed(&self, call: usize, request: reqwest::RequestBuilder) -> Value {
        let started = Instant::now();
        let response = request.send().await.unwrap();
        let (status, body) = (response.status(), response.bytes().await.unwrap());
        self.latencies.lock().unwrap()[call].push(started.elapsed());
        assert_eq!(status, 200, "{}: {}", CALLS[call], String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// One of a client's episodes after the other.
    async fn lane(&self, http: reqwest::Client, url: &str, client: &str, cycles: u64) {
        let post = |path: &str, body: Value| http.post(format!("{url}{path}")).json(&body);
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= cycles {
                return;
            }
            let body = json!({"client_uuid": client, "episode_type": "train", "discard_episode_timeout": 240});
            let claimed = loop {
                let claimed = self.timed(0, post("/claim_episode", body.clone())).await;
                if claimed["success"] == true {
                    break claimed;
                }
                let cause = claimed["fail_cause"].as_str().unwrap();
                assert!(
                    cause.contains("Engine not ready") || cause.contains("No available episodes"),
                    "{cause}"
                );
                tokio::time::sleep(RETRY + RETRY.mul_f64(spread(number, 0) / 2.0)).await;
            };
            let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_running.fetch_max(running, Ordering::Relaxed);
            let (uuid, key) = (
                claimed["episode_uuid"].as_str().unwrap(),
                claimed["openai_api_key"].as_str().unwrap(),
            );
            assert!(
                self.claimed.lock().unwrap().insert(uuid.to_owned()),
                "{uuid} was given out twice"
            );
            tokio::time::sleep(WORK + WORK.mul_f64(2.0 * spread(number, 1))).await;
            let chat = json!({"model": "m", "messages": [{"role": "user", "content": "What is 6 times 7?"}]});
            self.timed(1, post("/v1/chat/completions", chat).bearer_auth(key)).await;
            tokio::time::sleep(WORK + WORK.mul_f64(2.0 * spread(number, 2))).await;
            let task = format!("t{}", number / 4);
            let output = json!({"reward": number, "metadata": {"task_id": task}});
            let end = json!({"client_uuid": client, "episode_uuid": uuid, "task_id": task, "workflow_output": output});
            self.timed(2, post("/end_episode", end)).await;
            self.running.fetch_sub(1, Ordering::Relaxed);
            self.ended.fetch_add(1, Ordering::Relaxed);
            self.rewards.fetch_add(number, Ordering::Relaxed);
        }
    }

    async fn poll(&self, call: usize, url: String, phase: Duration) {
        let http = client();
        tokio::time::sleep(phase).await;
        while !self.done.load(Ordering::Relaxed) {
            self.timed(call, http.get(&url)).await;
            tokio::time::sleep(POLL).await;
        }
    }
}

/// From 0 up to 1, another for each number and purpose.
fn spread(number: u64, purpose: u64) -> f64 {
    let mixed = (number * 4 + purpose + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().tls_certs_only([]).build().unwrap()
}

async fn load() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cycles = std::env::var("AJET_LOAD_CYCLES").map_or(CYCLES, |text| text.parse().unwrap());
    let mut server = Command::new(std::env::current_exe().unwrap())
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut next_told = || serde_json::from_str::<Value>(&told.next().unwrap().unwrap()).unwrap();
    let url = next_told().as_str().unwrap().to_owned();

    let tally = Arc::new(Tally::default());
    let polls = (0..STATUS_POLLERS)
        .map(|number| (3, "/get_engine_status", number))
        .chain((0..DASHBOARDS).map(|number| (4, "/get_current_batch_rollout_pool_information", number)));
    let pollers: Vec<_> = polls
        .map(|(call, path, number)| {
            let (tally, url) = (Arc::clone(&tally), format!("{url}{path}"));
            tokio::spawn(async move {
                tally
                    .poll(call, url, POLL * number as u32 / STATUS_POLLERS as u32)
                    .await
            })
        })
        .collect();
    let started = Instant::now();
    let lanes: Vec<_> = (0..CLIENTS)
        .flat_map(|number| {
            let http = client();
            let lanes = RUNNING * (number + 1) / CLIENTS - RUNNING * number / CLIENTS;
            (0..lanes).map(move |_| (number, http.clone()))
        })
        .map(|(number, http)| {
            let (tally, url) = (Arc::clone(&tally), url.clone());
            tokio::spawn(async move { tally.lane(http, &url, &format!("client{number}"), cycles).await })
        })
        .collect();
    let memory = tokio::spawn(watch_memory(server.id(), Arc::clone(&tally), cycles));
    for lane in lanes {
        lane.await.unwrap();
    }
    let seconds = started.elapsed().as_secs_f64();
    tally.done.store(true, Ordering::Relaxed);
    for poller in pollers {
        poller.await.unwrap();
    }
    let memory = memory.await.unwrap();
    let processor = processor_seconds(server.id());
    end(&mut server);
    report(&tally, cycles, seconds, processor, &memory, &next_told());
    assert!(server.wait().unwrap().success());
}

fn end(server: &mut Child) {
    drop(server.stdin.take());
}

/// The server's resident memory in MiB at each tenth of the cycles.
async fn watch_memory(pid: u32, tally: Arc<Tally>, cycles: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    while !tally.done.load(Ordering::Relaxed) {
        if tally.ended.load(Ordering::Relaxed) * 10 >= cycles * seen.len() as u64 {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
            seen.push(line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    seen
}

fn processor_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // User and system time in clock ticks, of which Linux tells 100 a second.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn report(tally: &Tally, cycles: u64, seconds: f64, processor: f64, memory: &[u64], told: &Value) {
    let rate = cycles as f64 / seconds;
    println!(
        "{cycles} episodes in {seconds:.1} s ({rate:.0} a second), {processor:.1} s of server and engine on the CPU"
    );
    println!("most episodes at once: {}", tally.most_running.load(Ordering::Relaxed));
    println!("resident memory at each tenth, MiB: {memory:?}");
    println!("{:<8}{:>10}{:>10}{:>10}{:>10}  ms", "", "calls", "p50", "p99", "max");
    for (name, latencies) in CALLS.iter().zip(tally.latencies.lock().unwrap().iter_mut()) {
        latencies.sort_unstable();
        let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        println!(
            "{name:<8}{:>10}{:>10.2}{:>10.2}{:>10.2}",
            latencies.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    println!("the engine's own count: {told}");
    let (ended, rewards) = (
        tally.ended.load(Ordering::Relaxed),
        tally.rewards.load(Ordering::Relaxed),
    );
    assert_eq!((ended, rewards), (cycles, cycles * (cycles - 1) / 2), "an end was lost");
    assert_eq!(told["ends"], cycles, "the engine was told of each once");
    assert_eq!(told["distinct"], cycles);
    assert_eq!(told["rewards"], rewards);
    assert_eq!(told["dropped"], json!({}));
}
