//! Permits of open connections, and which connection is evicted for a new one.
//!
//! When all permits are taken, a new connection evicts the one that has kept the server waiting for longest: first one
//! that never sent a request, then one between two requests, then one that is sending a body. A connection whose
//! request is being answered is never evicted.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Phase of a connection. Earlier phases are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// No request has arrived yet.
    Silent,
    /// Between two requests.
    Idle,
    /// Sending the body of a request.
    Sending,
    /// Its request is being answered.
    Answering,
}

/// Permits for a limited number of connections.
#[derive(Debug)]
pub struct ConnectionPermits {
    /// Maximum number of connections.
    limit: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Event counter, so that a smaller number is earlier.
    clock: u64,
    open: HashMap<u64, Entry>,
    /// Connections that may be evicted: phase, time of entry, id.
    waiting: BTreeSet<(Phase, u64, u64)>,
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    phase: Phase,
    since: u64,
    evicted: CancellationToken,
}

#[derive(Debug, Default)]
struct Address {
    open: usize,
    waiting: BTreeSet<(Phase, u64, u64)>,
}

impl ConnectionPermits {
    /// Creates `limit` permits.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            table: Mutex::default(),
        })
    }

    /// Acquires a permit for a connection from `peer`; returns `None` if all connections are being answered. Another
    /// machine gets at most half of the permits; connections from the loopback address may be those of many clients
    /// behind a tunnel or proxy.
    pub fn acquire(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionPermit> {
        let address = one_client(peer);
        let share = if address.is_loopback() {
            self.limit
        } else {
            self.limit.div_ceil(2)
        };
        let mut table = self.table();
        let of_address = table.addresses.get(&address);
        let first = if of_address.is_some_and(|known| known.open >= share) {
            of_address.and_then(|known| known.waiting.first())
        } else if table.open.len() >= self.limit {
            table.waiting.first()
        } else {
            None
        };
        match first.copied() {
            Some((_, _, id)) => table.remove(id)?.evicted.cancel(),
            None if table.open.len() >= self.limit || of_address.is_some_and(|known| known.open >= share) => {
                return None;
            }
            None => {}
        }
        let id = table.tick();
        let evicted = CancellationToken::new();
        let entry = Entry {
            address,
            phase: Phase::Silent,
            since: id,
            evicted: evicted.clone(),
        };
        table.insert(id, entry);
        drop(table);
        Some(ConnectionPermit {
            permits: Arc::clone(self),
            id,
            evicted,
        })
    }

    // Poisoning is ignored: no panic can happen between two changes that belong together.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn insert(&mut self, id: u64, entry: Entry) {
        let address = self.addresses.entry(entry.address).or_default();
        address.open += 1;
        if entry.phase != Phase::Answering {
            address.waiting.insert((entry.phase, entry.since, id));
            self.waiting.insert((entry.phase, entry.since, id));
        }
        self.open.insert(id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.open.remove(&id)?;
        let key = (entry.phase, entry.since, id);
        self.waiting.remove(&key);
        if let Some(address) = self.addresses.get_mut(&entry.address) {
            address.open -= 1;
            address.waiting.remove(&key);
            if address.open == 0 {
                self.addresses.remove(&entry.address);
            }
        }
        Some(entry)
    }
}

/// Permit of one connection, released on drop.
#[derive(Debug)]
pub struct ConnectionPermit {
    permits: Arc<ConnectionPermits>,
    id: u64,
    evicted: CancellationToken,
}

impl ConnectionPermit {
    /// Sets the connection's phase.
    pub fn enter(&self, phase: Phase) {
        let mut table = self.permits.table();
        let since = table.tick();
        if let Some(entry) = table.remove(self.id) {
            table.insert(self.id, Entry { phase, since, ..entry });
        }
    }

    /// Returns whether no request has arrived yet.
    pub fn is_silent(&self) -> bool {
        let table = self.permits.table();
        table
            .open
            .get(&self.id)
            .is_none_or(|entry| entry.phase == Phase::Silent)
    }

    /// Waits until the connection is evicted for another.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.permits.table().remove(self.id);
    }
}

/// Maps an address to that of a client: one client may own a whole IPv6 /64.
fn one_client(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn gone(permit: &ConnectionPermit) -> bool {
        permit.evicted.is_cancelled()
    }

    #[test]
    fn who_kept_the_server_waiting_for_longest_makes_room() {
        let permits = ConnectionPermits::new(4);
        let here = ip("127.0.0.1");
        let [answering, sending, idle, silent] = [(); 4].map(|()| permits.acquire(here).unwrap());
        answering.enter(Phase::Answering);
        sending.enter(Phase::Sending);
        idle.enter(Phase::Idle);
        for expected in [&silent, &idle, &sending] {
            assert!(!gone(expected));
            let new = permits.acquire(here).unwrap();
            assert!(gone(expected));
            new.enter(Phase::Answering);
            std::mem::forget(new);
        }
        assert!(permits.acquire(here).is_none(), "all are being answered");
        answering.enter(Phase::Idle);
        assert!(permits.acquire(here).is_some() && gone(&answering));
    }

    #[test]
    fn the_oldest_of_a_phase_goes_first_and_places_come_back() {
        let permits = ConnectionPermits::new(2);
        let here = ip("::1");
        let (first, second) = (permits.acquire(here).unwrap(), permits.acquire(here).unwrap());
        first.enter(Phase::Answering);
        first.enter(Phase::Idle);
        second.enter(Phase::Answering);
        second.enter(Phase::Idle);
        let third = permits.acquire(here).unwrap();
        assert!(gone(&first) && !gone(&second));
        drop((first, third));
        let fourth = permits.acquire(here).unwrap();
        assert!(!gone(&second), "there was room");
        drop((second, fourth));
        let table = permits.table();
        assert!(table.open.is_empty() && table.waiting.is_empty() && table.addresses.is_empty());
    }

    #[test]
    fn another_machine_gets_half_of_the_places() {
        for (crowd, other) in [
            ("10.0.0.1", "10.0.0.2"),
            ("::ffff:10.0.0.1", "127.0.0.1"),
            ("2001:db8::1", "2001:db8:0:1::1"),
        ] {
            let permits = ConnectionPermits::new(4);
            let mut crowd: Vec<_> = (0..2).map(|_| permits.acquire(ip(crowd)).unwrap()).collect();
            crowd.push(permits.acquire(one_client(crowd_address(&permits))).unwrap());
            assert!(gone(&crowd[0]) && !gone(&crowd[1]), "its own oldest goes");
            crowd.iter().for_each(|permit| permit.enter(Phase::Answering));
            assert!(permits.acquire(crowd_address(&permits)).is_none(), "it has its share");
            let others: Vec<_> = (0..2).map(|_| permits.acquire(ip(other)).unwrap()).collect();
            assert!(others.iter().chain(&crowd[1..]).all(|permit| !gone(permit)));
        }
        assert_eq!(one_client(ip("2001:db8::1")), one_client(ip("2001:db8::ffff:2")));
        assert_ne!(one_client(ip("10.0.0.1")), one_client(ip("10.0.0.2")));
    }

    fn crowd_address(permits: &ConnectionPermits) -> IpAddr {
        *permits.table().addresses.keys().next().unwrap()
    }
}
