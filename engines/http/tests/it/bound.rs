//! A store whose claims belong to a replica: etcd. A replica that ends, hangs or is restarted, while claims wait there and hold.

use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::{Claim, ClaimIds, Engine, Leave, Standing};
use fencelock::{Client, Clock, Error, Guard, LeaseKind, LockName, LossReason};
use fencelock_server::{Config, Server, Service};
use fencelock_testbed::{Etcd, Flow, Port, Proxy};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::batches::{names, pairs, served};
use crate::{connect, serve_as, soon, until, wait_for};

/// The shortest of etcd.
const WINDOW: Duration = Duration::from_secs(2);

/// A replica with a proxy before it, and one between it and etcd.
struct Replica {
    /// None once it was killed.
    server: Option<Server>,
    port: u16,
    proxy: Proxy,
    to_store: Proxy,
    store: String,
}

impl Replica {
    async fn start(etcd: &Etcd) -> Self {
        let to_store = Proxy::start(etcd.port(0)).unwrap();
        let url = etcd.url_at(&[to_store.port()]);
        let store = format!("{url}?claim-window={}s", WINDOW.as_secs());
        let server = begin(&store, 0).await;
        let port = server.address().port();
        Self {
            server: Some(server),
            port,
            proxy: Proxy::start(port).unwrap(),
            to_store,
            store,
        }
    }

    /// As kill -9 does: whatever it would still send to the store is lost.
    fn kill(&mut self) {
        self.to_store.both(Flow::Lose);
        self.server = None;
    }

    async fn restart(&mut self) {
        self.to_store.both(Flow::Pass);
        self.to_store.reset();
        self.server = Some(begin(&self.store, self.port).await);
    }

    fn bound_claims(&self) -> usize {
        self.server.as_ref().unwrap().service().bound_claims()
    }
}

async fn begin(store: &str, port: u16) -> Server {
    let engine = soon("the store", fencelock::open_engine(store)).await;
    serve_as(engine.unwrap(), Config::trusting(), port).await
}

async fn two(etcd: &Etcd) -> [Replica; 2] {
    [Replica::start(etcd).await, Replica::start(etcd).await]
}

/// Each reaches the store through a proxy of its own, so by another URL. The first claim of a client is one for the first.
fn url(ports: impl IntoIterator<Item = u16>) -> String {
    let hosts = ports.into_iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    format!("fencelock+http://{hosts}?same-store=vouched&response-timeout=1s")
}

fn direct(replicas: &[Replica]) -> String {
    url(replicas.iter().map(|replica| replica.port))
}

fn proxied(replicas: &[Replica]) -> String {
    url(replicas.iter().map(|replica| replica.proxy.port()))
}

/// A hold of the whole lease.
async fn hold(client: &Client, ttl: Duration) -> Guard {
    let guard = soon("the lock", client.lock("a").ttl(ttl)).await.unwrap();
    guard.refresh(ttl).await.unwrap();
    guard
}

async fn waiters(client: &Client, count: usize) {
    until("they wait", async || {
        client.look("a").await.unwrap().waiters.len() == count
    })
    .await;
}

