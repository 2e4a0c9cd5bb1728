//! Parsing of chat requests: every error names the field, the given value and the allowed ones.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::ChatError;
use crate::config::schema::{LEAST_TEMPERATURE, Rollout};
use crate::inference::Bias;
use crate::protocol::openai::{ChatMessage, ChatRequest};
use crate::protocol::swarm::EpisodeType;
use crate::protocol::type_error::in_json_words;
use crate::timeline::Conversation;

const MAX_ANSWERS: u64 = 128;
const MAX_TOP_LOGPROBS: u64 = 20;
/// Maximum number of stop strings: each is searched for after every token, between two sampling steps.
const MAX_STOPS: usize = 64;
/// Maximum number of tokens whose logits a request may change, and maximum change.
const MAX_BIASED: usize = 1024;
const MAX_BIAS: f64 = 100.0;

/// A valid request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Model name, unchanged.
    pub model: String,
    /// Messages and tools for the chat template.
    pub conversation: Conversation,
    /// Number of answers.
    pub n: usize,
    /// Whether to stream chunks.
    pub stream: bool,
    /// Whether to send a last chunk with the usage.
    pub include_usage: bool,
    /// Whether every chunk contains the usage so far.
    pub continuous_usage: bool,
    /// Strings that end an answer.
    pub stop: Vec<String>,
    /// Requested maximum number of tokens in an answer.
    pub max_tokens: Option<usize>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Whether to return log-probabilities.
    pub logprobs: bool,
    /// Number of most likely tokens with log-probabilities.
    pub top_logprobs: usize,
    /// Whether to return token ids.
    pub return_token_ids: bool,
    /// Whether an answer may have several tool calls.
    pub parallel_tool_calls: bool,
    /// Required tool call.
    pub forced_call: Option<ForcedCall>,
    /// Beginning of the answer, given by the request.
    pub opening: Option<String>,
}

/// A tool call required by the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForcedCall {
    /// Any function.
    Any,
    /// This function.
    Named(String),
}

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    pub temperature: f64,
    pub top_p: f64,
    pub top_k: Option<usize>,
    pub min_p: f64,
    /// Logit bias; none in train episodes, whose tokens must be sampled from the unmodified model.
    pub bias: Bias,
    /// Requested seed; none in train episodes, whose answers to the same prompt must differ.
    pub seed: Option<i64>,
}

impl Request {
    /// Parses a request of an episode of this type.
    pub fn read(body: Value, episode_type: EpisodeType, rollout: &Rollout) -> Result<Self, ChatError> {
        let mut request = typed(body)?;
        let n = number("n", request.n, 1, MAX_ANSWERS)?.unwrap_or(1);
        if n != 1 && episode_type == EpisodeType::Train {
            return Err(ChatError::invalid(
                "n",
                format!("`n` must be 1 in a train episode, got {n}"),
            ));
        }
        let top_logprobs = number("top_logprobs", request.top_logprobs, 0, MAX_TOP_LOGPROBS)?.unwrap_or(0);
        let logprobs = request.logprobs.unwrap_or(false);
        if top_logprobs > 0 && !logprobs {
            return Err(ChatError::invalid(
                "top_logprobs",
                "`top_logprobs` requires `logprobs` to be true",
            ));
        }
        let max_tokens = number("max_tokens", request.max_tokens, 1, u64::MAX)?;
        let max_completion_tokens = number("max_completion_tokens", request.max_completion_tokens, 1, u64::MAX)?;
        let (tools, forced_call) = tools(&request, rollout)?;
        let opening = take_opening(&mut request)?;
        if opening.is_some() && forced_call.is_some() {
            let message = "`tool_choice` requires a tool call, but the last message starts the answer with text";
            return Err(ChatError::invalid("tool_choice", message));
        }
        let stream_options = request.stream_options.clone().unwrap_or_default();
        Ok(Self {
            sampling: match episode_type {
                EpisodeType::Train => {
                    refuse_bias(&request)?;
                    SamplingParams::configured(rollout)
                }
                EpisodeType::Eval => SamplingParams::asked(&request, rollout)?,
            },
            n: n as usize,
            stream: request.stream.unwrap_or(false),
            include_usage: stream_options.include_usage,
            continuous_usage: stream_options.continuous_usage_stats,
            stop: stop_strings(&request)?,
            max_tokens: max_completion_tokens
                .or(max_tokens)
                .map(|tokens| tokens.try_into().unwrap_or(usize::MAX)),
            logprobs,
            top_logprobs: top_logprobs as usize,
            return_token_ids: request.return_token_ids.unwrap_or(false),
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            forced_call,
            opening,
            conversation: Conversation {
                messages: messages(&request.messages, rollout)?,
                tools,
                template_kwargs: template_variables(&request),
            },
            model: request.model.unwrap_or_default(),
        })
    }
}

