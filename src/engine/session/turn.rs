//! Sampling of one answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Session;
use super::answer::{Answer, AnswerWriter, Sampled};
use super::constraint::AnswerConstraint;
use super::error::ChatError;
use super::latency::Stopwatch;
use super::request::Request;
use super::stop::stop_check;
use crate::inference::{FinishReason, SampleEvent, SampleRequest, SampledToken, SamplingParams};
use crate::protocol::openai::{Choice, Delta, TokenLogprob};
use crate::timeline::{Call, Prompt, TurnEnd};

/// One answer to a request. Dropping it before its end cancels the sampling and records nothing.
pub struct Turn {
    session: Arc<Session>,
    pub request: Arc<Request>,
    prompt: Arc<Prompt>,
    pub index: u32,
    events: UnboundedReceiver<SampleEvent>,
    writer: AnswerWriter,
    /// Grammar of the answer.
    grammar: Option<Arc<str>>,
    /// Prompt tokens from the prefix cache; `None` until the prompt is in the cache.
    cached_tokens: Option<usize>,
    weight_version: u64,
    /// Start time in Unix seconds.
    begun: f64,
    stopwatch: Stopwatch,
    /// Released when the turn ends.
    _permit: OwnedSemaphorePermit,
}

/// Event of a turn.
pub enum TurnEvent {
    /// The next token.
    Token(SampledToken),
    /// The end of the answer.
    Finished(FinishReason),
}

impl Turn {
    /// Submits a request to the sampler. `number` is the request's number in the episode. A scripted answer need not fit
    /// the constraint.
    pub fn submit(
        session: &Arc<Session>,
        request: &Arc<Request>,
        prompt: &Arc<Prompt>,
        constraint: Option<AnswerConstraint>,
        number: u64,
        index: usize,
    ) -> Result<Self, ChatError> {
        let backend = &session.backend;
        let settings = &backend.settings;
        let sampling = &request.sampling;
        let permit = backend.acquire_permit()?;
        let forced_tokens = backend.scripted_answer(prompt)?;
        let constraint = constraint.filter(|_| forced_tokens.is_empty());
        let grammar = constraint.as_ref().map(|constraint| constraint.grammar.clone());
        let (sender, events) = unbounded_channel();
        let seed = match sampling.seed {
            Some(seed) => choice_seed(seed as u64, index as u64),
            None => backend.seed(
                &session.episode_uuid,
                "answer",
                number.wrapping_mul(1 << 16) + index as u64,
            ),
        };
        // `top_p` 0 selects the most likely token, as for OpenAI.
        let (top_p, top_k) = match sampling.top_p as f32 {
            0.0 => (1.0, Some(1)),
            top_p => (top_p, sampling.top_k),
        };
        let room = settings.max_model_len.saturating_sub(prompt.ids.len());
        let weight_version = backend.sampler.weight_version();
        backend.sampler.submit(SampleRequest {
            id: backend.next_request_id(),
            group: session.episode_uuid.clone(),
            prompt: prompt.ids.clone(),
            params: SamplingParams {
                temperature: sampling.temperature as f32,
                top_p,
                top_k,
                min_p: sampling.min_p as f32,
                bias: sampling.bias.clone(),
                seed,
                max_tokens: request
                    .max_tokens
                    .unwrap_or(usize::MAX)
                    .min(settings.max_turn_tokens)
                    .min(room),
                stop_token_ids: backend.end_tokens().to_vec(),
                top_logprobs: request.top_logprobs,
            },
            forced_tokens,
            grammar: constraint.map(|constraint| constraint.matcher),
            stop: stop_check(&backend.model, &request.stop),
            events: sender,
        })?;
        Ok(Self {
            session: session.clone(),
            request: request.clone(),
            prompt: prompt.clone(),
            index: index as u32,
            events,
            writer: AnswerWriter::new(backend, request, prompt),
            grammar,
            cached_tokens: None,
            weight_version,
            begun: unix_seconds(),
            stopwatch: Stopwatch::start(),
            _permit: permit,
        })
    }

