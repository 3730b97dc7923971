//! The same lock for programs without async. (Long by its examples.)
//!
//! ```
//! # fn main() -> Result<(), fencelock::Error> {
//! let client = fencelock::blocking::connect("memory:")?;
//! let guard = client.lock("nightly-report").label("by hand").take()?;
//! assert!(guard.is_valid());
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! Renewals run on a thread of the client. Do not call these functions from async code: they would block the runtime, and tokio
//! panics.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{
    Error, Evict, LockView, LossReason, Mode, Owner, Promises, Purpose, Release, Result, Sequencer,
    Token,
};
use tokio::runtime::Runtime;

use crate::store::Store;

/// A client on one store. Cheap to clone. Dropping the last clone and the last guard ends its thread.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), fencelock::Error> {
/// # let client = fencelock::blocking::connect("memory:")?;
/// let guard = client.lock("report").take()?;
/// guard.release()?;
/// client.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    client: fencelock_core::Client,
    runtime: Arc<Ended>,
}

/// A runtime whose drop does not wait, so that a guard may be dropped anywhere.
struct Ended(Option<Runtime>);

impl Ended {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        // Only `drop` takes it.
        self.0
            .as_ref()
            .map(|runtime| runtime.block_on(future))
            .ok_or(Error::Closed)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Opens a store; see [`connect`](fn@crate::connect).
///
/// ```
/// # fn main() -> Result<(), fencelock::Error> {
/// let client = fencelock::blocking::connect("memory:")?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`connect`](fn@crate::connect), and [`Error::Internal`] if no thread can be started.
pub fn connect(store: impl Into<Store>) -> Result<Client> {
    connect_for(store, Purpose::default())
}

/// Opens a store for a purpose; see [`Connect::purpose`](crate::Connect::purpose).
///
/// ```
/// # fn main() -> Result<(), fencelock::Error> {
/// use fencelock::{Purpose, blocking};
///
/// let client = blocking::connect_for("memory:", Purpose::Correctness)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`connect`](fn@connect).
pub fn connect_for(store: impl Into<Store>, purpose: Purpose) -> Result<Client> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("fencelock")
        .enable_all()
        .build()
        .map_err(|error| {
            Error::internal(
                "(none)",
                format!("the thread for renewals cannot be started: {error}"),
            )
        })?;
    let client = runtime.block_on(async { crate::connect(store).purpose(purpose).await })?;
    let runtime = Arc::new(Ended(Some(runtime)));
    Ok(Client { client, runtime })
}

impl Client {
    /// A request that waits; see [`Client::lock`](crate::Client::lock).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let guard = client.lock("report").timeout(Duration::from_secs(5)).take()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, name: &str) -> Acquire {
        self.request(self.client.lock(name))
    }

    /// A request that does not wait; see [`Client::try_lock`](crate::Client::try_lock).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// let second = client.try_lock("report").take();
    /// assert!(matches!(second, Err(fencelock::Error::Held { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock(&self, name: &str) -> Acquire {
        self.request(self.client.try_lock(name))
    }

    fn request(&self, request: crate::Acquire) -> Acquire {
        let runtime = Arc::clone(&self.runtime);
        Acquire { request, runtime }
    }

    /// See [`Client::owner`](crate::Client::owner).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let owner = client.owner();
    /// let outer = client.lock("report").owner(&owner).take()?;
    /// let inner = client.lock("report").owner(&owner).take()?;
    /// assert_eq!(inner.token(), outer.token());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.client.owner()
    }

    /// See [`Client::join`](crate::Client::join).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let outer = client.owner();
    /// let text = outer.as_str(); // the child process gets it as FENCELOCK_OWNER
    /// let owner = client.join(text)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn join(&self, text: &str) -> Result<Owner> {
        self.client.join(text)
    }

    /// See [`Client::look`](crate::Client::look).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// assert_eq!(client.look("report")?.token(), Some(guard.token()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn look(&self, name: &str) -> Result<LockView> {
        self.runtime.block_on(self.client.look(name))?
    }

    /// See [`Client::list`](crate::Client::list).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// assert_eq!(client.list("rep")?[0].name.as_str(), "report");
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, prefix: &str) -> Result<Vec<LockView>> {
        self.runtime.block_on(self.client.list(prefix))?
    }

    /// See [`Client::evict`](crate::Client::evict).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// assert!(client.evict("report", guard.token(), fencelock::Evict::Release)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn evict(&self, name: &str, token: Token, how: Evict) -> Result<bool> {
        self.runtime.block_on(self.client.evict(name, token, how))?
    }

    /// See [`Client::check`](crate::Client::check).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// assert!(client.check(&guard.sequencer()?)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self, sequencer: &Sequencer) -> Result<bool> {
        self.runtime.block_on(self.client.check(sequencer))?
    }

    /// See [`Client::promises`](crate::Client::promises).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// assert!(client.promises().shared);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn promises(&self) -> &Promises {
        self.client.promises()
    }

    /// See [`Client::close`](crate::Client::close).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// client.close()?;
    /// assert!(client.lock("report").take().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) -> Result<()> {
        self.runtime.block_on(self.client.close())?
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.client, f)
    }
}

