//! Agents: what turns a task into an answer by calling the model.

mod answer;
mod chat;
mod command;

use std::os::unix::process::ExitStatusExt;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use chat::Chat;
pub use command::Command;

use super::process::ProgramError;
use super::tasks::Task;
use super::template::TemplateError;
use crate::client::{ClientError, ModelApi};
use crate::config::Problem;
use crate::protocol::openai::ChatMessage;

/// `roll.agent`: what turns a task into an answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a job has one")]
pub enum Agent {
    /// A prompt, or a fixed list of user turns.
    Chat(Chat),
    /// Any program in any language.
    Command(Command),
}

/// The model that an episode may call.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where and with what key.
    pub model: ModelApi,
    /// Name to ask for; a swarm server takes any.
    pub model_name: String,
    /// The episode; empty without a swarm server.
    pub episode_uuid: String,
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
}

/// Why an agent gave no answer. The episode is aborted, never given a reward of 0.
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
    /// The program's files could not be made.
    #[error("the task's file could not be written: {0}")]
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
            Self::Files(_) => "agent_not_started",
            Self::Answer(_) => "bad_answer",
            Self::Reward(_) => "bad_reward",
        }
    }

    /// Whether the next try must fail too, so that the run should end with a sentence instead of trying.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Template(_) | Self::Program(ProgramError::Start { .. }))
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
            Self::Command(_) => vec![],
        }
    }

    /// Runs one episode of the task.
    ///
    /// # Errors
    /// The model or the program failed; the episode is to be aborted.
    pub async fn run(&self, task: &Task, access: &Access) -> Result<Rollout, AgentError> {
        match self {
            Self::Chat(chat) => chat.run(task, access).await,
            Self::Command(command) => command.run(task, access).await,
        }
    }

    /// The program that has to be there, where there is one.
    pub fn program(&self) -> Option<&Command> {
        match self {
            Self::Chat(_) => None,
            Self::Command(command) => Some(command),
        }
    }

    /// Whether it may bring its own reward.
    pub fn brings_reward(&self) -> bool {
        matches!(self, Self::Command(_))
    }
}
