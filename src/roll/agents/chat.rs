//! The agent that needs no program: a system message, user turns, the model's answers.

use super::{Access, AgentError, Rollout};
use crate::protocol::openai::{ChatMessage, ChatRequest, StopStrings};
use crate::roll::section::Section;
use crate::roll::tasks::Task;
use crate::roll::template::Template;

/// `roll.agent` of type `chat`.
#[derive(Clone, Debug)]
pub struct Chat {
    system: Option<Template>,
    /// One model call each. None: the task's own messages are sent as they are.
    turns: Vec<Template>,
    max_tokens: Option<u64>,
    temperature: Option<f64>,
    stop: Option<Vec<String>>,
}

impl Chat {
    pub(super) fn read(section: &mut Section) -> Option<Self> {
        let system = section.template("system");
        let user = section.template("user");
        let turns = section.templates("turns");
        if user.is_some() && turns.is_some() {
            section.problem("roll.agent: `user` and `turns` exclude each other; one turn is `user`".into());
        }
        Some(Self {
            system,
            turns: turns.unwrap_or_else(|| user.into_iter().collect()),
            max_tokens: section.whole("max_tokens", 1),
            temperature: section.number("temperature"),
            stop: section.texts("stop"),
        })
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
        match self.turns.as_slice() {
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
    use std::rc::Rc;

    use super::*;

    fn chat(yaml: &str) -> Chat {
        let problems = Rc::default();
        let mut section = Section::new("roll.agent", &serde_yaml::from_str(yaml).unwrap(), &problems);
        let chat = Chat::read(&mut section).unwrap();
        section.finish();
        assert!(problems.borrow().is_empty(), "{problems:?}");
        chat
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
