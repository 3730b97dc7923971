//! Grants, renewals, releases and promises of five nodes.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Event, Evict, Leave, Renewal, Standing, Withdrawn};
use fencelock_core::{Clock, Engine, Order};
use fencelock_testbed::{Flow, Redis};
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::nodes::{ALL, MAX_TTL, MEMORY, Nodes, open, url};
use crate::support::{calls, ms};

#[tokio::test]
async fn takes_renews_and_releases_with_growing_tokens() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.open().await, nodes.open().await);
    let mut last = 0;
    for _ in 0..20 {
        for store in [&one, &two] {
            let (claim, grant) = store.take("a").await;
            let token = grant.tokens.first.get();
            assert!(token > last && token < 1 << 53, "{token} after {last}");
            last = token;
            assert!(matches!(
                store.engine.place(&store.claim("a")).await,
                Ok(Standing::Busy)
            ));
            let renewal = store.renew(&claim, grant.tokens.first).await;
            assert!(
                matches!(renewal, Renewal::Kept { asked: false, .. }),
                "{renewal:?}"
            );
            let view = two.look(&claim.name).await;
            assert_eq!(view.holders[0].claim, Some(claim.id));
            assert_eq!(view.token(), Some(grant.tokens.first));
            assert_eq!(store.release(&claim).await, Withdrawn::Released);
            assert_eq!(store.release(&claim).await, Withdrawn::Expired);
        }
    }
    nodes.await_free("a", &ALL).await;
    // Each node has one hash of fixed size, however many names were used.
    for server in &nodes.servers {
        let keys: Vec<String> = server.command(&["KEYS", "*"]).unwrap();
        assert_eq!(keys, [MEMORY]);
        let fields: u64 = server.command(&["HLEN", MEMORY]).unwrap();
        assert!((4096 + 3..=4096 + 4).contains(&fields), "{fields}");
    }
}

#[tokio::test]
async fn concurrent_requests_go_out_together_and_in_order() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    let claims: Vec<_> = (0..64)
        .map(|number| store.claim(&number.to_string()))
        .collect();
    // The first round makes the counters of the nodes equal.
    for first in [true, false] {
        let before = calls(&nodes.servers[0], "time");
        let placed = join_all(claims.iter().map(|claim| store.engine.place(claim))).await;
        for standing in placed {
            assert!(matches!(standing, Ok(Standing::Held(_))), "{standing:?}");
        }
        // One reading of the clock for all requests, and some in the background.
        let looked = calls(&nodes.servers[0], "time") - before;
        assert!(first || (1..=8).contains(&looked), "{looked}");
        let released = claims
            .iter()
            .map(|claim| store.engine.withdraw(claim, Leave::Release));
        for withdrawn in join_all(released).await {
            assert_eq!(withdrawn.unwrap(), Withdrawn::Released);
        }
    }
    // These futures are dropped. Their withdrawals still come after their requests.
    for claim in &claims {
        assert!(store.engine.place(claim).now_or_never().is_none());
        let withdrawn = store.engine.withdraw(claim, Leave::Abandon).await;
        assert_eq!(withdrawn.unwrap(), Withdrawn::Released);
    }
    for name in (0..64).map(|number| number.to_string()) {
        nodes.await_free(&name, &ALL).await;
    }
}

#[tokio::test]
async fn a_second_round_agrees_when_counters_differ() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    let (claim, first) = store.take("a").await;
    store.release(&claim).await;
    nodes.await_free("a", &ALL).await;
    for (node, by) in [(0, "5"), (1, "900"), (2, "70"), (3, "3")] {
        for bucket in 0..4096 {
            let bucket = bucket.to_string();
            nodes.servers[node]
                .command::<i64>(&["HINCRBY", MEMORY, &bucket, by])
                .unwrap();
            if node == 3 {
                break;
            }
        }
    }
    let (claim, second) = store.take("a").await;
    assert!(second.tokens.first > first.tokens.first);
    assert!(second.recorded);
    store.release(&claim).await;
    nodes.await_free("a", &ALL).await;
    let (claim, third) = store.take("a").await;
    assert!(third.tokens.first > second.tokens.first);
    store.release(&claim).await;
}

/// The first node that releases wakes the waiter.
#[tokio::test]
async fn a_release_wakes_a_waiter() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.open().await, nodes.open().await);
    let (held, _) = one.take("a").await;
    let claim = two.claim("a").wait(true);
    let Ok(Standing::Waiting(place)) = two.engine.place(&claim).await else {
        panic!("it waits");
    };
    let (engine, waiting) = (Arc::clone(&two.engine), claim.clone());
    let changed = tokio::spawn(async move { engine.wait(&waiting, &place).await });
    assert_eq!(one.release(&held).await, Withdrawn::Released);
    let changed = tokio::time::timeout(Duration::from_secs(5), changed).await;
    assert!(changed.unwrap().unwrap().unwrap().is_none());
    let held = two.engine.place(&claim).await;
    assert!(matches!(held, Ok(Standing::Held(_))), "{held:?}");
    two.release(&claim).await;
    nodes.await_free("a", &ALL).await;
}

