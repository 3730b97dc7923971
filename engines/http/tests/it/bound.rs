//! etcd, a store whose claims belong to a replica. A replica ends, hangs or restarts while claims wait or hold there.

use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::{Claim, ClaimIds, Engine, Leave, Standing};
use fencelock::{Client, Clock, Error, Guard, LeaseKind, LockName, LossReason};
use fencelock_server::{Config, Server, Service};
use fencelock_testbed::{Etcd, Flow, Port, Proxy};

use crate::batches::{names, pairs, served};
use crate::{at_first, connect, serve_as, soon, until, wait_for};

/// The shortest window of etcd.
const WINDOW: Duration = Duration::from_secs(2);

/// A replica with a proxy in front of it, and a proxy between it and etcd.
struct Replica {
    /// `None` once it was killed.
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

    /// Ends it like kill -9: whatever it would still send to the store is lost.
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

/// Each replica reaches the store through a proxy of its own, so by another URL.
fn url(ports: impl IntoIterator<Item = u16>) -> String {
    let hosts = ports.into_iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    format!("fencelock+http://{hosts}?same-store=confirmed&response-timeout=1s")
}

fn direct(replicas: &[Replica]) -> String {
    url(replicas.iter().map(|replica| replica.port))
}

fn proxied(replicas: &[Replica]) -> String {
    url(replicas.iter().map(|replica| replica.proxy.port()))
}

/// Takes a lock with the whole lease.
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

/// Checks that the store shows the guard's claim as the holder.
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
async fn the_service_says_that_claims_belong_to_a_replica() {
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
    // Each claim belongs to one replica, and every request for it goes there.
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

/// Whatever happens to the replica at which a claim waits: the client waits at the other one with a new claim, and nothing of
/// the old claim is left.
async fn waits_elsewhere(reach: fn(&[Replica]) -> String, harm: fn(&mut Replica)) {
    let etcd = Etcd::start().unwrap();
    let mut replicas = two(&etcd).await;
    let holder = connect(&direct(&replicas[1..])).await;
    let client = Client::new(at_first(&reach(&replicas)).await).unwrap();
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

/// It is the only replica. Its clients wait for its restart, and then it does not know them.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_a_restarted_replica_waits_as_a_new_claim() {
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

/// The holder believes until its lease is over and no longer. Only after that another client gets the lock.
async fn is_lost_in_time(again: bool) {
    let etcd = Etcd::start().unwrap();
    let mut replicas = two(&etcd).await;
    let other = connect(&direct(&replicas[1..])).await;
    let client = Client::new(at_first(&direct(&replicas)).await).unwrap();
    let guard = hold(&client, Duration::from_secs(5)).await;
    assert_eq!(replicas[0].bound_claims(), 1, "it holds at the first");
    let waiting = wait_for(&other, "a");
    waiters(&other, 1).await;
    guard.refresh(Duration::from_secs(5)).await.unwrap();
    replicas[0].kill();
    let killed = Clock::Boot.now();
    if again {
        replicas[0].restart().await;
    }
    let why = soon("the loss", guard.lost()).await;
    let (lost, until) = (Clock::Boot.now(), guard.valid_until());
    assert_eq!(why, LossReason::Expired);
    assert!(lost >= until && !guard.is_valid());
    // The last renewal was just before, so the hold lasts longer than this.
    assert!(until.since(killed) >= Duration::from_millis(2500));
    let next = soon("the next", waiting).await.unwrap().unwrap();
    assert!(Clock::Boot.now() > until && next.token() > guard.token());
    is_the_holder(&other, &next).await;
    // Neither a late renewal nor the release of the lost hold affects the next one.
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

/// Below the core: a claim that a replica has ended does not come back, whichever replica gets requests and however often.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_a_replica_has_ended_does_not_come_back() {
    let etcd = Etcd::start().unwrap();
    let replicas = two(&etcd).await;
    let holder = connect(&direct(&replicas[1..])).await;
    let guard = hold(&holder, Duration::from_secs(10)).await;
    let engine = at_first(&direct(&replicas)).await;
    let ids = ClaimIds::with(engine.claim_ids().unwrap());
    let claim = || Claim::new(ids.next(), "me", LockName::new("a").unwrap());
    let old = claim();
    let Ok(Standing::Waiting(place)) = engine.place(&old).await else {
        panic!("it does not wait");
    };
    // No poll keeps its place, so the claim lapses.
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

/// The request that placed a claim arrives again when another replica is at the address.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_repeated_at_another_replica_is_refused() {
    let etcd = Etcd::start().unwrap();
    let mut replica = Replica::start(&etcd).await;
    // The repeated request passes the replica's own proxy, which counts the answers.
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
    // Longer than the claim of the repeated request would stay.
    let begun = Clock::Boot.now();
    until("a window is over", async || {
        assert!(client.look("a").await.unwrap().holders.is_empty());
        assert_eq!(replica.bound_claims(), 0);
        Clock::Boot.now().since(begun) > WINDOW
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_balancer_replicas_must_advertise_their_addresses() {
    let etcd = Etcd::start().unwrap();
    let replicas = two(&etcd).await;
    let balancer = Proxy::balance(&replicas.each_ref().map(|replica| replica.port)).unwrap();
    let port = balancer.port();
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
    let balancer = Proxy::balance(&ports.each_ref().map(Port::number)).unwrap();
    let client = connect(&url([balancer.port()])).await;
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
    // The replica behind it ends: the next claim goes to the other one.
    drop(servers.remove(at));
    let left = Proxy::balance(&[servers[0].address().port()]).unwrap();
    drop(client);
    let client = connect(&url([left.port()])).await;
    hold(&client, Duration::from_secs(5))
        .await
        .release()
        .await
        .unwrap();
}
