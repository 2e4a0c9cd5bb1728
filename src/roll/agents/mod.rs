//! Agents: what turns a task into an answer by calling the model.

mod answer;
mod argument_check;
mod chat;
mod command;
mod http;
mod launch;
mod request;
mod tools;
mod turn;
mod worker;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use chat::Chat;
pub use command::Command;
pub use http::{Http, ServiceError};
pub use worker::Worker;

use super::process::ProgramError;
use super::tasks::Task;
use super::template::TemplateError;
use crate::client::{ClientError, ModelApi};
use crate::config::Problem;
use crate::protocol::openai::ChatMessage;
use crate::protocol::swarm::RecordedAnswer;

/// `roll.agent`: what turns a task into an answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a job has one")]
pub enum Agent {
    /// A prompt, or a fixed list of user turns, with tools that are commands.
    Chat(Chat),
    /// Any program in any language, started for each episode.
    Command(Command),
    /// Long-lived programs in any language, one episode at a time each: a JSON line in, a JSON line out.
    Worker(Worker),
    /// A service of yours that runs an episode: the task is posted to a URL, which answers with an object.
    Http(Http),
}

/// The models that an episode may call.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where and with what key; of several models, the first one's.
    pub model: ModelApi,
    /// Name to ask for; a swarm server takes any.
    pub model_name: String,
    /// The episode; a random name without a swarm server.
    pub episode_uuid: String,
    /// Whether a swarm server answers, which records the conversation.
    pub is_recorded: bool,
    /// Maximum number of tokens of an answer where the agent sets none, of a server that does not know the job.
    pub max_completion_tokens: Option<u64>,
    /// Every model of a job with `roll.swarms`, by its name there; empty for a job with one model.
    pub models: IndexMap<String, ModelAccess>,
}

/// One of several models that an episode may call.
#[derive(Clone, Debug)]
pub struct ModelAccess {
    /// Where and with what key.
    pub api: ModelApi,
    /// Name to ask for.
    pub model_name: String,
}

impl Access {
    /// The API of each model.
    pub fn apis(&self) -> impl Iterator<Item = &ModelApi> {
        let only = self.models.is_empty().then_some(&self.model);
        self.models.values().map(|model| &model.api).chain(only)
    }

    /// The name of one of several models, by default the first one, and the access to it alone.
    fn of(&self, model: Option<&str>) -> (&str, Self) {
        let named = match model {
            Some(model) => self.models.get_key_value(model),
            None => self.models.first(),
        };
        let mut access = self.clone();
        let Some((name, model)) = named else {
            return ("", access);
        };
        (access.model, access.model_name) = (model.api.clone(), model.model_name.clone());
        (name, access)
    }

    /// What programs and services get of each of several models, by name.
    fn endpoints(&self) -> IndexMap<&str, Endpoint<'_>> {
        let models = self.models.iter();
        models
            .map(|(name, model)| (name.as_str(), Endpoint::new(&model.api, &model.model_name)))
            .collect()
    }
}

/// Where and how a program calls a model.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Endpoint<'a> {
    /// For OpenAI's clients.
    base_url: &'a str,
    /// For Anthropic's clients, which append `/v1/messages` themselves.
    anthropic_base_url: &'a str,
    api_key: &'a str,
    model: &'a str,
}

impl<'a> Endpoint<'a> {
    fn new(api: &'a ModelApi, model: &'a str) -> Self {
        let base_url = api.base_url();
        Self {
            base_url,
            anthropic_base_url: base_url.strip_suffix("/v1").unwrap_or(base_url),
            api_key: api.api_key(),
            model,
        }
    }

    /// The endpoint of an episode's first or only model.
    fn of(access: &'a Access) -> Self {
        Self::new(&access.model, &access.model_name)
    }
}

/// What an agent did with a task.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rollout {
    /// Its answer, which rewards look at.
    pub output: String,
    /// The conversation, where it is known.
    pub messages: Vec<ChatMessage>,
    /// Where the agent knows it.
    pub reward: Option<f64>,
    /// Rewards that differ from `reward`, by model.
    pub rewards: IndexMap<String, f64>,
    /// Where the agent knows it.
    pub is_success: Option<bool>,
    /// For the server.
    pub metadata: IndexMap<String, Value>,
    /// For the step's metrics.
    pub log_metrics: IndexMap<String, Value>,
    /// Calls of the model, where known.
    pub llm_calls: Option<u64>,
    /// Tokens that the model wrote, where known.
    pub response_tokens: Option<u64>,
    /// Which of `messages` are the model's answers and what they took, where known.
    #[serde(skip)]
    pub answers: Vec<RecordedAnswer>,
    /// The end of its program's standard error.
    #[serde(skip)]
    pub stderr: String,
}

