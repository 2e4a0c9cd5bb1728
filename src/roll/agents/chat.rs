//! The agent that needs no program: a system message, user turns, tools that are commands, the model's answers.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::tools::{self, Tool};
use super::{Access, AgentError, Rollout};
use crate::config::Problem;
use crate::protocol::openai::{ChatMessage, ChatRequest, StopStrings};
use crate::protocol::swarm::RecordedAnswer;
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
    /// Programs that the model may call. Calls of one answer run one after the other, in their order.
    tools: Vec<Tool>,
    /// Maximum number of model calls that follow a user message, since each tool call leads to another one. Beyond it the
    /// conversation ends. Default: 16.
    #[schemars(range(min = 1, max = 100_000))]
    max_turns: Option<u64>,
    /// Maximum number of tokens of an answer. Default: the server's limits.
    #[schemars(range(min = 1, max = 10_000_000))]
    max_tokens: Option<u64>,
    /// Sampling temperature of eval episodes; train episodes have the server's.
    #[schemars(range(min = 0.0, max = 1000.0))]
    temperature: Option<f64>,
    /// Texts that end an answer.
    stop: Option<Vec<String>>,
}

/// Model calls that follow a user message, unless the job says otherwise.
const MAX_TURNS: u64 = 16;

/// A conversation as it goes on.
#[derive(Debug, Default)]
struct Conversation {
    messages: Vec<ChatMessage>,
    answers: Vec<RecordedAnswer>,
    tool_calls: u64,
    tool_errors: u64,
}

impl Chat {
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = vec![];
        if self.user.is_some() && self.turns.is_some() {
            let message = "`user` and `turns` exclude each other; one turn is `user`";
            problems.push(Problem::new("roll.agent", message));
        }
        for (place, tool) in self.tools.iter().enumerate() {
            let key = format!("roll.agent.tools[{place}]");
            problems.extend(tool.problems(&key));
            if self.tools[..place].iter().any(|earlier| earlier.name == tool.name) {
                let message = format!("{:?} is the name of an earlier tool too", tool.name);
                problems.push(Problem::new(format!("{key}.name"), message));
            }
        }
        problems
    }

    /// Whether the tools' programs can be found.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn check(&self, task: &Task) -> Result<(), String> {
        let mut tools = self.tools.iter().enumerate();
        tools.try_for_each(|(place, tool)| tool.check(&format!("roll.agent.tools[{place}]"), task))
    }

    /// The messages before the first turn.
    fn opening(&self, task: &Task) -> Result<Vec<ChatMessage>, AgentError> {
        let system = self.system.as_ref().map(|system| system.render(task)).transpose()?;
        let mut messages: Vec<_> = system.map(|text| message("system", text)).into_iter().collect();
        messages.extend(task.init_messages.iter().cloned());
        Ok(messages)
    }

    /// The messages of the first call for a task; none where a template does not fit it.
    pub(super) fn prompt(&self, task: &Task) -> Option<Vec<ChatMessage>> {
        let mut messages = self.opening(task).ok()?;
        let first = self.turns(task).ok()?.into_iter().next().flatten();
        messages.extend(first.map(|text| message("user", text)));
        Some(messages)
    }

    /// Renders the prompts of a task.
    ///
    /// # Errors
    /// A sentence: a template does not fit the task, or the task asks nothing.
    pub(super) fn verify(&self, task: &Task) -> Result<(), String> {
        let opening = self.opening(task).map_err(|error| error.to_string())?;
        let turns = self.turns(task).map_err(|error| error.to_string())?;
        let is_blank = |text: &str| text.trim().is_empty();
        let has_message = opening
            .iter()
            .any(|message| message.role != "system" && message.content.as_str().is_none_or(|text| !is_blank(text)));
        if has_message || turns.iter().flatten().any(|turn| !is_blank(turn)) {
            return Ok(());
        }
        let fields = task.metadata.as_object().into_iter().flat_map(|fields| fields.keys());
        let mut fields: Vec<_> = fields.map(String::as_str).collect();
        fields.sort_unstable();
        let fields = fields.join(", ");
        Err(format!(
            "the prompt is empty; the fields of the task are: {fields}\nhint: `ajet.task_reader.columns: {{main_query: \
             \"{{{{ question }}}}\"}}` takes the question from the field `question`"
        ))
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
        let mut conversation = Conversation {
            messages: self.opening(task)?,
            ..Conversation::default()
        };
        // Tools of an episode share a directory, so that one can read what another wrote.
        let directory = match self.tools.is_empty() {
            true => None,
            false => Some(tempfile::Builder::new().prefix("ajet-episode-").tempdir()?),
        };
        let directory = directory.as_ref().map(tempfile::TempDir::path);
        for turn in self.turns(task)? {
            conversation.messages.extend(turn.map(|text| message("user", text)));
            if !self.answer(&mut conversation, task, access, directory).await? {
                break;
            }
        }
        Ok(conversation.rollout(!self.tools.is_empty()))
    }

    /// Calls the model until it answers without a tool call; whether it did, within `max_turns`.
    async fn answer(
        &self,
        conversation: &mut Conversation,
        task: &Task,
        access: &Access,
        directory: Option<&Path>,
    ) -> Result<bool, AgentError> {
        for _ in 0..self.max_turns.unwrap_or(MAX_TURNS) {
            let answer = self.call_model(conversation, access).await?;
            let calls = answer.tool_calls.clone().unwrap_or_default();
            conversation.messages.push(answer);
            // A model may write calls though it has no tools; that is its answer then.
            let Some(directory) = directory.filter(|_| !calls.is_empty()) else {
                return Ok(true);
            };
            for call in calls {
                let result = tools::run_call(&self.tools, &call, task, access, directory).await?;
                conversation.tool_calls += 1;
                conversation.tool_errors += u64::from(result.is_error);
                conversation.messages.push(ChatMessage {
                    tool_call_id: Some(call.id),
                    ..message("tool", result.text)
                });
            }
        }
        Ok(false)
    }

    async fn call_model(&self, conversation: &mut Conversation, access: &Access) -> Result<ChatMessage, AgentError> {
        let offers = || self.tools.iter().map(Tool::offer).collect();
        let request = ChatRequest {
            model: Some(access.model_name.clone()),
            messages: conversation.messages.clone(),
            tools: (!self.tools.is_empty()).then(offers),
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            stop: self.stop.clone().map(StopStrings::Many),
            ..ChatRequest::default()
        };
        let (started, begun) = (Instant::now(), SystemTime::now());
        let answer = access.model.chat(&request).await?;
        let choice = answer.choices.into_iter().next();
        let choice = choice.ok_or_else(|| AgentError::Answer("no choice".into()))?;
        let finish_reason = serde_json::to_value(&choice.finish_reason);
        let finish_reason = finish_reason
            .ok()
            .as_ref()
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_string();
        conversation.answers.push(RecordedAnswer {
            message: conversation.messages.len(),
            prompt_tokens: answer.usage.prompt_tokens,
            completion_tokens: answer.usage.completion_tokens,
            finish_reason,
            begun: begun.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            seconds: started.elapsed().as_secs_f64(),
        });
        Ok(choice.message)
    }
}

