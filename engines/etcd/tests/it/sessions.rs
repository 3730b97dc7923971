//! Sessions that end while their claims wait or hold.

use std::time::Duration;

use etcd_client::EventType;
use fencelock::engine::{Claim, ClaimIds, Leave, Standing};
use fencelock::{Client, Clock, Error, LeaseKind, LockName, LossReason, Token};
use fencelock_testbed::{Etcd, Flow, Proxy};
use tokio::time::{sleep, timeout};

use crate::{client, patient_client, soon, until, wait_for, waiters};

#[tokio::test]
async fn holders_learn_of_a_revoked_session_by_the_next_renewal() {
    let etcd = Etcd::start().unwrap();
    let (one, two) = (client(&etcd).await, client(&etcd).await);
    let guard = one.lock("a").ttl(Duration::from_secs(3)).await.unwrap();
    let other = one.lock("b").ttl(Duration::from_secs(3)).await.unwrap();
    for lease in etcd.leases().unwrap() {
        etcd.revoke(&lease).unwrap();
    }
    for guard in [&guard, &other] {
        let why = soon("the loss", guard.lost()).await;
        assert_eq!(why, LossReason::SessionEnded);
    }
    let next = soon("the lock", two.lock("a")).await.unwrap();
    assert!(next.token() > guard.token());
    drop(guard);
    // The client begins a new session when it needs one.
    let again = soon("another lock", one.lock("c")).await.unwrap();
    again.release().await.unwrap();
    assert!(next.is_valid());
    assert!(matches!(one.try_lock("a").await, Err(Error::Held { .. })));
}

#[tokio::test]
async fn a_claim_whose_session_ended_while_it_waited_is_not_granted() {
    for (layout, _) in LAYOUTS {
        not_granted_after_its_session_ended(layout).await;
    }
}

async fn not_granted_after_its_session_ended(layout: &str) {
    let etcd = Etcd::start().unwrap();
    let url = format!("{}?layout={layout}", etcd.url());
    let one = fencelock::connect(&url).await.unwrap();
    let two = fencelock::connect(&url).await.unwrap();
    let three = fencelock::connect(&url).await.unwrap();
    let guard = one.lock("a").await.unwrap();
    let before = etcd.leases().unwrap();
    let waiting = take_once(&two);
    waiters(&one, "a", 1).await;
    // End all sessions except the holder's.
    for lease in etcd.leases().unwrap() {
        if !before.contains(&lease) {
            etcd.revoke(&lease).unwrap();
        }
    }
    let last = take_once(&three);
    waiters(&one, "a", 2).await;
    guard.release().await.unwrap();
    // Each claim is granted with a new key of its own, one after the other.
    let first = soon("the first grant", waiting).await.unwrap();
    let second = soon("the second grant", last).await.unwrap();
    assert_ne!(first, second);
}

/// Takes the lock, checks that the store shows it, and releases it. Returns the token.
fn take_once(client: &Client) -> tokio::task::JoinHandle<Token> {
    let client = client.clone();
    tokio::spawn(async move {
        let guard = client.lock("a").await.unwrap();
        let view = client.look("a").await.unwrap();
        assert_eq!(view.holders.len(), 1);
        assert_eq!(view.holders[0].claim, Some(guard.claim_id()));
        let token = guard.token();
        guard.release().await.unwrap();
        token
    })
}

/// The waiter learns of the end of its own session and of its predecessor's at the same time, after another client has
/// taken the lock.
#[tokio::test]
async fn a_claim_that_learns_late_of_the_end_of_its_session_does_not_take_its_turn() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    // Longer than the proxy holds the answers.
    let options = "response-timeout=20s&claim-window=20s";
    let url = format!("{}?{options}", etcd.url_at(&[proxy.port()]));
    let (far, near) = (fencelock::connect(&url).await.unwrap(), client(&etcd).await);
    let guard = near.lock("a").await.unwrap();
    let before = etcd.leases().unwrap();
    let waiting = take_once(&far);
    waiters(&near, "a", 1).await;
    // The waiter watches its own key, its predecessor's, and the release notice.
    until("it watches", async || watchers(&etcd) == 6).await;
    proxy.answers(Flow::Hold);
    for lease in etcd.leases().unwrap() {
        if !before.contains(&lease) {
            etcd.revoke(&lease).unwrap();
        }
    }
    guard.release().await.unwrap();
    let other = near.try_lock("a").await.unwrap();
    proxy.answers(Flow::Pass);
    waiters(&near, "a", 1).await;
    assert!(other.is_valid() && !waiting.is_finished());
    let token = other.token();
    other.release().await.unwrap();
    assert!(soon("the grant", waiting).await.unwrap() > token);
}

