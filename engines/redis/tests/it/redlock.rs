//! Five servers of which a majority decides, on good days and bad ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Evict, Grant, Leave, Place, Renewal, Standing, Withdrawn};
use fencelock_core::{ClaimIds, Clock, Engine, Error, LockName, Mode, Result, StoreUrl};
use fencelock_redis::Redlock;
use fencelock_testbed::{
    ClockShim, Flow, Proxy, Redis, RedisBuilder, Redlock as Group, seen_long_ago,
};
use futures_util::FutureExt;
use futures_util::future::join_all;

use crate::support::{calls, ms};

/// Where a node keeps what it remembers.
pub(crate) const MEMORY: &str = "fencelock:redlock";
/// The shortest that is far above the node-timeout, so that what waits for it is over soon.
const MAX_TTL: Duration = Duration::from_secs(1);
/// So long a node that was restarted does not vote.
pub(crate) const DELAY: Duration = Duration::from_secs(3);

/// Five servers, each behind a proxy.
pub(crate) struct Nodes {
    pub(crate) servers: Vec<Redis>,
    pub(crate) proxies: Vec<Proxy>,
}

impl Nodes {
    /// Five that were seen long ago.
    pub(crate) fn start() -> Self {
        let nodes = Self::start_fresh(Redis::builder);
        for server in &nodes.servers {
            age(server);
        }
        nodes
    }

    pub(crate) fn start_fresh(builder: impl Fn() -> RedisBuilder) -> Self {
        let servers: Vec<Redis> = (0..5).map(|_| builder().start().unwrap()).collect();
        let proxies = servers.iter().map(|server| Proxy::start(server.port()));
        let proxies = proxies.map(|proxy| proxy.unwrap()).collect();
        Self { servers, proxies }
    }

    pub(crate) fn url(&self) -> String {
        url(self.servers.iter().map(Redis::port), "")
    }

    pub(crate) fn proxied_url(&self) -> String {
        url(self.proxies.iter().map(Proxy::port), "")
    }

    pub(crate) async fn open(&self) -> Store {
        open(&self.url()).await.unwrap()
    }

    pub(crate) async fn proxied(&self) -> Store {
        open(&self.proxied_url()).await.unwrap()
    }

    /// Who holds at each node, as its value says.
    pub(crate) fn values(&self, name: &str) -> Vec<Option<String>> {
        let servers = self.servers.iter();
        servers
            .map(|server| server.command(&["GET", name]).unwrap())
            .collect()
    }

    pub(crate) async fn await_free(&self, name: &str, nodes: &[usize]) {
        let free = |node: &usize| -> bool {
            let exists: u64 = self.servers[*node].command(&["EXISTS", name]).unwrap();
            exists == 0
        };
        until("the nodes are free", || nodes.iter().all(free)).await;
    }
}

pub(crate) fn url(ports: impl IntoIterator<Item = u16>, options: &str) -> String {
    let hosts = ports.into_iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    format!("redlock://{hosts}?node-timeout=100ms&max-ttl=1s{options}")
}

pub(crate) fn age(server: &Redis) {
    seen_long_ago(server, 0).unwrap();
}

/// An engine, and a source of claims.
pub(crate) struct Store {
    pub(crate) engine: Arc<Redlock>,
    pub(crate) ids: ClaimIds,
}

pub(crate) async fn open(url: &str) -> Result<Store> {
    let engine = Arc::new(Redlock::connect(StoreUrl::parse(url)?).await?);
    let ids = ClaimIds::new()?;
    Ok(Store { engine, ids })
}

impl Store {
    /// A claim that does not wait, for [`MAX_TTL`].
    pub(crate) fn claim(&self, name: &str) -> Claim {
        Claim {
            id: self.ids.next(),
            owner: "tester".into(),
            name: LockName::new(name).unwrap(),
            mode: Mode::Exclusive,
            ttl: MAX_TTL,
            lock_delay: Duration::ZERO,
            wait: false,
            reserve: 1,
            record: false,
            label: None,
        }
    }

