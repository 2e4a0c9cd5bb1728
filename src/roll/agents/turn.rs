//! Turns of the `chat` agent's user, and which model answers each.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::roll::tasks::Task;
use crate::roll::template::{Template, TemplateError};

/// A user message, and the model that answers it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Turn {
    /// A template; of several models, the first one answers.
    ToFirst(Template),
    /// A template that a model of `roll.swarms` answers.
    To(ToModel),
}

/// A user message to one of several models. Each model has a conversation of its own.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToModel {
    /// Name of the model in `roll.swarms`.
    pub(super) model: String,
    /// User message, a template over the task and `answers`, which has the last answer of each model so far, such as
    /// `answers.planner`.
    user: Template,
}

/// The last answer of each model so far, by its name.
pub(super) type Answers = IndexMap<String, String>;

/// What the user says, and to whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    /// Name of the model that answers; none for the first or only one.
    pub model: Option<&'a str>,
    /// What the user says; none asks the task's query, or goes on from the task's messages.
    pub user: Option<&'a Template>,
}

#[derive(Serialize)]
struct Context<'a> {
    #[serde(flatten)]
    task: &'a Task,
    answers: &'a Answers,
}

impl Turn {
    pub(super) fn question(&self) -> Question<'_> {
        match self {
            Self::ToFirst(user) => Question {
                model: None,
                user: Some(user),
            },
            Self::To(to) => Question {
                model: Some(&to.model),
                user: Some(&to.user),
            },
        }
    }
}

impl Question<'_> {
    /// The user's message for a task; none where the task's own messages are there.
    ///
    /// # Errors
    /// Fails if the template does not fit.
    pub fn text(&self, task: &Task, answers: &Answers) -> Result<Option<String>, TemplateError> {
        match self.user {
            Some(user) => user.render(&Context { task, answers }).map(Some),
            None if task.init_messages.is_empty() => Ok(Some(task.main_query.clone())),
            None => Ok(None),
        }
    }
}
