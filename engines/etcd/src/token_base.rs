//! The token base: the number from which tokens are counted.
//!
//! A token is the create revision of the claim's key times 16, plus the base, which is stored at `fencelock/base`. When a
//! snapshot is restored, revisions go back, and the stored base with them. Therefore each client raises the base over each of
//! its connections, before its first claim there. After that the next token is at least the time in microseconds. Tokens never
//! run far ahead of the time, so the tokens after a restore are above those from before it.
//!
//! The driver reconnects silently, so each connection has a watch whose end shows that it broke.
//!
//! The transaction that puts a claim compares the base. The reply gives a client with an old base the new one. The base is only
//! ever raised.

use std::sync::atomic::{AtomicU64, Ordering};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, ConfigPart, Error, Result, Token};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::layout::{BASE, Layout};
use crate::single_flight::SingleFlight;
use crate::stored::TOKENS_PER_REVISION;

/// How far the next token may be below the time, in microseconds. Every restore takes longer. And clients that start together
/// do not each raise the base, one after the other.
const TOLERANCE: u64 = 100_000;

/// For how long the base is trusted over a connection whose end is not watched. Raising the base makes the claims that are
/// under way fail, so this is longer than a claim takes on a busy machine.
const UNGUARDED: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct TokenBase {
    known: Mutex<Option<Known>>,
    raising: SingleFlight,
    /// The highest token that this client has seen.
    highest: AtomicU64,
    /// The highest floor of a claim.
    floor: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    base: u64,
    /// The floor above which it was raised.
    floor: u64,
    /// The connection over which it was raised.
    connection: u64,
    raised_at: BootInstant,
}

/// The state that a claim must come after, to be trusted. See [`TokenBase::before_claim`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeforeClaim {
    /// The connection over which the base was raised. `None` in Go's layout.
    pub(crate) connection: Option<u64>,
    /// The highest revision that was seen.
    pub(crate) revision: i64,
}

impl TokenBase {
    /// The base, if this client may rely on it over this connection.
    fn trusted(&self, connection: &Connection) -> Option<u64> {
        let known = (*self.known.lock()).filter(|known| known.connection == connection.number)?;
        let fresh = || Clock::Boot.now() < known.raised_at + UNGUARDED;
        let above = known.floor >= self.floor.load(Ordering::SeqCst);
        (above && (connection.is_guarded() || fresh())).then_some(known.base)
    }

    pub(crate) fn note_token(&self, token: Token) {
        self.highest.fetch_max(token.get(), Ordering::SeqCst);
    }

    /// From now on claims are sent with a base that puts their tokens above this floor.
    pub(crate) fn accept_above(&self, floor: Token) {
        // A base that was not raised above the floor is no longer trusted.
        self.floor.fetch_max(floor.get(), Ordering::SeqCst);
    }

    /// The state that a claim must come after if it is sent with the known base.
    pub(crate) fn before_claim(&self, cluster: &Cluster) -> BeforeClaim {
        let known = *self.known.lock();
        BeforeClaim {
            connection: known.map(|known| known.connection),
            revision: cluster.seen(),
        }
    }

    pub(crate) fn number(&self) -> Option<u64> {
        (*self.known.lock()).map(|known| known.base)
    }

    /// Forgets the base: it may be wrong.
    pub(crate) fn forget(&self) {
        *self.known.lock() = None;
    }

    /// Notes another base that a request found. Returns whether it differs from the one with which the request was sent.
    pub(crate) fn has_changed(&self, used: Option<u64>, found: Option<u64>) -> bool {
        let Some(used) = used.filter(|_| used != found) else {
            return false;
        };
        let mut known = self.known.lock();
        *known = match (*known, found) {
            // Another client has raised it.
            (Some(known), Some(found)) if found > used => Some(Known {
                base: found,
                ..known
            }),
            _ => None,
        };
        true
    }

