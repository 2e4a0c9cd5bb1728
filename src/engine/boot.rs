//! The life of an engine: from a configuration file to serving, and its end.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::batch::identity::RunIdentity;
use super::batch::journal::{self, Record};
use super::batch::ledger::Ledger;
use super::batch::pool::StopRule;
use super::batch::resume_plan::{Plan, plan};
use super::core::{Core, Parts};
use super::endpoints::{EndpointSampling, Endpoints};
use super::events::EventHub;
use super::metrics::step_log::{self, StepLog};
use super::model_thread::{self, ModelThread, Worker};
use super::ranks::FirstRank;
use super::recorder::Recorder;
use super::sampling_load;
use super::sampling_worker::SamplingWorker;
use super::server::{App, End, router};
use super::session::registry::Sessions;
use super::session::{ChatBackend, ChatSettings, Script};
use super::storage::checkpoint::{Checkpoint, CheckpointStore};
use super::storage::durable;
use super::storage::lock::{self, DirectoryLock};
use super::worker::{ModelInfo, ModelWorker};
use crate::collective::Collective;
use crate::config::from_json;
use crate::config::schema::Ajet;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::protocol::engine::{CONTRACT_VERSION, EnginePhase, Hello};
use crate::protocol::run_files::EPISODES_FILE;
use crate::protocol::swarm::UPDATES_DONE;

/// Time for pending answers when the engine ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of damaged journal lines named in a message.
const NAMED_LINES: usize = 3;

/// Paths of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Unix socket to serve.
    pub socket: PathBuf,
    /// Complete configuration as YAML.
    pub config: PathBuf,
    /// Directory of checkpoints, journal and metrics.
    pub experiment_dir: PathBuf,
    /// What the engine does.
    pub purpose: Purpose,
}

/// Purpose of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Samples and trains.
    Training,
    /// Only samples: it loads no trainer, and records no episode.
    Sampling {
        /// Directory of a LoRA adapter on the configured model.
        adapter: Option<PathBuf>,
    },
}

/// Reason why an engine ended, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(String);

impl EngineError {
    fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Serves the engine contract until `POST /shutdown`, or until `abandoned` completes because the server is gone. It is the
/// first rank of `collective`; the others [follow](super::ranks::follow) it.
///
/// # Errors
/// Fails if the engine cannot boot or continue; the event stream has reported the reason.
pub async fn run(
    options: Options,
    collective: Arc<dyn Collective>,
    abandoned: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    let config = read_config(&options.config)?;
    let listener = listen(&options.socket)?;
    let (end, mut ends) = mpsc::unbounded_channel();
    let app = Arc::new(App {
        hub: Arc::new(EventHub::default()),
        booting: Hello {
            contract_version: CONTRACT_VERSION,
            model: config.model.path.clone(),
            device: config.engine.device.clone(),
            ..Hello::default()
        },
        booted: OnceLock::new(),
        end,
    });
    let closing = CancellationToken::new();
    let serving = axum::serve(listener, router(app.clone())).with_graceful_shutdown(closing.clone().cancelled_owned());
    let serving = tokio::spawn(serving.into_future());
    tokio::spawn(boot_or_fail(app.clone(), config, options.clone(), collective));

    let why = tokio::select! {
        why = ends.recv() => why.unwrap_or(End::Abandoned), // unreachable: `app` holds a sender
        () = abandoned => End::Abandoned,
    };
    let abandoned = why == End::Abandoned;
    let outcome = conclude(&app, why).await;
    app.hub.close();
    closing.cancel();
    if !abandoned {
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, serving).await; // peers that have not read by now will not
    }
    let _ = std::fs::remove_file(&options.socket); // the server removes the directory
    outcome
}

async fn conclude(app: &App, why: End) -> Result<(), EngineError> {
    match why {
        End::Shutdown => {
            if let Some((core, _)) = app.booted.get() {
                core.finish().await;
            }
            Ok(())
        }
        // A last checkpoint could not be reported any more, and the journal has everything.
        End::Abandoned => Ok(()),
        End::Failed(why) => {
            app.hub.fatal(&why);
            Err(EngineError(why))
        }
    }
}

