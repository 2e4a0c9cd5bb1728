//! Uploading training code.

use bytes::Bytes;

use super::http::{Call, Retry};
use super::{ClientError, SwarmClient};
use crate::protocol::swarm::SyncTrainCodeAnswer;

impl SwarmClient {
    /// Uploads a zip with training code, which the server stores without running it; the answer says how to use it.
    /// Only while the engine is OFFLINE.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the server's message if the archive is invalid or the engine is not OFFLINE.
    pub async fn sync_train_code(&self, zip: Bytes) -> Result<SyncTrainCodeAnswer, ClientError> {
        let call = Call::new("/sync_train_code", 600, Retry::Unsent);
        self.inner.http.post_bytes(call, "application/zip", zip).await
    }
}
