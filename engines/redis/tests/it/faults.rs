//! Connections that break, servers that hang or lose their scripts, requests that arrive late.

use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Evict, Leave, Renewal, Standing, Withdrawn};
use fencelock_core::{Engine, Error};
use fencelock_testbed::{Flow, Proxy, Redis as Server};
use futures_util::future::join_all;

use crate::support::{Store, calls, ms, open, open_with, server};

#[tokio::test]
async fn lost_scripts_are_sent_again() {
    let server = server();
    let store = open(&server.url()).await;
    let forget = || {
        let _: String = server.command(&["SCRIPT", "FLUSH"]).unwrap();
    };
    for claim in [store.claim("a"), store.shared("a"), store.plain("a")] {
        forget();
        let token = store.held(&claim).await.tokens.first;
        forget();
        let second = store.claim("a");
        let place = store.waits(&second).await;
        forget();
        store.kept(&claim, token).await;
        forget();
        store.look(&claim.name).await;
        forget();
        assert_eq!(store.release(&claim).await, Withdrawn::Released);
        let token = store.granted(&second, &place).await.tokens.first;
        forget();
        let ask = Evict::Ask;
        assert!(store.evict(&second.name, token, ask).await);
        assert_eq!(store.release(&second).await, Withdrawn::Released);
    }
}

/// Kills every connection of every store on the server.
fn kill_clients(server: &Server) {
    let _: i64 = server
        .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
        .unwrap();
}

#[tokio::test]
async fn a_waiter_loses_only_time_by_a_killed_connection() {
    let server = server();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let (first, second, third) = (store.claim("k"), store.claim("k"), other.claim("k"));
    let token = store.held(&first).await.tokens.first;
    let place = store.waits(&second).await;
    other.waits(&third).await;
    kill_clients(&server);
    // The waiter is placed again once the connection is replaced, and keeps its place.
    let changed = tokio::time::timeout(ms(15_000), store.engine.wait(&second, &place)).await;
    assert!(changed.unwrap().unwrap().is_none());
    let place = store.waits(&second).await;
    assert_eq!(place.ahead, Some(0));
    // The hold continues.
    store.kept(&first, token).await;
    assert_eq!(store.release(&first).await, Withdrawn::Released);
    store.granted(&second, &place).await;
    store.release(&second).await;
    other.lock(&third).await;
}

#[tokio::test]
async fn a_skipped_waiter_keeps_its_place() {
    let server = server();
    let proxy = Proxy::start(server.port()).unwrap();
    let (store, away) = (
        open(&server.url()).await,
        open(&server.url_at(proxy.port())).await,
    );
    let first = store.claim("s");
    store.held(&first).await;
    let (second, third, fourth) = (away.claim("s"), store.claim("s"), store.claim("s"));
    let place = away.waits(&second).await;
    store.waits(&third).await;
    store.waits(&fourth).await;
    proxy.refuse(true).unwrap();
    kill_one(&server, &proxy);
    store.release(&first).await;
    // The second waiter is skipped: the third one holds.
    let grant = store.lock(&third).await;
    assert!(grant.tokens.first.get() > 0);
    proxy.refuse(false).unwrap();
    let changed = tokio::time::timeout(ms(15_000), away.engine.wait(&second, &place)).await;
    assert!(changed.unwrap().unwrap().is_none());
    assert_eq!(
        away.waits(&second).await.ahead,
        Some(0),
        "before the fourth"
    );
    let place = store.waits(&fourth).await;
    assert_eq!(place.ahead, Some(1));
}

/// Cuts the connections through the proxy, and waits until the server has noticed.
fn kill_one(server: &Server, proxy: &Proxy) {
    proxy.reset();
    let begin = Instant::now();
    while server
        .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "fencelock:*"])
        .unwrap()
        .len()
        > 1
    {
        assert!(begin.elapsed() < Duration::from_secs(5));
        std::thread::sleep(ms(2));
    }
}

