//! `roll` against AgentJet's server in Python, as far as its answers differ from ours.

use std::path::Path;
use std::time::Duration;

use crate::support::python_server::{LAST_METHOD, PythonServer, WHY};
use crate::support::roll_job::{reward, run_to_end};
use crate::support::swarm::{ENOUGH_EPISODES, ENOUGH_TASKS};
use ajet_swarm::client::{BeginEpisode, EndOutcome, SwarmClient};
use ajet_swarm::protocol::swarm::EngineStatus;
use ajet_swarm::roll::job::Job;
use ajet_swarm::roll::report::Outcome;

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
async fn a_python_server_is_used_with_the_jobs_own_configuration() {
    for (told, own, agrees) in [
        (LAST_METHOD, ENOUGH_TASKS, false),
        (LAST_METHOD, ENOUGH_EPISODES, false),
        (ENOUGH_TASKS, LAST_METHOD, true),
        (ENOUGH_EPISODES, "rollout_until_all_clients_agree_sync_weight", true),
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
async fn a_python_servers_idle_connections_are_not_reused_and_a_lost_claim_is_retried() {
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
async fn a_python_servers_reasons_are_shown_and_its_failed_claims_retried() {
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
