//! The agent that needs no program: a system message, user turns, tools that are commands, the model's answers.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::tools::{self, Tool};
use super::turn::{Answers, Question, Turn};
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
    /// User messages, each answered before the next one is sent. It excludes `user`.
    turns: Option<Vec<Turn>>,
    /// Programs that the model may call. Calls of one answer run one after the other, in their order.
    tools: Vec<Tool>,
    /// Maximum number of model calls that follow a user message, since each tool call leads to another one. Beyond it
    /// the conversation ends. Default: 16.
    #[schemars(range(min = 1, max = 100_000))]
    max_turns: Option<u64>,
    /// Maximum number of tokens of an answer. Default: the server's limits; with `--api`, that of the job's `ajet:` part.
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
    /// Fails with a message.
    pub(super) fn check(&self, task: &Task) -> Result<(), String> {
        let mut tools = self.tools.iter().enumerate();
        tools.try_for_each(|(place, tool)| tool.check(&format!("roll.agent.tools[{place}]"), task))
    }

    /// The messages before the first turn.
    fn opening(&self, task: &Task) -> Result<Vec<ChatMessage>, AgentError> {
        let system = self.system.as_ref().map(|system| system.render(task)).transpose()?;
        let mut messages: Vec<_> = system
            .map(|text| ChatMessage::new("system", text))
            .into_iter()
            .collect();
        messages.extend(task.init_messages.iter().cloned());
        Ok(messages)
    }

    /// The messages of the first call for a task; none where a template does not fit it.
    pub(super) fn prompt(&self, task: &Task) -> Option<Vec<ChatMessage>> {
        let mut messages = self.opening(task).ok()?;
        let first = self.questions().into_iter().next()?.text(task, &Answers::new()).ok()?;
        messages.extend(first.map(|text| ChatMessage::new("user", text)));
        Some(messages)
    }

    /// Problems with the models of `roll.swarms`: an episode calls each of them.
    pub(super) fn problems_with_models(&self, models: &[&str]) -> Vec<Problem> {
        let questions = self.questions();
        let mut problems = vec![];
        for (place, question) in questions.iter().enumerate() {
            if let Some(name) = question.model.filter(|name| !models.contains(name)) {
                let message = match models.is_empty() {
                    true => format!("{name:?} is a model of roll.swarms, and there is none"),
                    false => format!("{name:?} is not one of {}", models.join(", ")),
                };
                problems.push(Problem::new(format!("roll.agent.turns[{place}].model"), message));
            }
        }
        let is_called = |model: &str, place: usize| {
            let mut called = questions.iter().map(|question| question.model);
            called.any(|called| called == Some(model) || place == 0 && called.is_none())
        };
        for (place, model) in models.iter().enumerate() {
            if !is_called(model, place) {
                let message =
                    format!("no turn calls the model {model}; name it in one, as {{model: {model}, user: …}}");
                problems.push(Problem::new("roll.agent.turns", message));
            }
        }
        problems
    }

    /// Renders the prompts of a task. `models` are the names of several models.
    ///
    /// # Errors
    /// Fails with a message if a template does not fit the task, or the task asks nothing.
    pub(super) fn verify(&self, task: &Task, models: &[&str]) -> Result<(), String> {
        let opening = self.opening(task).map_err(|error| error.to_string())?;
        let (mut turns, mut answers) = (vec![], Answers::new());
        for question in self.questions() {
            turns.push(question.text(task, &answers).map_err(|error| error.to_string())?);
            let model = question.model.or(models.first().copied());
            answers.extend(model.map(|model| (model.to_owned(), String::new())));
        }
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

    /// What the user says, turn by turn.
    fn questions(&self) -> Vec<Question<'_>> {
        match self.turns.as_deref() {
            Some(turns) if !turns.is_empty() => turns.iter().map(Turn::question).collect(),
            _ => vec![Question {
                model: None,
                user: self.user.as_ref(),
            }],
        }
    }

    pub(super) async fn run(&self, task: &Task, access: &Access) -> Result<Rollout, AgentError> {
        let opening = self.opening(task)?;
        // Tools of an episode share a directory, so that one can read what another wrote.
        let directory = match self.tools.is_empty() {
            true => None,
            false => Some(tempfile::Builder::new().prefix("ajet-episode-").tempdir()?),
        };
        let directory = directory.as_ref().map(tempfile::TempDir::path);
        let (mut conversations, mut answers) = (IndexMap::new(), Answers::new());
        let mut last = None;
        for question in self.questions() {
            let (name, access) = access.of(question.model);
            let conversation = conversations.entry(name.to_owned()).or_insert_with(|| Conversation {
                messages: opening.clone(),
                ..Conversation::default()
            });
            let text = question.text(task, &answers)?;
            conversation
                .messages
                .extend(text.map(|text| ChatMessage::new("user", text)));
            let has_answered = self.answer(conversation, task, &access, directory).await?;
            answers.insert(name.to_owned(), conversation.output().to_owned());
            last = Some(name.to_owned());
            if !has_answered {
                break;
            }
        }
        Ok(rollout(conversations, last.as_deref(), !self.tools.is_empty()))
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
                    ..ChatMessage::new("tool", result.text)
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
            max_completion_tokens: access.max_completion_tokens.filter(|_| self.max_tokens.is_none()),
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
    /// The model's last words. After tool calls that nothing follows, those before count.
    fn output(&self) -> &str {
        let answer = self.messages.iter().rfind(|message| message.role == "assistant");
        answer.and_then(|answer| answer.content.as_str()).unwrap_or_default()
    }
}

