//! Work that takes more than a millisecond, kept off the threads that serve connections.

use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use super::error::Error;

/// Runs work on blocking threads, a few at once; the others wait for their turn.
#[derive(Debug)]
pub struct Lane {
    /// What waits or runs.
    admitted: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Lane {
    /// A lane in which `running` pieces of work run at once and `waiting` may wait.
    pub fn new(running: usize, waiting: usize) -> Self {
        Self {
            admitted: Arc::new(Semaphore::new(running + waiting)),
            running: Arc::new(Semaphore::new(running)),
        }
    }

    /// Runs `work` and returns its result. Work that has begun keeps its place to its end, even if nobody waits for it.
    ///
    /// # Errors
    ///
    /// Too much waits already, or the work panicked.
    pub async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, Error> {
        let admitted = Arc::clone(&self.admitted).try_acquire_owned();
        let admitted = admitted.map_err(|_| Error::Busy("too many large requests are waiting to be read".into()))?;
        let running = Arc::clone(&self.running).acquire_owned().await;
        let running = running.map_err(|error| Error::Internal(error.to_string()))?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop((running, admitted));
            result
        });
        done.await.map_err(|error| Error::Internal(error.to_string()))
    }
}

/// Runs `work` on this thread, whose other tasks move to another one meanwhile.
pub fn aside<R>(work: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_waits_for_its_turn_and_what_is_too_much_is_refused_at_once() {
        let lane = Arc::new(Lane::new(1, 1));
        let (release, held) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move { lane.run(move || held.recv().is_ok()).await }
        });
        while lane.running.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let second = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move { lane.run(|| 2).await }
        });
        while lane.admitted.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(lane.run(|| 3).await, Err(Error::Busy(_))));
        assert!(!second.is_finished());
        release.send(()).unwrap();
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(true), Ok(2)));
        assert_eq!(lane.run(|| 4).await, Ok(4), "there is room again");
        assert!(matches!(
            lane.run(|| panic!("as intended")).await,
            Err::<(), _>(Error::Internal(_))
        ));
        assert_eq!(lane.run(|| 5).await, Ok(5), "a panic keeps no place");
    }
}
