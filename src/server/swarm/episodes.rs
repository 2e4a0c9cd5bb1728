//! Registry of claimed episodes: their clients and keys, and the outcome of recently ended ones.
//!
//! Pure except for random ids and keys: time is passed in as Unix seconds.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use rand::Rng;
use uuid::Uuid;

use super::in_order::InOrder;
use crate::config::checksum::hex;
use crate::protocol::engine::DropReason;
use crate::protocol::swarm::{EPISODE_KEY_PREFIX, EpisodeType};
use crate::server::model_api::responses::{Kept, KeptResponses};

/// Time in seconds for which an ended episode is remembered, to accept repeated ends and to recognise its key.
pub const REMEMBER_SECONDS: f64 = 600.0;

/// Maximum number of ended episodes remembered, so that clients which claim and abort in a loop use at most about 50
/// MB.
const MAX_REMEMBERED: usize = 200_000;

/// A claimed episode.
#[derive(Clone, Debug)]
pub struct Episode {
    /// Id.
    pub uuid: String,
    /// Secret with which its agent accesses the model API.
    pub key: String,
    /// Id of its client.
    pub client_uuid: String,
    /// Train or eval.
    pub kind: EpisodeType,
    /// Maximum seconds without an LLM request.
    pub discard_timeout: f64,
    /// `global_step` at the time of the claim.
    pub claimed_at_step: u64,
    /// Task id of the claim's throttle policy, or empty.
    pub task_id: String,
    /// Time of the claim.
    pub claimed_at: f64,
    /// Tokens sampled so far.
    pub completion_tokens: u64,
    /// Time of the claim, or of the last start or end of an LLM request.
    pub last_activity: f64,
    /// Number of LLM requests that the engine accepted.
    pub llm_calls: u64,
    /// Stored answers that later requests may continue.
    pub kept_responses: KeptResponses,
    /// Number of LLM requests in flight.
    in_flight: u32,
    /// Whether its end has been sent to the engine.
    ending: bool,
}

impl Episode {
    /// Returns whether its end has been sent to the engine.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Returns whether it has begun an LLM request; before, it is only claimed.
    pub fn has_begun(&self) -> bool {
        self.llm_calls > 0 || self.in_flight > 0
    }

    /// LLM requests that have not finished.
    pub fn calls_in_flight(&self) -> usize {
        self.in_flight as usize
    }
}

/// Parameters of a claim.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Id of the client.
    pub client_uuid: String,
    /// Train or eval.
    pub kind: EpisodeType,
    /// Maximum seconds without an LLM request.
    pub discard_timeout: f64,
    /// Task id, or empty.
    pub task_id: String,
    /// Step of the current batch.
    pub global_step: u64,
}

/// Outcome of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Ended by its client.
    Ended,
    /// Aborted, discarded, or lost with the engine.
    Lost(DropReason),
}

/// Owner of an episode key.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyOwner<'a> {
    /// A running episode, by id.
    Running(&'a str),
    /// An ended episode.
    Gone,
    /// None: invalid or long forgotten.
    Unknown,
}

/// Whether a client may end an episode.
#[derive(Debug, PartialEq, Eq)]
pub enum EndCheck {
    /// Yes: it runs and belongs to the client.
    Running,
    /// The same end is in progress.
    Ending,
    /// This client has already ended it.
    AlreadyEnded,
    /// Never claimed, or lost.
    NotFound,
    /// It belongs to another client.
    Foreign,
}

/// Part of a key after its prefix.
type Secret = [u8; 32];

/// Record of an ended episode; small, since a busy server keeps many.
#[derive(Debug)]
struct Gone {
    /// Hash of the client's id, sufficient to recognise it.
    client: u64,
    secret: Secret,
    fate: Fate,
    /// Maximum seconds without an LLM request.
    discard_timeout: f32,
}

/// All claimed episodes in the order of their claims, and those that ended in the last [`REMEMBER_SECONDS`].
#[derive(Debug, Default)]
pub struct Registry {
    running: InOrder<Episode>,
    /// Bytes of stored answers of each running episode that has some, and their sum.
    kept: BTreeSet<(usize, Uuid)>,
    kept_bytes: usize,
    gone: HashMap<Uuid, Gone>,
    /// Times at which the episodes of `gone` ended, oldest first.
    gone_order: VecDeque<(f64, Uuid)>,
    /// Secrets of running and ended episodes. The map has secret hash seeds, so that lookup times reveal nothing about
    /// its keys.
    secrets: HashMap<Secret, Uuid>,
    client_hashes: RandomState,
}

