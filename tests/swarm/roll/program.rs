//! The program `roll` and its checks of a job, on the built-in model.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::roll_job::{ajet, job, run_to_end};
use crate::support::swarm::{ENOUGH_TASKS, Swarm};
use serde_json::{Value, json};

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
fn an_invalid_job_fails_with_one_sentence() {
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
fn example_jobs_are_valid_and_a_new_one_is_not_overwritten() {
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
    let lines = ajet_swarm::roll::dry_run(&job, Err("it is a test")).await.unwrap();
    assert!(
        lines.iter().any(|line| line.starts_with("prompts: not counted")),
        "{lines:?}"
    );
    // Without an engine, a tokenizer that is at hand counts.
    let lines = ajet_swarm::roll::dry_run(&job, Ok(&|_| Ok(7))).await.unwrap();
    assert!(
        lines.iter().any(|line| line.starts_with("prompts: 7 to 7 tokens")),
        "{lines:?}"
    );
    swarm.rolling_with(ajet).await;
    let lines = ajet_swarm::roll::dry_run(&job, Err("it is a test")).await.unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_without_a_key_is_told_before_a_server_is_started() {
    let swarm = Swarm::start().await;
    let judge = json!({"model": "m", "api_key_env": "NO_SUCH_KEY_IN_THE_ENVIRONMENT"});
    let reward = json!({"type": "llm_judge", "judge": judge});
    let job = || job(&swarm, ajet(2, 2, ENOUGH_TASKS), json!({"reward": reward, "steps": 1}));
    let told = [
        ajet_swarm::roll::dry_run(&job(), Err("it is a test"))
            .await
            .unwrap_err(),
        run_to_end(job()).await.unwrap_err(),
    ];
    for error in told.map(|error| error.to_string()) {
        assert!(error.contains("NO_SUCH_KEY_IN_THE_ENVIRONMENT is not set"), "{error}");
    }
    assert_eq!(swarm.engines.record().launches, 0);
    swarm.shut_down().await;
}