#[tokio::test]
async fn an_eviction_is_for_one_token_and_reaches_the_holder() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.open().await, nodes.open().await);
    let claim = one.claim("a").record(true);
    let Ok(Standing::Held(grant)) = one.engine.place(&claim).await else {
        panic!("it is free");
    };
    let token = grant.tokens.first;
    let other = fencelock_core::Token(token.get() + 1);
    assert!(!two.evict(&claim.name, other, Evict::Release).await);
    assert!(two.evict(&claim.name, token, Evict::Ask).await);
    let mut events = one.engine.events().unwrap();
    let asked = tokio::time::timeout(Duration::from_secs(5), events.next()).await;
    assert_eq!(asked.unwrap().unwrap().unwrap(), Event::Asked(claim.id));
    let renewal = one.renew(&claim, grant.tokens.first).await;
    assert!(
        matches!(renewal, Renewal::Kept { asked: true, .. }),
        "{renewal:?}"
    );
    assert!(two.evict(&claim.name, token, Evict::Release).await);
    let lost = async {
        loop {
            let event = events.next().await.unwrap().unwrap();
            if event == Event::Lost(claim.id) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), lost)
        .await
        .unwrap();
    one.lost(&claim, grant.tokens.first).await;
    assert!(!two.is_busy("a").await);
}

#[tokio::test]
async fn other_redlock_clients_and_this_one_exclude_each_other() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    let (claim, _) = store.take("a").await;
    let clients = nodes.servers.iter().map(|server| server.url());
    let foreign = rslock::LockManager::new(clients.collect::<Vec<_>>());
    let ttl = Duration::from_secs(30);
    assert!(foreign.lock("a", ttl).await.is_err());
    assert_eq!(store.release(&claim).await, Withdrawn::Released);
    nodes.await_free("a", &ALL).await;
    let theirs = foreign.lock("a", ttl).await.unwrap();
    assert!(store.is_busy("a").await);
    let view = store.look(&claim.name).await;
    assert_eq!((view.holders.len(), view.holders[0].claim), (1, None));
    foreign.unlock(&theirs).await;
    let (claim, _) = store.take("a").await;
    store.release(&claim).await;
}

#[tokio::test]
async fn validity_counts_from_before_the_first_request() {
    let nodes = Nodes::start();
    let far = nodes.proxied().await;
    for proxy in &nodes.proxies {
        proxy.answers(Flow::Delay(ms(60)));
    }
    let before = Clock::Boot.now();
    let (claim, grant) = far.take("a").await;
    let took = Clock::Boot.now().since(grant.counted_from);
    assert!(grant.counted_from >= before && took >= ms(60), "{took:?}");
    far.release(&claim).await;
}

#[tokio::test]
async fn promises_follow_the_options() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    let promises = store.engine.promises();
    assert_eq!(promises.max_ttl, MAX_TTL);
    assert_eq!(promises.min_ttl, ms(1500));
    assert_eq!(promises.order, Order::Unordered);
    assert!(!promises.shared && !promises.permits && promises.lock_delay);
    assert!(promises.limits.is_empty(), "{:?}", promises.limits);
}

/// After a split vote the first node is asked alone; the claim that gets this node also gets the others.
#[tokio::test]
async fn with_a_gate_a_contended_lock_is_granted_soon() {
    let nodes = Nodes::start();
    let url = url(
        nodes.servers.iter().map(Redis::port),
        "&first-node-gate=yes",
    );
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let store = open(&url).await.unwrap();
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..10 {
                let (claim, grant) = store.take("a").await;
                tokens.push(grant.tokens.first);
                store.release(&claim).await;
            }
            tokens
        }));
    }
    let mut all = std::collections::BTreeSet::new();
    for task in tasks {
        let tokens = task.await.unwrap();
        assert!(tokens.is_sorted(), "{tokens:?}");
        all.extend(tokens);
    }
    assert_eq!(all.len(), 40);
}

/// The undo of an attempt without an answer may arrive after a renewal has made that attempt part of a grant.
#[tokio::test]
async fn a_late_undo_spares_what_a_renewal_has_made_a_grant() {
    let server = crate::support::server();
    let attempt = format!("fl1:{:032x}:1:", 7);
    let mark = format!("fl1:{:032x}:", 7);
    let run = |script: &str, arguments: &[&str]| -> Vec<i64> {
        let script = &["EVAL", script][..];
        server.command(&[script, arguments].concat()).unwrap()
    };
    let undo = || -> i64 {
        let script = include_str!("../../../src/scripts/redlock_withdraw.lua");
        let arguments = ["2", "x", "queue", &attempt, "undo"];
        server
            .command(&[&["EVAL", script][..], &arguments].concat())
            .unwrap()
    };
    let exists = || -> i64 { server.command(&["EXISTS", "x"]).unwrap() };
    for (renewed, answer) in [(false, 1), (true, 4)] {
        let value = format!("{attempt}1:5:10000:0:0:rest");
        let _: String = server
            .command(&["SET", "x", &value, "PX", "10000"])
            .unwrap();
        if renewed {
            let script = include_str!("../../../src/scripts/redlock_renew.lua");
            assert_eq!(run(script, &["1", "x", &mark, "5", "20000"]), [1]);
        }
        assert_eq!(undo(), answer);
        assert_eq!(exists(), i64::from(renewed));
    }
}