/// Parses an id in its canonical form.
fn id_of(text: &str) -> Option<Uuid> {
    let id = Uuid::try_parse(text).ok()?;
    (id.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then_some(id)
}

fn secret_of(key: &str) -> Option<Secret> {
    let digits = key.strip_prefix(EPISODE_KEY_PREFIX)?;
    let mut secret = Secret::default();
    if digits.len() != 2 * secret.len() {
        return None;
    }
    for (place, digit) in digits.chars().enumerate() {
        // 0 to 15.
        let value = digit.to_digit(16)? as u8;
        secret[place / 2] = secret[place / 2] << 4 | value;
    }
    Some(secret)
}

impl Registry {
    /// Claims an episode; returns `None` while `slots` episodes run.
    pub fn claim(&mut self, claim: Claim, slots: usize, now: f64) -> Option<&Episode> {
        if self.running.len() >= slots {
            return None;
        }
        let id = Uuid::new_v4();
        let secret: Secret = rand::rng().random();
        let episode = Episode {
            uuid: id.to_string(),
            key: format!("{EPISODE_KEY_PREFIX}{}", hex(&secret)),
            client_uuid: claim.client_uuid,
            kind: claim.kind,
            discard_timeout: claim.discard_timeout,
            claimed_at_step: claim.global_step,
            task_id: claim.task_id,
            claimed_at: now,
            completion_tokens: 0,
            last_activity: now,
            llm_calls: 0,
            kept_responses: KeptResponses::default(),
            in_flight: 0,
            ending: false,
        };
        self.secrets.insert(secret, id);
        Some(self.running.add(id, episode))
    }

    /// Returns a running episode.
    pub fn get(&self, uuid: &str) -> Option<&Episode> {
        self.running.get(&id_of(uuid)?)
    }

    /// Stores an answer of an episode. If all stored answers exceed `max` bytes, the episode that stores most drops its
    /// oldest.
    pub fn keep_response(&mut self, uuid: &str, response: Kept, max: usize) {
        let Some(id) = id_of(uuid) else { return };
        self.change_kept(id, |kept| {
            kept.keep(response);
            true
        });
        while self.kept_bytes > max
            && let Some((_, largest)) = self.kept.last().copied()
            && self.change_kept(largest, KeptResponses::forget_oldest)
        {}
    }

    /// Changes the stored answers of a running episode, and the count of their bytes. Returns what `change` returns, or
    /// `false` if the episode does not run.
    fn change_kept(&mut self, id: Uuid, change: impl FnOnce(&mut KeptResponses) -> bool) -> bool {
        let Some(episode) = self.running.get_mut(&id) else {
            return false;
        };
        let kept = &mut episode.kept_responses;
        let before = kept.bytes();
        let changed = change(kept);
        let after = kept.bytes();
        self.kept.remove(&(before, id));
        if after > 0 {
            self.kept.insert((after, id));
        }
        // What was there before is part of the sum.
        self.kept_bytes = self.kept_bytes - before + after;
        changed
    }

    /// Returns a running episode, mutably.
    fn get_mut(&mut self, uuid: &str) -> Option<&mut Episode> {
        self.running.get_mut(&id_of(uuid)?)
    }

    /// Iterates over the running episodes, oldest claim first.
    pub fn iter(&self) -> impl Iterator<Item = &Episode> {
        self.running.iter()
    }

    /// Returns the number of running episodes.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Returns whether no episode runs.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Returns the owner of a key.
    pub fn owner_of(&self, key: &str) -> KeyOwner<'_> {
        match secret_of(key).and_then(|secret| self.secrets.get(&secret)) {
            Some(id) => match self.running.get(id) {
                Some(episode) => KeyOwner::Running(&episode.uuid),
                None => KeyOwner::Gone,
            },
            None => KeyOwner::Unknown,
        }
    }

    /// Begins an LLM request of an episode.
    pub fn begin_call(&mut self, uuid: &str, now: f64) -> Option<&Episode> {
        let episode = self.get_mut(uuid)?;
        episode.in_flight += 1;
        episode.last_activity = now;
        Some(episode)
    }

    /// Counts an LLM request that the engine accepted. A refused one is activity, but not counted.
    pub fn count_call(&mut self, uuid: &str) {
        if let Some(episode) = self.get_mut(uuid) {
            episode.llm_calls += 1;
        }
    }

    /// Adds sampled tokens to an episode.
    pub fn count_tokens(&mut self, uuid: &str, tokens: u64) {
        if let Some(episode) = self.get_mut(uuid) {
            episode.completion_tokens += tokens;
        }
    }

    /// Ends an LLM request that [`Self::begin_call`] began, successful or not.
    pub fn finish_call(&mut self, uuid: &str, now: f64) {
        if let Some(episode) = self.get_mut(uuid) {
            episode.in_flight = episode.in_flight.saturating_sub(1);
            episode.last_activity = now;
        }
    }

    /// Checks whether `client_uuid` may end or abort the episode.
    pub fn check_end(&self, uuid: &str, client_uuid: &str) -> EndCheck {
        let Some(id) = id_of(uuid) else {
            return EndCheck::NotFound;
        };
        if let Some(episode) = self.running.get(&id) {
            return match (episode.client_uuid == client_uuid, episode.ending) {
                (false, _) => EndCheck::Foreign,
                (true, true) => EndCheck::Ending,
                (true, false) => EndCheck::Running,
            };
        }
        let client = self.client_hashes.hash_one(client_uuid);
        match self.gone.get(&id) {
            Some(gone) if gone.fate == Fate::Ended && gone.client == client => EndCheck::AlreadyEnded,
            _ => EndCheck::NotFound,
        }
    }

    /// Marks an episode whose end has been sent to the engine; it is not discarded meanwhile.
    pub fn set_ending(&mut self, uuid: &str, ending: bool) {
        if let Some(episode) = self.get_mut(uuid) {
            episode.ending = ending;
        }
    }

    /// Removes an episode and remembers its outcome. An end acknowledged after the episode was lost corrects the
    /// remembered outcome.
    pub fn remove(&mut self, uuid: &str, fate: Fate, now: f64) -> Option<Episode> {
        let id = id_of(uuid)?;
        let Some(episode) = self.running.remove(&id) else {
            if fate == Fate::Ended {
                self.was_ended(uuid);
            }
            return None;
        };
        let kept = episode.kept_responses.bytes();
        self.kept.remove(&(kept, id));
        self.kept_bytes -= kept;
        // Every issued key has a secret.
        let secret = secret_of(&episode.key).unwrap_or_default();
        let client = self.client_hashes.hash_one(&episode.client_uuid);
        let gone = Gone {
            client,
            secret,
            fate,
            discard_timeout: episode.discard_timeout as f32,
        };
        self.gone.insert(id, gone);
        self.gone_order.push_back((now, id));
        self.forget_some();
        Some(episode)
    }

    /// Marks a lost episode as ended after all; returns whether that is news.
    pub fn was_ended(&mut self, uuid: &str) -> bool {
        let gone = id_of(uuid).and_then(|id| self.gone.get_mut(&id));
        let lost = gone.filter(|gone| matches!(gone.fate, Fate::Lost(_)));
        lost.map(|gone| gone.fate = Fate::Ended).is_some()
    }

    /// Returns why an episode was lost, if remembered: a sentence without its full stop.
    pub fn why_lost(&self, uuid: &str) -> Option<String> {
        let gone = self.gone.get(&id_of(uuid)?)?;
        Some(match gone.fate {
            Fate::Ended => return None,
            Fate::Lost(DropReason::Idle) => format!(
                "It was discarded after {} s without an LLM call; hint: claim with a larger discard_episode_timeout",
                gone.discard_timeout
            ),
            Fate::Lost(DropReason::Aborted) => "It was aborted".into(),
            Fate::Lost(DropReason::Late) => {
                "It was discarded: it was still running when the batch was closed or the engine was \
                                             stopped; hint: ajet.swarm_mode_rolling_post_timeout is how long a full \
                                             batch waits for it"
                    .into()
            }
            Fate::Lost(_) => "It was lost with the engine that ran it".into(),
        })
    }

    /// Removes all running episodes as lost for this reason; returns them.
    pub fn clear(&mut self, reason: DropReason, now: f64) -> Vec<Episode> {
        let uuids = self.discardable(|_| true, true);
        let lost = uuids
            .iter()
            .filter_map(|uuid| self.remove(uuid, Fate::Lost(reason), now));
        lost.collect()
    }

    /// Returns the episodes without LLM activity for their discard timeout.
    pub fn idle(&self, now: f64) -> Vec<String> {
        self.discardable(
            |episode| episode.in_flight == 0 && now - episode.last_activity >= episode.discard_timeout,
            false,
        )
    }

    /// Returns all episodes whose end is not in progress.
    pub fn unended(&self) -> Vec<String> {
        self.discardable(|_| true, false)
    }

    fn discardable(&self, want: impl Fn(&Episode) -> bool, ending_too: bool) -> Vec<String> {
        let episodes = self.running.iter();
        let wanted = episodes.filter(|episode| (ending_too || !episode.ending) && want(episode));
        wanted.map(|episode| episode.uuid.clone()).collect()
    }

    /// Forgets the episodes that ended more than [`REMEMBER_SECONDS`] ago.
    pub fn forget_old(&mut self, now: f64) {
        while self
            .gone_order
            .front()
            .is_some_and(|(went, _)| now - went >= REMEMBER_SECONDS)
        {
            self.forget_oldest();
        }
    }

    /// Forgets the oldest beyond [`MAX_REMEMBERED`].
    fn forget_some(&mut self) {
        while self.gone_order.len() > MAX_REMEMBERED {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, id)) = self.gone_order.pop_front()
            && let Some(gone) = self.gone.remove(&id)
        {
            self.secrets.remove(&gone.secret);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(client: &str) -> Claim {
        Claim {
            client_uuid: client.into(),
            kind: EpisodeType::Train,
            discard_timeout: 10.0,
            task_id: String::new(),
            global_step: 1,
        }
    }

    fn claimed(registry: &mut Registry, client: &str, now: f64) -> (String, String) {
        let episode = registry.claim(claim(client), usize::MAX, now).unwrap();
        (episode.uuid.clone(), episode.key.clone())
    }

    #[test]
    fn what_all_episodes_keep_is_bounded_and_the_largest_forgets_first() {
        let mut registry = Registry::default();
        let (large, _) = claimed(&mut registry, "a", 0.0);
        let (small, _) = claimed(&mut registry, "a", 0.0);
        let mut keep = |uuid: &str, number: usize, len: usize| {
            let response = Kept {
                id: format!("resp_{uuid}{number}"),
                previous: None,
                messages: vec![],
                response: "x".repeat(len).into(),
                output: vec![],
            };
            registry.keep_response(uuid, response, 10_000);
            let episode = |uuid: &str| registry.get(uuid).unwrap().kept_responses.bytes();
            [episode(&large), episode(&small)]
        };
        keep(&small, 0, 2_000);
        for number in 0..9 {
            let [large, small] = keep(&large, number, 3_000);
            assert!(large + small <= 10_000 && small > 2_000, "{large} {small}");
        }
        let [large, small] = keep(&small, 1, 4_000);
        assert!(small > 4_000 && large + small <= 10_000, "{large} {small}");
        keep("no such episode", 0, 1);
    }

    // Seen with 100,000 running episodes: an end moved all younger ones, and an answer of the Responses API added up what
    // all of them store.
    #[test]
    fn claims_calls_answers_and_ends_pass_no_other_episode() {
        let mut registry = Registry::default();
        let ids: Vec<String> = (0..1000).map(|_| claimed(&mut registry, "a", 0.0).0).collect();
        for (number, id) in ids.iter().enumerate() {
            registry.begin_call(id, 1.0);
            registry.count_call(id);
            let response = Kept {
                id: format!("resp_{number}"),
                previous: None,
                messages: vec![],
                response: "x".repeat(100).into(),
                output: vec![],
            };
            registry.keep_response(id, response, 10_000);
            registry.finish_call(id, 2.0);
            assert_eq!(registry.check_end(id, "a"), EndCheck::Running);
        }
        assert!(registry.kept_bytes <= 10_000 && registry.kept.len() < 100);
        for id in &ids {
            registry.remove(id, Fate::Ended, 3.0);
        }
        assert_eq!((registry.kept_bytes, registry.kept.len()), (0, 0));
        assert_eq!(registry.running.passed.get(), 0);
    }

    #[test]
    fn slots_bound_the_claims_and_come_back() {
        let mut registry = Registry::default();
        let (first, _) = claimed(&mut registry, "a", 0.0);
        assert!(registry.claim(claim("a"), 2, 0.0).is_some());
        assert!(registry.claim(claim("a"), 2, 0.0).is_none());
        registry.remove(&first, Fate::Lost(DropReason::Idle), 0.0);
        assert!(registry.claim(claim("a"), 2, 0.0).is_some());
    }

    #[test]
    fn keys_differ_and_lead_to_their_episode_until_it_is_forgotten() {
        let mut registry = Registry::default();
        let (one, key_one) = claimed(&mut registry, "a", 0.0);
        let (_, key_two) = claimed(&mut registry, "a", 0.0);
        assert_ne!(key_one, key_two);
        assert_eq!(key_one.len(), EPISODE_KEY_PREFIX.len() + 64);
        assert_eq!(registry.owner_of(&key_one), KeyOwner::Running(&one));
        registry.remove(&one, Fate::Ended, 100.0);
        registry.forget_old(699.0);
        assert_eq!(registry.owner_of(&key_one), KeyOwner::Gone);
        registry.forget_old(700.0);
        assert_eq!(registry.owner_of(&key_one), KeyOwner::Unknown);
        assert_eq!(registry.owner_of("sk-ajet-made-up"), KeyOwner::Unknown);
    }

    #[test]
    fn ids_and_keys_are_known_only_as_they_were_given_out() {
        let mut registry = Registry::default();
        let (id, key) = claimed(&mut registry, "a", 0.0);
        assert!(registry.get(&id).is_some());
        for spelling in [
            id.to_uppercase(),
            format!("{{{id}}}"),
            id.replace('-', ""),
            format!("urn:uuid:{id}"),
        ] {
            assert!(registry.get(&spelling).is_none(), "{spelling}");
            assert_eq!(registry.check_end(&spelling, "a"), EndCheck::NotFound);
        }
        for wrong in [
            &key[1..],
            &key[..key.len() - 1],
            &format!("{key}0"),
            &format!("sk-ajet-{}", "é".repeat(32)),
        ] {
            assert_eq!(registry.owner_of(wrong), KeyOwner::Unknown, "{wrong}");
        }
    }

    #[test]
    fn a_request_in_flight_is_activity() {
        let mut registry = Registry::default();
        let (id, _) = claimed(&mut registry, "a", 0.0);
        assert!(registry.idle(9.9).is_empty());
        assert_eq!(registry.idle(10.0), [id.as_str()]);
        registry.begin_call(&id, 9.0);
        registry.begin_call(&id, 9.0);
        registry.finish_call(&id, 20.0);
        assert!(registry.idle(1e6).is_empty(), "one is still in flight");
        registry.finish_call(&id, 30.0);
        assert!(registry.idle(39.9).is_empty());
        assert_eq!(registry.idle(40.0), [id]);
    }

    #[test]
    fn ends_are_checked_by_owner_and_remembered_for_ten_minutes() {
        let mut registry = Registry::default();
        let (ended, _) = claimed(&mut registry, "a", 0.0);
        let (aborted, _) = claimed(&mut registry, "a", 0.0);
        assert_eq!(registry.check_end(&ended, "a"), EndCheck::Running);
        assert_eq!(registry.check_end(&ended, "b"), EndCheck::Foreign);
        assert_eq!(registry.check_end("never", "a"), EndCheck::NotFound);
        registry.set_ending(&ended, true);
        assert_eq!(registry.check_end(&ended, "a"), EndCheck::Ending);
        assert_eq!(
            registry.unended(),
            [aborted.as_str()],
            "an end on the way is not cut off"
        );
        registry.remove(&ended, Fate::Ended, 0.0);
        registry.remove(&aborted, Fate::Lost(DropReason::Aborted), 0.0);
        assert_eq!(registry.check_end(&ended, "a"), EndCheck::AlreadyEnded);
        assert_eq!(registry.check_end(&ended, "b"), EndCheck::NotFound);
        assert_eq!(registry.check_end(&aborted, "a"), EndCheck::NotFound);
        registry.forget_old(REMEMBER_SECONDS);
        assert_eq!(registry.check_end(&ended, "a"), EndCheck::NotFound);
    }

    #[test]
    fn an_end_that_the_engine_took_before_the_batch_closed_counts_as_ended() {
        let mut registry = Registry::default();
        let (id, _) = claimed(&mut registry, "a", 0.0);
        registry.set_ending(&id, true);
        assert_eq!(registry.clear(DropReason::Late, 1.0).len(), 1);
        assert!(registry.is_empty());
        assert!(registry.remove(&id, Fate::Ended, 2.0).is_none());
        assert_eq!(registry.check_end(&id, "a"), EndCheck::AlreadyEnded);
    }
}
