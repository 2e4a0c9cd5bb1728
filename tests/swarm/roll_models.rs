//! Several trained models in one episode: a server of fake engines each.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use crate::support::swarm::{Swarm, quick};
use ajet_swarm::protocol::engine::PooledEpisode;
use ajet_swarm::roll::job::Job;
use ajet_swarm::roll::report::{End, Outcome};
use ajet_swarm::roll::{Interrupt, Options, RollError, run};
use serde_json::{Value, json};

/// A job with a planner and a solver, in batches of 2 tasks of 3 episodes.
fn job(planner: &Swarm, solver: &Swarm, mut roll: Value) -> Job {
    let ajet = json!({
        "model": {"path": "builtin:tiny"}, "data": {"train_batch_size": 2}, "rollout": {"num_repeat": 3},
        "swarm_mode_sample_collection_method": "rollout_until_finish_enough_tasks",
        "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 12, "validation_tasks": 2}},
    });
    let own = |swarm: &Swarm| {
        let directory = swarm.experiments().join("test");
        json!({"swarm_url": swarm.url, "ajet": {"experiment_name": "test", "experiment_dir": directory}})
    };
    let (mut planned, mut solved) = (own(planner), own(solver));
    for (name, swarm) in [("planner", &mut planned), ("solver", &mut solved)] {
        if !roll[name].is_null() {
            swarm["reward"] = roll.as_object_mut().unwrap().remove(name).unwrap();
        }
    }
    roll["swarms"] = json!({"planner": planned, "solver": solved});
    roll["auto_start_swarm_server"] = false.into();
    if roll["agent"].is_null() {
        let turns = json!(["{{ metadata.text }}", {"model": "solver", "user": "{{ answers.planner }}"}]);
        roll["agent"] = json!({"type": "chat", "turns": turns});
    }
    if roll["reward"].is_null() {
        roll["reward"] = json!({"type": "similarity", "answer": "{{ metadata.answer }}"});
    }
    Job::parse(Path::new("job.yaml"), &json!({"ajet": ajet, "roll": roll}).to_string()).unwrap()
}

async fn run_to_end(job: Job) -> Result<End, RollError> {
    let running = run(job, Options::default(), Interrupt::default());
    tokio::time::timeout(Duration::from_secs(60), running)
        .await
        .expect("the run ends")
}

/// Episodes of each task of a batch.
fn groups(batch: &[PooledEpisode]) -> HashMap<&str, usize> {
    let mut groups = HashMap::new();
    for episode in batch {
        *groups.entry(episode.task_id.as_str()).or_default() += 1;
    }
    groups
}

