//! A swarm server as a source: its status feed, or a Python server's pool.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::printable;
use super::python::PoolWatcher;
use super::{Update, Wanted, WatchError};
use crate::client::{ClientError, EventStream, SwarmClient};
use crate::overwatch::update::{Extreme, Observed, PAGE, Query, Subject};
use crate::protocol::status::{EpisodeDetail, History, Status, TranscriptConversation};

/// Minimum time between two reads of a server without a stream.
const POLL: Duration = Duration::from_secs(1);
/// Time between two reads of the history while steps come, and of lists and transcripts that are shown.
const REREAD: Duration = Duration::from_secs(2);
/// Maximum time until a server that went away is asked again.
const RETRY: Duration = Duration::from_secs(1);

const STATUS: &str = "/status";
const STREAM: &str = "/status/stream";
const HISTORY: &str = "/history";
const EPISODES: &str = "/episodes";

/// What the history depends on: experiment, step, evaluated step.
type Progress = (String, u64, u64);

/// Reads everything once.
pub(super) async fn once(swarm: &SwarmClient) -> Result<Vec<Update>, WatchError> {
    let observed = match swarm.observe::<Value>(STATUS, None, &[]).await {
        Err(error) if is_missing(&error) => PoolWatcher::default().look(swarm).await?,
        answer => Observed {
            status: typed(swarm, STATUS, answer?)?,
            missing: None,
        },
    };
    let progress = progress(&observed.status);
    let mut updates = vec![Update::Status(Box::new(observed))];
    updates.extend(history(swarm, &progress.0, 1).await.unwrap_or_default());
    Ok(updates)
}

/// Sends updates until the receiver is gone.
pub(super) async fn follow(
    swarm: SwarmClient,
    updates: mpsc::Sender<Update>,
    wanted: watch::Receiver<Wanted>,
    refresh: Duration,
) {
    let (steps, new_steps) = watch::channel(Progress::default());
    let follower = Follower {
        swarm: &swarm,
        updates: &updates,
    };
    tokio::select! {
        () = follower.status(steps, refresh) => {}
        () = follower.history(new_steps) => {}
        () = follower.wanted(wanted) => {}
        () = updates.closed() => {}
    }
}

#[derive(Clone, Copy)]
struct Follower<'a> {
    swarm: &'a SwarmClient,
    updates: &'a mpsc::Sender<Update>,
}

