//! A run from its start to its end: server, engine, evaluation, training, evaluation, checkpoint.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::try_join_all;

use super::batch_rule::Rule;
use super::check;
use super::checkpoints::Checkpoints;
use super::episode::{Episodes, Player};
use super::error::RollError;
use super::failures::Failures;
use super::fleet::{Fleet, Member};
use super::interrupt::Interrupt;
use super::job::Job;
use super::own_server::OwnServer;
use super::progress::Progress;
use super::record;
use super::report::{End, Outcome};
use super::run::{Options, Run, has_others};
use super::tasks::{self, TaskSets};
use super::training::Training;
use crate::client::{ClientError, Started, SwarmClient, throttle};
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
/// Fails if the job is wrong, server or engine fail, or no episode ever ends.
pub async fn run(mut job: Job, options: Options, interrupt: Interrupt) -> Result<End, RollError> {
    let progress = Arc::new(Progress::new(options.json, interrupt.clone()).with_every_step(options.every_step));
    let tasks = read_tasks(&job, &progress).await?;
    if tasks.validation.is_empty() && options.eval_only {
        return Err(RollError::NoValidation);
    }
    let trains = !options.abort && !options.eval_only;
    refuse(check::problems(&job, &tasks, check::TASKS_BEFORE_A_RUN, trains))?;
    // A judge without a key is reported before a server is started.
    Player::new(&job, None)?;
    if options.fresh {
        job.begin_anew();
    }
    let fleet = Arc::new(Fleet::new(&job)?);
    let servers = servers_for(&job, &fleet, &options.program, &progress).await?;
    let mut run = Run {
        end: End::new(),
        job,
        options,
        tasks,
        fleet,
        progress,
        interrupt,
        engine_is_done: false,
        others_seen: None,
        own_servers: servers.iter().map(|(place, _)| *place).collect(),
        uses_engine: false,
    };
    let ended = run.whole().await;
    let _ = tokio::time::timeout(SETTLE, run.fleet.settle()).await;
    if ended.is_err() {
        run.stop_after_error().await;
    }
    for (place, server) in servers {
        let swarm = &run.fleet.members()[place].swarm;
        match () {
            () if run.options.keep_engine && ended.is_ok() => run.leave(swarm, server, "as asked").await,
            () if run.is_shared(swarm).await => run.leave(swarm, server, "since other clients use it").await,
            () => server.stop().await,
        }
    }
    ended?;
    run.end.dropped = run.progress.dropped();
    run.progress.end(&run.end);
    Ok(run.end)
}

/// Reads the tasks of a job; anything unusual about them is logged.
///
/// # Errors
/// Fails if they cannot be read.
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

/// Servers of our own, where the job wants them and none are there, by the places of their members.
pub(super) async fn servers_for(
    job: &Job,
    fleet: &Fleet,
    program: &Path,
    progress: &Progress,
) -> Result<Vec<(usize, OwnServer)>, RollError> {
    // This machine's user is the one whose code it is.
    let flags: &[&str] = match job.roll.sync_code {
        Some(_) => &["--allow-code-sync"],
        None => &[],
    };
    let mut servers = vec![];
    for (place, Member { swarm, .. }) in fleet.members().iter().enumerate() {
        let Err(absent) = swarm.health().await else {
            continue;
        };
        let unreachable = matches!(absent, ClientError::Unreachable { .. });
        if !(unreachable && job.roll.starts_server(swarm.url())) {
            return Err(absent.into());
        }
        let server = OwnServer::start(program, swarm.url(), flags).await?;
        progress.note(&format!(
            "started a swarm server at {}; its log is {}",
            swarm.url(),
            server.log().display()
        ));
        servers.push((place, server));
    }
    Ok(servers)
}

