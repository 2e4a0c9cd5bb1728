//! Registry of the sessions of running episodes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use uuid::Uuid;

use super::{ChatBackend, ChatError, ConversationTooLarge, EpisodeRecord, Session, conversations};
use crate::engine::batch::finished::EpisodeUsage;
use crate::protocol::swarm::EpisodeConversations;

enum Entry {
    Running(Arc<Session>),
    /// Ended, but not saved yet: the end may be retried.
    Ended(Arc<EpisodeRecord>),
    /// Ended or forgotten; a late call must not restart it.
    Gone,
}

/// All episodes with a call since the last update.
#[derive(Default)]
pub struct Sessions {
    entries: Mutex<HashMap<String, Entry>>,
    /// Whether each call has a session of its own, which ends with it.
    unrecorded: bool,
}

impl Sessions {
    /// Creates a registry for an engine that does not train: each call has a session of its own, of which nothing is
    /// kept.
    pub fn unrecorded() -> Self {
        Self {
            unrecorded: true,
            ..Self::default()
        }
    }

    /// Returns the session of an episode, started with its first call.
    pub fn running(&self, episode_uuid: &str, backend: &Arc<ChatBackend>) -> Result<Arc<Session>, ChatError> {
        if self.unrecorded {
            // Another id for each, since it seeds the sampling.
            return Ok(Session::new(backend.clone(), Uuid::new_v4().to_string()));
        }
        let mut entries = self.lock();
        let begin = || Entry::Running(Session::new(backend.clone(), episode_uuid));
        match entries.entry(episode_uuid.to_owned()).or_insert_with(begin) {
            Entry::Running(session) => Ok(session.clone()),
            Entry::Ended(_) | Entry::Gone => Err(ChatError::EpisodeNotFound(episode_uuid.to_owned())),
        }
    }

    /// Ends an episode and returns its record; `None` if it made no call. Until [`Sessions::forget`], further calls
    /// return the same record. Computes for some milliseconds on long episodes.
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

    /// Returns the conversations of an episode so far; none if it made no call or is gone. Computes for some
    /// milliseconds on long episodes.
    ///
    /// # Errors
    /// Fails if the longest conversation is too large.
    pub fn conversations(&self, episode_uuid: &str) -> Result<EpisodeConversations, ConversationTooLarge> {
        let session = match self.lock().get(episode_uuid) {
            Some(Entry::Running(session)) => session.clone(),
            Some(Entry::Ended(record)) => return conversations(episode_uuid, &record.calls),
            Some(Entry::Gone) | None => return conversations(episode_uuid, &[]),
        };
        session.conversations()
    }

    /// Returns the counters of an episode so far; empty if it made no call or is gone.
    pub fn usage(&self, episode_uuid: &str) -> EpisodeUsage {
        match self.lock().get(episode_uuid) {
            Some(Entry::Running(session)) => session.usage(),
            Some(Entry::Ended(record)) => record.usage.clone(),
            Some(Entry::Gone) | None => EpisodeUsage::default(),
        }
    }

    /// Returns the tokens sampled since the last call, by running episode.
    pub fn take_new_tokens(&self) -> IndexMap<String, u64> {
        let entries = self.lock();
        let running = entries.iter().filter_map(|(uuid, entry)| match entry {
            Entry::Running(session) => Some((uuid, session.take_new_tokens())),
            Entry::Ended(_) | Entry::Gone => None,
        });
        let sampled = running.filter(|(_, tokens)| *tokens > 0);
        sampled.map(|(uuid, tokens)| (uuid.clone(), tokens)).collect()
    }

    /// Cancels an episode's sampling and refuses its further calls.
    pub fn forget(&self, episode_uuid: &str) {
        if let Some(Entry::Running(session)) = self.lock().insert(episode_uuid.to_owned(), Entry::Gone) {
            session.end();
        }
    }

    /// Ends all episodes at the start of a new batch.
    pub fn clear(&self) {
        for (_, entry) in self.lock().drain() {
            if let Entry::Running(session) = entry {
                session.end();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // Poisoning is ignored: no method leaves the map half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
