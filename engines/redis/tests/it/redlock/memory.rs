//! Nodes that have lost their memory, or whose clock was set, do not vote.

use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Grant, Leave, Renewal, Standing, Withdrawn};
use fencelock_core::{Clock, Engine, Error, Result, StoreUrl, Token};
use fencelock_redis::Redlock;
use fencelock_testbed::{ClockShim, Proxy, Redis};
use futures_util::future::join_all;

use super::nodes::{DELAY, MEMORY, Nodes, Store, age};
use crate::support::{ms, until};

fn not_granted(standing: &Result<Standing>) {
    let refused = matches!(
        standing,
        Ok(Standing::Busy) | Err(Error::Unavailable { .. })
    );
    assert!(refused, "{standing:?}");
}

/// New nodes may have lost locks: they wait, and the error says so.
#[tokio::test]
async fn fresh_nodes_do_not_vote_before_the_longest_lease_is_over() {
    let nodes = Nodes::start_fresh(Redis::builder);
    let begin = Instant::now();
    let store = nodes.open().await;
    let error = store.engine.place(&store.claim("a")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("3 of 5") && text.contains("votes in"),
        "{text}"
    );
    let (claim, _) = store.take("a").await;
    assert!(begin.elapsed() >= DELAY, "{:?}", begin.elapsed());
    store.release(&claim).await;
    // For later clients they vote at once.
    let other = nodes.open().await;
    assert!(!other.is_busy("a").await);
}

#[tokio::test]
async fn two_of_five_may_die_and_three_may_come_back() {
    let mut nodes = Nodes::start();
    let store = nodes.open().await;
    let (held, grant) = store.take("held").await;
    nodes.servers[0].kill9();
    nodes.servers[1].kill9();
    let (claim, first) = store.take("a").await;
    store.kept(&held, grant.tokens.first).await;
    assert_eq!(store.release(&claim).await, Withdrawn::Released);
    nodes.servers[2].kill9();
    let (port, killed) = (nodes.servers[2].port().to_string(), Instant::now());
    until("the loss is seen", || {
        nodes.servers[2].command::<String>(&["PING"]).is_err()
    })
    .await;
    let placed = store.engine.place(&store.claim("a")).await;
    let error = placed.expect_err("two nodes grant nothing");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("3 of 5") && text.contains(&port), "{text}");
    let renewal = store.renew(&held, grant.tokens.first).await;
    assert!(!matches!(renewal, Renewal::Kept { .. }), "{renewal:?}");
    for node in 0..3 {
        nodes.servers[node].restart_empty().unwrap();
    }
    let (claim, second) = store.take("a").await;
    assert!(killed.elapsed() >= DELAY, "{:?}", killed.elapsed());
    assert!(second.tokens.first > first.tokens.first);
    store.release(&claim).await;
}

/// A quorum of new nodes is enough. The other nodes may join later, one by one.
#[tokio::test]
async fn a_quorum_of_new_nodes_begins() {
    let mut nodes = Nodes::start();
    for node in [0, 3] {
        nodes.servers[node].kill9();
    }
    let store = nodes.open().await;
    let (claim, first) = store.take("a").await;
    store.release(&claim).await;
    // The others are started later, and learn the counters of these.
    for node in [0, 3] {
        nodes.servers[node].restart_empty().unwrap();
    }
    let votes = |node: usize| -> bool {
        let told = nodes.servers[node].command(&["HEXISTS", MEMORY, "run"]);
        told.unwrap()
    };
    until("they vote", || votes(0) && votes(3)).await;
    let (claim, second) = store.take("a").await;
    assert!(second.tokens.first > first.tokens.first);
    store.release(&claim).await;
}

/// One client holds at A, B and C; C is restarted without memory; another client asks C, D and E. With `delayed`, C must wait
/// before it votes. Returns the standing of the other client.
async fn restart_of_c(delayed: bool) -> (Store, Claim, Grant, Result<Standing>) {
    let mut nodes = Nodes::start();
    let open = async |url: &str| {
        let url = StoreUrl::parse(url).unwrap();
        let engine = match delayed {
            true => Redlock::connect(url).await,
            false => Redlock::connect_without_delayed_restart(url).await,
        };
        Store::new(engine.unwrap())
    };
    let one = open(&nodes.proxied_url()).await;
    // Now all nodes vote.
    let (claim, _) = one.take("before").await;
    one.release(&claim).await;
    nodes.cut_off(&[3, 4]);
    let (claim, grant) = one.take("a").await;
    nodes.await_held("a", 3).await;
    nodes.servers[2].restart_empty().unwrap();
    let two = open(&nodes.url()).await;
    let standing = two.engine.place(&two.claim("a")).await;
    // The first lease has not ended.
    assert!(Clock::Boot.now().since(grant.counted_from) < grant.lease);
    drop(nodes);
    (one, claim, grant, standing)
}

