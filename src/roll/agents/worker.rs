//! The agent that is a long-lived program: it runs episode after episode, one at a time, so that starting it costs
//! once.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};

use super::launch::Launch;
use super::request::EpisodeRequest;
use super::{Access, AgentError, Rollout, answer};
use crate::roll::process::{End, Running};
use crate::roll::tasks::Task;

/// How long a worker's last words are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// `roll.agent` of type `worker`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Worker {
    #[serde(flatten)]
    launch: Launch,
    /// Maximum number of processes, and so of episodes at once. Default: `roll.max_parallel`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) workers: Option<usize>,
    /// Maximum seconds of an episode, after which its worker is killed. The first one of a worker includes its start.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 0.001, max = 31_536_000.0))]
    timeout: f64,
    #[serde(skip)]
    pool: Arc<Pool>,
}

fn default_timeout() -> f64 {
    600.0
}

/// Workers without an episode. Those that run one belong to its future, and end with it unless it ends normally.
#[derive(Debug, Default)]
struct Pool {
    idle: Mutex<Vec<Process>>,
    places: OnceLock<Semaphore>,
}

impl Pool {
    async fn place(&self, most: Option<usize>) -> Option<SemaphorePermit<'_>> {
        let places = self
            .places
            .get_or_init(|| Semaphore::new(most.unwrap_or(Semaphore::MAX_PERMITS)));
        // It is never closed.
        places.acquire().await.ok()
    }

    /// A worker that still runs.
    fn take(&self) -> Option<Process> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find_map(|mut process| process.running.is_alive().then_some(process))
    }

    fn put_back(&self, process: Process) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(process);
    }
}

impl Worker {
    /// Finds the program that would run.
    ///
    /// # Errors
    /// Fails with a message if there is none.
    pub fn check(&self) -> Result<PathBuf, String> {
        self.launch.check("roll.agent", &json!({}))
    }

    pub(super) async fn run(&self, task: &Task, access: &Access) -> Result<Rollout, AgentError> {
        let _place = self.pool.place(self.workers).await;
        let mut process = match self.pool.take() {
            Some(process) => process,
            None => self.start()?,
        };
        process.running.stderr.clear();
        let request = EpisodeRequest::new(task, access);
        // After any error, and if this future is dropped, the worker ends: its next output would be unpredictable.
        let end = tokio::select! {
            // An answer counts even if its worker ends right after it.
            biased;
            answer = process.pipes.converse(&request) => match answer? {
                Line::Answer(fields) => {
                    let stderr = process.running.stderr.text();
                    self.pool.put_back(process);
                    return answer::in_object(fields).map(|rollout| Rollout { stderr, ..rollout });
                }
                Line::TooLong => End::Output,
                Line::None => match tokio::time::timeout(LAST_WORDS, process.running.end()).await {
                    Ok(end) => end,
                    Err(_) => return Err(AgentError::Answer("no content: the worker closed its standard output".into())),
                }
            },
            end = process.running.end() => {
                let answer = tokio::time::timeout(LAST_WORDS, process.pipes.answer(request.episode_uuid)).await;
                if let Ok(Ok(Line::Answer(fields))) = answer {
                    return answer::in_object(fields);
                }
                end
            }
            () = tokio::time::sleep(Duration::from_secs_f64(self.timeout)) => End::Timeout,
        };
        let Process {
            pipes,
            running,
            directory,
        } = process;
        // Its supervisor ends it when standard input closes.
        drop(pipes);
        let error = running.fail(end).await;
        drop(directory);
        Err(error.into())
    }

    fn start(&self) -> Result<Process, AgentError> {
        let directory = tempfile::Builder::new().prefix("ajet-worker-").tempdir()?;
        let timeout = Duration::from_secs_f64(self.timeout);
        let program = self.launch.program(&json!({}), directory.path(), timeout)?;
        let mut running = Running::start(&program, u64::MAX)?;
        // Both are pipes, as `Running` says.
        let no_pipe = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let (stdin, stdout) = (running.stdin.take(), running.stdout.take());
        let lines = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), b"\n".to_vec(), program.max_output());
        Ok(Process {
            pipes: Pipes {
                stdin: stdin.ok_or_else(no_pipe)?,
                lines: FramedRead::new(stdout.ok_or_else(no_pipe)?, lines),
                max_output: program.max_output(),
            },
            running,
            directory,
        })
    }
}

/// A worker and its pipes.
#[derive(Debug)]
struct Process {
    pipes: Pipes,
    running: Running,
    /// Its working directory, removed with it.
    directory: TempDir,
}

#[derive(Debug)]
struct Pipes {
    stdin: ChildStdin,
    lines: FramedRead<ChildStdout, AnyDelimiterCodec>,
    /// Maximum bytes in an episode.
    max_output: usize,
}

/// How a worker's standard output ended.
enum Line {
    Answer(Map<String, Value>),
    /// It printed more than it may.
    TooLong,
    /// It is closed.
    None,
}

impl Pipes {
    /// Hands an episode to the worker and waits for its answer.
    async fn converse(&mut self, request: &EpisodeRequest<'_>) -> Result<Line, AgentError> {
        match self.stdin.write_all(&request.line()?).await {
            Ok(()) => self.answer(request.episode_uuid).await,
            // It has ended, or reads no more.
            Err(_) => Ok(Line::None),
        }
    }

