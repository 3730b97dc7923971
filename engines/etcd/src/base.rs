//! From where tokens are counted.
//!
//! A token is a create revision times 16 on top of the number at `fencelock/base`. Revisions grow, until somebody restores a
//! snapshot: then they go back, and the number with them. So each client lifts the number over each of its connections,
//! before its first claim there, until the next token is the time in microseconds at least. No token is ever far ahead of
//! the time, so those after a restore are above all from before it.
//!
//! A connection that breaks and is made again by the driver would go unseen; so a watch is kept on each, whose end tells.
//!
//! A claim is put in a transaction that compares the number, so a client that knows an old one is told the new one. The
//! number is only ever raised.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use fencelock_core::{BootInstant, Clock, Error, Result, Token};

use crate::attempt::Attempts;
use crate::engine::Shared;
use crate::layout::{BASE, Layout};
use crate::link::{Link, Store};
use crate::value::TOKENS;

/// By how much in microseconds the next token may be behind the time: no restore takes less, and clients that come at the
/// same time need not lift the number one after the other.
const BEHIND: u64 = 100_000;

/// For how long the number is good over a connection whose end cannot be watched. Each lift has the claims fail that are
/// under way, so not for less than these take on a busy machine.
const UNGUARDED: Duration = Duration::from_secs(10);

/// What a client knows of the number.
#[derive(Debug, Default)]
pub(crate) struct Base {
    known: Mutex<Option<Known>>,
    lifting: Attempts,
    /// The highest token that this client has seen.
    highest: AtomicU64,
}

/// The number as it was found last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    base: u64,
    /// The connection over which it was lifted, and when.
    connection: u64,
    lifted: BootInstant,
}

impl Base {
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number, if it is as good as if it was lifted just now over this connection.
    fn sure(&self, link: &Link) -> Option<u64> {
        let known = (*self.known()).filter(|known| known.connection == link.number)?;
        let sure = link.is_guarded() || Clock::Boot.now() < known.lifted + UNGUARDED;
        sure.then_some(known.base)
    }

    /// A claim has this token.
    pub(crate) fn saw(&self, token: Token) {
        self.highest.fetch_max(token.get(), Ordering::SeqCst);
    }

    /// What a claim that goes by the known number has to come after: the connection over which that was lifted, and the
    /// highest revision that was seen. No connection in Go's layout.
    pub(crate) fn connection(&self, store: &Store) -> (Option<u64>, i64) {
        let known = *self.known();
        (known.map(|known| known.connection), store.seen())
    }

    /// The number that is known.
    pub(crate) fn number(&self) -> Option<u64> {
        (*self.known()).map(|known| known.base)
    }

    /// What was known may be wrong.
    pub(crate) fn forget(&self) {
        *self.known() = None;
    }

    /// Whether another number was found than the one that a request went by; notes it.
    pub(crate) fn has_moved(&self, used: Option<u64>, found: Option<u64>) -> bool {
        let Some(used) = used.filter(|_| used != found) else {
            return false;
        };
        let mut known = self.known();
        *known = match (*known, found) {
            // Another client has lifted it.
            (Some(known), Some(found)) if found > used => Some(Known {
                base: found,
                ..known
            }),
            _ => None,
        };
        true
    }
}

impl Shared {
    /// From where tokens are counted, after it was lifted over this connection. `None` in Go's layout.
    pub(crate) async fn base(&self) -> Result<Option<u64>> {
        if self.layout() == Layout::Concurrency {
            return Ok(None);
        }
        let link = self.store.link().await?;
        if let Some(base) = self.base.sure(&link) {
            return Ok(Some(base));
        }
        // One lifts it for all who come at once.
        let limit = self.store.config.response_timeout;
        let action = "reading from where tokens are counted";
        let lifting = self.base.lifting.begin(limit).await;
        let mut lifting = lifting.ok_or_else(|| self.store.silent(action, limit))?;
        let link = self.store.link().await?;
        if let Some(base) = self.base.sure(&link) {
            return Ok(Some(base));
        }
        lifting.inherit(&self.store.config.store)?;
        let lifted = self.lift_base_over(&link).await;
        lifted.inspect_err(|error| lifting.fail(error)).map(Some)
    }

    async fn lift_base_over(&self, link: &Arc<Link>) -> Result<u64> {
        self.base.forget();
        if !link.is_guarded() {
            link.guard(self.store.config.response_timeout).await;
        }
        loop {
            let lifted = Clock::Boot.now();
            if let Some(base) = self.lift_base().await? {
                *self.base.known() = Some(Known {
                    base,
                    connection: link.number,
                    lifted,
                });
                return Ok(base);
            }
        }
    }

    /// Lifts the number if it has to be; `None` if somebody else did so meanwhile.
    async fn lift_base(&self) -> Result<Option<u64>> {
        let action = || "reading from where tokens are counted".to_owned();
        let got = self.store.get(action, BASE, GetOptions::new()).await?;
        let stored = match got.kvs().first() {
            Some(kv) => Some(base_in(kv).ok_or_else(|| {
                let why = format!(
                    "the key {BASE} is damaged, or of a newer version; it must hold a number"
                );
                Error::config(&self.store.config.store, why)
            })?),
            None => None,
        };
        let revision = got.header().map_or(0, |header| header.revision());
        let counted = (revision.unsigned_abs() + 1) * u64::from(TOKENS);
        let above = self.base.highest.load(Ordering::SeqCst) + 1;
        let next = stored.map_or(0, |base| base + counted);
        if stored.is_some() && next >= now().saturating_sub(BEHIND).max(above) {
            return Ok(stored);
        }
        let base = now().max(above).saturating_sub(counted);
        let base = base.max(stored.unwrap_or(0));
        let same = match stored {
            Some(stored) => Compare::value(BASE, CompareOp::Equal, stored.to_string()),
            None => Compare::create_revision(BASE, CompareOp::Equal, 0),
        };
        let lift = Txn::new()
            .when([same])
            .and_then([TxnOp::put(BASE, base.to_string(), None)]);
        let action = || "setting from where tokens are counted".to_owned();
        let lifted = self.store.txn(action, lift).await?;
        Ok(lifted.succeeded().then_some(base))
    }
}

/// The time in microseconds.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// The number in the key from which tokens are counted, if it is one.
pub(crate) fn base_in(kv: &KeyValue) -> Option<u64> {
    kv.value_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_lifted_is_taken_over_and_one_that_went_back_is_not() {
        let base = Base::default();
        let known = |base| {
            let lifted = BootInstant::from_nanos(7);
            Some(Known {
                base,
                connection: 1,
                lifted,
            })
        };
        *base.known() = known(50);
        assert!(!base.has_moved(Some(50), Some(50)));
        assert!(!base.has_moved(None, Some(50)));
        assert!(base.has_moved(Some(50), Some(60)));
        assert_eq!(*base.known(), known(60));
        for found in [Some(40), None] {
            *base.known() = known(50);
            assert!(base.has_moved(Some(50), found));
            assert_eq!(*base.known(), None);
        }
    }
}
