//! The record of a store that keeps none, in another store.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::engine::{Record, RecordChange};
use fencelock_core::layers::Layer;
use fencelock_core::{ConfigPart, Engine, Error, Finding, Promises, Result};

use crate::open::of_shard;

/// The longest scope of a record that all stores take, in bytes.
const MAX_SCOPE_BYTES: usize = 512;

/// A store that keeps no record, such as Redlock, with a record in another store: so it can be a shard of a set.
///
/// The record is found by the store's address, its hosts in the order of the alphabet. So two stores may have their records in
/// one other store, and who names other servers finds no record. Locks do not need the other store; opening the set does.
///
/// ```
/// # use std::fmt;
/// # use std::sync::Arc;
/// # use fencelock_core::layers::Layer;
/// # use fencelock_core::*;
/// use fencelock_composite::{RecordIn, Routed};
///
/// # #[derive(Debug)]
/// # struct Without(Memory, Promises);
/// # impl Layer for Without {
/// #     fn below(&self) -> &dyn Engine { &self.0 }
/// #     fn promises(&self) -> &Promises { &self.1 }
/// # }
/// # impl fmt::Display for Without {
/// #     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("redlock://h1,h2,h3") }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let promises = Memory::new().promises().clone().record(false);
/// # let (redlock, other) = (Arc::new(Without(Memory::new(), promises)), Arc::new(Memory::new()));
/// let shard: Arc<dyn Engine> = Arc::new(RecordIn::new(redlock, other)?);
/// # let again = shard.clone();
/// Routed::shards([("a", shard)]).set("orders").init().await?;
/// # assert!(again.record("", None).await?.text.contains("orders"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RecordIn {
    engine: Arc<dyn Engine>,
    other: Arc<dyn Engine>,
    /// The store's address, before the scope of each record.
    address: String,
    promises: Promises,
}

impl RecordIn {
    /// The store `engine`, with its record in `other`. Neither may be used beside it.
    ///
    /// # Errors
    /// [`Error::Config`] if the one store keeps a record itself, or the other keeps none.
    pub fn new(engine: Arc<dyn Engine>, other: Arc<dyn Engine>) -> Result<Self> {
        if engine.promises().record {
            let why = "it keeps its record itself; leave record= out";
            return Err(Error::config(&engine, ConfigPart::Record, why));
        }
        if !other.promises().record {
            let why = format!(
                "it keeps no record, so it cannot keep that of {engine}; name another with record="
            );
            return Err(Error::config(&other, ConfigPart::Record, why));
        }
        Ok(Self {
            address: in_order(&engine.to_string()),
            promises: engine.promises().clone().record(true).record_apart(true),
            engine,
            other,
        })
    }
}

/// The address of a store with its hosts in the order of the alphabet.
fn in_order(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut hosts: Vec<&str> = hosts.split(',').collect();
    hosts.sort_unstable();
    format!("{scheme}://{}/{path}", hosts.join(","))
}

#[async_trait]
impl Layer for RecordIn {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        // No prefix of names has a line break.
        let scope = format!("{}\n{scope}", self.address);
        if scope.len() > MAX_SCOPE_BYTES {
            let why = format!(
                "its hosts and its prefix are longer than the {MAX_SCOPE_BYTES} bytes by which another store finds its record; use shorter ones"
            );
            return Err(Error::config(self, ConfigPart::Record, why));
        }
        self.other.record(&scope, change).await
    }

    async fn close(&self) -> Result<()> {
        let closed = self.engine.close().await;
        self.other.close().await.and(closed)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let mut findings = self.engine.inspect().diagnose().await?;
        let other = self.other.inspect().diagnose().await?;
        findings.extend(other.iter().map(|finding| of_shard("record", finding)));
        Ok(findings)
    }
}

impl fmt::Display for RecordIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.engine, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_hosts_makes_no_other_store() {
        let address = "redlock://a:1,b:2,c:3/0";
        assert_eq!(in_order(address), address);
        assert_eq!(in_order("redlock://c:3,a:1,b:2/0"), address);
        for other in [
            "redlock://a:1,b:2,c:4/0",
            "redlock://a:1,b:2,c:3/1",
            "redlocks://a:1,b:2,c:3/0",
        ] {
            assert_ne!(in_order(other), address);
        }
    }
}