    pub(crate) async fn take(&self, name: &str) -> (Claim, Grant) {
        let claim = self.claim(name);
        let begin = Instant::now();
        loop {
            match self.engine.place(&claim).await {
                Ok(Standing::Held(grant)) => return (claim, grant),
                Ok(_) => {}
                Err(error) if error.is_retryable() => {}
                Err(error) => panic!("{name}: {error}"),
            }
            assert!(
                begin.elapsed() < Duration::from_secs(15),
                "{name} is not granted"
            );
            tokio::time::sleep(ms(5)).await;
        }
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Withdrawn {
        self.engine.withdraw(claim, Leave::Release).await.unwrap()
    }

    pub(crate) async fn renew(&self, claim: &Claim, grant: &Grant) -> Renewal {
        let held = fencelock_core::engine::HeldClaim {
            claim: claim.clone(),
            token: grant.tokens.first,
        };
        self.engine.renew(&[held]).await.remove(0)
    }

    /// Whether the lock is held by another, answered by enough nodes.
    pub(crate) async fn is_busy(&self, name: &str) -> bool {
        let claim = self.claim(name);
        match self.engine.place(&claim).await {
            Ok(Standing::Busy) => true,
            Ok(Standing::Held(_)) => {
                self.release(&claim).await;
                false
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(15), "in vain: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

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
            let renewal = store.renew(&claim, &grant).await;
            assert!(
                matches!(renewal, Renewal::Kept { asked: false, .. }),
                "{renewal:?}"
            );
            let view = two.engine.inspect().look(&claim.name).await.unwrap();
            assert_eq!(view.holders[0].claim, Some(claim.id));
            assert_eq!(view.token(), Some(grant.tokens.first));
            assert_eq!(store.release(&claim).await, Withdrawn::Released);
            assert_eq!(store.release(&claim).await, Withdrawn::Expired);
        }
    }
    nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
    // One hash of fixed size at each node, however many names there were.
    for server in &nodes.servers {
        let keys: Vec<String> = server.command(&["KEYS", "*"]).unwrap();
        assert_eq!(keys, [MEMORY]);
        let fields: u64 = server.command(&["HLEN", MEMORY]).unwrap();
        assert!((4096 + 3..=4096 + 4).contains(&fields), "{fields}");
    }
}

/// Nodes out of step need the second round, and are in step then.
#[tokio::test]
async fn what_is_asked_at_once_goes_out_together_and_in_order() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    let claims: Vec<_> = (0..64)
        .map(|number| store.claim(&number.to_string()))
        .collect();
    // The first time brings the nodes' counters in step.
    for first in [true, false] {
        let before = calls(&nodes.servers[0], "time");
        let placed = join_all(claims.iter().map(|claim| store.engine.place(claim))).await;
        for standing in placed {
            assert!(matches!(standing, Ok(Standing::Held(_))), "{standing:?}");
        }
        // One look at the clock for all, and one now and then besides.
        let looked = calls(&nodes.servers[0], "time") - before;
        assert!(first || (1..=8).contains(&looked), "{looked}");
        let released = claims
            .iter()
            .map(|claim| store.engine.withdraw(claim, Leave::Release));
        for withdrawn in join_all(released).await {
            assert_eq!(withdrawn.unwrap(), Withdrawn::Released);
        }
    }
    // Nobody waits for these, and what withdraws them does not come before them.
    for claim in &claims {
        assert!(store.engine.place(claim).now_or_never().is_none());
        let withdrawn = store.engine.withdraw(claim, Leave::Abandon).await;
        assert_eq!(withdrawn.unwrap(), Withdrawn::Released);
    }
    for name in (0..64).map(|number| number.to_string()) {
        nodes.await_free(&name, &[0, 1, 2, 3, 4]).await;
    }
}

#[tokio::test]
async fn a_second_round_agrees_where_counters_differ() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    let (claim, first) = store.take("a").await;
    store.release(&claim).await;
    nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
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
    nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
    let (claim, third) = store.take("a").await;
    assert!(third.tokens.first > second.tokens.first);
    store.release(&claim).await;
}

/// The first release wakes who waits, through whatever node it comes.
#[tokio::test]
async fn a_release_wakes_a_waiter() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.open().await, nodes.open().await);
    let (held, _) = one.take("a").await;
    let claim = Claim {
        wait: true,
        ..two.claim("a")
    };
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
    nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
}

