//! Waiters of other clients are woken by KILL QUERY; without it they poll.

use fencelock_core::engine::Evict;
use fencelock_core::{Acquire, Guard, Wake};
use fencelock_testbed::{Flow, Proxy};
use tokio::task::JoinHandle;

use super::*;
use crate::shared::{hand_over, hand_over_within};

/// How many waiters there are.
const WAITERS: &str = "SELECT COUNT(*) FROM `lock`.fencelock_waiters";
/// The connections of ears that wait.
const WAITING_EARS: &str = "SELECT id FROM information_schema.processlist WHERE state = 'User lock' AND info LIKE '%fencelock-bell-%'";
/// Much longer than a woken waiter takes, and shorter than the time after which it asks by itself.
const WOKEN: Duration = Duration::from_millis(1900);
/// The longest time until a waiter that listens asks by itself.
const ASKS: Duration = Duration::from_secs(8);

fn waiting_ears(server: &MariaDb) -> Vec<u64> {
    let ids = server.sql(WAITING_EARS).unwrap();
    ids.lines().map(|id| id.parse().unwrap()).collect()
}

/// Begins to wait. Returns when `ears` ears wait in the server.
async fn wait_for(
    server: &MariaDb,
    request: Acquire,
    ears: usize,
) -> JoinHandle<Result<Guard, Error>> {
    let before = number(server, WAITERS);
    let waiting = tokio::spawn(request.into_future());
    until("it waits", || {
        number(server, WAITERS) > before && waiting_ears(server).len() == ears
    })
    .await;
    waiting
}

/// Waits until the only waiter has just asked by itself: it will not ask again for a while.
async fn has_just_asked(server: &MariaDb) {
    let expiry = || number(server, "SELECT SUM(expiry) FROM `lock`.fencelock_waiters");
    let before = expiry();
    until("it asks", || expiry() != before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_another_client_is_woken_at_once() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    assert_eq!(one.promises().wake, Wake::Push);
    let next = hand_over_within(WOKEN, "woken", async || {
        let held = take(&one, "a").await;
        let waiting = wait_for(&server, two.lock("a").label("night run"), 1).await;
        has_just_asked(&server).await;
        hand_over(held, waiting).await
    })
    .await;
    // The grant is a hold like any other, with everything that the claim asked for.
    soon("a renewal", next.prolonged()).await;
    assert!(next.is_valid());
    let view = one.look("a").await.unwrap();
    assert_eq!(view.token(), Some(next.token()));
    assert_eq!(view.holders[0].label.as_deref(), Some("night run"));
    next.release().await.unwrap();
    for table in ["locks", "waiters", "ears"] {
        let rows = format!("SELECT COUNT(*) FROM `lock`.fencelock_{table}");
        assert_eq!(number(&server, &rows), 0, "{table}");
    }
}

/// An ear that is not woken asks once per second. So several fast hand-offs in a row show that it is woken.
#[tokio::test(flavor = "multi_thread")]
async fn every_release_wakes() {
    const TURNS: usize = 8;
    let server = MariaDb::start().unwrap();
    let clients = [client(&server).await, client(&server).await];
    let mut held = take(&clients[0], "a").await;
    let mut took = Vec::new();
    for turn in 1..=TURNS {
        let waiting = wait_for(&server, clients[turn % 2].lock("a"), 1).await;
        let (one, next) = hand_over(held, waiting).await;
        took.push(one);
        held = next;
    }
    took.sort();
    // Half of the time that asking alone takes. A busy machine may delay two turns.
    assert!(took[TURNS - 3] < Duration::from_millis(500), "{took:?}");
    held.release().await.unwrap();
}

/// It does not try to take the lock first, as it did when it did not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_found_a_lock_taken_asks_for_a_place_at_once() {
    const TURNS: usize = 8;
    let server = MariaDb::start().unwrap();
    let clients = [client(&server).await, client(&server).await];
    let mut held = take(&clients[0], "a").await;
    let mut asked = Vec::new();
    for turn in 1..=TURNS {
        let before = status(&server, "Com_stmt_execute");
        let waiting = wait_for(&server, clients[turn % 2].lock("a"), 1).await;
        asked.push(status(&server, "Com_stmt_execute") - before);
        (_, held) = hand_over(held, waiting).await;
    }
    // In their first turns they try. A waiter may ask again meanwhile.
    let least = asked[2..].iter().min();
    assert_eq!(least, Some(&1), "{asked:?}");
    held.release().await.unwrap();
}

