//! A store that is about to be opened: the options that every store has, its opening, and whether it may be used by itself.

use std::fmt;
use std::iter;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::StoreOptions;
use fencelock_core::layers::{Breaker, Prefix};
use fencelock_core::support::Backoff;
use fencelock_core::{ConfigPart, Engine, Error, LockName, Result, StoreUrl};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::wrong_server::Expected;

/// For how long opening is retried if the store has no `connect-timeout`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The first and the longest pause between two attempts to open a store.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// If an attempt takes longer, the server may be of another kind.
const LONG: Duration = Duration::from_millis(500);

/// A store whose common options were read, and which may be opened again and again.
pub(crate) struct ToOpen {
    options: Box<dyn StoreOptions>,
    prefix: Option<String>,
    /// For how long opening is tried again.
    most: Duration,
    /// Whether a store that belongs to a set may be opened by itself.
    outside_set: bool,
    /// Whether requests fail at once while it is away.
    breaker: bool,
    shown: String,
    /// The kind of server that should be at its addresses.
    expected: Option<Expected>,
}

impl ToOpen {
    pub(crate) fn new(mut options: Box<dyn StoreOptions>) -> Result<Self> {
        let url = options.url();
        let prefix = url.take("prefix");
        if let Some(Err(Error::Invalid { input, why, .. })) = prefix.as_deref().map(LockName::new) {
            return Err(url.refuse(format!("prefix {input:?}: {why}")));
        }
        let outside_set = url.take_choice("outside-set", &[("no", false), ("yes", true)])?;
        let breaker = url.take_choice("breaker", &[("no", false), ("yes", true)])?;
        let most = url.clone().take_duration("connect-timeout")?;
        Ok(Self {
            prefix,
            most: most.unwrap_or(CONNECT_TIMEOUT),
            outside_set,
            breaker,
            shown: url.to_string(),
            expected: Expected::new(url),
            options,
        })
    }

    /// Opens it as a store of its own, again and again while it does not answer.
    pub(crate) async fn open(mut self, patience: Option<Duration>) -> Result<Arc<dyn Engine>> {
        let most = patience.map_or(self.most, |patience| patience.min(self.most));
        let engine = self.patiently(most).await?;
        let own = self.prefix.clone().unwrap_or_default();
        let why = "it belongs to a set of stores (docs/composite.md): open the set, shards:?… or migrate:?…; or use it by itself with outside-set=yes";
        self.refuse_records(&*engine, scopes(&own), is_of_set, why)
            .await?;
        self.prefixed(engine)
    }

    /// Opens it as the place of another store's record, with one attempt.
    #[cfg(feature = "composite")]
    pub(crate) async fn open_once(&self) -> Result<Arc<dyn Engine>> {
        self.prefixed(self.attempt().await?)
    }

    /// Opens it as a store of a set, with one attempt.
    #[cfg(feature = "composite")]
    pub(crate) async fn open_in_set(&mut self) -> Result<Arc<dyn Engine>> {
        let engine = self.attempt().await?;
        let own = self.prefix.clone().unwrap_or_default();
        // The set reads the record of the store's own scope.
        let shorter = scopes(&own).filter(|scope| *scope != own);
        let why = "it belongs to a set of stores with a shorter prefix or none (docs/composite.md), so two sets would have the same locks: use another prefix; or open it all the same with outside-set=yes in the URL of this store";
        self.refuse_records(&*engine, shorter, fencelock_composite::uses_store, why)
            .await?;
        self.prefixed(engine)
    }