#[tokio::test]
async fn an_eviction_means_one_token_and_tells_its_holder() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.open().await, nodes.open().await);
    let claim = Claim {
        record: true,
        ..one.claim("a")
    };
    let Ok(Standing::Held(grant)) = one.engine.place(&claim).await else {
        panic!("it is free");
    };
    let token = grant.tokens.first;
    let other = fencelock_core::Token(token.get() + 1);
    assert!(
        !two.engine
            .inspect()
            .evict(&claim.name, other, Evict::Release)
            .await
            .unwrap()
    );
    assert!(
        two.engine
            .inspect()
            .evict(&claim.name, token, Evict::Ask)
            .await
            .unwrap()
    );
    let mut events = one.engine.events().unwrap();
    let asked = tokio::time::timeout(Duration::from_secs(5), events.next()).await;
    assert_eq!(
        asked.unwrap().unwrap().unwrap(),
        fencelock_core::engine::Event::Asked(claim.id)
    );
    let renewal = one.renew(&claim, &grant).await;
    assert!(
        matches!(renewal, Renewal::Kept { asked: true, .. }),
        "{renewal:?}"
    );
    assert!(
        two.engine
            .inspect()
            .evict(&claim.name, token, Evict::Release)
            .await
            .unwrap()
    );
    let lost = async {
        loop {
            let event = events.next().await.unwrap().unwrap();
            if event == fencelock_core::engine::Event::Lost(claim.id) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), lost)
        .await
        .unwrap();
    assert!(matches!(one.renew(&claim, &grant).await, Renewal::Lost));
    assert!(!two.is_busy("a").await);
}

/// Other Redlock clients see the lock as taken, and we see theirs.
#[tokio::test]
async fn foreign_redlock_clients_are_excluded_and_exclude() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    let (claim, _) = store.take("a").await;
    let clients = nodes.servers.iter().map(|server| server.url());
    let foreign = rslock::LockManager::new(clients.collect::<Vec<_>>());
    let ttl = Duration::from_secs(30);
    assert!(foreign.lock("a", ttl).await.is_err());
    assert_eq!(store.release(&claim).await, Withdrawn::Released);
    nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
    let theirs = foreign.lock("a", ttl).await.unwrap();
    assert!(store.is_busy("a").await);
    let view = store.engine.inspect().look(&claim.name).await.unwrap();
    assert_eq!((view.holders.len(), view.holders[0].claim), (1, None));
    foreign.unlock(&theirs).await;
    let (claim, _) = store.take("a").await;
    store.release(&claim).await;
}

#[tokio::test]
async fn each_node_may_have_credentials_of_its_own() {
    let passwords = ["a,b", "p@ss", "c", "", "e:f"];
    let servers: Vec<Redis> = passwords
        .iter()
        .enumerate()
        .map(|(i, password)| {
            let builder = match password.is_empty() {
                true => Redis::builder(),
                false => Redis::builder().password(password),
            };
            let builder = match i {
                2 => builder.user("locker", "secret", "~* &* +@all"),
                _ => builder,
            };
            builder.start().unwrap()
        })
        .collect();
    let port = |i: usize| servers[i].port();
    let url = format!(
        "redlock://:a%2Cb@127.0.0.1:{},:p%40ss@127.0.0.1:{},locker:secret@127.0.0.1:{},127.0.0.1:{},:e%3Af@127.0.0.1:{}",
        port(0),
        port(1),
        port(2),
        port(3),
        port(4)
    );
    for server in &servers {
        age(server);
    }
    let store = open(&url).await.unwrap();
    let (claim, _) = store.take("a").await;
    until("all five have it", || {
        servers
            .iter()
            .all(|server| server.command::<u64>(&["EXISTS", "a"]).unwrap() == 1)
    })
    .await;
    store.release(&claim).await;
    // Two that refuse are as good as dead; three are told of.
    let wrong = url
        .replace(":e%3Af@", ":wrong-secret@")
        .replace(":a%2Cb@", "");
    let store = open(&wrong).await.unwrap();
    let (claim, _) = store.take("a").await;
    store.release(&claim).await;
    let wrong = wrong.replace("locker:secret", "locker:wrong-secret");
    let error = open(&wrong).await.map(|_| ()).unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains(&port(4).to_string()), "{text}");
    assert!(
        !text.contains("wrong-secret") && !text.contains("p%40ss"),
        "{text}"
    );
    assert!(matches!(error, Error::Refused { .. }), "{text}");
}

