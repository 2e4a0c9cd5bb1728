//! A job file: the `ajet:` part, which the server gets, and the `roll:` part, which says what the client does.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agents::Agent;
use super::rewards::{Reward, Scorer, SetupError};
use super::swarms::{self, Swarm, TrainedModel};
use super::template;
use crate::config::experiment::NAME_FROM_TIME;
use crate::config::shape::Schema;
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};
use crate::config::{self, Loaded, Node, Problem, Strictness, schema::Ajet};
use crate::protocol::swarm::DEFAULT_PORT;

/// `1` sends training code, `0` sends none, whatever the job says.
const SYNC_VARIABLE: &str = "SYNC_CODE";

/// Where the server's URL is taken from if the job has none.
pub const URL_VARIABLE: &str = "AJET_SWARM_URL";

/// A job, read and checked.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its file.
    pub path: PathBuf,
    /// The training configuration; of several models, the first one's.
    pub ajet: Ajet,
    /// What the client does.
    pub roll: Roll,
    /// Sentences for the log.
    pub warnings: Vec<String>,
}

/// `roll`: what the client does.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Roll {
    /// The server. Default: `AJET_SWARM_URL` of the environment, or else this machine's.
    #[serde(default = "default_url")]
    pub swarm_url: String,
    /// Several trained models by name, in place of `swarm_url`: an episode is claimed on the server of each and ends on all
    /// or on none. The first one leads: its steps are counted, and evaluations are recorded as its own.
    #[serde(default)]
    pub swarms: IndexMap<String, Swarm>,
    /// Start a server where the URL is local and nothing listens there.
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

/// Why a job cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("cannot read the job {}: {reason}\nhint: `ajet-swarm job init` writes one", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// It has no `roll:` part.
    #[error("the job {} has no `roll:` part\nhint: it says which agent and which reward to run; see `ajet-swarm job init`", .0.display())]
    NoRoll(PathBuf),
    /// A `--set` that is no setting.
    #[error("--set {given:?}: {reason}\nhint: write the key's whole path, such as --set ajet.data.train_batch_size=8")]
    Setting {
        /// As given.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something in it is wrong.
    #[error("the job {} is not valid:\n{reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Every problem.
        reason: config::Error,
    },
}

impl Job {
    /// Reads a job file, with `settings` of the form `KEY=VALUE` put over it. `${VAR}` in its values and theirs is the
    /// environment's.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong; every problem is reported.
    pub fn load(path: &Path, settings: &[String]) -> Result<Self, JobError> {
        let yaml = read_given_text(path, DOCUMENT_BYTES).map_err(|reason| JobError::File {
            path: path.to_path_buf(),
            reason,
        })?;
        let invalid = |reason| JobError::Invalid {
            path: path.to_path_buf(),
            reason,
        };
        let mut document = config::parse(&yaml).map_err(invalid)?;
        for setting in settings {
            set(&mut document, setting).map_err(|reason| JobError::Setting {
                given: setting.clone(),
                reason,
            })?;
        }
        let expanded = config::expand(&mut document, &|name| std::env::var(name).ok());
        expanded.map_err(|problems| invalid(config::Error::Problems(problems)))?;
        Self::read(path, &document)
    }

    /// Reads a job; `path` only names it in errors.
    ///
    /// # Errors
    /// Something in it is wrong; every problem is reported.
    pub fn parse(path: &Path, yaml: &str) -> Result<Self, JobError> {
        let document = config::parse(yaml).map_err(|reason| JobError::Invalid {
            path: path.to_path_buf(),
            reason,
        })?;
        Self::read(path, &document)
    }

