//! A run from its start to its end: server, engine, evaluation, training, evaluation, checkpoint.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::batch_rule::Rule;
use super::check;
use super::episode::{Episodes, Player};
use super::error::RollError;
use super::failures::Failures;
use super::groups::Groups;
use super::interrupt::Interrupt;
use super::job::Job;
use super::progress::Progress;
use super::record;
use super::report::{End, Outcome};
use super::run::{Options, Run, has_others};
use super::server::OwnServer;
use super::tasks::{self, TaskSets};
use super::training::Training;
use crate::client::{ClientError, Started, SwarmClient, throttle};
use crate::config::experiment::NAME_FROM_TIME;
use crate::protocol::swarm::{EngineStatus, PoolInformation};

/// How long the aborts of given-up episodes may take.
const SETTLE: Duration = Duration::from_secs(3);

/// How long after an update other clients have begun episodes.
const MOMENT: Duration = Duration::from_millis(500);

/// How long a client that was seen counts as one that uses the engine. Servers forget their clients at each update.
const COMPANY: Duration = Duration::from_secs(60);

/// Runs a job.
///
/// # Errors
/// The job is wrong, server or engine fail, or no episode ever comes to an end.
pub async fn run(job: Job, options: Options, interrupt: Interrupt) -> Result<End, RollError> {
    let progress = Arc::new(Progress::new(options.json, interrupt.clone()));
    let tasks = read_tasks(&job, &progress).await?;
    if tasks.validation.is_empty() && options.eval_only {
        return Err(RollError::NoValidation);
    }
    let trains = !options.abort && !options.eval_only;
    refuse(check::problems(&job, &tasks, check::TASKS_BEFORE_A_RUN, trains))?;
    let swarm = SwarmClient::new(&job.roll.swarm_url)?;
    let server = server_for(&job, &swarm, &options.program, &progress).await?;
    let mut run = Run {
        end: End::new(),
        job,
        options,
        tasks,
        swarm,
        progress,
        interrupt,
        engine_is_done: false,
        others_seen: None,
        own_server: server.is_some(),
        uses_engine: false,
    };
    let ended = run.whole().await;
    let _ = tokio::time::timeout(SETTLE, run.swarm.settle()).await;
    if ended.is_err() {
        run.stop_after_error().await;
    }
    match server {
        Some(server) if run.options.keep_engine && ended.is_ok() => run.leave(server, "as asked").await,
        Some(server) if run.is_shared().await => run.leave(server, "since other clients use it").await,
        Some(server) => server.stop().await,
        None => {}
    }
    ended?;
    run.end.dropped = run.progress.dropped();
    run.progress.end(&run.end);
    Ok(run.end)
}

/// The tasks of a job; what is odd about them is told.
///
/// # Errors
/// They cannot be read.
pub async fn read_tasks(job: &Job, progress: &Progress) -> Result<TaskSets, RollError> {
    let tasks = tasks::read(&job.ajet.task_reader).await?;
    for warning in job.warnings.iter().chain(&tasks.warnings) {
        progress.note(&format!("warning: {warning}"));
    }
    Ok(tasks)
}

/// Fails where a job has problems.
pub(super) fn refuse(problems: Vec<String>) -> Result<(), RollError> {
    match problems.is_empty() {
        true => Ok(()),
        false => Err(RollError::Unfit(problems)),
    }
}

/// A server of our own, where the job wants one and none is there.
pub(super) async fn server_for(
    job: &Job,
    swarm: &SwarmClient,
    program: &Path,
    progress: &Progress,
) -> Result<Option<OwnServer>, RollError> {
    let Err(absent) = swarm.health().await else {
        return Ok(None);
    };
    let unreachable = matches!(absent, ClientError::Unreachable { .. });
    if !(unreachable && job.roll.auto_start_swarm_server && swarm.url().is_local()) {
        return Err(absent.into());
    }
    let server = OwnServer::start(program, swarm.url()).await?;
    progress.note(&format!(
        "started a swarm server at {}; its log is {}",
        swarm.url(),
        server.log().display()
    ));
    Ok(Some(server))
}