/// What came of the conversation with each model; `last` names the one that answered last.
fn rollout(mut conversations: IndexMap<String, Conversation>, last: Option<&str>, has_tools: bool) -> Rollout {
    let sum = |count: fn(&Conversation) -> u64| conversations.values().map(count).sum::<u64>();
    let metrics = [
        ("tool_calls", sum(|conversation| conversation.tool_calls)),
        ("tool_errors", sum(|conversation| conversation.tool_errors)),
    ];
    let metrics = metrics.map(|(name, count)| (name.to_string(), Value::from(count)));
    let llm_calls = sum(|conversation| conversation.answers.len() as u64);
    let tokens = |conversation: &Conversation| {
        let answers = conversation.answers.iter();
        answers.map(|answer| answer.completion_tokens).sum()
    };
    let response_tokens = sum(tokens);
    let last = last
        .and_then(|last| conversations.swap_remove(last))
        .unwrap_or_default();
    Rollout {
        output: last.output().to_string(),
        log_metrics: IndexMap::from_iter(metrics.into_iter().filter(|_| has_tools)),
        llm_calls: Some(llm_calls),
        response_tokens: Some(response_tokens),
        answers: last.answers,
        messages: last.messages,
        ..Rollout::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::{Json, Router, routing::post};
    use serde_json::json;

    use super::super::ModelAccess;
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
            max_completion_tokens: None,
            models: indexmap::IndexMap::new(),
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
    async fn the_jobs_limit_of_an_answer_is_sent_where_the_server_does_not_know_it() {
        for (agent, limit, sent) in [
            ("{user: go}", None, (json!(null), json!(null))),
            ("{user: go}", Some(7), (json!(null), json!(7))),
            ("{user: go, max_tokens: 3}", Some(7), (json!(3), json!(null))),
        ] {
            let (mut access, requests) = model(vec![text("done")]).await;
            access.max_completion_tokens = limit;
            chat(agent).run(&Task::default(), &access).await.unwrap();
            let request = &requests.lock().unwrap()[0];
            assert_eq!(
                (request["max_tokens"].clone(), request["max_completion_tokens"].clone()),
                sent,
                "{agent} {limit:?}"
            );
        }
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
            init_messages: vec![ChatMessage::new("user", "hi"), ChatMessage::new("assistant", "hello")],
            ..query.clone()
        };
        let roles = |chat: &Chat, task: &Task| -> Vec<String> {
            chat.opening(task)
                .unwrap()
                .into_iter()
                .map(|message| message.role)
                .collect()
        };
        let texts = |chat: &Chat, task: &Task| -> Vec<Option<String>> {
            let questions = chat.questions().into_iter();
            questions
                .map(|question| question.text(task, &Answers::new()).unwrap())
                .collect()
        };
        let plain = chat("{}");
        assert!(roles(&plain, &query).is_empty());
        assert_eq!(texts(&plain, &query), [Some("1+1".into())]);
        assert_eq!(roles(&plain, &dialogue), ["user", "assistant"]);
        assert_eq!(texts(&plain, &dialogue), [None]);
        let full = chat("{system: be brief, turns: ['{{ main_query }}?', sure?]}");
        assert_eq!(roles(&full, &dialogue), ["system", "user", "assistant"]);
        assert_eq!(texts(&full, &query), [Some("1+1?".into()), Some("sure?".into())]);
    }

    #[tokio::test]
    async fn each_of_several_models_has_a_conversation_of_its_own_and_sees_the_others_answers() {
        let (mut access, planned) = model(vec![text("add"), text("yes")]).await;
        let (other, solved) = model(vec![text("2")]).await;
        for (name, api) in [("planner", &access.model), ("solver", &other.model)] {
            let model = ModelAccess {
                api: api.clone(),
                model_name: name.into(),
            };
            access.models.insert(name.into(), model);
        }
        let chat = chat(
            "{system: be brief, turns: ['Plan {{ main_query }}', {model: solver, user: '{{ answers.planner }}!'}, \
             {model: planner, user: '{{ answers.solver }}?'}]}",
        );
        let task = Task {
            main_query: "1+1".into(),
            ..Task::default()
        };
        chat.verify(&task, &["planner", "solver"]).unwrap();
        assert!(chat.problems_with_models(&["planner", "solver"]).is_empty());
        let rollout = chat.run(&task, &access).await.unwrap();
        assert_eq!((rollout.output.as_str(), rollout.llm_calls), ("yes", Some(3)));
        assert_eq!(rollout.messages.len(), 5);
        let said = |requests: &[Value], at: usize| -> Vec<String> {
            let messages = requests[at]["messages"].as_array().unwrap().iter();
            messages
                .map(|message| message["content"].as_str().unwrap().to_owned())
                .collect()
        };
        let planned = planned.lock().unwrap();
        assert_eq!(said(&planned, 1), ["be brief", "Plan 1+1", "add", "2?"]);
        assert_eq!(said(&solved.lock().unwrap(), 0), ["be brief", "add!"]);
        assert_eq!(planned[0]["model"], "planner");
    }

    #[test]
    fn a_model_that_no_turn_calls_or_that_is_unknown_is_named() {
        let problems = |yaml: &str, models: &[&str]| -> String {
            let problems = chat(yaml).problems_with_models(models);
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(problems("{user: hi}", &[]), "");
        let told = problems("{turns: [hi, {model: sover, user: hi}]}", &["planner", "solver"]);
        assert!(
            told.contains("roll.agent.turns[1].model: \"sover\" is not one of planner, solver"),
            "{told}"
        );
        assert!(told.contains("no turn calls the model solver"), "{told}");
        let told = problems("{turns: [{model: planner, user: hi}]}", &[]);
        assert!(told.contains("there is none"), "{told}");
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
