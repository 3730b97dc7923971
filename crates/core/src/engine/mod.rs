//! The contract between the core and the code that talks to one kind of server.
//!
//! An engine knows *claims*: one request for one lock, with an id that the client chose before it sent the first byte, so that
//! every call can be repeated. [`Engine`] has what a lock needs, [`Inspect`] has what people and resources need.

mod claim;
mod events;
mod host;
mod options;
mod promises;
mod record;
mod redact;
mod setters;
mod store_change;
mod store_url;
mod tls_files;
mod view;

use std::any::Any;
use std::fmt::{Debug, Display};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use claim::{
    Claim, Event, Grant, HeldClaim, Leave, MAX_FLOOR, Place, Renewal, Standing, Withdrawn,
    check_floor,
};
pub use events::{EventSender, EventSource, EventStream};
pub use host::{Address, UrlHost, host_and_port};
pub use promises::{Durability, Finding, Floor, LeaseKind, Order, Promises, Purpose, Wake};
pub use record::{MAX_RECORD_BYTES, Record, RecordChange};
pub use store_change::{StoreChange, StoreListener};
pub use store_url::StoreUrl;
pub use tls_files::{TlsFiles, TlsTexts};
pub use view::{Cursor, Evict, HolderView, LockView, Page, WaiterView};

pub use crate::types::{ClaimId, ClaimIds, Tokens};
use crate::types::{Clock, Error, LockName, Result, Token};

/// What a lock needs of a store. `Debug` and `Display` name the store without its password.
///
/// # The promise to the core
/// * No call panics, and none waits longer than the engine's response timeout, except [`wait`](Engine::wait),
///   [`events`](Engine::events) and [`Inspect::watch`], which wait for an event.
/// * Every call about a claim is idempotent by the claim's id.
/// * A request may take effect late, after others of the same claim, if another process continues the claim
///   ([`Promises::portable`]). So `place` never shortens a lease. A renewal shortens one only if it says so, and it is for one
///   grant alone. An engine that gives back a grant which the store pushed names that grant's token, since it must not end a
///   later one.
///
/// # The core's promise
/// * No call in flight is dropped, except [`wait`](Engine::wait), [`Inspect::look`], [`Inspect::watch`] and
///   [`Inspect::attest`], which hold nothing on the server.
/// * For one claim, calls come one at a time, in order.
/// * A claim that was placed is withdrawn in the end, even after a loss; [`Standing::Busy`] needs no withdrawal. Only a lock
///   that stays held after its release ([`Acquire::at_least`](crate::Acquire::at_least)) is left to its lease if the client
///   ends before that.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let engine = Memory::new();
/// let claim = Claim::new(ClaimIds::new()?.next(), "me", LockName::new("report")?);
/// if let Standing::Held(grant) = engine.place(&claim).await? {
///     let held = HeldClaim::new(claim.clone(), grant.tokens.first);
///     assert!(matches!(engine.renew(&[held]).await[0], Renewal::Kept { .. }));
/// }
/// assert_eq!(engine.withdraw(&claim, Leave::Release).await?, Withdrawn::Released);
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Engine: Debug + Display + Send + Sync + 'static {
    /// What this store promises, as it was found when the store was opened.
    fn promises(&self) -> &Promises;

    /// The clock of this engine's instants.
    fn clock(&self) -> Clock {
        Clock::Boot
    }

    /// Takes the lock, or joins the queue. Another call with the same id reports the standing, prolongs a hold, and keeps a
    /// place. After [`Standing::Ended`] the claim needs a new id. A weaker mode on a claim that holds downgrades it, with a new
    /// token.
    ///
    /// On a claim that holds, the lease then ends at the later of two times: when it would have ended, and the claim's ttl
    /// from now. It is never shortened, and the token stays (except for a downgrade).
    ///
    /// [`Error::Invalid`], [`Error::Unsupported`] and [`Error::Closed`] say that the store has nothing of this call. After
    /// another error it may have the claim, so the core withdraws it in the end.
    async fn place(&self, claim: &Claim) -> Result<Standing>;

    /// Returns when the standing may have changed; it may return the grant itself. May be dropped and called again.
    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>>;

    /// Prolongs many holds in as few round trips as the engine can; one that fails does not fail the others. Answers in
    /// the order of `held`. Also records each token in the store.
    ///
    /// Each renewal is for one grant alone: if [`HeldClaim::token`] is not among the tokens that the store has for the claim,
    /// the answer is [`Renewal::Lost`], and nothing changes.
    ///
    /// The lease then ends at the later of two times: when it would have ended, and the claim's ttl from now. So a renewal that
    /// arrives again after a longer one does not shorten the lease. With [`HeldClaim::shorten`] the lease is the claim's ttl
    /// from now in any case. If a session keeps the hold, the store may keep it for longer. If a request of this engine may
    /// arrive more than once, such a renewal may arrive after later ones. So from then on the engine reports no longer lease of
    /// this grant than that renewal asked for.
    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal>;

    /// Releases, leaves the queue, or undoes a call of unknown outcome. If an earlier call of this claim had no answer and may
    /// still take effect, the answer is an [`Error::Unavailable`], and the core withdraws again.
    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn>;

    /// Forgets a waiting claim in this process, without a request to the store. Another process may continue the claim
    /// ([`Promises::portable`]). If the store later pushes a grant to this process, it is not taken, as if the process had
    /// ended. No call for the claim may be in flight here, except a dropped [`wait`](Engine::wait).
    fn forget(&self, claim: &ClaimId) {
        let _ = claim;
    }

    /// The first ten bytes of the ids of this engine's claims, if the store prescribes them. Otherwise the client draws its
    /// own.
    fn claim_ids(&self) -> Option<[u8; 10]> {
        None
    }

    /// The only place where a claim of this engine can be renewed and released, if it is not the whole store: the replica of the
    /// lock service to which the claim belongs. A process that continues the claim gives this text to its own engine.
    fn home_of(&self, claim: &ClaimId) -> Option<String> {
        let _ = claim;
        None
    }

    /// What distinguishes this store from others: its address, and all else that decides which locks a name means there. It has
    /// no secret. Programs that share locks compare it.
    fn identity(&self) -> String {
        self.to_string()
    }

    /// The lane of a name. The core renews claims of different lanes by different calls. So if a part of a store does not answer,
    /// the renewals of other parts are not delayed.
    fn lane(&self, name: &LockName) -> u32 {
        let _ = name;
        0
    }

    /// The store on which a name lies, as a label with few values: the id of the shard in a set, otherwise the kind of store.
    fn store_of(&self, name: &LockName) -> String {
        let _ = name;
        self.promises().engine.to_owned()
    }

    /// Reports to this listener what changes at the stores from now on. It is called once at most.
    fn listen_to_stores(&self, listener: StoreListener) {
        let _ = listener;
    }

    /// Makes the change, if there is one, and returns the store's record. The change takes effect only if the version is still
    /// [`RecordChange::from`]. The caller compares the text, not the version: if it repeats a change after a lost reply, it
    /// finds its own text. Linearizable, and as durable as grants are. The record is not a lock, so no listing shows it.
    ///
    /// There is one record for each `scope`, which is the prefix of all names (`""` without a prefix).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store has no record, and those of the request.
    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        let _ = (scope, change);
        let why = "this kind of store keeps none, and a set of stores needs one of each of them; name another store that keeps \
                   it, with record=URL";
        Err(Error::unsupported(self, "a record", why))
    }

    /// For a store with several counters of tokens ([`Floor::Name`]): raises all of them to `floor`, or to the highest of them if
    /// that is above it. Returns what they were raised to: no token that was granted before this call is above it, and every
    /// token that is granted after it is. May be called again after an error.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store has one counter, which a claim with this floor raises, or none that can be raised;
    /// [`Error::Invalid`] if the floor or a counter is above [`MAX_FLOOR`]; and those of the requests. Part of the counters may be
    /// raised then.
    async fn raise_tokens(&self, floor: Token) -> Result<Token> {
        let _ = floor;
        let why = "this kind of store does not have several counters of tokens";
        Err(Error::unsupported(self, "raising all tokens", why))
    }

    /// The events that the store reports by itself. There is one listener per engine: a second call is an error. The stream
    /// continues after an item that is an error.
    fn events(&self) -> Result<EventStream>;

    /// The inspection of the same store.
    fn inspect(&self) -> &dyn Inspect;

    /// Ends connections. Later calls answer [`Error::Closed`].
    async fn close(&self) -> Result<()>;
}

