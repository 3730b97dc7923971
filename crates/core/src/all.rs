//! Several locks as one: all clients take them in the same order, all of them or none, with one deadline and one guard.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::acquire::Acquire;
use crate::client::Client;
use crate::guard::Guard;
use crate::types::{Error, Result};
use crate::types::{LockName, LossReason, Release};
use crate::types::{Sequencer, Token};

/// How each of the requests is changed before it is made.
type Change = Arc<dyn Fn(Acquire) -> Acquire + Send + Sync>;

/// A request for several locks, made by [`Client::lock_all`] or [`Client::try_lock_all`]. Await it.
///
/// The locks are taken one after the other in the order of their names. So two requests for the same locks never wait for each
/// other in a circle. A task that holds a lock already and then asks for others by `lock_all` is outside that order. A name
/// that was given twice is one lock.
///
/// # Cancel safety
/// The future may be dropped at any time: locks that were taken are released in the background, and no place in the queue is
/// left.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let request = client.lock_all(["from", "to"]).timeout(Duration::from_secs(5));
/// let guards = request.each(|request| request.ttl(Duration::from_secs(10))).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing until it is awaited"]
pub struct AcquireAll {
    client: Client,
    names: Vec<String>,
    change: Change,
    waits: bool,
    timeout: Option<Duration>,
}

impl Client {
    /// A request for several locks that waits without limit. See [`AcquireAll::timeout`].
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["from", "to"]).await?;
    /// assert!(guards.is_valid());
    /// guards.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_all<S: AsRef<str>>(&self, names: impl IntoIterator<Item = S>) -> AcquireAll {
        AcquireAll::new(self, names, true)
    }

    /// A request for several locks that does not wait: [`Error::Held`] with the name of one that another holds.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let to = client.lock("to").await?;
    /// let both = client.try_lock_all(["from", "to"]).await;
    /// assert!(matches!(both, Err(Error::Held { name, .. }) if name.as_str() == "to"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock_all<S: AsRef<str>>(&self, names: impl IntoIterator<Item = S>) -> AcquireAll {
        AcquireAll::new(self, names, false)
    }
}

impl AcquireAll {
    fn new<S: AsRef<str>>(
        client: &Client,
        names: impl IntoIterator<Item = S>,
        waits: bool,
    ) -> Self {
        let mut names: Vec<String> = names.into_iter().map(|n| n.as_ref().to_owned()).collect();
        names.sort_unstable();
        names.dedup();
        Self {
            client: client.clone(),
            names,
            change: Arc::new(|request| request),
            waits,
            timeout: None,
        }
    }

    /// Waits at most this long, for all locks together.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// let both = client.lock_all(["order", "report"]).timeout(Duration::from_millis(20)).await;
    /// assert!(matches!(both, Err(Error::TimedOut { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Changes each of the requests: `.each(|request| request.ttl(Duration::from_secs(10)).shared())`.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let readers = client.lock_all(["from", "to"]).each(|request| request.shared()).await?;
    /// assert!(readers.iter().all(|guard| guard.mode() == Mode::Shared));
    /// # Ok(())
    /// # }
    /// ```
    pub fn each(mut self, change: impl Fn(Acquire) -> Acquire + Send + Sync + 'static) -> Self {
        let before = self.change;
        self.change = Arc::new(move |request| change(before(request)));
        self
    }

    async fn take(self) -> Result<Guards> {
        if self.names.is_empty() {
            let why = "there is none; name at least one lock";
            return Err(Error::invalid("lock names", "", why));
        }
        let clock = self.client.state.clock;
        let ends = self.timeout.map(|patience| clock.now() + patience);
        let request = |name: &str| {
            let request = Acquire::new(&self.client.state, name, self.waits);
            let request = (self.change)(request);
            match ends {
                Some(ends) => request.timeout(ends.since(clock.now())),
                None => request,
            }
        };
        // A bad name is refused before the first lock is taken.
        for name in &self.names {
            request(name).check()?;
        }
        let mut guards = Guards(Vec::with_capacity(self.names.len()));
        for name in &self.names {
            let taken = tokio::select! {
                biased;
                (name, reason) = guards.first_lost() => Err(Error::Lost { name, reason }),
                taken = request(name).into_future().part_of_several() => taken,
            };
            let taken = taken.map_err(|error| match (error, self.timeout) {
                (Error::TimedOut { name, .. }, Some(waited)) => Error::TimedOut { name, waited },
                (error, _) => error,
            });
            match taken {
                Ok(guard) => guards.0.push(guard),
                Err(error) => {
                    // The store answers, so waiting for the releases is short, and the next attempt then finds nothing of this
                    // one. After other errors the locks are released in the background.
                    if matches!(error, Error::Held { .. }) {
                        drop(guards.release().await);
                    }
                    return Err(error);
                }
            }
        }
        match guards.first_invalid() {
            Some(guard) => Err(guard.lost_error()),
            None => {
                guards.iter().for_each(Guard::deliver);
                Ok(guards)
            }
        }
    }
}

