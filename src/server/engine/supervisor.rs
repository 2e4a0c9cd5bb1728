//! The engine's life: started, followed by its event stream, restarted after a crash, stopped.

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
use super::{preflight, resume, synced_config};
use crate::config::schema::Ajet;
use crate::protocol::engine::{CONTRACT_VERSION, EngineEvent, EnginePhase, ForgetEpisode, Hello, LogLevel, Update};
use crate::server::http::error::Error;
use crate::server::shared::{EngineLink, Shared};
use crate::server::swarm::core::{AfterEngine, Boot, Effect};

/// How long the engine may take to hang up after it closed its event stream.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How long an engine that failed a call of ours is given to prove that it was dying: it hangs up a moment before its end
/// and last words are known, and they say more than the failed call does.
const LAST_WORDS_PATIENCE: Duration = Duration::from_secs(2);
/// How long an engine may take to serve its socket; it does so before it loads anything.
const SERVING_PATIENCE: Duration = Duration::from_secs(60);
/// Between the first attempts to update.
const UPDATE_PAUSE: Duration = Duration::from_millis(250);
/// Between attempts to update, after some.
const LONGEST_UPDATE_PAUSE: Duration = Duration::from_secs(10);
/// Between looks at an engine's socket, and how many of them in a row may fail.
const SOCKET_LOOKS: (Duration, u32) = (Duration::from_secs(1), 3);
/// Between attempts to reach an engine that has just been started.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// `start_engine`: the process id of the engine, which then boots, and its generation. `awaited` says whether a client
/// waits to be told what becomes of the boot.
///
/// # Errors
///
/// What can be told at once: not offline, no configuration, a model or directory that cannot be used.
pub async fn start(shared: &Arc<Shared>, awaited: bool) -> Result<(u32, u64), Error> {
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
    match launch_engine(shared, &launch, generation) {
        Ok(process) => {
            let pid = process.pid;
            tokio::spawn(supervise(Arc::clone(shared), launch, process, generation));
            Ok((pid, generation))
        }
        Err(reason) => {
            shared.with(|core, now| core.stop(Some(reason.clone()), now));
            Err(Error::CannotStart(reason))
        }
    }
}

/// Waits until an engine has booted, for the patience that clients have.
///
/// # Errors
///
/// Why it did not boot.
pub async fn boot_outcome(shared: &Shared, generation: u64) -> Result<(), Error> {
    let deadline = Instant::now() + shared.options.start_patience;
    loop {
        // Before the look, so that a change right after it is not missed.
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

/// Checks what can be checked before an engine is started, and notes the experiment as begun.
fn prepare(config: Ajet) -> Result<Launch, String> {
    let experiment = preflight::check(&config)?;
    let config_yaml = preflight::config_file(config, &experiment)?;
    // Another server's experiment is noted once our engine has got the directory.
    if !resume::is_in_use(&experiment.dir) {
        resume::note(&experiment.dir, &config_yaml)
            .map_err(|error| format!("{} cannot be written: {error}", experiment.dir.display()))?;
    }
    Ok(Launch {
        config_yaml,
        experiment_dir: experiment.dir,
    })
}

/// `stop_engine`: as [`stop`], and the experiment is not to be gone on with.
pub async fn stop_for_good(shared: &Shared) {
    stop(shared, shared.options.stop_patience).await;
    if let Some(dir) = shared.with(|core, _| core.experiment_dir()) {
        resume::clear(Path::new(&dir));
    }
}

/// Starts an engine without a client, with a configuration that was synced to an earlier server.
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
        let reason = format!("the experiment cannot be gone on with: {error}");
        tracing::error!("{reason}");
        shared.with(|core, _| core.start_failed(reason));
    }
}

/// Stops the engine, and the end of the server: OFFLINE at once; back when the process is gone, which is after `patience`
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
                let _ = link.process.kill.send(super::process::Kill::Terminate).await;
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
            Effect::Shutdown => client.shutdown().await,
            Effect::Update { dropped } => {
                let dropped = dropped.clone();
                update(&shared, &client, generation, &Update { dropped }).await
            }
        };
        match outcome {
            Ok(()) => {}
            // An engine that is asked to update and does not would leave the swarm waiting for ever.
            Err(error) if matches!(effect, Effect::Update { .. }) => {
                fail(&shared, generation, format!("the engine does not update: {error}")).await;
            }
            Err(error) if effect == Effect::Shutdown => {
                fail(&shared, generation, format!("the engine does not shut down: {error}")).await;
            }
            Err(error) => tracing::warn!("{effect:?}: {error}"),
        }
    }
}

/// Asks the engine to update until it does, for as long as all that it lacks is a disk that takes the batch's record.
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
        tracing::warn!("the update waits: {message}");
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_UPDATE_PAUSE);
    }
}

