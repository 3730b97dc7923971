//! How many requests the server gets.

use std::time::{Duration, Instant};

use fencelock::{Client, Error};
use fencelock_testbed::{Etcd, Flow, Proxy};
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::{LIMIT, all_wait, patient_client, soon, until, wait_for, waiters};

/// The number of requests that the server got so far. All watches of a client are one stream, so its messages are
/// counted.
fn requests(etcd: &Etcd) -> u64 {
    let of = |service: &str| {
        let label = format!("grpc_service=\"etcdserverpb.{service}\"");
        etcd.counter(0, "grpc_server_msg_received_total", &label)
            .unwrap()
    };
    of("KV") + of("Watch")
}

/// The number of events that the server has sent to watchers so far.
fn events(etcd: &Etcd) -> u64 {
    etcd.counter(0, "etcd_debugging_mvcc_events_total", "")
        .unwrap()
}

/// Waits until `count` watches are open, and their clients send no more requests. Each client that has held a lock has one
/// watch for its mailbox and one that guards its connection.
async fn watching(etcd: &Etcd, count: u64) {
    until("the watches are open", async || {
        let open = etcd.counter(0, "etcd_debugging_mvcc_watcher_total", "");
        open.unwrap() == count
    })
    .await;
    let mut last = 0;
    until("no client sends more", async || {
        sleep(Duration::from_millis(500)).await;
        std::mem::replace(&mut last, requests(etcd)) == last
    })
    .await;
}

