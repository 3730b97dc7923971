//! Other lock libraries and this library never hold the same name of the same server together. The other libraries are
//! released versions (tools/interop/setup.sh installs them), each in processes of its own.

#![allow(clippy::expect_used)]

mod foreign;

use std::time::Duration;

use fencelock::{Client, Error, Guard, Release};
use fencelock_testbed::{Etcd, Redis, ZooKeeper};
use tokio::time::{Instant, timeout};

use foreign::{Foreign, Kind, On};

const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than any test.
const LONG: &str = "60000";

/// A server of its own for each test.
enum Server {
    Redis(Redis),
    Etcd(Etcd),
    ZooKeeper(ZooKeeper),
}

impl Server {
    fn start(on: On) -> Self {
        match on {
            On::Redis => Self::Redis(Redis::start().expect("redis-server")),
            On::Etcd => Self::Etcd(Etcd::start().expect("etcd")),
            On::ZooKeeper => Self::ZooKeeper(ZooKeeper::start().expect("zookeeper")),
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port(),
            Self::Etcd(server) => server.port(0),
            Self::ZooKeeper(server) => server.port(),
        }
    }

    /// The store's URL for the locks of other libraries.
    fn url(&self) -> String {
        match self {
            // The usual timeout of an answer is short for a machine that stands still for a moment.
            Self::Redis(server) => format!("{}?response-timeout=5s", server.url()),
            Self::Etcd(server) => format!("{}?layout=concurrency", server.url()),
            Self::ZooKeeper(server) => server.url(),
        }
    }
}

async fn ours(server: &Server) -> Client {
    fencelock::connect(server.url()).await.expect("connects")
}

async fn granted(client: &Client, name: &str) -> Guard {
    let lock = async { client.lock(name).await };
    let granted = timeout(PATIENCE, lock).await;
    granted.expect("granted in time").expect("granted")
}

async fn assert_held(client: &Client, name: &str) {
    let refused = client.try_lock(name).await;
    assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
}

/// We hold: they cannot. We release: they can.
async fn they_wait_for_us(kind: Kind) {
    let server = Server::start(kind.on());
    let client = ours(&server).await;
    let mut they = Foreign::start(kind, server.port(), "shared name").await;
    let request = client.lock("shared name").ttl(Duration::from_secs(8));
    let guard = request.await.expect("granted");
    assert_eq!(they.ask(&format!("take {LONG}")).await, "busy");
    they.tell(&format!("wait {LONG}")).await;
    // On ZooKeeper another node is first by now.
    guard.prolonged().await;
    let early = timeout(Duration::from_millis(300), they.answer()).await;
    assert!(early.is_err(), "they hold while we do");
    assert!(guard.is_valid());
    assert_eq!(guard.release().await.expect("released"), Release::Released);
    assert_eq!(they.answer().await, "held");
    assert_held(&client, "shared name").await;
    assert_eq!(they.ask("release").await, "released");
}

/// They hold: we cannot. They release: we can, and they cannot.
async fn we_wait_for_them(kind: Kind) {
    let server = Server::start(kind.on());
    let client = ours(&server).await;
    let mut they = Foreign::start(kind, server.port(), "shared name").await;
    assert_eq!(they.ask(&format!("take {LONG}")).await, "held");
    assert_held(&client, "shared name").await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { granted(&client, "shared name").await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "we hold while they do");
    let released = Instant::now();
    assert_eq!(they.ask("release").await, "released");
    let guard = waiting.await.expect("granted");
    // Their lease lasts for another minute, so the release gave us the lock, not the end of the lease.
    assert!(
        released.elapsed() < Duration::from_secs(5),
        "{:?}",
        released.elapsed()
    );
    assert!(guard.is_valid());
    assert_eq!(they.ask(&format!("take {LONG}")).await, "busy");
    assert_eq!(guard.release().await.expect("released"), Release::Released);
}