/// What people and resources need of a store.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let engine = Memory::new();
/// let view = engine.inspect().look(&LockName::new("report")?).await?;
/// assert!(view.holders.is_empty());
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Inspect: Send + Sync {
    /// The lock as it is now. May be dropped.
    async fn look(&self, name: &LockName) -> Result<LockView>;

    /// Waits until the highest token of the lock differs from `seen` (`None`: the lock was free). By default it looks again and
    /// again, with pauses that grow to half a second. May be dropped.
    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let mut pause = Duration::from_millis(20);
        loop {
            let view = self.look(name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 3 / 2).min(Duration::from_millis(500));
        }
    }

    /// The locks that are held and whose names begin with `prefix`, one page at a time, in no particular order. A page may have
    /// more or fewer than `limit`. A cursor may come from a client of the lock service. If this engine cannot have made it for this
    /// prefix, the answer is [`Error::Invalid`], and nothing is sent.
    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>>;

    /// Force-releases the lock, or asks for its release. Only the holder with this token (or with this token in its range) is
    /// affected; `false` if there is none. The store does not know which token of a range is in use: within a process the lock
    /// may have been handed on since.
    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool>;

    /// The hold of an owner in another process, and what a process that joins it may believe; `None` if this owner does not
    /// hold. By default it reads [`look`](Inspect::look), which is enough if the store reports the remaining time. If it does
    /// not, the engine asks the holder itself. The view has no token if only the holder's process knows it. Then another process
    /// cannot join the hold. May be dropped.
    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        let asked = Clock::Boot.now();
        Ok(self.look(name).await?.attest(owner, asked))
    }

    /// What is wrong with this store, now, beyond the limits in its [promises](Engine::promises).
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

/// The typed options of a store, for `fencelock::connect`. Each engine's crate has such a type, named `Options`.
#[async_trait]
pub trait StoreOptions: Any + Debug + Send + Sync {
    /// The options in the form of a URL.
    fn url(&mut self) -> &mut StoreUrl;

    /// Reads the options, and the files and variables that they name, like opening, but sends nothing.
    ///
    /// # Errors
    /// [`Error::Config`] for options that cannot be used.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Opens the store. May be called again after an error.
    ///
    /// # Errors
    /// [`Error::Config`] for options that cannot be used, and those of the connection.
    async fn open(&self) -> Result<Arc<dyn Engine>>;

    /// Prepares a store for its first opening: writes the records of a set of stores.
    ///
    /// # Errors
    /// [`Error::Config`] for a store that needs no preparation, and those of opening.
    async fn init(&mut self) -> Result<()> {
        let why = "it is one store, which needs no records; a set of stores is shards:?a=URL&b=URL";
        Err(self.url().refuse(why))
    }
}
