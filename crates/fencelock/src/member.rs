//! One store of a set of stores, opened when it is first needed.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_composite::OpenStore;
use fencelock_core::engine::StoreOptions;
use fencelock_core::{Engine, Error, Result, StoreUrl};
use tokio::sync::Mutex;

use crate::to_open::ToOpen;

/// The options of a store, or the error in them.
pub(crate) type Options = Result<Box<dyn StoreOptions>>;

/// The schemes of sets.
const SETS: [&str; 2] = ["shards", "migrate"];

/// Whether a URL is that of a set.
pub(crate) fn is_set(url: &StoreUrl) -> bool {
    SETS.contains(&url.scheme.as_str())
}

/// Refuses what is no store by itself as `what` of a set.
pub(crate) fn refuse_set(what: &str, url: &StoreUrl) -> Result<()> {
    if !is_set(url) && !url.scheme.starts_with("fencelock+http") {
        return Ok(());
    }
    let why = format!(
        "it cannot be {what}, which must be a plain store: no sets and no lock services; a lock service can serve the whole set"
    );
    Err(url.refuse(why))
}

/// One store of a set, still to be opened.
pub(crate) struct Member {
    store: Mutex<ToOpen>,
    /// The URL as given.
    url: StoreUrl,
    shown: String,
}

impl Member {
    /// A store with these options; `what` is its role in a set.
    pub(crate) fn new(what: &str, store: Options) -> Result<Self> {
        let mut options = store?;
        let url = options.url().clone();
        refuse_set(what, &url)?;
        let store = ToOpen::new(options)?;
        let shown = store.to_string();
        let store = Mutex::new(store);
        Ok(Self { store, url, shown })
    }

    /// Whether both have the same URL.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        self.url.is_alike(&other.url)
    }

    /// Whether it is a store in this process's memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.url.scheme == "memory"
    }

    pub(crate) fn check(&self) -> Result<()> {
        // Only opening the store holds this lock. The set is open then, so its options were checked.
        match self.store.try_lock() {
            Ok(store) => store.check(),
            Err(_) => Ok(()),
        }
    }
}

/// A wrong name or value in the URL of a set is an error of the URL.
pub(crate) fn in_url(url: &StoreUrl, error: Error) -> Error {
    match error {
        Error::Invalid {
            what, input, why, ..
        } => url.refuse(format!("{what} {input:?}: {why}")),
        other => other,
    }
}

/// Opens a store with one attempt.
struct Opener {
    member: Arc<Member>,
    inspect_only: bool,
}

/// An opener for a store of a set.
pub(crate) fn opener(member: &Arc<Member>, inspect_only: bool) -> Arc<dyn OpenStore> {
    let member = Arc::clone(member);
    Arc::new(Opener {
        member,
        inspect_only,
    })
}

#[async_trait]
impl OpenStore for Opener {
    async fn open(&self) -> Result<Arc<dyn Engine>> {
        let mut store = self.member.store.lock().await;
        store.url().inspect_only = self.inspect_only;
        store.open_in_set().await
    }
}

impl fmt::Display for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.member.shown)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({self})")
    }
}