/// They disappear while they hold: we get the lock when their lease is over, not before. Their late release does not
/// affect us.
async fn we_outwait_their_lease(kind: Kind) {
    let server = Server::start(kind.on());
    let client = ours(&server).await;
    let mut they = Foreign::start(kind, server.port(), "shared name").await;
    let asked = Instant::now();
    assert_eq!(they.ask("take 1000").await, "held");
    let guard = granted(&client, "shared name").await;
    assert!(
        asked.elapsed() >= Duration::from_millis(1000),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(they.ask("release").await, "not-mine");
    assert_eq!(they.ask(&format!("take {LONG}")).await, "busy");
    assert!(guard.is_valid());
    assert_eq!(guard.release().await.expect("released"), Release::Released);
}

/// They are killed while they hold: we get the lock when their session is over, not before.
async fn we_outwait_their_session(kind: Kind) {
    let server = Server::start(kind.on());
    let client = ours(&server).await;
    let mut they = Foreign::start(kind, server.port(), "shared name").await;
    assert_eq!(they.ask("wait 6000").await, "held");
    let theirs = client.look("shared name").await.expect("a view").token();
    let killed = Instant::now();
    they.kill().await;
    let guard = granted(&client, "shared name").await;
    // Their session was last renewed up to a third of it ago, and the server's clock has ticks.
    assert!(
        killed.elapsed() >= Duration::from_millis(2500),
        "{:?}",
        killed.elapsed()
    );
    assert!(Some(guard.token()) > theirs, "{guard:?} after {theirs:?}");
    assert_eq!(guard.release().await.expect("released"), Release::Released);
}

/// We do not renew: they get the lock only after we know that we lost it. Our late release does not affect them.
async fn they_outwait_our_lease(kind: Kind) {
    let server = Server::start(kind.on());
    let client = ours(&server).await;
    let mut they = Foreign::start(kind, server.port(), "shared name").await;
    let request = client
        .lock("shared name")
        .ttl(Duration::from_millis(1000))
        .renew(false);
    let guard = request.await.expect("granted");
    they.tell(&format!("wait {LONG}")).await;
    assert_eq!(they.answer().await, "held");
    assert!(!guard.is_valid(), "they hold while we believe to");
    assert_ne!(guard.release().await.expect("an answer"), Release::Released);
    assert_held(&client, "shared name").await;
    assert_eq!(they.ask("release").await, "released");
}

/// Processes of both sides take and release one name for some seconds, and no two holds overlap.
async fn under_load(kinds: &[Kind]) {
    let server = Server::start(kinds[0].on());
    let mut clients = Vec::new();
    for &kind in kinds {
        clients.push((
            kind,
            Foreign::start(kind, server.port(), "shared name").await,
        ));
    }
    for (_, client) in &mut clients {
        client.tell("loop 4 30000").await;
    }
    // `etcdctl lock` needs a process for each hold, and 100 ms for each hand-off.
    // The others poll: on a busy machine some are late most of the time.
    let least = match kinds.contains(&Kind::Etcdctl) {
        true => 2,
        false => 5,
    };
    let mut all = Vec::new();
    for (number, (kind, client)) in clients.iter_mut().enumerate() {
        let holds = client.holds().await;
        assert!(
            holds.len() >= least,
            "{kind:?} held only {} times",
            holds.len()
        );
        all.extend(holds.into_iter().map(|hold| (hold, number, *kind)));
    }
    all.sort_unstable_by_key(|(hold, ..)| *hold);
    for pair in all.windows(2) {
        let (((_, left), ..), ((entered, _), ..)) = (pair[0], pair[1]);
        assert!(entered >= left, "two held at once: {pair:?}");
    }
    // The lock must have changed sides, or the test proves nothing.
    let changes = all.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    assert!(
        changes >= least,
        "the lock changed hands only {changes} times"
    );
}

macro_rules! against {
    ($how_they_end:ident; $($module:ident: $kind:expr),* $(,)?) => {$(
        mod $module {
            use super::*;

            #[tokio::test]
            async fn they_wait_for_us() {
                super::they_wait_for_us($kind).await;
            }

            #[tokio::test]
            async fn we_wait_for_them() {
                super::we_wait_for_them($kind).await;
            }

            #[tokio::test]
            async fn $how_they_end() {
                super::$how_they_end($kind).await;
            }

            #[tokio::test]
            async fn they_outwait_our_lease() {
                super::they_outwait_our_lease($kind).await;
            }

            #[tokio::test]
            async fn under_load() {
                let ours = Kind::Fencelock($kind.on());
                super::under_load(&[ours, $kind, ours, $kind]).await;
            }
        }
    )*};
}

against! {
    we_outwait_their_lease;
    rslock: Kind::Rslock,
    redis_py: Kind::RedisPy,
    redlock_py: Kind::RedlockPy,
    node_redlock_4: Kind::NodeRedlock4,
    node_redlock_5: Kind::NodeRedlock5,
}

against! {
    we_outwait_their_session;
    etcdctl: Kind::Etcdctl,
    kazoo: Kind::Kazoo,
    curator: Kind::Curator,
}

#[tokio::test]
async fn all_together_under_load() {
    under_load(&[
        Kind::Fencelock(On::Redis),
        Kind::Rslock,
        Kind::RedisPy,
        Kind::RedlockPy,
        Kind::NodeRedlock4,
        Kind::NodeRedlock5,
        Kind::Fencelock(On::Redis),
    ])
    .await;
}
