//! The model thread: owns weights, scheduler and trainer, and receives commands through a channel.
//!
//! It samples while requests are pending and checks for commands between two steps; so a command waits for at most one
//! step, and updates never overlap with sampling. It waits for I/O only where a command requires it (writing a
//! checkpoint, while nothing is sampled).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::metrics::Metrics;
use crate::inference::{SampleEvent, SampleRequest, Scheduler, Totals};
use crate::protocol::engine::DropReason;
use crate::protocol::run_files::Advantages;
use crate::train::TrainEpisode;

/// The computation of the model thread. Errors are sentences and end the engine.
pub trait Worker {
    /// Queues a request; its events are sent to the request's channel.
    fn submit(&mut self, request: SampleRequest);
    /// Returns whether nothing is queued or being sampled.
    fn is_idle(&self) -> bool;
    /// Performs one sampling step for all queued and running requests. Returns the number of sampled tokens.
    fn step(&mut self) -> Result<usize, String>;
    /// Updates the weights from a batch. Requests still queued or running are cancelled.
    fn update(&mut self, global_step: u64, episodes: &[TrainEpisode]) -> Result<UpdateOutcome, String>;
    /// Writes model and trainer state into a checkpoint directory.
    fn save(&mut self, dir: &Path) -> Result<(), String>;
    /// Writes the LoRA adapter that is trained into an existing directory.
    fn write_adapter(&self, _dir: &Path) -> Result<(), String> {
        Err("this engine trains no adapter".into())
    }
    /// Samples with the LoRA adapter in a directory from now on. Requests still queued or running are cancelled.
    fn load_adapter(&mut self, _dir: &Path) -> Result<(), String> {
        Err("this engine trains its own weights".into())
    }
    /// Returns the weight version, which grows with every update.
    fn weight_version(&self) -> u64;
    /// Returns the load of sampling. Called after every step, so it must be cheap.
    fn load(&self) -> SamplingLoad;
}

/// Load of sampling. Totals count from the start of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingLoad {
    /// Requests being sampled.
    pub running: usize,
    /// Queued requests.
    pub waiting: usize,
    /// Share of the KV cache in use, 0 to 1.
    pub cache_usage: f64,
    /// Totals of the scheduler.
    pub totals: Totals,
}

impl SamplingLoad {
    /// Reads the load of a scheduler.
    pub fn of(scheduler: &Scheduler) -> Self {
        let (running, waiting) = scheduler.request_counts();
        let (free, blocks) = scheduler.block_counts();
        Self {
            running,
            waiting,
            cache_usage: 1.0 - free as f64 / blocks.max(1) as f64,
            totals: scheduler.totals(),
        }
    }

    /// Combines the loads of several ranks, at least one: sums, and the mean use of their caches.
    pub fn of_all(loads: impl Iterator<Item = Self>) -> Self {
        let (mut all, mut ranks) = (Self::default(), 0);
        for load in loads {
            ranks += 1;
            all.running += load.running;
            all.waiting += load.waiting;
            all.cache_usage += load.cache_usage;
            all.totals.prompt_tokens += load.totals.prompt_tokens;
            all.totals.cached_tokens += load.totals.cached_tokens;
            all.totals.computed_tokens += load.totals.computed_tokens;
            all.totals.preemptions += load.totals.preemptions;
        }
        all.cache_usage /= f64::from(ranks.max(1));
        all
    }
}

/// Result of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateOutcome {
    /// Metrics of the trainer.
    pub metrics: Metrics,
    /// Why an episode was dropped after all, by its id.
    pub dropped: IndexMap<String, DropReason>,
    /// Advantage of each row by its episode's id; `None` for a row that was not trained on.
    pub advantages: Advantages,
    /// Warnings for the log.
    pub warnings: Vec<String>,
    /// Message shown to users until the next update.
    pub trouble: Option<String>,
}

enum Command {
    Submit(Box<SampleRequest>),
    Update {
        global_step: u64,
        episodes: Vec<TrainEpisode>,
        reply: oneshot::Sender<UpdateOutcome>,
    },
    Save {
        dir: PathBuf,
        reply: oneshot::Sender<Result<(), String>>,
    },
    LoadAdapter {
        dir: PathBuf,
        reply: oneshot::Sender<Result<(), String>>,
    },
}

