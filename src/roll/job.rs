//! A job file: the `ajet:` part, which the server gets, and the `roll:` part, which says what the client does.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Deserialize;
use serde_yaml::Value;

use super::agents::Agent;
use super::rewards::Reward;
use super::section::Section;
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};
use crate::config::{self, Strictness, schema::Ajet};
use crate::protocol::swarm::DEFAULT_PORT;

/// Where the server's URL is taken from if the job has none.
pub const URL_VARIABLE: &str = "AJET_SWARM_URL";

/// A job, read and checked.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its file.
    pub path: PathBuf,
    /// The training configuration.
    pub ajet: Ajet,
    /// What the client does.
    pub roll: Roll,
    /// Sentences for the log.
    pub warnings: Vec<String>,
}

/// The `roll:` part.
#[derive(Clone, Debug)]
pub struct Roll {
    /// The server.
    pub swarm_url: String,
    /// Start a server where the URL is local and nobody listens.
    pub auto_start_swarm_server: bool,
    /// Stop an engine that runs already.
    pub force_restart: bool,
    /// When the job is done.
    pub length: Length,
    /// Most episodes at once.
    pub max_parallel: usize,
    /// Seconds without an LLM call after which the server discards an episode.
    pub discard_episode_timeout: f64,
    /// Times that a repeat which came to nothing is tried again.
    pub retries: u32,
    /// Of the shuffling of tasks.
    pub seed: u64,
    /// Share of a batch that this client may fill, where it is throttled.
    pub throttle_ratio: Option<f64>,
    /// Tasks begun beyond the batch, so that slow ones do not hold it up.
    pub spare_tasks: u64,
    /// What becomes of episodes that still run when the batch is full.
    pub stragglers: Stragglers,
    /// Evaluation, where there is any.
    pub eval: Option<Eval>,
    /// The agent.
    pub agent: Agent,
    /// The reward.
    pub reward: Reward,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
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

/// `roll.eval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eval {
    /// Updates between evaluations; 0 for none but before and after.
    pub every: u64,
    /// Most tasks; all where that is not given.
    pub tasks: Option<usize>,
    /// Episodes of each.
    pub repeat: usize,
}

/// Why a job cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("the job {} cannot be read: {reason}\nhint: `ajet-swarm job init` writes one", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// It has no `roll:` part.
    #[error("the job {} has no `roll:` part\nhint: it says which agent and which reward to run; see `ajet-swarm job init`", .0.display())]
    NoRoll(PathBuf),
    /// The `ajet:` part, or the YAML, is wrong.
    #[error("the job {} is wrong:\n{reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Every problem.
        reason: config::Error,
    },
    /// The `roll:` part is wrong.
    #[error("the job {} is wrong:\n{}", path.display(), problems.join("\n"))]
    Problems {
        /// The file.
        path: PathBuf,
        /// Every problem.
        problems: Vec<String>,
    },
}

impl Job {
    /// Reads a job file.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong; every problem is told.
    pub fn load(path: &Path) -> Result<Self, JobError> {
        let yaml = read_given_text(path, DOCUMENT_BYTES).map_err(|reason| JobError::File {
            path: path.to_path_buf(),
            reason,
        })?;
        Self::parse(path, &yaml)
    }

    /// Reads a job; `path` only names it in errors.
    ///
    /// # Errors
    /// As of [`Job::load`].
    pub fn parse(path: &Path, yaml: &str) -> Result<Self, JobError> {
        let path = path.to_path_buf();
        let loaded = match config::load(yaml, Strictness::Job) {
            Ok(loaded) => loaded,
            Err(reason) => return Err(JobError::Config { path, reason }),
        };
        let mut warnings = loaded.warnings;
        if !loaded.ignored.is_empty() {
            warnings.push(format!("keys without effect: {}", loaded.ignored.join(", ")));
        }
        // It has just been parsed by `config::load`.
        let mut document: Value = serde_yaml::from_str(yaml).unwrap_or_default();
        let _ = document.apply_merge();
        let Some(roll) = document.get("roll") else {
            return Err(JobError::NoRoll(path));
        };
        match Roll::read(roll) {
            Ok(roll) => Ok(Self {
                path,
                ajet: loaded.ajet,
                roll,
                warnings,
            }),
            Err(problems) => Err(JobError::Problems { path, problems }),
        }
    }

    /// The complete document that the server gets.
    pub fn document(&self) -> String {
        config::dump_yaml(&self.ajet)
    }
}

impl Roll {
    fn read(value: &Value) -> Result<Self, Vec<String>> {
        let problems: Rc<RefCell<Vec<String>>> = Rc::default();
        let roll = Self::read_section(Section::new("roll", value, &problems));
        let problems = problems.take();
        match roll {
            Some(roll) if problems.is_empty() => Ok(roll),
            _ => Err(problems),
        }
    }

