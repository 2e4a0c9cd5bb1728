//! Which connections are open, and which of them must make room for a new one.
//!
//! When all places are taken, a newcomer takes that of the connection which has kept the server waiting for longest: one
//! that never sent a request, or else one between two requests, or else one that is sending a body. A connection whose
//! request is being answered is never given up.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// What a connection is doing. The first of these makes room first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It has not sent a request yet.
    Silent,
    /// It is between two requests.
    Idle,
    /// It is sending the body of a request.
    Sending,
    /// Its request is being answered.
    Answering,
}

/// Places for connections.
#[derive(Debug)]
pub struct Places {
    /// Of all connections.
    limit: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Counts everything that happens, so that a smaller number is earlier.
    clock: u64,
    open: HashMap<u64, Entry>,
    /// Those that may have to make room: phase, since when, which.
    waiting: BTreeSet<(Phase, u64, u64)>,
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    phase: Phase,
    since: u64,
    displaced: CancellationToken,
}

#[derive(Debug, Default)]
struct Address {
    open: usize,
    waiting: BTreeSet<(Phase, u64, u64)>,
}

impl Places {
    /// Places for `limit` connections.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            table: Mutex::default(),
        })
    }

    /// A place for a connection from `peer`; `None` if all are taken by requests that are being answered. Another
    /// machine gets half of the places; those who share this one's loopback address, behind tunnels and proxies, may be
    /// many.
    pub fn take(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
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
            Some((_, _, id)) => table.remove(id)?.displaced.cancel(),
            None if table.open.len() >= self.limit || of_address.is_some_and(|known| known.open >= share) => {
                return None;
            }
            None => {}
        }
        let id = table.tick();
        let displaced = CancellationToken::new();
        let entry = Entry {
            address,
            phase: Phase::Silent,
            since: id,
            displaced: displaced.clone(),
        };
        table.insert(id, entry);
        drop(table);
        Some(Place {
            places: Arc::clone(self),
            id,
            displaced,
        })
    }

    /// A panic leaves the table consistent: nothing in it can panic between two of its changes.
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

/// A connection's place, free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    id: u64,
    displaced: CancellationToken,
}

impl Place {
    /// Notes what the connection is doing from now on.
    pub fn enter(&self, phase: Phase) {
        let mut table = self.places.table();
        let since = table.tick();
        if let Some(entry) = table.remove(self.id) {
            table.insert(self.id, Entry { phase, since, ..entry });
        }
    }

    /// Whether no request has come yet.
    pub fn is_silent(&self) -> bool {
        let table = self.places.table();
        table
            .open
            .get(&self.id)
            .is_none_or(|entry| entry.phase == Phase::Silent)
    }

    /// Waits until another connection has taken the place.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().remove(self.id);
    }
}

/// The addresses that one client has as many of as it likes count as one: a /64 of IPv6.
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

    fn gone(place: &Place) -> bool {
        place.displaced.is_cancelled()
    }

    #[test]
    fn who_kept_the_server_waiting_for_longest_makes_room() {
        let places = Places::new(4);
        let here = ip("127.0.0.1");
        let [answering, sending, idle, silent] = [(); 4].map(|()| places.take(here).unwrap());
        answering.enter(Phase::Answering);
        sending.enter(Phase::Sending);
        idle.enter(Phase::Idle);
        for expected in [&silent, &idle, &sending] {
            assert!(!gone(expected));
            let newcomer = places.take(here).unwrap();
            assert!(gone(expected));
            newcomer.enter(Phase::Answering);
            std::mem::forget(newcomer);
        }
        assert!(places.take(here).is_none(), "all are being answered");
        answering.enter(Phase::Idle);
        assert!(places.take(here).is_some() && gone(&answering));
    }

    #[test]
    fn the_oldest_of_a_phase_goes_first_and_places_come_back() {
        let places = Places::new(2);
        let here = ip("::1");
        let (first, second) = (places.take(here).unwrap(), places.take(here).unwrap());
        first.enter(Phase::Answering);
        first.enter(Phase::Idle);
        second.enter(Phase::Answering);
        second.enter(Phase::Idle);
        let third = places.take(here).unwrap();
        assert!(gone(&first) && !gone(&second));
        drop((first, third));
        let fourth = places.take(here).unwrap();
        assert!(!gone(&second), "there was room");
        drop((second, fourth));
        let table = places.table();
        assert!(table.open.is_empty() && table.waiting.is_empty() && table.addresses.is_empty());
    }

    #[test]
    fn another_machine_gets_half_of_the_places() {
        for (crowd, other) in [
            ("10.0.0.1", "10.0.0.2"),
            ("::ffff:10.0.0.1", "127.0.0.1"),
            ("2001:db8::1", "2001:db8:0:1::1"),
        ] {
            let places = Places::new(4);
            let mut crowd: Vec<_> = (0..2).map(|_| places.take(ip(crowd)).unwrap()).collect();
            crowd.push(places.take(one_client(crowd_address(&places))).unwrap());
            assert!(gone(&crowd[0]) && !gone(&crowd[1]), "its own oldest goes");
            crowd.iter().for_each(|place| place.enter(Phase::Answering));
            assert!(places.take(crowd_address(&places)).is_none(), "it has its share");
            let others: Vec<_> = (0..2).map(|_| places.take(ip(other)).unwrap()).collect();
            assert!(others.iter().chain(&crowd[1..]).all(|place| !gone(place)));
        }
        assert_eq!(one_client(ip("2001:db8::1")), one_client(ip("2001:db8::ffff:2")));
        assert_ne!(one_client(ip("10.0.0.1")), one_client(ip("10.0.0.2")));
    }

    fn crowd_address(places: &Places) -> IpAddr {
        *places.table().addresses.keys().next().unwrap()
    }
}