/// The model thread has ended; the engine is about to end and has reported the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model thread has ended")]
pub struct ModelGone;

/// Handle for calls to the model thread.
#[derive(Clone, Debug)]
pub struct ModelHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    weight_version: AtomicU64,
    sampled_tokens: AtomicU64,
    sampling_micros: AtomicU64,
    load: Mutex<SamplingLoad>,
}

impl Shared {
    fn load(&self) -> MutexGuard<'_, SamplingLoad> {
        // Poisoning is ignored: the value is assigned as a whole.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sampling totals since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingTotals {
    /// Tokens sampled.
    pub tokens: u64,
    /// Time spent in sampling steps.
    pub time: Duration,
}

impl ModelHandle {
    /// Queues a request. Its events report progress, or a failure if the model thread has ended.
    pub fn submit(&self, request: SampleRequest) {
        if let Err(unsent) = self.commands.send(Command::Submit(Box::new(request)))
            && let Command::Submit(request) = unsent.0
        {
            let _ = request.events.send(SampleEvent::Failed(ModelGone.to_string())); // the requester may be gone too
        }
    }

    /// Updates the weights from a batch.
    pub async fn update(&self, global_step: u64, episodes: Vec<TrainEpisode>) -> Result<UpdateOutcome, ModelGone> {
        let (reply, outcome) = oneshot::channel();
        self.send(Command::Update {
            global_step,
            episodes,
            reply,
        })?;
        outcome.await.map_err(|_| ModelGone)
    }

    /// Writes model and trainer state into `dir`. Blocks, so it must not be called from an async task. After a failure
    /// the model is unchanged.
    pub fn save_blocking(&self, dir: &Path) -> Result<(), String> {
        let (reply, outcome) = oneshot::channel();
        let dir = dir.to_owned();
        self.send(Command::Save { dir, reply }).map_err(|e| e.to_string())?;
        outcome.blocking_recv().unwrap_or_else(|_| Err(ModelGone.to_string()))
    }

    /// Has the worker sample with the LoRA adapter in a directory. After a failure, a reason why there is none.
    pub async fn load_adapter(&self, dir: &Path) -> Result<(), String> {
        let (reply, outcome) = oneshot::channel();
        let dir = dir.to_owned();
        self.send(Command::LoadAdapter { dir, reply })
            .map_err(|e| e.to_string())?;
        outcome.await.unwrap_or_else(|_| Err(ModelGone.to_string()))
    }

    /// Returns the version of the weights in use; it grows with every update.
    pub fn weight_version(&self) -> u64 {
        self.shared.weight_version.load(Ordering::Acquire)
    }

    /// Returns the sampling totals since the engine started.
    pub fn sampling_totals(&self) -> SamplingTotals {
        SamplingTotals {
            tokens: self.shared.sampled_tokens.load(Ordering::Relaxed),
            time: Duration::from_micros(self.shared.sampling_micros.load(Ordering::Relaxed)),
        }
    }

    /// Returns the load of sampling after the last step.
    pub fn load(&self) -> SamplingLoad {
        *self.shared.load()
    }

    fn send(&self, command: Command) -> Result<(), ModelGone> {
        self.commands.send(command).map_err(|_| ModelGone)
    }
}

/// A started model thread.
pub struct ModelThread<I> {
    /// Handle for calls to it.
    pub handle: ModelHandle,
    /// Information from `build`, once it has finished.
    pub built: oneshot::Receiver<I>,
    /// Outcome: an error or panic as a sentence.
    pub ended: oneshot::Receiver<Result<(), String>>,
}

