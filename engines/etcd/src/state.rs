//! What the engine's calls and its background tasks share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencelock_core::engine::{Claim, Event, EventSender};
use fencelock_core::support::{Contention, Mutex};
use fencelock_core::{ClaimId, Error, LockName, Promises, Result};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::entry::{Entries, Entry};
use crate::layout::Layout;
use crate::session::Sessions;
use crate::token_base::TokenBase;

/// How long `close` waits for a cluster that does not answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) cluster: Cluster,
    pub(crate) sessions: Sessions,
    pub(crate) base: TokenBase,
    pub(crate) contention: Contention,
    pub(crate) entries: Mutex<Entries>,
    /// The release notices that this client has put, and when.
    pub(crate) release_notices: Mutex<HashMap<String, Instant>>,
    pub(crate) promises: Promises,
    /// The id of this client. The names of its keys and of its mailbox contain it.
    pub(crate) client: String,
    pub(crate) events: EventSender,
    pub(crate) reads_mail: AtomicBool,
    closed: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl State {
    pub(crate) fn new(cluster: Cluster, promises: Promises, events: EventSender) -> Self {
        Self {
            cluster,
            sessions: Sessions::default(),
            base: TokenBase::default(),
            contention: Contention::default(),
            entries: Mutex::default(),
            release_notices: Mutex::default(),
            promises,
            client: format!("{:032x}", fastrand::u128(..)),
            events,
            reads_mail: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            tasks: Mutex::default(),
        }
    }

    pub(crate) fn update(&self, claim: &Claim, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries.lock().get_mut(claim.id) {
            change(entry);
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.cluster.config.layout
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// Runs a background task until it ends, or the engine does.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::spawn(task).abort_handle());
    }

    /// Reports that a claim no longer holds.
    pub(crate) fn lost(&self, id: ClaimId) {
        self.events.tell(Event::Lost(id));
    }

    pub(crate) fn not_a_lock(&self, name: &LockName, why: &str) -> Error {
        Error::not_a_lock(&self.cluster.config.store, name, why)
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let empty = self.sessions.take_empty();
        let revoked = empty
            .iter()
            .map(|session| self.cluster.revoke_lease(session.lease));
        let revoked = futures_util::future::join_all(revoked);
        // A session that is not revoked expires.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, revoked).await;
        self.stop();
    }

    pub(crate) fn stop(&self) {
        self.cluster.close();
        let mut tasks = self.tasks.lock();
        for task in tasks.drain(..) {
            task.abort();
        }
    }
}