/// As a command that holds a lock while another command runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_ends_after_its_release_has_woken_the_waiter() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let held = take(&one, "a").await;
    let waiting = wait_for(&server, two.lock("a"), 1).await;
    has_just_asked(&server).await;
    let kills = || status(&server, "Com_kill");
    let before = kills();
    held.release().await.unwrap();
    one.close().await.unwrap();
    assert!(kills() > before);
    let next = soon("the next hold", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// Readers are not granted the lock by the releaser. It wakes them.
#[tokio::test(flavor = "multi_thread")]
async fn every_mode_and_every_way_to_a_turn_wakes() {
    let server = MariaDb::start().unwrap();
    let (one, two, three) = (
        client(&server).await,
        client(&server).await,
        client(&server).await,
    );
    let reader = hand_over_within(WOKEN, "a reader after a writer", async || {
        let writer = take(&one, "a").await;
        let waiting = wait_for(&server, two.lock("a").shared(), 1).await;
        has_just_asked(&server).await;
        hand_over(writer, waiting).await
    })
    .await;
    reader.release().await.unwrap();
    let writer = hand_over_within(WOKEN, "a writer after a reader", async || {
        let reader = soon("a reader", two.lock("a").shared()).await.unwrap();
        let waiting = wait_for(&server, three.lock("a"), 1).await;
        has_just_asked(&server).await;
        hand_over(reader, waiting).await
    })
    .await;
    writer.release().await.unwrap();
    let next = hand_over_within(WOKEN, "after an eviction", async || {
        let writer = take(&three, "a").await;
        let waiting = wait_for(&server, two.lock("a"), 1).await;
        has_just_asked(&server).await;
        let begun = Instant::now();
        let evicted = one.evict("a", writer.token(), Evict::Release);
        assert!(evicted.await.unwrap());
        let next = soon("the waiter", waiting).await.unwrap().unwrap();
        (begun.elapsed(), next)
    })
    .await;
    next.release().await.unwrap();
}

/// If the server refuses another connection, waiters poll, and other clients wake none of them.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_ear_a_waiter_polls() {
    let server = MariaDb::start().unwrap();
    server
        .sql(
            "CREATE USER 'few'@'%' WITH MAX_USER_CONNECTIONS 1; GRANT ALL ON `lock`.* TO 'few'@'%'",
        )
        .unwrap();
    let url = format!("mysql://few@127.0.0.1:{}/lock", server.port());
    let (one, few) = (client(&server).await, open(&url).await.unwrap());
    // A waiter that listens does not ask before two seconds are over, a waiter that polls does so twice per second.
    let next = hand_over_within(WOKEN, "by polling", async || {
        let held = take(&one, "a").await;
        let waiting = wait_for(&server, few.lock("a"), 0).await;
        hand_over(held, waiting).await
    })
    .await;
    next.release().await.unwrap();
}

/// A client of an earlier version has no ear and wakes no waiter. Here a user without rights on the new table plays that
/// client.
#[tokio::test(flavor = "multi_thread")]
async fn clients_without_ears_share_the_tables() {
    let server = MariaDb::start().unwrap();
    let new = client(&server).await;
    server.sql("CREATE USER 'old'@'%'").unwrap();
    for table in ["store", "locks", "holders", "waiters", "draws"] {
        let grant = format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON `lock`.fencelock_{table} TO 'old'@'%'"
        );
        server.sql(&grant).unwrap();
    }
    let url = format!("mysql://old@127.0.0.1:{}/lock", server.port());
    let old = open(&url).await.unwrap();
    assert_eq!(
        (old.promises().wake, new.promises().wake),
        (Wake::Poll, Wake::Push)
    );
    let held = hand_over_within(WOKEN, "an old one after a new one", async || {
        let held = take(&new, "a").await;
        let waiting = wait_for(&server, old.lock("a"), 0).await;
        hand_over(held, waiting).await
    })
    .await;
    let waiting = wait_for(&server, new.lock("a"), 1).await;
    let (took, held) = hand_over(held, waiting).await;
    assert!(took < ASKS, "a new one after an old one: {took:?}");
    held.release().await.unwrap();
    // A row that an old client has left in the table is not mistaken for another waiter's.
    let held = take(&new, "b").await;
    server
        .sql("INSERT INTO `lock`.fencelock_ears SELECT 'b', 1, x'01', REPEAT('0', 32), 1, NULL, 0")
        .unwrap();
    let waiting = wait_for(&server, old.lock("b"), 0).await;
    let (_, held) = hand_over(held, waiting).await;
    let waiting = wait_for(&server, new.lock("b"), 1).await;
    let (_, held) = hand_over(held, waiting).await;
    held.release().await.unwrap();
    until("nothing is left", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_ears") == 0
    })
    .await;
}

