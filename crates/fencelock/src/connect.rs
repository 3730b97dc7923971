//! From a store's URL or options to a client.

use std::borrow::Cow;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Client, Engine, LockName, Observer, Purpose, Result};

use crate::store::Store;
use crate::to_open::ToOpen;

/// Opens the store of a URL or of typed options; await the result.
///
/// The options are those of `redis`, `redlock`, `sqlite`, `mysql`, `postgres`, `zookeeper`, `etcd` and `http`, the modules of
/// the features that are on:
///
/// ```no_run
/// # #[cfg(feature = "redis")]
/// # async fn example() -> fencelock::Result<()> {
/// use std::time::Duration;
///
/// let url = fencelock::connect("redis://cache.internal?claim-window=1s").await?;
/// let options = fencelock::redis::Options::new("cache.internal").claim_window(Duration::from_secs(1));
/// let typed = fencelock::connect(options).await?;
/// # Ok(())
/// # }
/// ```
///
/// The schemes are those of the features that are on: `memory:`, `sqlite:[PATH]`, `redis://`, `rediss://`, `valkey://`,
/// `redis+unix://`, `redis+sentinel://`, `redis+cluster://`, `redlock://`, `redlocks://`, `mysql://`, `mariadb://`,
/// `postgres://`, `zookeeper://`, `etcd://`, `etcds://`, `fencelock+http://`, `fencelock+https://`, and `shards:` and `migrate:` for
/// sets of them. `@` and a name mean a store of the configuration file (feature `config`). Every store takes the option `prefix=TEXT`, which is put before all names. The feature `tls` adds TLS; without it databases on other machines need `tls=off` in their URLs.
pub fn connect(store: impl Into<Store>) -> Connect {
    let mut store = store.into();
    let purpose = store
        .0
        .as_mut()
        .ok()
        .and_then(|options| options.url().purpose);
    Connect {
        store,
        purpose: purpose.unwrap_or_default(),
        observer: None,
        name_class: None,
        batch: fencelock_core::DEFAULT_BATCH,
        layer: None,
        inspect_only: false,
        patience: None,
    }
}

/// Opens a store's engine alone, without a client: for programs that continue claims of other processes, where the store allows
/// that ([`Promises::portable`](fencelock_core::Promises::portable)). All other programs use [`connect`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencelock::Error> {
/// let engine = fencelock::open_engine("memory:").await?;
/// assert!(engine.promises().portable);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`Connect`].
///
/// # Cancel safety
/// May be dropped: nothing is held yet.
pub async fn open_engine(store: impl Into<Store> + Send) -> Result<Arc<dyn Engine>> {
    open(store.into(), false, None).await
}

/// Writes the record of each store of a [`ShardSet`](crate::ShardSet) or of a URL `shards:`. Call it for a new set, before its
/// first lock is taken, and again when a store promises less than before. If a call is interrupted, the next one finishes its
/// work. All stores must answer, and no program may use the set meanwhile.
///
/// # Errors
/// Those of opening the stores, and:
/// - [`Error::Config`](crate::Error::Config) if `store` is not a set, or a store has the record of another shard or set.
/// - [`Error::Unsupported`](crate::Error::Unsupported) if a store keeps no record.
///
/// # Cancel safety
/// May be dropped. Some of the stores may have their records by then.
#[cfg(feature = "composite")]
pub async fn init(store: impl Into<Store> + Send) -> Result<()> {
    store.into().0?.init().await
}

async fn open(
    store: Store,
    inspect_only: bool,
    patience: Option<Duration>,
) -> Result<Arc<dyn Engine>> {
    let mut store = ToOpen::new(store.0?)?;
    store.url().inspect_only |= inspect_only;
    store.open(patience).await
}

type NameClass = Box<dyn Fn(&LockName) -> Cow<'static, str> + Send + Sync>;

type Layer = Box<dyn FnOnce(Arc<dyn Engine>) -> Arc<dyn Engine> + Send>;

/// A client that is not open yet: change its settings, then `.await` it.
///
/// # Errors
/// - [`Error::Config`](crate::Error::Config) for a URL or an option that cannot be used.
/// - [`Error::Unavailable`](crate::Error::Unavailable) if the store does not answer within `connect-timeout`. Until then the
///   client asks it again and again.
/// - [`Error::Refused`](crate::Error::Refused) if the store refuses this user.
///
/// # Cancel safety
/// May be dropped: nothing is held yet.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencelock::Error> {
/// use fencelock::Purpose;
///
/// let client = fencelock::connect("memory:").purpose(Purpose::Correctness).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "await it to get a client"]
pub struct Connect {
    store: Store,
    purpose: Purpose,
    observer: Option<Arc<dyn Observer>>,
    name_class: Option<NameClass>,
    batch: u32,
    layer: Option<Layer>,
    inspect_only: bool,
    patience: Option<Duration>,
}

