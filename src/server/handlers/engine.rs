//! Handlers of health, status, configuration, start and stop.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use tokio::time::{sleep, timeout};

use crate::config::experiment;
use crate::protocol::swarm::{
    CompareTrainConfigAnswer, ComparedWith, EngineStatusAnswer, ExperimentDirAnswer, Health, StartEngineAnswer,
    SuccessAnswer, SuccessOrReason, SyncTrainConfigRequest,
};
use crate::server::engine::{kept_config, supervisor, synced_config};
use crate::server::handlers::is_ours;
use crate::server::http::body::{CONFIG_BYTES, JsonBody};
use crate::server::http::error::Error;
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;

/// Handles `GET /health`.
pub async fn health() -> Json<Health> {
    Json(Health { status: "ok".into() })
}

/// Handles `GET /get_engine_status`. Clients that cache the status for seconds get a state only when it has lasted.
pub async fn status(State(shared): Server, headers: HeaderMap) -> Json<EngineStatusAnswer> {
    let polls_slowly = !is_ours(&headers);
    let interval = shared.options.min_poll_interval.as_secs_f64();
    loop {
        // Subscribe before reading the state, so that a change right after it is not missed.
        let changed = shared.state_changed.notified();
        let (status, withhold_status_for) =
            shared.with(|core, now| (core.status(), core.withhold_status_for(interval, now)));
        match withhold_status_for {
            Some(left) if polls_slowly => drop(timeout(Duration::from_secs_f64(left), changed).await),
            _ => return Json(status),
        }
    }
}

/// Handles `POST /sync_train_config`.
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

/// Handles `POST /compare_train_config`: compares with the running engine or, while it is offline, with the last start of
/// the experiment that a start would continue.
pub async fn compare_train_config(
    State(shared): Server,
    JsonBody(request): JsonBody<SyncTrainConfigRequest, CONFIG_BYTES>,
) -> Result<Json<CompareTrainConfigAnswer>, Error> {
    let defaults = shared.options.default_config.clone();
    let running = shared.with(|core, _| core.running_config().zip(core.experiment_dir()));
    let compare = move || {
        let given = synced_config::read_quietly(&request.yaml_as_string, defaults.as_deref())?.ajet;
        if let Some((present, experiment_dir)) = running {
            return Ok(CompareTrainConfigAnswer {
                compared_with: ComparedWith::Engine,
                experiment_dir,
                differences: kept_config::differences(&given, &present),
            });
        }
        let here = std::env::current_dir().map_err(|error| format!("the working directory is gone: {error}"))?;
        let experiment = experiment::resolve(&given, &here, SystemTime::now(), std::path::Path::exists)
            .map_err(|problem| problem.to_string())?;
        let present = kept_config::of_training(&experiment.dir);
        Ok(CompareTrainConfigAnswer {
            compared_with: match present {
                Some(_) => ComparedWith::Experiment,
                None => ComparedWith::Nothing,
            },
            experiment_dir: experiment.dir.to_string_lossy().into_owned(),
            differences: present.map_or_else(Vec::new, |present| kept_config::differences(&given, &present)),
        })
    };
    Ok(Json(shared.config_checks.run(compare).await?.map_err(Error::Invalid)?))
}

/// Handles `POST /start_engine`. Clients that only report a refusal of this call get the outcome of the boot as its
/// answer.
pub async fn start(State(shared): Server, headers: HeaderMap) -> Result<Json<StartEngineAnswer>, Error> {
    let polls_slowly = !is_ours(&headers);
    // A separate task, so that a caller that disconnects does not leave a start half done.
    let started = tokio::spawn(async move {
        let (pid, generation) = supervisor::start(&shared, true).await?;
        if polls_slowly {
            let outcome = supervisor::boot_outcome(&shared, generation).await;
            // Such a client waits 5 s if its last cached status differs.
            sleep(shared.options.min_poll_interval).await;
            outcome?;
        }
        Ok::<_, Error>(pid)
    });
    let pid = started.await.map_err(|error| Error::Internal(error.to_string()))??;
    Ok(Json(StartEngineAnswer { success: true, pid }))
}

/// Handles `POST /stop_engine`: answers when the process has ended.
pub async fn stop(State(shared): Server) -> Result<Json<SuccessOrReason>, Error> {
    let stopped = tokio::spawn(async move { supervisor::stop_for_good(&shared).await });
    stopped.await.map_err(|error| Error::Internal(error.to_string()))?;
    Ok(Json(SuccessOrReason {
        success: true,
        failure_reason: String::new(),
    }))
}

/// Handles `GET /get_server_experiment_dir`.
pub async fn experiment_dir(State(shared): Server) -> Json<ExperimentDirAnswer> {
    Json(ExperimentDirAnswer {
        server_experiment_dir: shared.with(|core, _| core.experiment_dir()),
    })
}
