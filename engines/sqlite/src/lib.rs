//! SQLite, the embedded default store: one file, for the processes of one machine.
//!
//! | option of `sqlite:[PATH]` | default | meaning |
//! | --- | --- | --- |
//! | `connect-timeout` | 5s | how long opening waits for processes that have the file locked |
//! | `response-timeout` | 5s | how long each call waits for them |
//!
//! Without a path the file is `$XDG_STATE_HOME/fencelock/locks.db`, else `~/.local/state/fencelock/locks.db`: one per
//! user. Programs of several users need one named path in a directory that all of them may write.
//!
//! Opened to look only ([`StoreUrl::inspect_only`]) nothing is made and nothing written, and reading suffices. Do not open
//! it so in a process that also takes locks in the same file: SQLite has one view of its lock file per process.
//!
//! Small writes are done on the thread of their caller where they need no waiting. On a disk that may stall for long (a
//! network's) use a runtime of several threads: on one thread nobody is told meanwhile that a lock is lost.

mod bell;
mod doors;
mod explain;
mod file;
mod holds;
mod inspect;
mod names;
mod rows;
mod run;
mod thread;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Event, EventSource, EventStream, Evict, Grant, HeldClaim, Inspect, Leave,
    LockView, Page, Place, Renewal, Standing, Withdrawn,
};
use fencelock_core::{
    Clock, Durability, Engine, LeaseKind, LockName, Order, Promises, Result, StoreUrl, Token, Wake,
};
use fencelock_sql::naps::{jitter, longer};
use tokio::sync::mpsc;

use bell::{BellId, Heard, Listener};
use doors::{Doors, FIRST_NAP};
use file::Source;
use holds::Holds;
use thread::{Action, Queue, Worker};

/// How long a call waits for processes that have the file locked.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most holds that are renewed in one transaction, so that others have their turn between two.
const RENEWED_AT_ONCE: usize = 500;
/// The most events that wait to be heard. Further ones are found with the next renewal.
const MOST_EVENTS: usize = 4096;

/// The engine on an SQLite file. Clients on one machine that name the same file share its locks.
pub struct Sqlite {
    source: Arc<Source>,
    queue: Queue,
    doors: Arc<Doors>,
    events: EventSource,
    listener: Mutex<Option<Listener>>,
    promises: Promises,
}

impl Sqlite {
    /// Opens the file that a URL `sqlite:[PATH]` names, and makes it if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL has what it should not, the directory is missing, or the file is something else;
    /// [`Error::Refused`] without the right to write; [`Error::Unavailable`] if others keep the file locked.
    pub async fn open(mut url: StoreUrl) -> Result<Self> {
        if url.to_string().contains("://") {
            return Err(url.refuse("a file has no host; write sqlite:/PATH, with one slash"));
        }
        let connect_timeout = url.take_duration("connect-timeout")?.unwrap_or(TIMEOUT);
        let response_timeout = url.take_duration("response-timeout")?.unwrap_or(TIMEOUT);
        let (path, inspect_only) = (std::mem::take(&mut url.path), url.inspect_only);
        url.finish()?;
        let path = match path.as_str() {
            "" => {
                let path = file::default_path()?;
                if !inspect_only {
                    file::make_default_directory(&path)?;
                }
                path
            }
            path => PathBuf::from(path),
        };
        let source = Source::new(path, connect_timeout, inspect_only)?;
        Self::start(source, response_timeout).await
    }

    /// Opens this file, and makes it if there is none; its directory must exist.
    ///
    /// # Errors
    /// As for [`Sqlite::open`].
    pub async fn at(path: impl AsRef<Path>) -> Result<Self> {
        let source = Source::new(path.as_ref().to_owned(), TIMEOUT, false)?;
        Self::start(source, TIMEOUT).await
    }