impl Run {
    async fn whole(&mut self) -> Result<(), RollError> {
        if self.options.fresh {
            self.job.ajet.experiment_name = NAME_FROM_TIME.into();
        }
        self.check_what_is_joined().await?;
        let Some(started) = self.bring_up(self.job.roll.force_restart).await? else {
            return self.interrupted();
        };
        self.uses_engine = true;
        let pool = self.swarm.pool_information().await?;
        let model = pool
            .training_model_path
            .clone()
            .unwrap_or_else(|| self.job.ajet.model.path.clone());
        self.progress.start(
            &self.job.path.display().to_string(),
            &self.swarm.url().to_string(),
            &model,
        );
        if started == Started::AlreadyUp {
            self.progress.note(
                "the engine was up already and continues with its own configuration; `roll.force_restart: true` starts it with the job's",
            );
        }
        self.keep_job().await?;
        let batch = self.batch(&pool, started);
        let episodes = Arc::new(self.episodes(model, batch.1)?);
        if self.job.roll.eval.is_some() || self.options.eval_only {
            self.end.eval_before = self.evaluate(&episodes).await?;
        }
        if !self.options.eval_only && !self.interrupt.happened() {
            let step = self.swarm.status().await?.global_step;
            let method = self.swarm.collection_method(&pool);
            // The engine may be another's, with other batches than the job's own.
            let unfit = check::batch_problem(
                batch.0,
                Rule::of_method(&method),
                self.job.roll.length(),
                &self.tasks.training,
            );
            refuse(unfit.filter(|_| !self.options.abort).into_iter().collect())?;
            if self.job.roll.throttle.is_some() && !method.is_empty() && method != throttle::METHOD {
                return Err(ClientError::Throttle(method).into());
            }
            Training::new(self, episodes.clone(), batch, step, &method)
                .run()
                .await?;
        }
        if self.interrupt.happened() {
            return self.interrupted();
        }
        let evaluates_after = self.job.roll.eval.is_some() && !self.options.eval_only && !self.engine_is_done;
        if evaluates_after && self.end.eval_after.is_none() {
            self.end.eval_after = self.evaluate(&episodes).await?;
        }
        if self.interrupt.happened() {
            return self.interrupted();
        }
        self.wind_up(started).await
    }

    /// Keeps the job as it runs with the experiment, where that is on this machine.
    async fn keep_job(&self) -> Result<(), RollError> {
        if !self.swarm.url().is_local() {
            return Ok(());
        }
        let Some(dir) = self.swarm.experiment_dir().await? else {
            return Ok(());
        };
        // A server behind a tunnel has no directory here.
        let dir = Path::new(&dir).to_path_buf();
        let Some(job) = dir
            .is_dir()
            .then(|| std::fs::read_to_string(&self.job.path).ok())
            .flatten()
        else {
            return Ok(());
        };
        let differing = record::latest(&dir).map_or_else(Vec::new, |before| record::differences(&job, &before));
        if !differing.is_empty() {
            self.progress.note(&format!(
                "warning: the last job of this experiment had other values of {}; it is kept in {}/jobs",
                differing.join(", "),
                dir.display()
            ));
        }
        if let Err(error) = record::keep(&job, &dir, SystemTime::now()) {
            let dir = dir.display();
            self.progress
                .note(&format!("warning: cannot keep the job in {dir}: {error}"));
        }
        Ok(())
    }

    fn interrupted(&mut self) -> Result<(), RollError> {
        self.end.outcome = Outcome::Interrupted;
        Ok(())
    }

    /// Tasks of a batch and episodes of a task. Where the job's own configuration was started it says so; a Python server
    /// tells the last run's numbers until the first update.
    fn batch(&self, pool: &PoolInformation, started: Started) -> (u64, u64) {
        let told = |told: u64, own: usize| match started {
            Started::AlreadyUp if told > 0 => told,
            Started::AlreadyUp | Started::Fresh => own as u64,
        };
        let ajet = &self.job.ajet;
        (
            told(pool.completed_task_target, ajet.data.train_batch_size),
            told(pool.task_expected_num_repeat, ajet.rollout.num_repeat),
        )
    }

