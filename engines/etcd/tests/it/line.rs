//! How much is asked of the server.

use std::time::{Duration, Instant};

use fencelock::{Client, Error};
use fencelock_testbed::Etcd;

use crate::{client, soon, wait_for, waiters};

/// What the server was asked so far. All watches of a client are one stream: what counts is what was sent over it.
fn requests(etcd: &Etcd) -> u64 {
    let of = |service: &str| {
        let label = format!("grpc_service=\"etcdserverpb.{service}\"");
        etcd.counter(0, "grpc_server_msg_received_total", &label)
            .unwrap()
    };
    of("KV") + of("Watch")
}

/// Events that the server has sent to watchers so far.
fn events(etcd: &Etcd) -> u64 {
    etcd.counter(0, "etcd_debugging_mvcc_events_total", "")
        .unwrap()
}

#[tokio::test]
async fn one_transaction_takes_and_one_releases() {
    let etcd = Etcd::start().unwrap();
    let one = client(&etcd).await;
    // Once before: session, base and mailbox are there then.
    one.lock("warm").await.unwrap().release().await.unwrap();
    crate::until(
        "the mailbox is open, and the connection guarded",
        async || {
            etcd.counter(0, "etcd_debugging_mvcc_watcher_total", "")
                .unwrap()
                == 2
        },
    )
    .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = requests(&etcd);
    for i in 0..50 {
        one.lock(&format!("a/{i}"))
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(requests(&etcd) - before, 100);
    assert_eq!(etcd.leases().unwrap().len(), 1, "one session for all");
}

/// Whoever finds a lock taken asks more the next time, until it was free for a while.
#[tokio::test]
async fn a_lock_found_taken_costs_one_request_more_and_only_once() {
    let etcd = Etcd::start().unwrap();
    let (holder, other) = (client(&etcd).await, client(&etcd).await);
    other.lock("warm").await.unwrap().release().await.unwrap();
    let guard = holder.lock("a").await.unwrap();
    crate::until(
        "both mailboxes are open, and the connections guarded",
        async || {
            etcd.counter(0, "etcd_debugging_mvcc_watcher_total", "")
                .unwrap()
                == 4
        },
    )
    .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = requests(&etcd);
    for asked in [2, 3, 4] {
        let error = other.try_lock("a").await.unwrap_err();
        assert!(matches!(error, Error::Held { .. }), "{error:?}");
        assert_eq!(requests(&etcd) - before, asked);
    }
    guard.release().await.unwrap();
    let before = requests(&etcd);
    for _ in 0..20 {
        other.try_lock("a").await.unwrap().release().await.unwrap();
    }
    assert_eq!(requests(&etcd) - before, 40);
}

/// All wait, then each has it once: requests and time for each hand-off.
async fn drain(etcd: &Etcd, count: usize) -> (f64, Duration) {
    let holder = client(etcd).await;
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..count {
        clients.push(client(etcd).await);
    }
    let guard = holder.lock("hot").await.unwrap();
    let waiting: Vec<_> = clients
        .iter()
        .map(|client| wait_for(client, "hot"))
        .collect();
    waiters(&holder, "hot", count).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (before, begun) = (requests(etcd), Instant::now());
    guard.release().await.unwrap();
    for task in waiting {
        // In whatever order they are looked at, each releases when it is dropped.
        tokio::spawn(async move { task.await.unwrap().unwrap().release().await.unwrap() });
    }
    crate::until("the line is empty", async || {
        etcd.keys("fencelock/lock/").unwrap() == 0
    })
    .await;
    let each = (requests(etcd) - before) as f64 / count as f64;
    (each, begun.elapsed() / u32::try_from(count).unwrap())
}

#[tokio::test]
async fn requests_for_each_hand_off_do_not_grow_with_the_line() {
    let etcd = Etcd::start().unwrap();
    let (of_16, _) = drain(&etcd, 16).await;
    let (of_128, time) = drain(&etcd, 128).await;
    println!("{of_16} and {of_128} requests, {time:?}");
    // A release, the mailbox of each that has held, the end of its watches; and what the test itself asks.
    assert!(of_16 < 9.0 && of_128 < 9.0, "{of_16} and {of_128} requests");
    assert!(of_128 < of_16 + 2.0, "{of_16} and {of_128} requests");
    assert!(
        time < Duration::from_millis(70),
        "{time:?} for each hand-off"
    );
}

/// A watch that begins at a revision of before is served every 100 ms only, on this very server; one who has just begun to
/// wait is told at once.
#[tokio::test]
async fn nobody_waits_for_a_look_through_history() {
    const TIMES: u32 = 15;
    let etcd = Etcd::start().unwrap();
    let mut bare = etcd_client::Client::connect([etcd.url().replace("etcd://", "http://")], None)
        .await
        .unwrap();
    let mut late = Vec::new();
    for _ in 0..TIMES {
        let put = bare.put("bare", "", None).await.unwrap();
        let revision = put.header().unwrap().revision();
        let options = etcd_client::WatchOptions::new().with_start_revision(revision);
        let mut watch = bare.watch("bare", Some(options)).await.unwrap();
        let begun = Instant::now();
        while watch.message().await.unwrap().unwrap().events().is_empty() {}
        late.push(begun.elapsed());
    }
    let (one, two) = (client(&etcd).await, client(&etcd).await);
    let mut ours = Vec::new();
    for _ in 0..TIMES {
        let guard = one.lock("a").await.unwrap();
        let waiting = wait_for(&two, "a");
        waiters(&one, "a", 1).await;
        let begun = Instant::now();
        guard.release().await.unwrap();
        let next = soon("a turn", waiting).await.unwrap().unwrap();
        ours.push(begun.elapsed());
        next.release().await.unwrap();
    }
    late.sort();
    ours.sort();
    // Three may be the machine's fault.
    let (late, ours) = (late[late.len() / 2], ours[ours.len() - 4]);
    println!("{ours:?}, and {late:?} through history");
    assert!(ours < late / 2, "{ours:?}, and {late:?} through history");
}

#[tokio::test]
async fn waiting_costs_nothing_while_others_are_busy() {
    let etcd = Etcd::start().unwrap();
    let (holder, waiter, busy) = (
        client(&etcd).await,
        client(&etcd).await,
        client(&etcd).await,
    );
    let guard = holder.lock("a").await.unwrap();
    let waiting = wait_for(&waiter, "a");
    waiters(&holder, "a", 1).await;
    busy.lock("warm").await.unwrap().release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (asked, sent) = (requests(&etcd), events(&etcd));
    for i in 0..100 {
        // Names around the one that is waited for.
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
    let _ = soon("the waiter is served", waiting)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn no_name_stands_within_another() {
    let etcd = Etcd::start().unwrap();
    let one = client(&etcd).await;
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
    let one = client(&etcd).await;
    let mut guards = Vec::new();
    for i in 0..HOLDS {
        let wish = one.lock(&format!("a/{i}")).ttl(Duration::from_secs(3));
        guards.push(wish.await.unwrap());
    }
    let lease = |etcd: &Etcd| {
        let label = "grpc_service=\"etcdserverpb.Lease\"";
        etcd.counter(0, "grpc_server_started_total", label).unwrap() + requests(etcd)
    };
    soon("a renewal", guards[HOLDS - 1].prolonged()).await;
    let (before, begun) = (lease(&etcd), Instant::now());
    for _ in 0..3 {
        soon("a renewal", guards[0].prolonged()).await;
    }
    let asked = lease(&etcd) - before;
    // Some two at a time for the session, however many hold in it.
    assert!(asked < 30, "{asked} requests in {:?}", begun.elapsed());
    assert!(guards.iter().all(fencelock::Guard::is_valid));
}
