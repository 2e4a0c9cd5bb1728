//! Handlers that read the files of experiments. They work without an engine.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use futures_util::TryStreamExt;
use serde::Deserialize;

use crate::config::experiment::BASE;
use crate::protocol::status::{EpisodeDetail, Episodes, History, Runs, TranscriptConversation};
use crate::protocol::swarm::EpisodeConversations;
use crate::runs::{EpisodeQuery, Experiments, HistoryQuery, KEPT, RunsError, read_transcript};
use crate::server::http::error::Error;
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;
/// A query, or why it could not be read.
pub(super) type Asked<T> = Result<Query<T>, QueryRejection>;

/// Which experiment to read; without a name, the current or last one.
#[derive(Debug, Default, Deserialize)]
pub struct RunQuery {
    run: Option<String>,
}

/// What to return of an episode.
#[derive(Debug, Default, Deserialize)]
pub struct DetailQuery {
    #[serde(default)]
    tokens: bool,
}

impl From<RunsError> for Error {
    fn from(error: RunsError) -> Self {
        let message = error.to_string();
        match error {
            RunsError::Name(_) | RunsError::NotFound { .. } | RunsError::NoEpisode { .. } => Self::NoRun(message),
            RunsError::Query { .. } => Self::Invalid(message),
            RunsError::Io { .. } => Self::Internal(message),
        }
    }
}

/// Handles `GET /history`.
pub async fn history(
    State(shared): Server,
    run: Asked<RunQuery>,
    query: Asked<HistoryQuery>,
) -> Result<Json<History>, Error> {
    let (run, query) = (read(run)?, read(query)?);
    on_files(&shared, move |shared| {
        let (name, dir) = run_dir(shared, run)?;
        let (steps, next) = shared.runs.with(&dir, |indexes| indexes.metrics.read(&query))?;
        Ok(Json(History { run: name, steps, next }))
    })
    .await
}

/// Handles `GET /runs`.
pub async fn list(State(shared): Server) -> Result<Json<Runs>, Error> {
    on_files(&shared, |shared| {
        let (root, current) = place(shared);
        let mut runs = Experiments::new(&root).list()?;
        let rolling = shared.with(|core, _| core.running_config().is_some());
        for run in &mut runs {
            run.current = rolling && current.as_ref() == Some(&run.name);
        }
        Ok(Json(Runs { runs }))
    })
    .await
}

/// Handles `GET /episodes`.
pub async fn episodes(
    State(shared): Server,
    run: Asked<RunQuery>,
    query: Asked<EpisodeQuery>,
) -> Result<Json<Episodes>, Error> {
    let (run, query) = (read(run)?, read(query)?);
    on_files(&shared, move |shared| {
        let (_, dir) = run_dir(shared, run)?;
        Ok(Json(shared.runs.with(&dir, |indexes| indexes.episodes.read(&query))?))
    })
    .await
}

/// Handles `GET /episodes/{id}`.
pub async fn episode(
    State(shared): Server,
    Path(uuid): Path<String>,
    run: Asked<RunQuery>,
    query: Asked<DetailQuery>,
) -> Result<Json<EpisodeDetail>, Error> {
    let (run, query) = (read(run)?, read(query)?);
    if let Some(running) = running_episode(&shared, &uuid).await? {
        return Ok(Json(running));
    }
    on_files(&shared, move |shared| {
        let (run, dir) = run_dir(shared, run)?;
        let summary = shared.runs.with(&dir, |indexes| indexes.episodes.find(&uuid))?;
        let summary = summary.ok_or(RunsError::NoEpisode { uuid, run, kept: KEPT })?;
        Ok(Json(read_transcript(&dir, summary, query.tokens)?))
    })
    .await
}

/// Returns a running episode with what was said so far.
async fn running_episode(shared: &Arc<Shared>, uuid: &str) -> Result<Option<EpisodeDetail>, Error> {
    let Some(summary) = shared.with(|core, _| core.running_summary(uuid)) else {
        return Ok(None);
    };
    let link = shared.link();
    let link = link.ok_or_else(|| Error::EngineUnreachable("it is not running".into()))?;
    let answer = link.client.conversations(uuid).await?;
    let pieces: Vec<_> = answer
        .into_bytes_stream()
        .try_collect()
        .await
        .map_err(|error| Error::BrokenOff(error.to_string()))?;
    let told = shared
        .parsing
        .run(move || serde_json::from_slice(&pieces.concat()))
        .await?;
    let told: EpisodeConversations = told.map_err(|error| Error::Internal(error.to_string()))?;
    let conversations = told
        .conversations
        .into_iter()
        .map(|conversation| TranscriptConversation {
            model: conversation.model,
            tools: conversation.tools,
            messages: conversation.messages,
        });
    Ok(Some(EpisodeDetail {
        summary,
        running: true,
        conversations: conversations.collect(),
        ..EpisodeDetail::default()
    }))
}

/// Returns the query of a request.
pub(super) fn read<T>(query: Asked<T>) -> Result<T, Error> {
    let Query(query) = query.map_err(|rejection| Error::Invalid(rejection.body_text()))?;
    Ok(query)
}

/// Returns the directory of experiments, and the name of the current or last one.
fn place(shared: &Shared) -> (PathBuf, Option<String>) {
    let current = shared.with(|core, _| core.experiment_dir()).map(PathBuf::from);
    let name = |dir: &PathBuf| Some(dir.file_name()?.to_string_lossy().into_owned());
    let root = current
        .as_deref()
        .and_then(FilePath::parent)
        .unwrap_or(FilePath::new(BASE));
    (root.to_owned(), current.as_ref().and_then(name))
}

/// Returns name and directory of the experiment that a request means.
pub(super) fn run_dir(shared: &Shared, query: RunQuery) -> Result<(String, PathBuf), Error> {
    let (root, current) = place(shared);
    let name = query
        .run
        .filter(|run| !run.is_empty())
        .or(current)
        .ok_or(Error::NoExperiment)?;
    let dir = Experiments::new(&root).dir(&name)?;
    Ok((name, dir))
}

/// Reads files on a blocking thread.
async fn on_files<R: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<R, Error> + Send + 'static,
) -> Result<R, Error> {
    let reading = Arc::clone(shared);
    shared.run_reads.run(move || work(&reading)).await?
}