    fn episodes(&self, model_name: String, repeats: u64) -> Result<Episodes, RollError> {
        let roll = &self.job.roll;
        let player = Player {
            agent: roll.agent.clone(),
            scorer: roll.scorer()?,
        };
        let groups = player
            .scorer
            .compares()
            .then(|| Groups::new(player.scorer.clone(), usize::try_from(repeats).unwrap_or(usize::MAX)));
        let failures = Failures::new(roll.max_failure_rate, roll.parallel());
        let mut episodes = Episodes::new(self.swarm.clone(), player, self.progress.clone(), failures);
        episodes.groups = groups;
        episodes.model_name = model_name;
        episodes.discard_episode_timeout = roll.discard_episode_timeout;
        episodes.abort = self.options.abort;
        Ok(episodes)
    }

    /// Stops the engine where that is ours to do, and finds the checkpoint.
    async fn wind_up(&mut self, started: Started) -> Result<(), RollError> {
        let _ = tokio::time::timeout(SETTLE, self.swarm.settle()).await;
        let ours = started == Started::Fresh && !self.engine_is_done && !self.is_shared().await;
        if ours && !self.options.keep_engine || self.options.stop_engine_at_end {
            self.swarm.stop_engine().await?;
        } else if !self.engine_is_done {
            self.progress
                .note("the engine goes on running; `--stop-engine-at-end` stops it");
        }
        self.end.checkpoint = self.checkpoint().await?;
        Ok(())
    }

    /// Stops the engine that a failed run has used, with `--stop-engine-at-end`.
    async fn stop_after_error(&self) {
        if self.uses_engine
            && self.options.stop_engine_at_end
            && let Err(error) = self.swarm.stop_engine().await
        {
            self.progress.note(&format!("warning: cannot stop the engine: {error}"));
        }
    }

    /// Whether other clients use the engine, or did so a moment ago. A server that does not answer serves nobody.
    async fn is_shared(&self) -> bool {
        if self.others_seen.is_some_and(|seen| seen.elapsed() < COMPANY) {
            return true;
        }
        tokio::time::timeout(SETTLE, self.shows_others()).await.unwrap_or(false)
    }

    /// Looks at the batch until it shows another client, or none for a moment. During an update a server knows of no
    /// clients, and right after it of those only that have begun an episode.
    async fn shows_others(&self) -> bool {
        let mut rolling_since = None;
        loop {
            let Ok(pool) = self.swarm.pool_information().await else {
                return false;
            };
            if has_others(&pool, self.swarm.client_uuid()) {
                return true;
            }
            rolling_since = match pool.engine_status {
                Some(EngineStatus::Offline) => return false,
                Some(EngineStatus::Rolling) => rolling_since.or_else(|| Some(Instant::now())),
                _ => None,
            };
            if rolling_since.is_some_and(|since| since.elapsed() >= MOMENT) {
                return false;
            }
            tokio::time::sleep(MOMENT / 10).await;
        }
    }

    /// Leaves a server that was started for this run.
    async fn leave(&self, server: OwnServer, why: &str) {
        let process = server.leave().await;
        self.progress.note(&format!(
            "the swarm server at {} keeps running, {why}{}",
            self.swarm.url(),
            process.map_or_else(String::new, |process| format!("\nhint: `kill {process}` ends it"))
        ));
    }

    /// The newest checkpoint. On another machine, its folder is as near as can be told.
    async fn checkpoint(&self) -> Result<Option<String>, RollError> {
        let Some(dir) = self.swarm.experiment_dir().await? else {
            return Ok(None);
        };
        let checkpoints = Path::new(&dir).join("checkpoints");
        if !self.swarm.url().is_local() {
            return Ok(Some(checkpoints.display().to_string()));
        }
        // The marker holds the name of a folder beside it; before the first checkpoint there is none.
        let latest = std::fs::read_to_string(checkpoints.join("latest"));
        Ok(latest
            .ok()
            .map(|name| checkpoints.join(name.trim()).display().to_string()))
    }
}