impl SamplingParams {
    fn configured(rollout: &Rollout) -> Self {
        Self {
            temperature: rollout.temperature,
            top_p: rollout.top_p,
            top_k: usize::try_from(rollout.top_k).ok().filter(|k| *k > 0),
            min_p: 0.0,
            bias: Bias::default(),
            seed: None,
        }
    }

    fn asked(request: &ChatRequest, rollout: &Rollout) -> Result<Self, ChatError> {
        let defaults = &rollout.val_kwargs;
        let temperature = if defaults.do_sample { defaults.temperature } else { 0.0 };
        let top_k = request.top_k.unwrap_or(defaults.top_k);
        if top_k < -1 {
            return Err(ChatError::invalid(
                "top_k",
                format!("`top_k` must be at least 1, or -1 or 0 for all tokens, got {top_k}"),
            ));
        }
        Ok(Self {
            temperature: real("temperature", request.temperature, 0.0, 2.0)?
                .or(Some(temperature))
                .filter(|temperature| *temperature >= LEAST_TEMPERATURE)
                .unwrap_or(0.0),
            top_p: real("top_p", request.top_p, 0.0, 1.0)?.unwrap_or(defaults.top_p),
            top_k: usize::try_from(top_k).ok().filter(|k| *k > 0),
            min_p: real("min_p", request.min_p, 0.0, 1.0)?.unwrap_or(0.0),
            bias: Bias {
                frequency_penalty: penalty("frequency_penalty", request.frequency_penalty)?,
                presence_penalty: penalty("presence_penalty", request.presence_penalty)?,
                logits: logit_bias(request)?,
            },
            seed: request.seed,
        })
    }
}

fn penalty(name: &str, given: Option<f64>) -> Result<f32, ChatError> {
    Ok(real(name, given, -2.0, 2.0)?.unwrap_or(0.0) as f32)
}

/// Returns the logit biases in the order of token ids.
fn logit_bias(request: &ChatRequest) -> Result<Vec<(u32, f32)>, ChatError> {
    let invalid = |message: String| Err(ChatError::invalid("logit_bias", message));
    let given = request.logit_bias.iter().flatten();
    if given.clone().count() > MAX_BIASED {
        return invalid(format!("`logit_bias` may have at most {MAX_BIASED} tokens"));
    }
    let mut added = BTreeMap::new();
    for (token, more) in given {
        let Ok(id) = token.parse::<u32>() else {
            return invalid(format!("the keys of `logit_bias` must be token ids, got {token:?}"));
        };
        if !(-MAX_BIAS..=MAX_BIAS).contains(more) {
            return invalid(format!(
                "`logit_bias` of token {id} must be between {} and {MAX_BIAS}, got {more}",
                -MAX_BIAS
            ));
        }
        added.insert(id, *more as f32);
    }
    added.retain(|_, more| *more != 0.0);
    Ok(added.into_iter().collect())
}

fn refuse_bias(request: &ChatRequest) -> Result<(), ChatError> {
    let biased = request.logit_bias.iter().flatten().any(|(_, more)| *more != 0.0);
    for (name, asked) in [
        ("frequency_penalty", request.frequency_penalty.unwrap_or(0.0) != 0.0),
        ("presence_penalty", request.presence_penalty.unwrap_or(0.0) != 0.0),
        ("logit_bias", biased),
    ] {
        if asked {
            let message = format!(
                "`{name}` is not supported in train episodes, which train on samples of the unmodified model; hint: \
                 omit it"
            );
            return Err(ChatError::invalid(name, message));
        }
    }
    Ok(())
}

