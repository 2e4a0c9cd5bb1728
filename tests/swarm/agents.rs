//! Agents that are programs, in whole runs against the real server with fake engines.

use std::path::Path;
use std::time::Duration;

use ajet_swarm::roll::job::Job;
use ajet_swarm::roll::report::{End, Outcome};
use ajet_swarm::roll::{Interrupt, Options, RollError, run, supervise_with};
use serde_json::{Value, json};

use crate::support::swarm::{ENOUGH_TASKS, Swarm};

/// Calls the model once. `$0` is the directory in which a task leaves a mark when it misbehaves; it does so once.
const AGENT: &str = r#"
call() {
    server=${OPENAI_BASE_URL#http://}; server=${server%%/*}
    body='{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    exec 3<>"/dev/tcp/${server%:*}/${server#*:}"
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n' "$server" "$OPENAI_API_KEY" >&3
    length=$(printf %s "$body" | wc -c)
    printf 'Content-Type: application/json\r\nConnection: close\r\nContent-Length: %s\r\n\r\n%s' "$length" "$body" >&3
    grep -q '"choices"' <&3 || { echo "no answer" >&2; exit 9; }
}
if mkdir "$0/$AJET_TASK_ID" 2>/dev/null; then
    case $AJET_TASK_ID in
        crash) echo "the tool broke" >&2; exit 3;;
        kill) kill -9 $$;;
        hang) (setsid sleep "$1" &); sleep "$1";;
        garbage) head -c 10000 /dev/urandom; exit 0;;
        nan) call; echo '{"reward": NaN}'; exit 0;;
        text) call; echo '{"reward": "high"}'; exit 0;;
        memory) head -c 400m /dev/zero | tail -c 300m | sleep "$1"; exit 0;;
        flood) yes; exit 0;;
        silent) echo '{"reward": 1}'; exit 0;;
    esac
fi
(sleep "$1" & setsid sh -c 'setsid sleep "$1" &' sh "$1") &
call
echo '{"reward": 1}'
"#;

/// A job whose tasks have these ids, with batches of all of them.
fn job(swarm: &Swarm, directory: &Path, tasks: &[&str], mut agent: Value, mut roll: Value) -> Job {
    let lines: Vec<_> = tasks
        .iter()
        .map(|task| json!({"task_id": task, "main_query": "q"}).to_string())
        .collect();
    let file = directory.join("tasks.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let ajet = json!({
        "data": {"train_batch_size": tasks.len()},
        "rollout": {"num_repeat": 1},
        "swarm_mode_sample_collection_method": ENOUGH_TASKS,
        "task_reader": {"type": "jsonl_dataset_file", "jsonl_dataset_file": {"training": {"file_path": file}}},
    });
    agent["type"] = agent.get("type").cloned().unwrap_or("command".into());
    roll["agent"] = agent;
    roll["swarm_url"] = swarm.url.clone().into();
    roll["auto_start_swarm_server"] = false.into();
    let yaml = format!("{}roll: {roll}\n", swarm.yaml(ajet));
    Job::parse(Path::new("job.yaml"), &yaml).unwrap()
}

async fn run_to_end(job: Job) -> Result<End, RollError> {
    supervise_with(env!("CARGO_BIN_EXE_ajet-swarm").into());
    run(job, Options::default(), Interrupt::default()).await
}

