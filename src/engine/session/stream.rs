//! An answer as chunks while it is sampled.

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

/// The chunks of a request's answers: a role each, additions as they come, the finish reason, the usage where asked
/// for. Ends at the first error.
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
            let told = (!*failed).then_some(chunk);
            *failed |= matches!(told, Some(Err(_)));
            ready(told)
        })
        .boxed()
}

/// For each answer of a request, its tokens so far and the prompt tokens that the prefix cache gave.
#[derive(Clone)]
struct Counts(Arc<Mutex<Vec<(Sampled, usize)>>>);

impl Counts {
    fn new(turns: &[Turn]) -> Self {
        let counts = turns.iter().map(|turn| (Sampled::default(), turn.cached_tokens()));
        Self(Arc::new(Mutex::new(counts.collect())))
    }

    fn set(&self, index: u32, counts: Sampled, cached_tokens: usize) {
        // Assignments leave it whole, even after a panic elsewhere.
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

/// The chunks of an answer that the model did not sample.
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

/// One turn on its way into chunks.
struct Additions {
    /// None when it has ended.
    turn: Option<Turn>,
    ready: VecDeque<ChunkChoice>,
    /// Tokens that are in no chunk yet, since no text came of them.
    told: Told,
    counts: Counts,
}

/// What a chunk tells of its tokens.
#[derive(Default)]
struct Told {
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
}

fn additions(turn: Turn, counts: Counts) -> impl Stream<Item = Result<ChunkChoice, ChatError>> {
    let start = Additions {
        turn: Some(turn),
        ready: VecDeque::new(),
        told: Told::default(),
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

impl Additions {
    fn take(&mut self, event: TurnEvent) -> Result<(), ChatError> {
        // Only called while there is a turn.
        let Some(mut turn) = self.turn.take() else {
            return Ok(());
        };
        let (index, request) = (turn.index, turn.request.clone());
        match event {
            TurnEvent::Token(token) => {
                let deltas = turn.push(&token);
                self.counts.set(index, turn.counts(), turn.cached_tokens());
                self.tell(&turn, &token);
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

    fn tell(&mut self, turn: &Turn, token: &SampledToken) {
        self.told.ids.push(token.id);
        self.told.logprobs.extend(turn.last_logprob().cloned());
    }

    /// Queues additions; the first also tells of the tokens that led to it.
    fn queue(&mut self, index: u32, request: &Request, deltas: Vec<Delta>) {
        for delta in deltas {
            let told = std::mem::take(&mut self.told);
            self.ready.push_back(ChunkChoice {
                index,
                delta,
                finish_reason: None,
                stop_reason: None,
                logprobs: (request.logprobs && !told.logprobs.is_empty())
                    .then_some(ChoiceLogprobs { content: told.logprobs }),
                token_ids: (request.return_token_ids && !told.ids.is_empty()).then_some(told.ids),
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
