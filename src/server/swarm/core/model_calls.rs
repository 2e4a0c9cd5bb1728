//! Requests of agents to the model API: whose they are, whether they may run, and the answers that are stored for later
//! ones.

use serde_json::Value;

use super::Core;
use crate::protocol::openai::ChatMessage;
use crate::protocol::swarm::EpisodeType;
use crate::server::http::error::Error;
use crate::server::model_api::responses::{Kept, resolve_references};
use crate::server::swarm::episodes::{Claim, Episode, KeyOwner};
use crate::server::swarm::state::State;

/// Approximate maximum of bytes of stored responses of all episodes.
const MAX_STORED_BYTES: usize = 256 * 1024 * 1024;

impl Core {
    /// Returns the key of the episode under which a server that only serves a model answers all requests; claims it
    /// first where there is none.
    ///
    /// # Errors
    ///
    /// Fails while the model is not loaded.
    pub fn standing_key(&mut self, now: f64) -> Result<String, Error> {
        if let Some(episode) = self.episodes.iter().next() {
            return Ok(episode.key.clone());
        }
        let claim = Claim {
            client_uuid: "serve".into(),
            kind: EpisodeType::Eval,
            discard_timeout: f64::INFINITY,
            task_id: String::new(),
            global_step: self.global_step,
        };
        let claimed = match self.state {
            State::Rolling => self.episodes.claim(claim, 1, now),
            _ => None,
        };
        let key = claimed.map(|episode| episode.key.clone());
        key.ok_or_else(|| Error::ModelNotReady(self.status_and_detail()))
    }

    /// Begins an LLM request with this key, after which there is room for `free` more. [`Self::finish_call`] must follow.
    /// An episode has at most one call more than there is room for, so one alone takes half of all.
    ///
    /// # Errors
    ///
    /// Fails if the key is unknown, its episode has ended, or the episode has its share of calls.
    pub fn begin_call(&mut self, key: &str, free: usize, now: f64) -> Result<(String, EpisodeType), Error> {
        let uuid = match self.episodes.owner_of(key) {
            KeyOwner::Running(uuid) => uuid.to_owned(),
            KeyOwner::Gone => return Err(Error::EpisodeGone),
            KeyOwner::Unknown => return Err(Error::KeyUnknown),
        };
        let in_flight = self.episodes.get(&uuid).map_or(0, Episode::calls_in_flight);
        if in_flight > free {
            return Err(Error::EpisodeCalls { in_flight, free });
        }
        let Some(episode) = self.episodes.begin_call(&uuid, now) else {
            return Err(Error::EpisodeGone);
        };
        self.clients.refresh(&episode.client_uuid, now);
        Ok((uuid, episode.kind))
    }

    /// Counts an LLM request that the engine accepted.
    pub fn count_call(&mut self, uuid: &str) {
        self.episodes.count_call(uuid);
    }

    /// Ends an LLM request, successful or not.
    pub fn finish_call(&mut self, uuid: &str, now: f64) {
        self.episodes.finish_call(uuid, now);
        if let Some(episode) = self.episodes.get(uuid) {
            self.clients.refresh(&episode.client_uuid, now);
        }
    }

    /// Stores an answer of the Responses API while its episode runs.
    pub fn keep_response(&mut self, uuid: &str, response: Kept) {
        self.episodes.keep_response(uuid, response, MAX_STORED_BYTES);
    }

    /// Returns the conversation up to and including a stored answer.
    pub fn conversation(&self, uuid: &str, response: &str) -> Option<Vec<ChatMessage>> {
        self.episodes.get(uuid)?.kept_responses.conversation(response)
    }

    /// Replaces references to items of the episode's stored answers by the items.
    ///
    /// # Errors
    ///
    /// Fails for a reference to an unknown item.
    pub fn resolve_references(&self, uuid: &str, input: &mut Value) -> Result<(), Error> {
        let episode = self.episodes.get(uuid).ok_or(Error::EpisodeGone)?;
        resolve_references(input, &episode.kept_responses)
    }

    /// Returns a stored answer of this key's episode.
    ///
    /// # Errors
    ///
    /// Fails if the key is invalid or the answer unknown.
    pub fn kept_response(&self, key: &str, id: &str) -> Result<Value, Error> {
        self.check_key(key)?;
        let KeyOwner::Running(uuid) = self.episodes.owner_of(key) else {
            return Err(Error::EpisodeGone);
        };
        let kept = self
            .episodes
            .get(uuid)
            .and_then(|episode| episode.kept_responses.response(id));
        kept.ok_or_else(|| Error::NoSuchPath(format!("response `{id}`")))
    }

    /// Checks that a key gives access to the model API.
    ///
    /// # Errors
    ///
    /// Fails if it does not.
    pub fn check_key(&self, key: &str) -> Result<(), Error> {
        match self.episodes.owner_of(key) {
            KeyOwner::Running(_) => Ok(()),
            KeyOwner::Gone => Err(Error::EpisodeGone),
            KeyOwner::Unknown => Err(Error::KeyUnknown),
        }
    }
}