/// Deserialises a request; an error names the field, and the number of the message if it is in one. It is read from
/// text: serde_json's conversion from a value turns 1e400 into infinity.
fn typed(body: Value) -> Result<ChatRequest, ChatError> {
    let Value::Object(fields) = body else {
        return Err(ChatError::InvalidRequest {
            param: None,
            message: "the request must be a JSON object".into(),
        });
    };
    if let Some(Value::Array(messages)) = fields.get("messages") {
        for (at, message) in messages.iter().enumerate() {
            if let Err(error) = ChatMessage::deserialize(message) {
                let param = format!("messages[{at}]");
                let message = format!("`{param}` is not a valid chat message: {error}");
                return Err(ChatError::invalid(param, message));
            }
        }
    }
    let text = serde_json::to_string(&fields).unwrap_or_default(); // infallible for a map of values
    serde_json::from_str(&text).map_err(|error| {
        let alone = |(name, value): (String, Value)| {
            let field = Value::Object(Map::from_iter([(name.clone(), value)]));
            let error = serde_json::from_str::<ChatRequest>(&field.to_string()).err()?;
            let message = format!("`{name}` is invalid: {}", in_json_words(&error));
            Some(ChatError::invalid(name, message))
        };
        fields
            .into_iter()
            .find_map(alone)
            .unwrap_or_else(|| ChatError::InvalidRequest {
                param: None,
                message: error.to_string(),
            })
    })
}

fn number(name: &str, given: Option<u64>, min: u64, max: u64) -> Result<Option<u64>, ChatError> {
    match given {
        Some(value) if value < min || value > max => {
            let allowed = if max == u64::MAX {
                format!("at least {min}")
            } else {
                format!("between {min} and {max}")
            };
            Err(ChatError::invalid(
                name,
                format!("`{name}` must be {allowed}, got {value}"),
            ))
        }
        given => Ok(given),
    }
}

fn real(name: &str, given: Option<f64>, min: f64, max: f64) -> Result<Option<f64>, ChatError> {
    match given {
        Some(value) if !(min..=max).contains(&value) => Err(ChatError::invalid(
            name,
            format!("`{name}` must be between {min} and {max}, got {value}"),
        )),
        given => Ok(given),
    }
}

/// Returns the variables for the chat template. A field of its own does not override a variable given by name.
fn template_variables(request: &ChatRequest) -> Map<String, Value> {
    let mut variables = request.chat_template_kwargs.clone().unwrap_or_default();
    let reasoning = request.reasoning.as_ref();
    let effort = reasoning.and_then(|reasoning| reasoning.effort.as_deref());
    let effort = request.reasoning_effort.as_deref().or(effort);
    let switched = match request.thinking.as_ref().and_then(|thinking| thinking.kind.as_deref()) {
        Some("enabled") => Some(true),
        Some("disabled") => Some(false),
        _ => reasoning.and_then(|reasoning| reasoning.enabled),
    };
    let thinks = request.enable_thinking.or(switched);
    let thinks = thinks.or((effort == Some("none")).then_some(false));
    let fields = [
        ("enable_thinking", thinks.map(Value::from)),
        ("reasoning_effort", effort.map(Value::from)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            variables.entry(name).or_insert(value);
        }
    }
    variables
}

/// Removes the last message if it is the beginning of the answer.
fn take_opening(request: &mut ChatRequest) -> Result<Option<String>, ChatError> {
    let continues = request.continue_final_message.unwrap_or(false);
    match (continues, request.add_generation_prompt) {
        (true, Some(true)) => {
            let message = "`add_generation_prompt` and `continue_final_message` cannot both be true";
            return Err(ChatError::invalid("add_generation_prompt", message));
        }
        (false, Some(false)) => {
            let message = "`add_generation_prompt: false` requires `continue_final_message` to be true";
            return Err(ChatError::invalid("add_generation_prompt", message));
        }
        (false, _) => return Ok(None),
        (true, _) => {}
    }
    let at = request.messages.len().saturating_sub(1);
    let calls = |message: &ChatMessage| message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    match request.messages.pop() {
        Some(last) if last.role == "assistant" && !calls(&last) => {
            if request.messages.is_empty() {
                let message = "`messages` has only the assistant's message with which the answer begins; hint: put a \
                               user's message before it";
                return Err(ChatError::invalid("messages", message));
            }
            Ok(Some(text_content(at, &last)?))
        }
        _ => Err(ChatError::invalid(
            "continue_final_message",
            "`continue_final_message` requires a last message of the assistant with text only",
        )),
    }
}

fn stop_strings(request: &ChatRequest) -> Result<Vec<String>, ChatError> {
    let stop = request.stop.as_ref().map_or(&[][..], |stop| stop.as_slice());
    if stop.iter().any(String::is_empty) {
        return Err(ChatError::invalid(
            "stop",
            "`stop` contains an empty string, which would end every answer",
        ));
    }
    if stop.len() > MAX_STOPS {
        let message = format!("`stop` may have at most {MAX_STOPS} strings, got {}", stop.len());
        return Err(ChatError::invalid("stop", message));
    }
    Ok(stop.to_vec())
}

