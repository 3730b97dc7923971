//! Connections are kept, and those that ended are not used.

use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::{ClaimIds, Engine};
use fencelock::{LockName, Memory};
use fencelock_core::engine::{Claim, Leave, Standing, Withdrawn};
use fencelock_server::{Config, Server};

use crate::{serve, serve_as, soon, until};

async fn open(server: &Server) -> Arc<dyn Engine> {
    let url = format!("fencelock+http://{}", server.address());
    let engine = soon("opening the store", fencelock::open_engine(&url)).await;
    engine.unwrap()
}

async fn take_and_release(engine: &dyn Engine, ids: &ClaimIds, between: impl AsyncFnOnce()) {
    let name = LockName::new("lock").unwrap();
    let claim = Claim::new(ids.next(), "owner", name);
    let standing = engine.place(&claim).await.unwrap();
    assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
    between().await;
    let withdrawn = engine.withdraw(&claim, Leave::Release).await.unwrap();
    assert_eq!(withdrawn, Withdrawn::Released);
}

#[tokio::test]
async fn one_connection_serves_one_request_after_the_other() {
    let server = serve(Arc::new(Memory::new()), 0).await;
    let engine = open(&server).await;
    let ids = ClaimIds::with(engine.claim_ids().unwrap());
    for _ in 0..20 {
        take_and_release(&*engine, &ids, async || assert_eq!(server.connections(), 1)).await;
    }
    engine.close().await.unwrap();
    until("it has ended", async || server.connections() == 0).await;
}

#[tokio::test]
async fn a_connection_that_the_replica_has_closed_is_not_used() {
    let mut config = Config::trusting();
    config.limits.idle_timeout = Duration::from_millis(100);
    let server = serve_as(Arc::new(Memory::new()), config, 0).await;
    let engine = open(&server).await;
    let ids = ClaimIds::with(engine.claim_ids().unwrap());
    let closed = async || until("it is closed", async || server.connections() == 0).await;
    for _ in 0..3 {
        // No error: nothing of a request is sent before.
        closed().await;
        take_and_release(&*engine, &ids, closed).await;
    }
}
