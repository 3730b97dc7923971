//! The engine: what it promises, and what its parts share.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use fencelock_core::engine::{
    Claim, Cursor, Event, Evict, Grant, HeldClaim, Leave, LockView, Page, Place, Renewal, Standing,
    Withdrawn,
};
use fencelock_core::{
    ClaimId, Clock, Durability, Engine, Error, Finding, LeaseKind, Limit, LockName, Order,
    Promises, Result, StoreUrl, Token, Wake,
};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::claims::Claims;
use crate::config::Config;
use crate::layout::{BASE, Layout};
use crate::link::Store;
use crate::refusal::Trouble;
use crate::release::Released;
use crate::session::Sessions;

/// For how long closing waits for a cluster that does not answer.
const CLOSING: Duration = Duration::from_secs(1);

/// The engine on an etcd cluster.
pub struct Etcd {
    pub(crate) shared: Arc<Shared>,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Event>>,
}

/// What the engine's parts and its tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) sessions: Sessions,
    claims: Mutex<Claims>,
    base: Mutex<Option<u64>>,
    /// What the cluster leaves to be desired, as far as it told at open.
    limits: Vec<Limit>,
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
        let (tell, told) = mpsc::unbounded_channel();
        let mut shared = Shared {
            store,
            sessions: Sessions::default(),
            claims: Mutex::default(),
            base: Mutex::default(),
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
        let events = tokio::sync::Mutex::new(told);
        Ok(Self { shared, events })
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

    /// From where tokens are counted: the time at which the store was first used. A store that was emptied counts from a
    /// later time, so that its tokens go on increasing. `None` in Go's layout.
    pub(crate) async fn base(&self) -> Result<Option<u64>> {
        if self.layout() == Layout::Concurrency {
            return Ok(None);
        }
        let known = *self.known_base();
        if known.is_some() {
            return Ok(known);
        }
        let action = || "reading from where tokens are counted".to_owned();
        let got = self.store.get(action, BASE, GetOptions::new()).await?;
        if let Some(kv) = got.kvs().first() {
            let base = base_in(kv).ok_or_else(|| {
                let why = format!(
                    "the key {BASE} is damaged, or of a newer version; it must hold a number"
                );
                Error::config(&self.store.config.store, why)
            })?;
            *self.known_base() = Some(base);
            return Ok(Some(base));
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_micros() as u64);
        let absent = Compare::create_revision(BASE, CompareOp::Equal, 0);
        let begin = Txn::new()
            .when([absent])
            .and_then([TxnOp::put(BASE, now.to_string(), None)]);
        self.store.txn(action, begin).await?;
        // Whoever came first: read what stands there now.
        Box::pin(self.base()).await
    }

    fn known_base(&self) -> MutexGuard<'_, Option<u64>> {
        self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was known of the base was wrong.
    pub(crate) fn forget_base(&self) {
        *self.known_base() = None;
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

/// The number in the key from which tokens are counted, if it is one.
pub(crate) fn base_in(kv: &KeyValue) -> Option<u64> {
    kv.value_str().ok()?.parse().ok()
}

#[async_trait]
impl Engine for Etcd {
    fn promises(&self) -> Promises {
        self.shared.promises()
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.shared.check_open()?;
        self.shared.place(claim).await
    }

    async fn changed(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        self.shared.check_open()?;
        self.shared.changed(claim).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.shared.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.shared.withdraw(claim, how).await
    }

    async fn events(&self) -> Result<Event> {
        self.events.lock().await.recv().await.ok_or(Error::Closed)
    }

    async fn look(&self, name: &LockName, unlike: Option<Option<Token>>) -> Result<LockView> {
        self.shared.check_open()?;
        self.shared.look(name, unlike).await
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

    async fn close(&self) -> Result<()> {
        self.shared.close().await;
        Ok(())
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
