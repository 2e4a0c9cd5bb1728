//! The agent that needs no program: a system message, user turns, the model's answers.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Access, AgentError, Rollout};
use crate::config::Problem;
use crate::protocol::openai::{ChatMessage, ChatRequest, StopStrings};
use crate::roll::tasks::Task;
use crate::roll::template::Template;

/// `roll.agent` of type `chat`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Chat {
    /// System message, a template.
    system: Option<Template>,
    /// User message, a template. Default: the task's own messages, or else its `main_query`.
    user: Option<Template>,
    /// User messages, templates, each answered before the next one is sent. It excludes `user`.
    turns: Option<Vec<Template>>,
    /// Maximum number of tokens of an answer. Default: the server's limits.
    #[schemars(range(min = 1, max = 10_000_000))]
    max_tokens: Option<u64>,
    /// Sampling temperature of eval episodes; train episodes have the server's.
    #[schemars(range(min = 0.0, max = 1000.0))]
    temperature: Option<f64>,
    /// Texts that end an answer.
    stop: Option<Vec<String>>,
}

impl Chat {
    pub(super) fn problems(&self) -> Vec<Problem> {
        match self.user.is_some() && self.turns.is_some() {
            true => vec![Problem::new(
                "roll.agent",
                "`user` and `turns` exclude each other; one turn is `user`",
            )],
            false => vec![],
        }
    }

    /// The messages before the first turn.
    fn opening(&self, task: &Task) -> Result<Vec<ChatMessage>, AgentError> {
        let system = self.system.as_ref().map(|system| system.render(task)).transpose()?;
        let mut messages: Vec<_> = system.map(|text| message("system", text)).into_iter().collect();
        messages.extend(task.init_messages.iter().cloned());
        Ok(messages)
    }

    /// The user's turns. A job without any asks the task's query, or goes on from the task's messages.
    fn turns(&self, task: &Task) -> Result<Vec<Option<String>>, AgentError> {
        let turns = self.turns.as_deref().unwrap_or(self.user.as_slice());
        match turns {
            [] if task.init_messages.is_empty() => Ok(vec![Some(task.main_query.clone())]),
            [] => Ok(vec![None]),
            turns => turns.iter().map(|turn| Ok(Some(turn.render(task)?))).collect(),
        }
    }

    pub(super) async fn run(&self, task: &Task, access: &Access) -> Result<Rollout, AgentError> {
        let mut messages = self.opening(task)?;
        let mut response_tokens = 0;
        let turns = self.turns(task)?;
        for turn in &turns {
            messages.extend(turn.iter().map(|text| message("user", text.clone())));
            let request = ChatRequest {
                model: Some(access.model_name.clone()),
                messages: messages.clone(),
                max_tokens: self.max_tokens,
                temperature: self.temperature,
                stop: self.stop.clone().map(StopStrings::Many),
                ..ChatRequest::default()
            };
            let answer = access.model.chat(&request).await?;
            response_tokens += answer.usage.completion_tokens;
            let choice = answer.choices.into_iter().next();
            messages.push(choice.ok_or_else(|| AgentError::Answer("no choice".into()))?.message);
        }
        let output = messages
            .last()
            .and_then(|last| last.content.as_str())
            .unwrap_or_default()
            .to_string();
        Ok(Rollout {
            output,
            messages,
            llm_calls: Some(turns.len() as u64),
            response_tokens: Some(response_tokens),
            ..Rollout::default()
        })
    }
}

fn message(role: &str, text: String) -> ChatMessage {
    ChatMessage {
        role: role.into(),
        content: text.into(),
        ..ChatMessage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roll::job::test_section;

    fn chat(yaml: &str) -> Chat {
        test_section("roll.agent", yaml)
    }

    #[test]
    fn a_conversation_opens_with_system_and_the_tasks_own_messages() {
        let query = Task {
            main_query: "1+1".into(),
            ..Task::default()
        };
        let dialogue = Task {
            init_messages: vec![message("user", "hi".into()), message("assistant", "hello".into())],
            ..query.clone()
        };
        let roles = |chat: &Chat, task: &Task| -> Vec<String> {
            chat.opening(task)
                .unwrap()
                .into_iter()
                .map(|message| message.role)
                .collect()
        };
        let plain = chat("{}");
        assert!(roles(&plain, &query).is_empty());
        assert_eq!(plain.turns(&query).unwrap(), [Some("1+1".into())]);
        assert_eq!(roles(&plain, &dialogue), ["user", "assistant"]);
        assert_eq!(plain.turns(&dialogue).unwrap(), [None]);
        let full = chat("{system: be brief, turns: ['{{ main_query }}?', sure?]}");
        assert_eq!(roles(&full, &dialogue), ["system", "user", "assistant"]);
        assert_eq!(full.turns(&query).unwrap(), [Some("1+1?".into()), Some("sure?".into())]);
    }
}