impl IntoFuture for AcquireAll {
    type Output = Result<Guards>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.take())
    }
}

impl fmt::Debug for AcquireAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireAll")
            .field("names", &self.names)
            .field("waits", &self.waits)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Several locks that are held, each with a token of its own. Dropping it releases them all in the background.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let guards = client.lock_all(["from", "to"]).await?;
/// assert!(guards.is_valid() && guards.remaining() > Duration::ZERO);
/// println!("tokens {:?} and {:?}", guards.token("from"), guards.token("to"));
/// guards.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when the guards are dropped"]
pub struct Guards(Vec<Guard>);

impl Guards {
    /// Whether all locks are certainly held at this instant; see [`Guard::is_valid`].
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["from", "to"]).await?;
    /// assert!(guards.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.first_invalid().is_none()
    }

    fn first_invalid(&self) -> Option<&Guard> {
        self.0.iter().find(|guard| !guard.is_valid())
    }

    /// How long all locks are certainly held if no renewal succeeds from now on.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["from", "to"]).await?;
    /// assert!(guards.remaining() > std::time::Duration::ZERO);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.0.iter().map(Guard::remaining);
        remaining.min().unwrap_or_default()
    }

    /// Returns the lock's name and the reason once one of the locks is lost; at once if one is lost already.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["from", "to"]).await?;
    /// let token = guards.token("to").unwrap_or(Token(0));
    /// client.evict("to", token, Evict::Release).await?;
    /// assert_eq!(guards.lost().await.0.as_str(), "to");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> (LockName, LossReason) {
        self.first_lost().await
    }

    /// Returns once one of the locks is lost; never if there are no locks.
    async fn first_lost(&self) -> (LockName, LossReason) {
        let lost = |guard| {
            Box::pin(async move {
                let reason = Guard::lost(guard).await;
                (guard.name().clone(), reason)
            })
        };
        let mut lost: Vec<_> = self.0.iter().map(lost).collect();
        poll_fn(|cx| {
            let mut polled = lost.iter_mut().map(|lost| lost.as_mut().poll(cx));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// The guards, in the order of their names.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["to", "from"]).await?;
    /// let names: Vec<_> = guards.iter().map(|guard| guard.name().as_str()).collect();
    /// assert_eq!(names, ["from", "to"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn iter(&self) -> std::slice::Iter<'_, Guard> {
        self.0.iter()
    }

    /// The guard of one of the locks.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["from", "to"]).await?;
    /// assert!(guards.get("to").is_some_and(Guard::is_valid));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Guard> {
        self.0.iter().find(|guard| guard.name().as_str() == name)
    }

    /// The fencing token of one of the locks. Tokens of different names are not comparable.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["from", "to"]).await?;
    /// assert_eq!(guards.token("to"), guards.get("to").map(Guard::token));
    /// assert_eq!(guards.token("other"), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn token(&self, name: &str) -> Option<Token> {
        self.get(name).map(Guard::token)
    }

    /// A sequencer for each of the locks, in the order of their names.
    ///
    /// # Errors
    /// Those of [`Guard::sequencer`].
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["to", "from"]).await?;
    /// let sequencers = guards.sequencers().await?;
    /// assert_eq!(sequencers[0].name.as_str(), "from");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn sequencers(&self) -> Result<Vec<Sequencer>> {
        let mut sequencers = Vec::with_capacity(self.0.len());
        for guard in &self.0 {
            sequencers.push(guard.sequencer().await?);
        }
        Ok(sequencers)
    }

    /// Releases all locks, the last taken first, and returns the common result: [`Release::Released`] only if all were held
    /// until now.
    ///
    /// # Errors
    /// Those of [`Guard::release`]: the first error. The other locks are still released.
    ///
    /// # Cancel safety
    /// May be dropped: the releases go on in the background.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guards = client.lock_all(["from", "to"]).await?;
    /// assert_eq!(guards.release().await?, Release::Released);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<Release> {
        let mut outcome = Ok(Release::Released);
        while let Some(guard) = self.0.pop() {
            let released = guard.release().await;
            if matches!(outcome, Ok(Release::Released)) {
                outcome = released;
            }
        }
        outcome
    }
}

impl<'a> IntoIterator for &'a Guards {
    type Item = &'a Guard;
    type IntoIter = std::slice::Iter<'a, Guard>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The single guards, each to be released by itself.
impl IntoIterator for Guards {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
