//! The engine's life cycle: start, follow its event stream, restart after a crash, stop.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::client::{EngineCallError, EngineClient};
use super::process::{EngineHandle, Launch};
use super::{code_build, kept_config, preflight, resume, synced_config};
use crate::config::schema::Ajet;
use crate::protocol::engine::{CONTRACT_VERSION, EngineEvent, EnginePhase, Hello, LogLevel, Update};
use crate::server::code_sync::Snapshot;
use crate::server::http::error::Error;
use crate::server::shared::{EngineLink, Shared};
use crate::server::swarm::core::{AfterEngine, Boot, Effect};

/// Time for the engine to exit after it closed its event stream.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a failing engine to exit after a failed call: a dying engine closes its connections shortly before its exit
/// status and last output are known, and these explain more than the failed call does.
const FAILING_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for an engine to serve its socket; it does so before it loads the model.
const SERVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between the first attempts to update.
const UPDATE_PAUSE: Duration = Duration::from_millis(250);
/// Maximum delay between attempts to update.
const MAX_UPDATE_PAUSE: Duration = Duration::from_secs(10);
/// Interval between checks of an engine's socket, and how many in a row may fail.
const SOCKET_CHECKS: (Duration, u32) = (Duration::from_secs(1), 3);
/// Delay between attempts to connect to a new engine.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Implements `start_engine`: returns the process id of the engine, which then boots, and its generation. There is no
/// process yet if the engine of synced training code must be built first. `awaited` says whether a client waits for the
/// outcome of the boot.
///
/// # Errors
///
/// Fails at once if the engine is not offline, no configuration was synced, or the model or directory is unusable.
pub async fn start(shared: &Arc<Shared>, awaited: bool) -> Result<(Option<u32>, u64), Error> {
    let _alone = shared.lifecycle.lock().await;
    let config = shared.with(|core, _| core.config_to_start().cloned())?;
    let launch = tokio::task::spawn_blocking(move || prepare(config.ajet)).await;
    let launch = launch
        .map_err(|error| Error::Internal(error.to_string()))?
        .map_err(Error::CannotStart)?;
    let directory = launch.experiment_dir.display().to_string();
    let generation = shared.with(|core, now| {
        let generation = core.start(directory, now)?;
        core.await_boot(generation, awaited);
        Ok::<_, Error>(generation)
    })?;
    if let Some(code) = shared.code.selected() {
        tokio::spawn(build_and_supervise(Arc::clone(shared), launch, code, generation));
        return Ok((None, generation));
    }
    match launch_engine(shared, &launch, generation) {
        Ok(process) => {
            let pid = process.pid;
            tokio::spawn(supervise(Arc::clone(shared), launch, process, generation));
            Ok((Some(pid), generation))
        }
        Err(reason) => {
            shared.with(|core, now| core.stop(Some(reason.clone()), now));
            Err(Error::CannotStart(reason))
        }
    }
}

/// Waits for the outcome of a boot, up to the start timeout.
///
/// # Errors
///
/// Returns the reason if the boot failed.
pub async fn boot_outcome(shared: &Shared, generation: u64) -> Result<(), Error> {
    let deadline = Instant::now() + shared.options.start_timeout;
    loop {
        // Subscribe before reading the state, so that a change right after it is not missed.
        let changed = shared.state_changed.notified();
        match shared.with(|core, _| core.boot_outcome(generation)) {
            Boot::Ready => return Ok(()),
            Boot::Failed(reason) => return Err(Error::CannotStart(reason)),
            Boot::Pending => {}
        }
        if timeout_at(deadline, changed).await.is_err() {
            shared.with(|core, _| core.await_boot(generation, false));
            return Ok(());
        }
    }
}

/// Runs the preflight checks and records the experiment as unfinished.
fn prepare(config: Ajet) -> Result<Launch, String> {
    let experiment = preflight::check(&config)?;
    let config = preflight::config_file(config, &experiment);
    kept_config::keep(&experiment.dir, &config)
        .map_err(|error| format!("cannot write to {}: {error}", experiment.dir.display()))?;
    // If another server uses the experiment, it is recorded only when our engine has acquired the directory.
    if !resume::is_in_use(&experiment.dir) {
        resume::record(&experiment.dir, &config)
            .map_err(|error| format!("cannot write to {}: {error}", experiment.dir.display()))?;
    }
    Ok(Launch {
        config,
        experiment_dir: experiment.dir,
        program: None,
    })
}

