//! What Redlock's nodes and clients believe: only answers vote, and no clock that can be set lets a node vote.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, HeldClaim, Leave, LockView, Renewal, Standing};
use fencelock_core::{Client, Engine, Error, Sequencer, Token};
use fencelock_testbed::{ClockShim, Flow, Redis};

use crate::redlock::{DELAY, MEMORY, Nodes, Store, open, until, url};
use crate::support::ms;

/// Long enough for everything here, on a busy machine too.
const LONG: Duration = Duration::from_secs(29);

/// The same nodes, for leases that outlive a test, and with patience for a busy machine.
async fn patient(ports: impl IntoIterator<Item = u16>) -> Store {
    let url = url(ports, "").replace("max-ttl=1s", "max-ttl=30s");
    let url = url.replace("node-timeout=100ms", "node-timeout=1s");
    open(&url).await.unwrap()
}

fn long(store: &Store, name: &str) -> Claim {
    Claim {
        ttl: LONG,
        record: true,
        ..store.claim(name)
    }
}

async fn held(store: &Store, claim: &Claim) -> Token {
    match store.engine.place(claim).await {
        Ok(Standing::Held(grant)) => grant.tokens.first,
        other => panic!("{}: {other:?}", claim.name),
    }
}

/// Takes the lock at all five nodes: at first some may not be connected yet.
async fn held_at_all(nodes: &Nodes, store: &Store) -> (Claim, Token) {
    let begin = Instant::now();
    loop {
        let claim = long(store, "a");
        let token = held(store, &claim).await;
        tokio::time::sleep(ms(50)).await;
        if nodes.values("a").iter().flatten().count() == 5 {
            return (claim, token);
        }
        assert!(begin.elapsed() < ms(15_000), "some nodes do not vote");
        store.release(&claim).await;
        nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
    }
}

/// The lock, once nodes enough are connected again.
async fn soon_seen(store: &Store, claim: &Claim) -> LockView {
    let begin = Instant::now();
    loop {
        match store.engine.inspect().look(&claim.name).await {
            Ok(view) => return view,
            Err(error) => assert!(begin.elapsed() < ms(15_000), "{error}"),
        }
    }
}

/// One holds at all five, and its release does not reach the first. Another has the lock at the other four then; of those two
/// stop answering.
#[tokio::test]
async fn only_answers_vote_on_who_holds() {
    let nodes = Nodes::start();
    let one = patient(nodes.proxies.iter().map(|proxy| proxy.port())).await;
    let two = patient(nodes.servers.iter().map(Redis::port)).await;
    let looks = patient(nodes.servers.iter().map(Redis::port)).await;
    let client = Client::new(Arc::clone(&looks.engine) as Arc<dyn Engine>).unwrap();
    let election = client.election("a");

    let (first, first_token) = held_at_all(&nodes, &one).await;
    nodes.proxies[0].requests(Flow::Hold);
    one.release(&first).await;
    nodes.await_free("a", &[1, 2, 3, 4]).await;
    let second = long(&two, "a");
    let second_token = held(&two, &second).await;
    until("the others have the second", || {
        nodes.values("a").iter().flatten().count() == 5
    })
    .await;

    let sequencer = |claim: &Claim, token| Sequencer {
        name: claim.name.clone(),
        mode: claim.mode,
        token,
        claim: claim.id,
    };
    let (released, holding) = (
        sequencer(&first, first_token),
        sequencer(&second, second_token),
    );
    assert!(!client.check(&released).await.unwrap());
    assert!(client.check(&holding).await.unwrap());

    nodes.servers[3].pause().unwrap();
    nodes.servers[4].pause().unwrap();
    // One vote for the released grant, and two for the other: neither has a quorum among those that answer.
    for sequencer in [&released, &holding] {
        let error = client.check(sequencer).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let text = error.to_string();
        for (node, server) in nodes.servers.iter().enumerate() {
            // Each stands in the store's name.
            let named = text.matches(&server.port().to_string()).count();
            assert_eq!(named, if node < 3 { 1 } else { 2 }, "{text}");
        }
    }
    let leader = election.leader().await.unwrap_err();
    assert!(matches!(leader, Error::Unavailable { .. }), "{leader:?}");
    let vouched = looks
        .engine
        .inspect()
        .attest(&first.name, "tester")
        .await
        .unwrap_err();
    assert!(matches!(vouched, Error::Unavailable { .. }), "{vouched:?}");

    // Three that agree are enough.
    nodes.servers[3].resume().unwrap();
    let view = soon_seen(&looks, &first).await;
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert_eq!(view.holders[0].claim, Some(second.id));
    nodes.servers[0].pause().unwrap();
    nodes.servers[1].pause().unwrap();
    let error = client.check(&released).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    for node in [0, 1, 4] {
        nodes.servers[node].resume().unwrap();
    }
    two.release(&second).await;
}

