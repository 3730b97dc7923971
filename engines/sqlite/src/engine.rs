use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, EventSource, EventStream, Grant, HeldClaim, Inspect, Leave, Place, Record, RecordChange,
    Renewal, Standing, Withdrawn,
};
use fencelock_core::support::Mutex;
use fencelock_core::{ClaimId, Durability, Engine, Floor, Promises, Result, Wake};
use fencelock_sql::lease::CLAIM_WINDOW;

use crate::acquire;
use crate::config::Config;
use crate::diagnose;
use crate::entry::Entries;
use crate::file::File;
use crate::handle::{self, Handle};
use crate::options::Options;
use crate::record;
use crate::release;
use crate::renew;
use crate::socket::Listener;
use crate::state::Parts;
use crate::wait;
use crate::wake_up::Address;

/// The most events that wait for their listener. Further events are dropped; the next renewal finds out the same.
const MOST_EVENTS: usize = 4096;

/// The engine on an SQLite file. Clients on one machine that name the same file share its locks.
pub struct Sqlite {
    file: Arc<File>,
    pub(crate) worker: Handle,
    entries: Arc<Entries>,
    events: EventSource,
    listener: Mutex<Option<Listener>>,
    promises: Promises,
}

impl Sqlite {
    /// Opens the file that the options, or a URL `sqlite:[PATH]`, name. Creates it if there is none.
    ///
    /// # Errors
    /// - [`Error::Config`](fencelock_core::Error::Config) if an option is wrong, the directory is missing, or the file is not
    ///   one of fencelock.
    /// - [`Error::Refused`](fencelock_core::Error::Refused) without the permission to write.
    /// - [`Error::Unavailable`](fencelock_core::Error::Unavailable) if another process keeps the file locked.
    pub async fn open(options: impl Into<Options>) -> Result<Self> {
        Self::start(Config::new(options.into())?).await
    }

    /// Opens this file. Creates it if there is none; its directory must exist.
    ///
    /// # Errors
    /// As for [`Sqlite::open`].
    pub async fn at(path: impl AsRef<Path>) -> Result<Self> {
        Self::open(Options::new(path.as_ref())).await
    }

    async fn start(config: Config) -> Result<Self> {
        let file = Arc::new(File::new(config)?);
        let (address, entries) = (Address::new()?, Arc::new(Entries::default()));
        let (event_sender, events) = EventSource::bounded(MOST_EVENTS);
        let worker = handle::start(Parts {
            file: Arc::clone(&file),
            address,
            entries: Arc::clone(&entries),
            events: Some(event_sender.clone()),
        })
        .await?;
        let listener = match file.config.inspect_only {
            true => None,
            false => {
                let entries = Arc::clone(&entries);
                let handler = wait::wake_up_handler(worker.clone(), entries, event_sender);
                let listener = Listener::start(address, handler);
                if let Err(error) = &listener {
                    tracing::warn!(store = %file, %error, "no socket for wake-ups; waiters of this process poll");
                }
                listener.ok()
            }
        };
        if listener.is_none() {
            worker.set_unreachable();
        }
        // An engine that only inspects reports the promise that other engines get.
        let wake =
            match listener.is_some() || (file.config.inspect_only && cfg!(target_os = "linux")) {
                true => Wake::Push,
                false => Wake::Poll,
            };
        Ok(Self {
            promises: promises(&file, wake),
            file,
            worker,
            entries,
            events,
            listener: Mutex::new(listener),
        })
    }
}

fn promises(file: &File, wake: Wake) -> Promises {
    let clock = "all processes read one boot clock; the wall clock, which tokens follow, is not set back over a restart of the machine or while an old copy of the file is put back";
    Promises::full("sqlite", clock)
        .record(true)
        .floor(Floor::Store)
        .wake(wake)
        // A loss of power may cost the last commits. It also ends every process that held: the next boot ends all holds,
        // and lifts the counter of tokens to the time.
        .durability(Durability::Process)
        .min_ttl(Duration::from_millis(50))
        .claim_window(CLAIM_WINDOW)
        .limits(diagnose::limits(&file.config.path))
}

fencelock_core::store_options!(
    |options| Config::new(options),
    Ok(Arc::new(Sqlite::open(options).await?))
);

#[async_trait]
impl Engine for Sqlite {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        claim.check_floor(self, &self.promises)?;
        acquire::place(&self.worker, claim).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        wait::wait(&self.worker, &self.entries, claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        renew::renew(&self.worker, held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        release::withdraw(&self.worker, claim, how).await
    }

    fn forget(&self, claim: &ClaimId) {
        self.entries.remove_waiting(*claim);
    }

    /// An eviction by this process or another is reported at once. If the other process cannot reach this one (from another
    /// network namespace), the next renewal finds out.
    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        record::record(&self.worker, scope, change).await
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        let listener = self.listener.lock().take();
        if let Some(listener) = listener {
            listener.end(self.worker.timeout()).await;
        }
        self.worker.close().await
    }
}

impl fmt::Display for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.file, f)
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.file)
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::{ClaimIds, Clock, LockName};

    use super::*;
    use crate::entry::FIRST_POLL;

    #[tokio::test]
    async fn the_poll_interval_grows_when_the_claim_is_placed_again() {
        let path = std::env::temp_dir().join(format!("fencelock-poll-{}", std::process::id()));
        let engine = Sqlite::at(&path).await.unwrap();
        let ids = ClaimIds::new().unwrap();
        let claim = || Claim::new(ids.next(), "somebody", LockName::new("job").unwrap());
        let (holder, waiter) = (claim(), claim());
        engine.place(&holder).await.unwrap();
        for _ in 0..16 {
            waiting(&engine, &waiter).await;
            let place = Place::new(Clock::Boot.now() + Duration::from_millis(5));
            assert!(engine.wait(&waiter, &place).await.unwrap().is_none());
        }
        let entry = engine.entries.waiting(waiter.id).unwrap();
        let interval = entry.next_poll_interval();
        assert!(interval > Duration::from_millis(400), "{interval:?}");
        // The interval grows until the lock changes.
        let place = waiting(&engine, &waiter).await;
        engine.withdraw(&holder, Leave::Release).await.unwrap();
        assert!(engine.wait(&waiter, &place).await.unwrap().is_none());
        assert_eq!(entry.next_poll_interval(), FIRST_POLL);
        drop(engine);
        for suffix in ["", "-wal", "-shm"] {
            // A leftover in the temporary directory does no harm.
            let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
        }
    }

    async fn waiting(engine: &Sqlite, claim: &Claim) -> Place {
        match engine.place(claim).await.unwrap() {
            Standing::Waiting(place) => place,
            other => panic!("{other:?}"),
        }
    }
}