/// Implements `stop_engine`: stops as [`stop`] does, and marks the experiment as not to be resumed.
pub async fn stop_for_good(shared: &Shared) {
    stop(shared, shared.options.stop_timeout, None).await;
    if let Some(dir) = shared.with(|core, _| core.experiment_dir()) {
        resume::clear(Path::new(&dir));
    }
}

/// Starts an engine without a client, with the configuration of an earlier server or of the model to serve.
pub async fn start_with(shared: &Arc<Shared>, config_yaml: String) {
    let config = shared
        .config_checks
        .run(move || synced_config::read(&config_yaml, None))
        .await;
    let started = match config.and_then(|config| shared.with(|core, _| core.sync_config(config))) {
        Ok(()) => start(shared, false).await.map(|_| ()),
        Err(error) => Err(error),
    };
    if let Err(error) = started {
        let reason = match shared.options.serving {
            // The command that serves the model ends with it.
            Some(_) => format!("cannot load the model: {error}"),
            None => {
                let reason = format!("cannot resume the experiment: {error}");
                tracing::error!("{reason}");
                reason
            }
        };
        shared.with(|core, _| core.start_failed(reason));
    }
}

/// Stops the engine, also at the end of the server: OFFLINE immediately; returns when the process has ended, at the
/// latest shortly after `timeout`. A concurrent `start_engine` waits for it. `detail` is the status detail afterwards.
pub async fn stop(shared: &Shared, timeout: Duration, detail: Option<&str>) {
    let stopping = || Some(detail.unwrap_or("stopping the engine").to_owned());
    shared.with(|core, now| core.stop(stopping(), now));
    let _alone = shared.lifecycle.lock().await;
    // A start may have happened in between.
    shared.with(|core, now| core.stop(stopping(), now));
    if let Some(link) = shared.set_link(None) {
        let asked = async {
            if let Err(error) = link.client.shutdown().await {
                tracing::debug!("cannot ask the engine to shut down: {error}");
                // A booting engine does not listen yet.
                let _ = link.process.kill.send(super::process::Kill::Terminate).await;
            }
            link.process.wait().await;
        };
        if tokio::time::timeout(timeout, asked).await.is_err() {
            link.process.end_within(Duration::ZERO).await;
        }
        tracing::info!("the engine (pid {}) has ended", link.process.pid);
    }
    // A build that the new state has ended.
    shared.code.until_idle().await;
    shared.with(|core, now| core.stop(detail.map(str::to_owned), now));
}

/// Builds the engine of synced training code, starts it and follows it.
async fn build_and_supervise(shared: Arc<Shared>, mut launch: Launch, code: Arc<Snapshot>, generation: u64) {
    let built = code_build::build(&shared, &code, generation).await;
    let alone = shared.lifecycle.lock().await;
    if !shared.with(|core, _| core.boots(generation)) {
        return;
    }
    let started = built.and_then(|program| {
        launch.program = Some(program);
        launch_engine(&shared, &launch, generation)
    });
    drop(alone);
    match started {
        Ok(process) => supervise(shared, launch, process, generation).await,
        Err(reason) => {
            tracing::error!("{reason}");
            shared.with(|core, now| core.engine_ended(generation, &reason, now));
        }
    }
}

fn launch_engine(shared: &Arc<Shared>, launch: &Launch, generation: u64) -> Result<EngineHandle, String> {
    let process = shared
        .launcher
        .launch(launch)
        .map_err(|error| format!("cannot run the engine program: {error}"))?;
    let client = EngineClient::new(&process.socket);
    let (effects, orders) = mpsc::unbounded_channel();
    tokio::spawn(run_effects(Arc::clone(shared), client.clone(), generation, orders));
    tracing::info!("engine started (pid {})", process.pid);
    shared.set_link(Some(EngineLink {
        client,
        process: process.clone(),
        effects,
    }));
    Ok(process)
}

