//! A pool for work of more than a millisecond, so that it does not block the threads that serve connections.

use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use super::error::Error;

/// Runs work on blocking threads, a few at once, the rest in a bounded queue.
#[derive(Debug)]
pub struct BlockingPool {
    /// Permits of queued and running work.
    admitted: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl BlockingPool {
    /// Creates a pool that runs `running` jobs at once and queues up to `waiting` more.
    pub fn new(running: usize, waiting: usize) -> Self {
        Self {
            admitted: Arc::new(Semaphore::new(running + waiting)),
            running: Arc::new(Semaphore::new(running)),
        }
    }

    /// Runs `work` and returns its result. Started work keeps its permit to the end, even if the caller is gone.
    ///
    /// # Errors
    ///
    /// Fails if the queue is full or the work panicked.
    pub async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, Error> {
        let admitted = Arc::clone(&self.admitted).try_acquire_owned();
        let admitted = admitted.map_err(|_| Error::Busy("too many requests are waiting for a thread".into()))?;
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

/// Runs `work` on this thread, after moving its other tasks to another thread.
pub fn run_blocking<R>(work: impl FnOnce() -> R) -> R {
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
        let blocking_pool = Arc::new(BlockingPool::new(1, 1));
        let (release, held) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let blocking_pool = Arc::clone(&blocking_pool);
            async move { blocking_pool.run(move || held.recv().is_ok()).await }
        });
        while blocking_pool.running.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let second = tokio::spawn({
            let blocking_pool = Arc::clone(&blocking_pool);
            async move { blocking_pool.run(|| 2).await }
        });
        while blocking_pool.admitted.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(blocking_pool.run(|| 3).await, Err(Error::Busy(_))));
        assert!(!second.is_finished());
        release.send(()).unwrap();
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(true), Ok(2)));
        assert_eq!(blocking_pool.run(|| 4).await, Ok(4), "there is room again");
        assert!(matches!(
            blocking_pool.run(|| panic!("as intended")).await,
            Err::<(), _>(Error::Internal(_))
        ));
        assert_eq!(blocking_pool.run(|| 5).await, Ok(5), "a panic keeps no place");
    }
}
