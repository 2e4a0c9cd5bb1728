//! Servers that go away under a `roll`, and a `roll` that goes away from its server.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::support::swarm::{Swarm, quick};
use ajet_swarm::roll::job::Job;
use ajet_swarm::roll::report::Outcome;
use ajet_swarm::roll::{Interrupt, Options, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::process::{Child, Command};

fn job(swarm: &Swarm, roll: serde_json::Value) -> Job {
    let ajet = json!({
        "data": {"train_batch_size": 2}, "rollout": {"num_repeat": 2},
        "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 40, "validation_tasks": 1}},
    });
    let mut roll = roll;
    roll["swarm_url"] = swarm.url.clone().into();
    roll["auto_start_swarm_server"] = false.into();
    roll["agent"] = json!({"type": "chat", "user": "{{ main_query }}"});
    roll["reward"] = json!({"type": "similarity", "answer": "{{ metadata.answer }}"});
    let yaml = format!("{}roll: {roll}\n", swarm.yaml(ajet));
    Job::parse(Path::new("job.yaml"), &yaml).unwrap()
}

fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().unwrap().parse().unwrap()
}

/// Seen with remote servers: a restart ended every `roll`.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_restarted_is_waited_for_and_gets_the_job_again() {
    let swarm = Swarm::start().await;
    let slow = |swarm: &Swarm| {
        swarm
            .engines
            .behave(|engine| engine.chat_takes = (Duration::from_millis(50), Duration::from_millis(100)));
    };
    slow(&swarm);
    let port = port_of(&swarm.url);
    let running = tokio::spawn(run(
        job(&swarm, json!({"steps": 6, "max_parallel": 4, "wait_for_server": 60})),
        Options::default(),
        Interrupt::default(),
    ));
    swarm.until_step(3).await;
    swarm.shut_down().await;
    // Longer than the calls' own retries.
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(!running.is_finished());
    let swarm = Swarm::at(port, quick()).await;
    slow(&swarm);
    let end = tokio::time::timeout(Duration::from_secs(60), running)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(end.outcome, Outcome::Done);
    let record = swarm.engines.record();
    assert_eq!(
        (record.launches, record.updates),
        (1, 6),
        "fake engines keep no checkpoint"
    );
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_come_back_ends_the_run_with_a_sentence() {
    let swarm = Swarm::start().await;
    let running = tokio::spawn(run(
        job(&swarm, json!({"steps": 1000, "max_parallel": 2, "wait_for_server": 1})),
        Options::default(),
        Interrupt::default(),
    ));
    swarm.until_step(2).await;
    swarm.shut_down().await;
    let ended = tokio::time::timeout(Duration::from_secs(60), running)
        .await
        .unwrap()
        .unwrap();
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("cannot reach"), "{error}");
}

/// Seen: Ctrl-C of the `roll` that started the server ended the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_stays_for_others_when_the_roll_that_started_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}");
    let start = |name: &str, steps: u64| -> Child {
        let job = format!(
            "ajet: {{model: {{path: 'builtin:tiny'}}, experiment_name: shared, data: {{train_batch_size: 2, \
             max_prompt_length: 64, max_response_length: 8}}, rollout: {{num_repeat: 2}}, task_reader: {{type: \
             reverse_text, reverse_text: {{tasks: 900}}}}}}\nroll: {{swarm_url: '{url}', steps: {steps}, max_parallel: 2, \
             agent: {{type: chat, user: '{{{{ main_query }}}}'}}, reward: {{type: similarity, answer: \
             '{{{{ metadata.answer }}}}'}}}}\n"
        );
        let file = directory.path().join(name);
        std::fs::write(&file, job).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"));
        command
            .args(["roll", name])
            .current_dir(directory.path())
            .kill_on_drop(true);
        command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let client = ajet_swarm::client::SwarmClient::new(&url).unwrap();
    let step = async || client.status().await.map_or(0, |status| status.global_step);
    let until = async |wanted: u64| {
        let reached = async {
            while step().await < wanted {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reached)
            .await
            .expect("the engine trains");
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let starter = start("first.yaml", 10_000);
    until(2).await;
    let other = start("second.yaml", 10_000);
    let both = async {
        while client
            .pool_information()
            .await
            .unwrap()
            .swarm_client_instruction
            .active_clients
            .len()
            < 2
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .expect("both take part");

    kill(Pid::from_raw(starter.id().unwrap() as i32), Signal::SIGINT).unwrap();
    let ended = starter.wait_with_output().await.unwrap();
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{told}");
    let server = told.split("`kill ").nth(1).and_then(|rest| rest.split('`').next());
    let server: i32 = server.unwrap_or_else(|| panic!("{told}")).parse().unwrap();
    let now = step().await;
    until(now + 2).await;
    kill(Pid::from_raw(server), Signal::SIGTERM).unwrap();
    drop(other);
    let gone = async {
        while client.health().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .expect("the server ends");
}
