//! Client library and `roll` against the real server with fake engines.

#[allow(dead_code, reason = "each test file uses a part of what they share")]
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::python_server::{LAST_METHOD, PythonServer, WHY};
use crate::support::swarm::Swarm;
use ajet_swarm::client::{BeginEpisode, ClientError, EndOutcome, Started, SwarmClient};
use ajet_swarm::protocol::engine::DropReason;
use ajet_swarm::protocol::openai::{ChatMessage, ChatRequest};
use ajet_swarm::protocol::swarm::{EngineStatus, EpisodeType, ThrottlePolicy, WorkflowOutput};
use ajet_swarm::roll::job::Job;
use ajet_swarm::roll::report::{End, Outcome};
use ajet_swarm::roll::{Interrupt, Options, RollError, run};
use serde_json::{Value, json};

pub const ENOUGH_TASKS: &str = "rollout_until_finish_enough_tasks";

/// Batches of `tasks` tasks of `repeats` episodes, of a small generated task set.
pub fn ajet(tasks: u64, repeats: u64, method: &str) -> Value {
    json!({
        "data": {"train_batch_size": tasks},
        "rollout": {"num_repeat": repeats},
        "swarm_mode_sample_collection_method": method,
        "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 12, "validation_tasks": 3}},
    })
}

/// A job on this server; `roll` is completed with the echo agent and a reward that differs between tasks.
pub fn job(swarm: &Swarm, ajet: Value, mut roll: Value) -> Job {
    roll["swarm_url"] = swarm.url.clone().into();
    roll["auto_start_swarm_server"] = false.into();
    if roll["agent"].is_null() {
        roll["agent"] = json!({"type": "chat", "user": "{{ metadata.text }}"});
    }
    if roll["reward"].is_null() {
        roll["reward"] = json!({"type": "similarity", "answer": "{{ metadata.answer }}"});
    }
    let yaml = format!("{}roll: {roll}\n", swarm.yaml(ajet));
    Job::parse(Path::new("job.yaml"), &yaml).unwrap()
}

pub async fn run_to_end(job: Job) -> Result<End, RollError> {
    run(job, Options::default(), Interrupt::default()).await
}

fn question() -> ChatRequest {
    let message = ChatMessage {
        role: "user".into(),
        content: "hi".into(),
        ..ChatMessage::default()
    };
    ChatRequest {
        messages: vec![message],
        ..ChatRequest::default()
    }
}

