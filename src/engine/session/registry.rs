//! The sessions of the running episodes, by episode.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ChatBackend, ChatError, ConversationTooLarge, EpisodeRecord, Session, conversations};
use crate::protocol::swarm::EpisodeConversations;

enum Entry {
    Running(Arc<Session>),
    /// Ended, but not written down yet: the end may be tried again.
    Ended(Arc<EpisodeRecord>),
    /// Ended or forgotten; a late call must not begin it anew.
    Gone,
}

/// Every episode that made a call since the last update.
#[derive(Default)]
pub struct Sessions {
    entries: Mutex<HashMap<String, Entry>>,
}

impl Sessions {
    /// The session of an episode, begun with its first call.
    pub fn running(&self, episode_uuid: &str, backend: &Arc<ChatBackend>) -> Result<Arc<Session>, ChatError> {
        let mut entries = self.lock();
        let begin = || Entry::Running(Session::new(backend.clone(), episode_uuid));
        match entries.entry(episode_uuid.to_owned()).or_insert_with(begin) {
            Entry::Running(session) => Ok(session.clone()),
            Entry::Ended(_) | Entry::Gone => Err(ChatError::EpisodeNotFound(episode_uuid.to_owned())),
        }
    }

    /// Ends an episode and hands out what it recorded; `None` where it made no call. Until [`Sessions::forget`], a
    /// second call hands out the same. Computes for some milliseconds on long episodes.
    pub fn finish(&self, episode_uuid: &str) -> Option<Arc<EpisodeRecord>> {
        let session = match self.lock().get(episode_uuid)? {
            Entry::Running(session) => session.clone(),
            Entry::Ended(recording) => return Some(recording.clone()),
            Entry::Gone => return None,
        };
        let recording = Arc::new(session.finish());
        self.lock()
            .insert(episode_uuid.to_owned(), Entry::Ended(recording.clone()));
        Some(recording)
    }

    /// What was said so far in an episode; nothing where it made no call or is gone. Computes for some milliseconds on
    /// long episodes.
    ///
    /// # Errors
    /// The longest conversation is too large.
    pub fn conversations(&self, episode_uuid: &str) -> Result<EpisodeConversations, ConversationTooLarge> {
        let session = match self.lock().get(episode_uuid) {
            Some(Entry::Running(session)) => session.clone(),
            Some(Entry::Ended(record)) => return conversations(episode_uuid, &record.calls),
            Some(Entry::Gone) | None => return conversations(episode_uuid, &[]),
        };
        session.conversations()
    }

    /// Cancels what an episode still samples and refuses its further calls.
    pub fn forget(&self, episode_uuid: &str) {
        if let Some(Entry::Running(session)) = self.lock().insert(episode_uuid.to_owned(), Entry::Gone) {
            session.end();
        }
    }

    /// Ends whatever still runs: a new batch begins.
    pub fn clear(&self) {
        for (_, entry) in self.lock().drain() {
            if let Entry::Running(session) = entry {
                session.end();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // No call leaves the map half changed, so it is whole even after a panic elsewhere.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
