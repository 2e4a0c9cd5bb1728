//! `roll.swarms`: several trained models in one episode, each with a server and a training of its own.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::rewards::Reward;
use crate::client::ServerUrl;
use crate::config::experiment::NAME_FROM_TIME;
use crate::config::{self, Ajet, Loaded, Node, Problem, Strictness, dump_yaml};

/// Maximum number of models that a job trains.
pub(super) const MOST_MODELS: usize = 16;

/// Names whose variables, such as `OPENAI_BASE_URL`, mean something else.
const TAKEN_NAMES: [&str; 3] = ["openai", "anthropic", "ajet"];

/// `roll.swarms`: one of several trained models.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Swarm {
    /// The server that trains it.
    pub swarm_url: String,
    /// Its training configuration, laid over the job's `ajet:`. The names of project and experiment that are not given
    /// here are the job's, followed by the model's.
    #[serde(default)]
    pub ajet: Value,
    /// What an answer is worth to it. Default: `roll.reward`.
    #[serde(default)]
    pub reward: Option<Reward>,
    /// The complete configuration.
    #[serde(skip)]
    pub(super) config: Ajet,
}

/// A model that a job trains, and its server.
#[derive(Clone, Copy, Debug)]
pub struct TrainedModel<'a> {
    /// Its name in `roll.swarms`; empty where the job trains one model only.
    pub name: &'a str,
    /// Its server.
    pub swarm_url: &'a str,
    /// Its training configuration.
    pub ajet: &'a Ajet,
}

impl TrainedModel<'_> {
    /// The complete document that its server gets.
    pub fn document(&self) -> String {
        dump_yaml(self.ajet)
    }
}

/// The configurations of the models in the section `swarms` of a document, in their order.
///
/// # Errors
/// Everything that is wrong with them, once where it stands in the part that they share.
pub(super) fn read(document: &Node, swarms: &IndexMap<String, Node>) -> Result<Vec<Loaded>, config::Error> {
    let shared = document.get("ajet").cloned().unwrap_or_default();
    let (mut loaded, mut problems) = (vec![], vec![]);
    for (name, swarm) in swarms {
        let own = swarm.get("ajet").cloned().unwrap_or_default();
        let mut whole = document.clone();
        let mut ajet = shared.clone();
        ajet.overlay(own.clone());
        whole.set("ajet", ajet);
        match config::read(&whole, Strictness::Job) {
            Ok(mut read) => {
                name_after(&mut read.ajet, name, &own);
                loaded.push(read);
            }
            Err(config::Error::Problems(found)) => {
                let found = found.into_iter().map(|problem| placed(problem, name, &own));
                problems.extend(found.filter(|problem| !problems.contains(problem)).collect::<Vec<_>>());
            }
            Err(other) => return Err(other),
        }
    }
    match problems.is_empty() {
        true => Ok(loaded),
        false => Err(config::Error::Problems(problems)),
    }
}

/// Gives project and experiment the model's name, where it has none of its own: two engines cannot share a directory.
fn name_after(ajet: &mut Ajet, name: &str, own: &Node) {
    let is_own = |key: &str| own.get(key).is_some_and(|value| !value.is_null());
    if !is_own("project_name") {
        ajet.project_name = format!("{}_{name}", ajet.project_name);
    }
    if !is_own("experiment_name") && ajet.experiment_name != NAME_FROM_TIME {
        ajet.experiment_name = format!("{}_{name}", ajet.experiment_name);
    }
}

/// A problem at the key that the user wrote, which may be the model's own.
fn placed(problem: Problem, name: &str, own: &Node) -> Problem {
    let path = problem.key.strip_prefix("ajet.").unwrap_or_default();
    let first = path.split(['.', '[']).next().unwrap_or_default();
    let is_own = match path.is_empty() {
        true => !matches!(own, Node::Section(_)) && !own.is_null(),
        false => own.get(first).is_some(),
    };
    match is_own {
        true => Problem::new(format!("roll.swarms.{name}.{}", problem.key), problem.message),
        false => problem,
    }
}

/// Problems that the schema cannot express. `node` is the section as it was given.
pub(super) fn problems(swarms: &IndexMap<String, Swarm>, node: Option<&Node>) -> Vec<Problem> {
    let mut problems = vec![];
    if let Some(Node::Section(given)) = node {
        let empty = given.iter().filter(|(_, swarm)| swarm.is_null());
        let missing =
            empty.map(|(name, _)| Problem::new(format!("roll.swarms.{name}"), "is empty; it needs a swarm_url"));
        problems.extend(missing);
    }
    if swarms.len() > MOST_MODELS {
        let message = format!("{} models; a job trains at most {MOST_MODELS}", swarms.len());
        problems.push(Problem::new("roll.swarms", message));
    }
    for (at, (name, swarm)) in swarms.iter().enumerate() {
        let key = format!("roll.swarms.{name}");
        let earlier = || swarms.iter().take(at);
        if !is_name(name) || earlier().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            let message = "is not a name of up to 32 letters, digits and `_` that begins with a letter, differs from the \
                           others and is not openai, anthropic or ajet";
            problems.push(Problem::new(&key, message));
        }
        let server = |swarm: &Swarm| ServerUrl::parse(&swarm.swarm_url).ok().map(|url| url.to_string());
        if let Some((other, _)) = earlier().find(|(_, other)| server(other).is_some() && server(other) == server(swarm))
        {
            let message = format!("is the server of {other} too; each model needs its own");
            problems.push(Problem::new(format!("{key}.swarm_url"), message));
        }
        if !swarm.ajet["task_reader"].is_null() {
            let message = "the models of an episode have the same tasks; set ajet.task_reader of the job instead";
            problems.push(Problem::new(format!("{key}.ajet.task_reader"), message));
        }
        let reward = swarm.reward.iter();
        problems.extend(reward.flat_map(|reward| reward.problems(&format!("{key}.reward"))));
    }
    problems
}

