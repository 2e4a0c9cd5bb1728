//! The client library against a server with fake engines.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::roll_job::{ajet, reward};
use crate::support::swarm::{ENOUGH_TASKS, Swarm};
use ajet_swarm::client::{BeginEpisode, ClientError, EndOutcome, Started, SwarmClient};
use ajet_swarm::protocol::engine::DropReason;
use ajet_swarm::protocol::openai::{ChatMessage, ChatRequest};
use ajet_swarm::protocol::swarm::{EngineStatus, ThrottlePolicy};

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
async fn a_dropped_episode_is_aborted_and_frees_its_slot() {
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
async fn a_cancelled_claim_is_returned() {
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
async fn errors_carry_the_messages_of_server_and_engine() {
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

#[tokio::test]
async fn a_client_that_begins_many_tasks_at_once_keeps_its_share() {
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
