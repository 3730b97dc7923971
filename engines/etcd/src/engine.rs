//! The engine: what it promises, and what its parts share.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use fencelock_core::engine::{
    Claim, Cursor, Event, EventSource, EventStream, Evict, Grant, HeldClaim, Inspect, Leave,
    LockView, Page, Place, Renewal, Standing, Withdrawn,
};
use fencelock_core::{
    ClaimId, Durability, Engine, Error, Finding, LeaseKind, LockName, Order, Promises, Result,
    StoreUrl, Token, Wake,
};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::base::Base;
use crate::claims::Claims;
use crate::config::Config;
use crate::layout::Layout;
use crate::link::Store;
use crate::refusal::Trouble;
use crate::release::Released;
use crate::session::Sessions;

/// For how long closing waits for a cluster that does not answer.
const CLOSING: Duration = Duration::from_secs(1);

/// The engine on an etcd cluster.
pub struct Etcd {
    pub(crate) shared: Arc<Shared>,
    promises: Promises,
    events: EventSource,
}

/// What the engine's parts and its tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) sessions: Sessions,
    claims: Mutex<Claims>,
    pub(crate) base: Base,
    /// What the cluster leaves to be desired, as far as it told at open.
    limits: Vec<Finding>,
    /// Under which this client gets mail.
    pub(crate) client: String,
    pub(crate) tell: mpsc::UnboundedSender<Event>,
    pub(crate) reads_mail: AtomicBool,
    closed: AtomicBool,
    pub(crate) released: Mutex<Released>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Etcd {
    /// Connects to the cluster that a URL `etcd://...` or `etcds://...` names.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL has what it should not, [`Error::Refused`] if the cluster refuses this user,
    /// [`Error::Unavailable`] if no member that has a leader answers within `connect-timeout`.
    ///
    /// # Cancel safety
    /// May be dropped: nothing is held yet.
    pub async fn connect(url: StoreUrl) -> Result<Self> {
        let store = Store::open(Config::from_url(url)?).await?;
        let (tell, events) = EventSource::channel();
        let mut shared = Shared {
            store,
            sessions: Sessions::default(),
            claims: Mutex::default(),
            base: Base::default(),
            limits: Vec::new(),
            client: format!("{:032x}", fastrand::u128(..)),
            tell,
            reads_mail: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            released: Mutex::default(),
            tasks: Mutex::default(),
        };
        match shared.limits().await {
            Ok(limits) => shared.limits = limits,
            // What it does not tell now, `diagnose` may be told.
            Err(trouble) => {
                let (store, error) = (&shared.store.config.store, Error::from(trouble));
                tracing::debug!(%store, %error, "the cluster's version is not known");
            }
        }
        let shared = Arc::new(shared);
        let promises = shared.promises();
        Ok(Self {
            shared,
            promises,
            events,
        })
    }
}

impl Shared {
    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn layout(&self) -> Layout {
        self.store.config.layout
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// Runs a task until it ends, or the engine does.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::spawn(task).abort_handle());
    }

    /// A claim that held does so no more.
    pub(crate) fn lost(&self, id: ClaimId) {
        // Nobody listens once the engine is dropped.
        let _ = self.tell.send(Event::Lost(id));
    }

    /// Whether a key is there, as it was created then.
    pub(crate) async fn is_there(&self, key: &[u8], revision: i64) -> Result<bool, Trouble> {
        let same = Compare::create_revision(key, CompareOp::Equal, revision);
        let look = Txn::new().when([same]);
        let looked = self
            .store
            .txn(|| "looking for a claim".into(), look)
            .await?;
        Ok(looked.succeeded())
    }

    /// Deletes a key if it is still the one created then; false if it was not.
    pub(crate) async fn delete(&self, key: &[u8], revision: i64) -> Result<bool, Trouble> {
        let same = Compare::create_revision(key, CompareOp::Equal, revision);
        let delete = Txn::new().when([same]).and_then([TxnOp::delete(key, None)]);
        let deleted = self.store.txn(|| "releasing".into(), delete).await?;
        Ok(deleted.succeeded())
    }

    /// Deletes a key whenever it was created; false if there was none.
    pub(crate) async fn delete_any(&self, key: &str) -> Result<bool, Trouble> {
        self.store.delete(|| "releasing".into(), key).await
    }

    /// Deletes a key if it is on this lease.
    pub(crate) async fn delete_on(&self, key: &[u8], lease: i64) -> Result<(), Trouble> {
        let same = Compare::lease(key, CompareOp::Equal, lease);
        let delete = Txn::new().when([same]).and_then([TxnOp::delete(key, None)]);
        self.store.txn(|| "releasing".into(), delete).await?;
        Ok(())
    }

    pub(crate) fn promises(&self) -> Promises {
        let own = self.layout() == Layout::Fencelock;
        Promises {
            engine: "etcd",
            order: Order::Fifo,
            shared: own,
            permits: own,
            lock_delay: true,
            ranges: own,
            portable: false,
            lease: LeaseKind::Session,
            wake: Wake::Push,
            durability: Durability::Durable,
            clock: "the members' clocks run at about the right rate; leases are whole seconds, at least the shortest that the servers take",
            min_ttl: Duration::from_secs(1),
            max_ttl: Duration::from_secs(10 * 365 * 86_400),
            claim_window: self.store.config.window,
            limits: self.limits.clone(),
        }
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let empty = self.sessions.take_empty();
        let revoked = empty.iter().map(|session| self.store.revoke(session.lease));
        let revoked = futures_util::future::join_all(revoked);
        // What is not revoked ends by itself.
        let _ = tokio::time::timeout(CLOSING, revoked).await;
        self.stop();
    }

    fn stop(&self) {
        self.store.close();
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for task in tasks.drain(..) {
            task.abort();
        }
    }
}

#[async_trait]
impl Engine for Etcd {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.shared.check_open()?;
        self.shared.place(claim).await
    }

    async fn wait(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        self.shared.check_open()?;
        self.shared.wait(claim).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.shared.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.shared.withdraw(claim, how).await
    }

    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        self.shared.close().await;
        Ok(())
    }
}

#[async_trait]
impl Inspect for Etcd {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.shared.check_open()?;
        self.shared.look(name, None).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        self.shared.check_open()?;
        self.shared.look(name, Some(seen)).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.shared.check_open()?;
        self.shared.list(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.shared.check_open()?;
        self.shared.evict(name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.shared.check_open()?;
        self.shared.diagnose().await
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Display for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.store.config.store)
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.shared.store.config.store)
    }
}
