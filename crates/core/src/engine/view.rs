//! A lock as others see it.

use std::time::Duration;

use super::claim::Grant;
use super::setters::setters;
use crate::types::{BootInstant, ClaimId, Error, LockName, Mode, Result, Token, Tokens};

/// How to take a lock from its holder.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let guard = client.lock("report").await?;
/// client.evict("report", guard.token(), Evict::Ask).await?;
/// guard.asked_to_release().await;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evict {
    /// At once. The holder is informed if the engine can push.
    Release,
    /// The holder is asked to release when it can.
    Ask,
}

/// A lock as the store shows it.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let guard = client.lock("report").await?;
/// let view = client.look("report").await?;
/// for holder in &view.holders {
///     println!("{} holds it for {:?} more", holder.owner, holder.ttl_left);
/// }
/// println!("{} wait", view.waiters.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockView {
    /// The lock.
    pub name: LockName,
    /// The holders; empty if the lock is free.
    pub holders: Vec<HolderView>,
    /// The waiters, in order if the engine keeps one. An engine may cut a queue after [`MOST_WAITERS`](Self::MOST_WAITERS).
    pub waiters: Vec<WaiterView>,
}

impl LockView {
    /// How many waiters an engine shows at most.
    pub const MOST_WAITERS: usize = 1000;

    /// A lock with its holders and waiters.
    #[must_use]
    pub const fn new(name: LockName, holders: Vec<HolderView>, waiters: Vec<WaiterView>) -> Self {
        Self {
            name,
            holders,
            waiters,
        }
    }

    /// A free lock.
    #[must_use]
    pub const fn free(name: LockName) -> Self {
        Self::new(name, Vec::new(), Vec::new())
    }

    /// The hold of an owner, if it exists and its token is known, and what may be believed of it according to this view. The
    /// view was requested at `asked`.
    #[must_use]
    pub fn attest(self, owner: &str, asked: BootInstant) -> Option<(HolderView, Grant)> {
        let mut holders = self.holders.into_iter();
        let holder = holders.find(|holder| holder.owner == owner)?;
        let grant = Grant::new(
            Tokens::one(holder.token?),
            asked,
            holder.ttl_left?.saturating_sub(holder.lock_delay),
        );
        Some((holder, grant))
    }

    /// The highest token among the holders.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.holders.iter().filter_map(|holder| holder.token).max()
    }
}

/// One holder.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # fn main() -> Result<()> {
/// let holder = HolderView::new("me".to_owned(), Mode::Exclusive)
///     .token(Token(34))
///     .ttl_left(Duration::from_secs(10));
/// let view = LockView::new(LockName::new("report")?, vec![holder], Vec::new());
/// assert_eq!(view.token(), Some(Token(34)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderView {
    /// Its claim; `None` if another kind of client holds the lock.
    pub claim: Option<ClaimId>,
    /// Its owner text, or what another kind of client has stored.
    pub owner: String,
    /// Its token; `None` if it is not recorded (yet).
    pub token: Option<Token>,
    /// The mode in which it holds.
    pub mode: Mode,
    /// How long the server keeps the lock for it without renewal, lock-delay included; `None` if without end.
    pub ttl_left: Option<Duration>,
    /// The lock-delay within `ttl_left`.
    pub lock_delay: Duration,
    /// How long it has held; `None` if the store does not know.
    pub held: Option<Duration>,
    /// Its label.
    pub label: Option<String>,
}

impl HolderView {
    /// A holder with nothing else known about it.
    #[must_use]
    pub const fn new(owner: String, mode: Mode) -> Self {
        Self {
            claim: None,
            owner,
            token: None,
            mode,
            ttl_left: None,
            lock_delay: Duration::ZERO,
            held: None,
            label: None,
        }
    }

    setters! {
        claim: impl Into<Option<ClaimId>>, token: impl Into<Option<Token>>, ttl_left: impl Into<Option<Duration>>,
        lock_delay: Duration, held: impl Into<Option<Duration>>, label: Option<String>,
    }
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterView {
    /// Its owner text.
    pub owner: String,
    /// The mode in which it wants to hold.
    pub mode: Mode,
    /// Its label, if the store keeps the labels of waiters.
    pub label: Option<String>,
}

impl WaiterView {
    /// A waiter without a label.
    #[must_use]
    pub const fn new(owner: String, mode: Mode) -> Self {
        Self {
            owner,
            mode,
            label: None,
        }
    }

    setters! { label: Option<String> }
}

/// Where a listing continues. The engine makes it. Anybody may send it back, so the engine reads it like any other input, and
/// refuses one that it cannot have made for this listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub String);

impl Cursor {
    /// The last name of the page before, for an engine whose cursors are names.
    ///
    /// ```
    /// # use fencelock_core::engine::*;
    /// # fn main() -> fencelock_core::Result<()> {
    /// assert_eq!(Cursor("a/1".to_owned()).name("a/")?, "a/1");
    /// assert!(Cursor("b/1".to_owned()).name("a/").is_err());
    /// assert!(Cursor("a/\0".to_owned()).name("a/").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if no lock has this name, or the listing of this prefix has no such name.
    pub fn name(self, prefix: &str) -> Result<String> {
        match LockName::new(&self.0) {
            Ok(_) if self.0.starts_with(prefix) => Ok(self.0),
            _ => Err(self.refused()),
        }
    }

    /// The error for a cursor that the engine cannot have made.
    #[must_use]
    pub fn refused(&self) -> Error {
        Error::invalid("cursor", &self.0, "it is none of this listing")
    }
}

/// A page of a listing.
///
/// ```
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # fn main() -> Result<()> {
/// let found = vec![LockView::free(LockName::new("report")?)];
/// let page = Page::new(found, Some(Cursor("report".to_owned())));
/// assert!(page.next.is_some()); // there is more
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page<T> {
    /// The items of this page.
    pub items: Vec<T>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// A page, and where the next one begins.
    #[must_use]
    pub const fn new(items: Vec<T>, next: Option<Cursor>) -> Self {
        Self { items, next }
    }
}