/// The watches that the server has open. Each client that has held a lock has one for its mailbox. Each client that has
/// claimed one has one that guards its connection. Waiters have their own.
fn watchers(etcd: &Etcd) -> u64 {
    etcd.counter(0, "etcd_debugging_mvcc_watcher_total", "")
        .unwrap()
}

#[tokio::test]
async fn a_half_open_connection_ends_validity_before_the_next_grant() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let far = fencelock::connect(etcd.url_at(&[proxy.port()]))
        .await
        .unwrap();
    let near = client(&etcd).await;
    let guard = far.lock("a").ttl(Duration::from_secs(4)).await.unwrap();
    let waiting = wait_for(&near, "a");
    soon("a renewal", guard.prolonged()).await;
    proxy.both(Flow::Lose);
    let next = soon("the next grant", waiting).await.unwrap().unwrap();
    assert!(guard.valid_until() < Clock::Boot.now() && !guard.is_valid());
    assert!(next.is_valid());
}

#[tokio::test]
async fn an_administrator_deletes_a_key() {
    let etcd = Etcd::start().unwrap();
    let one = client(&etcd).await;
    let guard = one.lock("a").ttl(Duration::from_secs(4)).await.unwrap();
    etcd.erase().unwrap();
    // The session is alive, but the hold is gone.
    let why = soon("the loss is found by a renewal", guard.lost()).await;
    assert_eq!(why, LossReason::StoreForgot);
}

/// The transaction that creates the key has no reply, twice. No key is left, and none appears later.
#[tokio::test]
async fn a_lost_answer_leaves_no_orphan() {
    let [(layout, prefix), _] = LAYOUTS;
    leaves_no_orphan(layout, prefix).await;
}

#[tokio::test]
async fn a_lost_answer_leaves_no_orphan_in_gos_layout() {
    let [_, (layout, prefix)] = LAYOUTS;
    leaves_no_orphan(layout, prefix).await;
}

/// The layouts, each with the prefix of all keys in this test.
const LAYOUTS: [(&str, &str); 2] = [("fencelock", "fencelock/lock/"), ("concurrency", "a")];