/// Starts the thread. `build` creates the worker on it, so that weights never move between threads, and returns
/// information about it.
pub fn spawn<I: Send + 'static>(
    build: impl FnOnce() -> Result<(Box<dyn Worker>, I), String> + Send + 'static,
) -> std::io::Result<ModelThread<I>> {
    let (commands, inbox) = channel();
    let shared = Arc::new(Shared::default());
    let (built_sender, built) = oneshot::channel();
    let (ended_sender, ended) = oneshot::channel();
    let thread_shared = shared.clone();
    std::thread::Builder::new().name("model".into()).spawn(move || {
        // The inbox is dropped with the worker, so that after `ended` no command can be sent into the void.
        let work = move || {
            let (mut worker, info) = build()?;
            thread_shared
                .weight_version
                .store(worker.weight_version(), Ordering::Release);
            let _ = built_sender.send(info); // no receiver: the engine is ending
            serve(&mut *worker, &inbox, &thread_shared)
        };
        let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(describe_panic(&*panic)));
        let _ = ended_sender.send(outcome); // no receiver: the engine is ending
    })?;
    Ok(ModelThread {
        handle: ModelHandle { commands, shared },
        built,
        ended,
    })
}

/// Handles commands and samples until all handles are gone.
fn serve(worker: &mut dyn Worker, inbox: &Receiver<Command>, shared: &Shared) -> Result<(), String> {
    loop {
        // A closed channel ends the thread: no commands can arrive any more.
        let command = if worker.is_idle() {
            let Ok(command) = inbox.recv() else { return Ok(()) };
            Some(command)
        } else {
            match inbox.try_recv() {
                Ok(command) => Some(command),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        };
        match command {
            Some(Command::Submit(request)) => worker.submit(*request),
            Some(Command::Update {
                global_step,
                episodes,
                reply,
            }) => {
                let outcome = worker.update(global_step, &episodes)?;
                shared.weight_version.store(worker.weight_version(), Ordering::Release);
                *shared.load() = worker.load();
                let _ = reply.send(outcome); // the requester may be gone; the weights are updated anyway
            }
            Some(Command::Save { dir, reply }) => {
                let _ = reply.send(worker.save(&dir)); // as above
            }
            Some(Command::LoadAdapter { dir, reply }) => {
                let loaded = worker.load_adapter(&dir);
                shared.weight_version.store(worker.weight_version(), Ordering::Release);
                let _ = reply.send(loaded); // as above
            }
            None => {
                let begun = Instant::now();
                let tokens = worker.step()?;
                let micros = begun.elapsed().as_micros() as u64;
                shared.sampled_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
                shared.sampling_micros.fetch_add(micros, Ordering::Relaxed);
                *shared.load() = worker.load();
            }
        }
    }
}

fn describe_panic(panic: &(dyn Any + Send)) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the model thread panicked: {}", message.unwrap_or("no message"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::inference::{Bias, FinishReason, SampledToken, SamplingParams};
    use std::collections::VecDeque;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    /// A worker whose "model" says the prompt back, one token a step, and whose update adds one to its version.
    #[derive(Default)]
    pub(crate) struct Parrot {
        pub(crate) queue: VecDeque<(SampleRequest, usize)>,
        pub(crate) version: u64,
        pub(crate) updates: Vec<(u64, Vec<String>)>,
        /// Fails at the update of this step.
        pub(crate) fails_at: Option<u64>,
    }

    impl Worker for Parrot {
        fn submit(&mut self, request: SampleRequest) {
            self.queue.push_back((request, 0));
        }

        fn is_idle(&self) -> bool {
            self.queue.is_empty()
        }

        fn step(&mut self) -> Result<usize, String> {
            let sampled = self.queue.len();
            self.queue.retain_mut(|(request, at)| {
                let id = request.prompt[*at];
                assert_ne!(id, 666, "the number of the beast");
                let token = SampledToken {
                    id,
                    logprob: -0.5,
                    determined: false,
                    top: vec![],
                };
                let _ = request.events.send(SampleEvent::Token(token));
                *at += 1;
                let done = *at == request.prompt.len();
                if done {
                    let _ = request.events.send(SampleEvent::Finished(FinishReason::Stop));
                }
                !done
            });
            Ok(sampled)
        }

        fn update(&mut self, global_step: u64, episodes: &[TrainEpisode]) -> Result<UpdateOutcome, String> {
            if self.fails_at == Some(global_step) {
                return Err("out of memory".into());
            }
            for (request, _) in self.queue.drain(..) {
                let _ = request.events.send(SampleEvent::Finished(FinishReason::Cancelled));
            }
            let names = episodes.iter().map(|e| e.episode_uuid.clone()).collect();
            self.updates.push((global_step, names));
            self.version += 1;
            Ok(UpdateOutcome {
                metrics: Metrics::from_iter([("loss".to_owned(), 0.25)]),
                ..Default::default()
            })
        }

        fn save(&mut self, dir: &Path) -> Result<(), String> {
            let text = serde_json::to_string(&self.updates).map_err(|e| e.to_string())?;
            std::fs::write(dir.join("updates.json"), text).map_err(|e| e.to_string())
        }

        fn weight_version(&self) -> u64 {
            self.version
        }

        fn load(&self) -> SamplingLoad {
            SamplingLoad {
                running: self.queue.len(),
                ..SamplingLoad::default()
            }
        }
    }

    pub(crate) fn request(prompt: &[u32]) -> (SampleRequest, UnboundedReceiver<SampleEvent>) {
        let (events, receiver) = unbounded_channel();
        let params = SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            bias: Bias::default(),
            seed: 0,
            max_tokens: 100,
            stop_token_ids: vec![],
            top_logprobs: 0,
        };
        let request = SampleRequest {
            id: 0,
            group: String::new(),
            prompt: prompt.to_vec(),
            params,
            forced_tokens: vec![],
            grammar: None,
            stop: None,
            events,
        };
        (request, receiver)
    }

    fn start() -> ModelThread<()> {
        spawn(|| Ok((Box::new(Parrot::default()), ()))).unwrap()
    }

    #[tokio::test]
    async fn it_samples_updates_saves_and_stops() {
        let ModelThread { handle, built, ended } = start();
        built.await.unwrap();
        let (first, mut events) = request(&[1, 2]);
        handle.submit(first);
        let mut tokens = vec![];
        while let Some(SampleEvent::Token(token)) = events.recv().await {
            tokens.push(token.id);
        }
        assert_eq!(tokens, [1, 2]);
        assert_eq!(handle.weight_version(), 0);
        let outcome = handle.update(1, vec![TrainEpisode::default()]).await.unwrap();
        assert_eq!(outcome.metrics["loss"], 0.25);
        assert_eq!(handle.weight_version(), 1);
        assert_eq!(handle.sampling_totals().tokens, 2);
        let dir = tempfile::tempdir().unwrap();
        let (path, saver) = (dir.path().to_owned(), handle.clone());
        tokio::task::spawn_blocking(move || saver.save_blocking(&path))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.path().join("updates.json")).unwrap(),
            r#"[[1,[""]]]"#
        );
        drop(handle);
        assert_eq!(ended.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn a_panic_in_a_step_ends_the_thread_with_its_words_and_fails_what_comes_after() {
        let ModelThread { handle, ended, .. } = start();
        let (bad, mut events) = request(&[666]);
        handle.submit(bad);
        let words = ended.await.unwrap().unwrap_err();
        assert!(
            words.contains("the model thread panicked") && words.contains("the number of the beast"),
            "{words}"
        );
        assert_eq!(events.recv().await, None);
        let (late, mut events) = request(&[1]);
        handle.submit(late);
        assert!(matches!(events.recv().await, Some(SampleEvent::Failed(_))));
        assert_eq!(handle.update(1, vec![]).await, Err(ModelGone));
    }

    #[tokio::test]
    async fn an_error_of_an_update_or_of_building_ends_the_thread() {
        let failing = || Parrot {
            fails_at: Some(1),
            ..Parrot::default()
        };
        let ModelThread { handle, ended, .. } = spawn(move || Ok((Box::new(failing()), ()))).unwrap();
        assert_eq!(handle.update(1, vec![]).await, Err(ModelGone));
        assert_eq!(ended.await.unwrap(), Err("out of memory".into()));

        let ModelThread { built, ended, .. } = spawn::<()>(|| Err("no such model".into())).unwrap();
        assert!(built.await.is_err());
        assert_eq!(ended.await.unwrap(), Err("no such model".into()));
    }

    #[tokio::test]
    async fn the_thread_ends_when_nobody_can_reach_it_any_more() {
        let ModelThread { handle, ended, .. } = start();
        drop(handle);
        assert_eq!(ended.await.unwrap(), Ok(()));
    }
}