/// The ear's connection is killed, and then cut off silently. Only time is lost, and another ear is opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_ear_costs_only_time() {
    let server = MariaDb::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let one = client(&server).await;
    let two = open(&server.url_at(proxy.port(), "lock")).await.unwrap();
    let held = take(&one, "a").await;
    let waiting = wait_for(&server, two.lock("a"), 1).await;
    let ear = || {
        let ear = "SELECT IFNULL(MAX(IS_USED_LOCK(CONCAT('fencelock-ear-', ear))), 0) FROM `lock`.fencelock_ears";
        number(&server, ear)
    };
    for _ in 0..3 {
        let before = ear();
        server.sql(&format!("KILL CONNECTION {before}")).unwrap();
        until("another ear is there", || ear() > before).await;
    }
    let mut first = Some((held, waiting));
    let next = hand_over_within(WOKEN, "another ear", async || {
        let (held, waiting) = match first.take() {
            Some(first) => first,
            None => (
                take(&one, "a").await,
                wait_for(&server, two.lock("a"), 1).await,
            ),
        };
        until("it waits", || waiting_ears(&server) == [ear()]).await;
        has_just_asked(&server).await;
        hand_over(held, waiting).await
    })
    .await;
    // Whatever is sent to the ear is lost, and so is a KILL to its connection.
    let waiting = wait_for(&server, one.lock("a"), 1).await;
    let (_, held) = hand_over(next, waiting).await;
    let waiting = wait_for(&server, two.lock("a"), 1).await;
    proxy.answers(Flow::Lose);
    let begun = Instant::now();
    held.release().await.unwrap();
    proxy.answers(Flow::Pass);
    proxy.reset();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(begun.elapsed() < ASKS, "{:?}", begun.elapsed());
    next.release().await.unwrap();
}

/// A KILL is for the connection that holds the ear's lock: if no connection holds it, the KILL hits none.
#[tokio::test(flavor = "multi_thread")]
async fn no_other_connection_is_killed() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let held = take(&one, "a").await;
    let waiting = wait_for(&server, two.lock("a"), 1).await;
    let mut bystanders = Vec::new();
    for _ in 0..3 {
        let mut conn = bare(&server).await;
        bystanders.push(tokio::spawn(async move {
            conn.query_first::<u64, _>("SELECT SLEEP(3)").await
        }));
    }
    // The ear is gone, and later connections belong to others.
    two.close().await.unwrap();
    until("the ear is gone", || waiting_ears(&server).is_empty()).await;
    held.release().await.unwrap();
    drop(waiting);
    for bystander in bystanders {
        let slept = soon("a bystander", bystander).await.unwrap();
        assert_eq!(slept.unwrap(), Some(0));
    }
}

/// The doctor says why waiters poll.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_tries_out_an_ear() {
    let server = MariaDb::start().unwrap();
    let client = client(&server).await;
    let said = format!("{:?}", client.diagnose().await.unwrap());
    assert!(!said.contains("wake"), "{said}");
    server
        .sql(
            "CREATE USER 'few'@'%' WITH MAX_USER_CONNECTIONS 2; GRANT ALL ON `lock`.* TO 'few'@'%'",
        )
        .unwrap();
    let url = format!("mysql://few@127.0.0.1:{}/lock", server.port());
    let few = shared::inspect(&url).await.unwrap();
    let said = format!("{:?}", few.diagnose().await.unwrap());
    assert!(said.contains("not woken"), "{said}");
}
