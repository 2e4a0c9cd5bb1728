//! Engines and servers that die, and what is left of the job.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use ajet_swarm::client::{BeginEpisode, ClientError, SwarmClient};
use ajet_swarm::protocol::swarm::{EngineStatus, EngineStatusAnswer, EpisodeType};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Server, engines_in};
use super::{REPEATS, TASKS, ask, config, metrics, play, play_batch, until_rolling_at};

/// A server with an engine that rolls at step 1.
async fn rolling(dir: &std::path::Path) -> (Server, SwarmClient) {
    let server = Server::start(dir, &[]);
    let swarm = SwarmClient::new(&server.url).unwrap();
    swarm.sync_train_config(&config("builtin:tiny")).await.unwrap();
    swarm.start_engine(|_| {}).await.unwrap();
    (server, swarm)
}

/// Waits for a status that satisfies `wanted`.
async fn until(swarm: &SwarmClient, wanted: impl Fn(&EngineStatusAnswer) -> bool) -> EngineStatusAnswer {
    let begun = Instant::now();
    loop {
        let status = swarm.status().await.unwrap();
        if wanted(&status) {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{status:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn until_no_engine(dir: &std::path::Path) {
    let begun = Instant::now();
    while !engines_in(dir).is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "the engine outlives its server"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_takes_only_its_running_episodes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (server, swarm) = rolling(dir.path()).await;
    play(&swarm, EpisodeType::Train, "task0", 0.0).await.unwrap();
    let lost = swarm.begin_episode(&BeginEpisode::default()).await.unwrap();
    ask(&lost, "word").await.unwrap();

    kill(Pid::from_raw(server.engines()[0]), Signal::SIGKILL).unwrap();
    let booting = until(&swarm, |status| status.engine_status == EngineStatus::Booting).await;
    let detail = booting.engine_status_detail.unwrap();
    assert!(
        detail.contains("signal 9") && detail.contains("restarting the engine (attempt 1 of 3)"),
        "{detail}"
    );
    let seen = Mutex::default();
    let rolling = until_rolling_at(&swarm, 1, &seen).await;
    assert!(
        rolling.engine_status_detail.unwrap().contains("signal 9"),
        "told until an update is done"
    );

    let refused = ask(&lost, "word").await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 404, .. }), "{refused}");
    let pool = swarm.pool_information().await.unwrap();
    assert_eq!(pool.completed_episodes, 1, "what has ended is on disk");
    assert_eq!(pool.dropped_episodes["engine_lost"], 1);
    for (task, reward) in [("task0", 1.0), ("task1", 0.0), ("task1", 1.0)] {
        play(&swarm, EpisodeType::Train, task, reward).await.unwrap();
    }
    let trained = until_rolling_at(&swarm, 2, &seen).await;
    assert_eq!(trained.engine_status_detail, None);
    let of_step = &metrics(&server.experiment_dir())[0];
    assert_eq!(of_step["episodes"], TASKS * REPEATS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_takes_its_engine_along_and_the_next_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (server, swarm) = rolling(dir.path()).await;
    assert!(!server.banner.contains("interrupted"), "{}", server.banner);
    play_batch(&[&swarm]).await;
    until_rolling_at(&swarm, 2, &Mutex::default()).await;
    play(&swarm, EpisodeType::Train, "task0", 0.0).await.unwrap();
    assert_eq!(server.end_by(Signal::SIGKILL), None);
    until_no_engine(dir.path()).await;

    let offers = Server::start(dir.path(), &[]);
    let offer = format!("interrupted    {}", offers.experiment_dir().display());
    assert!(
        offers
            .banner
            .contains("saved_experiments/main-job: start with --continue"),
        "{offer:?} in {}",
        offers.banner
    );
    assert_eq!(offers.end_by(Signal::SIGINT), Some(0));

    let goes_on = Server::start(dir.path(), &["--continue"]);
    let swarm = SwarmClient::new(&goes_on.url).unwrap();
    until(&swarm, |status| status.engine_status == EngineStatus::Rolling).await;
    let pool = swarm.pool_information().await.unwrap();
    assert_eq!((pool.global_step, pool.completed_episodes), (2, 1));
    swarm.stop_engine().await.unwrap();
    assert_eq!(goes_on.end_by(Signal::SIGINT), Some(0));
    let stopped = Server::start(dir.path(), &[]);
    assert!(!stopped.banner.contains("interrupted"), "{}", stopped.banner);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_told_to_end_does_so_within_ten_seconds_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (server, swarm) = rolling(dir.path()).await;
    play(&swarm, EpisodeType::Train, "task0", 0.0).await.unwrap();
    let running = swarm.begin_episode(&BeginEpisode::default()).await.unwrap();
    let asking = tokio::spawn(async move { ask(&running, "word").await.map(|_| running) });
    let begun = Instant::now();
    assert_eq!(server.end_by(Signal::SIGTERM), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(engines_in(dir.path()), [0; 0]);
    asking.abort();

    let next = Server::start(dir.path(), &["--continue"]);
    let swarm = SwarmClient::new(&next.url).unwrap();
    until(&swarm, |status| status.engine_status == EngineStatus::Rolling).await;
    assert_eq!(swarm.pool_information().await.unwrap().completed_episodes, 1);
}
