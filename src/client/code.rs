//! Uploading training code.

use bytes::Bytes;

use super::http::{Call, Retry};
use super::{ClientError, SwarmClient};
use crate::protocol::swarm::SyncTrainCodeAnswer;

impl SwarmClient {
    /// Uploads a zip with training code, which the server stores and does not run; its answer says what can be done with
    /// it. Only while the engine is OFFLINE.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the server's words, where the archive is unsafe or too large, or the engine runs.
    pub async fn sync_train_code(&self, zip: Bytes) -> Result<SyncTrainCodeAnswer, ClientError> {
        let call = Call::new("/sync_train_code", 600, Retry::Unsent);
        self.inner.http.post_bytes(call, "application/zip", zip).await
    }
}
