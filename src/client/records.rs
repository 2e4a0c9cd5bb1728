//! What the server keeps of its experiments: their list, metrics by step, finished episodes and transcripts.

use serde::de::DeserializeOwned;

use super::http::{Call, Retry, TRIES};
use super::observe::TIMEOUT_S;
use super::{ClientError, SwarmClient};
use crate::protocol::status::{EpisodeDetail, Episodes, History, Runs};

/// Steps of a page of metrics.
const STEPS: &str = "5000";

impl SwarmClient {
    /// Lists the experiments of the server's directory, the one that changed last first.
    ///
    /// # Errors
    /// [`ClientError::Refused`] from servers without this endpoint; [`ClientError::Unreachable`].
    pub async fn runs(&self) -> Result<Runs, ClientError> {
        self.read_kept("/runs", None, &[]).await
    }

    /// Returns the metrics of all steps of an experiment, without a name of the current or last one.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the server knows no such experiment; [`ClientError::Unreachable`].
    pub async fn history(&self, run: Option<&str>) -> Result<History, ClientError> {
        let (mut history, mut since) = (History::default(), Some(0_u64));
        while let Some(first) = since {
            let first_text = first.to_string();
            let mut query = vec![("since", first_text.as_str()), ("limit", STEPS)];
            query.extend(run.map(|run| ("run", run)));
            let page: History = self.read_kept("/history", None, &query).await?;
            history.run = page.run;
            history.steps.extend(page.steps);
            // A server that does not advance would never end.
            since = page.next.filter(|next| *next > first);
        }
        Ok(history)
    }

    /// Returns a page of an experiment's finished episodes, the first that ended first.
    ///
    /// # Errors
    /// As of [`SwarmClient::history`].
    pub async fn finished_episodes(&self, run: Option<&str>, offset: u64, limit: u64) -> Result<Episodes, ClientError> {
        let (offset, limit) = (offset.to_string(), limit.to_string());
        let mut query = vec![("sort", "ended"), ("offset", &offset), ("limit", &limit)];
        query.extend(run.map(|run| ("run", run)));
        self.read_kept("/episodes", None, &query).await
    }

    /// Returns an episode with all that was said, and with its tokens if wanted.
    ///
    /// # Errors
    /// As of [`SwarmClient::history`], and [`ClientError::Refused`] if there is no such episode.
    pub async fn transcript(
        &self,
        run: Option<&str>,
        episode_uuid: &str,
        with_tokens: bool,
    ) -> Result<EpisodeDetail, ClientError> {
        let tokens = with_tokens.to_string();
        let mut query = vec![("tokens", tokens.as_str())];
        query.extend(run.map(|run| ("run", run)));
        self.read_kept("/episodes", Some(episode_uuid), &query).await
    }

    /// Reads as [`SwarmClient::observe`] does, in several attempts.
    pub(super) async fn read_kept<A: DeserializeOwned>(
        &self,
        path: &'static str,
        below: Option<&str>,
        query: &[(&str, &str)],
    ) -> Result<A, ClientError> {
        let call = Call::new(path, TIMEOUT_S, Retry::Idempotent);
        self.inner.http.get_below(call, TRIES, below, query).await
    }
}