#[tokio::test]
async fn a_server_named_twice_is_refused() {
    let nodes = Nodes::start();
    let mut ports: Vec<u16> = nodes.servers.iter().map(Redis::port).collect();
    // The same server by another way.
    ports[4] = nodes.proxies[0].port();
    let error = open(&url(ports, "")).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("the same server"), "{error}");
}

/// New nodes may have held locks a moment ago for all we know: they wait, and say so.
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
    // Whoever comes later finds them voting.
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
    assert!(matches!(
        store.renew(&held, &grant).await,
        Renewal::Kept { .. }
    ));
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
    let renewal = store.renew(&held, &grant).await;
    assert!(!matches!(renewal, Renewal::Kept { .. }), "{renewal:?}");
    for node in 0..3 {
        nodes.servers[node].restart_empty().unwrap();
    }
    let (claim, second) = store.take("a").await;
    assert!(killed.elapsed() >= DELAY, "{:?}", killed.elapsed());
    assert!(second.tokens.first > first.tokens.first);
    store.release(&claim).await;
}

/// Whatever is left when a store begins is enough, if it is a quorum; also one node after the other.
#[tokio::test]
async fn a_quorum_of_new_nodes_begins() {
    let mut nodes = Nodes::start();
    for node in [0, 3] {
        nodes.servers[node].kill9();
    }
    let store = nodes.open().await;
    let (claim, first) = store.take("a").await;
    store.release(&claim).await;
    // The others come later, and know what these know.
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

/// One client holds at A, B and C; C is started anew without memory; another asks C, D and E. `delayed`: whether C is kept
/// from voting. Answers with what the other gets.
async fn accident(delayed: bool) -> (Store, Claim, Grant, Result<Standing>) {
    let mut nodes = Nodes::start();
    let open = async |url: &str| {
        let url = StoreUrl::parse(url).unwrap();
        let engine = match delayed {
            true => Redlock::connect(url).await,
            false => Redlock::connect_without_delayed_restart(url).await,
        };
        let (engine, ids) = (Arc::new(engine.unwrap()), ClaimIds::new().unwrap());
        Store { engine, ids }
    };
    let one = open(&nodes.proxied_url()).await;
    // So that all nodes vote.
    let (claim, _) = one.take("before").await;
    one.release(&claim).await;
    for node in [3, 4] {
        nodes.proxies[node].refuse(true).unwrap();
        nodes.proxies[node].reset();
    }
    let (claim, grant) = one.take("a").await;
    until("it holds at three", || {
        nodes
            .values("a")
            .iter()
            .filter(|value| value.is_some())
            .count()
            == 3
    })
    .await;
    nodes.servers[2].restart_empty().unwrap();
    let two = open(&nodes.url()).await;
    let standing = two.engine.place(&two.claim("a")).await;
    // Both are alive, and so is the lease.
    assert!(Clock::Boot.now().since(grant.counted_from) < grant.lease);
    drop(nodes);
    (one, claim, grant, standing)
}

#[tokio::test]
async fn a_node_that_forgot_does_not_give_the_lock_away() {
    let (_one, _claim, _grant, standing) = accident(true).await;
    let refused = matches!(
        standing,
        Ok(Standing::Busy) | Err(Error::Unavailable { .. })
    );
    assert!(refused, "{standing:?}");
}

#[tokio::test]
async fn without_delayed_restart_it_would() {
    let (_one, _claim, grant, standing) = accident(false).await;
    let Ok(Standing::Held(second)) = standing else {
        panic!("the accident did not happen: {standing:?}");
    };
    // Even then the tokens are in order, and a fence can tell.
    assert!(second.tokens.first > grant.tokens.first);
}

/// A node whose clock is set forward forgets its locks at once, and does not vote.
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
    for node in [3, 4] {
        nodes.proxies[node].refuse(true).unwrap();
        nodes.proxies[node].reset();
    }
    let (claim, grant) = one.take("a").await;
    until("it holds at three", || {
        nodes
            .values("a")
            .iter()
            .filter(|value| value.is_some())
            .count()
            == 3
    })
    .await;
    shim.forward(Duration::from_secs(3600)).unwrap();
    assert_eq!(nodes.values("a")[2], None, "its lease is over there");
    // C, D and E would be a majority.
    let standing = two.engine.place(&two.claim("a")).await;
    let refused = matches!(
        standing,
        Ok(Standing::Busy) | Err(Error::Unavailable { .. })
    );
    assert!(refused, "{standing:?}");
    assert!(Clock::Boot.now().since(grant.counted_from) < grant.lease);
    one.release(&claim).await;
    // Later it votes again.
    for node in [0, 1] {
        nodes.servers[node].kill9();
    }
    let (claim, second) = two.take("a").await;
    assert!(second.tokens.first > grant.tokens.first);
    two.release(&claim).await;
}