fn reward(reward: impl Into<Value>) -> WorkflowOutput {
    WorkflowOutput {
        reward: reward.into(),
        ..WorkflowOutput::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_is_begun_used_and_ended() {
    let swarm = Swarm::start().await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let yaml = swarm.yaml(ajet(1, 2, ENOUGH_TASKS));
    let started = client
        .auto_sync_train_config_and_start_engine(&yaml, false, |_| {})
        .await;
    assert_eq!(started.unwrap(), Started::Fresh);
    let again = client
        .auto_sync_train_config_and_start_engine(&yaml, false, |_| {})
        .await;
    assert_eq!(again.unwrap(), Started::AlreadyUp);

    let episode = client.begin_episode(&BeginEpisode::default()).await.unwrap();
    assert!(episode.base_url().starts_with(&swarm.url), "{}", episode.base_url());
    let answer = episode.model().chat(&question()).await.unwrap();
    assert_eq!(answer.choices[0].message.content, "hi (train)");
    let told = episode.model().conversations().await.unwrap();
    assert_eq!((told.episode_uuid.as_str(), told.main), (episode.uuid(), Some(0)));
    assert_eq!(told.conversations[0].messages[1]["content"], "hi (train)");
    assert!(episode.can_continue().await.unwrap());
    assert_eq!(episode.end("t", reward(0.5)).await.unwrap(), EndOutcome::Accepted);
    assert_eq!(
        client.pool_information().await.unwrap().completed_tasks_rewards["t"],
        [0.5]
    );

    let refused = client.begin_episode(&BeginEpisode::default()).await.unwrap();
    let uuid = refused.uuid().to_string();
    let error = refused.end("t", reward("good")).await.unwrap_err().to_string();
    assert!(error.contains("reward"), "{error}");
    client.settle().await;
    // The server answers an abort before it tells the engine.
    let forgotten = async {
        while !swarm
            .engines
            .record()
            .forgotten
            .contains(&(uuid.clone(), DropReason::Aborted))
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), forgotten)
        .await
        .expect("the engine hears of the abort");

    client.stop_engine().await.unwrap();
    assert_eq!(client.status().await.unwrap().engine_status, EngineStatus::Offline);
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_episode_is_aborted_and_its_slot_free() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 1, 1).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    for _ in 0..3 {
        // There is one slot: a second episode can only be claimed where the first is gone.
        drop(client.begin_episode(&BeginEpisode::default()).await.unwrap());
    }
    client.settle().await;
    assert!(
        client
            .pool_information()
            .await
            .unwrap()
            .running_episode_details
            .is_none()
    );
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_waits_for_any_more_is_given_back() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 1, 1).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    for micros in 0..40 {
        let begin = BeginEpisode::default();
        let timeout = std::time::Duration::from_micros(micros * 100);
        drop(tokio::time::timeout(timeout, client.begin_episode(&begin)).await);
    }
    client.settle().await;
    assert!(
        client
            .pool_information()
            .await
            .unwrap()
            .running_episode_details
            .is_none()
    );
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_come_back_in_the_words_of_server_and_engine() {
    let swarm = Swarm::start().await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let wrong = client
        .sync_train_config("ajet: {rollout: {num_repeat: many}}")
        .await
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("ajet.rollout.num_repeat"), "{wrong}");
    let none = client.start_engine(|_| {}).await.unwrap_err().to_string();
    assert!(none.contains("No training config found"), "{none}");
    swarm
        .engines
        .behave(|behaviour| behaviour.boot_error = Some("the weights are torn".into()));
    let yaml = swarm.yaml(ajet(1, 1, ENOUGH_TASKS));
    let boot = client
        .auto_sync_train_config_and_start_engine(&yaml, false, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(boot, ClientError::Boot { .. }), "{boot}");
    assert!(boot.to_string().contains("the weights are torn"), "{boot}");
    swarm.shut_down().await;
    let gone = client.health().await.unwrap_err();
    assert!(matches!(gone, ClientError::Unreachable { .. }), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_trains_for_its_steps_and_evaluates_each_at_its_own_weights() {
    let swarm = Swarm::start().await;
    let job = job(
        &swarm,
        ajet(2, 3, ENOUGH_TASKS),
        json!({"steps": 2, "max_parallel": 4, "eval": {"every": 1}}),
    );
    let end = run_to_end(job).await.unwrap();
    assert_eq!((end.outcome, end.steps), (Outcome::Done, 2));
    let (before, after) = (end.eval_before.unwrap(), end.eval_after.unwrap());
    assert_eq!((before.episodes, after.episodes), (3, 3));
    assert!(before.reward_mean.unwrap() > 0.0);
    let record = swarm.engines.record();
    assert_eq!((record.updates, record.launches, record.shutdowns), (2, 1, 1));
    let evals: Vec<_> = record
        .ends
        .iter()
        .filter(|(_, end)| end.episode_type == EpisodeType::Eval)
        .collect();
    let steps: Vec<_> = evals.iter().map(|(_, end)| end.claimed_at_step).collect();
    assert_eq!(steps, [1, 1, 1, 2, 2, 2, 3, 3, 3]);
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_has_every_task_and_what_comes_to_nothing_is_tried_again() {
    let swarm = Swarm::start().await;
    let seen = tempfile::tempdir().unwrap();
    // The first try of each task fails: its folder is not there yet.
    let script = "mkdir \"$0\" 2>/dev/null && exit 3; cat > /dev/null; echo 1";
    let folder = format!("{}/{{{{ task_id }}}}", seen.path().display());
    let roll = json!({
        "epochs": 1, "max_parallel": 3,
        "reward": {"type": "command", "argv": ["sh", "-c", script, folder]},
    });
    let end = run_to_end(job(&swarm, ajet(4, 2, ENOUGH_TASKS), roll)).await.unwrap();
    assert_eq!(end.dropped["reward_error"], 12);
    let record = swarm.engines.record();
    let tasks: Vec<_> = record.ends.iter().map(|(_, end)| end.task_id.clone()).collect();
    assert_eq!(tasks.len(), 24);
    assert_eq!(tasks.iter().collect::<HashSet<_>>().len(), 12);
    assert_eq!((u64::from(record.updates), record.forgotten.len()), (end.steps, 12));
    assert!(end.steps >= 2, "{}", end.steps);
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_an_agree_method_a_run_agrees_after_a_batch_of_its_own() {
    let swarm = Swarm::start().await;
    let method = "rollout_until_any_client_agree_sync_weight";
    let job = job(&swarm, ajet(2, 2, method), json!({"steps": 2, "max_parallel": 2}));
    let end = run_to_end(job).await.unwrap();
    assert_eq!(end.steps, 2);
    assert_eq!(swarm.engines.record().updates, 2);
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_share_a_batch_and_end_together() {
    let swarm = Swarm::start().await;
    swarm.rolling_with(ajet(2, 4, ENOUGH_TASKS)).await;
    let roll = json!({"steps": 3, "max_parallel": 4, "throttle": {"ratio": 0.5}});
    let runs = [(); 2].map(|()| tokio::spawn(run_to_end(job(&swarm, ajet(2, 4, ENOUGH_TASKS), roll.clone()))));
    for run in runs {
        let end = run.await.unwrap().unwrap();
        assert_eq!(end.outcome, Outcome::Done);
    }
    let record = swarm.engines.record();
    assert_eq!((record.updates, record.shutdowns), (3, 0));
    let clients: HashSet<_> = record.ends.iter().map(|(_, end)| &end.client_uuid).collect();
    assert_eq!(clients.len(), 2);
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_run_gives_its_episodes_up_and_leaves_the_engine() {
    let swarm = Swarm::start().await;
    swarm.engines.behave(|behaviour| behaviour.hold_chats = true);
    let interrupt = Interrupt::default();
    let job = job(&swarm, ajet(2, 2, ENOUGH_TASKS), json!({"steps": 1, "max_parallel": 4}));
    let running = tokio::spawn(run(job, Options::default(), interrupt.clone()));
    swarm
        .until_true("four episodes run", async |swarm| {
            let pool = swarm.pool().await;
            (pool["running_episode_details"]
                .as_object()
                .map_or(0, |running| running.len())
                == 4)
                .then_some(())
        })
        .await;
    interrupt.stop();
    let end = running.await.unwrap().unwrap();
    assert_eq!(end.outcome, Outcome::Interrupted);
    assert_eq!(swarm.pool().await["running_episode_details"], Value::Null);
    assert_eq!(swarm.status().await["engine_status"], "ENGINE.ROLLING");
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_a_sentence_when_the_engine_is_stopped_under_it() {
    let swarm = Swarm::start().await;
    let job = job(
        &swarm,
        ajet(2, 2, ENOUGH_TASKS),
        json!({"steps": 1000, "max_parallel": 2}),
    );
    let running = tokio::spawn(run_to_end(job));
    swarm.until_step(2).await;
    let (status, _) = swarm.post("/stop_engine", json!({})).await;
    assert_eq!(status, 200);
    let error = running.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("went offline"), "{error}");
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_which_nothing_works_ends_with_the_reason() {
    let swarm = Swarm::start().await;
    let failing = json!({"steps": 1, "max_parallel": 2, "reward": {"type": "command", "argv": ["sh", "-c", "echo why >&2; exit 1"]}});
    let error = run_to_end(job(&swarm, ajet(2, 2, ENOUGH_TASKS), failing))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("20 of the last 20 episodes failed (20 reward_error)") && error.contains("why"),
        "{error}"
    );
    let hole = json!({"steps": 1, "agent": {"type": "chat", "user": "{{ metadata.qestion }}"}});
    let error = run_to_end(job(&swarm, ajet(2, 2, ENOUGH_TASKS), hole))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("roll.agent.user") && error.contains("metadata.qestion"),
        "{error}"
    );
    swarm.shut_down().await;
}

/// Seen with too few tasks for a batch, which was "done after 0 updates" with exit code 0.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_an_update_fails_with_the_reason() {
    let equal = json!({"type": "exact_match", "answer": "never"});
    let failing = json!({"type": "command", "argv": ["sh", "-c", "exit 1"]});
    let no_call = json!({"type": "command", "argv": ["echo", "1"]});
    for (ajet, roll, told) in [
        (
            ajet(20, 2, ENOUGH_TASKS),
            json!({"epochs": 1}),
            "a batch needs ajet.data.train_batch_size = 20 different tasks, and there are 12",
        ),
        (
            ajet(8, 1, ENOUGH_TASKS),
            json!({"epochs": 1, "max_parallel": 99, "reward": failing}),
            "48 reward_error",
        ),
        (
            ajet(2, 2, "rollout_until_finish_enough_non_dummy_tasks"),
            json!({"steps": 1, "reward": equal}),
            "0 of them with different rewards",
        ),
        (
            ajet(2, 1, ENOUGH_TASKS),
            json!({"epochs": 1, "agent": no_call, "reward": {"type": "number_match", "answer": "1"}}),
            "no_llm_call",
        ),
    ] {
        let swarm = Swarm::start().await;
        let error = run_to_end(job(&swarm, ajet, roll)).await.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
        swarm.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_aborts_trains_nothing() {
    let swarm = Swarm::start().await;
    let job = job(&swarm, ajet(2, 2, ENOUGH_TASKS), json!({"steps": 2, "max_parallel": 4}));
    let options = Options {
        abort: true,
        ..Options::default()
    };
    let end = run(job, options, Interrupt::default()).await.unwrap();
    assert_eq!((end.outcome, end.steps), (Outcome::Done, 0));
    let record = swarm.engines.record();
    assert_eq!((record.ends.len(), record.forgotten.len()), (0, 8));
    swarm.shut_down().await;
}

/// Runs the program in `dir`.
fn ajet_swarm(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"));
    command
        .args(arguments)
        .current_dir(dir)
        .env_remove("AJET_SWARM_URL")
        .output()
        .unwrap()
}

/// Writes a job on the built-in model into `dir`.
fn write_job(dir: &Path, ajet: &str, roll: &str) -> PathBuf {
    let path = dir.join("job.yaml");
    let text = format!("ajet: {{model: {{path: 'builtin:tiny'}}, {ajet}}}\nroll: {{{roll}}}\n");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn the_main_job_trains_the_built_in_model_and_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}");
    write_job(
        dir.path(),
        "data: {train_batch_size: 2, max_prompt_length: 64, max_response_length: 16}, rollout: {num_repeat: 2}, \
         task_reader: {type: reverse_text, reverse_text: {tasks: 16, validation_tasks: 2}}",
        "steps: 2, max_parallel: 4, eval: {every: 1}, agent: {type: chat, user: '{{ main_query }}'}, \
         reward: {type: similarity, answer: '{{ metadata.answer }}'}",
    );
    let output = ajet_swarm(dir.path(), &["roll", "job.yaml", "--json", "--swarm-url", &url]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    assert_eq!(
        (&events[0]["event"], &events[0]["model"]),
        (&json!("start"), &json!("builtin:tiny"))
    );
    let steps_of = |name: &str| -> Vec<u64> {
        let steps = named(name).into_iter().map(|event| event["global_step"].as_u64());
        steps.map(Option::unwrap).collect()
    };
    assert_eq!(steps_of("eval"), [1, 2, 3]);
    assert_eq!(steps_of("step"), [1, 2]);
    let steps = named("step");
    for field in [
        "reward_mean",
        "episodes",
        "response_length_mean",
        "loss",
        "grad_norm",
        "lr",
    ] {
        assert!(
            steps.iter().all(|step| step[field].is_number()),
            "{field}: {}",
            steps[0]
        );
    }
    assert!(named("episode").len() >= 8 + 3 * 2, "{stdout}");
    let end = events.last().unwrap();
    assert_eq!(
        (&end["event"], &end["outcome"], &end["steps"]),
        (&json!("end"), &json!("done"), &json!(2))
    );
    assert!(
        end["eval_before"]["reward_mean"].is_number() && end["eval_after"]["reward_mean"].is_number(),
        "{end}"
    );
    let checkpoint = Path::new(end["checkpoint"].as_str().unwrap());
    assert!(checkpoint.join("model.safetensors").is_file(), "{end}");
    assert!(
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err(),
        "the server still runs"
    );
    assert_eq!(processes_in(dir.path()), Vec::<PathBuf>::new());
}

/// Processes whose working directory this is; they are found on Linux only.
fn processes_in(dir: &Path) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let here = |process: &PathBuf| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == dir);
    processes.map(|process| process.path()).filter(here).collect()
}

#[test]
fn a_wrong_job_is_one_sentence_and_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tasks.jsonl"), "{\"main_query\": \"1+1\"}\n{broken\n").unwrap();
    let broken = "task_reader: {jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}";
    let generated = "task_reader: {type: reverse_text}";
    let chat = "agent: {type: chat}, reward: {type: exact_match, answer: x}, auto_start_swarm_server: false";
    for (ajet, roll, told) in [
        (
            "rollout: {num_repeats: 4}",
            chat,
            "ajet.rollout.num_repeats: unknown key; did you mean `ajet.rollout.num_repeat`?",
        ),
        (
            "rollout: {num_repeat: many}",
            chat,
            "ajet.rollout.num_repeat: \"many\" is not a whole number",
        ),
        (
            generated,
            "agnet: {type: chat}",
            "roll.agnet: unknown key; did you mean `roll.agent`?",
        ),
        (broken, chat, "tasks.jsonl, line 2: not JSON"),
        (
            generated,
            format!("{chat}, swarm_url: 'http://127.0.0.1:1'").as_str(),
            "cannot reach the swarm server at http://127.0.0.1:1",
        ),
        (
            generated,
            format!("{chat}, swarm_url: 'ftp://box'").as_str(),
            "invalid swarm server URL 'ftp://box'",
        ),
    ] {
        write_job(dir.path(), ajet, roll);
        let output = ajet_swarm(dir.path(), &["roll", "job.yaml"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(told), "{stderr}");
        assert!(output.stdout.is_empty());
    }
    let usage = ajet_swarm(dir.path(), &["roll"]);
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn example_jobs_are_right_and_a_new_one_is_not_written_over() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for job in ["template.yaml", "quickstart.yaml", "smollm2-arithmetic.yaml"] {
        let path = Path::new("config/jobs").join(job);
        let output = ajet_swarm(root, &["job", "check", path.to_str().unwrap()]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        // Its model is to be downloaded first.
        let lacks_model = job.starts_with("smollm2") && stderr.contains("model not found: models/");
        assert!(output.status.success() || lacks_model, "{stderr}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(ajet_swarm(dir.path(), &["job", "init"]).status.success());
    let again = ajet_swarm(dir.path(), &["job", "init"]);
    assert_eq!(again.status.code(), Some(1));
    let shown = ajet_swarm(dir.path(), &["job", "show", "job.yaml"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let shown = ajet_swarm::config::parse(&shown).unwrap().to_json();
    assert_eq!(shown["ajet"]["rollout"]["num_repeat"], 8);
}

/// Seen: a second job with another model, experiment and reward joined the first one's training, and a run was resumed with
/// other rates, without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_differs_from_what_it_joins_says_so() {
    let swarm = Swarm::start().await;
    swarm.rolling_with(ajet(2, 2, ENOUGH_TASKS)).await;
    let with_lr = |steps: u64| {
        let mut ajet = ajet(2, 2, ENOUGH_TASKS);
        ajet["trainer_common"] = json!({"optim": {"lr": 0.25}, "save_freq": 7});
        job(&swarm, ajet, json!({"steps": steps, "max_parallel": 2}))
    };
    let differs = |error: RollError, there: &str| {
        let error = error.to_string();
        let lr = "ajet.trainer_common.optim.lr: 1e-6 there, 0.25 in this job";
        assert!(error.contains(there) && error.contains("--join"), "{error}");
        assert!(error.contains(lr) && !error.contains("save_freq"), "{error}");
    };
    differs(
        run_to_end(with_lr(1)).await.unwrap_err(),
        "runs with another configuration",
    );
    let fresh = Options {
        fresh: true,
        ..Options::default()
    };
    let error = run(with_lr(1), fresh.clone(), Interrupt::default()).await.unwrap_err();
    assert!(error.to_string().contains("is training"), "{error}");
    let join = Options {
        join: true,
        ..Options::default()
    };
    assert_eq!(
        run(with_lr(1), join.clone(), Interrupt::default()).await.unwrap().steps,
        1
    );
    let same = job(
        &swarm,
        ajet(2, 2, ENOUGH_TASKS),
        json!({"steps": 2, "max_parallel": 3, "seed": 9}),
    );
    assert_eq!(
        run_to_end(same).await.unwrap().steps,
        1,
        "what only `roll` does is its own matter"
    );

    swarm.post("/stop_engine", json!({})).await;
    differs(
        run_to_end(with_lr(1)).await.unwrap_err(),
        "was trained with another configuration",
    );
    // The fake engine begins at its first step again.
    assert_eq!(run(with_lr(1), fresh, Interrupt::default()).await.unwrap().steps, 1);
    assert_eq!(run(with_lr(1), join, Interrupt::default()).await.unwrap().steps, 1);
    assert_eq!(
        run_to_end(with_lr(1)).await.unwrap().steps,
        1,
        "the same again needs no word"
    );
    swarm.shut_down().await;
}

/// Seen with `max_prompt_length: 8`: nothing was trained, and nothing said so before.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_measures_prompts_with_the_engines_model() {
    let swarm = Swarm::start().await;
    let mut ajet = ajet(2, 2, ENOUGH_TASKS);
    ajet["data"]["max_prompt_length"] = 4.into();
    let job = job(
        &swarm,
        ajet.clone(),
        json!({"agent": {"type": "chat", "user": "{{ metadata.text }}"}}),
    );
    let lines = ajet_swarm::roll::dry_run(&job).await.unwrap();
    assert!(!lines.iter().any(|line| line.starts_with("prompts: ")), "{lines:?}");
    swarm.rolling_with(ajet).await;
    let lines = ajet_swarm::roll::dry_run(&job).await.unwrap();
    // The fake engine's tokens are characters.
    let told =
        |line: &String| line.starts_with("prompts: ") && line.contains("longer than ajet.data.max_prompt_length = 4");
    assert!(lines.iter().any(told), "{lines:?}");
    assert_eq!(swarm.pool().await["running_episode_details"], Value::Null);
    swarm.shut_down().await;
}

#[test]
fn a_job_that_cannot_run_is_refused_by_its_check() {
    let dir = tempfile::tempdir().unwrap();
    let roll = "agent: {type: chat, user: '{{ main_query }}'}, reward: {type: exact_match, answer: x}";
    let reader = "task_reader: {type: reverse_text, reverse_text: {tasks: 12, validation_tasks: 0}}";
    let line = "{\"problem\": \"1+1\", \"answer\": \"2\"}\n";
    std::fs::write(dir.path().join("tasks.jsonl"), line).unwrap();
    for (ajet, roll, told) in [
        (
            format!("{reader}, data: {{train_batch_size: 20}}"),
            roll.to_owned(),
            "20 different tasks, and there are 12",
        ),
        (
            format!("{reader}, data: {{train_batch_size: 8}}"),
            format!("eval: {{every: 1}}, {roll}"),
            "there are no validation tasks",
        ),
        (
            format!("{reader}, data: {{train_batch_size: 8}}"),
            roll.replace("main_query", "metadata.qestion"),
            "roll.agent.user: `metadata.qestion` is undefined",
        ),
        (
            format!("{reader}, data: {{train_batch_size: 8}}"),
            roll.replace("answer: x", "answer: '{{ metadata.anwser }}'"),
            "roll.reward.answer: `metadata.anwser` is undefined",
        ),
        (
            "task_reader: {jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}, data: {train_batch_size: 1}"
                .to_owned(),
            roll.replace(", user: '{{ main_query }}'", ""),
            "the prompt is empty; the fields of the task are: answer, problem",
        ),
    ] {
        write_job(dir.path(), &ajet, &roll);
        for command in [
            &["job", "check", "job.yaml"][..],
            &["roll", "job.yaml", "--dry-run"],
            &["roll", "job.yaml"],
        ] {
            let output = ajet_swarm(dir.path(), command);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
            assert!(stderr.contains(told), "{command:?}: {stderr}");
        }
    }
    let missing = "ajet: {model: {path: ./none.gguf}, data: {train_batch_size: 2}, task_reader: {type: reverse_text}}";
    std::fs::write(dir.path().join("job.yaml"), format!("{missing}\nroll: {{{roll}}}\n")).unwrap();
    let output = ajet_swarm(dir.path(), &["job", "check", "job.yaml"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && stderr.contains("model not found: ./none.gguf"),
        "{stderr}"
    );
}

#[tokio::test]
async fn a_client_that_begins_many_tasks_at_once_keeps_to_its_share() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 4, 2).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let begins = (0..6).map(|number| {
        let policy = ThrottlePolicy {
            ratio: 0.5,
            expected_batch_size: 4,
            expected_num_repeat: 2,
            current_task_id: format!("t{number}"),
        };
        let begin = BeginEpisode {
            throttle: Some(policy),
            ..BeginEpisode::default()
        };
        let client = client.clone();
        tokio::spawn(async move { client.begin_episode(&begin).await })
    });
    let begins: Vec<_> = begins.collect();
    let two_run = async |_: &Swarm| (client.running_episodes().await.unwrap().len() >= 2).then_some(());
    swarm.until_true("two episodes", two_run).await;
    // A third would have begun by now.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let running = client.running_episodes().await.unwrap();
    let tasks: HashSet<_> = running
        .iter()
        .map(|episode| episode.optional_task_id.as_str())
        .collect();
    assert_eq!((running.len(), tasks.len()), (2, 2), "half of four tasks");

    let other = SwarmClient::new(&swarm.url).unwrap();
    other.abort_episode(&running[0].episode_uuid).await.unwrap();
    swarm
        .until_true("the next task's turn", async |_| {
            let running = client.running_episodes().await.unwrap();
            let next = running
                .iter()
                .any(|episode| !tasks.contains(episode.optional_task_id.as_str()));
            (next && running.len() == 2).then_some(())
        })
        .await;
    begins.iter().for_each(|begin| begin.abort());
}

// ---- a Python server ----

fn python_job(server: &PythonServer, ajet: &str, roll: &str) -> Job {
    let yaml = format!(
        "ajet:\n  experiment_name: test\n  model: {{path: 'builtin:tiny'}}\n  data: {{train_batch_size: 1}}\n  \
         rollout: {{num_repeat: 2}}\n  task_reader: {{type: reverse_text, reverse_text: {{tasks: 12}}}}\n  {ajet}\n\
         roll:\n  swarm_url: '{}'\n  auto_start_swarm_server: false\n  agent: {{type: chat, user: hi}}\n  \
         reward: {{type: similarity, answer: '{{{{ metadata.answer }}}}'}}\n  max_parallel: 1\n  {roll}\n",
        server.url
    );
    Job::parse(Path::new("job.yaml"), &yaml).unwrap()
}

/// Seen with AgentJet's server: `global_step` is null before the first step, and the pool is the last run's.
#[tokio::test(flavor = "multi_thread")]
async fn a_python_server_is_rolled_on_by_the_jobs_own_configuration() {
    for (told, own, agrees) in [
        (LAST_METHOD, ENOUGH_TASKS, false),
        (LAST_METHOD, "rollout_until_finish_enough_episodes", false),
        (ENOUGH_TASKS, LAST_METHOD, true),
        (
            "rollout_until_finish_enough_episodes",
            "rollout_until_all_clients_agree_sync_weight",
            true,
        ),
    ] {
        let server = PythonServer::start(2, told).await;
        let ajet = format!("swarm_mode_sample_collection_method: {own}");
        let end = run_to_end(python_job(&server, &ajet, "steps: 2")).await.unwrap();
        assert_eq!((end.outcome, end.steps), (Outcome::Done, 2), "{told} {own}");
        server.record(|record| {
            assert!(record.ended >= 4, "{record:?}");
            assert_eq!(record.agreements > 0, agrees, "{told} {own}: {record:?}");
        });
    }
    // A throttle goes with the job's method, whatever the last run's was.
    let server = PythonServer::start(2, LAST_METHOD).await;
    let end = run_to_end(python_job(&server, "", "steps: 1\n  throttle: {ratio: 1.5}"))
        .await
        .unwrap();
    assert_eq!(end.steps, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_servers_idle_connections_are_not_used_again_and_a_lost_claim_is_repeated() {
    let server = PythonServer::start(100, ENOUGH_TASKS).await;
    let client = SwarmClient::new(&server.url).unwrap();
    client.sync_train_config("ajet: {}").await.unwrap();
    client.start_engine(|_| {}).await.unwrap();
    let status = client.status().await.unwrap();
    assert_eq!((status.engine_status, status.global_step), (EngineStatus::Rolling, 0));
    assert_eq!(client.pool_information().await.unwrap().global_step, 41);
    tokio::time::sleep(Duration::from_millis(4500)).await;
    client.status().await.unwrap();
    server.record(|record| {
        assert_eq!(
            record.hung, 0,
            "a connection that was idle for longer than it lives was used"
        )
    });

    for lost in 1..=3 {
        server.record(|record| record.drop_claims = lost);
        let episode = client.begin_episode(&BeginEpisode::default()).await.unwrap();
        assert_eq!(episode.end("t", reward(1.0)).await.unwrap(), EndOutcome::Accepted);
    }
    assert_eq!(server.record(|record| (record.claims, record.ended)), (3, 3));
    client.stop_engine().await.unwrap();
}

/// Seen with AgentJet's server: `stop` did not understand its answer, reasons were not told, one failed claim ended a job.
#[tokio::test(flavor = "multi_thread")]
async fn a_python_servers_reasons_are_told_and_its_failed_claims_repeated() {
    let server = PythonServer::start(100, ENOUGH_TASKS).await;
    let client = SwarmClient::new(&server.url).unwrap();
    let refused_at = |path: &str| server.record(|record| record.refuses = Some(path.into()));
    refused_at("/sync_train_config");
    let refused = client.sync_train_config("ajet: {}").await.unwrap_err();
    assert!(refused.to_string().contains(WHY), "{refused}");
    refused_at("/start_engine");
    let refused = client.start_engine(|_| {}).await.unwrap_err();
    assert!(refused.to_string().contains(WHY), "{refused}");
    refused_at("/stop_engine");
    client.start_engine(|_| {}).await.unwrap();
    let refused = client.stop_engine().await.unwrap_err();
    assert!(refused.to_string().contains(WHY), "{refused}");
    refused_at("/none");
    for failed in 1..=3 {
        server.record(|record| record.fail_claims = failed);
        let episode = client.begin_episode(&BeginEpisode::default()).await.unwrap();
        episode.abort().await.unwrap();
    }
    assert_eq!(server.record(|record| (record.claims, record.fail_claims)), (3, 0));
    client.stop_engine().await.unwrap();
    assert_eq!(client.status().await.unwrap().engine_status, EngineStatus::Offline);
}

/// A job may be stopped by the configuration's cap; it is a regular end.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_has_done_all_updates_ends_the_job() {
    for (cap, roll) in [
        (1, json!({"steps": 5})),
        (2, json!({"epochs": 3})),
        (3, json!({"steps": 3, "eval": {"every": 0, "tasks": 1, "repeat": 1}})),
    ] {
        let swarm = Swarm::start().await;
        let mut ajet = ajet(1, 2, ENOUGH_TASKS);
        ajet["trainer_common"] = json!({"total_training_steps": cap});
        let end = run_to_end(job(&swarm, ajet, roll)).await.unwrap();
        assert_eq!((end.outcome, end.steps), (Outcome::Done, cap));
        let detail = swarm.status().await["engine_status_detail"].clone();
        assert!(
            detail.as_str().unwrap().contains("total_training_steps are done"),
            "{detail}"
        );
    }
}
