//! Lost replies, late requests, and nodes that stop answering.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_core::engine::{
    Claim, Grant, HeldClaim, Leave, LockView, Renewal, Standing, Withdrawn,
};
use fencelock_core::{Client, Clock, Engine, Error, Sequencer, Token};
use fencelock_testbed::{Flow, Redis};

use super::nodes::{ALL, Nodes, Store, open, url};
use crate::support::{ms, until};

#[tokio::test]
async fn lost_replies_and_late_requests_hold_nothing_for_long() {
    let nodes = Nodes::start();
    let (far, near) = (nodes.proxied().await, nodes.open().await);
    let (claim, first) = far.take("a").await;
    far.release(&claim).await;
    let mut last = first.tokens.first;
    for (flow, answers) in [(Flow::Lose, true), (Flow::Hold, false), (Flow::Hold, true)] {
        for proxy in &nodes.proxies[..3] {
            match answers {
                true => proxy.answers(flow),
                false => proxy.requests(flow),
            }
        }
        let claim = far.claim("a");
        let error = far.engine.place(&claim).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("3 of 5"), "{error}");
        for proxy in &nodes.proxies[..3] {
            proxy.both(Flow::Pass);
            if flow == Flow::Lose {
                proxy.reset();
            }
        }
        let (claim, grant) = near.take("a").await;
        assert!(
            grant.tokens.first > last,
            "{:?} after {last:?}",
            grant.tokens
        );
        last = grant.tokens.first;
        near.kept(&claim, grant.tokens.first).await;
        assert_eq!(near.release(&claim).await, Withdrawn::Released);
    }
    nodes.await_free("a", &ALL).await;
}

/// A client may pause between its requests and the replies for longer than the lease. Then its grant has ended, and its token
/// belongs to no other. After a shorter pause it may continue.
#[tokio::test]
async fn a_pause_in_the_middle_of_an_acquisition_uses_up_the_lease() {
    let nodes = Nodes::start();
    let (far, near) = (nodes.proxied().await, nodes.open().await);
    let mut last = None;
    for pause in [ms(50), ms(3100)] {
        for plain in [true, false] {
            let claim = far.claim("a").record(!plain).ttl(ms(3000));
            nodes
                .proxies
                .iter()
                .for_each(|proxy| proxy.answers(Flow::Hold));
            let engine = Arc::clone(&far.engine);
            let placed = claim.clone();
            let standing = tokio::spawn(async move { engine.place(&placed).await });
            until("a majority has voted", || {
                nodes.values("a").iter().flatten().count() >= 3
            })
            .await;
            // The whole process pauses, and its clock continues.
            std::thread::sleep(pause);
            nodes
                .proxies
                .iter()
                .for_each(|proxy| proxy.both(Flow::Pass));
            let standing = standing.await.unwrap();
            let held = match &standing {
                Ok(Standing::Held(grant)) => Some(grant),
                _ => None,
            };
            let believes = |held: &&Grant| Clock::Boot.now().since(held.counted_from) < held.lease;
            if held.filter(believes).is_some() {
                assert!(near.is_busy("a").await || held.filter(believes).is_none());
                while far.engine.withdraw(&claim, Leave::Release).await.is_err() {}
            }
            let (next, grant) = near.take("a").await;
            assert!(held.filter(believes).is_none() || pause < claim.ttl);
            if let Some(held) = held {
                assert!(last < Some(held.tokens.first) && held.tokens.first < grant.tokens.first);
            }
            assert!(last < Some(grant.tokens.first));
            last = Some(grant.tokens.first);
            // Late requests of the first claim do not end the second one.
            while far.engine.withdraw(&claim, Leave::Release).await.is_err() {}
            near.kept(&next, grant.tokens.first).await;
            near.release(&next).await;
            nodes.await_free("a", &ALL).await;
        }
    }
}

/// Longer than any test here, even on a busy machine.
const LONG: Duration = Duration::from_secs(29);

/// A store for long leases, with timeouts for a busy machine.
async fn with_long_leases(ports: impl IntoIterator<Item = u16>) -> Store {
    let url = url(ports, "").replace("max-ttl=4s", "max-ttl=30s");
    let url = url.replace("node-timeout=300ms", "node-timeout=1s");
    open(&url).await.unwrap()
}

fn long(store: &Store, name: &str) -> Claim {
    store.claim(name).ttl(LONG).record(true)
}

/// Takes the lock at all five nodes: at the beginning some may not be connected yet.
async fn held_at_all(nodes: &Nodes, store: &Store) -> (Claim, Token) {
    let begin = Instant::now();
    loop {
        let claim = long(store, "a");
        let token = store.held(&claim).await.tokens.first;
        tokio::time::sleep(ms(50)).await;
        if nodes.values("a").iter().flatten().count() == 5 {
            return (claim, token);
        }
        assert!(begin.elapsed() < ms(15_000), "some nodes do not vote");
        store.release(&claim).await;
        nodes.await_free("a", &ALL).await;
    }
}

