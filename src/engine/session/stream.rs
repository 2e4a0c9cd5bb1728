//! Streaming an answer as chunks.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream, Stream};

use super::answer::Sampled;
use super::error::ChatError;
use super::request::Request;
use super::turn::{Turn, TurnEvent};
use super::{Head, usage, with_sampled};
use crate::inference::SampledToken;
use crate::protocol::openai::{
    ChatCompletionChunk, ChoiceLogprobs, ChunkChoice, Delta, FinishReason, PromptTokensDetails, TokenLogprob, Usage,
};
use crate::timeline::Prompt;

type Chunks = BoxStream<'static, Result<ChatCompletionChunk, ChatError>>;

/// Streams the chunks of a request's answers: for each the role, its deltas and the finish reason, then the usage if
/// requested. Ends at the first error.
pub fn chunks(head: Head, request: &Request, prompt: &Prompt, turns: Vec<Turn>) -> Chunks {
    let usage = usage(prompt, &turns);
    let counts = Counts::new(&turns);
    let continuous = request.continuous_usage;
    let first = ChatCompletionChunk {
        prompt_token_ids: request.return_token_ids.then(|| prompt.ids.clone()),
        usage: continuous.then(|| counts.in_usage(&usage)),
        ..head.chunk((0..turns.len() as u32).map(role).collect())
    };
    let choices = turns.into_iter().map(|turn| additions(turn, counts.clone()).boxed());
    let choices = stream::select_all(choices);
    let last = {
        let (head, counts, usage) = (head.clone(), counts.clone(), usage.clone());
        stream::once(async move { Ok(head.usage_chunk(counts.in_usage(&usage))) })
    };
    let include_usage = request.include_usage;
    let chunk = move |choice| ChatCompletionChunk {
        usage: continuous.then(|| counts.in_usage(&usage)),
        ..head.chunk(vec![choice])
    };
    stream::once(ready(Ok(first)))
        .chain(choices.map(move |choice| choice.map(&chunk)))
        .chain(last.filter(move |_| ready(include_usage)))
        .scan(false, |failed, chunk| {
            let pending = (!*failed).then_some(chunk);
            *failed |= matches!(pending, Some(Err(_)));
            ready(pending)
        })
        .boxed()
}

/// Token counts so far and prompt tokens from the prefix cache, for each answer of a request.
#[derive(Clone)]
struct Counts(Arc<Mutex<Vec<(Sampled, usize)>>>);

impl Counts {
    fn new(turns: &[Turn]) -> Self {
        let counts = turns.iter().map(|turn| (Sampled::default(), turn.cached_tokens()));
        Self(Arc::new(Mutex::new(counts.collect())))
    }

    fn set(&self, index: u32, counts: Sampled, cached_tokens: usize) {
        // Poisoning is ignored: the changes are plain assignments.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = all.get_mut(index as usize) {
            *place = (counts, cached_tokens);
        }
    }

    fn in_usage(&self, usage: &Usage) -> Usage {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = Sampled::default();
        all.iter().for_each(|(counts, _)| sum.add(*counts));
        let cached_tokens = all.first().map_or(0, |(_, cached)| *cached as u64);
        Usage {
            prompt_tokens_details: Some(PromptTokensDetails { cached_tokens }),
            ..with_sampled(usage.clone(), sum)
        }
    }
}

/// Streams an answer that was not sampled.
pub fn unsampled_answer(head: Head, request: &Request, usage: Usage, content: &str) -> Chunks {
    let text = |index| ChunkChoice {
        index,
        delta: Delta {
            content: Some(content.to_owned()),
            ..Delta::default()
        },
        ..ChunkChoice::default()
    };
    let end = |index| ChunkChoice {
        index,
        finish_reason: Some(FinishReason::Length),
        ..ChunkChoice::default()
    };
    let all = || 0..request.n as u32;
    let mut chunks = vec![head.chunk(all().map(role).collect())];
    if !content.is_empty() {
        chunks.push(head.chunk(all().map(text).collect()));
    }
    chunks.push(head.chunk(all().map(end).collect()));
    if request.include_usage {
        chunks.push(head.usage_chunk(usage));
    }
    stream::iter(chunks.into_iter().map(Ok)).boxed()
}