fn messages(given: &[ChatMessage], rollout: &Rollout) -> Result<Vec<Value>, ChatError> {
    if given.is_empty() {
        return Err(ChatError::invalid(
            "messages",
            "`messages` must contain at least one message",
        ));
    }
    let mut messages = Vec::with_capacity(given.len() + 1);
    for (at, message) in given.iter().enumerate() {
        messages.push(template_message(at, message)?);
    }
    if let Some(prompt) = &rollout.default_system_prompt
        && messages.iter().all(|message| message["role"] != "system")
    {
        messages.insert(0, json!({"role": "system", "content": prompt}));
    }
    Ok(messages)
}

/// Converts a message for chat templates and timelines: content as a string, or null if an assistant only calls tools; no
/// empty fields.
fn template_message(at: usize, message: &ChatMessage) -> Result<Value, ChatError> {
    let role = match message.role.as_str() {
        // Templates do not know OpenAI's newer name of the system role.
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        role => {
            let param = format!("messages[{at}].role");
            let message = format!("`{param}` must be system, developer, user, assistant or tool, got `{role}`");
            return Err(ChatError::invalid(param, message));
        }
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    let calls = message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    let says_nothing = message.content.is_null() && message.refusal.is_none();
    let content = match calls && says_nothing {
        true => Value::Null,
        false => text_content(at, message)?.into(),
    };
    out.insert("content".into(), content);
    let reasoning = message.reasoning_content.as_deref().or(message.reasoning.as_str());
    if let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) {
        out.insert("reasoning_content".into(), reasoning.into());
    }
    if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
        if role != "assistant" {
            let param = format!("messages[{at}].tool_calls");
            let message = format!("`{param}` is only allowed in assistant messages, but the role is `{role}`");
            return Err(ChatError::invalid(param, message));
        }
        out.insert("tool_calls".into(), json!(calls));
    }
    if let Some(id) = &message.tool_call_id {
        out.insert("tool_call_id".into(), id.as_str().into());
    }
    if let Some(name) = &message.name {
        out.insert("name".into(), name.as_str().into());
    }
    Ok(Value::Object(out))
}

