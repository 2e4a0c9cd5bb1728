//! Session of one episode: chat requests in, OpenAI answers out, and the calls recorded for training.
//!
//! A request is parsed ([`request`]), its prompt rendered or bridged (`timeline`), sampled ([`turn`]), and answered
//! whole or as a stream ([`stream`]); then the call is recorded. Dropping an answer before its end, as a server does
//! when the agent disconnects, cancels its sampling and records nothing.
//!
//! `stop` finds stop strings, `visible` leaves out special tokens, `answer` collects what is shown, and `constraint` is
//! the grammar that a request asks for. [`registry`] holds the sessions of all running episodes; [`Sampler`] and
//! [`ChatModel`] are the traits by which a session reaches the model, which `script` replaces in tests and demos.

mod answer;
mod backend;
mod constraint;
mod conversations;
mod error;
mod latency;
mod madness;
pub mod registry;
mod request;
mod respond;
mod script;
mod stop;
mod stream;
#[cfg(test)]
mod template_tests;
#[cfg(test)]
mod tests;
mod text_model;
mod turn;
mod visible;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::BoxStream;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use backend::{ChatBackend, ChatModel, ChatSettings, Sampler};
pub use conversations::{ConversationTooLarge, conversations};
pub use error::ChatError;
pub use latency::Recent;
pub use respond::{event_stream, respond};
pub use script::Script;
pub use text_model::TextModel;

use super::batch::finished::EpisodeUsage;
use crate::config::schema::OnContextOverflow;
use crate::protocol::openai::{
    ChatCompletion, ChatCompletionChunk, ChatMessage, Choice, CompletionTokensDetails, FinishReason,
    PromptTokensDetails, Usage,
};
use crate::protocol::swarm::{EpisodeConversations, EpisodeType};
use crate::timeline::{Call, Counters, MergePolicy, Prompt, Row, SplitReason, merge, prompt_for};
use answer::Sampled;
use constraint::AnswerConstraint;
use request::Request;
use turn::Turn;

/// Beginning of the answer to a prompt that does not fit. Agents written for AgentJet look for it.
const OVERFLOW_CONTENT: &str = "AgentJet: Exceeded max model context length. token_overflow(";
/// Maximum time that a stream's status waits for the first token, so that an immediate failure has a status of its own.
const STATUS_WITHIN: Duration = Duration::from_millis(200);

