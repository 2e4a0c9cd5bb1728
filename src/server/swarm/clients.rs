//! Active clients of a batch, and whether they agreed to end it.
//!
//! Pure: time is passed in as Unix seconds.

use indexmap::IndexMap;

use crate::protocol::swarm::ActiveClient;

/// Seconds without a claim, LLM call or end after which a client is no longer active.
pub const ACTIVE_SECONDS: f64 = 600.0;

/// Maximum number of clients; beyond it, the least recently active one is removed.
const MAX_CLIENTS: usize = 10_000;

#[derive(Debug)]
struct Client {
    last_activity: f64,
    agreed: bool,
}

/// Active clients, in the order in which they became active.
#[derive(Debug, Default)]
pub struct ActiveClients {
    clients: IndexMap<String, Client>,
    /// Number of those that agreed.
    agreed: usize,
}

impl ActiveClients {
    /// Makes a client active after an end or abort.
    pub fn enter(&mut self, client_uuid: &str, now: f64) {
        if !self.refresh(client_uuid, now) {
            if self.clients.len() >= MAX_CLIENTS {
                self.remove_least_active();
            }
            self.clients.insert(
                client_uuid.to_owned(),
                Client {
                    last_activity: now,
                    agreed: false,
                },
            );
        }
    }

    fn remove_least_active(&mut self) {
        let times = self.clients.values().map(|client| client.last_activity);
        let quietest = times.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
        let removed = quietest.and_then(|(index, _)| self.clients.shift_remove_index(index));
        self.agreed -= usize::from(removed.is_some_and(|(_, client)| client.agreed));
    }

    /// Records the activity of a client after a claim, LLM call or end; returns whether it is active.
    pub fn refresh(&mut self, client_uuid: &str, now: f64) -> bool {
        let client = self.clients.get_mut(client_uuid);
        client.map(|client| client.last_activity = now).is_some()
    }

    /// Records that a client agreed to the update; returns `false` if it is not active.
    pub fn agree(&mut self, client_uuid: &str) -> bool {
        let Some(client) = self.clients.get_mut(client_uuid) else {
            return false;
        };
        self.agreed += usize::from(!client.agreed);
        client.agreed = true;
        true
    }

    /// Returns whether any active client agreed.
    pub fn any_agreed(&self) -> bool {
        self.agreed > 0
    }

    /// Returns whether there are active clients and all agreed.
    pub fn all_agreed(&self) -> bool {
        !self.clients.is_empty() && self.agreed == self.clients.len()
    }

    /// Removes the clients without activity for [`ACTIVE_SECONDS`].
    pub fn expire(&mut self, now: f64) {
        self.clients
            .retain(|_, client| now - client.last_activity < ACTIVE_SECONDS);
        self.agreed = self.clients.values().filter(|client| client.agreed).count();
    }

    /// Removes all clients at the end of a batch.
    pub fn clear(&mut self) {
        self.clients.clear();
        self.agreed = 0;
    }

    /// Iterates over id, time of the last activity, and agreement.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64, bool)> {
        let clients = self.clients.iter();
        clients.map(|(client_uuid, client)| (client_uuid.as_str(), client.last_activity, client.agreed))
    }

    /// Lists the clients for the pool information.
    pub fn list(&self) -> Vec<ActiveClient> {
        let list = self.clients.iter().map(|(client_uuid, client)| ActiveClient {
            client_uuid: client_uuid.clone(),
            last_activity_at: client.last_activity,
            allowed_sync_weight: client.agreed,
        });
        list.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_active_clients_agree_and_all_means_at_least_one() {
        let mut clients = ActiveClients::default();
        assert!(!clients.all_agreed(), "nobody is active");
        assert!(!clients.agree("a"), "not active");
        assert!(!clients.refresh("a", 0.0), "a claim does not make a client active");
        clients.enter("a", 0.0);
        clients.enter("b", 1.0);
        assert!(clients.agree("a"));
        assert!(clients.any_agreed() && !clients.all_agreed());
        assert!(clients.agree("b"));
        assert!(clients.all_agreed());
        clients.clear();
        assert!(!clients.any_agreed() && clients.list().is_empty());
    }

    #[test]
    fn a_silent_client_leaves_and_the_rest_may_then_all_have_agreed() {
        let mut clients = ActiveClients::default();
        clients.enter("silent", 0.0);
        clients.enter("busy", 0.0);
        clients.agree("busy");
        assert!(clients.refresh("busy", 599.0));
        clients.expire(599.9);
        assert!(!clients.all_agreed());
        clients.expire(600.0);
        assert!(clients.all_agreed());
        let list = clients.list();
        assert_eq!(list.len(), 1);
        assert_eq!(
            (list[0].client_uuid.as_str(), list[0].last_activity_at),
            ("busy", 599.0)
        );
    }

    #[test]
    fn names_made_up_without_end_take_bounded_memory() {
        let mut clients = ActiveClients::default();
        clients.enter("worker", 0.0);
        for number in 0..MAX_CLIENTS + 5 {
            clients.refresh("worker", number as f64);
            clients.enter(&number.to_string(), number as f64);
        }
        let list = clients.list();
        assert_eq!(list.len(), MAX_CLIENTS);
        assert_eq!(
            (list[0].client_uuid.as_str(), list[1].client_uuid.as_str()),
            ("worker", "6")
        );
    }

    #[test]
    fn entering_again_keeps_the_agreement() {
        let mut clients = ActiveClients::default();
        clients.enter("a", 0.0);
        clients.agree("a");
        clients.enter("a", 5.0);
        assert!(clients.list()[0].allowed_sync_weight);
    }
}
