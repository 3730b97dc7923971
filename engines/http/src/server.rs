//! What a replica says about the store behind it, and whether two replicas serve the same store.

use std::time::Duration;

use fencelock_core::engine::{Durability, Finding, LeaseKind, Order, Promises, Purpose, Wake};
use fencelock_core::{ConfigPart, Error, Result};
use fencelock_wire::{BATCH, Binding, PLACE, SHORTEN, Store, WITHOUT};

use crate::choices::Identity;
use crate::config::Config;

const CLOCK: &str = "as the store behind the service says of itself; the clocks of that store and of this client run at about the \
                     same rate";

/// The feature of a service that reports losses as they happen.
const EVENTS: &str = "events";

/// What all replicas must have in common.
#[derive(Clone, Debug)]
pub(crate) struct ServerInfo {
    said: Store,
    identity: Identity,
}

impl ServerInfo {
    /// Made from the first replica's answer.
    pub(crate) fn new(config: &Config, said: Store) -> Result<Self> {
        let refuse = |why: String| Err(Error::config(&config.store, ConfigPart::Server, why));
        if said.claim_window_ms == 0 || said.poll_ms == 0 {
            return refuse("it says that its claim window is 0".to_owned());
        }
        let identity = config.identity;
        Ok(Self { said, identity })
    }

    /// Why another replica's answer is not about the same store. `None` if it is.
    pub(crate) fn differs(&self, other: &Store) -> Option<String> {
        let (mine, by_url) = (&self.said, self.identity == Identity::Url);
        if mine.engine != other.engine || (by_url && mine.store != other.store) {
            return Some(format!(
                "it serves the store {} ({}), and another replica serves {} ({}); a lock that is taken in two stores is no lock. \
                 If it is one store by two names, use same-store=confirmed",
                other.store, other.engine, mine.store, mine.engine
            ));
        }
        let shape = |store: &Store| {
            (
                store.binding,
                store.claim_window_ms,
                // The longest lease is a limit, which the operator of a service may change.
                store.min_ttl_ms,
                (store.shared, store.permits, store.lock_delay),
            )
        };
        (shape(mine) != shape(other)).then(|| {
            format!(
                "it opened {} with other options than another replica did; start all replicas with the same",
                other.store
            )
        })
    }

    /// Whether a claim belongs to the replica that took it.
    pub(crate) fn is_bound(&self) -> bool {
        self.said.binding == Binding::Replica
    }

    /// The duration of a first grant, and of a place in the queue.
    pub(crate) fn window(&self) -> Duration {
        Duration::from_millis(self.said.claim_window_ms)
    }

    /// How long a request may wait.
    pub(crate) fn poll(&self) -> Duration {
        Duration::from_millis(self.said.poll_ms)
    }

    /// Notes another replica. A replica of another version may have fewer features, and serves the same claims.
    pub(crate) fn is_served_by(&mut self, other: &Store) {
        let features = &mut self.said.features;
        features.retain(|feature| other.features.contains(feature));
    }

    fn has(&self, feature: &str) -> bool {
        self.said.features.iter().any(|known| known == feature)
    }

    /// Whether the service reports losses as they happen.
    pub(crate) fn tells_events(&self) -> bool {
        self.has(EVENTS)
    }

    /// Whether a stream of events may leave out some of them.
    pub(crate) fn takes_without(&self) -> bool {
        self.has(WITHOUT)
    }

    /// Whether the service accepts several requests in one.
    pub(crate) fn takes_batches(&self) -> bool {
        self.has(BATCH)
    }

    /// Whether the service reports a claim's place at once, and the result on a second line.
    pub(crate) fn tells_place(&self) -> bool {
        self.has(PLACE)
    }

    /// Whether a renewal shortens a lease only if it says so. Otherwise each renewal sets the lease that it asks for.
    pub(crate) fn keeps_leases(&self) -> bool {
        self.has(SHORTEN)
    }

    pub(crate) fn promises(&self, config: &Config) -> Promises {
        let said = &self.said;
        let mut limits: Vec<Finding> = said.limits.iter().cloned().map(Finding::from).collect();
        if let Some(replica) = &config.open_to_readers {
            limits.push(Finding::against_correctness(
                format!(
                    "{replica} is another machine, and the connection is not encrypted: an attacker on the network can read the claim key and end every lock of this client"
                ),
                "use fencelock+https://, with tls-ca=FILE for an authority of your own",
            ));
        }
        if self.is_bound() {
            limits.push(Finding::new(
                Purpose::Efficiency,
                format!(
                    "a claim on {} belongs to the replica of the service that took it: when that ends, a lock is lost at the end \
                     of its lease, and a waiter goes to the end of the queue",
                    said.store
                ),
                "stop replicas with SIGTERM: they first ask holders for their locks",
            ));
        }
        let millis = Duration::from_millis;
        Promises::new("http", CLOCK)
            .order(match said.order.as_str() {
                "fifo" => Order::Fifo,
                _ => Order::Unordered,
            })
            .shared(said.shared)
            .permits(said.permits)
            .lock_delay(said.lock_delay)
            .portable(!self.is_bound())
            .lease(match self.is_bound() {
                true => LeaseKind::Session,
                false => LeaseKind::Lease,
            })
            .wake(match said.wake.as_str() {
                "push" => Wake::Push,
                _ => Wake::Poll,
            })
            .durability(match said.durability.as_str() {
                "durable" => Durability::Durable,
                "process" => Durability::Process,
                _ => Durability::Volatile,
            })
            .min_ttl(millis(said.min_ttl_ms))
            .max_ttl(millis(said.max_ttl_ms))
            .claim_window(self.window())
            .limits(limits)
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::StoreUrl;
    use serde_json::{Value, json};

    use super::*;

    fn said(features: Value) -> Store {
        let said = json!({
            "engine": "redis", "store": "redis://h", "binding": "store", "claim_window_ms": 2000, "poll_ms": 1000,
            "order": "fifo", "shared": true, "permits": true, "lock_delay": true, "lease": "lease", "wake": "push",
            "durability": "process", "clock": "", "min_ttl_ms": 100, "max_ttl_ms": 1000, "limits": [], "version": "",
            "features": features, "replica": "0123456789abcdef", "advertise": null,
        });
        serde_json::from_value(said).unwrap()
    }

    #[test]
    fn only_features_of_all_replicas_are_used() {
        let url = StoreUrl::parse("fencelock+http://h,i").unwrap();
        let config = Config::new(url.into()).unwrap();
        let new = said(json!(["batch", "events", "place", "shorten", "without"]));
        let mut info = ServerInfo::new(&config, new.clone()).unwrap();
        info.is_served_by(&new);
        assert!(info.takes_batches() && info.tells_place() && info.takes_without());
        assert!(info.keeps_leases());
        info.is_served_by(&said(json!(["batch", "events", "other"])));
        assert!(info.takes_batches() && info.tells_events());
        assert!(!info.tells_place() && !info.takes_without() && !info.keeps_leases());
    }
}