    /// Returns the number of prompt tokens from the prefix cache, as far as known.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens.unwrap_or(0)
    }

    /// Waits until the prompt is in the cache. Cancel-safe.
    pub async fn started(&mut self) -> Result<(), ChatError> {
        if self.cached_tokens.is_some() {
            return Ok(());
        }
        match self.event().await? {
            SampleEvent::Started { cached_tokens } => {
                self.cached_tokens = Some(cached_tokens);
                Ok(())
            }
            event => Err(ChatError::Sampling(format!(
                "unexpected first event of the sampler: {event:?}"
            ))),
        }
    }

    /// Waits for the next event.
    pub async fn next(&mut self) -> Result<TurnEvent, ChatError> {
        self.started().await?;
        match self.event().await? {
            SampleEvent::Token(token) => Ok(TurnEvent::Token(token)),
            SampleEvent::Finished(FinishReason::Cancelled) => Err(ChatError::Unavailable(
                "the engine stopped sampling; hint: try again".into(),
            )),
            SampleEvent::Finished(reason) => Ok(TurnEvent::Finished(reason)),
            event => Err(ChatError::Sampling(format!(
                "unexpected event of the sampler within an answer: {event:?}"
            ))),
        }
    }

    async fn event(&mut self) -> Result<SampleEvent, ChatError> {
        tokio::select! {
            biased;
            () = self.session.ended.cancelled() => Err(self.session.not_found()),
            event = self.events.recv() => match event {
                Some(SampleEvent::Failed(why)) => Err(ChatError::Sampling(why)),
                Some(event) => Ok(event),
                None => Err(ChatError::Unavailable("the sampler has ended; hint: try again".into())),
            },
        }
    }

    /// Adds a token to the answer.
    pub fn push(&mut self, token: &SampledToken) -> Vec<Delta> {
        self.session.new_tokens.fetch_add(1, Ordering::Relaxed);
        // Further choices of a request are read after the first, so they cannot be measured here.
        if self.index == 0 {
            self.stopwatch.token(&self.session.backend.latencies);
        }
        self.writer.push(token)
    }

    /// Returns the log-probabilities of the last token, if requested.
    pub fn last_logprob(&self) -> Option<&TokenLogprob> {
        self.writer.last_logprob()
    }

    /// Returns the token counts so far.
    pub fn counts(&self) -> Sampled {
        self.writer.counts()
    }

    /// Ends the answer and records the call.
    pub fn finish(self, reason: FinishReason) -> Result<(Vec<Delta>, Answer), ChatError> {
        self.stopwatch.end(&self.session.backend.latencies);
        let cached_tokens = self.cached_tokens();
        let (deltas, answer) = self.writer.finish();
        let model = &self.session.backend.model;
        let end = answer.end(reason, self.session.backend.end_tokens());
        let shown = answer.sampled.len() - usize::from(end == TurnEnd::EndToken);
        let call = Call {
            conversation: self.prompt.conversation.clone(),
            rendered: self.prompt.rendered.clone(),
            prompt: self.prompt.ids.clone(),
            sampled: answer.sampled.clone(),
            logprobs: answer.logprobs.clone(),
            grammar: self.grammar,
            determined: answer.determined.clone(),
            sampled_text: model.decode(&answer.sampled[..shown]),
            end,
            answer: answer.as_history(),
            agent: self.request.model.clone(),
            weight_version: self.weight_version,
            begun: self.begun,
            ended: unix_seconds(),
        };
        let first = (self.index == 0).then_some((self.prompt.split, cached_tokens));
        self.session.record(call, first)?;
        Ok((deltas, answer))
    }

    /// Samples to the end; returns the choice and its token counts.
    pub async fn whole(mut self) -> Result<(Choice, Sampled), ChatError> {
        let reason = loop {
            match self.next().await? {
                TurnEvent::Token(token) => _ = self.push(&token),
                TurnEvent::Finished(reason) => break reason,
            }
        };
        let (request, index) = (self.request.clone(), self.index);
        let (_, answer) = self.finish(reason)?;
        let sampled = answer.counts();
        let choice = Choice {
            index,
            finish_reason: Some(answer.finish_reason(reason)),
            stop_reason: answer.stop_string.clone(),
            logprobs: answer.choice_logprobs(request.logprobs),
            token_ids: request.return_token_ids.then(|| answer.sampled.clone()),
            message: answer.message,
        };
        Ok((choice, sampled))
    }
}

fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Returns the seed of one of a request's choices: the request's own for the first; the others are far from the first
/// choices of neighbouring seeds (finalizer of SplitMix64).
fn choice_seed(seed: u64, index: u64) -> u64 {
    if index == 0 {
        return seed;
    }
    let mut mixed = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
