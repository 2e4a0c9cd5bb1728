// What the examples in the client's documentation run on, included by hidden lines of each.

#[cfg(feature = "server")]
#[allow(dead_code, reason = "an example uses a part of it")]
#[path = "fake_engine.rs"]
mod fake_engine;
#[cfg(feature = "server")]
#[allow(dead_code, reason = "an example uses a part of it")]
#[path = "swarm.rs"]
mod swarm;

/// Runs an example with the URL of a server of its own, whose engines echo, and a configuration for it.
#[cfg(feature = "server")]
#[allow(dead_code, reason = "an example that is not run does not use it")]
fn example(run: impl AsyncFnOnce(&str, &str) -> Result<(), ajet_swarm::client::ClientError>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = swarm::Swarm::start().await;
        let config = server.yaml(serde_json::json!({
            "data": {"train_batch_size": 1}, "rollout": {"num_repeat": 2},
            "swarm_mode_sample_collection_method": "rollout_until_finish_enough_tasks",
        }));
        run(&server.url, &config).await.unwrap();
    });
}

/// Compiles an example; a build of the clients alone has no server to run it with.
#[cfg(not(feature = "server"))]
#[allow(dead_code, reason = "an example that is not run does not use it")]
fn example(_run: impl AsyncFnOnce(&str, &str) -> Result<(), ajet_swarm::client::ClientError>) {}
