//! Parsing of chat requests: every error names the field, the given value and the allowed ones.

mod fields;
mod format;
mod messages;
mod sampling;
#[cfg(test)]
mod tests;
mod tools;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::ChatError;
use crate::config::schema::Rollout;
use crate::protocol::openai::ChatRequest;
use crate::protocol::swarm::EpisodeType;
use crate::timeline::Conversation;

use fields::{integer, typed};
use format::answer_schema;
use messages::{take_opening, template_messages};
pub use sampling::SamplingParams;
pub use tools::ForcedCall;
use tools::tools;

const MAX_ANSWERS: u64 = 128;
const MAX_TOP_LOGPROBS: u64 = 20;

/// Maximum number of stop strings: each is searched for after every token, between two sampling steps.
const MAX_STOPS: usize = 64;

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
    /// JSON schema that the answer must fit.
    pub schema: Option<Value>,
    /// Beginning of the answer, given by the request.
    pub opening: Option<String>,
}

impl Request {
    /// Parses a request of an episode of this type.
    pub fn read(body: &RawValue, episode_type: EpisodeType, rollout: &Rollout) -> Result<Self, ChatError> {
        let mut request = typed(body)?;
        let n = integer("n", request.n, 1, MAX_ANSWERS)?.unwrap_or(1);
        if n != 1 && episode_type == EpisodeType::Train {
            return Err(ChatError::invalid(
                "n",
                format!("`n` must be 1 in a train episode, got {n}"),
            ));
        }
        let top_logprobs = integer("top_logprobs", request.top_logprobs, 0, MAX_TOP_LOGPROBS)?.unwrap_or(0);
        let logprobs = request.logprobs.unwrap_or(false);
        if top_logprobs > 0 && !logprobs {
            return Err(ChatError::invalid(
                "top_logprobs",
                "`top_logprobs` requires `logprobs` to be true",
            ));
        }
        let max_tokens = integer("max_tokens", request.max_tokens, 1, u64::MAX)?;
        let max_completion_tokens = integer("max_completion_tokens", request.max_completion_tokens, 1, u64::MAX)?;
        let (tools, forced_call) = tools(&mut request, rollout)?;
        let opening = take_opening(&mut request)?;
        if opening.is_some() && forced_call.is_some() {
            let message = "`tool_choice` requires a tool call, but the last message starts the answer with text";
            return Err(ChatError::invalid("tool_choice", message));
        }
        let schema = answer_schema(&request)?;
        if opening.is_some() && schema.is_some() {
            let message = "`response_format` requires JSON, but the last message starts the answer with text";
            return Err(ChatError::invalid("response_format", message));
        }
        let stream_options = request.stream_options.clone().unwrap_or_default();
        Ok(Self {
            sampling: match episode_type {
                EpisodeType::Train => {
                    sampling::refuse_bias(&request)?;
                    SamplingParams::configured(rollout)
                }
                EpisodeType::Eval => SamplingParams::requested(&request, rollout)?,
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
            schema,
            opening,
            conversation: Conversation {
                messages: template_messages(std::mem::take(&mut request.messages), rollout)?,
                tools,
                template_kwargs: template_variables(&mut request),
            },
            model: request.model.unwrap_or_default(),
        })
    }
}

/// Returns the variables for the chat template. A field of its own does not override a variable given by name.
fn template_variables(request: &mut ChatRequest) -> Map<String, Value> {
    let mut variables = request.chat_template_kwargs.take().unwrap_or_default();
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
