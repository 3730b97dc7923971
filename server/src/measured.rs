//! The engine, with each call counted and timed for `/metrics`. The metrics have the same names as those of the library.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Evict, Finding, Grant, HeldClaim, HolderView, Leave, LockView, Page, Place,
    Renewal, Standing, Withdrawn,
};
use fencelock_core::layers::Layer;
use fencelock_core::{Engine, Error, LockName, Result, Token};
use tracing::Instrument;

use crate::metrics::Metrics;
use crate::spans;

/// Counts and times the calls of the engine below.
#[derive(Debug)]
pub(crate) struct Measured {
    engine: Arc<dyn Engine>,
    metrics: Arc<Metrics>,
}

impl Measured {
    pub(crate) fn new(engine: Arc<dyn Engine>, metrics: Arc<Metrics>) -> Self {
        Self { engine, metrics }
    }

    async fn of<T>(&self, name: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let mut counted = self.begin(name);
        let result = call.await;
        counted.outcome = result.as_ref().err().map_or("ok", Error::as_str);
        result
    }

    fn begin(&self, call: &'static str) -> Counted<'_> {
        Counted {
            measured: self,
            call,
            begun: Instant::now(),
            outcome: "cancelled",
        }
    }
}

/// A call under way. A waiting call is dropped when its request ends.
struct Counted<'a> {
    measured: &'a Measured,
    call: &'static str,
    begun: Instant,
    outcome: &'static str,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        // The time of a call that waits says nothing about the store.
        let timed = !matches!(self.call, "wait" | "watch");
        let took = timed.then(|| self.begun.elapsed());
        let engine = self.measured.engine.promises().engine;
        self.measured
            .metrics
            .store_call(engine, self.call, self.outcome, took);
    }
}

#[async_trait]
impl Layer for Measured {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let span = spans::place(&claim.id);
        let place = self.of("place", self.engine.place(claim));
        let standing = place.instrument(span.clone()).await;
        if let Ok(Standing::Held(grant)) = &standing {
            span.record("token", grant.tokens.first.get());
        }
        standing
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.of("wait", self.engine.wait(claim, place)).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut counted = self.begin("renew");
        let renewals = self.engine.renew(held).instrument(spans::renew(held)).await;
        let error = renewals.iter().find_map(|renewal| match renewal {
            Renewal::Unknown(error) => Some(error),
            _ => None,
        });
        counted.outcome = error.map_or("ok", Error::as_str);
        renewals
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let withdraw = self.of("withdraw", self.engine.withdraw(claim, how));
        withdraw.instrument(spans::withdraw(&claim.id)).await
    }

    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.of("look", self.engine.inspect().look(name)).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let watch = self.engine.inspect().watch(name, seen);
        self.of("watch", watch).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let list = self.engine.inspect().list(prefix, at, limit);
        self.of("list", list).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let evict = self.engine.inspect().evict(name, token, how);
        self.of("evict", evict).await
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        let attest = self.engine.inspect().attest(name, owner);
        self.of("attest", attest).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.of("diagnose", self.engine.inspect().diagnose()).await
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.engine, f)
    }
}