impl Conversation {
    fn rollout(self, has_tools: bool) -> Rollout {
        // After tool calls that nothing follows, the model's last words count.
        let answer = self.messages.iter().rfind(|message| message.role == "assistant");
        let output = answer.and_then(|answer| answer.content.as_str()).unwrap_or_default();
        let metrics = [("tool_calls", self.tool_calls), ("tool_errors", self.tool_errors)];
        let metrics = metrics.map(|(name, count)| (name.to_string(), Value::from(count)));
        Rollout {
            output: output.to_string(),
            log_metrics: IndexMap::from_iter(metrics.into_iter().filter(|_| has_tools)),
            llm_calls: Some(self.answers.len() as u64),
            response_tokens: Some(self.answers.iter().map(|answer| answer.completion_tokens).sum()),
            answers: self.answers,
            messages: self.messages,
            ..Rollout::default()
        }
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
    use std::sync::{Arc, Mutex};

    use axum::{Json, Router, routing::post};
    use serde_json::json;

    use super::*;
    use crate::client::ModelApi;
    use crate::roll::job::test_section;

    fn chat(yaml: &str) -> Chat {
        test_section("roll.agent", yaml)
    }

    /// A model that answers with these messages, one after the other, and keeps the requests.
    async fn model(answers: Vec<Value>) -> (Access, Arc<Mutex<Vec<Value>>>) {
        let requests = Arc::new(Mutex::new(vec![]));
        let kept = requests.clone();
        let chat = move |Json(request): Json<Value>| {
            let mut requests = kept.lock().unwrap();
            let message = answers[requests.len()].clone();
            requests.push(request);
            let finish_reason = if message["tool_calls"].is_null() {
                "stop"
            } else {
                "tool_calls"
            };
            std::future::ready(Json(json!({
                "id": "1", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
            })))
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/chat/completions", post(chat));
        tokio::spawn(async { axum::serve(listener, router).await });
        let access = Access {
            model: ModelApi::new(&url, "key").unwrap(),
            model_name: "m".into(),
            episode_uuid: "e".into(),
            is_recorded: false,
        };
        (access, requests)
    }

    fn calls(calls: &[(&str, &str, &str)]) -> Value {
        let calls: Vec<_> = calls
            .iter()
            .map(|(id, name, arguments)| {
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        json!({"role": "assistant", "content": null, "tool_calls": calls})
    }

    fn text(text: &str) -> Value {
        json!({"role": "assistant", "content": text})
    }

    const WITH_TOOLS: &str = "{user: go, max_turns: 3, tools: [
        {name: write, argv: [sh, -c, 'echo \"$0\" > f', '{{ arguments.text }}'], description: Writes.,
         parameters: {type: object, properties: {text: {type: string}}, required: [text]}},
        {name: read, argv: [cat, f]}]}";

    #[tokio::test]
    async fn tool_calls_run_in_order_and_their_results_go_back_to_the_model() {
        let (access, requests) = model(vec![
            calls(&[
                ("1", "write", "{\"text\": \"hi\"}"),
                ("2", "read", ""),
                ("3", "write", "{}"),
            ]),
            text("done"),
        ])
        .await;
        let rollout = chat(WITH_TOOLS).run(&Task::default(), &access).await.unwrap();
        assert_eq!(rollout.output, "done");
        assert_eq!((rollout.llm_calls, rollout.response_tokens), (Some(2), Some(6)));
        assert_eq!(
            (&rollout.log_metrics["tool_calls"], &rollout.log_metrics["tool_errors"]),
            (&json!(3), &json!(1))
        );
        let requests = requests.lock().unwrap();
        assert_eq!(requests[0]["tools"][0]["function"]["name"], "write");
        assert_eq!(requests[0]["tools"][1]["function"]["parameters"]["type"], "object");
        let results: Vec<_> = requests[1]["messages"].as_array().unwrap()[2..]
            .iter()
            .map(|message| {
                (
                    message["role"].as_str(),
                    message["tool_call_id"].as_str(),
                    message["content"].as_str(),
                )
            })
            .collect();
        let tool = Some("tool");
        assert_eq!(
            results,
            [
                (tool, Some("1"), Some("")),
                (tool, Some("2"), Some("hi")),
                (tool, Some("3"), Some("error: arguments.text is missing")),
            ]
        );
        assert_eq!(rollout.messages.len(), 6);
    }

    #[tokio::test]
    async fn a_model_that_only_calls_tools_comes_to_an_end() {
        let (access, requests) = model(vec![calls(&[("1", "read", "")]); 4]).await;
        let rollout = chat(WITH_TOOLS).run(&Task::default(), &access).await.unwrap();
        assert_eq!((rollout.output.as_str(), rollout.llm_calls), ("", Some(3)));
        assert_eq!(requests.lock().unwrap().len(), 3);
    }

    #[tokio::test]
    async fn every_turn_is_answered_and_calls_without_tools_are_an_answer() {
        let (access, requests) = model(vec![calls(&[("1", "read", "")]), text("two")]).await;
        let rollout = chat("{turns: [a, b]}").run(&Task::default(), &access).await.unwrap();
        assert_eq!((rollout.output.as_str(), rollout.llm_calls), ("two", Some(2)));
        assert!(rollout.log_metrics.is_empty());
        let requests = requests.lock().unwrap();
        assert_eq!(requests[1]["messages"][2], json!({"role": "user", "content": "b"}));
        assert!(requests[0].get("tools").is_none());
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

    #[test]
    fn tools_of_one_name_exclude_each_other() {
        let chat = chat("{tools: [{name: a, argv: [sh]}, {name: a, argv: [no-such-program]}]}");
        let problems: Vec<_> = chat.problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            ["roll.agent.tools[1].name: \"a\" is the name of an earlier tool too"]
        );
        let missing = chat.check(&Task::default()).unwrap_err();
        assert!(
            missing.starts_with("roll.agent.tools[1].argv: there is no program"),
            "{missing}"
        );
    }
}