impl Follower<'_> {
    /// Follows the state, by the server's stream if it has one.
    async fn status(self, steps: watch::Sender<Progress>, refresh: Duration) {
        let mut pool = PoolWatcher::default();
        loop {
            let pause = match self.swarm.observe_stream(STREAM).await {
                Ok(stream) => match self.stream(stream, &steps, refresh).await {
                    Ok(()) => Duration::ZERO,
                    Err(error) => self.lost(&error, refresh).await,
                },
                Err(error) if is_missing(&error) => match self.poll(&mut pool).await {
                    Ok(observed) => {
                        self.send_status(observed, &steps).await;
                        refresh.max(POLL)
                    }
                    Err(error) => self.lost(&error, refresh).await,
                },
                Err(error) => self.lost(&error, refresh).await,
            };
            sleep(pause).await;
        }
    }

    /// Sends the states of a stream until it ends; of those that come within `refresh` the last one.
    async fn stream(
        self,
        mut stream: EventStream,
        steps: &watch::Sender<Progress>,
        refresh: Duration,
    ) -> Result<(), ClientError> {
        let mut next = Instant::now();
        let mut newest: Option<Vec<u8>> = None;
        loop {
            let mut has_ended = false;
            tokio::select! {
                event = stream.next() => match event? {
                    Some(event) => {
                        newest = Some(event);
                        continue;
                    }
                    None => has_ended = true,
                },
                () = sleep_until(next), if newest.is_some() => {}
            }
            if let Some(event) = newest.take() {
                let value = serde_json::from_slice(&event).map_err(|error| unexpected(self.swarm, STREAM, &error))?;
                let status = typed(self.swarm, STREAM, value)?;
                self.send_status(Observed { status, missing: None }, steps).await;
                next = Instant::now() + refresh;
            }
            if has_ended {
                sleep(RETRY.min(refresh)).await;
                return Ok(());
            }
        }
    }

    /// Reads the state of a server without a stream.
    async fn poll(self, pool: &mut PoolWatcher) -> Result<Observed, ClientError> {
        match self.swarm.observe::<Value>(STATUS, None, &[]).await {
            Err(error) if is_missing(&error) => pool.look(self.swarm).await,
            answer => Ok(Observed {
                status: typed(self.swarm, STATUS, answer?)?,
                missing: None,
            }),
        }
    }

    async fn send_status(self, observed: Observed, steps: &watch::Sender<Progress>) {
        let now = progress(&observed.status);
        steps.send_if_modified(|progress| std::mem::replace(progress, now.clone()) != now);
        self.send(Update::Status(Box::new(observed))).await;
    }

    async fn lost(self, error: &ClientError, refresh: Duration) -> Duration {
        self.send(Update::Lost(reason(error))).await;
        RETRY.max(refresh)
    }

    /// Reads the history at the beginning and after steps.
    async fn history(self, mut steps: watch::Receiver<Progress>) {
        let mut read = Progress::default();
        while steps.changed().await.is_ok() {
            let now = steps.borrow_and_update().clone();
            // Another experiment, or an engine that is back with an earlier checkpoint.
            let is_new = now.0 != read.0 || now.1 < read.1;
            let since = if is_new { 1 } else { read.1.saturating_sub(1).max(1) };
            match history(self.swarm, &now.0, since).await {
                Ok(pages) => {
                    for page in pages {
                        self.send(page).await;
                    }
                    read = now;
                }
                Err(error) => tracing::debug!("cannot read the history: {error}"),
            }
            sleep(REREAD).await;
        }
        // The state's part of this source ended.
        std::future::pending().await
    }

    /// Reads what is shown beside the state, when that changes and from time to time.
    async fn wanted(self, mut wanted: watch::Receiver<Wanted>) {
        // A finished episode does not change.
        let mut settled = None;
        loop {
            let now = wanted.borrow_and_update().clone();
            if let Some(query) = now.episodes {
                let page = self.episodes(&query).await.map_err(|error| reason(&error));
                self.send(Update::Episodes(query, page)).await;
            }
            if let Some((subject, tokens)) = now.transcript
                && settled.as_ref() != Some(&(subject.clone(), tokens))
            {
                let detail = self.transcript(&subject, tokens).await.map_err(|error| reason(&error));
                settled = match &detail {
                    Ok(detail) if !detail.running && subject != Subject::Latest => Some((subject.clone(), tokens)),
                    _ => None,
                };
                self.send(Update::Transcript(subject, detail.map(Box::new))).await;
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = sleep(REREAD) => {}
            }
        }
    }

    async fn episodes(self, query: &Query) -> Result<crate::protocol::status::Episodes, ClientError> {
        let (offset, limit) = (query.offset.to_string(), PAGE.to_string());
        let mut pairs = vec![("sort", query.sort.as_str()), ("offset", &offset), ("limit", &limit)];
        pairs.extend(query.task.as_deref().map(|task| ("task", task)));
        pairs.extend(query.kind.only().map(|kind| ("type", kind.as_str())));
        typed(self.swarm, EPISODES, self.swarm.observe(EPISODES, None, &pairs).await?)
    }

    async fn transcript(self, subject: &Subject, tokens: bool) -> Result<EpisodeDetail, ClientError> {
        match subject {
            Subject::Latest => self.latest_call().await,
            Subject::Episode(episode) => self.episode(episode, tokens).await,
            Subject::Extreme(extreme, step) => self.extreme(*extreme, *step, tokens).await,
        }
    }

    async fn extreme(self, extreme: Extreme, step: u64, tokens: bool) -> Result<EpisodeDetail, ClientError> {
        let at = step.to_string();
        let pairs = [("type", "train"), ("sort", extreme.sort().as_str()), ("step", &at)];
        let page: crate::protocol::status::Episodes =
            typed(self.swarm, EPISODES, self.swarm.observe(EPISODES, None, &pairs).await?)?;
        match page.episodes.iter().find(|episode| episode.dropped.is_none()) {
            Some(episode) => self.episode(&episode.episode_uuid, tokens).await,
            None => Err(ClientError::Refused {
                call: EPISODES,
                status: 404,
                detail: format!("no train episode of step {step} has ended, or none is kept"),
            }),
        }
    }

    async fn episode(self, episode: &str, tokens: bool) -> Result<EpisodeDetail, ClientError> {
        let with_tokens = [("tokens", "true")];
        let query = if tokens { &with_tokens[..] } else { &[] };
        let detail = self.swarm.observe(EPISODES, Some(episode), query).await?;
        printable::texts(detail).map_err(|error| unexpected(self.swarm, EPISODES, &error))
    }

    /// Returns the latest call of any agent as an episode with one conversation.
    async fn latest_call(self) -> Result<EpisodeDetail, ClientError> {
        let call = self.swarm.replay_latest_llm_call().await?;
        let mut messages = call.input["messages"].as_array().cloned().unwrap_or_default();
        messages.extend(
            call.output["choices"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|choice| choice["message"].clone()),
        );
        let conversation = TranscriptConversation {
            model: call.input["model"].as_str().unwrap_or_default().to_owned(),
            tools: call.input["tools"].as_array().cloned().unwrap_or_default(),
            messages,
        };
        let detail = EpisodeDetail {
            running: true,
            conversations: vec![conversation],
            ..EpisodeDetail::default()
        };
        let value = serde_json::to_value(detail).map_err(|error| unexpected(self.swarm, STATUS, &error))?;
        printable::texts(value).map_err(|error| unexpected(self.swarm, STATUS, &error))
    }

    async fn send(self, update: Update) {
        // `follow` ends when the receiver is gone.
        let _ = self.updates.send(update).await;
    }
}