/// Why an agent returned no answer. The episode is aborted, never given a reward of 0.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The model did not answer.
    #[error(transparent)]
    Model(#[from] ClientError),
    /// A template does not fit the task.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The service failed.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A tool failed whose failure ends the episode.
    #[error("the tool {name} failed: {reason}")]
    Tool {
        /// The tool.
        name: String,
        /// Why.
        reason: ProgramError,
    },
    /// The program's files cannot be written.
    #[error("cannot write the task's file: {0}")]
    Files(#[from] std::io::Error),
    /// The agent's answer is not usable.
    #[error("the agent's answer has {0}")]
    Answer(String),
    /// The agent's reward is not usable; it is never taken as 0.
    #[error("the agent's answer has the reward {0}, which is not a finite number")]
    Reward(String),
}

impl AgentError {
    /// The name under which such episodes are counted.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Model(ClientError::Refused { status: 401 | 404, .. }) => "episode_lost",
            Self::Model(_) => "model_error",
            Self::Template(_) => "template_error",
            Self::Program(error) => program_reason(error),
            Self::Service(ServiceError::Unreachable { .. }) => "agent_unreachable",
            Self::Service(ServiceError::Timeout { .. }) => "agent_timeout",
            Self::Service(ServiceError::Status { .. }) => "agent_failed",
            Self::Tool { .. } => "tool_failed",
            Self::Files(_) => "agent_not_started",
            Self::Answer(_) => "bad_answer",
            Self::Reward(_) => "bad_reward",
        }
    }

    /// Whether the next try must fail too, so that the run should end with a sentence instead of trying.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Template(_) | Self::Program(ProgramError::Start { .. }) => true,
            // A wrong key, URL or model name of an API that is not a swarm's.
            Self::Model(ClientError::Api { status, .. }) => matches!(status, 401 | 403 | 404),
            Self::Model(ClientError::ApiUnreachable { .. }) => true,
            _ => false,
        }
    }
}

/// The name under which episodes are counted whose program failed.
fn program_reason(error: &ProgramError) -> &'static str {
    match error {
        ProgramError::Start { .. } => "agent_not_started",
        ProgramError::Timeout { .. } => "agent_timeout",
        ProgramError::Memory { .. } => "agent_memory",
        ProgramError::Output { .. } => "agent_output",
        ProgramError::Exit { status, .. } if status.signal().is_some() => "agent_killed",
        ProgramError::Exit { .. } => "agent_failed",
    }
}

impl Agent {
    /// Problems that the schema cannot express.
    pub(super) fn problems(&self) -> Vec<Problem> {
        match self {
            Self::Chat(chat) => chat.problems(),
            Self::Http(http) => http.problems(),
            Self::Command(_) | Self::Worker(_) => vec![],
        }
    }

    /// Problems with the models of `roll.swarms`; none are named where the job trains one only.
    pub(super) fn problems_with_models(&self, models: &[&str]) -> Vec<Problem> {
        match self {
            Self::Chat(chat) => chat.problems_with_models(models),
            _ => vec![],
        }
    }

    /// The messages of the first call for a task, where the job writes them.
    pub fn prompt(&self, task: &Task) -> Option<Vec<ChatMessage>> {
        match self {
            Self::Chat(chat) => chat.prompt(task),
            _ => None,
        }
    }

    /// Renders what the agent would ask for a task. `models` are the names of several models.
    ///
    /// # Errors
    /// Fails with a message if a template does not fit the task, or the task asks nothing.
    pub fn verify(&self, task: &Task, models: &[&str]) -> Result<(), String> {
        match self {
            Self::Chat(chat) => chat.verify(task, models),
            _ => Ok(()),
        }
    }

    /// Runs one episode of the task.
    ///
    /// # Errors
    /// Fails if the model, the program or the service does; the episode must be aborted.
    pub async fn run(&self, task: &Task, access: &Access) -> Result<Rollout, AgentError> {
        match self {
            Self::Chat(chat) => chat.run(task, access).await,
            Self::Command(command) => command.run(task, access).await,
            Self::Worker(worker) => worker.run(task, access).await,
            Self::Http(http) => http.run(task, access).await,
        }
    }

    /// Finds the programs that a task would run; the agent's own, where it is one. `models` are the names of several
    /// models.
    ///
    /// # Errors
    /// Fails with a message if one is not there.
    pub fn check(&self, task: &Task, models: &[&str]) -> Result<Option<PathBuf>, String> {
        match self {
            Self::Chat(chat) => chat.check(task).map(|()| None),
            Self::Command(command) => command.check(task, models).map(Some),
            Self::Worker(worker) => worker.check().map(Some),
            Self::Http(_) => Ok(None),
        }
    }

    /// Maximum number of episodes that it runs at once, if there is one.
    pub fn most_parallel(&self) -> Option<usize> {
        match self {
            Self::Worker(worker) => worker.workers,
            Self::Chat(_) | Self::Command(_) | Self::Http(_) => None,
        }
    }

    /// Whether it may bring its own reward.
    pub fn brings_reward(&self) -> bool {
        !matches!(self, Self::Chat(_))
    }
}
