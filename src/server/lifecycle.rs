//! The engine's life: started, followed by its event stream, restarted after a crash, stopped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::core::{AfterEngine, Effect};
use super::engine_client::{EngineCallError, EngineClient};
use super::engine_process::{EngineHandle, Launch};
use super::error::Error;
use super::preflight;
use super::shared::{EngineLink, Shared};
use crate::protocol::engine::{CONTRACT_VERSION, EngineEvent, EnginePhase, ForgetEpisode, Hello};

/// How long the engine may take to hang up after it closed its event stream.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How long an engine may take to serve its socket; it does so before it loads anything.
const SERVING_PATIENCE: Duration = Duration::from_secs(60);
/// Between attempts to reach an engine that has just been started.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// `start_engine`: the process id of the engine, which then boots.
///
/// # Errors
///
/// What can be told at once: not offline, no configuration, a model or directory that cannot be used.
pub async fn start(shared: &Arc<Shared>) -> Result<u32, Error> {
    let _alone = shared.lifecycle.lock().await;
    let config = shared.with(|core, _| core.config_to_start().cloned())?;
    let experiment_dir = preflight::check(&config.ajet).map_err(Error::CannotStart)?;
    let launch = Launch {
        config_yaml: preflight::config_file(&config.ajet).map_err(Error::CannotStart)?,
        experiment_dir,
    };
    let directory = launch.experiment_dir.display().to_string();
    let generation = shared.with(|core, now| core.start(directory, now))?;
    match launch_engine(shared, &launch, generation) {
        Ok(process) => {
            let pid = process.pid;
            tokio::spawn(supervise(Arc::clone(shared), launch, process, generation));
            Ok(pid)
        }
        Err(reason) => {
            shared.with(|core, now| core.stop(Some(reason.clone()), now));
            Err(Error::CannotStart(reason))
        }
    }
}

/// `stop_engine`, and the end of the server: OFFLINE at once; back when the process is gone, which is after `patience`
/// and a little at the latest. `start_engine` waits for it.
pub async fn stop(shared: &Shared, patience: Duration) {
    let stopping = || Some("the engine is being stopped".to_owned());
    shared.with(|core, now| core.stop(stopping(), now));
    let _alone = shared.lifecycle.lock().await;
    // A start may have come in between.
    shared.with(|core, now| core.stop(stopping(), now));
    if let Some(link) = shared.set_link(None) {
        let asked = async {
            if let Err(error) = link.client.shutdown().await {
                tracing::debug!("asking the engine to shut down: {error}");
                // One that boots does not listen yet.
                let _ = link.process.kill.send(super::engine_process::Kill::Terminate).await;
            }
            link.process.wait().await;
        };
        if tokio::time::timeout(patience, asked).await.is_err() {
            link.process.end_within(Duration::ZERO).await;
        }
        tracing::info!("the engine (pid {}) has ended", link.process.pid);
    }
    shared.with(|core, now| core.stop(None, now));
}

fn launch_engine(shared: &Arc<Shared>, launch: &Launch, generation: u64) -> Result<EngineHandle, String> {
    let process = shared
        .launcher
        .launch(launch)
        .map_err(|error| format!("it cannot be run: {error}"))?;
    let client = EngineClient::new(&process.socket);
    let (effects, orders) = mpsc::unbounded_channel();
    tokio::spawn(carry_out(Arc::clone(shared), client.clone(), generation, orders));
    tracing::info!("engine started (pid {})", process.pid);
    shared.set_link(Some(EngineLink {
        client,
        process: process.clone(),
        effects,
    }));
    Ok(process)
}