    fn read(path: &Path, document: &Node) -> Result<Self, JobError> {
        let invalid = |reason| JobError::Invalid {
            path: path.to_path_buf(),
            reason,
        };
        let loaded = match (configurations(document), document.get("roll")) {
            (Err(config::Error::Problems(problems)), Some(roll)) => {
                let of_roll = Roll::read(roll).err().unwrap_or_default();
                let problems = problems.into_iter().chain(of_roll).collect();
                return Err(invalid(config::Error::Problems(problems)));
            }
            (loaded, _) => loaded.map_err(invalid)?,
        };
        let Some(roll) = document.get("roll") else {
            return Err(JobError::NoRoll(path.to_path_buf()));
        };
        let wrong = |problems| invalid(config::Error::Problems(problems));
        let mut roll = Roll::read(roll).map_err(wrong)?;
        for (swarm, loaded) in roll.swarms.values_mut().zip(&loaded) {
            swarm.config = loaded.ajet.clone();
        }
        let unequal = swarms::unequal_batches(&roll.swarms);
        if !unequal.is_empty() {
            return Err(wrong(unequal));
        }
        let mut warnings: Vec<_> = loaded.iter().flat_map(notes).collect();
        warnings.dedup();
        Ok(Self {
            path: path.to_path_buf(),
            // There is at least one.
            ajet: loaded.into_iter().next().map(|loaded| loaded.ajet).unwrap_or_default(),
            roll,
            warnings,
        })
    }

    /// The models that the job trains, the one that leads first.
    pub fn models(&self) -> Vec<TrainedModel<'_>> {
        if self.roll.swarms.is_empty() {
            let (swarm_url, ajet) = (self.roll.swarm_url.as_str(), &self.ajet);
            return vec![TrainedModel {
                name: "",
                swarm_url,
                ajet,
            }];
        }
        let models = self.roll.swarms.iter().map(|(name, swarm)| TrainedModel {
            name,
            swarm_url: &swarm.swarm_url,
            ajet: &swarm.config,
        });
        models.collect()
    }

    /// Changes every server's URL, such as to one with a token.
    pub fn change_urls(&mut self, change: impl Fn(&str) -> String) {
        let others = self.roll.swarms.values_mut().map(|swarm| &mut swarm.swarm_url);
        for url in others.chain([&mut self.roll.swarm_url]) {
            *url = change(url);
        }
    }

    /// Names the experiments after the time, so that new ones begin.
    pub(super) fn begin_anew(&mut self) {
        let others = self.roll.swarms.values_mut().map(|swarm| &mut swarm.config);
        for ajet in others.chain([&mut self.ajet]) {
            ajet.experiment_name = NAME_FROM_TIME.into();
        }
    }
}

/// The configuration of each model that a document trains.
fn configurations(document: &Node) -> Result<Vec<Loaded>, config::Error> {
    match document.get("roll").and_then(|roll| roll.get("swarms")) {
        Some(Node::Section(swarms)) if !swarms.is_empty() => swarms::read(document, swarms),
        _ => config::read(document, Strictness::Job).map(|loaded| vec![loaded]),
    }
}

/// What a configuration gives to say.
fn notes(loaded: &Loaded) -> Vec<String> {
    let ignored = (!loaded.ignored.is_empty()).then(|| format!("keys without effect: {}", loaded.ignored.join(", ")));
    loaded.warnings.iter().cloned().chain(ignored).collect()
}

/// Puts a setting `KEY=VALUE` into a document.
fn set(document: &mut Node, setting: &str) -> Result<(), String> {
    let (key, value) = setting.split_once('=').ok_or("it has no `=`")?;
    let key = key.trim();
    if !key.starts_with("ajet.") && !key.starts_with("roll.") {
        return Err(format!("{key:?} is not a key of `ajet` or `roll`"));
    }
    if key.contains('[') || key.split('.').any(str::is_empty) {
        return Err(format!(
            "{key:?} is not a path of names with dots between; an element of a list cannot be set"
        ));
    }
    document.set(key, config::yaml::parse(value)?);
    Ok(())
}

impl Roll {
    /// Episodes that run at once: `max_parallel`, or fewer where the agent allows no more.
    pub fn parallel(&self) -> usize {
        self.max_parallel.min(self.agent.most_parallel().unwrap_or(usize::MAX))
    }