/// The lock, once enough nodes are connected again.
async fn soon_seen(store: &Store, claim: &Claim) -> LockView {
    let begin = Instant::now();
    loop {
        match store.engine.inspect().look(&claim.name).await {
            Ok(view) => return view,
            Err(error) => assert!(begin.elapsed() < ms(15_000), "{error}"),
        }
    }
}

/// One claim holds at all five nodes, and its release does not reach the first node. Another claim gets the lock at the
/// other four nodes. Then two of these stop answering.
#[tokio::test]
async fn only_answers_vote_on_who_holds() {
    let nodes = Nodes::start();
    let one = with_long_leases(nodes.proxies.iter().map(|proxy| proxy.port())).await;
    let two = with_long_leases(nodes.servers.iter().map(Redis::port)).await;
    let looks = with_long_leases(nodes.servers.iter().map(Redis::port)).await;
    let client = Client::new(Arc::clone(&looks.engine) as Arc<dyn Engine>).unwrap();
    let election = client.election("a");

    let (first, first_token) = held_at_all(&nodes, &one).await;
    nodes.proxies[0].requests(Flow::Hold);
    one.release(&first).await;
    nodes.await_free("a", &[1, 2, 3, 4]).await;
    let second = long(&two, "a");
    let second_token = two.held(&second).await.tokens.first;
    nodes.await_held("a", 5).await;
    // The nodes' counters differ at the beginning, and a quorum that agrees does not change the fifth one. So one vote may be
    // for another token. That node is not resumed at first, so that the other three decide.
    let word = format!(":{second_token}:");
    let values = nodes.values("a");
    let of_another_token = |node: &usize| {
        values[*node]
            .as_ref()
            .is_some_and(|value| !value.contains(&word))
    };
    let away = (1..5).find(of_another_token).unwrap_or(4);
    let back = if away == 3 { 4 } else { 3 };
    let third = (1..3).find(|node| *node != away).unwrap_or(1);

    let sequencer =
        |claim: &Claim, token| Sequencer::new(claim.name.clone(), claim.mode, token, claim.id);
    let (released, holding) = (
        sequencer(&first, first_token),
        sequencer(&second, second_token),
    );
    assert!(!client.check(&released).await.unwrap());
    assert!(client.check(&holding).await.unwrap());

    nodes.servers[away].pause().unwrap();
    nodes.servers[back].pause().unwrap();
    // One vote is for the released grant, and two are for the other one: neither is a quorum.
    for sequencer in [&released, &holding] {
        let error = client.check(sequencer).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let text = error.to_string();
        for (node, server) in nodes.servers.iter().enumerate() {
            // The store's name contains each port.
            let named = text.matches(&server.port().to_string()).count();
            assert_eq!(
                named,
                if [away, back].contains(&node) { 2 } else { 1 },
                "{text}"
            );
        }
    }
    let leader = election.leader().await.unwrap_err();
    assert!(matches!(leader, Error::Unavailable { .. }), "{leader:?}");
    let attested = looks
        .engine
        .inspect()
        .attest(&first.name, "tester")
        .await
        .unwrap_err();
    assert!(
        matches!(attested, Error::Unavailable { .. }),
        "{attested:?}"
    );

    // Three nodes that agree are enough.
    nodes.servers[back].resume().unwrap();
    let view = soon_seen(&looks, &first).await;
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert_eq!(view.holders[0].claim, Some(second.id));
    nodes.servers[0].pause().unwrap();
    nodes.servers[third].pause().unwrap();
    let error = client.check(&released).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    for node in [0, third, away] {
        nodes.servers[node].resume().unwrap();
    }
    two.release(&second).await;
}

#[tokio::test]
async fn placing_a_hold_again_does_not_change_it() {
    let nodes = Nodes::start();
    let one = with_long_leases(nodes.servers.iter().map(Redis::port)).await;
    let two = with_long_leases(nodes.servers.iter().map(Redis::port)).await;
    for (record, renewed) in [(false, false), (true, false), (false, true), (true, true)] {
        let claim = long(&one, "a").record(record);
        let token = one.held(&claim).await.tokens.first;
        let renew = async |token: Token| {
            let held = HeldClaim::new(claim.clone(), token);
            one.engine.renew(&[held]).await.remove(0)
        };
        if renewed {
            assert!(matches!(renew(token).await, Renewal::Kept { .. }));
        }
        let late = claim.clone().ttl(ms(600));
        assert_eq!(one.held(&late).await.tokens.first, token);
        let view = two.look(&claim.name).await;
        assert_eq!(view.token(), Some(token));
        let left = view.holders[0].ttl_left.unwrap();
        assert!(left > LONG / 3, "{left:?}");
        for other in [token.get() - 1, token.get() + 1] {
            let renewal = renew(Token(other)).await;
            assert!(matches!(renewal, Renewal::Lost), "{renewal:?}");
        }
        assert!(matches!(renew(token).await, Renewal::Kept { .. }));
        let withdrawn = one.engine.withdraw(&claim, Leave::Release).await;
        assert!(withdrawn.is_ok(), "{withdrawn:?}");
        nodes.await_free("a", &ALL).await;
    }
}
