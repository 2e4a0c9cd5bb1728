//! What a program prints: kept whole up to a limit, or its end only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Output of a stream so far, which can be looked at while it is read.
#[derive(Clone, Debug, Default)]
pub(in crate::roll) struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// The text so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Forgets the text so far.
    pub fn clear(&self) {
        self.bytes().clear();
    }

    /// Reads a stream to its end and keeps the last `most` bytes.
    pub(super) async fn keep_end(self, stream: Option<impl AsyncRead + Unpin>, most: usize) {
        let Some(mut stream) = stream else { return };
        let mut chunk = vec![0; 16 << 10];
        // A pipe that cannot be read has ended as far as we are concerned.
        while let Ok(length @ 1..) = stream.read(&mut chunk).await {
            let mut kept = self.bytes();
            kept.extend_from_slice(&chunk[..length]);
            let surplus = kept.len().saturating_sub(most);
            kept.drain(..surplus);
        }
    }

    /// Reads a stream to its end, unless it has more than `most` bytes; whether it has not.
    pub(super) async fn keep_all(self, stream: Option<impl AsyncRead + Unpin>, most: usize) -> bool {
        let Some(mut stream) = stream else { return true };
        let mut chunk = vec![0; 16 << 10];
        while let Ok(length @ 1..) = stream.read(&mut chunk).await {
            let mut kept = self.bytes();
            if length > most - kept.len() {
                return false;
            }
            kept.extend_from_slice(&chunk[..length]);
        }
        true
    }

    /// Nothing panics while it holds the lock.
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_end_of_a_long_complaint_is_kept() {
        let text: Vec<u8> = (0..100_000_u32).map(|i| b'a' + (i % 23) as u8).collect();
        let captured = Captured::default();
        captured.clone().keep_end(Some(&text[..]), 1000).await;
        assert_eq!(captured.text().as_bytes(), &text[99_000..]);
        let short = Captured::default();
        short.clone().keep_end(Some(&text[..7]), 1000).await;
        assert_eq!(short.text().as_bytes(), &text[..7]);
    }

    #[tokio::test]
    async fn output_is_kept_whole_or_is_too_much() {
        for (length, most, is_whole) in [
            (7, 7, true),
            (8, 7, false),
            (99_999, 50_000, false),
            (99_999, 99_999, true),
        ] {
            let text = vec![b'x'; length];
            let captured = Captured::default();
            assert_eq!(
                captured.clone().keep_all(Some(&text[..]), most).await,
                is_whole,
                "{length} of {most}"
            );
            assert!(!is_whole || captured.text().len() == length);
        }
    }
}