/// Right after their start somebody sets the clocks of all nodes, whose uptime is an hour then: to a client that was connected
/// before, to a new one, and to nodes that have their memory.
#[tokio::test]
async fn a_clock_that_is_set_after_the_start_gives_no_early_vote() {
    let shim = ClockShim::new().unwrap();
    let mut nodes = Nodes::start_fresh(|| Redis::builder().append_only("always").clock(&shim));
    let hour = Duration::from_secs(3600);
    for fresh in [true, false] {
        let begin = Instant::now();
        let before = nodes.open().await;
        shim.forward(hour).unwrap();
        let after = nodes.open().await;
        for store in [&after, &before] {
            let placed = store.engine.place(&store.claim("a")).await;
            let granted = matches!(placed, Ok(Standing::Held(_)));
            assert!(!granted || begin.elapsed() >= DELAY, "{fresh}: {placed:?}");
        }
        let (claim, _) = after.take("a").await;
        assert!(begin.elapsed() >= DELAY, "{fresh}: {:?}", begin.elapsed());
        after.release(&claim).await;
        let (claim, _) = before.take("a").await;
        before.release(&claim).await;
        // They vote, so nobody who comes later waits.
        let late = nodes.open().await;
        let placed = late.engine.place(&late.claim("b")).await;
        assert!(matches!(placed, Ok(Standing::Held(_))), "{placed:?}");
        let watched: Option<String> = nodes.servers[0]
            .command(&["HGET", MEMORY, "watch"])
            .unwrap();
        assert_eq!(watched, None);
        for server in &mut nodes.servers {
            server.restart().unwrap();
        }
    }
}

/// Commands that live for a moment each see the wait to its end together.
#[tokio::test]
async fn clients_of_one_machine_go_on_with_each_others_wait() {
    let nodes = Nodes::start_fresh(Redis::builder);
    let first = || -> Option<String> {
        nodes.servers[0]
            .command(&["HGET", MEMORY, "watch"])
            .unwrap()
    };
    drop(nodes.open().await);
    let seen = first();
    assert!(seen.is_some());
    tokio::time::sleep(ms(200)).await;
    drop(nodes.open().await);
    assert_eq!(first(), seen);
}

#[tokio::test]
async fn a_hold_that_is_placed_again_stays_as_it_is() {
    let nodes = Nodes::start();
    let one = patient(nodes.servers.iter().map(Redis::port)).await;
    let two = patient(nodes.servers.iter().map(Redis::port)).await;
    for (record, renewed) in [(false, false), (true, false), (false, true), (true, true)] {
        let claim = Claim {
            record,
            ..long(&one, "a")
        };
        let token = held(&one, &claim).await;
        let renew = async |token: Token| {
            let held = HeldClaim {
                claim: claim.clone(),
                token,
            };
            one.engine.renew(&[held]).await.remove(0)
        };
        if renewed {
            assert!(matches!(renew(token).await, Renewal::Kept { .. }));
        }
        let late = Claim {
            ttl: ms(600),
            ..claim.clone()
        };
        assert_eq!(held(&one, &late).await, token);
        let view = two.engine.inspect().look(&claim.name).await.unwrap();
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
        nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
    }
}

/// The file of one node is put back: what it acknowledged since is undone there.
#[tokio::test]
async fn tokens_go_on_above_after_a_node_was_put_back() {
    let mut nodes = Nodes::start_fresh(|| Redis::builder().append_only("always"));
    nodes.servers.iter().for_each(crate::redlock::age);
    let before = nodes.open().await;
    let mut fence = Token(0);
    let mut pass = async |store: &Store| {
        let (claim, grant) = store.take("a").await;
        let token = grant.tokens.first;
        assert!(token > fence, "{token:?} after {fence:?}");
        fence = token;
        store.release(&claim).await;
    };
    pass(&before).await;
    nodes.servers[2].save().unwrap();
    for _ in 0..20 {
        pass(&before).await;
    }
    nodes.servers[2].restart_as_saved().unwrap();
    let after = nodes.open().await;
    for store in [&after, &before] {
        pass(store).await;
    }
    let server = &nodes.servers[2];
    let info: String = server.command(&["INFO", "server"]).unwrap();
    until("it votes again", || {
        let run: Option<String> = server.command(&["HGET", MEMORY, "run"]).unwrap();
        run.is_some_and(|run| info.contains(&format!("run_id:{run}")))
    })
    .await;
    // Two others are away, so its vote is needed.
    for node in [0, 1] {
        nodes.servers[node].kill9();
    }
    for store in [&after, &before] {
        pass(store).await;
    }
}
