//! The `roll:` part of a job: what the client does.

use std::path::PathBuf;
use std::sync::LazyLock;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SYNC_VARIABLE, URL_VARIABLE};
use crate::client::ServerUrl;
use crate::config::shape::Schema;
use crate::config::{self, Node, Problem};
use crate::protocol::swarm::DEFAULT_PORT;
use crate::roll::agents::Agent;
use crate::roll::rewards::{Reward, Scorer, SetupError};
use crate::roll::swarms::{self, Swarm};
use crate::roll::template;

/// `roll`: what the client does.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Roll {
    /// The server. Default: `AJET_SWARM_URL` of the environment, or else this machine's.
    #[serde(default = "default_url")]
    pub swarm_url: String,
    /// Start a server where the URL is local and nothing listens there. A build of the clients alone cannot.
    #[serde(default = "yes")]
    pub auto_start_swarm_server: bool,
    /// Stop an engine that runs already.
    #[serde(default)]
    pub force_restart: bool,
    /// Checkout of ajet-swarm whose code the engine is built from; the server must allow it. `SYNC_CODE=1` in the
    /// environment names the current directory and stops an engine that runs already, `SYNC_CODE=0` sends nothing.
    #[serde(default)]
    pub sync_code: Option<PathBuf>,
    /// Times that every task is run; 1 unless `steps` is given, which it excludes.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub epochs: Option<u64>,
    /// Weight updates after which the job is done.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub steps: Option<u64>,
    /// Maximum number of episodes at once.
    #[serde(default = "default_parallel")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_parallel: usize,
    /// Seconds without an LLM call after which the server discards an episode.
    #[serde(default = "default_discard")]
    #[schemars(range(min = 0.001, max = 31_536_000.0))]
    pub discard_episode_timeout: f64,
    /// Number of times that a failed episode is tried again.
    #[serde(default = "default_retries")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub retries: u32,
    /// Share of the last 64 episodes that may fail; above it the run stops with the reasons. Episodes that the server lost do
    /// not count; 1 is no limit.
    #[serde(default = "default_failure_rate")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_failure_rate: f64,
    /// Seed of the order of tasks.
    #[serde(default)]
    #[schemars(range(min = 0, max = i64::MAX))]
    pub seed: u64,
    /// Share of a batch, for a server that several jobs use.
    #[serde(default)]
    pub throttle: Option<Throttle>,
    /// Tasks begun beyond the batch, so that slow ones do not hold it up.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub spare_tasks: u64,
    /// Updates in a row without anything to learn from (equal rewards, no weights changed) after which the run fails; 0
    /// for no limit.
    #[serde(default = "default_idle")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub max_idle_updates: u64,
    /// Maximum seconds for which a server that cannot be reached any more is waited for.
    #[serde(default = "default_wait")]
    #[schemars(range(min = 0.0, max = 31_536_000.0))]
    pub wait_for_server: f64,
    /// What happens to episodes that still run when the batch is full: spare ones, or where others filled it.
    #[serde(default)]
    pub stragglers: Stragglers,
    /// Evaluation, before the first update and after the last one too. Default: none.
    #[serde(default)]
    pub eval: Option<Eval>,
    /// What turns a task into an answer, such as `{type: chat}`.
    pub agent: Agent,
    /// What an answer is worth. Default: `from_agent`, where the agent can give a reward.
    #[serde(default)]
    reward: Option<Reward>,
    /// Several trained models by name, in place of `swarm_url`: an episode is claimed on the server of each and ends on all
    /// or on none. The first one leads: its steps are counted, and evaluations are recorded as its own.
    #[serde(default)]
    pub swarms: IndexMap<String, Swarm>,
}

fn default_url() -> String {
    format!("http://localhost:{DEFAULT_PORT}")
}

fn yes() -> bool {
    true
}

fn default_parallel() -> usize {
    64
}

fn default_discard() -> f64 {
    240.0
}

fn default_idle() -> u64 {
    20
}

fn default_wait() -> f64 {
    600.0
}

fn default_failure_rate() -> f64 {
    0.5
}

fn default_retries() -> u32 {
    3
}

/// When a job is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Every task has been run this often.
    Epochs(u64),
    /// The engine has done this many weight updates.
    Steps(u64),
}

/// What becomes of episodes that still run when the batch is full: spare ones, or where others filled it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stragglers {
    /// They run to their end and are trained on with the batch, which waits for them.
    #[default]
    Finish,
    /// They are aborted, and their task is run again as a whole in the next batch.
    CarryOver,
    /// They are aborted, and their task is not run again in this epoch.
    GiveUp,
}

/// `roll.throttle`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// Share of a batch that this job may fill.
    #[schemars(range(min = 0.001, max = 100.0))]
    pub ratio: f64,
}

