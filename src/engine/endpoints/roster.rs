//! Which endpoint samples a request: the states of all endpoints, and where the running episodes are. Pure.

use std::collections::{BTreeSet, HashMap};

use super::logprobs::LogprobSemantics;
use crate::inference::SamplingParams;
use crate::protocol::engine::EndpointLoad;

/// All endpoints.
#[derive(Debug)]
pub struct Roster {
    endpoints: Vec<Endpoint>,
    /// Endpoint of each episode, which has its conversation in the prefix cache.
    homes: HashMap<String, usize>,
    /// Version of the weights to sample with; `None` until there are some.
    version: Option<u64>,
}

#[derive(Debug)]
struct Endpoint {
    /// URL without secrets, for people.
    name: String,
    state: State,
    requests: usize,
    /// Episodes that it has had since the last update.
    episodes: usize,
    tokens: u64,
    /// Weights that it was last known to have.
    version: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Away { reason: String },
    Ready { logprobs: LogprobSemantics },
}

impl Roster {
    /// Creates a roster of endpoints that have not been reached yet.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let endpoint = |name| Endpoint {
            name,
            state: State::Away {
                reason: "not reached yet".into(),
            },
            requests: 0,
            episodes: 0,
            tokens: 0,
            version: None,
        };
        Self {
            endpoints: names.into_iter().map(endpoint).collect(),
            homes: HashMap::new(),
            version: None,
        }
    }

    /// Has requests sampled with this version of the weights only, and forgets the episodes, which an update ends.
    pub fn publish(&mut self, version: u64) {
        self.version = Some(version);
        self.homes.clear();
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.episodes = 0);
    }

    /// Has no request sampled until weights are published.
    pub fn withdraw(&mut self) {
        self.version = None;
    }

    /// Returns the endpoint for a request of an episode, which is then in progress there: the episode's own, or else the
    /// one with the fewest requests, then with the fewest episodes. `None` if no endpoint can sample it, or only those
    /// that were `tried`.
    pub fn place(&mut self, episode: &str, params: &SamplingParams, tried: &BTreeSet<usize>) -> Option<usize> {
        let can = |index: &usize| !tried.contains(index) && self.can_sample(*index, params);
        let index = match self.homes.get(episode).copied().filter(can) {
            Some(home) => home,
            None => {
                let load = |index: &usize| (self.endpoints[*index].requests, self.endpoints[*index].episodes);
                let least = (0..self.endpoints.len()).filter(can).min_by_key(load)?;
                self.homes.insert(episode.to_owned(), least);
                self.endpoints[least].episodes += 1;
                least
            }
        };
        self.endpoints[index].requests += 1;
        Some(index)
    }

    fn can_sample(&self, index: usize, params: &SamplingParams) -> bool {
        let endpoint = &self.endpoints[index];
        let fits = matches!(endpoint.state, State::Ready { logprobs } if logprobs.fit(params));
        fits && self.version.is_some() && endpoint.version == self.version
    }

    /// A request at an endpoint has ended.
    pub fn ended(&mut self, index: usize) {
        let endpoint = &mut self.endpoints[index];
        endpoint.requests = endpoint.requests.saturating_sub(1);
    }

    /// An endpoint has sampled tokens.
    pub fn sampled(&mut self, index: usize, tokens: u64) {
        self.endpoints[index].tokens += tokens;
    }

    /// An endpoint is ready to sample with a version of the weights. Returns whether it was away.
    pub fn joined(&mut self, index: usize, version: u64, logprobs: LogprobSemantics) -> bool {
        let endpoint = &mut self.endpoints[index];
        endpoint.version = Some(version);
        let before = std::mem::replace(&mut endpoint.state, State::Ready { logprobs });
        matches!(before, State::Away { .. })
    }

    /// An endpoint cannot be used. Returns whether this is new.
    pub fn lost(&mut self, index: usize, reason: String) -> bool {
        let endpoint = &mut self.endpoints[index];
        endpoint.version = None;
        let away = State::Away { reason };
        let is_new = endpoint.state != away;
        endpoint.state = away;
        self.homes.retain(|_, home| *home != index);
        is_new
    }

    /// Returns what an endpoint's log-probabilities mean, if it is not away.
    pub fn logprobs(&self, index: usize) -> Option<LogprobSemantics> {
        match self.endpoints[index].state {
            State::Ready { logprobs } => Some(logprobs),
            State::Away { .. } => None,
        }
    }

    /// Returns whether an endpoint has the published weights.
    pub fn is_current(&self, index: usize) -> bool {
        self.logprobs(index).is_some() && self.endpoints[index].version == self.version
    }

    /// Returns an endpoint's name.
    pub fn name(&self, index: usize) -> &str {
        &self.endpoints[index].name
    }

    /// Returns the endpoints as they are shown to people.
    pub fn report(&self) -> Vec<EndpointLoad> {
        let load = |endpoint: &Endpoint| EndpointLoad {
            url: endpoint.name.clone(),
            weight_version: endpoint.version,
            running_requests: endpoint.requests as u64,
            sampled_tokens: endpoint.tokens,
            problem: match &endpoint.state {
                State::Away { reason } => Some(reason.clone()),
                State::Ready { .. } => None,
            },
        };
        self.endpoints.iter().map(load).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: LogprobSemantics = LogprobSemantics {
        temperature: true,
        truncation: false,
    };
    const RAW: LogprobSemantics = LogprobSemantics {
        temperature: false,
        truncation: false,
    };

    fn roster(size: usize) -> Roster {
        let mut roster = Roster::new((0..size).map(|n| format!("http://box{n}")));
        roster.publish(1);
        for index in 0..size {
            assert!(roster.joined(index, 1, EXACT));
        }
        roster
    }

    fn place(roster: &mut Roster, episode: &str) -> Option<usize> {
        roster.place(episode, &SamplingParams::unmodified(), &BTreeSet::new())
    }

    #[test]
    fn episodes_stay_and_new_ones_go_to_the_least_busy() {
        let mut roster = roster(3);
        let placed = ["a", "b", "c", "b", "d"].map(|episode| place(&mut roster, episode));
        assert_eq!(placed, [0, 1, 2, 1, 0].map(Some));
        [0, 0, 1, 1, 2].into_iter().for_each(|index| roster.ended(index));
        assert_eq!(place(&mut roster, "e"), Some(1), "idle, and with the fewest episodes");
        roster.publish(2);
        assert_eq!(place(&mut roster, "f"), None, "nobody has the new weights yet");
        roster.joined(2, 2, EXACT);
        assert_eq!(place(&mut roster, "b"), Some(2));
        roster.withdraw();
        assert_eq!(place(&mut roster, "b"), None);
    }

    #[test]
    fn a_lost_endpoint_gets_nothing_until_it_has_the_weights_again() {
        let mut roster = roster(2);
        assert_eq!(place(&mut roster, "a"), Some(0));
        roster.ended(0);
        assert!(roster.lost(0, "connection refused".into()));
        assert!(!roster.lost(0, "connection refused".into()), "already known");
        assert_eq!(place(&mut roster, "a"), Some(1));
        let report = roster.report();
        assert_eq!(report[0].problem.as_deref(), Some("connection refused"));
        assert_eq!((report[0].weight_version, report[1].weight_version), (None, Some(1)));
        assert_eq!((report[1].running_requests, &report[1].problem), (1, &None));
        roster.publish(2);
        assert!(roster.joined(0, 1, EXACT), "with the weights of before");
        assert!(!roster.is_current(0));
        assert_eq!(place(&mut roster, "a"), None);
        assert!(!roster.joined(0, 2, EXACT));
        assert_eq!(place(&mut roster, "a"), Some(0));
    }

    #[test]
    fn a_request_goes_where_it_was_not_tried_and_its_log_probabilities_are_right() {
        let mut roster = roster(2);
        roster.joined(1, 1, RAW);
        let warm = SamplingParams {
            temperature: 0.5,
            ..SamplingParams::unmodified()
        };
        let tried = BTreeSet::from([0]);
        assert_eq!(roster.place("a", &warm, &BTreeSet::new()), Some(0));
        assert_eq!(roster.place("a", &warm, &tried), None);
        assert_eq!(roster.place("a", &SamplingParams::unmodified(), &tried), Some(1));
        assert_eq!(roster.place("a", &warm, &BTreeSet::new()), Some(0), "not at home");
    }
}