    async fn start(source: Source, response_timeout: Duration) -> Result<Self> {
        let source = Arc::new(source);
        let me = BellId::new()?;
        let (doors, holds) = (Arc::new(Doors::default()), Arc::new(Holds::default()));
        let (tell, events) = EventSource::bounded(MOST_EVENTS);
        let queue = thread::start(Worker {
            source: Arc::clone(&source),
            response_timeout,
            me,
            doors: Arc::clone(&doors),
            holds: Arc::clone(&holds),
            events: Some(tell.clone()),
        })
        .await?;
        let listener = match source.inspect_only {
            true => None,
            false => listen(
                &source,
                me,
                hear(Arc::clone(&doors), holds, queue.clone(), tell),
            ),
        };
        if listener.is_none() {
            queue.nobody_listens();
        }
        let promises = promises(&source);
        Ok(Self {
            source,
            queue,
            doors,
            events,
            listener: Mutex::new(listener),
            promises,
        })
    }
}

/// Without a socket waiters here poll.
fn listen(
    source: &Source,
    me: BellId,
    hear: impl FnMut(Heard) -> bool + Send + 'static,
) -> Option<Listener> {
    let listener = Listener::start(me, hear);
    if let Err(error) = &listener {
        tracing::warn!(store = %source, %error, "no socket to be woken through; waiters here poll");
    }
    listener.ok()
}

/// What to do with a ring from another process, and whether it is for this one. Anybody may write to the socket, so the
/// file has the last word.
fn hear(
    doors: Arc<Doors>,
    holds: Arc<Holds>,
    queue: Queue,
    events: mpsc::Sender<Event>,
) -> impl FnMut(Heard) -> bool + Send + 'static {
    move |heard| match heard {
        Heard::Turn(claim) => doors.ring(claim),
        Heard::Held(claim) => {
            let Some(name) = holds.to_look_at(claim) else {
                return false;
            };
            let (events, holds) = (events.clone(), Arc::clone(&holds));
            let action = Action::About("look at", name.clone());
            queue.read_behind(action, move |visit| {
                holds.looking_at(claim);
                if let Some(event) = rows::what_happened(visit, &name, claim)? {
                    if event == Event::Lost(claim) {
                        holds.take_down(claim);
                    }
                    // Nobody listens once the engine is dropped; what does not fit is found with the next renewal.
                    let _ = events.try_send(event);
                }
                Ok(())
            });
            true
        }
    }
}

fn promises(source: &Source) -> Promises {
    Promises {
        engine: "sqlite",
        order: Order::Fifo,
        shared: true,
        permits: true,
        lock_delay: true,
        ranges: true,
        portable: true,
        lease: LeaseKind::Lease,
        wake: Wake::Poll,
        // The last commits may be missing after a loss of power, but so is every process that held: a new run of the
        // machine ends all holds, and lifts the counter to the time.
        durability: Durability::Process,
        clock: "all processes read one boot clock; the wall clock, which tokens follow, is not set back over a restart of the machine or while an old copy of the file is put back",
        min_ttl: Duration::from_millis(50),
        max_ttl: Duration::from_secs(100 * 365 * 86_400),
        claim_window: rows::CLAIM_WINDOW,
        limits: source.limits(),
    }
}