    /// Applies the value of [`SYNC_VARIABLE`].
    fn set_sync_code(&mut self, variable: Option<&str>) {
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
    fn read(node: &Node) -> Result<Self, Vec<Problem>> {
        let mut roll: Self = config::fit(schema(), "roll", node, &[template::FORMAT])?;
        let mut problems = roll.problems();
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
        problems.extend(swarms::problems(&self.swarms));
        problems.extend(self.agent.problems_with_models(&self.model_names()));
        problems
    }

    /// Names of the trained models; none where there is one only.
    pub fn model_names(&self) -> Vec<&str> {
        self.swarms.keys().map(String::as_str).collect()
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

/// A part of a job, for the tests of its type.
#[cfg(test)]
pub(super) fn test_section<T: serde::de::DeserializeOwned + JsonSchema>(path: &str, yaml: &str) -> T {
    let node = config::parse(yaml).unwrap();
    config::fit(&Schema::of::<T>(), path, &node, &[template::FORMAT]).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AJET: &str = "ajet: {model: {path: 'builtin:tiny'}}\n";

    fn parse(roll: &str) -> Result<Job, JobError> {
        Job::parse(Path::new("job.yaml"), &format!("{AJET}roll: {roll}"))
    }

    #[test]
    fn a_short_job_has_defaults() {
        let job = parse("{agent: {type: chat}, reward: {type: exact_match, answer: x}}").unwrap();
        assert_eq!(job.ajet.model.path, "builtin:tiny");
        assert_eq!(job.roll.length(), Length::Epochs(1));
        assert_eq!((job.roll.max_parallel, job.roll.retries, job.roll.eval), (64, 3, None));
        assert!(job.roll.auto_start_swarm_server);
    }

    #[test]
    fn values_are_taken_as_in_the_other_part() {
        let roll = parse(
            "{max_parallel: '64', retries: 8.0, force_restart: yes, seed: null, eval: {}, \
              agent: {type: command, argv: [sleep, 1, 1e5, true]}}",
        )
        .unwrap()
        .roll;
        assert_eq!((roll.max_parallel, roll.retries, roll.seed), (64, 8, 0));
        assert!(roll.force_restart);
        assert_eq!(roll.eval, Some(Eval::default()));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_job() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let yaml = format!("\u{feff}{AJET}roll: {{agent: {{type: command, argv: [sh]}}}}");
        std::fs::write(file.path(), yaml).unwrap();
        assert_eq!(Job::load(file.path(), &[]).unwrap().ajet.model.path, "builtin:tiny");
    }

    #[test]
    fn settings_are_put_over_the_file_and_variables_are_the_environments() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let yaml = format!("{AJET}roll: {{agent: {{type: chat, user: '${{AJET_TEST_NONE:-hi}} $${{x}}'}}, epochs: 2}}");
        std::fs::write(file.path(), yaml).unwrap();
        let load = |settings: &[&str]| {
            let settings: Vec<_> = settings.iter().map(|setting| (*setting).to_owned()).collect();
            Job::load(file.path(), &settings)
        };
        let job = load(&[
            "roll.reward={type: exact_match, answer: 'a=b'}",
            "ajet.trainer_common.optim.lr=1e-4",
            "roll.epochs=null",
            "roll.steps = ${AJET_TEST_NONE:-7}",
        ])
        .unwrap();
        assert_eq!(job.ajet.trainer_common.optim.lr, 1e-4);
        assert_eq!(job.roll.length(), Length::Steps(7));
        let Agent::Chat(chat) = &job.roll.agent else {
            panic!("{:?}", job.roll.agent);
        };
        assert!(format!("{chat:?}").contains("hi ${x}"), "{chat:?}");
        for (setting, told) in [
            ("roll.steps", "--set \"roll.steps\": it has no `=`"),
            ("steps=7", "\"steps\" is not a key of `ajet` or `roll`"),
            ("roll.agent.turns[0]=a", "an element of a list cannot be set"),
            ("roll.stepps=7", "roll.stepps: unknown key; did you mean `roll.steps`?"),
            ("roll.steps=[", "line 1"),
            (
                "roll.seed=${AJET_TEST_NONE}",
                "roll.seed: the environment variable AJET_TEST_NONE is not set",
            ),
        ] {
            let message = load(&[setting]).unwrap_err().to_string();
            assert!(message.contains(told), "{message}");
        }
    }

    #[test]
    fn a_whole_job_is_read() {
        let job = parse(
            "{swarm_url: 'http://box:1', auto_start_swarm_server: false, force_restart: true, steps: 5, max_parallel: 2, \
              discard_episode_timeout: 9.5, retries: 0, seed: 7, throttle: {ratio: 0.5}, \
              eval: {every: 5, tasks: 50, repeat: 2}, agent: {type: command, argv: [sh]}}",
        )
        .unwrap();
        let roll = job.roll;
        assert_eq!(
            (roll.swarm_url.as_str(), roll.length()),
            ("http://box:1", Length::Steps(5))
        );
        let throttle = Some(Throttle { ratio: 0.5 });
        assert_eq!((roll.throttle, roll.seed, roll.retries), (throttle, 7, 0));
        let eval = Eval {
            every: 5,
            tasks: Some(50),
            repeat: 2,
        };
        assert_eq!(roll.eval, Some(eval));
        assert!(matches!(roll.reward(), Reward::FromAgent));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (roll, told) in [
            (
                "{agnet: {type: chat}}",
                "roll.agnet: unknown key; did you mean `roll.agent`?\n\
                 roll.agent: is missing; it is a section whose `type` is one of chat, command, worker, http (What turns a task into an \
                 answer, such as `{type: chat}`)",
            ),
            (
                "{agent: {type: chta}}",
                "roll.agent.type: \"chta\" is not one of chat, command, worker, http",
            ),
            (
                "{agent: {argv: [sh]}}",
                "roll.agent.type: is missing; it is one of chat, command, worker, http",
            ),
            (
                "{agent: {type: chat, sytem: x}}",
                "roll.agent.sytem: unknown key; did you mean `roll.agent.system`?",
            ),
            (
                "{agent: {type: command}}",
                "roll.agent.argv: is missing; it is a list of 1 or more, each element text",
            ),
            (
                "{agent: {type: command, argv: []}}",
                "roll.agent.argv: [] is not a list of 1 or more",
            ),
            ("{agent: {type: chat}}", "roll.reward: is missing"),
            (
                "{agent: {type: chat}, reward: {type: number_match}}",
                "roll.reward.answer: is missing; it is text (The right answer, a template such as `{{ metadata.answer }}`)",
            ),
            (
                "{agent: {type: chat}, reward: {type: similarity, answer: x, tolerance: 1}}",
                "roll.reward.tolerance: unknown",
            ),
            (
                "{agent: {type: chat, user: '{{ x', turns: [a, '{% b']}, reward: {type: from_agent}}",
                "roll.agent.turns[1]: ",
            ),
            (
                "{agent: {type: chat, user: x, turns: [a]}, reward: {type: from_agent}}",
                "roll.agent: `user` and `turns` exclude each other",
            ),
            (
                "{eval: {evry: 1}}",
                "roll.eval.evry: unknown key; did you mean `roll.eval.every`?",
            ),
            (
                "{max_parallel: many}",
                "roll.max_parallel: \"many\" is not a whole number from 1 to 100000",
            ),
            (
                "{throttle: {ratio: 0}}",
                "roll.throttle.ratio: 0 is not a number from 0.001 to 100.0",
            ),
            (
                "{epochs: 1, steps: 1, agent: {type: command, argv: [sh]}}",
                "roll: `epochs` and `steps` exclude each other",
            ),
            ("[1]", "roll: [1] is not a section with the keys swarm_url, "),
        ] {
            let message = parse(roll).unwrap_err().to_string();
            assert!(message.starts_with("the job job.yaml is not valid:\n"), "{message}");
            assert!(message.contains(told), "{message}");
        }
        let both = "ajet: {zzz: 1}\nroll: {zzz: 1, agent: {type: command, argv: [sh]}}";
        let message = Job::parse(Path::new("job.yaml"), both).unwrap_err().to_string();
        assert!(
            message.contains("ajet.zzz: ") && message.contains("roll.zzz: "),
            "{message}"
        );
        let message = Job::parse(Path::new("job.yaml"), AJET).unwrap_err().to_string();
        assert!(message.contains("has no `roll:` part"), "{message}");
        let message = Job::load(Path::new("/no/job.yaml"), &[]).unwrap_err().to_string();
        assert!(message.contains("cannot read the job /no/job.yaml"), "{message}");
    }
}