/// How the lock goes on is known to its holder by the claim that the store has.
async fn is_the_holder(client: &Client, guard: &Guard) {
    let view = client.look("a").await.unwrap();
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert_eq!(view.holders[0].claim, Some(guard.claim_id()));
    assert_eq!(view.token(), Some(guard.token()));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_a_replica_go_alone() {
    let etcd = Etcd::start().unwrap();
    let replicas = two(&etcd).await;
    let client = connect(&direct(&replicas)).await;
    pairs(&client, names(16), 3).await;
    let (mut batches, mut alone) = (0, 0);
    for replica in &replicas {
        let server = replica.server.as_ref().unwrap();
        batches += served(server, "/v1/batch").await;
        alone += served(server, "/v1/claims/{id}").await;
    }
    assert_eq!(batches, 0);
    assert!(alone >= 48, "{alone} takes");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_what_a_claim_is_bound_to() {
    let etcd = Etcd::start().unwrap();
    let replicas = two(&etcd).await;
    let client = connect(&direct(&replicas)).await;
    let promises = client.promises();
    assert_eq!(
        (promises.lease, promises.portable),
        (LeaseKind::Session, false)
    );
    let limits = promises.limits.iter();
    let mut limits = limits.filter(|limit| limit.what.contains("belongs to the replica"));
    assert!(limits.next().is_some() && limits.next().is_none());
    // Each claim is at one of them, whatever is asked about it.
    let mut guards = Vec::new();
    for name in ["a", "b", "c", "d"] {
        guards.push(soon("a lock", client.lock(name)).await.unwrap());
    }
    assert_eq!(replicas.each_ref().map(Replica::bound_claims), [2, 2]);
    for guard in &guards {
        let renewed = guard.refresh(Duration::from_secs(30));
        soon("a renewal", renewed).await.unwrap();
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(replicas.each_ref().map(Replica::bound_claims), [0, 0]);
}

/// Whatever befalls the replica at which it waits: it waits at the other one, by a new claim, and nothing of the old one is left.
async fn waits_elsewhere(reach: fn(&[Replica]) -> String, harm: fn(&mut Replica)) {
    let etcd = Etcd::start().unwrap();
    let mut replicas = two(&etcd).await;
    let holder = connect(&direct(&replicas[1..])).await;
    let client = connect(&reach(&replicas)).await;
    let guard = hold(&holder, Duration::from_secs(10)).await;
    let waiting = wait_for(&client, "a");
    waiters(&holder, 1).await;
    assert_eq!(replicas[0].bound_claims(), 1, "it waits at the first");
    harm(&mut replicas[0]);
    until("it waits at the second", async || {
        replicas[1].bound_claims() == 2
    })
    .await;
    assert!(!waiting.is_finished() && guard.is_valid());
    let before = guard.token();
    guard.release().await.unwrap();
    let guard = soon("the lock", waiting).await.unwrap().unwrap();
    assert!(guard.token() > before);
    is_the_holder(&holder, &guard).await;
    assert_eq!(replicas[1].bound_claims(), 1);
    guard.release().await.unwrap();
    until("nothing is left", async || {
        etcd.keys("fencelock/lock/").unwrap() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_a_killed_replica_waits_elsewhere() {
    waits_elsewhere(direct, Replica::kill).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_a_replica_that_hangs_waits_elsewhere() {
    waits_elsewhere(proxied, |replica| replica.proxy.both(Flow::Hold)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_a_replica_without_its_store_waits_elsewhere() {
    waits_elsewhere(direct, |replica| replica.to_store.both(Flow::Lose)).await;
}

/// It is the only one: its clients wait for it, and then it does not know them.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_a_restarted_replica_waits_anew() {
    let etcd = Etcd::start().unwrap();
    let mut replicas = two(&etcd).await;
    let holder = connect(&direct(&replicas[1..])).await;
    let client = connect(&direct(&replicas[..1])).await;
    let guard = hold(&holder, Duration::from_secs(10)).await;
    let waiting = wait_for(&client, "a");
    waiters(&holder, 1).await;
    replicas[0].kill();
    replicas[0].restart().await;
    until("it waits there", async || replicas[0].bound_claims() == 1).await;
    guard.release().await.unwrap();
    let guard = soon("the lock", waiting).await.unwrap().unwrap();
    is_the_holder(&holder, &guard).await;
}

/// The holder believes until its lease is over and no longer, and then, not before, another one has the lock.
async fn is_lost_in_time(again: bool) {
    let etcd = Etcd::start().unwrap();
    let mut replicas = two(&etcd).await;
    let other = connect(&direct(&replicas[1..])).await;
    let client = connect(&direct(&replicas)).await;
    let guard = hold(&client, Duration::from_secs(5)).await;
    assert_eq!(replicas[0].bound_claims(), 1, "it holds at the first");
    let waiting = wait_for(&other, "a");
    waiters(&other, 1).await;
    replicas[0].kill();
    let killed = Clock::Boot.now();
    if again {
        replicas[0].restart().await;
    }
    let why = soon("the loss", guard.lost()).await;
    let (lost, until) = (Clock::Boot.now(), guard.valid_until());
    assert_eq!(why, LossReason::Expired);
    assert!(lost >= until && !guard.is_valid());
    // It was renewed at a third of its lease: so long it goes on at least.
    assert!(until.since(killed) >= Duration::from_millis(2500));
    let next = soon("the next", waiting).await.unwrap().unwrap();
    assert!(Clock::Boot.now() > until && next.token() > guard.token());
    is_the_holder(&other, &next).await;
    // Neither a late renewal nor its end does anything to the next one.
    drop(guard);
    soon("a renewal", next.prolonged()).await;
    assert!(next.is_valid());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_a_killed_replica_is_believed_until_its_lease_is_over() {
    is_lost_in_time(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_a_restarted_replica_is_believed_until_its_lease_is_over() {
    is_lost_in_time(true).await;
}

/// Below the client: what a replica has ended does not come back, whoever is asked and however often.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_replica_has_ended_is_over() {
    let etcd = Etcd::start().unwrap();
    let replicas = two(&etcd).await;
    let holder = connect(&direct(&replicas[1..])).await;
    let guard = hold(&holder, Duration::from_secs(10)).await;
    let engine = fencelock::open_engine(direct(&replicas)).await.unwrap();
    let ids = ClaimIds::with(engine.claim_ids().unwrap());
    let claim = || Claim::new(ids.next(), "me", LockName::new("a").unwrap());
    let old = claim();
    let Ok(Standing::Waiting(place)) = engine.place(&old).await else {
        panic!("it does not wait");
    };
    // Nobody polls, so its place lapses.
    until("it is ended", async || replicas[0].bound_claims() == 0).await;
    for _ in 0..2 {
        let ended = soon("an answer", engine.place(&old)).await;
        assert!(matches!(ended, Ok(Standing::Ended)), "{ended:?}");
        assert!(
            soon("an answer", engine.wait(&old, &place))
                .await
                .unwrap()
                .is_none()
        );
    }
    guard.release().await.unwrap();
    let ended = soon("an answer", engine.place(&old)).await;
    assert!(matches!(ended, Ok(Standing::Ended)), "{ended:?}");
    assert!(holder.look("a").await.unwrap().holders.is_empty());
    soon("an answer", engine.withdraw(&old, Leave::Release))
        .await
        .unwrap();
    let new = claim();
    let held = soon("an answer", engine.place(&new)).await;
    assert!(matches!(held, Ok(Standing::Held(_))), "{held:?}");
    soon("an answer", engine.withdraw(&new, Leave::Release))
        .await
        .unwrap();
}

/// The request that placed a claim arrives once more when another replica is at the address.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_repeated_at_another_replica_is_refused() {
    let etcd = Etcd::start().unwrap();
    let mut replica = Replica::start(&etcd).await;
    // What is repeated passes the replica's own proxy, which counts the answers.
    let network = Proxy::start(replica.proxy.port()).unwrap();
    let engine = fencelock::open_engine(url([network.port()])).await.unwrap();
    let ids = ClaimIds::with(engine.claim_ids().unwrap());
    let claim = Claim::new(ids.next(), "late", LockName::new("a").unwrap()).ttl(WINDOW);
    network.keep();
    let placed = soon("the lock", engine.place(&claim)).await;
    assert!(matches!(placed, Ok(Standing::Held(_))), "{placed:?}");
    replica.kill();
    replica.restart().await;
    until("what the replica had has ended", async || {
        etcd.keys("fencelock/lock/").unwrap() == 0
    })
    .await;
    let before = replica.proxy.answer_bytes();
    network.repeat().unwrap();
    until("it has answered a request", async || {
        replica.proxy.answer_bytes() > before
    })
    .await;
    let client = connect(&direct(std::slice::from_ref(&replica))).await;
    // Longer than what was asked for would stay.
    let begun = Clock::Boot.now();
    until("a window is over", async || {
        assert!(client.look("a").await.unwrap().holders.is_empty());
        assert_eq!(replica.bound_claims(), 0);
        Clock::Boot.now().since(begun) > WINDOW
    })
    .await;
}

/// Gives each connection to the next replica.
async fn balancer(ports: Vec<u16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for to in ports.iter().cycle() {
            let (mut from, _) = listener.accept().await.unwrap();
            let mut to = TcpStream::connect(("127.0.0.1", *to)).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut from, &mut to).await });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balancer_needs_replicas_that_say_where_they_are() {
    let etcd = Etcd::start().unwrap();
    let replicas = two(&etcd).await;
    let port = balancer(replicas.iter().map(|replica| replica.port).collect()).await;
    let refused = soon("an answer", fencelock::connect(url([port]))).await;
    let text = refused.as_ref().unwrap_err().to_string();
    assert!(matches!(refused, Err(Error::Config { .. })), "{text}");
    let named = [
        port.to_string(),
        "several replicas".into(),
        "advertise".into(),
    ];
    assert!(named.iter().all(|word| text.contains(word)), "{text}");
    drop(replicas);

    let ports = [Port::free().unwrap(), Port::free().unwrap()];
    let mut servers = Vec::new();
    for port in &ports {
        let store: Arc<dyn Engine> = fencelock::open_engine(etcd.url()).await.unwrap();
        let mut config = Config::trusting();
        config.advertise = Some(format!("http://127.0.0.1:{}", port.number()));
        servers.push(serve_as(store, config, port.number()).await);
    }
    let services: Vec<Service> = servers
        .iter()
        .map(|server| server.service().clone())
        .collect();
    let port = balancer(ports.iter().map(Port::number).collect()).await;
    let client = connect(&url([port])).await;
    let guard = hold(&client, Duration::from_secs(5)).await;
    let at = services
        .iter()
        .position(|service| service.bound_claims() == 1);
    let at = at.expect("one of them has it");
    for _ in 0..3 {
        soon("a renewal", guard.prolonged()).await;
    }
    guard.release().await.unwrap();
    assert!(services.iter().all(|service| service.bound_claims() == 0));
    // The one behind it ends: the next claim goes to the other.
    drop(servers.remove(at));
    let left = balancer(vec![servers[0].address().port()]).await;
    drop(client);
    let client = connect(&url([left])).await;
    hold(&client, Duration::from_secs(5))
        .await
        .release()
        .await
        .unwrap();
}