#[tokio::test]
async fn a_hung_server_gives_errors_in_time_and_is_used_again() {
    let server = server();
    let store = open_with(&server, "response-timeout=1s").await;
    let claim = store.claim("h");
    let token = store.held(&claim).await.tokens.first;
    server.pause().unwrap();
    let begin = Instant::now();
    for _ in 0..2 {
        let error = store.engine.place(&store.claim("h2")).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        let renewed = store.renew(&claim, token).await;
        assert!(matches!(renewed, Renewal::Unknown(_)), "{renewed:?}");
    }
    // Four calls. Each one ends after the response timeout, although the server also accepts no connection.
    assert!(begin.elapsed() < ms(8000), "{:?}", begin.elapsed());
    server.resume().unwrap();
    let begin = Instant::now();
    while !matches!(store.renew(&claim, token).await, Renewal::Kept { .. }) {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(store.release(&claim).await, Withdrawn::Released);
}

#[tokio::test]
async fn a_restart_with_memory_changes_nothing() {
    let mut server = Server::builder().append_only("always").start().unwrap();
    let store = open(&server.url()).await;
    let (first, second) = (store.claim("r"), store.claim("r"));
    let token = store.held(&first).await.tokens.first;
    store.waits(&second).await;
    server.restart().unwrap();
    let begin = Instant::now();
    while !matches!(store.renew(&first, token).await, Renewal::Kept { .. }) {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    let place = store.waits(&second).await;
    assert_eq!(place.ahead, Some(0));
    assert_eq!(store.release(&first).await, Withdrawn::Released);
    assert!(store.granted(&second, &place).await.tokens.first > token);
}

/// Whether a withdrawal got an answer although an earlier request of the claim may still take effect.
fn may_take_effect(withdrawn: &Result<Withdrawn, Error>) -> bool {
    let why = "an earlier request may still take effect";
    matches!(withdrawn, Err(error) if error.is_away() && error.to_string().contains(why))
}

/// Withdraws like the core, until the result is final.
async fn withdraw_finally(store: &Store, claim: &Claim) -> Withdrawn {
    let begin = Instant::now();
    loop {
        match store.engine.withdraw(claim, Leave::Release).await {
            Ok(withdrawn) => return withdrawn,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(ms(5)).await;
    }
}

/// A fault that happened: a withdrawal over a new connection found nothing, and then the delayed request ran.
#[tokio::test]
async fn a_late_request_leaves_no_holder() {
    let server = server();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = format!(
        "{}?response-timeout=60ms&connect-timeout=400ms",
        server.url_at(proxy.port())
    );
    let store = open(&url).await;
    for round in 0..12 {
        let name = format!("g/{round}");
        let claim = match round % 3 {
            0 => store.plain(&name),
            1 => store.claim(&name),
            _ => store.shared(&name),
        };
        proxy.requests(Flow::Hold);
        let error = store.engine.place(&claim).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        if round % 2 == 0 {
            // Long enough that the connection is replaced.
            for _ in 0..4 {
                assert!(store.engine.withdraw(&claim, Leave::Release).await.is_err());
            }
        }
        proxy.requests(Flow::Pass);
        withdraw_finally(&store, &claim).await;
        let holds = || server.command::<i64>(&["EXISTS", &name]).unwrap();
        assert_eq!(holds(), 0, "{name} is held");
        // When the proxy returns the answer to this, every delayed request has arrived, except over connections that
        // the server has ended.
        while store.engine.inspect().look(&claim.name).await.is_err() {}
        assert_eq!(holds(), 0, "{name} is held later");
    }
}

/// With a user who may not end connections.
fn server_without_kill() -> Server {
    let rights = "~* &* +@all -client|kill";
    let builder = Server::builder().user("limited", "secret", rights);
    builder.start().unwrap()
}

fn without_kill(port: u16, options: &str) -> String {
    format!("redis://limited:secret@127.0.0.1:{port}?{options}")
}

#[tokio::test]
async fn without_the_right_to_end_connections_a_withdrawal_is_not_final() {
    let server = server_without_kill();
    let proxy = Proxy::start(server.port()).unwrap();
    let store = open(&without_kill(proxy.port(), "response-timeout=100ms")).await;
    let claim = store.plain("m");
    proxy.answers(Flow::Lose);
    assert!(store.engine.place(&claim).await.is_err());
    proxy.answers(Flow::Pass);
    proxy.reset();
    let begin = Instant::now();
    // Wait until the connection is replaced.
    while !may_take_effect(&store.engine.withdraw(&claim, Leave::Release).await) {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(server.command::<i64>(&["EXISTS", "m"]).unwrap(), 0);
}

/// The first request may still run after the claim has held and was released.
#[tokio::test]
async fn a_grant_does_not_end_an_earlier_request() {
    let server = server_without_kill();
    let proxy = Proxy::start(server.port()).unwrap();
    let store = open(&without_kill(proxy.port(), "response-timeout=100ms")).await;
    let claim = store.plain("e").ttl(ms(1500));
    proxy.answers(Flow::Lose);
    assert!(store.engine.place(&claim).await.is_err());
    proxy.answers(Flow::Pass);
    proxy.reset();
    store.lock(&claim).await;
    let begin = Instant::now();
    let withdraw = async || store.engine.withdraw(&claim, Leave::Release).await;
    let mut withdrawn = withdraw().await;
    assert!(may_take_effect(&withdrawn), "{withdrawn:?}");
    assert_eq!(server.command::<i64>(&["EXISTS", "e"]).unwrap(), 0);
    // After twice the lease, a key from that request would have expired.
    while withdrawn.as_ref().is_err_and(Error::is_retryable) {
        assert!(begin.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(ms(20)).await;
        withdrawn = withdraw().await;
    }
    assert_eq!(withdrawn.unwrap(), Withdrawn::Expired);
}

/// A later unanswered request, over a connection that still exists, does not replace the earlier one.
#[tokio::test]
async fn two_unanswered_requests_are_both_remembered() {
    let server = server_without_kill();
    let proxy = Proxy::start(server.port()).unwrap();
    let store = open(&without_kill(proxy.port(), "response-timeout=200ms")).await;
    let claim = store.plain("two");
    proxy.answers(Flow::Lose);
    assert!(store.engine.place(&claim).await.is_err());
    proxy.answers(Flow::Pass);
    proxy.reset();
    let begin = Instant::now();
    while store.engine.inspect().look(&claim.name).await.is_err() {
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
    proxy.answers(Flow::Hold);
    assert!(store.engine.place(&claim).await.is_err());
    proxy.answers(Flow::Pass);
    let withdrawn = store.engine.withdraw(&claim, Leave::Release).await;
    assert!(may_take_effect(&withdrawn), "{withdrawn:?}");
}

/// Concurrent withdrawals all try to end the same connections, without success.
#[tokio::test]
async fn concurrent_withdrawals_are_not_mistaken_for_final() {
    let server = server_without_kill();
    let replica = Server::start().unwrap();
    let port = server.port().to_string();
    replica
        .command::<()>(&["REPLICAOF", "127.0.0.1", &port])
        .unwrap();
    let url = without_kill(server.port(), "replicas=1&response-timeout=200ms");
    let store = open(&url).await;
    let claims = || -> Vec<Claim> { (0..4).map(|i| store.claim(&format!("w/{i}"))).collect() };
    // This opens the connections for writing.
    let first = claims();
    join_all(first.iter().map(|claim| store.lock(claim))).await;
    for claim in &first {
        // On a busy machine the withdrawal may not be final.
        drop(store.engine.withdraw(claim, Leave::Release).await);
    }
    let second = claims();
    server.pause().unwrap();
    let placed = join_all(second.iter().map(|claim| store.engine.place(claim))).await;
    server.resume().unwrap();
    assert!(placed.iter().all(Result::is_err), "{placed:?}");
    let begin = Instant::now();
    while store.engine.inspect().look(&second[0].name).await.is_err() {
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
    let withdraw = |claim| store.engine.withdraw(claim, Leave::Release);
    let withdrawn = join_all(second.iter().map(withdraw)).await;
    assert!(withdrawn.iter().all(may_take_effect), "{withdrawn:?}");
}

#[tokio::test]
async fn grants_that_wait_for_replicas_do_not_delay_a_renewal() {
    let server = server();
    let plain = open(&server.url()).await;
    let held = plain.claim("r");
    let token = plain.held(&held).await.tokens.first;
    let store = open_with(&server, "replicas=1&response-timeout=3s").await;
    let claims: Vec<Claim> = (0..12).map(|i| store.claim(&format!("r/{i}"))).collect();
    // Four grants at a time wait, each for half a second.
    let placed = join_all(claims.iter().map(|claim| store.engine.place(claim)));
    let (placed, renewed) = tokio::join!(placed, store.renew(&held, token));
    assert!(placed.iter().all(Result::is_err));
    let Renewal::Unknown(error) = renewed else {
        panic!("{renewed:?}");
    };
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
}

#[tokio::test]
async fn too_few_replicas_break_no_connection() {
    let server = server();
    let store = open_with(&server, "replicas=1&response-timeout=500ms").await;
    let claim = store.claim("s");
    assert!(store.engine.place(&claim).await.is_err());
    // Each new connection sends this command.
    let before = calls(&server, "client|id");
    for _ in 0..4 {
        let error = store.engine.place(&claim).await.unwrap_err();
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    }
    assert_eq!(calls(&server, "client|id"), before);
}

/// A message over the new connection may announce a grant that an earlier reply over the old connection already
/// contains.
#[tokio::test]
async fn a_hold_is_not_released_after_a_reconnect() {
    let server = server();
    let store = open(&server.url()).await;
    let claim = store.claim("gb");
    let token = store.held(&claim).await.tokens.first;
    kill_clients(&server);
    let begin = Instant::now();
    while !matches!(store.renew(&claim, token).await, Renewal::Kept { .. }) {
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
    let channels: Vec<String> = server
        .command(&["PUBSUB", "CHANNELS", "fencelock:*"])
        .unwrap();
    let push = format!("g{}:{token}:1:gb", claim.id);
    for channel in &channels {
        let heard: i64 = server.command(&["PUBLISH", channel, &push]).unwrap();
        assert_eq!(heard, 1);
    }
    for _ in 0..20 {
        // The replies arrive after the message, and after the withdrawal if the message caused one.
        store.look(&claim.name).await;
    }
    store.kept(&claim, token).await;
}

#[tokio::test]
async fn the_server_refuses_a_place_after_its_deadline() {
    let server = server();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = format!("{}?response-timeout=50ms", server.url_at(proxy.port()));
    let store = open(&url).await;
    // The server gets the scripts from a client that has time.
    let patient = open(&server.url()).await;
    let claim = patient.claim("late");
    patient.held(&claim).await;
    patient.release(&claim).await;
    proxy.requests(Flow::Hold);
    let second = store.claim("late");
    assert!(store.engine.place(&second).await.is_err());
    tokio::time::sleep(ms(250)).await;
    proxy.requests(Flow::Pass);
    // When a later request over the same connection has its answer, the script has run.
    let begin = Instant::now();
    while store.engine.inspect().look(&second.name).await.is_err() {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(server.command::<i64>(&["EXISTS", "late"]).unwrap(), 0);
}

#[tokio::test]
async fn no_lock_is_taken_on_a_replica() {
    let (server, replica) = (server(), server());
    let store = open(&replica.url()).await;
    let claim = store.plain("a");
    store.held(&claim).await;
    let port = server.port().to_string();
    let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let error = loop {
        match store.engine.place(&store.claim("b")).await {
            Err(error) => break error,
            Ok(standing) => assert!(matches!(standing, Standing::Held(_)), "{standing:?}"),
        }
    };
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let _: String = replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    store.lock(&store.claim("c")).await;
}
