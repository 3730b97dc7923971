//! Counts the calls of an engine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;

use super::layer::Layer;
use crate::engine::{
    Claim, Cursor, Engine, Evict, Grant, HeldClaim, HolderView, Leave, LockView, Page, Place,
    Renewal, Standing, Withdrawn,
};
use crate::types::{LockName, Result, Token};

/// How often each call was made, since a [`Meter`] was made.
///
/// ```
/// # use fencelock_core::layers::{Counts, Meter};
/// fn requests_for_locks(meter: &Meter) -> u64 {
///     let counts: Counts = meter.counts();
///     counts.placed + counts.waited
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// `place`.
    pub placed: u64,
    /// `wait`.
    pub waited: u64,
    /// Calls of `renew`.
    pub renew_calls: u64,
    /// Claims in those calls.
    pub renewed: u64,
    /// `withdraw`.
    pub withdrawn: u64,
    /// `look`, `watch`, `attest` and `list`.
    pub looked: u64,
    /// `evict`.
    pub evicted: u64,
}

/// An engine that counts its calls.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # use fencelock_core::layers::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let meter = Arc::new(Meter::new(Arc::new(Memory::new())));
/// let client = Client::new(meter.clone())?;
/// client.lock("report").await?.release().await?;
/// assert_eq!((meter.counts().placed, meter.counts().withdrawn), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Meter {
    engine: Arc<dyn Engine>,
    placed: AtomicU64,
    waited: AtomicU64,
    renew_calls: AtomicU64,
    renewed: AtomicU64,
    withdrawn: AtomicU64,
    looked: AtomicU64,
    evicted: AtomicU64,
}

impl Meter {
    /// Counts the calls of `engine` from now on.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            engine,
            placed: zero(),
            waited: zero(),
            renew_calls: zero(),
            renewed: zero(),
            withdrawn: zero(),
            looked: zero(),
            evicted: zero(),
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        Counts {
            placed: self.placed.load(Relaxed),
            waited: self.waited.load(Relaxed),
            renew_calls: self.renew_calls.load(Relaxed),
            renewed: self.renewed.load(Relaxed),
            withdrawn: self.withdrawn.load(Relaxed),
            looked: self.looked.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
        }
    }
}

#[async_trait]
impl Layer for Meter {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.placed.fetch_add(1, Relaxed);
        self.engine.place(claim).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.waited.fetch_add(1, Relaxed);
        self.engine.wait(claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.renew_calls.fetch_add(1, Relaxed);
        self.renewed.fetch_add(held.len() as u64, Relaxed);
        self.engine.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.withdrawn.fetch_add(1, Relaxed);
        self.engine.withdraw(claim, how).await
    }

    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.looked.fetch_add(1, Relaxed);
        self.engine.inspect().look(name).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        self.looked.fetch_add(1, Relaxed);
        self.engine.inspect().watch(name, seen).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.looked.fetch_add(1, Relaxed);
        self.engine.inspect().list(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.evicted.fetch_add(1, Relaxed);
        self.engine.inspect().evict(name, token, how).await
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        self.looked.fetch_add(1, Relaxed);
        self.engine.inspect().attest(name, owner).await
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.engine, f)
    }
}