/// Answer to a chat request.
pub enum ChatAnswer {
    /// Complete answer.
    Whole(Box<ChatCompletion>),
    /// Chunks as they are sampled; ends at the first error.
    Stream(BoxStream<'static, Result<ChatCompletionChunk, ChatError>>),
}

/// A running episode.
pub struct Session {
    backend: Arc<ChatBackend>,
    episode_uuid: String,
    state: Mutex<State>,
    ended: CancellationToken,
    /// Tokens sampled since [`Session::take_new_tokens`].
    new_tokens: AtomicU64,
}

/// Record of an ended episode.
#[derive(Clone, Debug, Default)]
pub struct EpisodeRecord {
    /// Training rows; empty if nothing was sampled.
    pub rows: Vec<Row>,
    /// Counters.
    pub usage: EpisodeUsage,
    /// Whether a madness check flagged one of its answers.
    pub mad: bool,
    /// Calls in the order in which they were answered.
    pub calls: Vec<Call>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    usage: EpisodeUsage,
    counters: Counters,
    /// Number of flagged answers by madness check.
    madness: BTreeMap<&'static str, u64>,
    /// Whether a madness check flagged an answer, after which no further one is sampled.
    terminated: bool,
    requests: u64,
}

impl Session {
    /// Starts an episode.
    pub fn new(backend: Arc<ChatBackend>, episode_uuid: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            episode_uuid: episode_uuid.into(),
            state: Mutex::default(),
            ended: CancellationToken::new(),
            new_tokens: AtomicU64::new(0),
        })
    }

    /// Answers a chat request, given the unchanged body of `POST /v1/chat/completions`.
    ///
    /// # Errors
    /// Fails if the request is invalid, the episode has ended, or the sampler cannot answer.
    pub async fn chat(self: &Arc<Self>, body: &RawValue, episode_type: EpisodeType) -> Result<ChatAnswer, ChatError> {
        let request = Arc::new(Request::read(body, episode_type, &self.backend.settings.rollout)?);
        self.backend.check_bias(&request.sampling.bias)?;
        let number = self.admit()?;
        if self.lock().terminated {
            return Ok(self.answer_unsampled(&request, 0, ""));
        }
        let prompt = Arc::new(self.prompt(request.clone()).await?);
        if prompt.ids.len() > self.prompt_limit() {
            return self.overflowed(&request, prompt.ids.len());
        }
        let constraint = self.constraint(&request, &prompt).await?;
        let mut turns = Vec::with_capacity(request.n);
        for index in 0..request.n {
            turns.push(Turn::submit(
                self,
                &request,
                &prompt,
                constraint.clone(),
                number,
                index,
            )?);
        }
        let head = Head::new(&request);
        if request.stream {
            // An immediate failure gets its own status; later ones are reported in the stream.
            if let Ok(started) = timeout(STATUS_WITHIN, all_started(&mut turns)).await {
                started?;
            }
            return Ok(ChatAnswer::Stream(stream::chunks(head, &request, &prompt, turns)));
        }
        all_started(&mut turns).await?;
        let usage = usage(&prompt, &turns);
        let mut sampled = Sampled::default();
        let mut choices = Vec::with_capacity(turns.len());
        for turn in turns {
            let (choice, counts) = turn.whole().await?;
            sampled.add(counts);
            choices.push(choice);
        }
        let prompt_token_ids = request.return_token_ids.then(|| prompt.ids.clone());
        Ok(head.whole(choices, with_sampled(usage, sampled), prompt_token_ids))
    }

    /// Counts the prompt tokens of a chat request without answering it.
    ///
    /// # Errors
    /// Fails if the request is invalid or the episode has ended.
    pub async fn count_tokens(self: &Arc<Self>, body: &RawValue, episode_type: EpisodeType) -> Result<u64, ChatError> {
        let request = Request::read(body, episode_type, &self.backend.settings.rollout)?;
        if self.ended.is_cancelled() {
            return Err(self.not_found());
        }
        Ok(self.prompt(Arc::new(request)).await?.ids.len() as u64)
    }

    /// Ends the episode: cancels sampling and refuses further requests.
    pub fn end(&self) {
        self.ended.cancel();
    }

    /// Ends the episode and converts its calls to training rows. A second call returns an empty record. Computes for
    /// some milliseconds on long episodes.
    pub fn finish(&self) -> EpisodeRecord {
        self.end();
        let state = std::mem::take(&mut *self.lock());
        let policy = MergePolicy {
            seed: self.backend.seed(&self.episode_uuid, "rows", 0),
            weight_version: self.backend.sampler.weight_version(),
            ..self.backend.settings.merging.clone()
        };
        let (rows, merged) = merge(state.calls.clone(), &policy, &*self.backend.model);
        let mut counters = state.counters;
        counters.add(&merged);
        let mut usage = state.usage;
        usage.counters = counters.named().into_iter().collect();
        let madness = state
            .madness
            .iter()
            .map(|(check, count)| (format!("madness/{check}"), *count));
        usage.counters.extend(madness);
        EpisodeRecord {
            rows,
            usage,
            mad: !state.madness.is_empty(),
            calls: state.calls,
        }
    }

    /// Returns the conversations so far. Computes for some milliseconds on long episodes.
    ///
    /// # Errors
    /// Fails if the longest conversation is too large.
    pub fn conversations(&self) -> Result<EpisodeConversations, ConversationTooLarge> {
        conversations(&self.episode_uuid, &self.lock().calls)
    }

    /// Returns the number of tokens sampled since the last call.
    pub fn take_new_tokens(&self) -> u64 {
        self.new_tokens.swap(0, Ordering::Relaxed)
    }

    /// Returns the counters so far.
    pub fn usage(&self) -> EpisodeUsage {
        self.lock().usage.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Poisoning is ignored: a panic leaves at most one call unrecorded.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers the request, if the episode runs.
    fn admit(&self) -> Result<u64, ChatError> {
        if self.ended.is_cancelled() {
            return Err(self.not_found());
        }
        let mut state = self.lock();
        state.requests += 1;
        Ok(state.requests)
    }

    fn not_found(&self) -> ChatError {
        ChatError::EpisodeNotFound(self.episode_uuid.clone())
    }

    /// Renders and encodes a prompt, which takes milliseconds, on a blocking thread.
    async fn prompt(self: &Arc<Self>, request: Arc<Request>) -> Result<Prompt, ChatError> {
        let session = self.clone();
        let prompt = tokio::task::spawn_blocking(move || session.prompt_blocking(&request));
        prompt
            .await
            .map_err(|error| ChatError::Sampling(format!("cannot render the prompt: {error}")))?
    }

    fn prompt_blocking(&self, request: &Request) -> Result<Prompt, ChatError> {
        let refused = |error| ChatError::invalid("messages", format!("the chat template rejects `messages`: {error}"));
        if !request.conversation.tools.is_empty() {
            self.backend.warn_of_tools();
        }
        let model = &*self.backend.model;
        let mut prompt = prompt_for(&self.lock().calls, request.conversation.clone(), model).map_err(refused)?;
        if let Some(call) = &request.forced_call {
            let opening = self.backend.call_opening(call, &prompt.rendered)?;
            prompt.open_with(opening, model).map_err(refused)?;
        }
        if let Some(text) = &request.opening {
            let closing = self.backend.reasoning_format.closing(&prompt.rendered);
            prompt.open_with(format!("{closing}{text}"), model).map_err(refused)?;
        }
        Ok(prompt)
    }

    /// Returns the grammar of the answer, compiled on a blocking thread.
    async fn constraint(
        self: &Arc<Self>,
        request: &Arc<Request>,
        prompt: &Arc<Prompt>,
    ) -> Result<Option<AnswerConstraint>, ChatError> {
        if !request.is_constrained() {
            return Ok(None);
        }
        let (session, request, prompt) = (self.clone(), request.clone(), prompt.clone());
        let constraint = tokio::task::spawn_blocking(move || session.backend.constraint(&request, &prompt));
        constraint
            .await
            .map_err(|error| ChatError::Sampling(format!("cannot compile the grammar of the answer: {error}")))?
    }

    fn prompt_limit(&self) -> usize {
        self.backend.settings.max_model_len.saturating_sub(1)
    }

    /// Answers a prompt that does not fit. Only this request is affected: an agent may compact its history and
    /// continue.
    fn overflowed(&self, request: &Request, given: usize) -> Result<ChatAnswer, ChatError> {
        let max_model_len = self.backend.settings.max_model_len;
        tracing::warn!(given, max_model_len, "the prompt exceeds the context length");
        self.lock().counters.episode_overflow = 1;
        match self.backend.settings.rollout.on_context_overflow {
            OnContextOverflow::Error => Err(ChatError::ContextLengthExceeded { given, max_model_len }),
            OnContextOverflow::Length => {
                let content = format!("{OVERFLOW_CONTENT}{given} > {})", self.prompt_limit());
                Ok(self.answer_unsampled(request, given, &content))
            }
        }
    }

    /// Answers without sampling or recording, with finish reason `length` so that the agent stops, and `prompt_tokens`
    /// as usage.
    fn answer_unsampled(&self, request: &Request, prompt_tokens: usize, content: &str) -> ChatAnswer {
        self.lock().usage.llm_calls += 1;
        let head = Head::new(request);
        let usage = Usage {
            prompt_tokens: prompt_tokens as u64,
            total_tokens: prompt_tokens as u64,
            ..Usage::default()
        };
        if request.stream {
            return ChatAnswer::Stream(stream::unsampled_answer(head, request, usage, content));
        }
        let choice = |index| Choice {
            index,
            message: ChatMessage::new("assistant", content),
            finish_reason: Some(FinishReason::Length),
            ..Choice::default()
        };
        head.whole((0..request.n as u32).map(choice).collect(), usage, None)
    }

    /// Records a completely sampled call. `first` is set for the first answer of a request: why the call was split off,
    /// and the number of prompt tokens from the prefix cache.
    fn record(&self, call: Call, first: Option<(Option<SplitReason>, usize)>) -> Result<(), ChatError> {
        let mut state = self.lock();
        if self.ended.is_cancelled() {
            return Err(self.not_found());
        }
        if let Some((split, cached_tokens)) = first {
            state.usage.llm_calls += 1;
            state.usage.prompt_tokens += call.prompt.len() as u64;
            state.usage.cached_tokens += cached_tokens as u64;
            if let Some(reason) = split {
                *state.counters.timeline_splits.entry(reason).or_default() += 1;
            }
        }
        state.usage.completion_tokens += call.sampled.len() as u64;
        self.check_madness(&mut state, &call);
        state.calls.push(call);
        Ok(())
    }

    /// Counts the checks that flag an answer, and ends sampling if configured.
    fn check_madness(&self, state: &mut State, call: &Call) {
        let rollout = &self.backend.settings.rollout;
        let answer = madness::Sampled {
            prompt: &call.rendered,
            text: &call.sampled_text,
            reasoning: self.backend.reasoning_format,
            tools: self.backend.tool_format,
        };
        for check in madness::flagged(&rollout.compute_madness_checklist, &answer) {
            *state.madness.entry(check.as_str()).or_default() += 1;
        }
        if rollout.agent_madness_termination && !state.madness.is_empty() {
            state.terminated = true;
        }
    }
}

