//! The tokens that an answer's grammar allows, computed beside the forward pass.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, LazyLock};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::grammar::{GrammarError, Matcher};
use crate::model::TokenSet;

/// Number of threads that compute allowed tokens. A set takes microseconds to a millisecond, so few threads serve a batch
/// within a step.
const THREADS: usize = 2;

/// Threads of all constraints; `None` if they cannot be started.
static WORKERS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let builder = ThreadPoolBuilder::new().num_threads(THREADS);
    builder.thread_name(|number| format!("grammar-{number}")).build().ok()
});

/// Grammar of an answer being sampled. The tokens allowed next are computed on threads of their own as soon as a token is
/// known, while the model computes its logits.
pub struct Constraint(State);

enum State {
    /// Known.
    Ready(Box<Ready>),
    /// Being computed.
    Computing(Receiver<State>),
    /// The computation failed.
    Failed(GrammarError),
}

struct Ready {
    matcher: Matcher,
    allowed: Arc<TokenSet>,
}

impl Constraint {
    /// Starts at the beginning of the answer.
    pub fn new(matcher: Matcher) -> Self {
        Self(compute(matcher, None))
    }

    /// Waits for the allowed tokens.
    pub fn wait(&mut self) {
        if let State::Computing(result) = &self.0 {
            let lost = || State::Failed(GrammarError::Mask("the computation panicked".into()));
            self.0 = result.recv().unwrap_or_else(|_| lost());
        }
    }

    /// Returns the allowed tokens; `None` before [`wait`](Self::wait) or after a failure.
    pub fn allowed(&self) -> Option<&TokenSet> {
        match &self.0 {
            State::Ready(ready) => Some(&ready.allowed),
            State::Computing(_) | State::Failed(_) => None,
        }
    }

    /// Returns the error of a failed computation.
    pub fn failure(&self) -> Option<&GrammarError> {
        match &self.0 {
            State::Failed(error) => Some(error),
            State::Ready(_) | State::Computing(_) => None,
        }
    }

    /// Waits, and returns whether nothing but an end token can follow.
    pub fn is_complete(&mut self) -> bool {
        self.wait();
        matches!(&self.0, State::Ready(ready) if ready.matcher.is_complete())
    }

    /// Adds the sampled token and starts to compute what may follow.
    pub fn push(&mut self, token: u32) {
        self.wait();
        let lost = State::Failed(GrammarError::Token(token));
        self.0 = match std::mem::replace(&mut self.0, lost) {
            State::Ready(ready) => compute(ready.matcher, Some(token)),
            failed => failed,
        };
    }
}

/// Adds a token to a matcher and computes what may follow, on another thread if there is one.
fn compute(mut matcher: Matcher, token: Option<u32>) -> State {
    let work = move || {
        let pushed = token.map_or(Ok(()), |token| matcher.push(token));
        match pushed.and_then(|()| matcher.allowed()) {
            Ok(allowed) => State::Ready(Box::new(Ready {
                matcher,
                allowed: Arc::new(allowed),
            })),
            Err(error) => State::Failed(error),
        }
    };
    match &*WORKERS {
        None => work(),
        Some(workers) => {
            let (sender, result) = channel();
            workers.spawn(move || _ = sender.send(work())); // the request may be gone
            State::Computing(result)
        }
    }
}
