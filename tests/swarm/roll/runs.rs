//! Runs of jobs against a server with fake engines: how they train, evaluate and end.

use std::collections::HashSet;
use std::path::Path;

use crate::support::roll_job::{ajet, job, run_to_end};
use crate::support::swarm::{ENOUGH_NON_DUMMY_TASKS, ENOUGH_TASKS, Swarm};
use ajet_swarm::protocol::swarm::EpisodeType;
use ajet_swarm::roll::report::Outcome;
use ajet_swarm::roll::{Interrupt, Options, RollError, debug_one, run};
use serde_json::{Value, json};

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
async fn an_epoch_has_every_task_and_failed_episodes_are_retried() {
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
async fn a_stopped_run_aborts_its_episodes_and_leaves_the_engine_running() {
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
async fn a_run_ends_with_a_message_when_the_engine_is_stopped() {
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
async fn a_job_whose_episodes_all_fail_ends_with_the_reason() {
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
            ajet(2, 2, ENOUGH_NON_DUMMY_TASKS),
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

/// Seen: a second job with another model, experiment and reward joined the first one's training, and a run was resumed with
/// other rates, without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_differs_from_the_training_it_joins_says_so() {
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
    // Seen: the episode that was shown came from the tiny model of the try before.
    let shown = debug_one(&with_lr(1), None, Path::new("ajet-swarm"), false)
        .await
        .unwrap();
    let lr = "runs with another configuration, with which this episode was run:\n  \
              ajet.trainer_common.optim.lr: 1e-6 there, 0.25 in this job\nhint: `ajet-swarm stop`";
    assert!(shown.text.contains(lr) && !shown.failed, "{}", shown.text);
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
    // The fake engine does not write the metrics of its updates.
    let metrics = swarm.experiments().join("test/metrics.jsonl");
    std::fs::write(metrics, "{\"global_step\":1,\"actor/loss\":0.25}\n").unwrap();
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
