//! Times and bounds of a store, from its options.

use std::num::NonZeroUsize;
use std::time::Duration;

use fencelock_core::{Result, StoreUrl};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The most connections: as many as a semaphore can count.
const MAX_CONNECTIONS: usize = usize::MAX >> 3;

/// Times and bounds of a store.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long the first connection may take.
    pub connect_timeout: Duration,
    /// How long each call waits for an answer, and how long each later connection may take.
    pub response_timeout: Duration,
    /// The most connections at once; for a connection-bound store, the most that hold or wait, besides the control connection.
    pub connections: NonZeroUsize,
}

impl Settings {
    /// Settings for leases, which share a few connections and keep one of them for renewals.
    ///
    /// # Errors
    /// [`Error::Config`](fencelock_core::Error::Config) for a value that cannot be used.
    pub fn of_leases(url: &mut StoreUrl) -> Result<Self> {
        Self::take(url, 8, 2)
    }

    /// Settings for connection-bound locks, which need a connection per claim.
    ///
    /// # Errors
    /// [`Error::Config`](fencelock_core::Error::Config) for a value that cannot be used.
    pub fn of_connections(url: &mut StoreUrl) -> Result<Self> {
        Self::take(url, 32, 1)
    }

    fn take(url: &mut StoreUrl, default: u64, least: usize) -> Result<Self> {
        let connections = url.take_number("max-connections")?.unwrap_or(default);
        let connections = usize::try_from(connections).unwrap_or(MAX_CONNECTIONS);
        let connections = NonZeroUsize::new(connections.min(MAX_CONNECTIONS));
        let Some(connections) = connections.filter(|count| count.get() >= least) else {
            return Err(url.refuse(format!("max-connections must be at least {least}")));
        };
        Ok(Self {
            connect_timeout: url.take_timeout("connect-timeout", CONNECT_TIMEOUT)?,
            response_timeout: url.take_timeout("response-timeout", RESPONSE_TIMEOUT)?,
            connections,
        })
    }
}