fn role(index: u32) -> ChunkChoice {
    ChunkChoice {
        index,
        delta: Delta {
            role: Some("assistant".into()),
            content: Some(String::new()),
            ..Delta::default()
        },
        ..ChunkChoice::default()
    }
}

/// Conversion of one turn to chunks.
struct ChunkQueue {
    /// `None` after its end.
    turn: Option<Turn>,
    ready: VecDeque<ChunkChoice>,
    /// Tokens not contained in a chunk yet, since they produced no text.
    pending: PendingTokens,
    counts: Counts,
}

/// Token data of a chunk.
#[derive(Default)]
struct PendingTokens {
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
}

fn additions(turn: Turn, counts: Counts) -> impl Stream<Item = Result<ChunkChoice, ChatError>> {
    let start = ChunkQueue {
        turn: Some(turn),
        ready: VecDeque::new(),
        pending: PendingTokens::default(),
        counts,
    };
    stream::try_unfold(start, |mut additions| async move {
        loop {
            if let Some(choice) = additions.ready.pop_front() {
                return Ok(Some((choice, additions)));
            }
            let Some(turn) = &mut additions.turn else {
                return Ok(None);
            };
            let event = turn.next().await?;
            additions.take(event)?;
        }
    })
}

impl ChunkQueue {
    fn take(&mut self, event: TurnEvent) -> Result<(), ChatError> {
        // Only called while the turn exists.
        let Some(mut turn) = self.turn.take() else {
            return Ok(());
        };
        let (index, request) = (turn.index, turn.request.clone());
        match event {
            TurnEvent::Token(token) => {
                let deltas = turn.push(&token);
                self.counts.set(index, turn.counts(), turn.cached_tokens());
                self.add_token(&turn, &token);
                self.queue(index, &request, deltas);
                self.turn = Some(turn);
            }
            TurnEvent::Finished(reason) => {
                let cached_tokens = turn.cached_tokens();
                let (deltas, answer) = turn.finish(reason)?;
                self.counts.set(index, answer.counts(), cached_tokens);
                self.queue(index, &request, deltas);
                self.queue(index, &request, vec![Delta::default()]);
                if let Some(last) = self.ready.back_mut() {
                    last.finish_reason = Some(answer.finish_reason(reason));
                    last.stop_reason = answer.stop_string;
                }
            }
        }
        Ok(())
    }

    fn add_token(&mut self, turn: &Turn, token: &SampledToken) {
        self.pending.ids.push(token.id);
        self.pending.logprobs.extend(turn.last_logprob().cloned());
    }

    /// Queues deltas; the first also carries the pending tokens.
    fn queue(&mut self, index: u32, request: &Request, deltas: Vec<Delta>) {
        for delta in deltas {
            let pending = std::mem::take(&mut self.pending);
            self.ready.push_back(ChunkChoice {
                index,
                delta,
                finish_reason: None,
                stop_reason: None,
                logprobs: (request.logprobs && !pending.logprobs.is_empty()).then_some(ChoiceLogprobs {
                    content: pending.logprobs,
                }),
                token_ids: (request.return_token_ids && !pending.ids.is_empty()).then_some(pending.ids),
            });
        }
    }
}

impl Head {
    fn chunk(&self, choices: Vec<ChunkChoice>) -> ChatCompletionChunk {
        ChatCompletionChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: self.model.clone(),
            choices,
            usage: None,
            prompt_token_ids: None,
        }
    }

    fn usage_chunk(&self, usage: Usage) -> ChatCompletionChunk {
        ChatCompletionChunk {
            usage: Some(usage),
            ..self.chunk(Vec::new())
        }
    }
}
