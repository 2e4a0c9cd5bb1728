//! Health, status, configuration, start and stop.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use tokio::time::{sleep, timeout};

use crate::protocol::swarm::{
    EngineStatusAnswer, ExperimentDirAnswer, Health, StartEngineAnswer, SuccessAnswer, SuccessOrReason,
    SyncTrainConfigRequest,
};
use crate::server::engine::{supervisor, synced_config};
use crate::server::handlers::is_ours;
use crate::server::http::body::{CONFIG_BYTES, JsonBody};
use crate::server::http::error::Error;
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;

/// `GET /health`.
pub async fn health() -> Json<Health> {
    Json(Health { status: "ok".into() })
}

/// `GET /get_engine_status`. Clients that go by what they are told for seconds are told when it has lasted.
pub async fn status(State(shared): Server, headers: HeaderMap) -> Json<EngineStatusAnswer> {
    let polls_slowly = !is_ours(&headers);
    let interval = shared.options.look_interval.as_secs_f64();
    loop {
        // Before the look, so that a change right after it is not missed.
        let changed = shared.state_changed.notified();
        let (status, passes_in) = shared.with(|core, now| (core.status(), core.passes_in(interval, now)));
        match passes_in {
            Some(left) if polls_slowly => drop(timeout(Duration::from_secs_f64(left), changed).await),
            _ => return Json(status),
        }
    }
}

/// `POST /sync_train_config`.
pub async fn sync_train_config(
    State(shared): Server,
    JsonBody(request): JsonBody<SyncTrainConfigRequest, CONFIG_BYTES>,
) -> Result<Json<SuccessAnswer>, Error> {
    let defaults = shared.options.default_config.clone();
    let check = move || synced_config::read(&request.yaml_as_string, defaults.as_deref());
    let config = shared.config_checks.run(check).await?;
    shared.with(|core, _| core.sync_config(config))?;
    Ok(Json(SuccessAnswer { success: true }))
}

/// `POST /start_engine`. Clients that print nothing but a refusal of this call are told in it what became of the boot.
pub async fn start(State(shared): Server, headers: HeaderMap) -> Result<Json<StartEngineAnswer>, Error> {
    let polls_slowly = !is_ours(&headers);
    // A task of its own: a caller that hangs up does not leave a start half done.
    let started = tokio::spawn(async move {
        let (pid, generation) = supervisor::start(&shared, true).await?;
        if polls_slowly {
            let outcome = supervisor::boot_outcome(&shared, generation).await;
            // It waits for 5 s if the status that it looked at last is another.
            sleep(shared.options.look_interval).await;
            outcome?;
        }
        Ok::<_, Error>(pid)
    });
    let pid = started.await.map_err(|error| Error::Internal(error.to_string()))??;
    Ok(Json(StartEngineAnswer {
        success: true,
        pid: Some(pid),
    }))
}

/// `POST /stop_engine`: answered when the process is gone.
pub async fn stop(State(shared): Server) -> Result<Json<SuccessOrReason>, Error> {
    let stopped = tokio::spawn(async move { supervisor::stop_for_good(&shared).await });
    stopped.await.map_err(|error| Error::Internal(error.to_string()))?;
    Ok(Json(SuccessOrReason {
        success: true,
        failure_reason: String::new(),
    }))
}

/// `GET /get_server_experiment_dir`.
pub async fn experiment_dir(State(shared): Server) -> Json<ExperimentDirAnswer> {
    Json(ExperimentDirAnswer {
        server_experiment_dir: shared.with(|core, _| core.experiment_dir()),
    })
}