/// Emptied while it runs: nothing but its counters tells.
#[tokio::test]
async fn an_emptied_node_does_not_vote() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.proxied().await, nodes.open().await);
    for node in [3, 4] {
        nodes.proxies[node].refuse(true).unwrap();
        nodes.proxies[node].reset();
    }
    let (claim, grant) = one.take("a").await;
    until("it holds at three", || {
        nodes
            .values("a")
            .iter()
            .filter(|value| value.is_some())
            .count()
            == 3
    })
    .await;
    nodes.servers[2].command::<()>(&["FLUSHALL"]).unwrap();
    for store in [two, nodes.open().await] {
        for record in [false, true] {
            let claim = Claim {
                record,
                ..store.claim("a")
            };
            let standing = store.engine.place(&claim).await;
            let refused = matches!(
                standing,
                Ok(Standing::Busy) | Err(Error::Unavailable { .. })
            );
            assert!(refused, "{standing:?}");
        }
    }
    assert!(Clock::Boot.now().since(grant.counted_from) < grant.lease);
    one.release(&claim).await;
}

/// What a network does: answers are lost, and requests come late.
#[tokio::test]
async fn lost_answers_and_late_requests_hold_nothing_for_long() {
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
        assert!(matches!(
            near.renew(&claim, &grant).await,
            Renewal::Kept { .. }
        ));
        assert_eq!(near.release(&claim).await, Withdrawn::Released);
    }
    nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
}

/// One node refuses for good; that the others are slow passes.
#[tokio::test]
async fn a_slow_moment_is_not_final_where_too_few_nodes_refuse() {
    let nodes = Nodes::start();
    nodes.servers[0]
        .command::<()>(&["CONFIG", "SET", "requirepass", "secret"])
        .unwrap();
    let wrong = url(nodes.proxies[..3].iter().map(Proxy::port), "");
    let store = open(&wrong).await.unwrap();
    let (claim, _) = store.take("a").await;
    store.release(&claim).await;
    for proxy in &nodes.proxies[1..3] {
        proxy.answers(Flow::Delay(ms(150)));
    }
    let error = store.engine.place(&store.claim("a")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// A claim whose attempt ended for good waits for nothing any more.
#[tokio::test]
async fn a_final_error_leaves_no_waiter() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    for server in &nodes.servers {
        server.command::<()>(&["HSET", "hash", "a", "b"]).unwrap();
    }
    let claim = Claim {
        wait: true,
        record: true,
        ..store.claim("hash")
    };
    let error = store.engine.place(&claim).await.unwrap_err();
    assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
    let now = Clock::Boot.now();
    let place = Place {
        ahead: None,
        recheck: now,
    };
    // Who waits hears of nothing here.
    let changed = tokio::time::timeout(ms(2000), store.engine.wait(&claim, &place)).await;
    assert!(matches!(changed, Ok(Ok(None))), "{changed:?}");
}

/// A grant whose answers take longer than the lease is worth nothing, whoever paused.
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

/// One that asks for more than the nodes remember is refused, and nothing is sent.
#[tokio::test]
async fn promises_say_what_holds() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    let promises = store.engine.promises();
    assert_eq!(promises.max_ttl, MAX_TTL);
    assert_eq!(promises.min_ttl, ms(500));
    assert_eq!(promises.order, fencelock_core::Order::Unordered);
    assert!(!promises.shared && !promises.permits && promises.lock_delay);
    assert!(promises.limits.is_empty(), "{:?}", promises.limits);
}

