//! The SQLite engine on real files. Two engines on one file act like two processes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod file;
mod harm;
mod leases;
mod namespaces;
mod queue;
mod restore;
mod tokens;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, HeldClaim, Place, Standing};
use fencelock_core::{BootInstant, ClaimIds, Clock, Engine, LockName, Mode, Token};
use fencelock_sqlite::Sqlite;

/// A temporary directory.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fencelock-sqlite-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("locks.db")
    }

    async fn open(&self) -> Arc<Sqlite> {
        Arc::new(Sqlite::at(self.file()).await.unwrap())
    }

    /// The file, opened without the engine.
    fn raw(&self) -> rusqlite::Connection {
        raw(&self.file())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A leftover in the temporary directory does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn raw(path: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    connection
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// A claim that waits, exclusive, for 30 seconds.
fn claim(text: &str) -> Claim {
    Claim::new(ClaimIds::new().unwrap().next(), "somebody", name(text))
}

fn shared(text: &str) -> Claim {
    claim(text).mode(Mode::Shared)
}

/// A claim that does not wait.
fn attempt(claim: Claim) -> Claim {
    claim.wait(false)
}

fn lasting(millis: u64, claim: Claim) -> Claim {
    claim.ttl(Duration::from_millis(millis))
}

fn held_claim(claim: &Claim, token: Token) -> HeldClaim {
    HeldClaim::new(claim.clone(), token)
}

async fn held(engine: &Sqlite, claim: &Claim) -> Grant {
    match engine.place(claim).await.unwrap() {
        Standing::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn waiting(engine: &Sqlite, claim: &Claim) -> Place {
    match engine.place(claim).await.unwrap() {
        Standing::Waiting(place) => place,
        other => panic!("{other:?}"),
    }
}

async fn busy(engine: &Sqlite, claim: &Claim) {
    let standing = engine.place(claim).await.unwrap();
    assert!(matches!(standing, Standing::Busy), "{standing:?}");
}

/// Waits as the core does: it places the claim, waits for a change or for the recheck time, and places it again.
async fn acquire(engine: &Sqlite, claim: &Claim) -> Grant {
    loop {
        match engine.place(claim).await.unwrap() {
            Standing::Held(grant) => return grant,
            Standing::Waiting(place) => {
                tokio::select! {
                    changed = engine.wait(claim, &place) => assert!(changed.unwrap().is_none()),
                    () = Clock::Boot.sleep_until(place.recheck) => {}
                }
            }
            other => panic!("{other:?}, although the claim waits"),
        }
    }
}

/// The number of rows of claims.
fn rows(directory: &Directory) -> i64 {
    let sql = "SELECT (SELECT count(*) FROM holders) + (SELECT count(*) FROM waiters)";
    let raw = directory.raw();
    raw.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn now() -> BootInstant {
    Clock::Boot.now()
}
