//! A job file: the `ajet:` part, which the server gets, and the `roll:` part, which says what the client does.

mod section;

use std::path::{Path, PathBuf};

pub use section::{Eval, Length, Roll, Stragglers, Throttle, schema};

use super::swarms::{self, TrainedModel};
use crate::config::experiment::NAME_FROM_TIME;
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};
use crate::config::{self, Loaded, Node, Strictness, schema::Ajet};

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
    #[error("the job {} has no `roll:` part\nhint: `roll:` names the agent and the reward; `ajet-swarm job init` writes an example", .0.display())]
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
            config::setting::apply(&mut document, setting).map_err(|reason| JobError::Setting {
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

/// A part of a job, for the tests of its type.
#[cfg(test)]
pub(super) fn test_section<T: serde::de::DeserializeOwned + schemars::JsonSchema>(path: &str, yaml: &str) -> T {
    let node = config::parse(yaml).unwrap();
    config::fit(
        &config::shape::Schema::of::<T>(),
        path,
        &node,
        &[super::template::FORMAT],
    )
    .unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ServerUrl;
    use crate::roll::agents::Agent;
    use crate::roll::rewards::Reward;

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

    /// Seen in a build of the clients alone, whose dry run promised a server that it cannot start.
    #[test]
    fn a_server_is_started_here_by_a_build_that_has_one() {
        let local = ServerUrl::parse("http://localhost:10086").unwrap();
        let other = ServerUrl::parse("http://gpu-box:10086").unwrap();
        let agent = "agent: {type: chat}, reward: {type: exact_match, answer: x}";
        let starts = |roll: &str, url| parse(roll).unwrap().roll.starts_server(url);
        assert_eq!(starts(&format!("{{{agent}}}"), &local), cfg!(feature = "server"));
        assert!(!starts(&format!("{{{agent}}}"), &other));
        assert!(!starts(&format!("{{{agent}, auto_start_swarm_server: false}}"), &local));
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
                "roll.agent.user=Please reverse: {{ main_query }}",
                "quotes around it make it text: 'roll.agent.user=\"…\"'",
            ),
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
