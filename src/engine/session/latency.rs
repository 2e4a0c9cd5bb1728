//! Latencies of LLM requests: time to the first token, and time per further token.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum number of kept latencies of each kind; further ones are left out until the next [`Latencies::take`].
const KEPT: usize = 10_000;

/// Latencies since they were last taken, in seconds.
#[derive(Debug, Default)]
pub struct Latencies(Mutex<Recent>);

/// Latencies of a period, in seconds.
#[derive(Debug, Default, PartialEq)]
pub struct Recent {
    /// From a request to its first token.
    pub time_to_first_token: Vec<f64>,
    /// Mean time per further token of an answer.
    pub time_per_token: Vec<f64>,
}

impl Latencies {
    /// Returns the latencies since the last call.
    pub fn take(&self) -> Recent {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        // Poisoning is ignored: a push leaves a valid list.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measures one answer.
#[derive(Debug)]
pub struct Stopwatch {
    submitted: Instant,
    first_token: Option<Instant>,
    further_tokens: u32,
}

impl Stopwatch {
    /// Starts with the submission of the request.
    pub fn start() -> Self {
        Self {
            submitted: Instant::now(),
            first_token: None,
            further_tokens: 0,
        }
    }

    /// Counts a token; the first one is recorded.
    pub fn token(&mut self, latencies: &Latencies) {
        if self.first_token.is_some() {
            self.further_tokens += 1;
            return;
        }
        let now = Instant::now();
        self.first_token = Some(now);
        push(
            &mut latencies.lock().time_to_first_token,
            (now - self.submitted).as_secs_f64(),
        );
    }

    /// Records the time per further token at the end of the answer.
    pub fn end(&self, latencies: &Latencies) {
        if let Some(first) = self.first_token.filter(|_| self.further_tokens > 0) {
            let mean = first.elapsed().as_secs_f64() / f64::from(self.further_tokens);
            push(&mut latencies.lock().time_per_token, mean);
        }
    }
}

fn push(latencies: &mut Vec<f64>, seconds: f64) {
    if latencies.len() < KEPT {
        latencies.push(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_one_first_token_and_a_mean_of_the_others() {
        let latencies = Latencies::default();
        let mut answer = Stopwatch::start();
        answer.end(&latencies);
        answer.token(&latencies);
        answer.end(&latencies);
        assert_eq!(latencies.take().time_per_token.len(), 0, "no further token");
        answer.token(&latencies);
        answer.token(&latencies);
        answer.end(&latencies);
        let recent = latencies.take();
        assert_eq!((recent.time_to_first_token.len(), recent.time_per_token.len()), (0, 1));
        assert_eq!(latencies.take(), Recent::default());
    }

    #[test]
    fn latencies_that_are_never_taken_are_bounded() {
        let latencies = Latencies::default();
        for _ in 0..KEPT + 5 {
            Stopwatch::start().token(&latencies);
        }
        assert_eq!(latencies.take().time_to_first_token.len(), KEPT);
    }
}
