//! Checkpoints of the server's experiment: their list, and the bytes of their files.

use std::time::Duration;

use bytes::Bytes;

use super::{ClientError, SwarmClient};
use crate::protocol::checkpoint::CheckpointsAnswer;

/// Maximum time without a byte of a file.
const STALL: Duration = Duration::from_secs(60);

/// The bytes of a file, as they arrive.
#[derive(Debug)]
pub struct Download {
    response: reqwest::Response,
    url: String,
    /// Offset of the first byte that follows.
    pub offset: u64,
}

impl SwarmClient {
    /// Lists the complete checkpoints of an experiment, ascending by step; without a name of the current or last one.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the server knows no such experiment, without a name before the first start of an
    /// engine, and from servers without this endpoint; [`ClientError::Unreachable`].
    pub async fn checkpoints(&self, run: Option<&str>) -> Result<CheckpointsAnswer, ClientError> {
        let query: Vec<_> = run.map(|run| ("run", run)).into_iter().collect();
        self.read_kept("/checkpoints", None, &query).await
    }

    /// Begins to read a file of a checkpoint at an offset in bytes. The server may begin before it, see
    /// [`Download::offset`].
    ///
    /// # Errors
    /// [`ClientError::Refused`] with 404 if the checkpoint or file does not exist any more,
    /// [`ClientError::Unreachable`].
    pub async fn checkpoint_file(
        &self,
        run: Option<&str>,
        step: u64,
        file: &str,
        offset: u64,
    ) -> Result<Download, ClientError> {
        let http = &self.inner.http;
        let query = run.map_or_else(String::new, |run| format!("?run={}", escaped(run)));
        let path = format!("/checkpoints/{step}/{}{query}", escaped(file));
        let response = tokio::time::timeout(STALL, http.open("/checkpoints", &path, offset)).await;
        let response = response.map_err(|_| stalled(&http.url.to_string()))??;
        let continues = response.status() == reqwest::StatusCode::PARTIAL_CONTENT;
        Ok(Download {
            url: http.url.to_string(),
            offset: if continues { offset } else { 0 },
            response,
        })
    }
}

impl Download {
    /// Returns the next bytes; `None` at the end of the file.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] if the connection breaks or stalls.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        match tokio::time::timeout(STALL, self.response.chunk()).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) => Err(ClientError::Unreachable {
                url: self.url.clone(),
                reason: super::root_cause(&error),
            }),
            Err(_) => Err(stalled(&self.url)),
        }
    }
}

fn stalled(url: &str) -> ClientError {
    ClientError::Unreachable {
        url: url.to_owned(),
        reason: format!("timed out after {STALL:?} while reading a file"),
    }
}

/// Escapes the characters that have a meaning in a URL.
fn escaped(file: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    file.bytes().fold(String::new(), |mut escaped, byte| {
        match is_plain(byte) {
            true => escaped.push(byte.into()),
            false => escaped += &format!("%{byte:02X}"),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn file_names_are_escaped() {
        for (file, escaped) in [
            ("trainer/state.json", "trainer/state.json"),
            ("a b?#%.txt", "a%20b%3F%23%25.txt"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(super::escaped(file), escaped);
        }
    }
}
