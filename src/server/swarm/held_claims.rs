//! Claims that are held while an update is under way, instead of refused: Python clients wait 15 s after a refusal,
//! however short the update is.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of held claims of a client: as many episodes as one runs at once.
const PER_CLIENT: usize = 64;
/// Maximum number of held claims, an eighth of the connections that a server has by default.
const TOTAL: usize = 1024;

/// How many claims each client has held.
#[derive(Debug, Default)]
pub struct HeldClaims {
    by_client: Mutex<HashMap<String, usize>>,
}

/// A place for one held claim, free again when it is dropped.
#[derive(Debug)]
pub struct Place<'a> {
    claims: &'a HeldClaims,
    client_uuid: String,
}

impl HeldClaims {
    /// A place for another claim of this client; `None` where it or all clients together have too many.
    pub fn place(&self, client_uuid: &str) -> Option<Place<'_>> {
        let mut by_client = self.lock();
        let held: usize = by_client.values().sum();
        let own = by_client.get(client_uuid).copied().unwrap_or(0);
        if held >= TOTAL || own >= PER_CLIENT {
            return None;
        }
        by_client.insert(client_uuid.to_owned(), own + 1);
        Some(Place {
            claims: self,
            client_uuid: client_uuid.to_owned(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // Nothing panics while it is held.
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
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
        let own: Vec<_> = (0..PER_CLIENT).map(|_| claims.place("a").unwrap()).collect();
        assert!(claims.place("a").is_none());
        let others: Vec<_> = (PER_CLIENT..TOTAL)
            .map(|number| claims.place(&number.to_string()).unwrap())
            .collect();
        assert!(claims.place("b").is_none());
        drop(own);
        assert!(claims.place("a").is_some() && claims.place("b").is_some());
        drop(others);
        assert!(
            claims.lock().is_empty(),
            "nothing is remembered of clients that hold none"
        );
    }
}