impl Run {
    async fn whole(&mut self) -> Result<(), RollError> {
        self.check_what_is_joined().await?;
        self.sync_code().await?;
        let brought_up = self.bring_all_up().await;
        if let Err(error) = &brought_up {
            self.show_build(error).await;
        }
        let Some(started) = brought_up? else {
            return self.interrupted();
        };
        self.uses_engine = true;
        let pools = self.pools().await?;
        let models = self.model_names(&pools);
        self.progress.start(
            &self.job.path.display().to_string(),
            &self.fleet.urls(),
            &models.join(", "),
        );
        if started.contains(&Started::AlreadyUp) {
            self.progress.note(
                "the engine was up already and continues with its own configuration; `roll.force_restart: true` starts it with the job's",
            );
        }
        self.keep_job().await?;
        let batch = self.batch(&pools, &started)?;
        let step = self.fleet.line_up().await?;
        let episodes = Arc::new(self.episodes(models, batch.1)?);
        if self.job.roll.eval.is_some() || self.options.eval_only {
            self.end.eval_before = self.evaluate(&episodes).await?;
        }
        if !self.options.eval_only && !self.interrupt.happened() {
            let method = self.fleet.lead().collection_method(&pools[0]);
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
        self.wind_up(&started).await
    }

    /// Brings all engines to ROLLING; `None` where Ctrl-C came first.
    async fn bring_all_up(&self) -> Result<Option<Vec<Started>>, RollError> {
        let force_restart = self.job.roll.force_restart;
        let members = self.fleet.members().iter();
        let started = try_join_all(members.map(|member| self.bring_up(member, force_restart))).await?;
        Ok(started.into_iter().collect())
    }

    /// The present batch of each server.
    async fn pools(&self) -> Result<Vec<PoolInformation>, RollError> {
        let members = self.fleet.members().iter();
        Ok(try_join_all(members.map(|member| member.swarm.pool_information())).await?)
    }

    /// Returns the names of the models for requests.
    fn model_names(&self, pools: &[PoolInformation]) -> Vec<String> {
        let members = self.fleet.members().iter().zip(pools);
        let name = |(member, pool): (&Member, &PoolInformation)| {
            let told = pool.training_model_path.clone();
            told.unwrap_or_else(|| member.model_path.clone())
        };
        members.map(name).collect()
    }

    /// Keeps the job as it runs with the experiments, where those are on this machine.
    async fn keep_job(&self) -> Result<(), RollError> {
        for Member { swarm, .. } in self.fleet.members() {
            // A server behind a tunnel has no directory here.
            if swarm.url().is_local()
                && let Some(dir) = swarm.experiment_dir().await?
                && Path::new(&dir).is_dir()
                && let Ok(job) = std::fs::read_to_string(&self.job.path)
            {
                self.keep_job_in(Path::new(&dir), &job);
            }
        }
        Ok(())
    }

    fn keep_job_in(&self, dir: &Path, job: &str) {
        let differing = record::latest(dir).map_or_else(Vec::new, |before| record::differences(job, &before));
        if !differing.is_empty() {
            self.progress.note(&format!(
                "warning: the last job of this experiment had other values of {}; it is kept in {}/jobs",
                differing.join(", "),
                dir.display()
            ));
        }
        if let Err(error) = record::keep(job, dir, SystemTime::now()) {
            let dir = dir.display();
            self.progress
                .note(&format!("warning: cannot keep the job in {dir}: {error}"));
        }
    }

    fn interrupted(&mut self) -> Result<(), RollError> {
        self.end.outcome = Outcome::Interrupted;
        Ok(())
    }

    /// Tasks of a batch and episodes of a task, the same for all servers. Where the job's own configuration was started
    /// it says so; a Python server reports the last run's numbers until the first update.
    fn batch(&self, pools: &[PoolInformation], started: &[Started]) -> Result<(u64, u64), RollError> {
        let ajet = &self.job.ajet;
        let batch_of = |(pool, started): (&PoolInformation, &Started)| {
            let told = |told: u64, own: usize| match started {
                Started::AlreadyUp if told > 0 => told,
                Started::AlreadyUp | Started::Fresh => own as u64,
            };
            (
                told(pool.completed_task_target, ajet.data.train_batch_size),
                told(pool.task_expected_num_repeat, ajet.rollout.num_repeat),
            )
        };
        let batches: Vec<_> = pools.iter().zip(started).map(batch_of).collect();
        match batches.iter().position(|batch| *batch != batches[0]) {
            None => Ok(batches[0]),
            Some(place) => Err(RollError::UnequalBatches {
                first: self.fleet.lead().url().to_string(),
                first_batch: batches[0],
                other: self.fleet.members()[place].swarm.url().to_string(),
                other_batch: batches[place],
            }),
        }
    }

    fn episodes(&self, model_names: Vec<String>, repeats: u64) -> Result<Episodes, RollError> {
        let roll = &self.job.roll;
        Ok(Episodes {
            fleet: self.fleet.clone(),
            player: Player::new(&self.job, Some(repeats))?,
            model_names,
            discard_episode_timeout: roll.discard_episode_timeout,
            abort: self.options.abort,
            progress: self.progress.clone(),
            failures: Failures::new(roll.max_failure_rate, roll.parallel()),
        })
    }

    /// Stops the engines where that is ours to do, and finds the checkpoints.
    async fn wind_up(&mut self, started: &[Started]) -> Result<(), RollError> {
        let _ = tokio::time::timeout(SETTLE, self.fleet.settle()).await;
        let fleet = self.fleet.clone();
        for (Member { swarm, .. }, started) in fleet.members().iter().zip(started) {
            if self.engine_is_done && swarm.status().await?.engine_status == EngineStatus::Offline {
                continue;
            }
            let ours = *started == Started::Fresh && !self.is_shared(swarm).await;
            if ours && !self.options.keep_engine || self.options.stop_engine_at_end {
                swarm.stop_engine().await?;
            } else {
                self.progress
                    .note("the engine goes on running; `--stop-engine-at-end` stops it");
            }
        }
        self.find_checkpoints().await
    }

    /// Stops the engines that a failed run has used, with `--stop-engine-at-end`.
    async fn stop_after_error(&self) {
        if !self.uses_engine || !self.options.stop_engine_at_end {
            return;
        }
        for Member { swarm, .. } in self.fleet.members() {
            if let Err(error) = swarm.stop_engine().await {
                self.progress.note(&format!("warning: cannot stop the engine: {error}"));
            }
        }
    }

    /// Whether other clients use an engine, or did so a moment ago. A server that does not answer has no clients.
    async fn is_shared(&self, swarm: &SwarmClient) -> bool {
        if self.others_seen.is_some_and(|seen| seen.elapsed() < COMPANY) {
            return true;
        }
        tokio::time::timeout(SETTLE, shows_others(swarm)).await.unwrap_or(false)
    }

    /// Leaves a server that was started for this run.
    async fn leave(&self, swarm: &SwarmClient, server: OwnServer, why: &str) {
        let process = server.leave().await;
        self.progress.note(&format!(
            "the swarm server at {} keeps running, {why}{}",
            swarm.url(),
            process.map_or_else(String::new, |process| format!("\nhint: `kill {process}` ends it"))
        ));
    }

    /// Finds the newest and the best checkpoint of each model. On another machine, their folder is as near as can be
    /// told.
    async fn find_checkpoints(&mut self) -> Result<(), RollError> {
        let fleet = self.fleet.clone();
        for (place, Member { name, swarm, .. }) in fleet.members().iter().enumerate() {
            let Some(dir) = swarm.experiment_dir().await? else {
                continue;
            };
            let checkpoints = Path::new(&dir).join("checkpoints");
            let found = match swarm.url().is_local() {
                true => Checkpoints::read(&checkpoints),
                false => Checkpoints::somewhere_in(&checkpoints),
            };
            match place {
                0 => (self.end.checkpoint, self.end.best) = (found.newest, found.best),
                _ => self
                    .end
                    .other_checkpoints
                    .extend(found.newest.map(|newest| (name.clone(), newest))),
            }
        }
        Ok(())
    }
}

/// Looks at the batch until it shows another client, or none for a moment. During an update a server knows of no
/// clients, and right after it of those only that have begun an episode.
async fn shows_others(swarm: &SwarmClient) -> bool {
    let mut rolling_since = None;
    loop {
        let Ok(pool) = swarm.pool_information().await else {
            return false;
        };
        if has_others(&pool, swarm.client_uuid()) {
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