async fn all_started(turns: &mut [Turn]) -> Result<(), ChatError> {
    for turn in turns {
        turn.started().await?;
    }
    Ok(())
}

fn usage(prompt: &Prompt, turns: &[Turn]) -> Usage {
    Usage {
        prompt_tokens: prompt.ids.len() as u64,
        prompt_tokens_details: Some(PromptTokensDetails {
            cached_tokens: turns.first().map_or(0, |turn| turn.cached_tokens() as u64),
        }),
        ..Usage::default()
    }
}

fn with_sampled(usage: Usage, sampled: Sampled) -> Usage {
    Usage {
        completion_tokens: sampled.tokens,
        total_tokens: usage.prompt_tokens + sampled.tokens,
        completion_tokens_details: Some(CompletionTokensDetails {
            reasoning_tokens: sampled.reasoning,
        }),
        ..usage
    }
}

/// Fields common to all parts of an answer.
#[derive(Clone)]
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(request: &Request) -> Self {
        Self {
            id: format!("chatcmpl-{}", Uuid::new_v4().simple()),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            model: request.model.clone(),
        }
    }

    fn whole(self, choices: Vec<Choice>, usage: Usage, prompt_token_ids: Option<Vec<u32>>) -> ChatAnswer {
        ChatAnswer::Whole(Box::new(ChatCompletion {
            id: self.id,
            object: "chat.completion".into(),
            created: self.created,
            model: self.model,
            choices,
            usage,
            prompt_token_ids,
        }))
    }
}