async fn leaves_no_orphan(layout: &str, prefix: &str) {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let options = format!("layout={layout}&response-timeout=1500ms");
    let url = format!("{}?{options}", etcd.url_at(&[proxy.port()]));
    let far = fencelock::connect(&url).await.unwrap();
    let near = format!("{}?layout={layout}", etcd.url());
    let near = fencelock::connect(&near).await.unwrap();
    // This hold stays, so that the client cannot simply revoke the session.
    let stays = far.lock("a-stays").await.unwrap();
    for round in 0..2 {
        let name = format!("a/{round}");
        proxy.answers(Flow::Lose);
        let error = soon("an error", far.try_lock(&name)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        proxy.answers(Flow::Pass);
        proxy.reset();
        let guard = soon("the lock is free", near.lock(&name)).await.unwrap();
        guard.release().await.unwrap();
    }
    assert!(stays.is_valid());
    stays.release().await.unwrap();
    until("nothing is left", async || etcd.keys(prefix).unwrap() == 0).await;
    assert_eq!(far.promises().lease, LeaseKind::Session);
}

/// Waits until a lock has `count` keys.
async fn keys(etcd: &Etcd, name: &str, count: u64) {
    let prefix = format!("fencelock/lock/{name}/");
    until("the keys are there", async || {
        etcd.keys(&prefix).unwrap() == count
    })
    .await;
}

/// Later than a second request over the other connection, and before the client gives up the first connection.
const LATE: Flow = Flow::Delay(Duration::from_secs(4));

/// Two proxies to a server. The second one refuses connections.
fn two_proxies(etcd: &Etcd) -> (Proxy, Proxy) {
    let [slow, other] = [(); 2].map(|()| Proxy::start(etcd.port(0)).unwrap());
    other.refuse(true).unwrap();
    (slow, other)
}

async fn client_of_both(etcd: &Etcd, slow: &Proxy, other: &Proxy) -> Client {
    let ports = [slow.port(), other.port()];
    let url = format!("{}?response-timeout=1500ms", etcd.url_at(&ports));
    fencelock::connect(&url).await.unwrap()
}

/// The session is given up for another claim whose requests had no answer. What that claim left is deleted, and nothing else.
#[tokio::test]
async fn a_lock_delay_outlives_the_end_of_its_session() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let url = format!("{}?response-timeout=1500ms", etcd.url_at(&[proxy.port()]));
    let (engine, near) = (
        fencelock::open_engine(&url).await.unwrap(),
        client(&etcd).await,
    );
    let ids = ClaimIds::new().unwrap();
    let claim = |name: &str| {
        let claim = Claim::new(ids.next(), "me", LockName::new(name).unwrap());
        claim
            .ttl(Duration::from_secs(4))
            .lock_delay(Duration::from_secs(30))
    };
    let (abandoned, doubtful) = (claim("a"), claim("b"));
    let held = engine.place(&abandoned).await.unwrap();
    assert!(matches!(held, Standing::Held(_)), "{held:?}");
    proxy.answers(Flow::Lose);
    engine.place(&doubtful).await.unwrap_err();
    keys(&etcd, "b", 1).await;
    engine
        .withdraw(&doubtful, Leave::Release)
        .await
        .unwrap_err();
    engine.withdraw(&abandoned, Leave::Abandon).await.unwrap();
    proxy.answers(Flow::Pass);
    proxy.reset();
    keys(&etcd, "b", 0).await;
    keys(&etcd, "a", 1).await;
    let error = near.try_lock("a").await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error:?}");
}

/// The client and the store agree on the grant, although the first reply was lost.
#[tokio::test]
async fn a_reader_whose_answer_was_lost_finds_its_key_again() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let url = format!("{}?response-timeout=1500ms", etcd.url_at(&[proxy.port()]));
    let (far, near) = (fencelock::connect(&url).await.unwrap(), client(&etcd).await);
    // This hold keeps the session of the reader's key alive.
    let stays = far.lock("stays").await.unwrap();
    proxy.answers(Flow::Lose);
    let reader = tokio::spawn({
        let far = far.clone();
        async move { far.lock("a").shared().await }
    });
    keys(&etcd, "a", 1).await;
    proxy.answers(Flow::Pass);
    proxy.reset();
    let reader = soon("the reader", reader).await.unwrap().unwrap();
    let view = near.look("a").await.unwrap();
    assert_eq!(view.holders.len(), 1);
    assert_eq!(view.token(), Some(reader.token()));
    stays.release().await.unwrap();
    let sequencer = reader.sequencer().await.unwrap();
    assert!(near.check(&sequencer).await.unwrap());
    let error = near.try_lock("a").await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error:?}");
    reader.release().await.unwrap();
    keys(&etcd, "a", 0).await;
}

/// The first request arrives after the second one, which replaced it. It must change nothing.
#[tokio::test]
async fn a_readers_late_request_does_not_move_its_key() {
    let etcd = Etcd::start().unwrap();
    let (slow, other) = two_proxies(&etcd);
    let (far, near) = (
        client_of_both(&etcd, &slow, &other).await,
        client(&etcd).await,
    );
    let stays = far.lock("stays").await.unwrap();
    let before = etcd.leases().unwrap();
    other.refuse(false).unwrap();
    slow.requests(LATE);
    let reader = soon("the reader", far.lock("a").shared()).await.unwrap();
    let done = || {
        let label = "grpc_method=\"Txn\"";
        etcd.counter(0, "grpc_server_handled_total", label).unwrap()
    };
    let second = done();
    until("the first request is there", async || done() > second).await;
    stays.release().await.unwrap();
    until("its session is over", async || {
        let leases = etcd.leases().unwrap();
        before.iter().any(|lease| !leases.contains(lease))
    })
    .await;
    let error = near.try_lock("a").await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error:?}");
    assert!(reader.is_valid());
    reader.release().await.unwrap();
}