/// Reads the history from a step on, as updates.
async fn history(swarm: &SwarmClient, run: &str, since: u64) -> Result<Vec<Update>, ClientError> {
    let (mut pages, mut next) = (vec![], Some(since));
    while let Some(since) = next {
        let from = since.to_string();
        let page: History = typed(swarm, HISTORY, swarm.observe(HISTORY, None, &[("since", &from)]).await?)?;
        next = page.next.filter(|next| *next > since);
        pages.push(Update::History {
            run: run.to_owned(),
            since,
            steps: page.steps,
        });
    }
    Ok(pages)
}

fn progress(status: &Status) -> Progress {
    let run = status.experiment.as_ref().map(|experiment| experiment.name.clone());
    let eval = status.latest_eval.as_ref().map_or(0, |eval| eval.global_step);
    (run.unwrap_or_default(), status.engine.global_step, eval)
}

fn typed<T: DeserializeOwned>(swarm: &SwarmClient, path: &'static str, value: Value) -> Result<T, ClientError> {
    printable::lines(value).map_err(|error| unexpected(swarm, path, &error))
}

fn unexpected(swarm: &SwarmClient, call: &'static str, error: &serde_json::Error) -> ClientError {
    ClientError::Answer {
        url: swarm.url().to_string(),
        call,
        reason: error.to_string(),
    }
}

/// Returns whether a server has no such endpoint.
fn is_missing(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Refused {
            status: 404 | 405 | 501,
            ..
        }
    )
}