/// `roll.eval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Eval {
    /// Updates between evaluations; with 0 there are none but the first and the last one.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub every: u64,
    /// Maximum number of tasks. Default: all validation tasks.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub tasks: Option<usize>,
    /// Episodes of each task.
    #[schemars(range(min = 1, max = 100_000))]
    pub repeat: usize,
}

impl Default for Eval {
    fn default() -> Self {
        Self {
            every: 0,
            tasks: None,
            repeat: 1,
        }
    }
}

impl Roll {
    /// Episodes that run at once: `max_parallel`, or fewer where the agent allows no more.
    pub fn parallel(&self) -> usize {
        self.max_parallel.min(self.agent.most_parallel().unwrap_or(usize::MAX))
    }

    /// Applies the value of [`SYNC_VARIABLE`].
    pub(super) fn set_sync_code(&mut self, variable: Option<&str>) {
        match variable {
            Some("1") => {
                self.sync_code.get_or_insert_with(|| ".".into());
                self.force_restart = true;
            }
            Some("0") => self.sync_code = None,
            _ => {}
        }
    }

    /// Reads the `roll:` part of a job.
    pub(super) fn read(node: &Node) -> Result<Self, Vec<Problem>> {
        let mut roll: Self = config::fit(schema(), "roll", node, &[template::FORMAT])?;
        let mut problems = roll.problems();
        problems.extend(swarms::problems(&roll.swarms, node.get("swarms")));
        match node.get("swarm_url").is_none_or(Node::is_null) {
            true => roll.swarm_url = std::env::var(URL_VARIABLE).unwrap_or(roll.swarm_url),
            false if roll.swarms.is_empty() => {}
            false => {
                let message = "`swarm_url` and `swarms` exclude each other; each model of `swarms` has its own";
                problems.push(Problem::new("roll", message));
            }
        }
        roll.set_sync_code(std::env::var(SYNC_VARIABLE).ok().as_deref());
        match problems {
            problems if problems.is_empty() => Ok(roll),
            problems => Err(problems),
        }
    }

    /// Problems that the schema cannot express.
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.agent.problems();
        if self.epochs.is_some() && self.steps.is_some() {
            problems.push(Problem::new("roll", "`epochs` and `steps` exclude each other"));
        }
        let each_has_its_own = !self.swarms.is_empty() && self.swarms.values().all(|swarm| swarm.reward.is_some());
        if self.reward.is_none() && !self.agent.brings_reward() && !each_has_its_own {
            let message = "is missing; it says what an answer is worth, such as {type: number_match}";
            problems.push(Problem::new("roll.reward", message));
        }
        problems.extend(self.reward().problems("roll.reward"));
        problems.extend(self.agent.problems_with_models(&self.model_names()));
        problems
    }

    /// Names of the trained models; none where there is one only.
    pub fn model_names(&self) -> Vec<&str> {
        self.swarms.keys().map(String::as_str).collect()
    }

    /// Whether `roll` starts a server for a URL at which nothing listens. A build of the clients alone has none.
    pub fn starts_server(&self, url: &ServerUrl) -> bool {
        cfg!(feature = "server") && self.auto_start_swarm_server && url.is_local()
    }

    /// When the job is done.
    pub fn length(&self) -> Length {
        match self.steps {
            Some(steps) => Length::Steps(steps),
            None => Length::Epochs(self.epochs.unwrap_or(1)),
        }
    }

    /// Share of a batch that this job may fill, where it is limited.
    pub fn throttle_ratio(&self) -> Option<f64> {
        self.throttle.map(|throttle| throttle.ratio)
    }

    /// The reward, ready to score.
    ///
    /// # Errors
    /// A judge's key is not in the environment.
    pub fn scorer(&self) -> Result<Scorer, SetupError> {
        self.reward().scorer("roll.reward")
    }

    /// The rewards that are used, each with its key: the shared one unless every model has its own, and the models' own.
    pub fn rewards(&self) -> impl Iterator<Item = (String, &Reward)> {
        let is_shared = self.swarms.is_empty() || self.swarms.values().any(|swarm| swarm.reward.is_none());
        let shared = is_shared.then(|| ("roll.reward".to_owned(), self.reward()));
        let own = self.swarms.iter().filter_map(|(name, swarm)| {
            let reward = swarm.reward.as_ref()?;
            Some((format!("roll.swarms.{name}.reward"), reward))
        });
        shared.into_iter().chain(own)
    }

    /// What an answer is worth.
    pub fn reward(&self) -> &Reward {
        self.reward.as_ref().unwrap_or(&Reward::FromAgent)
    }
}

/// The shape of the `roll:` part, made once.
pub fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::of::<Roll>);
    &SCHEMA
}
