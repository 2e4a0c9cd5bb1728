//! A worker whose answers are sampled at endpoints as far as they can.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::answer::{News, sample};
use super::service::Endpoints;
use crate::engine::model_thread::{SamplingLoad, UpdateOutcome, Worker};
use crate::inference::{Bias, SampleRequest};
use crate::train::TrainEpisode;

/// How long a step waits for news of the endpoints when the engine itself samples nothing.
const PAUSE: Duration = Duration::from_millis(2);

/// A worker that trains, and samples what endpoints cannot.
pub struct EndpointSampling {
    local: Box<dyn Worker>,
    endpoints: Arc<Endpoints>,
    news: Receiver<News>,
    reporter: Sender<News>,
    /// Requests that were given to endpoints and have not ended.
    open: usize,
    /// Cancels the requests at endpoints.
    cancellation: CancellationToken,
    /// Tokens since the last update: sampled at endpoints, and in all.
    tokens: (usize, usize),
}

impl EndpointSampling {
    /// Gives the endpoints the worker's weights.
    pub fn new(local: Box<dyn Worker>, endpoints: Arc<Endpoints>) -> Self {
        let (reporter, news) = channel();
        let worker = Self {
            local,
            endpoints,
            news,
            reporter,
            open: 0,
            cancellation: CancellationToken::new(),
            tokens: (0, 0),
        };
        worker.publish();
        worker
    }

    fn publish(&self) {
        let write = |dir: &Path| self.local.write_adapter(dir);
        self.endpoints.publish(self.local.weight_version(), write);
    }

    /// Takes news of the endpoints. Returns the number of tokens that they sampled.
    fn take(&mut self, news: News) -> usize {
        match news {
            News::Tokens(count) => {
                self.tokens.0 += count;
                return count;
            }
            News::Local(request) => self.local.submit(*request),
            News::Ended => self.open -= 1,
        }
        0
    }

    /// Sets the metrics of the sampling since the last update.
    fn measure(&mut self, outcome: &mut UpdateOutcome) {
        let (remote, all) = std::mem::take(&mut self.tokens);
        let ready = self
            .endpoints
            .report()
            .iter()
            .filter(|endpoint| endpoint.problem.is_none())
            .count();
        let metrics = &mut outcome.metrics;
        metrics.insert("endpoints/ready".into(), ready as f64);
        if all > 0 {
            metrics.insert("endpoints/token_share".into(), remote as f64 / all as f64);
        }
    }
}

/// Returns whether an endpoint may sample a request with the same result: a grammar has a state in memory, and forced
/// tokens and biases are this engine's.
fn travels(request: &SampleRequest) -> bool {
    request.grammar.is_none() && request.forced_tokens.is_empty() && request.params.bias == Bias::default()
}

impl Worker for EndpointSampling {
    fn submit(&mut self, request: SampleRequest) {
        if !travels(&request) {
            return self.local.submit(request);
        }
        self.open += 1;
        let answer = sample(
            self.endpoints.clone(),
            request,
            self.reporter.clone(),
            self.cancellation.clone(),
        );
        self.endpoints.runtime().spawn(answer);
    }

    fn is_idle(&self) -> bool {
        self.local.is_idle() && self.open == 0
    }

    fn step(&mut self) -> Result<usize, String> {
        let mut tokens = 0;
        while let Ok(news) = self.news.try_recv() {
            tokens += self.take(news);
        }
        if !self.local.is_idle() {
            tokens += self.local.step()?;
        } else if tokens == 0 && self.open > 0 {
            match self.news.recv_timeout(PAUSE) {
                Ok(news) => tokens += self.take(news),
                // Never disconnected, since this holds a sender.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        self.tokens.1 += tokens;
        Ok(tokens)
    }

    fn update(&mut self, global_step: u64, episodes: &[TrainEpisode]) -> Result<UpdateOutcome, String> {
        std::mem::take(&mut self.cancellation).cancel();
        let mut outcome = self.local.update(global_step, episodes)?;
        self.publish();
        self.measure(&mut outcome);
        Ok(outcome)
    }

    fn save(&mut self, dir: &Path) -> Result<(), String> {
        self.local.save(dir)
    }

    fn write_adapter(&self, dir: &Path) -> Result<(), String> {
        self.local.write_adapter(dir)
    }

    fn weight_version(&self) -> u64 {
        self.local.weight_version()
    }

    fn load(&self) -> SamplingLoad {
        let local = self.local.load();
        SamplingLoad {
            running: local.running + self.open,
            ..local
        }
    }
}