fn text_content(at: usize, message: &ChatMessage) -> Result<String, ChatError> {
    let param = || format!("messages[{at}].content");
    let parts = match &message.content {
        Value::Null => return Ok(message.refusal.clone().unwrap_or_default()),
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => {
            let message = format!(
                "`{}` must be a string, null, or a list of text parts, got {other}",
                param()
            );
            return Err(ChatError::invalid(param(), message));
        }
    };
    let texts = parts.iter().enumerate().map(
        |(number, part)| match (&part["type"], &part["text"], &part["refusal"]) {
            (Value::String(kind), Value::String(text), _) if kind == "text" => Ok(text.as_str()),
            (Value::String(kind), _, Value::String(text)) if kind == "refusal" => Ok(text.as_str()),
            (kind, ..) => {
                let param = format!("{}[{number}]", param());
                let message = format!("`{param}` has type {kind}, but only text parts are supported");
                Err(ChatError::invalid(param, message))
            }
        },
    );
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Returns the tools for the template (none if they are switched off), and the required call.
fn tools(request: &ChatRequest, rollout: &Rollout) -> Result<(Vec<Value>, Option<ForcedCall>), ChatError> {
    let tools = request.tools.clone().unwrap_or_default();
    for (at, tool) in tools.iter().enumerate() {
        if tool["type"] != "function" || !tool["function"]["name"].is_string() {
            let param = format!("tools[{at}]");
            let message = format!("`{param}` must be of type `function` and have a `function.name`");
            return Err(ChatError::invalid(param, message));
        }
    }
    // The choice may have been written in another API's terms.
    let refuse = |why: String| Err(ChatError::invalid("tool_choice", format!("`tool_choice` {why}")));
    let forced = match &request.tool_choice {
        None | Some(Value::Null) => None,
        Some(Value::String(choice)) if choice == "auto" => None,
        Some(Value::String(choice)) if choice == "none" => return Ok((Vec::new(), None)),
        Some(Value::String(required)) if required == "required" => {
            if tools.is_empty() {
                return refuse("requires a tool call, but `tools` is empty".to_owned());
            }
            Some(ForcedCall::Any)
        }
        Some(choice) => {
            let name = &choice["function"]["name"];
            let Some(named) = name.as_str().filter(|_| choice["type"] == "function") else {
                return refuse(format!(
                    "must be `auto`, `none`, `required` or a function by name, got {choice}"
                ));
            };
            if tools.iter().all(|tool| tool["function"]["name"] != *name) {
                return refuse(format!("names {name}, which is not in `tools`"));
            }
            Some(ForcedCall::Named(named.to_owned()))
        }
    };
    match rollout.force_disable_toolcalls {
        true => Ok((Vec::new(), None)),
        false => Ok((tools, forced)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(episode_type: EpisodeType, extra: Value) -> Result<Request, ChatError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Request::read(body, episode_type, &Rollout::default())
    }

    #[test]
    fn what_is_wrong_is_named() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let message = |message: Value| json!({"messages": [{"role": "user", "content": "a"}, message]});
        let cases = [
            (json!({"n": 2}), "n", "2"),
            (json!({"n": 0}), "n", "0"),
            (json!({"max_tokens": 0}), "max_tokens", "at least 1"),
            (json!({"max_tokens": -1}), "max_tokens", "-1"),
            (json!({"max_completion_tokens": 0}), "max_completion_tokens", "0"),
            (json!({"top_logprobs": 21, "logprobs": true}), "top_logprobs", "21"),
            (json!({"top_logprobs": 2}), "top_logprobs", "logprobs"),
            (json!({"stop": [""]}), "stop", "empty"),
            (json!({"stop": 3}), "stop", "a string or a list of strings"),
            (
                json!({"response_format": "json"}),
                "response_format",
                "an object with `type`",
            ),
            (json!({"response_format": {}}), "response_format", "type"),
            (json!({"reasoning": "high"}), "reasoning", "an object"),
            (json!({"stop": vec!["x"; 1000]}), "stop", "1000"),
            (json!({"stream": "yes"}), "stream", "yes"),
            (json!({"messages": []}), "messages", "at least one message"),
            (json!({"messages": "hi"}), "messages", "hi"),
            (message(json!({"content": "a"})), "messages[1]", "role"),
            (
                message(json!({"role": "robot", "content": "a"})),
                "messages[1].role",
                "robot",
            ),
            (
                message(json!({"role": "user", "content": 3})),
                "messages[1].content",
                "3",
            ),
            (
                message(json!({"role": "user", "content": [{"type": "text", "text": "a"},
                                                           {"type": "image_url", "image_url": {"url": "x"}}]})),
                "messages[1].content[1]",
                "image_url",
            ),
            (
                message(json!({"role": "user", "tool_calls": [{"id": "1", "function": {"name": "f"}}]})),
                "messages[1].tool_calls",
                "user",
            ),
            (json!({"tools": [{"type": "retrieval"}]}), "tools[0]", "function"),
            (json!({"tool_choice": "required"}), "tool_choice", "tools"),
            (
                json!({"tool_choice": "sometimes", "tools": [tool]}),
                "tool_choice",
                "sometimes",
            ),
            (
                json!({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [tool]}),
                "tool_choice",
                "\"g\"",
            ),
        ];
        for (extra, field, said) in cases {
            match read(EpisodeType::Train, extra.clone()) {
                Err(ChatError::InvalidRequest { param, message }) => {
                    assert_eq!(param.as_deref(), Some(field), "{message}");
                    assert!(message.contains(said), "{message}");
                }
                other => panic!("{extra}: {other:?}"),
            }
        }
    }

    #[test]
    fn train_episodes_draw_as_configured_and_eval_episodes_as_asked() {
        let asked = json!({"temperature": 0.2, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7,
                           "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {"5": 0}});
        let train = read(EpisodeType::Train, asked.clone()).unwrap().sampling;
        assert_eq!(train, SamplingParams::configured(&Rollout::default()));
        assert_eq!((train.temperature, train.top_k, train.seed), (1.0, None, None));

        let eval = read(EpisodeType::Eval, asked).unwrap().sampling;
        let expected = SamplingParams {
            temperature: 0.2,
            top_p: 0.5,
            top_k: Some(3),
            min_p: 0.1,
            bias: Bias::default(),
            seed: Some(7),
        };
        assert_eq!(eval, expected);
        assert!(read(EpisodeType::Eval, json!({"n": 2})).is_ok());
        assert!(read(EpisodeType::Eval, json!({"temperature": 3})).is_err());
        assert!(
            read(EpisodeType::Train, json!({"temperature": 3})).is_ok(),
            "what is ignored is not refused"
        );

        // Tiny ones are greedy: their log-probabilities would be beyond f32.
        for (temperature, drawn) in [
            (0.0, 0.0),
            (-0.0, 0.0),
            (1e-40, 0.0),
            (1e-5, 0.0),
            (1e-3, 1e-3),
            (2.0, 2.0),
        ] {
            let read = read(EpisodeType::Eval, json!({"temperature": temperature})).unwrap();
            assert_eq!(read.sampling.temperature, drawn, "{temperature}");
        }
        for wrong in [
            json!({"temperature": -0.1}),
            json!({"top_p": 1.01}),
            json!({"top_p": -1}),
            json!({"min_p": 2}),
            json!({"top_k": -2}),
            json!({"seed": 1.5}),
            json!({"seed": u64::MAX}),
        ] {
            assert!(read(EpisodeType::Eval, wrong.clone()).is_err(), "{wrong}");
        }
        for right in [
            json!({"top_p": 0}),
            json!({"top_k": 0}),
            json!({"top_k": i64::MAX}),
            json!({"seed": -1}),
        ] {
            assert!(read(EpisodeType::Eval, right.clone()).is_ok(), "{right}");
        }

        let mut rollout = Rollout::default();
        rollout.val_kwargs.do_sample = false;
        let body = json!({"messages": [{"role": "user", "content": "a"}]});
        assert_eq!(
            Request::read(body, EpisodeType::Eval, &rollout)
                .unwrap()
                .sampling
                .temperature,
            0.0
        );
    }

    #[test]
    fn logits_are_changed_in_eval_episodes_alone() {
        let asked =
            json!({"frequency_penalty": 0.5, "presence_penalty": -2, "logit_bias": {"50": -100, "7": 1.5, "8": 0}});
        let bias = read(EpisodeType::Eval, asked).unwrap().sampling.bias;
        let expected = Bias {
            frequency_penalty: 0.5,
            presence_penalty: -2.0,
            logits: vec![(7, 1.5), (50, -100.0)],
        };
        assert_eq!(bias, expected);
        for (field, value) in [
            ("frequency_penalty", json!(2.1)),
            ("presence_penalty", json!(-3)),
            ("presence_penalty", json!("1")),
            ("logit_bias", json!({"7": 101})),
            ("logit_bias", json!({"the": 1})),
            ("logit_bias", json!({"-1": 1})),
            ("logit_bias", json!({"7": "x"})),
            ("logit_bias", json!([1])),
            (
                "logit_bias",
                (0..2000)
                    .map(|id| (id.to_string(), json!(1)))
                    .collect::<Map<_, _>>()
                    .into(),
            ),
        ] {
            for episode_type in [EpisodeType::Eval, EpisodeType::Train] {
                match read(episode_type, json!({field: value})) {
                    Err(ChatError::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(field)),
                    other => panic!("{field}: {value}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn messages_are_brought_into_one_form() {
        let body = json!({"messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "q", "name": "ann"},
            {"role": "assistant", "content": null, "reasoning_content": "", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": null, "tool_call_id": "1"},
            {"role": "assistant", "tool_calls": []},
        ]});
        let request = Request::read(body, EpisodeType::Train, &Rollout::default()).unwrap();
        let expected = json!([
            {"role": "system", "content": "a\nb"},
            {"role": "user", "content": "q", "name": "ann"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "", "tool_call_id": "1"},
            {"role": "assistant", "content": ""},
        ]);
        assert_eq!(Value::from(request.conversation.messages), expected);
    }

    #[test]
    fn refusals_and_reasoning_by_another_name_are_text_and_thinking() {
        let body = json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "refusal": "no"},
            {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "refusal", "refusal": "never"}]},
            {"role": "assistant", "content": "c", "refusal": null, "reasoning": "hm", "reasoning_content": null},
            {"role": "assistant", "content": "d", "reasoning": {"effort": "low"}, "tool_calls": [
                {"id": null, "function": {"name": "f", "arguments": null}}]},
        ], "stream_options": {"include_usage": null}});
        let request = Request::read(body, EpisodeType::Train, &Rollout::default()).unwrap();
        let expected = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "no"},
            {"role": "assistant", "content": "b\nnever"},
            {"role": "assistant", "content": "c", "reasoning_content": "hm"},
            {"role": "assistant", "content": "d", "tool_calls": [
                {"id": "", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        ]);
        assert_eq!(Value::from(request.conversation.messages), expected);
        assert!(!request.include_usage);
    }

    #[test]
    fn a_beginning_of_the_answer_alone_is_no_conversation() {
        let extra = json!({"messages": [{"role": "assistant", "content": "It"}], "continue_final_message": true});
        let refused = read(EpisodeType::Train, extra).unwrap_err().to_string();
        assert!(refused.contains("has only the assistant's message"), "{refused}");
    }

    #[test]
    fn the_template_is_told_how_to_think() {
        let variables = |extra: Value| {
            let request = read(EpisodeType::Train, extra).unwrap();
            Value::from(request.conversation.template_kwargs)
        };
        for (given, expected) in [
            (json!({}), json!({})),
            (json!({"reasoning_effort": "low"}), json!({"reasoning_effort": "low"})),
            (
                json!({"reasoning_effort": "none"}),
                json!({"reasoning_effort": "none", "enable_thinking": false}),
            ),
            (json!({"enable_thinking": true}), json!({"enable_thinking": true})),
            (
                json!({"thinking": {"type": "disabled"}}),
                json!({"enable_thinking": false}),
            ),
            (
                json!({"thinking": {"type": "enabled", "budget": 9}}),
                json!({"enable_thinking": true}),
            ),
            (json!({"thinking": {"type": "auto"}}), json!({})),
            (
                json!({"reasoning": {"effort": "high"}}),
                json!({"reasoning_effort": "high"}),
            ),
            (
                json!({"reasoning": {"enabled": false}}),
                json!({"enable_thinking": false}),
            ),
            (
                json!({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}),
                json!({"reasoning_effort": "low"}),
            ),
            (
                json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false, "x": 1}}),
                json!({"enable_thinking": false, "x": 1}),
            ),
        ] {
            assert_eq!(variables(given.clone()), expected, "{given}");
        }
    }

    #[test]
    fn the_last_message_may_begin_the_answer() {
        let asked = |message: Value, extra: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "q"}, message]});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            Request::read(body, EpisodeType::Train, &Rollout::default())
        };
        let begun = json!({"role": "assistant", "content": "The answer is"});
        let request = asked(
            begun.clone(),
            json!({"continue_final_message": true, "add_generation_prompt": false}),
        )
        .unwrap();
        assert_eq!(request.opening.as_deref(), Some("The answer is"));
        assert_eq!(request.conversation.messages.len(), 1);
        assert_eq!(asked(begun.clone(), json!({})).unwrap().opening, None);

        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let called = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]});
        let goes_on = json!({"continue_final_message": true});
        for (message, extra, named) in [
            (
                begun.clone(),
                json!({"add_generation_prompt": false}),
                "add_generation_prompt",
            ),
            (
                begun.clone(),
                json!({"continue_final_message": true, "add_generation_prompt": true}),
                "add_generation_prompt",
            ),
            (
                json!({"role": "user", "content": "a"}),
                goes_on.clone(),
                "continue_final_message",
            ),
            (called, goes_on, "continue_final_message"),
            (
                begun,
                json!({"continue_final_message": true, "tools": tools, "tool_choice": "required"}),
                "tool_choice",
            ),
        ] {
            match asked(message, extra).map(|_| ()) {
                Err(ChatError::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(named)),
                other => panic!("{named}: {other:?}"),
            }
        }
    }

    #[test]
    fn system_prompts_and_tools_follow_the_configuration() {
        let mut rollout = Rollout {
            default_system_prompt: Some("be good".into()),
            ..Rollout::default()
        };
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let body = |choice: &str| json!({"messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": choice});
        let request = Request::read(body("auto"), EpisodeType::Train, &rollout).unwrap();
        assert_eq!(
            request.conversation.messages[0],
            json!({"role": "system", "content": "be good"})
        );
        assert_eq!(request.conversation.tools.len(), 1);
        let request = Request::read(body("none"), EpisodeType::Train, &rollout).unwrap();
        assert!(request.conversation.tools.is_empty());
        rollout.force_disable_toolcalls = true;
        let request = Request::read(body("auto"), EpisodeType::Train, &rollout).unwrap();
        assert!(request.conversation.tools.is_empty());
    }
}