/// The engine is of no use any more: its end is what [`crate::servervise`] acts on.
async fn fail(shared: &Shared, generation: u64, reason: String) {
    let link = shared
        .link()
        .filter(|_| shared.with(|core, _| core.generation() == generation));
    let Some(link) = link else { return };
    if ends_by_itself(&link.process).await {
        tracing::debug!("{reason}");
        return;
    }
    tracing::error!("{reason}");
    shared.with(|core, _| core.engine_fails(generation, reason));
    link.process.end_within(Duration::ZERO).await;
}

/// Whether the engine was dying when it failed a call of ours.
async fn ends_by_itself(process: &EngineHandle) -> bool {
    tokio::time::timeout(LAST_WORDS_PATIENCE, process.wait()).await.is_ok()
}

/// Follows an engine, and those that are started in its place, until it is over.
async fn supervise(shared: Arc<Shared>, launch: Launch, mut process: EngineHandle, mut generation: u64) {
    loop {
        let reason = follow(&shared, &launch, &process, generation).await;
        if shared.with(|core, _| core.generation() == generation) {
            tracing::warn!("{reason}");
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

/// Listens to one engine until it has ended; why it did.
async fn follow(shared: &Shared, launch: &Launch, process: &EngineHandle, generation: u64) -> String {
    let client = EngineClient::new(&process.socket);
    let ended = tokio::select! {
        ended = process.wait() => return ended,
        outcome = listen(shared, launch, &client, generation) => outcome,
        gone = socket_gone(shared, &process.socket, generation) => Err(gone),
    };
    let patience = if ended.is_ok() {
        END_PATIENCE
    } else {
        LAST_WORDS_PATIENCE
    };
    let by_itself = tokio::time::timeout(patience, process.wait()).await;
    process.end_within(Duration::ZERO).await;
    match (ended, by_itself) {
        (Ok(Some(fatal)), _) => fatal,
        (Err(_), Ok(own_words)) => own_words,
        (Err(ours), Err(_)) => ours,
        (Ok(None), _) => process.wait().await,
    }
}

/// Waits until an engine that has booted cannot be reached at its socket any more, though it may run on.
async fn socket_gone(shared: &Shared, socket: &Path, generation: u64) -> String {
    let (pause, most) = SOCKET_LOOKS;
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

/// Reads the event stream to its end: the engine's own reason to end, if it gave one. `Err` is ours to end it.
async fn listen(
    shared: &Shared,
    launch: &Launch,
    client: &EngineClient,
    generation: u64,
) -> Result<Option<String>, String> {
    let patience = SERVING_PATIENCE.min(shared.options.boot_patience);
    let hello = tokio::time::timeout(patience, first_hello(client)).await;
    let hello = hello.map_err(|_| format!("the engine did not serve its socket within {patience:?}"))??;
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
    loop {
        let event = match tokio::time::timeout(shared.options.boot_patience, events.next()).await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(fatal),
            Err(_) if shared.with(|core, _| core.boots(generation)) => return Err(hangs(shared)),
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
                    note_again(launch.clone()).await;
                    shared.with(|core, now| core.engine_ready(generation, hello, now));
                }
                Err(error) => return Err(format!("the engine is ready but does not say hello: {error}")),
            },
            EngineEvent::Log { level, message } => log(*level, message),
            EngineEvent::Fatal { message } => fatal = Some(message.clone()),
            _ => {}
        }
        shared.with(|core, now| core.engine_event(generation, event, now));
    }
}

/// Notes an experiment as begun whose directory another server's engine may have had before.
async fn note_again(launch: Launch) {
    let note = move || resume::note(&launch.experiment_dir, &launch.config_yaml);
    if let Ok(Err(error)) = tokio::task::spawn_blocking(note).await {
        tracing::warn!("`start --continue` will not find the experiment: {error}");
    }
}

/// Why an engine that boots is given up.
fn hangs(shared: &Shared) -> String {
    let detail = shared.with(|core, _| core.status().engine_status_detail);
    format!(
        "the engine's boot hangs: nothing new for {:?} after `{}`; hint: start the server with a larger --boot-timeout if it \
         only needs longer",
        shared.options.boot_patience,
        detail.unwrap_or_default()
    )
}

async fn first_hello(client: &EngineClient) -> Result<Hello, String> {
    loop {
        match client.hello().await {
            Err(EngineCallError::Unreachable(_)) => tokio::time::sleep(CONNECT_PAUSE).await,
            outcome => return outcome.map_err(|error| format!("the engine does not say hello: {error}")),
        }
    }
}

fn log(level: LogLevel, message: &str) {
    match level {
        LogLevel::Warn => tracing::warn!("{message}"),
        LogLevel::Info => tracing::info!("{message}"),
    }
}
