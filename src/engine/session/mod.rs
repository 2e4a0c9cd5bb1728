//! One agent's episode: chat requests in, OpenAI answers out, and what really happened recorded for training.
//!
//! A request is read ([`request`]), its prompt rendered or bridged (`timeline`), sampled ([`turn`]), and answered whole
//! or as a stream ([`stream`]); at its end the call is recorded. Dropping an answer before its end, as a server does
//! when the agent disconnects, cancels its sampling and records nothing.

mod answer;
mod backend;
mod conversations;
mod error;
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::BoxStream;
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use backend::{ChatBackend, ChatModel, ChatSettings, Sampler};
pub use conversations::{ConversationTooLarge, conversations};
pub use error::ChatError;
pub use respond::respond;
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
use request::Request;
use turn::Turn;

/// How the answer to a prompt that does not fit begins. Agents written for AgentJet look for it.
const OVERFLOW_CONTENT: &str = "AgentJet: Exceeded max model context length. token_overflow(";
/// How long a stream's status waits for the first of its tokens, so that a request that fails at once is told so by it.
const STATUS_WITHIN: Duration = Duration::from_millis(200);

/// Answer of a chat request.
pub enum ChatAnswer {
    /// All at once.
    Whole(Box<ChatCompletion>),
    /// As it is sampled; ends at the first error.
    Stream(BoxStream<'static, Result<ChatCompletionChunk, ChatError>>),
}

/// One running episode.
pub struct Session {
    backend: Arc<ChatBackend>,
    episode_uuid: String,
    state: Mutex<State>,
    ended: CancellationToken,
}

/// What an episode came to.
#[derive(Clone, Debug, Default)]
pub struct EpisodeRecord {
    /// Its training rows; none where the model sampled nothing.
    pub rows: Vec<Row>,
    /// What was counted.
    pub usage: EpisodeUsage,
    /// Whether a madness check flagged one of its answers.
    pub mad: bool,
    /// Its calls, in the order they were answered.
    pub calls: Vec<Call>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    usage: EpisodeUsage,
    counters: Counters,
    /// Answers by the madness check that flagged them.
    madness: BTreeMap<&'static str, u64>,
    /// A madness check flagged an answer and no further one is sampled.
    terminated: bool,
    requests: u64,
}

impl Session {
    /// A new episode.
    pub fn new(backend: Arc<ChatBackend>, episode_uuid: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            episode_uuid: episode_uuid.into(),
            state: Mutex::default(),
            ended: CancellationToken::new(),
        })
    }

    /// Answers a chat request, the body of `POST /v1/chat/completions` as it came.
    ///
    /// # Errors
    /// The request is wrong, the episode has ended, or the sampler cannot answer.
    pub async fn chat(self: &Arc<Self>, body: Value, episode_type: EpisodeType) -> Result<ChatAnswer, ChatError> {
        let request = Arc::new(Request::read(body, episode_type, &self.backend.settings.rollout)?);
        self.backend.check_bias(&request.drawing.bias)?;
        let number = self.admit()?;
        if self.lock().terminated {
            return Ok(self.answer_unsampled(&request, 0, ""));
        }
        let prompt = Arc::new(self.prompt(request.clone()).await?);
        if prompt.ids.len() > self.prompt_limit() {
            return self.overflowed(&request, prompt.ids.len());
        }
        let mut turns = Vec::with_capacity(request.n);
        for index in 0..request.n {
            turns.push(Turn::submit(self, &request, &prompt, number, index)?);
        }
        let head = Head::new(&request);
        if request.stream {
            // What fails at once still has a status of its own; what waits or computes longer does so in the stream.
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

    /// Tokens of the prompt of a chat request, which is not answered.
    ///
    /// # Errors
    /// The request is wrong, or the episode has ended.
    pub async fn count_tokens(self: &Arc<Self>, body: Value, episode_type: EpisodeType) -> Result<u64, ChatError> {
        let request = Request::read(body, episode_type, &self.backend.settings.rollout)?;
        if self.ended.is_cancelled() {
            return Err(self.not_found());
        }
        Ok(self.prompt(Arc::new(request)).await?.ids.len() as u64)
    }

    /// Ends the episode: what is being sampled is cancelled, further requests are refused.
    pub fn end(&self) {
        self.ended.cancel();
    }

    /// Ends the episode and makes training rows of its calls. Takes the record: a second call gives an empty one.
    /// Computes for some milliseconds on long episodes.
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

    /// What was said so far. Computes for some milliseconds on long episodes.
    ///
    /// # Errors
    /// The longest conversation is too large.
    pub fn conversations(&self) -> Result<EpisodeConversations, ConversationTooLarge> {
        conversations(&self.episode_uuid, &self.lock().calls)
    }

    /// LLM calls answered so far.
    pub fn llm_calls(&self) -> u64 {
        self.lock().usage.llm_calls
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves at most a call unrecorded; the state is whole.
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

    /// Rendering and encoding compute for milliseconds, so not on the I/O threads.
    async fn prompt(self: &Arc<Self>, request: Arc<Request>) -> Result<Prompt, ChatError> {
        let session = self.clone();
        let prompt = tokio::task::spawn_blocking(move || session.prompt_blocking(&request));
        prompt
            .await
            .map_err(|error| ChatError::Sampling(format!("the prompt could not be rendered: {error}")))?
    }

    fn prompt_blocking(&self, request: &Request) -> Result<Prompt, ChatError> {
        let refused = |error| ChatError::invalid("messages", format!("the chat template refused `messages`: {error}"));
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

    fn prompt_limit(&self) -> usize {
        self.backend.settings.max_model_len.saturating_sub(1)
    }

    /// The prompt does not fit. Only this request is answered so: an agent may compact its history and go on.
    fn overflowed(&self, request: &Request, given: usize) -> Result<ChatAnswer, ChatError> {
        let max_model_len = self.backend.settings.max_model_len;
        tracing::warn!(episode = %self.episode_uuid, given, max_model_len, "the prompt exceeds the context length");
        self.lock().counters.episode_overflow = 1;
        match self.backend.settings.rollout.on_context_overflow {
            OnContextOverflow::Error => Err(ChatError::ContextLengthExceeded { given, max_model_len }),
            OnContextOverflow::Length => {
                let content = format!("{OVERFLOW_CONTENT}{given} > {})", self.prompt_limit());
                Ok(self.answer_unsampled(request, given, &content))
            }
        }
    }

    /// An answer that the model did not sample and that is not recorded, with finish reason `length`, so that the agent
    /// stops. `prompt_tokens` of the prompt were counted.
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
            message: ChatMessage {
                role: "assistant".into(),
                content: content.into(),
                ..ChatMessage::default()
            },
            finish_reason: Some(FinishReason::Length),
            ..Choice::default()
        };
        head.whole((0..request.n as u32).map(choice).collect(), usage, None)
    }

    /// Keeps a call that was sampled to its end. `first` is set for the first answer of a request: why it was split off,
    /// and the prompt tokens that the prefix cache gave.
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

    /// Counts the checks that flag an answer, and where the configuration says so, ends the sampling.
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

/// What is the same in all parts of an answer.
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
