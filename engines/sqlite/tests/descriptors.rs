//! SQLite when file descriptors run out. It is a separate test binary, because it lowers the limit of the whole
//! process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::path::Path;

use fencelock_core::engine::{Claim, Leave, Standing};
use fencelock_core::{ClaimIds, Engine, LockName, StoreUrl};
use fencelock_sqlite::Sqlite;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[tokio::test]
async fn an_engine_without_a_socket_keeps_its_place_in_the_queue() {
    let name = format!("fencelock-descriptors-{}.db", std::process::id());
    let path = std::env::temp_dir().join(name);
    Sqlite::at(&path).await.unwrap().close().await.unwrap();

    let no_socket = open_with_the_fewest_descriptors(&path).await;
    let (a, b) = (
        Sqlite::at(&path).await.unwrap(),
        Sqlite::at(&path).await.unwrap(),
    );
    let (holder, first, second) = (claim(), claim(), claim());
    assert!(holds(&a, &holder).await);
    assert!(!holds(&no_socket, &first).await);
    assert!(!holds(&b, &second).await);
    // The failed wake-up may start work in this engine. Its later calls run after that work.
    a.withdraw(&holder, Leave::Release).await.unwrap();
    assert!(!holds(&a, &claim()).await);
    assert!(!holds(&b, &second).await, "it is not its turn");
    assert!(holds(&no_socket, &first).await);

    for suffix in ["", "-wal", "-shm"] {
        let file = format!("{}{suffix}", path.display());
        // A leftover in the temporary directory does no harm.
        let _ = std::fs::remove_file(file);
    }
}

/// Opens with just enough descriptors for the file. No descriptor is left for the socket, which is opened last.
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

/// Places the claim. `true` if it holds, `false` if it waits.
async fn holds(engine: &Sqlite, claim: &Claim) -> bool {
    match engine.place(claim).await.unwrap() {
        Standing::Held(_) => true,
        Standing::Waiting(_) => false,
        other => panic!("{other:?}, although the claim waits"),
    }
}

fn claim() -> Claim {
    let id = ClaimIds::new().unwrap().next();
    Claim::new(id, "somebody", LockName::new("job").unwrap())
}
