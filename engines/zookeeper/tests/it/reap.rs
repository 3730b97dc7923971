//! The reaper deletes the node of an ended hold, while the claim may be placed again.

use std::pin::pin;
use std::time::Duration;

use fencelock_core::engine::{Claim, ClaimIds, Engine, Leave, Standing, Withdrawn};
use fencelock_core::{LockName, StoreUrl};
use fencelock_testbed::{Flow, Proxy, ZooKeeper as Server};
use fencelock_zookeeper::ZooKeeper;
use futures_util::poll;

use crate::{connect, soon, until};

/// As after a pause of the holder: the reaper and the next placing of the claim both delete the old node, and the reaper's
/// request is the first. It must not end what the claim does next.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_placed_again_while_its_old_node_is_deleted_keeps_its_new_node() {
    // Sessions much longer than the hold: the connection outlasts the short silence.
    let limits = (Duration::from_secs(12), Duration::from_secs(60));
    let server = Server::builder().sessions(limits.0, limits.1);
    let server = server.start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let near = connect(&server.url()).await;
    let url = format!("zookeeper://127.0.0.1:{}", proxy.port());
    let engine = ZooKeeper::open(StoreUrl::parse(&url).unwrap())
        .await
        .unwrap();
    let ids = ClaimIds::new().unwrap();
    let claim = Claim::new(ids.next(), "me", LockName::new("a").unwrap());
    let claim = claim.ttl(Duration::from_millis(500));
    let first = soon("a grant", engine.place(&claim)).await.unwrap();
    let Standing::Held(first) = first else {
        panic!("{first:?}");
    };
    // Nobody renews it. The node goes, but the reaper does not learn it yet.
    proxy.answers(Flow::Hold);
    until("the reaper's request has arrived", async || {
        near.look("a").await.unwrap().holders.is_empty()
    })
    .await;
    let mut placing = pin!(engine.place(&claim));
    assert!(poll!(&mut placing).is_pending());
    proxy.answers(Flow::Pass);
    let second = soon("a new grant", placing).await.unwrap();
    let Standing::Held(second) = second else {
        panic!("{second:?}");
    };
    assert!(second.tokens.first > first.tokens.first);
    let view = near.look("a").await.unwrap();
    assert_eq!(view.token(), Some(second.tokens.first));
    let withdrawn = soon("its release", engine.withdraw(&claim, Leave::Release)).await;
    assert_eq!(withdrawn.unwrap(), Withdrawn::Released);
    assert!(near.look("a").await.unwrap().holders.is_empty());
    engine.close().await.unwrap();
}
