//! The public face of a replica.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use fencelock_core::{CancellationToken, Engine, Result};

use crate::audit::{Audit, Reopened};
use crate::config::{Config, Limits, TlsFiles};
use crate::principal::{Grant, Principal};
use crate::replica::Replica;
use crate::router;

/// How long the last withdrawals may take. Claims that are left after it end by their leases at the store.
const LAST_WITHDRAWALS: Duration = Duration::from_secs(2);

/// A reload that has replaced the principals and rights.
#[derive(Debug)]
pub struct Reload(Option<Reopened>);

impl Reload {
    /// Waits until the audit log was opened again.
    ///
    /// # Errors
    /// It cannot be opened. The earlier file goes on.
    pub async fn audit(self) -> io::Result<()> {
        match self.0 {
            Some(reopened) => reopened.outcome().await,
            None => Ok(()),
        }
    }
}

/// One replica, without a socket yet. Cheap to clone: all clones are one replica.
#[derive(Clone, Debug)]
pub struct Service(Arc<Replica>);

impl Service {
    /// Serves the store of this engine. It needs a tokio runtime from the first request on.
    ///
    /// # Errors
    /// [`Error::Config`](fencelock_core::Error::Config) if the store cannot be served,
    /// [`Error::Internal`](fencelock_core::Error::Internal) if the operating system has no random numbers.
    pub fn new(engine: Arc<dyn Engine>, config: Config) -> Result<Self> {
        Ok(Self(Arc::new(Replica::new(engine, config)?)))
    }

    /// The routes of the API, for a listener of your own. [`Server`](crate::Server) also limits connections.
    pub fn router(&self) -> Router {
        router::router(Arc::clone(&self.0))
    }

    /// The routes `/metrics`, `/healthz` and `/readyz` if [`Config::admin`] is set, for a listener of your own.
    pub fn admin_router(&self) -> Router {
        router::admin(Arc::clone(&self.0))
    }

    /// Starts the background tasks.
    pub(crate) fn start(&self) {
        self.0.start();
    }

    pub(crate) fn replica(&self) -> &Arc<Replica> {
        &self.0
    }

    /// The replica's id: 16 hex digits, drawn at its start, which every answer has in `Fencelock-Replica`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// How many requests wait for a lock or for a change of one.
    #[must_use]
    pub fn polls(&self) -> usize {
        self.0.polls()
    }

    /// How many claims are known here: those with a request under way, and waiters that may ask again.
    #[must_use]
    pub fn claims(&self) -> usize {
        self.0.known.len()
    }

    /// Replaces the principals and rights, and opens the audit log again. It does not affect requests that are being served
    /// already.
    ///
    /// # Errors
    /// [`Error::Invalid`](fencelock_core::Error::Invalid) if they cannot be used; then nothing changes.
    pub fn reload(&self, principals: &[Principal], anonymous: &[Grant]) -> Result<Reload> {
        self.0.reload(principals, anonymous).map(Reload)
    }

    /// How many lines the audit log has dropped because it could not be written fast enough.
    #[must_use]
    pub fn audit_dropped(&self) -> u64 {
        self.0.audit.as_ref().map_or(0, Audit::dropped)
    }

    /// From now on the replica refuses new claims and lets no request wait; it serves everything else.
    pub fn refuse_new(&self) {
        self.0.draining.cancel();
    }

    /// How many claims belong to this replica. Zero on a store that is not bound to replicas.
    #[must_use]
    pub fn bound_claims(&self) -> usize {
        self.0.bound.as_ref().map_or(0, |bound| bound.len())
    }

    pub(crate) async fn no_claim_left(&self) {
        if let Some(bound) = &self.0.bound {
            bound.none_left().await;
        }
    }

    /// How many holds belong to this replica, and end with it. Zero on a store that is not bound to replicas.
    #[must_use]
    pub fn bound_holds(&self) -> usize {
        self.0.bound.as_ref().map_or(0, |bound| bound.holding())
    }

    /// Withdraws the claims of this replica in which no client believes, and leaves the others to the store. Returns how many
    /// holds that ended.
    pub(crate) async fn end_claims(&self) -> usize {
        let Some(bound) = &self.0.bound else {
            return 0;
        };
        let ended = bound.end_all();
        let _ = tokio::time::timeout(LAST_WITHDRAWALS, bound.none_left()).await;
        ended
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.config.limits
    }

    pub(crate) fn tls(&self) -> Option<&TlsFiles> {
        self.0.config.tls.as_ref()
    }

    pub(crate) fn draining(&self) -> CancellationToken {
        self.0.draining.clone()
    }
}
