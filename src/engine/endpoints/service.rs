//! The endpoints of an engine: gives them the weights, and brings back those that were away.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::EndpointError;
use super::adapters::{AdapterNames, Published};
use super::client::{EndpointClient, KEY_VARIABLE, shown};
use super::roster::Roster;
use crate::config::schema::Ajet;
use crate::engine::events::EventHub;
use crate::protocol::engine::EndpointLoad;

/// Interval between attempts to bring an endpoint back.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum time for an endpoint to load an adapter and answer the trials.
const JOIN: Duration = Duration::from_secs(120);
/// Directory of the adapters in the experiment's, unless configured.
const ADAPTER_DIR: &str = "samplers";

/// The endpoints of an engine.
pub struct Endpoints {
    endpoints: Vec<Endpoint>,
    names: AdapterNames,
    roster: Mutex<Roster>,
    published: Mutex<Option<Published>>,
    hub: Arc<EventHub>,
    runtime: Handle,
}

struct Endpoint {
    client: EndpointClient,
    /// Held while the endpoint is given weights.
    joining: tokio::sync::Mutex<()>,
}

impl Endpoints {
    /// Creates the configured endpoints, which are reached when weights are published; `None` if there are none. Calls
    /// run on the current tokio runtime.
    ///
    /// # Errors
    /// Returns a message if HTTPS is not possible.
    pub fn of(config: &Ajet, experiment_dir: &Path, hub: &Arc<EventHub>) -> Result<Option<Arc<Self>>, String> {
        let urls = &config.rollout.endpoints;
        if urls.is_empty() {
            return Ok(None);
        }
        let key = std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        let endpoint = |url: &String| {
            Ok(Endpoint {
                client: EndpointClient::new(url, key.clone())?,
                joining: tokio::sync::Mutex::default(),
            })
        };
        let dir = match &config.rollout.adapter_dir {
            Some(dir) => std::path::absolute(dir),
            None => std::path::absolute(experiment_dir).map(|dir| dir.join(ADAPTER_DIR)),
        };
        let dir = dir.map_err(|error| format!("ajet.rollout.adapter_dir: {error}"))?;
        let engine = format!("{:08x}", rand::random::<u32>());
        let endpoints = Arc::new(Self {
            endpoints: urls.iter().map(endpoint).collect::<Result<_, String>>()?,
            names: AdapterNames::new(&config.experiment_name, &engine, &dir),
            roster: Mutex::new(Roster::new(urls.iter().map(|url| shown(url)))),
            published: Mutex::default(),
            hub: hub.clone(),
            runtime: Handle::current(),
        });
        tokio::spawn(bring_back(Arc::downgrade(&endpoints)));
        Ok(Some(endpoints))
    }

    /// Returns the endpoints as they are shown to people.
    pub fn report(&self) -> Vec<EndpointLoad> {
        self.roster().report()
    }

    /// Writes the adapter of a version of the weights and has the endpoints load it. Until they have, or if it cannot be
    /// written, the engine samples itself. Must not be called on a thread of the runtime.
    pub fn publish(&self, version: u64, write: impl FnOnce(&Path) -> Result<(), String>) {
        let published = self.names.of(version);
        let created = std::fs::create_dir_all(&published.dir).map_err(|error| error.to_string());
        if let Err(error) = created.and_then(|()| write(&published.dir)) {
            self.roster().withdraw();
            *self.published() = None;
            self.hub.warn(format!(
                "cannot write the adapter for the endpoints to {}: {error}; the engine samples alone until the next update",
                published.dir.display()
            ));
            return;
        }
        let is_first = self.published().replace(published.clone()).is_none();
        // An endpoint that is away must not delay updates.
        let joining: Vec<usize> = {
            let mut roster = self.roster();
            roster.publish(version);
            let indices = 0..self.endpoints.len();
            indices
                .filter(|index| is_first || roster.logprobs(*index).is_some())
                .collect()
        };
        self.runtime
            .block_on(join_all(joining.into_iter().map(|index| self.join(index))));
        self.names.remove_all_but(&published);
    }

    /// Gives an endpoint the published weights, unless it has them.
    pub(super) async fn join(&self, index: usize) {
        let endpoint = &self.endpoints[index];
        let _joining = endpoint.joining.lock().await;
        let Some(published) = self.published().clone() else {
            return;
        };
        if self.roster().is_current(index) {
            return;
        }
        let known = self.roster().logprobs(index);
        let joined = tokio::time::timeout(JOIN, async {
            self.load(&endpoint.client, &published).await?;
            match known {
                Some(logprobs) => Ok(logprobs),
                None => endpoint.client.logprob_semantics(&published.name).await,
            }
        });
        match joined.await.unwrap_or(Err(EndpointError::Silent(JOIN.as_secs()))) {
            Ok(logprobs) => {
                if self.roster().joined(index, published.version, logprobs) {
                    let limits = match (logprobs.temperature, logprobs.truncation) {
                        (true, false) => "",
                        (false, _) => "; its log-probabilities are for temperature 1, so it samples only at that",
                        (true, true) => {
                            "; its log-probabilities include top-p, top-k and min-p, so it samples without them"
                        }
                    };
                    self.hub.info(format!("endpoint {} samples{limits}", self.name(index)));
                }
            }
            Err(error) => self.lost(index, &error),
        }
    }

    /// Has an endpoint load the published adapter instead of the experiment's earlier ones.
    async fn load(&self, client: &EndpointClient, published: &Published) -> Result<(), EndpointError> {
        let models = client.models().await?;
        let earlier = |name: &&String| self.names.is_own(name) && **name != published.name;
        for name in models.iter().filter(earlier) {
            client.unload_adapter(name).await?;
        }
        match models.contains(&published.name) {
            true => Ok(()),
            false => client.load_adapter(&published.name, &published.dir).await,
        }
    }

    /// Takes an endpoint out until it has the published weights again.
    pub(super) fn lost(&self, index: usize, error: &EndpointError) {
        let is_new = self.roster().lost(index, error.to_string());
        if is_new {
            let name = self.name(index);
            self.hub
                .warn(format!("endpoint {name} {error}; others sample until it is back"));
        }
    }

    /// Returns the client of an endpoint.
    pub(super) fn client(&self, index: usize) -> &EndpointClient {
        &self.endpoints[index].client
    }

    /// Returns the weights that endpoints sample with.
    pub(super) fn weights(&self) -> Option<Published> {
        self.published().clone()
    }

    /// Returns the runtime on which calls run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn warn(&self, index: usize, what: &str) {
        self.hub.warn(format!("endpoint {} {what}", self.name(index)));
    }

    fn name(&self, index: usize) -> String {
        self.roster().name(index).to_owned()
    }

    // Poisoning is ignored: every change of the state is complete before anything can panic.
    pub(super) fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn published(&self) -> MutexGuard<'_, Option<Published>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries again and again to give weights to the endpoints that lack them, as long as the engine lives.
async fn bring_back(endpoints: Weak<Endpoints>) {
    loop {
        tokio::time::sleep(RETRY).await;
        let Some(endpoints) = endpoints.upgrade() else { return };
        let stale: Vec<usize> = {
            let roster = endpoints.roster();
            (0..endpoints.endpoints.len())
                .filter(|index| !roster.is_current(*index))
                .collect()
        };
        join_all(stale.into_iter().map(|index| endpoints.join(index))).await;
    }
}
