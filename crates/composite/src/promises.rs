//! What a set promises: the weakest of its stores' promises. The record keeps them, so that a set can be opened while a shard
//! is away.

use std::time::Duration;

use fencelock_core::{Durability, Floor, LeaseKind, Order, Promises, Wake};
use serde::{Deserialize, Serialize};

use crate::times::Times;

const CLOCK: &str = "what each shard's store needs (see its page)";

/// Promises as they are stored in the record. The limits of a store are not among them, because they change with its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promised {
    order: String,
    shared: bool,
    permits: bool,
    lock_delay: bool,
    ranges: bool,
    portable: bool,
    #[serde(default = "no_floor")]
    floor: String,
    lease: String,
    wake: String,
    durability: String,
    min_ttl_ms: u64,
    max_ttl_ms: u64,
    claim_window_ms: u64,
}

// Each list goes from the weakest to the strongest.
const ORDERS: [Order; 2] = [Order::Unordered, Order::Fifo];
const FLOORS: [Floor; 3] = [Floor::Refused, Floor::Name, Floor::Store];
const LEASES: [LeaseKind; 3] = [LeaseKind::Connection, LeaseKind::Session, LeaseKind::Lease];
const WAKES: [Wake; 2] = [Wake::Poll, Wake::Push];
const DURABILITIES: [Durability; 3] = [
    Durability::Volatile,
    Durability::Process,
    Durability::Durable,
];

/// The promise of records that were written before floors existed.
fn no_floor() -> String {
    Floor::Refused.as_str().to_owned()
}

/// The index of a word in such a list. An unknown word counts as the weakest.
fn strength<T: Copy>(list: &[T], as_str: fn(T) -> &'static str, word: &str) -> usize {
    list.iter()
        .position(|known| as_str(*known) == word)
        .unwrap_or(0)
}

fn weaker<T: Copy>(list: &[T], as_str: fn(T) -> &'static str, one: &str, other: &str) -> String {
    let place = strength(list, as_str, one).min(strength(list, as_str, other));
    as_str(list[place]).to_owned()
}

impl Promised {
    /// The promises of one store.
    pub(crate) fn of(promises: &Promises) -> Self {
        Self {
            order: promises.order.as_str().to_owned(),
            shared: promises.shared,
            permits: promises.permits,
            lock_delay: promises.lock_delay,
            ranges: promises.ranges,
            portable: promises.portable,
            floor: promises.floor.as_str().to_owned(),
            lease: promises.lease.as_str().to_owned(),
            wake: promises.wake.as_str().to_owned(),
            durability: promises.durability.as_str().to_owned(),
            min_ttl_ms: millis(promises.min_ttl, true),
            max_ttl_ms: millis(promises.max_ttl, false),
            claim_window_ms: millis(promises.claim_window, false),
        }
    }

    /// What two stores promise together.
    pub(crate) fn and(&self, other: &Self) -> Self {
        Self {
            order: weaker(&ORDERS, Order::as_str, &self.order, &other.order),
            shared: self.shared && other.shared,
            permits: self.permits && other.permits,
            lock_delay: self.lock_delay && other.lock_delay,
            ranges: self.ranges && other.ranges,
            portable: self.portable && other.portable,
            floor: weaker(&FLOORS, Floor::as_str, &self.floor, &other.floor),
            lease: weaker(&LEASES, LeaseKind::as_str, &self.lease, &other.lease),
            wake: weaker(&WAKES, Wake::as_str, &self.wake, &other.wake),
            durability: weaker(
                &DURABILITIES,
                Durability::as_str,
                &self.durability,
                &other.durability,
            ),
            min_ttl_ms: self.min_ttl_ms.max(other.min_ttl_ms),
            max_ttl_ms: self.max_ttl_ms.min(other.max_ttl_ms),
            claim_window_ms: self.claim_window_ms.min(other.claim_window_ms),
        }
    }

    /// Which of these promises a store does not keep, in words for people. Only those on which the core relies. Empty if it
    /// keeps all.
    pub(crate) fn broken_by(&self, store: &Promises) -> Vec<&'static str> {
        let found = Self::of(store);
        let both = self.and(&found);
        let broken = [
            ("the order of waiters", both.order != self.order),
            ("shared mode", both.shared != self.shared),
            ("permits", both.permits != self.permits),
            ("a lock-delay", both.lock_delay != self.lock_delay),
            (
                "claims with which another process goes on",
                both.portable != self.portable,
            ),
            ("claims above a given token", both.floor != self.floor),
            ("holds that outlive a connection", both.lease != self.lease),
            ("such short leases", both.min_ttl_ms != self.min_ttl_ms),
            ("such long leases", both.max_ttl_ms != self.max_ttl_ms),
        ];
        let broken = broken.into_iter().filter(|(_, broken)| *broken);
        broken.map(|(what, _)| what).collect()
    }

    /// Whether a store promises less than this.
    pub(crate) fn is_more_than(&self, store: &Promises) -> bool {
        self.and(&Self::of(store)) != *self
    }

    /// These promises as the core's type, for an engine with this name.
    pub(crate) fn promises(&self, engine: &'static str) -> Promises {
        Promises::new(engine, CLOCK)
            .order(ORDERS[strength(&ORDERS, Order::as_str, &self.order)])
            .shared(self.shared)
            .permits(self.permits)
            .lock_delay(self.lock_delay)
            .ranges(self.ranges)
            .portable(self.portable)
            // Each store has its own counter, so the floor is one of names at best.
            .floor(FLOORS[strength(&FLOORS, Floor::as_str, &self.floor)].min(Floor::Name))
            .lease(LEASES[strength(&LEASES, LeaseKind::as_str, &self.lease)])
            .wake(WAKES[strength(&WAKES, Wake::as_str, &self.wake)])
            .durability(DURABILITIES[strength(&DURABILITIES, Durability::as_str, &self.durability)])
            .min_ttl(Duration::from_millis(self.min_ttl_ms))
            .max_ttl(Duration::from_millis(self.max_ttl_ms))
            .claim_window(Duration::from_millis(self.claim_window_ms))
    }
}

/// The promises of a set that moves.
pub(crate) fn of_moving(promised: &Promised, times: Times) -> Promises {
    let promises = promised.promises("migrate");
    let longest = promises.max_ttl.min(times.pace * 2 / 3);
    let lock_delay = promises.lock_delay && !times.lock_delay.is_zero();
    promises
        // Only the process of a claim knows its tokens in both stores.
        .portable(false)
        .lock_delay(lock_delay)
        .max_ttl(longest)
}

/// Whole milliseconds, rounded up or down.
fn millis(duration: Duration, up: bool) -> u64 {
    let nanos = duration.as_nanos();
    let millis = match up {
        true => nanos.div_ceil(1_000_000),
        false => nanos / 1_000_000,
    };
    u64::try_from(millis).unwrap_or(u64::MAX)
}