impl Connect {
    /// What the locks are for; see [`Client::warnings`]. By default the purpose that the configuration file gives a store with
    /// a name, else efficiency.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock::Error> {
    /// use fencelock::Purpose;
    ///
    /// let client = fencelock::connect("memory:").purpose(Purpose::Correctness).await?;
    /// for warning in client.warnings() {
    ///     eprintln!("{}; {}", warning.what, warning.change);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// Sets the [`Observer`] of grants, losses and renewals.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock::Error> {
    /// # use std::sync::Arc;
    /// # use fencelock::{LockName, LossReason, Observer, Token};
    /// #[derive(Debug)]
    /// struct Alarm;
    ///
    /// impl Observer for Alarm {
    ///     fn lost(&self, name: &LockName, _: Token, reason: LossReason) {
    ///         eprintln!("{name} was lost: {reason}");
    ///     }
    /// }
    ///
    /// let client = fencelock::connect("memory:").observer(Arc::new(Alarm)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// See [`ClientBuilder::name_class`](fencelock_core::ClientBuilder::name_class).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock::Error> {
    /// let class = |name: &fencelock::LockName| match name.as_str().starts_with("order/") {
    ///     true => "order",
    ///     false => "other",
    /// };
    /// let client = fencelock::connect("memory:").name_class(class).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn name_class<F, C>(mut self, class: F) -> Self
    where
        F: Fn(&LockName) -> C + Send + Sync + 'static,
        C: Into<Cow<'static, str>>,
    {
        self.name_class = Some(Box::new(move |name| class(name).into()));
        self
    }

    /// See [`ClientBuilder::batch`](fencelock_core::ClientBuilder::batch).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock::Error> {
    /// // Every grant comes from the store.
    /// let client = fencelock::connect("memory:").batch(1).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch;
        self
    }

    /// Puts an engine around the store's, such as those in [`layers`](fencelock_core::layers).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock::Error> {
    /// # use std::sync::Arc;
    /// use fencelock::layers::Meter;
    ///
    /// let client = fencelock::connect("memory:").layer(|engine| Arc::new(Meter::new(engine))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn layer(
        mut self,
        layer: impl FnOnce(Arc<dyn Engine>) -> Arc<dyn Engine> + Send + 'static,
    ) -> Self {
        self.layer = Some(Box::new(layer));
        self
    }

    /// Opens the store for inspection only: the client can look, list, watch, check and diagnose, and creates nothing. This
    /// also works where a lock cannot be taken: on a replica, on a full server, and for a user without the right to write.
    /// Taking a lock, and releasing the lock of another client, is refused with
    /// [`Error::Unsupported`](crate::Error::Unsupported) before anything is sent.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock::Error> {
    /// let client = fencelock::connect("memory:").inspect_only().await?;
    /// assert!(client.list("").await?.is_empty());
    /// assert!(client.lock("report").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn inspect_only(mut self) -> Self {
        self.inspect_only = true;
        self
    }

    /// For how long opening is retried while the store does not answer; its `connect-timeout` is the upper limit. Zero means
    /// one attempt.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock::Error> {
    /// use std::time::Duration;
    ///
    /// let client = fencelock::connect("memory:").patience(Duration::ZERO).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    async fn open(self) -> Result<Client> {
        let mut store = self.store;
        if let Ok(options) = &mut store.0 {
            // Warnings are about all parts of a set, so all are opened.
            let warned = self.purpose == Purpose::Correctness || self.inspect_only;
            options.url().as_needed = !warned;
        }
        let mut engine = open(store, self.inspect_only, self.patience).await?;
        if let Some(layer) = self.layer {
            engine = layer(engine);
        }
        let mut client = Client::builder(engine)
            .purpose(self.purpose)
            .batch(self.batch)
            .inspect_only(self.inspect_only);
        if let Some(observer) = self.observer {
            client = client.observer(observer);
        }
        if let Some(class) = self.name_class {
            client = client.name_class(class);
        }
        client.build()
    }
}

/// Without the password.
impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connect({:?}, {:?})", self.store, self.purpose)
    }
}

impl IntoFuture for Connect {
    type Output = Result<Client>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Client>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
