//! A replica that ends or hangs, while another one serves.

use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::{Claim, ClaimIds, Leave, Standing, Withdrawn};
use fencelock::{Error, LockName, Memory, Release};
use fencelock_testbed::Flow;
use tokio::time::Instant;

use crate::{Replica, at_first, connect, soon, until, url, wait_for};

async fn two(memory: &Memory) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(Replica::start(Arc::new(memory.another())).await);
    }
    replicas
}

/// A hold and two places in the queue outlive a replica, whichever replica it is and whatever happens to it.
async fn outlives(harm: impl Fn(&mut Replica)) {
    for harmed in 0..2 {
        let memory = Memory::new();
        let mut replicas = two(&memory).await;
        // Claims of one client are spread over both replicas.
        let (one, other) = (
            connect(&url(&replicas)).await,
            connect(&url(&replicas)).await,
        );
        let third = connect(&url(&replicas)).await;
        let request = one.lock("a").ttl(Duration::from_secs(6));
        let guard = soon("the lock", request).await.unwrap();
        guard.refresh(Duration::from_secs(6)).await.unwrap();
        let first = wait_for(&other, "a");
        until("one waits", async || {
            one.look("a").await.unwrap().waiters.len() == 1
        })
        .await;
        let second = wait_for(&third, "a");
        until("two wait", async || {
            one.look("a").await.unwrap().waiters.len() == 2
        })
        .await;
        harm(&mut replicas[harmed]);
        // Longer than the store keeps a place without a request.
        for _ in 0..3 {
            soon("a renewal", guard.prolonged()).await;
        }
        assert!(guard.is_valid() && !first.is_finished() && !second.is_finished());
        assert_eq!(memory.len(), 1);
        let released = soon("the release", guard.release()).await;
        assert!(
            matches!(
                released,
                Ok(Release::Released) | Err(Error::Unavailable { .. })
            ),
            "{released:?}"
        );
        let first = soon("the first in the queue", first)
            .await
            .unwrap()
            .unwrap();
        assert!(!second.is_finished());
        drop(first);
        let second = soon("the second in the queue", second).await;
        drop(second.unwrap().unwrap());
        until("nothing is left", async || memory.is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_hold_nor_place_is_lost_by_a_killed_replica() {
    outlives(Replica::kill).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_hold_nor_place_is_lost_by_a_replica_that_hangs() {
    outlives(|replica| replica.proxy.both(Flow::Hold)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_not_sent_goes_to_the_next_replica() {
    let memory = Memory::new();
    let mut replicas = two(&memory).await;
    // Without the proxies, because a proxy accepts connections even when its server is down.
    let url = direct(&replicas);
    let clients = [connect(&url).await, connect(&url).await];
    replicas[0].kill();
    for client in &clients {
        // A request is in doubt if its connection ends during it.
        until("the end of a connection is noticed", async || {
            client.try_lock("a").await.is_ok()
        })
        .await;
    }
    for round in 0..10 {
        for client in &clients {
            let name = format!("a/{round}");
            let guard = soon("an answer", client.try_lock(&name)).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), Release::Released);
        }
    }
    // Also when the replica is no longer avoided.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    for client in &clients {
        let guard = soon("an answer", client.try_lock("a")).await.unwrap();
        guard.release().await.unwrap();
    }
    // Also when a client is opened.
    connect(&url).await;
    replicas[1].kill();
    let down = soon("an answer", clients[0].try_lock("a")).await;
    assert!(matches!(down, Err(Error::Unavailable { .. })), "{down:?}");
}

/// A request has no answer, its claim is taken and released through the other replica, and then the request arrives again.
/// Whether what it takes is released before its window is over.
async fn a_late_request_takes_for_less_than_a_window() -> bool {
    let memory = Memory::new();
    let replicas = two(&memory).await;
    let engine = at_first(&url(&replicas)).await;
    let ids = ClaimIds::with(engine.claim_ids().unwrap());
    let claim = Claim::new(ids.next(), "late", LockName::new("a").unwrap());
    let proxy = &replicas[0].proxy;
    proxy.keep();
    proxy.answers(Flow::Lose);
    let placed = soon("the lock", engine.place(&claim)).await;
    assert!(matches!(placed, Ok(Standing::Held(_))), "{placed:?}");
    let left = soon("a release", engine.withdraw(&claim, Leave::Release)).await;
    assert_eq!(left.unwrap(), Withdrawn::Released);
    assert!(memory.is_empty());
    proxy.repeat().unwrap();
    until("it holds", async || !memory.is_empty()).await;
    let begun = Instant::now();
    until("the lock is free", async || memory.is_empty()).await;
    let window = engine.promises().claim_window;
    begun.elapsed() < window * 3 / 4
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_late_request_takes_is_released_before_its_window_is_over() {
    // The machine may stand still during one of them.
    let mut tries = 1;
    while !a_late_request_takes_for_less_than_a_window().await {
        assert!(tries < 3, "it stays for a window");
        tries += 1;
    }
}

fn direct(replicas: &[Replica]) -> String {
    let address = |replica: &Replica| replica.server.as_ref().unwrap().address().to_string();
    let hosts: Vec<String> = replicas.iter().map(address).collect();
    format!("fencelock+http://{}", hosts.join(","))
}

/// The first answer of the working replica is lost, and the other one hangs. The second attempt does not wait for the hung one.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_hangs_does_not_delay_another_attempt_to_open() {
    let memory = Memory::new();
    let replicas = two(&memory).await;
    let (serves, hangs) = (&replicas[0].proxy, &replicas[1].proxy);
    serves.answers(Flow::Hold);
    hangs.both(Flow::Hold);
    // Too short for two attempts that each take the whole response-timeout.
    let url = format!("{}?response-timeout=3s&connect-timeout=6s", url(&replicas));
    let opening = tokio::spawn(async move { fencelock::connect(&url).await });
    until("the first request", async || serves.request_bytes() > 0).await;
    serves.reset();
    serves.answers(Flow::Pass);
    let client = soon("the store", opening).await.unwrap().unwrap();
    let guard = soon("the lock", client.lock("a")).await.unwrap();
    guard.release().await.unwrap();
}
