//! SQLite when file descriptors run out. A process of its own, since it lowers the limit of the whole process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, Standing};
use fencelock_core::{ClaimIds, Engine, LockName, Mode, StoreUrl};
use fencelock_sqlite::Sqlite;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[tokio::test]
async fn an_engine_that_got_no_socket_keeps_its_place_in_line() {
    let name = format!("fencelock-descriptors-{}.db", std::process::id());
    let path = std::env::temp_dir().join(name);
    Sqlite::at(&path).await.unwrap().close().await.unwrap();

    let deaf = open_with_the_fewest_descriptors(&path).await;
    let (a, b) = (
        Sqlite::at(&path).await.unwrap(),
        Sqlite::at(&path).await.unwrap(),
    );
    let (holder, first, second) = (claim(), claim(), claim());
    assert!(holds(&a, &holder).await);
    assert!(!holds(&deaf, &first).await);
    assert!(!holds(&b, &second).await);
    // Whatever the ring to the first in line sets off, the calls after it on the same engine come behind.
    a.withdraw(&holder, Leave::Release).await.unwrap();
    assert!(!holds(&a, &claim()).await);
    assert!(!holds(&b, &second).await, "it is not its turn");
    assert!(holds(&deaf, &first).await);

    for suffix in ["", "-wal", "-shm"] {
        let file = format!("{}{suffix}", path.display());
        // A leftover in the temporary directory harms nobody.
        let _ = std::fs::remove_file(file);
    }
}

/// Opens when there are just enough descriptors for the file, so none for the socket, which comes last.
async fn open_with_the_fewest_descriptors(path: &Path) -> Sqlite {
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(64),
        ..before
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let take = || File::open("/dev/null").ok();
    let mut taken: Vec<File> = std::iter::from_fn(take).collect();
    let url = format!("sqlite:{}?connect-timeout=1ms", path.display());
    let engine = loop {
        match Sqlite::open(StoreUrl::parse(&url).unwrap()).await {
            Ok(engine) => break engine,
            Err(error) => assert!(taken.pop().is_some(), "{error}"),
        }
    };
    assert!(take().is_none(), "a descriptor was left for the socket");
    setrlimit(Resource::Nofile, before).unwrap();
    engine
}

/// Places the claim: whether it holds, or else waits.
async fn holds(engine: &Sqlite, claim: &Claim) -> bool {
    match engine.place(claim).await.unwrap() {
        Standing::Held(_) => true,
        Standing::Waiting(_) => false,
        Standing::Busy => panic!("busy, though it was to wait"),
    }
}

fn claim() -> Claim {
    Claim {
        id: ClaimIds::new().unwrap().next(),
        owner: "somebody".into(),
        name: LockName::new("job").unwrap(),
        mode: Mode::Exclusive,
        ttl: Duration::from_secs(30),
        lock_delay: Duration::ZERO,
        wait: true,
        reserve: 1,
        record: true,
        label: None,
    }
}