/// Problems of the configurations with each other: an episode counts in the batch of each model.
pub(super) fn unequal_batches(swarms: &IndexMap<String, Swarm>) -> Vec<Problem> {
    let Some((first_name, first)) = swarms.first() else {
        return vec![];
    };
    let batch = |swarm: &Swarm| {
        let method = swarm.config.swarm_mode_sample_collection_method.name();
        (
            swarm.config.data.train_batch_size,
            swarm.config.rollout.num_repeat,
            method,
        )
    };
    let unequal = swarms.iter().filter(|(_, swarm)| batch(swarm) != batch(first));
    let message = format!(
        "data.train_batch_size, rollout.num_repeat and swarm_mode_sample_collection_method must be those of {first_name}, \
         since an episode counts in the batch of each model"
    );
    let problem = |(name, _): (&String, &Swarm)| Problem::new(format!("roll.swarms.{name}.ajet"), &message);
    unequal.map(problem).collect()
}

fn is_name(name: &str) -> bool {
    name.len() <= 32
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && !TAKEN_NAMES.iter().any(|taken| name.eq_ignore_ascii_case(taken))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::roll::job::{Job, JobError};

    fn parse(ajet: &str, swarms: &str, more: &str) -> Result<Job, JobError> {
        let yaml = format!("ajet: {ajet}\nroll: {{swarms: {swarms}, agent: {{type: command, argv: [sh]}}{more}}}");
        Job::parse(Path::new("job.yaml"), &yaml)
    }

    #[test]
    fn each_model_has_the_shared_configuration_with_its_own_over_it() {
        let job = parse(
            "{experiment_name: duet, model: {path: 'builtin:tiny'}, data: {train_batch_size: 4}, rollout: {num_repeat: 3}}",
            "{planner: {swarm_url: 'http://a:1', ajet: {trainer_common: {optim: {lr: 1.0e-3}}}}, \
              solver: {swarm_url: 'http://b:1', ajet: {experiment_name: mine, model: {path: 'builtin:small'}}}}",
            "",
        )
        .unwrap();
        let models = job.models();
        let names: Vec<_> = models.iter().map(|model| (model.name, model.swarm_url)).collect();
        assert_eq!(names, [("planner", "http://a:1"), ("solver", "http://b:1")]);
        let [planner, solver] = [models[0].ajet, models[1].ajet];
        assert_eq!(
            (planner.experiment_name.as_str(), solver.experiment_name.as_str()),
            ("duet_planner", "mine")
        );
        assert_eq!(
            (planner.model.path.as_str(), solver.model.path.as_str()),
            ("builtin:tiny", "builtin:small")
        );
        assert_eq!(
            (planner.trainer_common.optim.lr, planner.data.train_batch_size),
            (1e-3, 4)
        );
        assert_ne!(solver.trainer_common.optim.lr, 1e-3);
        assert_eq!(job.ajet, *planner);
        assert_ne!(models[0].document(), models[1].document());
    }

    #[test]
    fn mistakes_are_named_where_they_stand() {
        let two =
            |first: &str, second: &str| format!("{{planner: {{swarm_url: {first}, solver: {{swarm_url: {second}}}");
        let model = "{model: {path: 'builtin:tiny'}}";
        for (ajet, swarms, more, told) in [
            (
                model,
                two("'http://a:1'}", "'http://a:1/'}"),
                "",
                "roll.swarms.solver.swarm_url: is the server of planner too",
            ),
            (
                model,
                two("'http://a:1'}", "'http://b:1', ajet: {rollout: {num_repeat: 9}}}"),
                "",
                "roll.swarms.solver.ajet: data.train_batch_size, rollout.num_repeat",
            ),
            (
                model,
                two("'http://a:1'}", "'http://b:1', ajet: {rolout: {num_repeat: 9}}}"),
                "",
                "roll.swarms.solver.ajet.rolout: unknown key",
            ),
            (
                "{}",
                two("'http://a:1'}", "'http://b:1'}"),
                "",
                "ajet.model.path: is not set",
            ),
            (
                model,
                "{openai: {swarm_url: 'http://a:1'}}".into(),
                "",
                "roll.swarms.openai: is not a name",
            ),
            (
                model,
                "{a-b: {swarm_url: 'http://a:1'}}".into(),
                "",
                "roll.swarms.a-b: is not a name",
            ),
            (
                model,
                "{a: {ajet: {}}}".into(),
                "",
                "roll.swarms.a.swarm_url: is missing",
            ),
            (model, "{a: null}".into(), "", "roll.swarms.a: is empty"),
            (
                model,
                "{a: {swarm_url: 'http://a:1', ajet: hi}}".into(),
                "",
                "roll.swarms.a.ajet: \"hi\" is not a section",
            ),
            (
                model,
                "{a: {swarm_url: 'http://a:1', ajet: {task_reader: {type: arithmetic}}}}".into(),
                "",
                "roll.swarms.a.ajet.task_reader: the models of an episode have the same tasks",
            ),
            (
                model,
                two("'http://a:1'}", "'http://b:1'}"),
                ", swarm_url: 'http://c:1'",
                "`swarm_url` and `swarms` exclude each other",
            ),
        ] {
            let error = parse(ajet, &swarms, more).unwrap_err().to_string();
            assert!(error.contains(told), "{told}\n{error}");
            assert_eq!(error.matches(told).count(), 1, "{error}");
        }
    }
}