/// Processes that sleep for so long.
fn sleepers(seconds: &str) -> usize {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let command_lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let wanted = format!("sleep\0{seconds}\0");
    command_lines.filter(|line| line == wanted.as_bytes()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_to_fail_is_counted_and_the_run_goes_on_without_orphans() {
    let swarm = Swarm::start().await;
    let directory = tempfile::tempdir().unwrap();
    let sleep = format!("70000.{}", std::process::id());
    let agent = json!({
        "argv": ["bash", "-c", AGENT, directory.path(), sleep], "timeout": 8, "memory_mb": 100, "max_output_mb": 1,
    });
    let tasks = [
        "crash", "kill", "hang", "garbage", "nan", "text", "memory", "flood", "silent", "good", "better", "best",
    ];
    let job = job(
        &swarm,
        directory.path(),
        &tasks,
        agent,
        json!({"epochs": 1, "max_parallel": 4}),
    );
    let end = run_to_end(job).await.unwrap();
    assert_eq!((end.outcome, end.steps), (Outcome::Done, 1));
    let mut dropped: Vec<_> = end
        .dropped
        .iter()
        .map(|(reason, count)| (reason.as_str(), *count))
        .collect();
    dropped.sort();
    let expected = [
        "agent_failed",
        "agent_killed",
        "agent_memory",
        "agent_output",
        "agent_timeout",
        "bad_answer",
        "bad_reward",
        "no_llm_call",
        "no_reward",
    ];
    assert_eq!(dropped, expected.map(|reason| (reason, 1)));
    let record = swarm.engines.record();
    // The silent one ends twice; what the others said of themselves never became a reward.
    assert_eq!(record.ends.len(), tasks.len() + 1);
    assert!(record.ends.iter().all(|(_, end)| end.reward == 1.0));
    // Seen in CI: a process whose parent ended while the supervisor read the table of processes survived.
    assert_eq!(sleepers(&sleep), 0);
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_agents_that_never_call_the_model_stops_and_says_so() {
    let swarm = Swarm::start().await;
    let directory = tempfile::tempdir().unwrap();
    let agent = json!({"argv": ["echo", r#"{"reward": 1}"#]});
    let tasks: Vec<_> = (0..30).map(|number| format!("t{number}")).collect();
    let tasks: Vec<_> = tasks.iter().map(String::as_str).collect();
    let job = job(
        &swarm,
        directory.path(),
        &tasks,
        agent,
        json!({"steps": 1, "max_parallel": 4}),
    );
    let error = run_to_end(job).await.unwrap_err().to_string();
    assert!(
        error.contains(
            "20 of the last 20 episodes failed (20 no_llm_call), the last one: the agent never called the model"
        ),
        "{error}"
    );
    swarm.shut_down().await;
}

/// What `stop_argv` ends is no process of ours, such as a container; here it is a file.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_episode_leaves_is_stopped_however_it_ends() {
    let swarm = Swarm::start().await;
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "touch {}/$AJET_EPISODE_UUID.running; {AGENT}",
        directory.path().display()
    );
    let stop = "mv \"$0/$1.running\" \"$0/$1.stopped\"";
    let agent = json!({
        "argv": ["bash", "-c", script, directory.path(), "70001"], "timeout": 1,
        "stop_argv": ["sh", "-c", stop, directory.path(), "{{ episode_uuid }}"],
    });
    let tasks = ["crash", "kill", "hang", "good"];
    let job = job(
        &swarm,
        directory.path(),
        &tasks,
        agent,
        json!({"epochs": 1, "max_parallel": 2}),
    );
    assert_eq!(run_to_end(job).await.unwrap().steps, 1);
    let files = |ending: &str| {
        let names = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(ending)).count()
    };
    assert_eq!((files(".running"), files(".stopped")), (0, 7));
    swarm.shut_down().await;
}

/// A worker that calls the model, in the shell.
const WORKER: &str = r#"
while read -r line; do
    field() { printf %s "$line" | sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/"; }
    AJET_TASK_ID=$(field task_id) OPENAI_BASE_URL=$(field base_url) OPENAI_API_KEY=$(field api_key)
    # What the agent leaves behind would hold a pipe open.
    (. "$0/agent.sh") > "$0/answer.$$"
    answer=$(tail -n 1 "$0/answer.$$")
    case $AJET_TASK_ID in fatal-*) exit 1;; esac
    echo "{\"episode_uuid\": \"$(field episode_uuid)\", ${answer#\{}"
done
"#;

#[tokio::test(flavor = "multi_thread")]
async fn workers_run_a_whole_job_and_end_with_it() {
    let swarm = Swarm::start().await;
    let directory = tempfile::tempdir().unwrap();
    let sleep = format!("70002.{}", std::process::id());
    std::fs::write(directory.path().join("agent.sh"), AGENT).unwrap();
    let script = format!("sleep {sleep} & {WORKER}");
    let agent = json!({"type": "worker", "argv": ["bash", "-c", script, directory.path(), "70003"], "workers": 3});
    let tasks: Vec<_> = (0..12).map(|number| format!("t{number}")).collect();
    let mut tasks: Vec<_> = tasks.iter().map(String::as_str).collect();
    tasks.push("silent");
    let job = job(
        &swarm,
        directory.path(),
        &tasks,
        agent,
        json!({"epochs": 1, "max_parallel": 64}),
    );
    let end = run_to_end(job).await.unwrap();
    assert_eq!((end.steps, end.dropped["no_llm_call"], end.dropped.len()), (1, 1, 1));
    for _ in 0..500 {
        if sleepers(&sleep) + sleepers("70003") == 0 {
            return swarm.shut_down().await.die("done");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("workers outlive their run");
}

/// Measures, rather than checks, so it is run by hand:
/// `cargo test --test swarm -- --ignored --nocapture processor_time_of_roll`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn processor_time_of_roll_with_64_episodes_of_5_calls() {
    let swarm = Swarm::start().await;
    swarm
        .engines
        .behave(|behaviour| behaviour.chat_takes = (Duration::from_millis(500), Duration::from_millis(500)));
    let directory = tempfile::tempdir().unwrap();
    let ajet = json!({
        "data": {"train_batch_size": 64},
        "rollout": {"num_repeat": 2},
        "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 256}},
    });
    let roll = json!({
        "swarm_url": swarm.url, "auto_start_swarm_server": false, "steps": 4, "max_parallel": 64,
        "agent": {"type": "chat", "turns": ["a", "b", "c", "d", "e"]},
        "reward": {"type": "similarity", "answer": "{{ metadata.answer }}"},
    });
    let file = directory.path().join("job.yaml");
    std::fs::write(&file, format!("{}roll: {roll}\n", swarm.yaml(ajet))).unwrap();
    let started = std::time::Instant::now();
    let run = tokio::task::spawn_blocking(move || {
        let program = env!("CARGO_BIN_EXE_ajet-swarm");
        std::process::Command::new(program)
            .arg("roll")
            .arg(file)
            .output()
            .unwrap()
    });
    let output = run.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let wall = started.elapsed().as_secs_f64();
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).unwrap();
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let used = seconds(used.user_time()) + seconds(used.system_time());
    let episodes = swarm.engines.record().ends.len();
    println!(
        "{episodes} episodes of 5 calls in {wall:.1} s: {used:.2} s of processor time, {:.1} % of a core, {:.2} ms a call",
        100.0 * used / wall,
        1e3 * used / (5 * episodes) as f64,
    );
    swarm.shut_down().await;
}