fn read_config(path: &Path) -> Result<Ajet, EngineError> {
    let wrong = |error: &dyn std::fmt::Display| EngineError(format!("{}: {error}", path.display()));
    let json = read_text(path, DOCUMENT_BYTES).map_err(|error| wrong(&error))?;
    from_json(&json).map_err(|error| wrong(&error))
}

fn listen(socket: &Path) -> Result<UnixListener, EngineError> {
    UnixListener::bind(socket).map_err(|e| EngineError(format!("cannot serve {}: {e}", socket.display())))
}

async fn boot_or_fail(app: Arc<App>, config: Ajet, options: Options, collective: Arc<dyn Collective>) {
    let booted = tokio::spawn(boot(app.clone(), config, options, collective)).await;
    let failed = match booted {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("booting failed: {panic}"),
    };
    let _ = app.end.send(End::Failed(failed)); // the engine is already ending
}

async fn boot(
    app: Arc<App>,
    mut config: Ajet,
    options: Options,
    collective: Arc<dyn Collective>,
) -> Result<(), EngineError> {
    let Options {
        experiment_dir,
        purpose,
        ..
    } = options;
    let hub = app.hub.clone();
    hub.phase(EnginePhase::Booting, 0, Some("looking for a checkpoint".into()));
    let finding = (config.clone(), experiment_dir.clone(), hub.clone());
    let start = tokio::task::spawn_blocking(move || Start::find(&finding.0, &finding.1, &finding.2));
    let start = start.await.map_err(EngineError::new)??;
    let saved_step = start.checkpoint.as_ref().map_or(0, |c| c.manifest.global_step);

    let (build_config, build_hub) = (config.clone(), hub.clone());
    let records = purpose == Purpose::Training;
    let endpoints = Endpoints::of(&config, &experiment_dir, &hub).map_err(EngineError)?;
    let samplers = endpoints.clone();
    let thread = model_thread::spawn(move || {
        let (config, checkpoint) = (&build_config, start.checkpoint.as_ref());
        let (worker, info): (Box<dyn Worker>, ModelInfo) = match purpose {
            Purpose::Training if collective.is_alone() => {
                boxed(ModelWorker::build(collective, config, checkpoint, build_hub)?)
            }
            Purpose::Training => boxed(FirstRank::build(&collective, config, checkpoint, build_hub)?),
            Purpose::Sampling { adapter } => boxed(SamplingWorker::build(config, adapter.as_deref(), &build_hub)?),
        };
        Ok(match samplers {
            Some(endpoints) => (Box::new(EndpointSampling::new(worker, endpoints)), info),
            None => (worker, info),
        })
    });
    let (handle, info) = wait_until_built(thread.map_err(EngineError::new)?, &app).await?;
    limit_context(&mut config, &info, &hub);
    let hello = Hello {
        contract_version: CONTRACT_VERSION,
        ready: true,
        model: config.model.path.clone(),
        device: info.device.clone(),
        parameters: info.parameters,
        trainable_parameters: info.trainable_parameters,
        ..Hello::default()
    };
    hub.info(format!(
        "{} on {}: training {} parameters, {:.2}% of the model's {}",
        hello.model,
        hello.device,
        hello.trainable_parameters,
        100.0 * hello.trainable_parameters as f64 / hello.parameters.max(1) as f64,
        hello.parameters
    ));
    let settings = ChatSettings {
        script: Script::of_model(&config.model.path).map_err(EngineError)?,
        ..ChatSettings::new(&config)
    };
    let text = Arc::new(info.text);
    // The worker has warned of the rest.
    let tool_warnings = text.trial().unwrap_or_default().tool_warnings;
    let recorder = Recorder::start(&experiment_dir, &config.trainer_common, text.clone(), hub.clone());
    let backend = ChatBackend::new(text, Arc::new(handle.clone()), settings).map_err(EngineError)?;
    let tool_hub = hub.clone();
    let backend =
        backend.with_tool_warning(move || tool_warnings.into_iter().for_each(|warning| tool_hub.warn(warning)));
    let core = Core::new(Parts {
        lock: start.lock,
        hub: hub.clone(),
        model: handle,
        backend: Arc::new(backend),
        endpoints,
        sessions: match records {
            true => Sessions::default(),
            false => Sessions::unrecorded(),
        },
        ledger: start.ledger,
        checkpoints: start.checkpoints,
        recorder: recorder.map_err(|error| cannot_record(&experiment_dir, &error))?,
        madness_reward: config.rollout.agent_madness_reward,
        console: config.trainer_common.logs_to_console(),
        save_every: config.trainer_common.save_every(),
        best_by: config.trainer_common.best_by().map(str::to_owned),
        last_step: config.trainer_common.total_training_steps,
        saved_step,
    });
    for episodes in start.plan.updates {
        core.repeat_update(episodes).await.map_err(EngineError::new)?;
    }
    let global_step = core.restore(start.plan.running);
    // Weak, so that the reports do not hold the experiment directory of an engine that has ended.
    let reported = Arc::downgrade(&core);
    tokio::spawn(sampling_load::report(
        move || Some(reported.upgrade()?.load()),
        hub.clone(),
    ));
    let _ = app.booted.set((core, hello)); // only set here
    hub.phase(EnginePhase::Rolling, global_step, start.damage);
    Ok(())
}

