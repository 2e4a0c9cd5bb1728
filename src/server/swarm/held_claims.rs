//! Claims held during an update instead of refused: Python clients wait 15 s after a refusal, however short the update
//! is.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of held claims per client: as many episodes as it runs at once.
const PER_CLIENT: usize = 64;
/// Maximum number of held claims: an eighth of a server's default connections.
const TOTAL: usize = 1024;

/// Number of held claims of each client.
#[derive(Debug, Default)]
pub struct HeldClaims {
    by_client: Mutex<HashMap<String, usize>>,
}

/// Permit of one held claim, released on drop.
#[derive(Debug)]
pub struct Permit<'a> {
    claims: &'a HeldClaims,
    client_uuid: String,
}

impl HeldClaims {
    /// Acquires a permit for a claim of this client; returns `None` if the client or all clients together hold too
    /// many.
    pub fn acquire(&self, client_uuid: &str) -> Option<Permit<'_>> {
        let mut by_client = self.lock();
        let held: usize = by_client.values().sum();
        let own = by_client.get(client_uuid).copied().unwrap_or(0);
        if held >= TOTAL || own >= PER_CLIENT {
            return None;
        }
        by_client.insert(client_uuid.to_owned(), own + 1);
        Some(Permit {
            claims: self,
            client_uuid: client_uuid.to_owned(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // Poisoning is impossible: nothing panics while the lock is held.
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut by_client = self.claims.lock();
        if let Some(held) = by_client.get_mut(&self.client_uuid) {
            *held -= 1;
            if *held == 0 {
                by_client.remove(&self.client_uuid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_and_all_together_have_a_bound_and_places_come_back() {
        let claims = HeldClaims::default();
        let own: Vec<_> = (0..PER_CLIENT).map(|_| claims.acquire("a").unwrap()).collect();
        assert!(claims.acquire("a").is_none());
        let others: Vec<_> = (PER_CLIENT..TOTAL)
            .map(|number| claims.acquire(&number.to_string()).unwrap())
            .collect();
        assert!(claims.acquire("b").is_none());
        drop(own);
        assert!(claims.acquire("a").is_some() && claims.acquire("b").is_some());
        drop(others);
        assert!(
            claims.lock().is_empty(),
            "nothing is remembered of clients that hold none"
        );
    }
}