#[tokio::test]
async fn a_node_that_was_restarted_has_the_counters_of_the_others() {
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

/// The least rights, as the documentation lists them.
const LEAST: &str = "resetchannels &fencelock:* ~* -@all +hello +select +info +subscribe +publish +eval +evalsha +script|load \
                     +time +get +getrange +set +del +exists +pttl +pexpire +zadd +zrem +zpopmin +zrange +hget +hset +hdel \
                     +hmget +hincrby +scan";

#[tokio::test]
async fn a_user_with_the_least_rights() {
    let servers = Group::start_each(5, |_| Redis::builder().user("least", "secret", LEAST));
    let servers = servers.unwrap();
    let hosts = servers.nodes().iter().map(Redis::port);
    let url = url(hosts, "").replace("redlock://", "redlock://least:secret@");
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    for record in [false, true] {
        let claim = Claim {
            record,
            lock_delay: ms(1),
            ttl: ms(900),
            ..one.claim("a")
        };
        let Ok(Standing::Held(grant)) = one.engine.place(&claim).await else {
            panic!("it is free");
        };
        let waiter = Claim {
            wait: true,
            ..two.claim("a")
        };
        assert!(matches!(
            two.engine.place(&waiter).await,
            Ok(Standing::Waiting(_))
        ));
        let renewed = one.renew(&claim, &grant).await;
        assert!(matches!(renewed, Renewal::Kept { .. }), "{renewed:?}");
        let name = claim.name.clone();
        let token = grant.tokens.first;
        assert!(
            two.engine
                .inspect()
                .evict(&name, token, Evict::Ask)
                .await
                .unwrap()
        );
        assert_eq!(
            two.engine
                .inspect()
                .list("", None, 100)
                .await
                .unwrap()
                .items
                .len(),
            1
        );
        assert_eq!(one.release(&claim).await, Withdrawn::Released);
        two.engine.withdraw(&waiter, Leave::Release).await.unwrap();
    }
    for server in servers.nodes() {
        let log: Vec<redis::Value> = server.command(&["ACL", "LOG"]).unwrap();
        assert!(log.is_empty(), "{log:?}");
    }
    // Who may not tell or hear of a release is told so at once.
    for right in ["+subscribe", "+publish", "+info"] {
        for server in servers.nodes() {
            let mut words = vec!["ACL", "SETUSER", "least", "reset", "on", ">secret"];
            let less = LEAST.replace(right, "");
            words.extend(less.split_whitespace());
            server.command::<()>(&words).unwrap();
        }
        let error = open(&url).await.map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Refused { .. }), "{text}");
        assert!(text.contains(&right[1..]), "{right}: {text}");
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_to_every_node() {
    let servers = Group::start_each(3, |_| Redis::builder().tls()).unwrap();
    // Each has an authority of its own; one file may name several.
    let bundle = servers.nodes()[0].dir().join("all.crt");
    let all = servers.nodes().iter().map(Redis::ca);
    let all: Vec<String> = all.map(|ca| std::fs::read_to_string(ca).unwrap()).collect();
    std::fs::write(&bundle, all.concat()).unwrap();
    let hosts = servers.nodes().iter();
    let hosts = hosts.map(|node| format!("localhost:{}", node.tls_port().unwrap()));
    let url = format!(
        "redlocks://{}?node-timeout=200ms&max-ttl=2s",
        hosts.collect::<Vec<_>>().join(",")
    );
    let trusting = format!("{url}&tls-ca={}", bundle.display());
    let store = open(&trusting).await.unwrap();
    let (claim, _) = store.take("a").await;
    assert_eq!(store.release(&claim).await, Withdrawn::Released);
    let error = open(&url).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// After a split vote the first node is asked alone, and whoever has it has the others.
#[tokio::test]
async fn with_a_gate_a_contended_lock_is_soon_had() {
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

/// A client that is stopped between its requests and their answers for longer than the lease has a grant that is over, and
/// no token that anybody else has; one stopped for less may go on.
#[tokio::test]
async fn a_pause_in_the_middle_of_an_acquisition_uses_up_the_lease() {
    let nodes = Nodes::start();
    let (far, near) = (nodes.proxied().await, nodes.open().await);
    let mut last = None;
    for pause in [ms(50), ms(1100)] {
        for plain in [true, false] {
            let claim = Claim {
                record: !plain,
                ttl: ms(1000),
                ..far.claim("a")
            };
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
            // The whole process: its clock goes on, and nothing of it runs.
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
            // What comes late of the first does not end the second.
            while far.engine.withdraw(&claim, Leave::Release).await.is_err() {}
            assert!(matches!(
                near.renew(&next, &grant).await,
                Renewal::Kept { .. }
            ));
            near.release(&next).await;
            nodes.await_free("a", &[0, 1, 2, 3, 4]).await;
        }
    }
}