/// In Go's layout the client's next claim has the same key as the one before, in fencelock's own layout another one.
#[tokio::test]
async fn a_late_release_does_not_end_the_clients_next_claim() {
    for (layout, prefix, method) in [
        ("concurrency", "a/", "Txn"),
        ("fencelock", "fencelock/lock/a/", "DeleteRange"),
    ] {
        let etcd = Etcd::start().unwrap();
        let (slow, other) = two_proxies(&etcd);
        let url = etcd.url_at(&[slow.port(), other.port()]);
        let url = format!("{url}?response-timeout=1500ms&layout={layout}");
        let far = fencelock::connect(&url).await.unwrap();
        let first = far.lock("a").await.unwrap();
        let label = format!("grpc_method=\"{method}\"");
        let done = || {
            etcd.counter(0, "grpc_server_handled_total", &label)
                .unwrap()
        };
        other.refuse(false).unwrap();
        slow.requests(LATE);
        // The client repeats the release over the other connection if necessary.
        let _ = soon("an answer", first.release()).await;
        until("it is released", async || etcd.keys(prefix).unwrap() == 0).await;
        let next = soon("the lock", far.lock("a")).await.unwrap();
        let before = done();
        until("the late release is there", async || done() > before).await;
        assert_eq!(etcd.keys(prefix).unwrap(), 1, "{layout}");
        assert!(next.is_valid());
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_whose_answer_was_lost_keeps_its_place() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let url = format!("{}?response-timeout=1500ms", etcd.url_at(&[proxy.port()]));
    let (far, near) = (fencelock::connect(&url).await.unwrap(), client(&etcd).await);
    let other = client(&etcd).await;
    let guard = near.lock("a").await.unwrap();
    let kept = near.lock("b").await.unwrap();
    // It waits in the session that also has the other waiter's key.
    let beside = wait_for(&far, "b");
    waiters(&near, "b", 1).await;
    let error = far.try_lock("a").await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error:?}");
    proxy.answers(Flow::Lose);
    let first = wait_for(&far, "a");
    waiters(&near, "a", 1).await;
    let second = wait_for(&other, "a");
    waiters(&near, "a", 2).await;
    proxy.answers(Flow::Pass);
    proxy.reset();
    guard.release().await.unwrap();
    let first = soon("the first", first).await.unwrap().unwrap();
    assert!(!second.is_finished());
    first.release().await.unwrap();
    let second = soon("the second", second).await.unwrap().unwrap();
    second.release().await.unwrap();
    kept.release().await.unwrap();
    let beside = soon("the other lock", beside).await.unwrap().unwrap();
    beside.release().await.unwrap();
}

/// A client that was refused does not check what its first request may have taken since.
#[tokio::test]
async fn a_late_request_of_a_client_that_gave_up_leaves_no_orphan() {
    let etcd = Etcd::start().unwrap();
    let (slow, other) = two_proxies(&etcd);
    // In fencelock's own layout the late request fails, because the client has raised the token base over its next connection.
    let both = etcd.url_at(&[slow.port(), other.port()]);
    let both = format!("{both}?response-timeout=1500ms&layout=concurrency");
    let far = fencelock::connect(&both).await.unwrap();
    let near = format!("{}?layout=concurrency", etcd.url());
    let near = fencelock::connect(&near).await.unwrap();
    // This hold keeps the session of the request alive.
    let ttl = Duration::from_secs(6);
    let stays = far.lock("stays").ttl(ttl).await.unwrap();
    let guard = near.lock("a").await.unwrap();
    other.refuse(false).unwrap();
    slow.requests(LATE);
    let error = far.lock("a").ttl(ttl).attempts(2).await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error:?}");
    // Watched, because the key may be deleted before a read could see it.
    let address = etcd.url().replace("etcd://", "http://");
    let mut bare = etcd_client::Client::connect([address], None).await.unwrap();
    let all = etcd_client::WatchOptions::new().with_prefix();
    let mut seen = bare.watch("a/", Some(all)).await.unwrap();
    guard.release().await.unwrap();
    // The late request takes the free lock. Then its key is found and deleted.
    let mut late = Vec::new();
    soon("a key comes and goes", async {
        loop {
            let message = seen.message().await.unwrap().unwrap();
            for event in message.events() {
                let key = event.kv().unwrap().key().to_vec();
                match event.event_type() {
                    EventType::Put => late.push(key),
                    EventType::Delete if late.contains(&key) => return,
                    EventType::Delete => {}
                }
            }
        }
    })
    .await;
    assert_eq!(etcd.keys("a/").unwrap(), 0);
    assert!(stays.is_valid());
    let guard = soon("the lock", near.lock("a")).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn each_claim_has_its_own_ttl() {
    let etcd = Etcd::start().unwrap();
    let one = client(&etcd).await;
    let short = one.lock("a").ttl(Duration::from_secs(3)).await.unwrap();
    let long = one.lock("b").ttl(Duration::from_secs(60)).await.unwrap();
    assert!(short.remaining() <= Duration::from_secs(3));
    assert!(long.remaining() > Duration::from_secs(55));
    let error = one
        .lock("c")
        .ttl(Duration::from_millis(500))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("1s"), "{error}");
    soon("it is renewed", short.prolonged()).await;
    assert!(short.is_valid());
    assert_eq!(etcd.leases().unwrap().len(), 2, "one session for each ttl");
    let promises = one.promises();
    assert_eq!(promises.min_ttl, Duration::from_secs(1));
    assert!(promises.clock.contains("whole seconds"), "{promises:?}");
}