fn boxed(built: (impl Worker + 'static, ModelInfo)) -> (Box<dyn Worker>, ModelInfo) {
    (Box::new(built.0), built.1)
}

fn cannot_record(experiment_dir: &Path, error: &std::io::Error) -> EngineError {
    let file = experiment_dir.join(EPISODES_FILE);
    EngineError(format!("cannot write {}: {error}", file.display()))
}

/// Waits until the model thread has built its worker; later failures of it end the engine.
async fn wait_until_built<I>(thread: ModelThread<I>, app: &App) -> Result<(model_thread::ModelHandle, I), EngineError> {
    let ModelThread { handle, built, ended } = thread;
    match built.await {
        Ok(info) => {
            let end = app.end.clone();
            tokio::spawn(async move {
                if let Ok(Err(why)) = ended.await {
                    let _ = end.send(End::Failed(why)); // the engine is already ending
                }
            });
            Ok((handle, info))
        }
        Err(_) => Err(EngineError(match ended.await {
            Ok(Err(why)) => why,
            Ok(Ok(())) | Err(_) => "the model thread ended during the boot".into(),
        })),
    }
}

/// Limits the context length to that of the model.
fn limit_context(config: &mut Ajet, info: &ModelInfo, hub: &EventHub) {
    let (asked, made_for) = (config.max_model_len(), info.max_position_embeddings);
    if asked > made_for {
        hub.info(format!(
            "ajet.rollout.max_model_len reduced from {asked} to {made_for}, the model's maximum context length"
        ));
        config.rollout.max_model_len = Some(made_for);
    }
}

/// Starting point of the training.
struct Start {
    lock: DirectoryLock,
    checkpoint: Option<Checkpoint>,
    checkpoints: CheckpointStore,
    ledger: Ledger,
    plan: Plan,
    /// Message about lost journal lines.
    damage: Option<String>,
}

impl Start {
    /// Finds checkpoint and journal to resume from, and checks that they belong to this job.
    fn find(config: &Ajet, experiment_dir: &Path, hub: &EventHub) -> Result<Self, EngineError> {
        durable::create_dir(experiment_dir).map_err(|e| {
            EngineError(format!(
                "cannot use the experiment directory {}: {e}",
                experiment_dir.display()
            ))
        })?;
        // Before anything is read: an earlier engine may still be writing.
        let lock = DirectoryLock::acquire(experiment_dir, lock::TIMEOUT, |holder| {
            hub.detail(format!(
                "waiting up to {} s for another engine to release {} ({holder})",
                lock::TIMEOUT.as_secs(),
                experiment_dir.display()
            ));
        });
        let lock = lock.map_err(EngineError::new)?;
        let run = RunIdentity::new(config);
        let checkpoints = CheckpointStore::new(experiment_dir, config.trainer_common.keep_last, run.clone());
        let (checkpoint, warnings) = checkpoints.resume_point();
        for warning in warnings {
            hub.warn(warning);
        }
        if let Some(checkpoint) = &checkpoint {
            run.check_resumes(&checkpoint.manifest.run).map_err(EngineError::new)?;
            hub.info(format!("resuming from {}", checkpoint.dir.display()));
            if let Some(cap) = config.trainer_common.total_training_steps
                && checkpoint.manifest.global_step >= cap
            {
                return Err(EngineError(format!(
                    "all {cap} {UPDATES_DONE} already, by {}; hint: raise it, or set another ajet.experiment_name",
                    checkpoint.dir.display()
                )));
            }
        }
        let next_step = checkpoint.as_ref().map_or(1, |c| c.manifest.global_step + 1);
        let (ledger, plan, damage) = Self::read_journal(config, experiment_dir, &run, next_step, hub)?;
        Ok(Self {
            lock,
            damage,
            checkpoint,
            checkpoints,
            ledger,
            plan,
        })
    }

    fn read_journal(
        config: &Ajet,
        experiment_dir: &Path,
        run: &RunIdentity,
        next_step: u64,
        hub: &EventHub,
    ) -> Result<(Ledger, Plan, Option<String>), EngineError> {
        let open = || {
            let logs = step_log::LogOptions::new(&config.trainer_common);
            let logs = StepLog::open(experiment_dir, &logs).map_err(EngineError::new)?;
            Ledger::open(experiment_dir, run, StopRule::new(config), next_step, logs).map_err(EngineError::new)
        };
        let (mut ledger, records) = open()?;
        if let [Record::Begin { run: begun }, rest @ ..] = records.as_slice()
            && begun != run
        {
            match rest {
                [] => ledger.cut_journal(0).map_err(EngineError::new)?, // nothing was trained yet: start over
                rest if next_step == 1 && is_untrained(rest) => {
                    drop(ledger);
                    let aside = Self::set_journal_aside(experiment_dir)?;
                    hub.info(format!(
                        "the episodes of another model, of which nothing was trained, were moved to {}",
                        aside.display()
                    ));
                    return Ok((open()?.0, Plan::default(), None));
                }
                _ => run.check_resumes(begun).map_err(EngineError::new)?,
            }
        }
        let damage = damage(&records, experiment_dir);
        if let Some(damage) = &damage {
            hub.warn(damage);
        }
        match plan(records, next_step) {
            Ok(plan) => Ok((ledger, plan, damage)),
            Err(gap) => {
                drop(ledger);
                let aside = Self::set_journal_aside(experiment_dir)?;
                hub.warn(format!(
                    "{gap}; its episodes are not used, and were moved to {}",
                    aside.display()
                ));
                Ok((open()?.0, Plan::default(), damage))
            }
        }
    }

    fn set_journal_aside(experiment_dir: &Path) -> Result<PathBuf, EngineError> {
        journal::set_aside(&experiment_dir.join(journal::FILE_NAME)).map_err(EngineError::new)
    }
}

/// Whether these records have episodes only. A line that was lost may have been an update.
fn is_untrained(records: &[Record]) -> bool {
    records.iter().all(|record| matches!(record, Record::Episode(_)))
}

/// Returns a message about lost journal lines.
fn damage(records: &[Record], experiment_dir: &Path) -> Option<String> {
    let lost = records.iter().filter_map(|record| match record {
        Record::Lost { line, why } => Some(format!("line {line}: {why}")),
        _ => None,
    });
    let lost: Vec<String> = lost.collect();
    let kept_in = experiment_dir.join(journal::DAMAGED_FILE_NAME);
    (!lost.is_empty()).then(|| {
        format!(
            "skipped {} damaged journal {}, saved to {} ({}); all other episodes are used",
            lost.len(),
            if lost.len() == 1 { "line" } else { "lines" },
            kept_in.display(),
            lost[..lost.len().min(NAMED_LINES)].join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: episodes of an evaluation with another model kept the experiment from starting with the right one.
    #[test]
    fn only_episodes_are_no_training() {
        let episode = || Record::Episode(Box::default());
        assert!(is_untrained(&[episode(), episode()]));
        for other in [
            Record::Update { global_step: 1 },
            Record::Lost {
                line: 3,
                why: "not JSON".into(),
            },
        ] {
            assert!(!is_untrained(&[episode(), other]));
        }
    }
}