#[tokio::test]
async fn one_transaction_takes_and_one_releases() {
    let etcd = Etcd::start().unwrap();
    let one = patient_client(&etcd).await;
    // The first lock begins the session and the mailbox, and raises the token base.
    one.lock("warm").await.unwrap().release().await.unwrap();
    watching(&etcd, 2).await;
    let before = requests(&etcd);
    for i in 0..50 {
        one.lock(&format!("a/{i}"))
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    // The session may be kept alive meanwhile. With one more request for each lock there would be 150.
    let asked = requests(&etcd) - before;
    assert!((100..105).contains(&asked), "{asked}");
    assert_eq!(etcd.leases().unwrap().len(), 1, "one session for all");
}

/// A client that has found a lock taken reads the queue at once the next time. It stops this when it has found the lock free
/// for a while.
#[tokio::test]
async fn a_taken_lock_costs_one_more_request_only_once() {
    let etcd = Etcd::start().unwrap();
    let (holder, other) = (patient_client(&etcd).await, patient_client(&etcd).await);
    other.lock("warm").await.unwrap().release().await.unwrap();
    let guard = holder.lock("a").await.unwrap();
    watching(&etcd, 4).await;
    let before = requests(&etcd);
    for _ in 0..20 {
        let error = other.try_lock("a").await.unwrap_err();
        assert!(matches!(error, Error::Held { .. }), "{error:?}");
    }
    // A session may be kept alive meanwhile. With a read for each try there would be 40.
    let asked = requests(&etcd) - before;
    assert!((21..26).contains(&asked), "{asked}");
    guard.release().await.unwrap();
    let before = requests(&etcd);
    for _ in 0..20 {
        other.try_lock("a").await.unwrap().release().await.unwrap();
    }
    // The session may be kept alive meanwhile. With a read for each lock there would be 60.
    let asked = requests(&etcd) - before;
    assert!((40..45).contains(&asked), "{asked}");
}

/// All wait, then each holds the lock once. Returns the requests and the time for each hand-off.
async fn drain(etcd: &Etcd, count: usize) -> (f64, Duration) {
    let holder = patient_client(etcd).await;
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..count {
        clients.push(patient_client(etcd).await);
    }
    let guard = holder.lock("contended").await.unwrap();
    let waiting: Vec<_> = clients
        .iter()
        .map(|client| wait_for(client, "contended"))
        .collect();
    // A busy machine takes long to open so many connections.
    let all_wait = all_wait(&holder, "contended", count);
    timeout(2 * LIMIT, all_wait).await.expect("all wait");
    sleep(Duration::from_millis(500)).await;
    let (before, begun) = (requests(etcd), Instant::now());
    guard.release().await.unwrap();
    let releases = waiting
        .into_iter()
        .map(|task| async move { task.await.unwrap().unwrap().release().await.unwrap() });
    soon("all had it once", join_all(releases)).await;
    let each = (requests(etcd) - before) as f64 / count as f64;
    (each, begun.elapsed() / u32::try_from(count).unwrap())
}

#[tokio::test]
async fn requests_for_each_hand_off_do_not_grow_with_the_queue() {
    let etcd = Etcd::start().unwrap();
    let (of_16, _) = drain(&etcd, 16).await;
    let (of_128, time) = drain(&etcd, 128).await;
    println!("{of_16} and {of_128} requests, {time:?}");
    // For each client: a release, a mailbox, and the end of the watches. A busy machine causes some repeated requests.
    assert!(of_16 < 9.0 && of_128 < 9.0, "{of_16} and {of_128} requests");
    assert!(
        time < Duration::from_millis(70),
        "{time:?} for each hand-off"
    );
}

/// The server serves a watch that begins at an earlier revision only every 100 ms, which the first half measures. The waiters
/// of fencelock are notified at once.
#[tokio::test]
async fn no_watch_begins_in_history() {
    const TIMES: u32 = 15;
    let etcd = Etcd::start().unwrap();
    let mut bare = etcd_client::Client::connect([etcd.url().replace("etcd://", "http://")], None)
        .await
        .unwrap();
    let mut from_history = Vec::new();
    for _ in 0..TIMES {
        let put = bare.put("bare", "", None).await.unwrap();
        let revision = put.header().unwrap().revision();
        let options = etcd_client::WatchOptions::new().with_start_revision(revision);
        let mut watch = bare.watch("bare", Some(options)).await.unwrap();
        let begun = Instant::now();
        while watch.message().await.unwrap().unwrap().events().is_empty() {}
        from_history.push(begun.elapsed());
    }
    let (one, two) = (patient_client(&etcd).await, patient_client(&etcd).await);
    let mut ours = Vec::new();
    for _ in 0..TIMES {
        let guard = one.lock("a").await.unwrap();
        let waiting = wait_for(&two, "a");
        waiters(&one, "a", 1).await;
        let begun = Instant::now();
        guard.release().await.unwrap();
        let next = soon("a grant", waiting).await.unwrap().unwrap();
        ours.push(begun.elapsed());
        next.release().await.unwrap();
    }
    from_history.sort();
    ours.sort();
    // A busy machine may delay three of the 15.
    let (slow, fast) = (from_history[from_history.len() / 2], ours[ours.len() - 4]);
    println!("{fast:?}, and {slow:?} from history");
    assert!(fast < slow / 2, "{fast:?}, and {slow:?} from history");
}

#[tokio::test]
async fn waiting_costs_nothing_while_others_are_busy() {
    let etcd = Etcd::start().unwrap();
    let (holder, waiter, busy) = (
        patient_client(&etcd).await,
        patient_client(&etcd).await,
        patient_client(&etcd).await,
    );
    let guard = holder.lock("a").await.unwrap();
    let waiting = wait_for(&waiter, "a");
    waiters(&holder, "a", 1).await;
    busy.lock("warm").await.unwrap().release().await.unwrap();
    sleep(Duration::from_millis(300)).await;
    let (asked, sent) = (requests(&etcd), events(&etcd));
    for i in 0..100 {
        // Names that are similar to the waiter's.
        let name = ["a/b", "ab", "b"][i % 3];
        busy.lock(name).await.unwrap().release().await.unwrap();
    }
    let asked = requests(&etcd) - asked;
    assert!(
        (200..=203).contains(&asked),
        "{asked} requests for 100 pairs"
    );
    assert_eq!(events(&etcd) - sent, 0, "events of other names");
    guard.release().await.unwrap();
    let _ = soon("the grant", waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn names_with_slashes_are_independent_locks() {
    let etcd = Etcd::start().unwrap();
    let one = patient_client(&etcd).await;
    let mut guards = Vec::new();
    for name in ["/a/b", "/a", "/ab", "/a/", "a", "a%2Fb", "a/b"] {
        guards.push(soon(name, one.try_lock(name)).await.unwrap());
    }
    assert_eq!(one.list("/a").await.unwrap().len(), 4);
}

#[tokio::test]
async fn one_keepalive_serves_all_holds() {
    const HOLDS: usize = 200;
    let etcd = Etcd::start().unwrap();
    let one = patient_client(&etcd).await;
    let mut guards = Vec::new();
    for i in 0..HOLDS {
        let request = one.lock(&format!("a/{i}")).ttl(Duration::from_secs(5));
        guards.push(request.await.unwrap());
    }
    let with_leases = |etcd: &Etcd| {
        let label = "grpc_service=\"etcdserverpb.Lease\"";
        etcd.counter(0, "grpc_server_started_total", label).unwrap() + requests(etcd)
    };
    soon("a renewal", guards[HOLDS - 1].prolonged()).await;
    let (before, begun) = (with_leases(&etcd), Instant::now());
    for _ in 0..3 {
        soon("a renewal", guards[0].prolonged()).await;
    }
    let asked = with_leases(&etcd) - before;
    // About two for each renewal of the session, however many holds it has.
    assert!(asked < 30, "{asked} requests in {:?}", begun.elapsed());
    assert!(guards.iter().all(fencelock::Guard::is_valid));
}

/// A request that waits for its turn has not begun to wait for its answer. The server works on some hundred requests of a
/// connection at once, so the last of these is answered after six seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_its_turn_does_not_run_out_of_time() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let url = format!("{}?response-timeout=4s", etcd.url_at(&[proxy.port()]));
    let one = fencelock::connect(&url).await.unwrap();
    one.lock("warm").await.unwrap().release().await.unwrap();
    proxy.answers(Flow::Delay(Duration::from_millis(500)));
    let takes = (0..1200).map(|i| {
        let one = one.clone();
        tokio::spawn(async move { one.try_lock(&format!("a/{i}")).await })
    });
    let taken = soon("all answers", join_all(takes.collect::<Vec<_>>())).await;
    let guards: Vec<_> = taken
        .into_iter()
        .map(|taken| taken.unwrap().unwrap())
        .collect();
    assert!(guards.iter().all(fencelock::Guard::is_valid));
}
