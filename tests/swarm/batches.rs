//! What `roll` hands in for an update: as many episodes as the configuration asks for, in complete groups.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::swarm::Swarm;
use ajet_swarm::protocol::engine::PooledEpisode;
use ajet_swarm::roll::job::Job;
use ajet_swarm::roll::{Interrupt, Options, run};
use serde_json::{Value, json};

/// A job on generated tasks.
fn job(swarm: &Swarm, ajet: Value, mut roll: Value) -> Job {
    roll["swarm_url"] = swarm.url.clone().into();
    roll["auto_start_swarm_server"] = false.into();
    roll["agent"] = json!({"type": "chat", "user": "{{ main_query }}"});
    roll["reward"] = json!({"type": "similarity", "answer": "{{ metadata.answer }}"});
    let yaml = format!("{}roll: {roll}\n", swarm.yaml(ajet));
    Job::parse(Path::new("job.yaml"), &yaml).unwrap()
}

/// What the batches of a run consist of.
#[derive(Debug)]
struct Figures {
    /// Episodes trained on, by those asked for.
    trained: f64,
    /// Groups of at least the asked size, by all groups.
    complete: f64,
    /// Of an update; printed.
    #[allow(dead_code, reason = "printed")]
    seconds: f64,
}

fn figures(batches: &[Vec<PooledEpisode>], tasks: u64, repeats: u64, seconds: f64) -> Figures {
    let (mut trained, mut complete, mut groups) = (0, 0, 0);
    for batch in batches {
        let mut sizes: HashMap<&str, u64> = HashMap::new();
        for episode in batch {
            *sizes.entry(&episode.task_id).or_default() += 1;
        }
        trained += batch.len();
        groups += sizes.len();
        complete += sizes.values().filter(|size| **size >= repeats).count();
    }
    Figures {
        trained: trained as f64 / (batches.len() as f64 * (tasks * repeats) as f64),
        complete: complete as f64 / groups as f64,
        seconds: seconds / batches.len() as f64,
    }
}

/// Trains with agents that take these milliseconds.
async fn measure(chat_ms: (u64, u64), steps: u64) -> Figures {
    let (tasks, repeats) = (16, 8);
    let swarm = Swarm::start().await;
    swarm.engines.behave(|engine| {
        engine.chat_takes = (Duration::from_millis(chat_ms.0), Duration::from_millis(chat_ms.1));
        engine.update_takes = Duration::from_millis(2);
    });
    let ajet = json!({
        "data": {"train_batch_size": tasks},
        "rollout": {"num_repeat": repeats},
        "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 400, "validation_tasks": 3}},
    });
    let job = job(&swarm, ajet, json!({"steps": steps, "max_parallel": 48}));
    let started = Instant::now();
    run(job, Options::default(), Interrupt::default()).await.unwrap();
    let seconds = started.elapsed().as_secs_f64();
    let batches = swarm.engines.record().batches;
    swarm.shut_down().await;
    figures(&batches, tasks, repeats, seconds)
}

/// Agents of 0.1 to 20 s, a hundred times as fast, and such as the quickstart's.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_trains_on_what_was_asked_for_in_complete_groups() {
    for chat_ms in [(1, 200), (2, 10)] {
        let figures = measure(chat_ms, 8).await;
        println!("chats of {chat_ms:?} ms: {figures:?}");
        assert!(figures.trained <= 1.1, "{chat_ms:?}: {figures:?}");
        assert!(figures.complete >= 0.95, "{chat_ms:?}: {figures:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_share_batches_as_asked() {
    let swarm = Swarm::start().await;
    swarm
        .engines
        .behave(|engine| engine.chat_takes = (Duration::from_millis(2), Duration::from_millis(60)));
    swarm
        .rolling_with(json!({"data": {"train_batch_size": 12}, "rollout": {"num_repeat": 4}}))
        .await;
    let runs = [("reverse_text", 0.75), ("arithmetic", 0.25)].map(|(reader, ratio)| {
        let ajet = json!({
            "data": {"train_batch_size": 12}, "rollout": {"num_repeat": 4},
            "task_reader": {"type": reader, reader: {"tasks": 400, "validation_tasks": 1}},
        });
        let roll = json!({"steps": 5, "max_parallel": 24, "throttle": {"ratio": ratio}});
        tokio::spawn(run(job(&swarm, ajet, roll), Options::default(), Interrupt::default()))
    });
    for run in runs {
        run.await.unwrap().unwrap();
    }
    let batches = swarm.engines.record().batches;
    let mut shares = HashMap::<&str, usize>::new();
    for episode in batches.iter().flatten() {
        *shares.entry(&episode.client_uuid).or_default() += 1;
    }
    let trained = batches.iter().flatten().count() as f64;
    let mut shares: Vec<f64> = shares.values().map(|episodes| *episodes as f64 / trained).collect();
    shares.sort_by(f64::total_cmp);
    assert!(
        (shares[0] - 0.25).abs() <= 0.1 && (shares[1] - 0.75).abs() <= 0.1,
        "{shares:?}"
    );
    let figures = figures(&batches, 12, 4, 1.0);
    assert!(figures.trained <= 1.1 && figures.complete >= 0.95, "{figures:?}");
    swarm.shut_down().await;
}

/// `kill -9` in the middle of a batch; the same command in another directory completes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_is_continued_from_another_directory() {
    let swarm = Swarm::start().await;
    swarm
        .engines
        .behave(|engine| engine.chat_takes = (Duration::from_millis(20), Duration::from_millis(200)));
    let ajet = json!({
        "data": {"train_batch_size": 6}, "rollout": {"num_repeat": 4},
        "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 60, "validation_tasks": 1}},
    });
    let roll = json!({
        "swarm_url": swarm.url, "auto_start_swarm_server": false, "steps": 3, "max_parallel": 5, "seed": 3,
        "discard_episode_timeout": 2, "agent": {"type": "chat", "user": "{{ main_query }}"},
        "reward": {"type": "similarity", "answer": "{{ metadata.answer }}"},
    });
    let yaml = format!("{}roll: {roll}\n", swarm.yaml(ajet));
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let start = |directory: &Path| {
        std::fs::write(directory.join("job.yaml"), &yaml).unwrap();
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_ajet-swarm"));
        let command = command
            .args(["roll", "job.yaml"])
            .current_dir(directory)
            .kill_on_drop(true);
        command.spawn().unwrap()
    };
    let mut first = start(directories[0].path());
    let half = async |swarm: &Swarm| (swarm.engines.ends() >= 24 + 10).then_some(());
    swarm.until_true("the middle of the second batch", half).await;
    first.kill().await.unwrap();
    let mut second = start(directories[1].path());
    assert!(
        tokio::time::timeout(Duration::from_secs(60), second.wait())
            .await
            .unwrap()
            .unwrap()
            .success()
    );

    let batches = swarm.engines.record().batches;
    assert_eq!(batches.len(), 3);
    let ids: HashSet<&str> = batches
        .iter()
        .flatten()
        .map(|episode| episode.episode_uuid.as_str())
        .collect();
    assert_eq!(ids.len(), batches.iter().flatten().count(), "no episode twice");
    let figures = figures(&batches, 6, 4, 1.0);
    assert_eq!((figures.trained, figures.complete), (1.0, 1.0), "{batches:?}");
    let tasks: HashSet<&str> = batches
        .iter()
        .flatten()
        .map(|episode| episode.task_id.as_str())
        .collect();
    assert_eq!(tasks.len(), 18, "no task twice either");
    swarm.shut_down().await;
}
