//! Training code: sending it to a server, whose next engine is built from it.

mod pack;
pub(super) mod sources;

use std::path::Path;

use bytes::Bytes;

use super::http::{Call, Retry};
use super::{ClientError, SwarmClient};
use crate::protocol::swarm::{EngineStatus, SyncTrainCodeAnswer, SyncedCodeAnswer};

pub use pack::pack;
pub use sources::{Sources, SourcesError};

const PATH: &str = "/sync_train_code";

impl SwarmClient {
    /// Uploads a zip with training code, which the next engine is built from. Only while the engine is OFFLINE.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the server's message if the archive is invalid or cannot be run there, if the
    /// engine is not OFFLINE, or if this client may not.
    pub async fn sync_train_code(&self, zip: Bytes) -> Result<SyncTrainCodeAnswer, ClientError> {
        let call = Call::new(PATH, 600, Retry::Unsent);
        self.inner.http.post_bytes(call, "application/zip", zip).await
    }

    /// Uploads the training code of the checkout of ajet-swarm in `dir`: the files that git tracks, with their uncommitted
    /// changes. `force_restart` stops an engine that runs.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), ajet_swarm::client::ClientError> {
    /// let swarm = ajet_swarm::client::SwarmClient::new("http://gpu-box:10086/t/a-secret-token")?;
    /// let (sources, answer) = swarm.sync_train_code_from_dir(".".as_ref(), true).await?;
    /// println!("{}; left out: {}", answer.message, sources.left_out.join(", "));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Sources`] if there is nothing to send, and those of [`SwarmClient::sync_train_code`] and
    /// [`SwarmClient::stop_engine`].
    pub async fn sync_train_code_from_dir(
        &self,
        dir: &Path,
        force_restart: bool,
    ) -> Result<(Sources, SyncTrainCodeAnswer), ClientError> {
        let sources = Sources::find(dir).map_err(ClientError::Sources)?;
        let archive = pack(&sources).map_err(ClientError::Sources)?;
        if force_restart && self.status().await?.engine_status != EngineStatus::Offline {
            self.stop_engine().await?;
        }
        let answer = self.sync_train_code(archive).await?;
        Ok((sources, answer))
    }

    /// Lists the training code that the server has, with the output of its last build.
    ///
    /// # Errors
    /// [`ClientError::Refused`] by servers that cannot list it, such as Python's; [`ClientError::Unreachable`].
    pub async fn synced_code(&self) -> Result<SyncedCodeAnswer, ClientError> {
        self.inner.http.get(Call::new(PATH, 30, Retry::Idempotent)).await
    }

    /// Lets the next engine be the server's built-in one. Only while the engine is OFFLINE.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the engine is not OFFLINE, or if this client may not.
    pub async fn deselect_train_code(&self) -> Result<SyncTrainCodeAnswer, ClientError> {
        self.inner.http.delete(Call::new(PATH, 30, Retry::Idempotent)).await
    }
}