    /// The next line that answers this episode; others are logged.
    async fn answer(&mut self, episode_uuid: &str) -> Result<Line, AgentError> {
        let mut printed = 0;
        while let Some(line) = self.lines.next().await {
            let line = match line {
                Ok(line) => line,
                Err(AnyDelimiterCodecError::MaxChunkLengthExceeded) => return Ok(Line::TooLong),
                Err(AnyDelimiterCodecError::Io(_)) => return Ok(Line::None),
            };
            printed += line.len();
            if printed > self.max_output {
                return Ok(Line::TooLong);
            }
            let line = String::from_utf8_lossy(&line);
            match answer::in_line(&line, episode_uuid)? {
                Some(fields) => return Ok(Line::Answer(fields)),
                None => tracing::info!("worker: {}", line.trim_end()),
            }
        }
        Ok(Line::None)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::client::ModelApi;
    use crate::roll::job::test_section;

    /// A worker in shell that does what the task's query says; its output is its process id.
    const SCRIPT: &str = r#"
        echo "started" >&2
        echo "a line of a log"; echo '{"level": "info"}'
        while read -r line; do
            uuid=$(printf %s "$line" | sed 's/.*"episode_uuid":"\([^"]*\)".*/\1/')
            case "$line" in
                *do:die*) echo "no memory" >&2; exit 7;;
                *do:hang*) sleep 600;;
                *do:close*) exec >&-; sleep 600;;
                *do:wait*) sleep 0.3;;
                *do:flood*) yes;;
                *do:forget*) echo '{"reward": 1}';;
                *do:nan*) echo "{\"episode_uuid\": \"$uuid\", \"reward\": NaN}";;
                *do:text*) echo "{\"episode_uuid\": \"$uuid\", \"reward\": \"1\"}"; continue;;
            esac
            echo "{\"episode_uuid\": \"$uuid\", \"reward\": 1, \"output\": \"$$\"}"
            case "$line" in *do:last*) exit 0;; esac
        done
    "#;

    fn worker(more: &str) -> Worker {
        test_section(
            "roll.agent",
            &format!("{{argv: [sh, -c, {SCRIPT:?}], max_output_mb: 1{more}}}"),
        )
    }

    async fn run(worker: &Worker, query: &str) -> Result<String, AgentError> {
        let task = Task {
            main_query: query.into(),
            ..Task::default()
        };
        let access = Access {
            model: ModelApi::new("http://localhost:1/v1", "key").unwrap(),
            model_name: "m".into(),
            episode_uuid: uuid::Uuid::new_v4().to_string(),
            is_recorded: false,
            max_completion_tokens: None,
            models: indexmap::IndexMap::new(),
        };
        let rollout = worker.run(&task, &access).await?;
        assert_eq!(rollout.reward, Some(1.0));
        Ok(rollout.output)
    }

    fn runs(process: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    async fn is_gone(process: &str) -> bool {
        for _ in 0..500 {
            if !runs(process) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    #[tokio::test]
    async fn a_worker_runs_episode_after_episode_and_is_replaced_when_it_fails() {
        let worker = worker(", timeout: 5");
        let first = run(&worker, "hi").await.unwrap();
        assert_eq!(run(&worker, "hi").await.unwrap(), first);
        for (query, reason, message) in [
            (
                "do:die",
                "agent_failed",
                "exit status: 7; the end of its stderr:\nno memory",
            ),
            ("do:close", "bad_answer", "the worker closed its standard output"),
            ("do:flood", "agent_output", "more than `max_output_mb: 1`"),
            ("do:forget", "bad_answer", "no `episode_uuid`"),
            ("do:nan", "bad_answer", "not JSON"),
        ] {
            let before = run(&worker, "hi").await.unwrap();
            let error = run(&worker, query).await.unwrap_err();
            assert_eq!((error.reason(), error.is_permanent()), (reason, false), "{error}");
            assert!(error.to_string().contains(message), "{error}");
            assert!(is_gone(&before).await, "{query}");
            assert_ne!(run(&worker, "hi").await.unwrap(), before);
        }
        let before = run(&worker, "hi").await.unwrap();
        // A wrong reward is an answer; the worker goes on.
        assert_eq!(run(&worker, "do:text").await.unwrap_err().reason(), "bad_reward");
        assert_eq!(run(&worker, "hi").await.unwrap(), before);
    }

    #[tokio::test]
    async fn a_worker_that_hangs_or_whose_episode_is_given_up_is_ended() {
        let worker = worker(", timeout: 0.5");
        let hung = run(&worker, "hi").await.unwrap();
        assert_eq!(run(&worker, "do:hang").await.unwrap_err().reason(), "agent_timeout");
        assert!(is_gone(&hung).await);
        let given_up = run(&worker, "hi").await.unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(100), run(&worker, "do:hang"))
                .await
                .is_err()
        );
        assert!(is_gone(&given_up).await);
        let idle = run(&worker, "hi").await.unwrap();
        drop(worker);
        assert!(is_gone(&idle).await);
    }

    #[tokio::test]
    async fn an_answer_counts_though_its_worker_ends_and_an_idle_one_that_ended_is_replaced() {
        let worker = worker("");
        let last = run(&worker, "do:last").await.unwrap();
        assert!(is_gone(&last).await);
        assert_ne!(run(&worker, "hi").await.unwrap(), last);
    }

    #[tokio::test]
    async fn no_more_workers_run_than_the_job_allows() {
        let worker = worker(", workers: 2");
        let episodes = join_all((0..6).map(|_| run(&worker, "do:wait"))).await;
        let mut processes: Vec<_> = episodes.into_iter().map(Result::unwrap).collect();
        processes.sort();
        processes.dedup();
        assert_eq!(processes.len(), 2);
    }
}