    /// The base, raised over the current connection. `None` in Go's layout.
    pub(crate) async fn current(&self, cluster: &Cluster) -> Result<Option<u64>> {
        if cluster.config.layout == Layout::Concurrency {
            return Ok(None);
        }
        let connection = cluster.connection().await?;
        if let Some(base) = self.trusted(&connection) {
            return Ok(Some(base));
        }
        let limit = cluster.config.response_timeout;
        let raising = self.raising.begin(limit).await;
        let mut raising = raising.ok_or_else(|| cluster.no_answer(READING, limit))?;
        let connection = cluster.connection().await?;
        if let Some(base) = self.trusted(&connection) {
            return Ok(Some(base));
        }
        raising.inherit(&cluster.config.store)?;
        let raised = self.raise_over(cluster, &connection).await;
        raised.inspect_err(|error| raising.fail(error)).map(Some)
    }

    async fn raise_over(&self, cluster: &Cluster, connection: &Connection) -> Result<u64> {
        self.forget();
        if !connection.is_guarded() {
            connection.guard(cluster.config.response_timeout).await;
        }
        loop {
            let raised_at = Clock::Boot.now();
            let floor = self.floor.load(Ordering::SeqCst);
            if let Some(base) = self.raise(cluster, floor).await? {
                *self.known.lock() = Some(Known {
                    base,
                    floor,
                    connection: connection.number,
                    raised_at,
                });
                return Ok(base);
            }
        }
    }

    /// Raises the base if necessary. `None` if another client changed it meanwhile.
    async fn raise(&self, cluster: &Cluster, floor: u64) -> Result<Option<u64>> {
        let got = cluster
            .get(|| READING.into(), BASE.as_bytes(), GetOptions::new())
            .await?;
        let stored = match got.kvs().first() {
            Some(kv) => Some(number_in(kv).ok_or_else(|| {
                let why = format!(
                    "the key {BASE} is damaged, or a newer version of fencelock wrote it: it must hold a number; use that version"
                );
                Error::config(&cluster.config.store, ConfigPart::Server, why)
            })?),
            None => None,
        };
        let revision = got.header().map_or(0, |header| header.revision());
        let counted = (revision.unsigned_abs() + 1) * u64::from(TOKENS_PER_REVISION);
        let lowest = self.highest.load(Ordering::SeqCst).max(floor) + 1;
        let next = stored.map_or(0, |base| base + counted);
        if stored.is_some() && next >= now().saturating_sub(TOLERANCE).max(lowest) {
            return Ok(stored);
        }
        let base = now().max(lowest).saturating_sub(counted);
        let base = base.max(stored.unwrap_or(0));
        let unchanged = match stored {
            Some(stored) => Compare::value(BASE, CompareOp::Equal, stored.to_string()),
            None => Compare::create_revision(BASE, CompareOp::Equal, 0),
        };
        let raise =
            Txn::new()
                .when([unchanged])
                .and_then([TxnOp::put(BASE, base.to_string(), None)]);
        let raised = cluster
            .txn(|| "raising the token base".into(), raise)
            .await?;
        Ok(raised.succeeded().then_some(base))
    }
}

const READING: &str = "reading the token base";

/// The time in microseconds.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// The token base in a key's value. `None` if the value is not a number.
pub(crate) fn number_in(kv: &KeyValue) -> Option<u64> {
    kv.value_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_base_is_adopted_and_a_lower_one_is_not() {
        let base = TokenBase::default();
        let known = |base| {
            let raised_at = BootInstant::from_nanos(7);
            Some(Known {
                base,
                floor: 0,
                connection: 1,
                raised_at,
            })
        };
        *base.known.lock() = known(50);
        assert!(!base.has_changed(Some(50), Some(50)));
        assert!(!base.has_changed(None, Some(50)));
        assert!(base.has_changed(Some(50), Some(60)));
        assert_eq!(*base.known.lock(), known(60));
        for found in [Some(40), None] {
            *base.known.lock() = known(50);
            assert!(base.has_changed(Some(50), found));
            assert_eq!(*base.known.lock(), None);
        }
    }
}