#[tokio::test]
async fn a_node_without_memory_grants_no_second_holder() {
    let (_one, _claim, _grant, standing) = restart_of_c(true).await;
    not_granted(&standing);
}

#[tokio::test]
async fn without_delayed_restart_there_are_two_holders() {
    let (_one, _claim, grant, standing) = restart_of_c(false).await;
    let Ok(Standing::Held(second)) = standing else {
        panic!("there is no second holder: {standing:?}");
    };
    // Even then the tokens are in order, so a fence refuses the first holder.
    assert!(second.tokens.first > grant.tokens.first);
}

/// A node whose clock is set forward loses its locks at once, and does not vote.
#[tokio::test]
async fn a_clock_that_jumps_gives_no_second_holder() {
    let shim = ClockShim::new().unwrap();
    let servers: Vec<Redis> = (0..5)
        .map(|i| match i {
            2 => Redis::builder().clock(&shim).start().unwrap(),
            _ => Redis::start().unwrap(),
        })
        .collect();
    let proxies = servers
        .iter()
        .map(|server| Proxy::start(server.port()).unwrap());
    let proxies = proxies.collect();
    let nodes = Nodes { servers, proxies };
    nodes.servers.iter().for_each(age);
    let (one, two) = (nodes.proxied().await, nodes.open().await);
    let (claim, _) = two.take("before").await;
    two.release(&claim).await;
    nodes.cut_off(&[3, 4]);
    let (claim, grant) = one.take("a").await;
    nodes.await_held("a", 3).await;
    shim.forward(Duration::from_secs(3600)).unwrap();
    assert_eq!(nodes.values("a")[2], None, "its lease is over there");
    // C, D and E would be a majority. The first answer of C shows that its clock was set, and its other votes are under way then.
    let claims = ["u", "v", "w", "x", "y", "z", "a"].map(|name| two.claim(name));
    let standings = join_all(claims.iter().map(|claim| two.engine.place(claim))).await;
    not_granted(&standings[claims.len() - 1]);
    for claim in &claims {
        let _ = two.engine.withdraw(claim, Leave::Release).await;
    }
    assert!(Clock::Boot.now().since(grant.counted_from) < grant.lease);
    one.release(&claim).await;
    // Later the node votes again.
    for node in [0, 1] {
        nodes.servers[node].kill9();
    }
    let (claim, second) = two.take("a").await;
    assert!(second.tokens.first > grant.tokens.first);
    two.release(&claim).await;
}

/// The counters of a node show that it was emptied while it was running.
#[tokio::test]
async fn an_emptied_node_does_not_vote() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.proxied().await, nodes.open().await);
    nodes.cut_off(&[3, 4]);
    let (claim, grant) = one.take("a").await;
    nodes.await_held("a", 3).await;
    nodes.servers[2].command::<()>(&["FLUSHALL"]).unwrap();
    for store in [two, nodes.open().await] {
        for record in [false, true] {
            let claim = store.claim("a").record(record);
            let standing = store.engine.place(&claim).await;
            not_granted(&standing);
        }
    }
    assert!(Clock::Boot.now().since(grant.counted_from) < grant.lease);
    one.release(&claim).await;
}

#[tokio::test]
async fn a_restarted_node_learns_the_counters_of_the_others() {
    let mut nodes = Nodes::start();
    let store = nodes.open().await;
    let mut last = 0;
    for _ in 0..30 {
        let (claim, grant) = store.take("a").await;
        last = grant.tokens.first.get();
        store.release(&claim).await;
    }
    nodes.servers[2].restart_empty().unwrap();
    let server = &nodes.servers[2];
    let told = || -> Vec<String> { server.command(&["HGETALL", MEMORY]).unwrap() };
    until("it votes again", || {
        told().iter().any(|field| field == "run")
    })
    .await;
    let told = told();
    let counters = told.chunks(2).filter(|pair| pair[0].parse::<u16>().is_ok());
    let highest = counters.map(|pair| pair[1].parse::<u64>().unwrap()).max();
    assert!(highest >= Some(last), "{highest:?} below {last}");
}

/// The clocks of all nodes are set right after their start, so that they report an uptime of an hour. Tried with a client that
/// was connected before, with a new one, and with nodes that have their memory.
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
        // The nodes vote, so later clients need not wait.
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

/// The wait of a node continues over several short-lived clients.
#[tokio::test]
async fn clients_of_one_machine_share_the_wait() {
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

/// An old file of one node is restored: the node has lost what it acknowledged since then.
#[tokio::test]
async fn tokens_still_grow_after_a_node_was_restored() {
    let mut nodes = Nodes::start_fresh(|| Redis::builder().append_only("always"));
    nodes.servers.iter().for_each(age);
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
    // Two other nodes are down, so its vote is needed.
    for node in [0, 1] {
        nodes.servers[node].kill9();
    }
    for store in [&after, &before] {
        pass(store).await;
    }
}