/// A request for a lock; ends with [`Acquire::take`].
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), fencelock::Error> {
/// # let client = fencelock::blocking::connect("memory:")?;
/// let request = client.lock("report").ttl(Duration::from_secs(10)).label("by hand");
/// let guard = request.take()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a request does nothing until `take`"]
pub struct Acquire {
    request: crate::Acquire,
    runtime: Arc<Ended>,
}

impl Acquire {
    /// Changes the request with the methods of [`Acquire`](crate::Acquire) that have no shortcut here:
    /// `.set(|request| request.unfair().attempts(3))`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let guard = client.lock("report").set(|request| request.unfair().attempts(3)).take()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set(mut self, change: impl FnOnce(crate::Acquire) -> crate::Acquire) -> Self {
        self.request = change(self.request);
        self
    }

    /// Shared mode.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let one = client.lock("catalogue").shared().take()?;
    /// let two = client.lock("catalogue").shared().take()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared(self) -> Self {
        self.set(crate::Acquire::shared)
    }

    /// Waits at most this long.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// let second = client.lock("report").timeout(Duration::from_millis(20)).take();
    /// assert!(matches!(second, Err(fencelock::Error::TimedOut { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(|request| request.timeout(timeout))
    }

    /// The lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let guard = client.lock("report").ttl(Duration::from_secs(5)).take()?;
    /// assert!(guard.remaining() <= Duration::from_secs(5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|request| request.ttl(ttl))
    }

    /// The lock-delay.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let guard = client.lock("report").lock_delay(Duration::from_secs(2)).take()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_delay(self, lock_delay: Duration) -> Self {
        self.set(|request| request.lock_delay(lock_delay))
    }

    /// A note for people who look at the lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let guard = client.lock("report").label("by hand").take()?;
    /// let holder = &client.look("report")?.holders[0];
    /// assert_eq!(holder.label.as_deref(), Some("by hand"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn label(self, label: &str) -> Self {
        self.set(|request| request.label(label))
    }

    /// Takes the lock on behalf of an owner.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let owner = client.owner();
    /// let guard = client.lock("report").owner(&owner).take()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn owner(self, owner: &Owner) -> Self {
        self.set(|request| request.owner(owner))
    }

    /// Takes the lock.
    ///
    /// # Errors
    /// As [`Acquire`](crate::Acquire).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// let guard = client.lock("report").take()?;
    /// assert!(guard.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    pub fn take(self) -> Result<Guard> {
        let Self { request, runtime } = self;
        let guard = runtime.block_on(request.into_future())??;
        Ok(Guard { guard, runtime })
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.request, f)
    }
}

/// A lock that is held. Dropping it releases the lock in the background, as long as the client or another guard exists;
/// [`Guard::release`] waits for the result and returns it.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), fencelock::Error> {
/// # let client = fencelock::blocking::connect("memory:")?;
/// let guard = client.lock("report").take()?;
/// println!("{:?} with token {}", guard.mode(), guard.token());
/// if guard.is_valid() {
///     // … one step of the work …
/// }
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    guard: crate::Guard,
    runtime: Arc<Ended>,
}

impl Guard {
    /// See [`Guard::token`](crate::Guard::token).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// println!("token {}", guard.token());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    /// See [`Guard::mode`](crate::Guard::mode).
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.guard.mode()
    }

    /// See [`Guard::is_valid`](crate::Guard::is_valid).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// if !guard.is_valid() {
    ///     println!("somebody else may hold it by now");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// See [`Guard::remaining`](crate::Guard::remaining).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// if guard.remaining() < Duration::from_secs(1) {
    ///     guard.refresh(Duration::from_secs(30))?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// See [`Guard::sequencer`](crate::Guard::sequencer).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// let text = guard.sequencer()?.to_string(); // for the resource
    /// assert!(text.starts_with("fl1:x:"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn sequencer(&self) -> Result<Sequencer> {
        self.runtime.block_on(self.guard.sequencer())?
    }

    /// Waits for the loss of the lock, at most for `patience`. Returns the reason if the lock was lost.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// // Instead of a sleep: it ends early if the lock is lost.
    /// assert_eq!(guard.lost_within(Duration::from_millis(10)), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn lost_within(&self, patience: Duration) -> Option<LossReason> {
        let lost = async { tokio::time::timeout(patience, self.guard.lost()).await };
        self.runtime.block_on(lost).ok()?.ok()
    }

    /// See [`Guard::refresh`](crate::Guard::refresh).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// guard.refresh(Duration::from_secs(60))?;
    /// assert!(guard.remaining() > Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn refresh(&self, ttl: Duration) -> Result<()> {
        self.runtime.block_on(self.guard.refresh(ttl))?
    }

    /// See [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), fencelock::Error> {
    /// # let client = fencelock::blocking::connect("memory:")?;
    /// # let guard = client.lock("report").take()?;
    /// assert_eq!(guard.release()?, fencelock::Release::Released);
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(self) -> Result<Release> {
        self.runtime.block_on(self.guard.release())?
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.guard, f)
    }
}