    /// Refuses the store if its record in one of these scopes is one of these, unless it is opened to be inspected, or beside a
    /// set on purpose. This costs one request for each scope.
    async fn refuse_records<'a>(
        &mut self,
        engine: &dyn Engine,
        scopes: impl Iterator<Item = &'a str>,
        is_refused: fn(&str) -> bool,
        why: &str,
    ) -> Result<()> {
        if self.outside_set || self.options.url().inspect_only || !engine.promises().record {
            return Ok(());
        }
        for scope in scopes {
            refuse_record(engine, scope, is_refused, why).await?;
        }
        Ok(())
    }

    /// Opens the engine, again and again while the store does not answer and the time is not over.
    async fn patiently(&self, most: Duration) -> Result<Arc<dyn Engine>> {
        let until = Instant::now() + most;
        let mut pauses = Backoff::new(PAUSES.0, PAUSES.1);
        // Only the engine limits the time of the first attempt.
        let mut last = match self.attempt().await {
            Err(error @ Error::Unavailable { .. }) => error,
            opened => return opened,
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left < PAUSES.0 {
                break;
            }
            // Near the end the pauses are shorter, so that the whole time is used.
            sleep(pauses.next_pause().min(left / 2)).await;
            match timeout_at(until, self.options.open()).await {
                Ok(Err(error @ Error::Unavailable { .. })) => last = error,
                Ok(opened) => return opened,
                // The last error says more than a timeout would.
                Err(_) => break,
            }
        }
        Err(last)
    }

    /// Opens the engine once. If that fails or takes long, it looks once whether another kind of server is there.
    async fn attempt(&self) -> Result<Arc<dyn Engine>> {
        let mut open = self.options.open();
        let Some(expected) = &self.expected else {
            return open.await;
        };
        let begun = Instant::now();
        // This look takes no longer than opening may be retried.
        let look = || async {
            timeout(self.most, expected.refuse_other())
                .await
                .ok()
                .flatten()
        };
        let mut other = pin!(async {
            sleep(LONG).await;
            look().await
        });
        let mut looked = false;
        let opened = loop {
            tokio::select! {
                biased;
                opened = &mut open => break opened,
                other = &mut other, if !looked => match other {
                    Some(error) => return Err(error),
                    None => looked = true,
                },
            }
        };
        let error = match opened {
            // A server that refuses this user is the right one.
            Ok(_) | Err(Error::Refused { .. }) => return opened,
            Err(error) if looked => return Err(error),
            Err(error) => error,
        };
        let other = match begun.elapsed() < LONG {
            true => look().await,
            false => other.await,
        };
        Err(other.unwrap_or(error))
    }

    /// Reads the options and sends nothing.
    pub(crate) fn check(&self) -> Result<()> {
        self.options.check()
    }

    pub(crate) fn url(&mut self) -> &mut StoreUrl {
        self.options.url()
    }

    fn prefixed(&self, engine: Arc<dyn Engine>) -> Result<Arc<dyn Engine>> {
        let engine: Arc<dyn Engine> = match self.breaker {
            true => Arc::new(Breaker::new(engine)),
            false => engine,
        };
        Ok(match &self.prefix {
            Some(prefix) => Arc::new(Prefix::new(engine, prefix)?),
            None => engine,
        })
    }
}

/// The scopes in which the record of a set concerns names with this prefix: that of the whole store, those of shorter prefixes, as
/// far as they end with a separator, and that of the prefix itself.
fn scopes(prefix: &str) -> impl Iterator<Item = &str> {
    let separators = prefix.char_indices().filter(|(_, c)| !c.is_alphanumeric());
    let shorter = separators.map(|(at, c)| &prefix[..at + c.len_utf8()]);
    let shorter = shorter.filter(move |scope| *scope != prefix);
    let own = (!prefix.is_empty()).then_some(prefix);
    iter::once("").chain(shorter).chain(own)
}

/// Refuses a store if its record in this scope is one of these.
async fn refuse_record(
    engine: &dyn Engine,
    scope: &str,
    is_refused: fn(&str) -> bool,
    why: &str,
) -> Result<()> {
    let found = match engine.record(scope, None).await {
        Ok(found) if found.text.is_empty() || !is_refused(&found.text) => return Ok(()),
        Ok(_) => Error::config(engine, ConfigPart::Record, why),
        // If this user may not read the record, the store is used without this check.
        Err(Error::Refused { .. } | Error::Unsupported { .. }) => return Ok(()),
        Err(error) => error,
    };
    let _ = engine.close().await;
    Err(found)
}

/// Whether the store belongs to a set, so that a program that opens it alone would not exclude the set's programs.
fn is_of_set(record: &str) -> bool {
    #[cfg(feature = "composite")]
    return !fencelock_composite::may_stand_alone(record);
    // Within a JSON text a quotation mark has a backslash before it, so no name looks like this.
    #[cfg(not(feature = "composite"))]
    return !record.contains(r#""kind":"dissolved""#);
}

impl fmt::Display for ToOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_prefix_is_in_the_scopes_of_shorter_ones() {
        let scopes = |prefix| super::scopes(prefix).collect::<Vec<_>>();
        assert_eq!(scopes(""), [""]);
        assert_eq!(scopes("p/"), ["", "p/"]);
        assert_eq!(scopes("ä-b/c"), ["", "ä-", "ä-b/", "ä-b/c"]);
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn typed_options_of_every_store_are_read() {
        let plain = fencelock_sqlite::Options::new("/tmp/locks.db");
        let set = plain.clone().prefix("a/").breaker(true).outside_set(true);
        let read = |options: fencelock_sqlite::Options| {
            let read = super::ToOpen::new(Box::new(options)).unwrap();
            read.check().unwrap();
            (read.prefix, read.breaker, read.outside_set)
        };
        assert_eq!(read(set), (Some("a/".to_owned()), true, true));
        assert_eq!(read(plain.clone()), (None, false, false));
        assert_eq!(read(plain.breaker(false)), (None, false, false));
    }
}