/// A waiter that gives up while the server does not answer leaves the queue, however long the silence lasts.
#[tokio::test]
async fn a_waiter_that_gave_up_without_an_answer_leaves_the_queue() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let options = "response-timeout=1500ms&claim-window=10s";
    let url = format!("{}?{options}", etcd.url_at(&[proxy.port()]));
    let (far, near) = (fencelock::connect(&url).await.unwrap(), client(&etcd).await);
    let guard = near.lock("a").await.unwrap();
    let waiting = tokio::spawn({
        let far = far.clone();
        async move { far.lock("a").ttl(Duration::from_secs(1)).await }
    });
    crate::waiters(&near, "a", 1).await;
    proxy.both(Flow::Hold);
    waiting.abort();
    // Longer than its ttl, during which the client repeats the withdrawal; shorter than its session.
    sleep(Duration::from_millis(4500)).await;
    proxy.both(Flow::Pass);
    proxy.reset();
    crate::waiters(&near, "a", 0).await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    let again = soon("the client goes on", far.lock("a")).await.unwrap();
    again.release().await.unwrap();
    until("nothing is left", async || {
        etcd.keys("fencelock/lock/").unwrap() == 0
    })
    .await;
}

/// The server lists the keys of a session in one response, whose length is limited.
#[tokio::test(flavor = "multi_thread")]
async fn more_holds_than_fit_in_one_session() {
    // A key is three times as long as its name, and a session has room for 3 MiB of keys.
    const HOLDS: usize = 2_200;
    // Longer than a busy machine takes for all of them.
    const TTL: Duration = Duration::from_secs(30);
    let long = "/".repeat(500);
    let etcd = Etcd::start().unwrap();
    let one = patient_client(&etcd).await;
    let hold = |i| {
        let (one, name) = (one.clone(), format!("{long}{i}"));
        tokio::spawn(async move { one.lock(&name).ttl(TTL).await })
    };
    let mut guards = Vec::new();
    for hold in (0..HOLDS).map(hold).collect::<Vec<_>>() {
        guards.push(timeout(TTL, hold).await.expect("a hold").unwrap().unwrap());
    }
    let before: Vec<_> = guards.iter().map(fencelock::Guard::valid_until).collect();
    let renewed = || {
        let each = guards.iter().zip(&before);
        each.filter(|(guard, before)| guard.valid_until() > **before)
            .count()
    };
    // Each is renewed in its ttl, or is lost.
    while renewed() < HOLDS {
        if let Some(lost) = guards.iter().find(|guard| !guard.is_valid()) {
            let (reason, renewed) = (lost.lost().await, renewed());
            panic!("{} is lost: {reason:?}; {renewed} are renewed", lost.name());
        }
        sleep(Duration::from_millis(50)).await;
    }
    // Two sessions, and more if the server was slow: a session in doubt takes no new hold.
    let sessions = etcd.leases().unwrap().len();
    assert!((2..20).contains(&sessions), "{sessions} sessions");
}