fn assert_each_episode_is_trained_once(batches: &[Vec<PooledEpisode>]) {
    let all: Vec<_> = batches.iter().flatten().map(|episode| &episode.episode_uuid).collect();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn both_models_train_on_the_same_tasks_and_get_the_reward() {
    let (planner, solver) = (Swarm::start().await, Swarm::start().await);
    let roll = json!({"steps": 3, "max_parallel": 4, "eval": {"every": 2}});
    let end = run_to_end(job(&planner, &solver, roll)).await.unwrap();
    assert_eq!((end.outcome, end.steps), (Outcome::Done, 3));
    assert_eq!(end.eval_before.unwrap().episodes, 2);
    let (planned, solved) = (planner.engines.record(), solver.engines.record());
    for record in [&planned, &solved] {
        assert_eq!((record.updates, record.launches, record.shutdowns), (3, 1, 1));
        assert_each_episode_is_trained_once(&record.batches);
        for batch in &record.batches {
            assert!(
                batch.len() == 6 && groups(batch).values().all(|count| *count == 3),
                "{batch:?}"
            );
        }
    }
    for (one, other) in planned.batches.iter().zip(&solved.batches) {
        assert_eq!(groups(one), groups(other));
        let rewards = |batch: &[PooledEpisode]| {
            let mut rewards: Vec<_> = batch.iter().map(|episode| episode.reward).collect();
            rewards.sort_by(f64::total_cmp);
            rewards
        };
        assert_eq!(rewards(one), rewards(other));
    }
    planner.shut_down().await;
    solver.shut_down().await;
}

/// An agent in shell that calls the models that it is told to, and answers with these rewards.
fn script(calls: &[&str], answer: &str) -> Value {
    let call = |name: &&str| {
        format!(
            "curl -sf \"${name}_BASE_URL/chat/completions\" -H \"Authorization: Bearer ${name}_API_KEY\" -H 'Content-Type: \
             application/json' -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"hi\"}}]}}' >/dev/null || exit 9; "
        )
    };
    let calls: String = calls.iter().map(call).collect();
    json!({"type": "command", "argv": ["sh", "-c", format!("{calls}echo '{answer}'")]})
}

#[tokio::test(flavor = "multi_thread")]
async fn each_model_may_have_a_reward_of_its_own() {
    let (planner, solver) = (Swarm::start().await, Swarm::start().await);
    let roll = json!({
        "steps": 1, "max_parallel": 4, "reward": {"type": "from_agent"},
        "agent": script(&["PLANNER", "SOLVER"], "{\"reward\": 0.25, \"rewards\": {\"solver\": 0.75}}"),
        "max_idle_updates": 0,
    });
    run_to_end(job(&planner, &solver, roll)).await.unwrap();
    let rewards = |swarm: &Swarm| {
        swarm.engines.record().batches[0]
            .iter()
            .map(|episode| episode.reward)
            .collect::<Vec<_>>()
    };
    assert_eq!((rewards(&planner), rewards(&solver)), (vec![0.25; 6], vec![0.75; 6]));
    planner.shut_down().await;
    solver.shut_down().await;

    let (planner, solver) = (Swarm::start().await, Swarm::start().await);
    let roll = json!({
        "steps": 1, "solver": {"type": "expression", "expression": "output | length"},
        "planner": {"type": "expression", "expression": "messages | length"},
    });
    run_to_end(job(&planner, &solver, roll)).await.unwrap();
    assert_eq!(rewards(&planner), vec![2.0; 6]);
    assert!(rewards(&solver).iter().all(|reward| *reward > 2.0));
    planner.shut_down().await;
    solver.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reward_for_an_unknown_model_is_not_taken_for_another() {
    let (planner, solver) = (Swarm::start().await, Swarm::start().await);
    let roll = json!({
        "steps": 1, "max_parallel": 2, "reward": {"type": "from_agent"},
        "agent": script(&["PLANNER", "SOLVER"], "{\"reward\": 0.25, \"rewards\": {\"sovler\": 0.75}}"),
    });
    let error = run_to_end(job(&planner, &solver, roll)).await.unwrap_err().to_string();
    assert!(
        error.contains("\"sovler\", which is no model of roll.swarms (planner, solver)"),
        "{error}"
    );
    assert_eq!((planner.engines.ends(), solver.engines.ends()), (0, 0));
    planner.shut_down().await;
    solver.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_that_calls_one_model_only_counts_on_no_server() {
    let (planner, solver) = (Swarm::start().await, Swarm::start().await);
    let roll = json!({
        "steps": 1, "max_parallel": 2, "reward": {"type": "from_agent"},
        "agent": script(&["PLANNER"], "{\"reward\": 1}"),
    });
    let error = run_to_end(job(&planner, &solver, roll)).await.unwrap_err().to_string();
    assert!(
        error.contains("no_llm_call") && error.contains("never called the model solver"),
        "{error}"
    );
    assert_eq!((planner.engines.ends(), solver.engines.ends()), (0, 0));
    for swarm in [&planner, &solver] {
        swarm
            .until_true("all are aborted", async |swarm| {
                (swarm.pool().await["running_episode_details"].is_null()).then_some(())
            })
            .await;
    }
    planner.shut_down().await;
    solver.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_one_server_has_filled_is_filled_by_the_same_task_on_the_other() {
    // Without retries, and slow enough that the batch is looked at between the tries.
    for (retries, slow) in [(9, Duration::ZERO), (0, Duration::from_millis(500))] {
        let (planner, solver) = (Swarm::start().await, Swarm::start().await);
        // The first ends of the solver's come to nothing, after the planner's were taken.
        solver.engines.behave(|engine| {
            engine.drop_ends = 4;
            engine.chat_takes = (slow, slow);
        });
        let roll = json!({"steps": 3, "max_parallel": 4, "retries": retries});
        let end = run_to_end(job(&planner, &solver, roll)).await.unwrap();
        assert_eq!((end.steps, end.dropped["no_llm_call"]), (3, 4));
        let (planned, solved) = (planner.engines.record(), solver.engines.record());
        for record in [&planned, &solved] {
            assert_each_episode_is_trained_once(&record.batches);
        }
        assert_eq!((planned.batches.len(), solved.batches.len()), (3, 3));
        for (one, other) in planned.batches.iter().zip(&solved.batches) {
            assert_eq!(groups(one), groups(other));
            assert!(
                one.len() == 6 && groups(one).values().all(|count| *count == 3),
                "{one:?}"
            );
        }
        planner.shut_down().await;
        solver.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_restarted_in_the_middle_is_waited_for_and_no_episode_counts_twice() {
    let (planner, solver) = (Swarm::start().await, Swarm::start().await);
    let slow = |swarm: &Swarm| {
        swarm
            .engines
            .behave(|engine| engine.chat_takes = (Duration::from_millis(20), Duration::from_millis(60)));
    };
    slow(&planner);
    slow(&solver);
    let port: u16 = solver.url.rsplit(':').next().unwrap().parse().unwrap();
    let roll = json!({"steps": 8, "max_parallel": 4, "wait_for_server": 60, "max_failure_rate": 1});
    let running = tokio::spawn(run_to_end(job(&planner, &solver, roll)));
    planner.until_step(3).await;
    let before = solver.shut_down().await.record();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let solver = Swarm::at(port, quick()).await;
    slow(&solver);
    let end = running.await.unwrap().unwrap();
    assert_eq!(end.outcome, Outcome::Done);
    let (planned, solved) = (planner.engines.record(), solver.engines.record());
    assert_eq!((planned.updates, solved.launches), (8, 1));
    // Fake engines keep no batch: what the lost one had taken of its last batch is run again.
    assert!(
        before.updates + solved.updates >= 8,
        "{} + {}",
        before.updates,
        solved.updates
    );
    for batches in [&planned.batches, &before.batches, &solved.batches] {
        assert_each_episode_is_trained_once(batches);
        let extra = batches.iter().map(|batch| batch.len().saturating_sub(6)).sum::<usize>();
        assert!(extra <= 6, "{extra} episodes more than batches need");
    }
    planner.shut_down().await;
    solver.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_is_restarted_and_no_episode_counts_twice() {
    let (planner, solver) = (Swarm::start().await, Swarm::start().await);
    let roll = json!({"steps": 12, "max_parallel": 4, "max_failure_rate": 1});
    let running = tokio::spawn(run_to_end(job(&planner, &solver, roll)));
    planner.until_step(3).await;
    solver.engines.die("the engine was killed (signal 9)");
    assert_eq!(running.await.unwrap().unwrap().outcome, Outcome::Done);
    for (swarm, launches) in [(&planner, 1), (&solver, 2)] {
        let record = swarm.engines.record();
        assert_eq!(record.launches, launches);
        assert_each_episode_is_trained_once(&record.batches);
        assert_eq!(swarm.pool().await["running_episode_details"], Value::Null);
    }
    planner.shut_down().await;
    solver.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_with_the_models_in_another_order_do_not_wait_for_each_other() {
    let (planner, solver) = (Swarm::start().await, Swarm::start().await);
    let roll = json!({"steps": 4, "max_parallel": 6});
    // Both find no engine, and one starts it.
    let first = job(&planner, &solver, roll.clone());
    let second = job(&solver, &planner, roll);
    let options = Options {
        join: true,
        ..Options::default()
    };
    let runs = [first, second].map(|job| tokio::spawn(run(job, options.clone(), Interrupt::default())));
    for run in runs {
        let ended = tokio::time::timeout(Duration::from_secs(60), run)
            .await
            .expect("none waits for the other");
        ended.unwrap().unwrap();
    }
    for swarm in [planner, solver] {
        assert_each_episode_is_trained_once(&swarm.engines.record().batches);
        swarm.shut_down().await;
    }
}