    fn read_section(mut section: Section) -> Option<Self> {
        let swarm_url = section.text("swarm_url").or_else(|| std::env::var(URL_VARIABLE).ok());
        let auto_start_swarm_server = section.flag("auto_start_swarm_server").unwrap_or(true);
        let force_restart = section.flag("force_restart").unwrap_or(false);
        let length = match (section.whole("epochs", 1), section.whole("steps", 1)) {
            (Some(_), Some(_)) => {
                section.problem("roll: `epochs` and `steps` exclude each other".into());
                return None;
            }
            (_, Some(steps)) => Length::Steps(steps),
            (epochs, None) => Length::Epochs(epochs.unwrap_or(1)),
        };
        let max_parallel = section.whole("max_parallel", 1).unwrap_or(64) as usize;
        let discard_episode_timeout = section.positive("discard_episode_timeout").unwrap_or(240.0);
        let retries = section.whole("retries", 0).unwrap_or(3) as u32;
        let seed = section.whole("seed", 0).unwrap_or(0);
        let throttle_ratio = section.section("throttle").and_then(|mut throttle| {
            let ratio = throttle.positive("ratio");
            let ratio = throttle.require("ratio", ratio, "the share of a batch that this client may fill");
            throttle.finish();
            ratio
        });
        let spare_tasks = section.whole("spare_tasks", 0).unwrap_or(0);
        let stragglers = section.text("stragglers").map(|text| Stragglers::read(&text));
        let stragglers = match stragglers.transpose() {
            Ok(stragglers) => stragglers.unwrap_or_default(),
            Err(problem) => {
                section.problem(problem);
                Stragglers::default()
            }
        };
        let eval = section.section("eval").map(Eval::read);
        // Both are read before either is asked for, so that the problems of both are told.
        let agent = section.section("agent");
        let agent = section
            .require("agent", agent, "the agent to run, such as {type: chat}")
            .and_then(Agent::read);
        let reward = match section.section("reward") {
            None if agent.as_ref().is_some_and(Agent::brings_reward) => Some(Reward::FromAgent),
            reward => section
                .require("reward", reward, "what an answer is worth")
                .and_then(Reward::read),
        };
        section.finish();
        Some(Self {
            swarm_url: swarm_url.unwrap_or_else(|| format!("http://localhost:{DEFAULT_PORT}")),
            auto_start_swarm_server,
            force_restart,
            length,
            max_parallel,
            discard_episode_timeout,
            retries,
            seed,
            throttle_ratio,
            spare_tasks,
            stragglers,
            eval,
            agent: agent?,
            reward: reward?,
        })
    }
}

impl Stragglers {
    fn read(text: &str) -> Result<Self, String> {
        serde_yaml::from_value(Value::from(text))
            .map_err(|_| format!("roll.stragglers: {text:?} is not one of finish, carry_over, give_up"))
    }
}

impl Eval {
    fn read(mut section: Section) -> Self {
        let eval = Self {
            every: section.whole("every", 0).unwrap_or(0),
            tasks: section.whole("tasks", 1).map(|tasks| tasks as usize),
            repeat: section.whole("repeat", 1).unwrap_or(1) as usize,
        };
        section.finish();
        eval
    }
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
        assert_eq!(job.roll.length, Length::Epochs(1));
        assert_eq!((job.roll.max_parallel, job.roll.retries, job.roll.eval), (64, 3, None));
        assert!(job.roll.auto_start_swarm_server);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_job() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let yaml = format!("\u{feff}{AJET}roll: {{agent: {{type: command, argv: [sh]}}}}");
        std::fs::write(file.path(), yaml).unwrap();
        assert_eq!(Job::load(file.path()).unwrap().ajet.model.path, "builtin:tiny");
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
            (roll.swarm_url.as_str(), roll.length),
            ("http://box:1", Length::Steps(5))
        );
        assert_eq!((roll.throttle_ratio, roll.seed, roll.retries), (Some(0.5), 7, 0));
        let eval = Eval {
            every: 5,
            tasks: Some(50),
            repeat: 2,
        };
        assert_eq!(roll.eval, Some(eval));
        assert!(matches!(roll.reward, Reward::FromAgent));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (roll, told) in [
            (
                "{agnet: {type: chat}}",
                "roll.agnet: unknown key; did you mean `agent`?",
            ),
            ("{agnet: {type: chat}}", "roll.agent is missing"),
            (
                "{agent: {type: chta}}",
                "roll.agent.type: \"chta\" is not one of chat, command",
            ),
            (
                "{agent: {type: chat, sytem: x}}",
                "roll.agent.sytem: unknown key; did you mean `system`?",
            ),
            ("{agent: {type: command}}", "roll.agent.argv is missing"),
            ("{agent: {type: chat}}", "roll.reward is missing"),
            (
                "{agent: {type: chat}, reward: {type: number_match}}",
                "roll.reward.answer is missing",
            ),
            (
                "{agent: {type: chat}, reward: {type: similarity, answer: x, tolerance: 1}}",
                "roll.reward.tolerance: unknown",
            ),
            (
                "{eval: {evry: 1}}",
                "roll.eval.evry: unknown key; did you mean `every`?",
            ),
            (
                "{max_parallel: '64'}",
                "roll.max_parallel: \"64\" is not a whole number of 1 or more",
            ),
            ("{epochs: 1, steps: 1}", "`epochs` and `steps` exclude each other"),
            ("[1]", "roll: a list is not a section of keys"),
        ] {
            let message = parse(roll).unwrap_err().to_string();
            assert!(message.starts_with("the job job.yaml is wrong"), "{message}");
            assert!(message.contains(told), "{message}");
        }
        let message = Job::parse(Path::new("job.yaml"), AJET).unwrap_err().to_string();
        assert!(message.contains("has no `roll:` part"), "{message}");
        let message = Job::load(Path::new("/no/job.yaml")).unwrap_err().to_string();
        assert!(message.contains("/no/job.yaml cannot be read"), "{message}");
    }
}