#[async_trait]
impl Engine for Sqlite {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let asked_at = Clock::Boot.now();
        let (action, claim) = (Action::About("take", claim.name.clone()), claim.clone());
        let work = move |visit: &mut thread::Visit<'_>| rows::place(visit, &claim, asked_at);
        self.queue.write_little(action, work).await?
    }

    /// Woken by whoever ends a hold, from whatever process; looks by itself with growing, random naps as well, since a
    /// ring may be lost.
    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        let Some(door) = self.doors.of(claim.id) else {
            return Ok(None);
        };
        loop {
            let wake_at = (Clock::Boot.now() + jitter(door.next_nap())).min(place.recheck);
            tokio::select! {
                () = door.rung() => {
                    door.stir();
                    return Ok(None);
                }
                () = Clock::Boot.sleep_until(wake_at) => {}
            }
            if wake_at == place.recheck {
                return Ok(None);
            }
            let (action, claim) = (Action::About("look at", claim.name.clone()), claim.clone());
            let work = move |visit: &mut thread::Visit<'_>| rows::has_changed(visit, &claim);
            if self.queue.read(action, work).await? {
                door.stir();
                return Ok(None);
            }
        }
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(held.len());
        for part in held.chunks(RENEWED_AT_ONCE) {
            let (asked_at, part) = (Clock::Boot.now(), part.to_vec());
            let work = move |visit: &mut thread::Visit<'_>| rows::renew(visit, &part, asked_at);
            match self.queue.renew(Action::Other("renew holds"), work).await {
                Ok(renewed) => renewals.extend(renewed),
                Err(error) => {
                    // The others would wait as long again, and validity does not.
                    let rest = held.len() - renewals.len();
                    renewals.extend(fencelock_sql::unknown(&*self.source, error, rest));
                    break;
                }
            }
        }
        renewals
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let (action, claim) = (Action::About("release", claim.name.clone()), claim.clone());
        let work = move |visit: &mut thread::Visit<'_>| rows::withdraw(visit, &claim, how);
        self.queue.write_little(action, work).await
    }

    /// A hold that was taken away or asked back, by this process or another, is told at once. Where the other cannot
    /// reach this process (another network namespace), the next renewal finds it.
    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        let listener = self.listener.lock();
        let listener = listener.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = listener {
            listener.end(self.queue.patience()).await;
        }
        self.queue.close().await
    }
}

#[async_trait]
impl Inspect for Sqlite {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let (action, wanted) = (Action::About("look at", name.clone()), name.clone());
        let work = move |visit: &mut thread::Visit<'_>| rows::look(visit, &wanted);
        self.queue.read(action, work).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let mut nap = FIRST_NAP;
        loop {
            let view = self.look(name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            let nap_end = Clock::Boot.now() + jitter(nap);
            Clock::Boot.sleep_until(nap_end).await;
            nap = longer(nap);
        }
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let prefix = prefix.to_owned();
        let work =
            move |visit: &mut thread::Visit<'_>| rows::list(visit, &prefix, at.as_ref(), limit);
        self.queue.read(Action::Other("list locks"), work).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let what = match how {
            Evict::Release => "take away",
            Evict::Ask => "ask for",
        };
        let (action, name) = (Action::About(what, name.clone()), name.clone());
        let work = move |visit: &mut thread::Visit<'_>| rows::evict(visit, &name, token, how);
        self.queue.write(action, work).await
    }
}

impl fmt::Display for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock_core::{ClaimIds, Mode};

    #[tokio::test]
    async fn a_waiter_looks_ever_more_seldom_also_over_rechecks() {
        let path = std::env::temp_dir().join(format!("fencelock-naps-{}", std::process::id()));
        let engine = Sqlite::at(&path).await.unwrap();
        let ids = ClaimIds::new().unwrap();
        let claim = || Claim {
            id: ids.next(),
            owner: "somebody".into(),
            name: LockName::new("job").unwrap(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(30),
            lock_delay: Duration::ZERO,
            wait: true,
            reserve: 1,
            record: true,
            label: None,
        };
        let (holder, waiter) = (claim(), claim());
        engine.place(&holder).await.unwrap();
        for _ in 0..16 {
            let Standing::Waiting(place) = engine.place(&waiter).await.unwrap() else {
                panic!("it is held");
            };
            let recheck = Clock::Boot.now() + Duration::from_millis(5);
            let place = Place { recheck, ..place };
            assert!(engine.wait(&waiter, &place).await.unwrap().is_none());
        }
        let door = engine.doors.of(waiter.id).unwrap();
        let waited = door.next_nap();
        assert!(waited > Duration::from_millis(400), "{waited:?}");
        // Until something changes.
        let Standing::Waiting(place) = engine.place(&waiter).await.unwrap() else {
            panic!("it is held");
        };
        engine.withdraw(&holder, Leave::Release).await.unwrap();
        assert!(engine.wait(&waiter, &place).await.unwrap().is_none());
        assert_eq!(door.next_nap(), FIRST_NAP);
        drop(engine);
        for suffix in ["", "-wal", "-shm"] {
            // A leftover in the temporary directory harms nobody.
            let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
        }
    }
}