/// Tells the engine what the core decided, in order.
async fn carry_out(
    shared: Arc<Shared>,
    client: EngineClient,
    generation: u64,
    mut orders: mpsc::UnboundedReceiver<Effect>,
) {
    while let Some(effect) = orders.recv().await {
        let outcome = match &effect {
            Effect::Forget { uuid, reason } => client.forget(uuid, &ForgetEpisode { reason: *reason }).await,
            Effect::Agree => match client.agree().await {
                Ok(state) => {
                    let event = EngineEvent::Pool { pool: state.pool };
                    shared.with(|core, now| core.engine_event(generation, event, now));
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Effect::Update => client.update().await,
        };
        match outcome {
            Ok(()) => {}
            // An engine that is asked to update and does not would leave the swarm waiting for ever.
            Err(EngineCallError::Refused { message, .. }) if effect == Effect::Update => {
                fail(&shared, generation, format!("the engine refused to update: {message}")).await;
            }
            Err(error) => tracing::warn!("{effect:?}: {error}"),
        }
    }
}

/// The engine is of no use any more: its end is what [`supervise`] acts on.
async fn fail(shared: &Shared, generation: u64, reason: String) {
    tracing::error!("{reason}");
    if let Some(link) = shared
        .link()
        .filter(|_| shared.with(|core, _| core.generation() == generation))
    {
        link.process.end_within(Duration::ZERO).await;
    }
}

/// Follows an engine, and those that are started in its place, until it is over.
async fn supervise(shared: Arc<Shared>, launch: Launch, mut process: EngineHandle, mut generation: u64) {
    loop {
        let reason = follow(&shared, &process, generation).await;
        if shared.with(|core, _| core.generation() == generation) {
            tracing::warn!("{reason}");
        }
        let _alone = shared.lifecycle.lock().await;
        if shared.with(|core, now| core.engine_ended(generation, &reason, now)) == AfterEngine::Over {
            if shared.with(|core, _| core.generation() == generation) {
                shared.set_link(None);
            }
            return;
        }
        generation = shared.with(|core, _| core.generation());
        process = match launch_engine(&shared, &launch, generation) {
            Ok(process) => process,
            Err(reason) => {
                shared.with(|core, now| core.stop(Some(reason), now));
                return;
            }
        };
    }
}

/// Listens to one engine until it has ended; why it did.
async fn follow(shared: &Shared, process: &EngineHandle, generation: u64) -> String {
    let client = EngineClient::new(&process.socket);
    let ended = tokio::select! {
        ended = process.wait() => return ended,
        outcome = listen(shared, &client, generation) => outcome,
    };
    let patience = if ended.is_ok() { END_PATIENCE } else { Duration::ZERO };
    process.end_within(patience).await;
    match ended {
        Ok(Some(fatal)) | Err(fatal) => fatal,
        Ok(None) => process.wait().await,
    }
}

/// Reads the event stream to its end: the engine's own reason to end, if it gave one. `Err` is ours to end it.
async fn listen(shared: &Shared, client: &EngineClient, generation: u64) -> Result<Option<String>, String> {
    let hello = tokio::time::timeout(SERVING_PATIENCE, first_hello(client)).await;
    let hello = hello.map_err(|_| format!("the engine did not serve its socket within {SERVING_PATIENCE:?}"))??;
    if hello.contract_version != CONTRACT_VERSION {
        return Err(format!(
            "the engine speaks version {} of the engine contract, this server version {CONTRACT_VERSION}; \
             hint: run both from the same build",
            hello.contract_version
        ));
    }
    let mut events = client
        .events()
        .await
        .map_err(|error| format!("the engine tells no events: {error}"))?;
    let mut fatal = None;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::debug!("event stream: {error}");
                continue;
            }
        };
        match &event {
            EngineEvent::Status {
                phase: EnginePhase::Rolling,
                ..
            } if shared.with(|core, _| core.boots(generation)) => match client.hello().await {
                Ok(hello) => shared.with(|core, now| core.engine_ready(generation, hello, now)),
                Err(error) => return Err(format!("the engine is ready but does not say hello: {error}")),
            },
            EngineEvent::Log { level, message } => log(level, message),
            EngineEvent::Fatal { message } => fatal = Some(message.clone()),
            _ => {}
        }
        shared.with(|core, now| core.engine_event(generation, event, now));
    }
    Ok(fatal)
}

async fn first_hello(client: &EngineClient) -> Result<Hello, String> {
    loop {
        match client.hello().await {
            Err(EngineCallError::Unreachable(_)) => tokio::time::sleep(CONNECT_PAUSE).await,
            outcome => return outcome.map_err(|error| format!("the engine does not say hello: {error}")),
        }
    }
}

fn log(level: &str, message: &str) {
    match level {
        "error" => tracing::error!("{message}"),
        "warn" => tracing::warn!("{message}"),
        _ => tracing::info!("{message}"),
    }
}
