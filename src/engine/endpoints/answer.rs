//! One answer: sampled at an endpoint, continued elsewhere if that fails, by the engine itself in the end.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use futures_util::StreamExt;
use tokio::sync::mpsc::unbounded_channel;
use tokio_util::sync::CancellationToken;

use super::EndpointError;
use super::adapters::Published;
use super::service::Endpoints;
use crate::inference::{FinishReason, SampleEvent, SampleRequest, SampledToken, SamplingParams};

/// What the model thread must know of requests at endpoints.
pub enum News {
    /// The engine itself is to sample this.
    Local(Box<SampleRequest>),
    /// Tokens were sampled.
    Tokens(usize),
    /// A request has ended.
    Ended,
}

/// An answer in progress.
struct Answer {
    request: SampleRequest,
    sampled: Vec<u32>,
}

/// Samples a request, and reports its end as news. `cancelled` cancels it, as does a requester that is gone.
pub async fn sample(
    endpoints: Arc<Endpoints>,
    request: SampleRequest,
    news: Sender<News>,
    cancelled: CancellationToken,
) {
    let events = request.events.clone();
    let answer = Answer {
        request,
        sampled: vec![],
    };
    // No receivers from here on: the requester, or the model thread, is gone.
    tokio::select! {
        biased;
        () = cancelled.cancelled() => {
            let _ = events.send(SampleEvent::Finished(FinishReason::Cancelled));
        }
        () = events.closed() => {}
        () = answer.complete(&endpoints, &news) => {}
    }
    let _ = news.send(News::Ended);
}

impl Answer {
    async fn complete(mut self, endpoints: &Endpoints, news: &Sender<News>) {
        let mut tried = BTreeSet::new();
        while let Some(published) = endpoints.weights() {
            let (group, params) = (&self.request.group, &self.request.params);
            let Some(index) = endpoints.roster().place(group, params, &tried) else {
                break;
            };
            let placed = Placed { endpoints, index };
            match self.continue_at(&placed, &published, news).await {
                Ok(()) => return,
                Err(error) if error.is_of_request() => {
                    placed
                        .endpoints
                        .warn(index, &format!("{error}; another sampler continues this answer"));
                }
                Err(error) => placed.endpoints.lost(index, &error),
            }
            tried.insert(index);
        }
        self.continue_here(news).await;
    }

    /// Samples the rest of the answer at an endpoint.
    async fn continue_at(
        &mut self,
        placed: &Placed<'_>,
        published: &Published,
        news: &Sender<News>,
    ) -> Result<(), EndpointError> {
        let client = placed.endpoints.client(placed.index);
        let SampleRequest { prompt, params, .. } = &self.request;
        let chunks = client.complete(&published.name, prompt, &self.sampled, params).await?;
        let mut chunks = pin!(chunks);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            let count = chunk.tokens.len();
            placed.endpoints.roster().sampled(placed.index, count as u64);
            let _ = news.send(News::Tokens(count)); // the model thread is gone, and with it the requester
            for token in chunk.tokens {
                if let Some(reason) = self.push(token) {
                    self.tell(SampleEvent::Finished(reason));
                    return Ok(());
                }
            }
            if chunk.is_last {
                return Err(EndpointError::Early);
            }
        }
        Err(EndpointError::Unreachable("the answer broke off".into()))
    }

    /// Has the engine itself sample the rest of the answer.
    async fn continue_here(mut self, news: &Sender<News>) {
        if self.sampled.is_empty() {
            let _ = news.send(News::Local(Box::new(self.request))); // as above
            return;
        }
        let (sender, mut events) = unbounded_channel();
        let rest = SampleRequest {
            prompt: [self.request.prompt.as_slice(), &self.sampled].concat(),
            params: SamplingParams {
                max_tokens: self.request.params.max_tokens - self.sampled.len(),
                ..self.request.params.clone()
            },
            group: self.request.group.clone(),
            forced_tokens: vec![],
            grammar: None,
            stop: None,
            events: sender,
            id: self.request.id,
        };
        let _ = news.send(News::Local(Box::new(rest)));
        while let Some(event) = events.recv().await {
            match event {
                SampleEvent::Started { .. } => {}
                SampleEvent::Token(token) => {
                    if let Some(reason) = self.push(token) {
                        return self.tell(SampleEvent::Finished(reason));
                    }
                }
                last => return self.tell(last),
            }
        }
    }

    /// Passes a token on. Returns why the answer ends with it, if it does: the engine decides this, as for answers that it
    /// samples itself.
    fn push(&mut self, token: SampledToken) -> Option<FinishReason> {
        let id = token.id;
        if self.sampled.is_empty() {
            self.tell(SampleEvent::Started { cached_tokens: 0 });
        }
        self.sampled.push(id);
        self.tell(SampleEvent::Token(token));
        let stops = self.request.stop.as_mut().is_some_and(|stop| stop.push(id));
        if stops || self.request.params.stop_token_ids.contains(&id) {
            return Some(FinishReason::Stop);
        }
        (self.sampled.len() >= self.request.params.max_tokens).then_some(FinishReason::Length)
    }

    fn tell(&self, event: SampleEvent) {
        let _ = self.request.events.send(event); // a requester that is gone ends this answer
    }
}

/// A request in progress at an endpoint, until it is dropped.
struct Placed<'a> {
    endpoints: &'a Endpoints,
    index: usize,
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        self.endpoints.roster().ended(self.index);
    }
}