/// Sends the core's decisions to the engine, in order.
async fn run_effects(
    shared: Arc<Shared>,
    client: EngineClient,
    generation: u64,
    mut orders: mpsc::UnboundedReceiver<Effect>,
) {
    while let Some(effect) = orders.recv().await {
        let outcome = match &effect {
            Effect::Forget { uuid, forget } => client.forget(uuid, forget).await,
            Effect::Agree => match client.agree().await {
                Ok(state) => {
                    let event = EngineEvent::Pool { pool: state.pool };
                    shared.with(|core, now| core.engine_event(generation, event, now));
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Effect::Shutdown => client.shutdown().await,
            Effect::Update { dropped } => {
                let dropped = dropped.clone();
                update(&shared, &client, generation, &Update { dropped }).await
            }
        };
        match outcome {
            Ok(()) => {}
            // An engine that does not update would leave the swarm waiting forever.
            Err(error) if matches!(effect, Effect::Update { .. }) => {
                fail(&shared, generation, format!("the engine failed to update: {error}")).await;
            }
            Err(error) if effect == Effect::Shutdown => {
                fail(&shared, generation, format!("the engine failed to shut down: {error}")).await;
            }
            Err(error) => tracing::warn!("{effect:?}: {error}"),
        }
    }
}

/// Asks the engine to update, retrying while it only lacks disk space to record the batch.
async fn update(
    shared: &Shared,
    client: &EngineClient,
    generation: u64,
    update: &Update,
) -> Result<(), EngineCallError> {
    let mut pause = UPDATE_PAUSE;
    loop {
        let message = match client.update(update).await {
            Err(EngineCallError::Refused { status, message }) if status == StatusCode::SERVICE_UNAVAILABLE => message,
            outcome => return outcome,
        };
        if !shared.with(|core, _| core.update_waits(generation, &message)) {
            return Ok(());
        }
        tracing::warn!("the update is waiting: {message}");
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(MAX_UPDATE_PAUSE);
    }
}

/// Ends a useless engine; [`supervise`] acts on its end.
async fn fail(shared: &Shared, generation: u64, reason: String) {
    let link = shared
        .link()
        .filter(|_| shared.with(|core, _| core.generation() == generation));
    let Some(link) = link else { return };
    if was_dying(&link.process).await {
        tracing::debug!("{reason}");
        return;
    }
    tracing::error!("{reason}");
    shared.with(|core, _| core.engine_fails(generation, reason));
    link.process.end_within(Duration::ZERO).await;
}

/// Returns whether the engine was already dying when it failed a call.
async fn was_dying(process: &EngineHandle) -> bool {
    tokio::time::timeout(FAILING_EXIT_TIMEOUT, process.wait()).await.is_ok()
}

/// Follows an engine and its replacements until no engine is left.
async fn supervise(shared: Arc<Shared>, launch: Launch, mut process: EngineHandle, mut generation: u64) {
    loop {
        let reason = follow(&shared, &launch, &process, generation).await;
        if shared.with(|core, _| core.generation() == generation) {
            tracing::warn!("{reason}");
            shared.show("server", &reason);
        }
        let _alone = shared.lifecycle.lock().await;
        let after = shared.with(|core, now| core.engine_ended(generation, &reason, now));
        if after == AfterEngine::Complete {
            resume::clear(&launch.experiment_dir);
        }
        if after != AfterEngine::Restart {
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

/// Follows one engine until it has ended; returns why it ended.
async fn follow(shared: &Shared, launch: &Launch, process: &EngineHandle, generation: u64) -> String {
    let client = EngineClient::new(&process.socket);
    let ended = tokio::select! {
        ended = process.wait() => return ended,
        outcome = listen(shared, launch, &client, generation) => outcome,
        gone = socket_gone(shared, &process.socket, generation) => Err(gone),
    };
    let timeout = if ended.is_ok() {
        EXIT_TIMEOUT
    } else {
        FAILING_EXIT_TIMEOUT
    };
    let exited = tokio::time::timeout(timeout, process.wait()).await;
    process.end_within(Duration::ZERO).await;
    match (ended, exited) {
        (Ok(Some(fatal)), _) => fatal,
        (Err(_), Ok(own_words)) => own_words,
        (Err(ours), Err(_)) => ours,
        (Ok(None), _) => process.wait().await,
    }
}

/// Waits until a booted engine's socket is gone, though the process may still run.
async fn socket_gone(shared: &Shared, socket: &Path, generation: u64) -> String {
    let (pause, most) = SOCKET_CHECKS;
    let mut failed = 0;
    loop {
        tokio::time::sleep(pause).await;
        match tokio::net::UnixStream::connect(socket).await {
            Ok(_) => failed = 0,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                failed += u32::from(!shared.with(|core, _| core.boots(generation)));
                if failed == most {
                    return format!("the engine's socket {} is gone: {error}", socket.display());
                }
            }
            Err(_) => {} // busy
        }
    }
}

/// Reads the event stream to its end and returns the engine's own reason to end, if it gave one. `Err` holds our reason
/// to end the engine.
async fn listen(
    shared: &Shared,
    launch: &Launch,
    client: &EngineClient,
    generation: u64,
) -> Result<Option<String>, String> {
    let timeout = SERVE_TIMEOUT.min(shared.options.boot_timeout);
    let hello = tokio::time::timeout(timeout, first_hello(client)).await;
    let hello = hello.map_err(|_| format!("the engine did not serve its socket within {timeout:?}"))??;
    if hello.contract_version != CONTRACT_VERSION {
        let hint = match launch.program {
            Some(_) => "sync code of the same version as the server's",
            None => "run both from the same build",
        };
        return Err(format!(
            "the engine speaks version {} of the engine contract, this server version {CONTRACT_VERSION}; hint: {hint}",
            hello.contract_version
        ));
    }
    let mut events = client
        .events()
        .await
        .map_err(|error| format!("cannot open the engine's event stream: {error}"))?;
    let mut fatal = None;
    loop {
        let event = match tokio::time::timeout(shared.options.boot_timeout, events.next()).await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(fatal),
            Err(_) if shared.with(|core, _| core.boots(generation)) => return Err(boot_timeout_reason(shared)),
            Err(_) => continue,
        };
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
                Ok(hello) => {
                    record_unfinished(launch.clone()).await;
                    shared.with(|core, now| core.engine_ready(generation, hello, now));
                }
                Err(error) => return Err(format!("the engine is ready but does not answer /hello: {error}")),
            },
            EngineEvent::Log { level, message } => log(shared, *level, message),
            EngineEvent::Fatal { message } => fatal = Some(message.clone()),
            _ => {}
        }
        shared.with(|core, now| core.engine_event(generation, event, now));
    }
}

/// Records an experiment as unfinished when its directory may have been used by another server's engine before.
async fn record_unfinished(launch: Launch) {
    let note = move || resume::record(&launch.experiment_dir, &launch.config);
    if let Ok(Err(error)) = tokio::task::spawn_blocking(note).await {
        tracing::warn!("`start --continue` will not find the experiment: {error}");
    }
}

/// Returns why a booting engine is ended.
fn boot_timeout_reason(shared: &Shared) -> String {
    let detail = shared.with(|core, _| core.status().engine_status_detail);
    format!(
        "the engine's boot timed out after {:?} without progress, in `{}`; hint: start the server with a larger --boot-timeout if it \
         only needs more time",
        shared.options.boot_timeout,
        detail.unwrap_or_default()
    )
}

async fn first_hello(client: &EngineClient) -> Result<Hello, String> {
    loop {
        match client.hello().await {
            Err(EngineCallError::Unreachable(_)) => tokio::time::sleep(CONNECT_PAUSE).await,
            outcome => return outcome.map_err(|error| format!("the engine does not answer /hello: {error}")),
        }
    }
}

fn log(shared: &Shared, level: LogLevel, message: &str) {
    shared.show("engine", message);
    match level {
        LogLevel::Warn => tracing::warn!("{message}"),
        LogLevel::Info => tracing::info!("{message}"),
    }
}