/// Describes an error on one line, without the URL that the dashboard shows anyway.
fn reason(error: &ClientError) -> String {
    let text = match error {
        ClientError::Unreachable { reason, .. } => reason.clone(),
        ClientError::Refused { status: 401, .. } => "the server requires a valid access token".into(),
        ClientError::Refused { detail, .. } => detail.clone(),
        ClientError::Answer { call, .. } => format!("unexpected response to {call}: not a swarm server"),
        other => other.to_string(),
    };
    crate::terminal::one_line(&text)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::http::header::{CONNECTION, CONTENT_TYPE};
    use axum::routing::get;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::overwatch::fixtures::{HOSTILE, rolling};
    use crate::overwatch::update::{Kind, Sort};

    struct Stand {
        updates: mpsc::Receiver<Update>,
        wanted: watch::Sender<Wanted>,
        serving: JoinHandle<()>,
    }

    impl Stand {
        /// Follows a server with these routes.
        async fn of(routes: Router) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let swarm = SwarmClient::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
            let serving = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
            let (sender, updates) = mpsc::channel(16);
            let (wanted, wants) = watch::channel(Wanted::default());
            tokio::spawn(follow(swarm, sender, wants, Duration::from_millis(10)));
            Self {
                updates,
                wanted,
                serving,
            }
        }

        async fn next<T>(&mut self, mut fits: impl FnMut(Update) -> Option<T>) -> T {
            let found = async {
                loop {
                    if let Some(found) = fits(self.updates.recv().await.unwrap()) {
                        return found;
                    }
                }
            };
            timeout(Duration::from_secs(20), found).await.unwrap()
        }
    }

    fn feed() -> Router {
        let mut status = rolling();
        status.engine.detail = Some(HOSTILE.into());
        let event = format!(": hello\n\ndata: {}\n\n", serde_json::to_string(&status).unwrap());
        let stream = get(move || async move { ([(CONTENT_TYPE, "text/event-stream"), (CONNECTION, "close")], event) });
        let history = get(|request: axum::extract::Request| async move {
            let page = match request.uri().query() {
                Some("since=1") => r#"{"run":"a","steps":[{"global_step":1,"metrics":{"kl":0.5}}],"next":2}"#,
                _ => r#"{"run":"a","steps":[{"global_step":2,"metrics":{"kl":0.25}}],"next":null}"#,
            };
            ([(CONNECTION, "close")], page)
        });
        let episodes = get(|request: axum::extract::Request| async move {
            match request.uri().query().unwrap().ends_with("&task=t+1") {
                true => (StatusCode::OK, r#"{"episodes":[],"total":7}"#),
                false => (StatusCode::BAD_REQUEST, r#"{"detail":"no such order"}"#),
            }
        });
        Router::new()
            .route("/status/stream", stream)
            .route("/history", history)
            .route("/episodes", episodes)
    }

    #[tokio::test]
    async fn a_status_feed_is_followed_and_a_server_that_went_away_is_told() {
        let mut stand = Stand::of(feed()).await;
        let status = stand.next(|update| match update {
            Update::Status(observed) => Some(observed.status),
            _ => None,
        });
        let status = status.await;
        assert_eq!(status.engine.global_step, 37);
        let detail = status.engine.detail.unwrap();
        assert!(
            detail.starts_with("\\u{1b}[2J") && !detail.contains('\u{202e}'),
            "{detail}"
        );
        let mut read = vec![];
        stand
            .next(|update| match update {
                Update::History { since, steps, .. } => {
                    read.push((since, steps[0].metrics["kl"]));
                    (read.len() == 2).then_some(())
                }
                _ => None,
            })
            .await;
        assert_eq!(read, [(1, 0.5), (2, 0.25)]);
        stand.serving.abort();
        let reason = stand.next(|update| match update {
            Update::Lost(reason) => Some(reason),
            _ => None,
        });
        assert!(!reason.await.is_empty());
    }

    #[tokio::test]
    async fn what_is_wanted_is_read_and_a_refusal_is_told() {
        let mut stand = Stand::of(feed()).await;
        let query = |task: &str| Query {
            kind: Kind::All,
            task: Some(task.into()),
            sort: Sort::Worst,
            offset: 0,
        };
        for (task, want) in [("t 1", Ok(7)), ("other", Err("no such order".to_owned()))] {
            stand.wanted.send_replace(Wanted {
                episodes: Some(query(task)),
                transcript: None,
            });
            let page = stand.next(|update| match update {
                Update::Episodes(asked, page) if asked == query(task) => Some(page.map(|page| page.total)),
                _ => None,
            });
            assert_eq!(page.await, want);
        }
    }

    #[tokio::test]
    async fn a_server_without_a_feed_is_polled_and_says_what_is_missing() {
        let status = get(|| async { r#"{"engine_status":"ENGINE.BOOTING","engine_status_detail":"loading"}"# });
        let mut stand = Stand::of(Router::new().route("/get_engine_status", status)).await;
        let observed = stand.next(|update| match update {
            Update::Status(observed) => Some(observed),
            _ => None,
        });
        let observed = observed.await;
        assert_eq!(observed.status.engine.detail.as_deref(), Some("loading"));
        assert!(observed.missing.unwrap().contains("no status feed"));
    }
}
