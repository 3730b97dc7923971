//! With many listeners, a client with waiters sleeps in the server, and is woken by a cancellation instead of NOTIFY.

use std::future::poll_fn;

use fencelock_core::engine::Evict;
use fencelock_core::{Client, Guard};
use fencelock_testbed::{Flow, Proxy};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;

use super::*;
use crate::shared::{hand_over, hand_over_within, inspect, soon, take};

/// An interval that no test outlasts: an ear that returns earlier was woken.
const LONG_INTERVAL: f64 = 600.0;
/// Much longer than a woken waiter takes, and shorter than the time after which it asks by itself.
const WOKEN: Duration = Duration::from_millis(1900);
const KEY: i64 = 0x0123_4567_89ab_cdef;
/// The waiters whose own ears are asleep. (The ear of a claim that holds already may sleep on for the rest of the interval.)
const ASLEEP: &str = "SELECT count(*) FROM fencelock_waiters JOIN pg_stat_activity ON pid::text = split_part(bell, '_', 3) \
                      WHERE query LIKE 'CALL fencelock_hear%' AND wait_event = 'PgSleep'";
/// The clients that are ears, asleep or not.
const EARS: &str = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' \
                    AND application_name LIKE 'fencelock-%'";

/// A separate connection, and the notifications that it receives.
async fn listener(
    server: &Postgres,
    user: &str,
) -> (tokio_postgres::Client, UnboundedReceiver<String>) {
    let config = format!(
        "host=127.0.0.1 port={} user={user} dbname=lock application_name=listener",
        server.port()
    );
    let (client, mut connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    let (sender, received) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.payload().to_owned());
            }
        }
    });
    (client, received)
}

/// Enough listeners that waiters use ears.
async fn crowd(server: &Postgres) -> Vec<tokio_postgres::Client> {
    let mut crowd = Vec::new();
    for number in 0..32 {
        let one = raw(server, "crowd").await;
        let listen = format!("LISTEN fencelock_{number:032x}");
        one.batch_execute(&listen).await.unwrap();
        crowd.push(one);
    }
    crowd
}

async fn number(admin: &tokio_postgres::Client, sql: &str) -> i64 {
    admin.query_one(sql, &[]).await.unwrap().get(0)
}

async fn pid(of: &tokio_postgres::Client) -> i32 {
    let pid = of.query_one("SELECT pg_backend_pid()", &[]).await.unwrap();
    pid.get(0)
}

fn channel(pid: i32) -> String {
    format!("fencelock_ear_{pid}_{KEY:016x}")
}

/// Makes a connection an ear.
async fn make_ear(ear: &tokio_postgres::Client) -> String {
    let channel = channel(pid(ear).await);
    let listen = format!("LISTEN {channel}");
    ear.batch_execute(&listen).await.unwrap();
    let became = "SELECT fencelock_become_ear($1)";
    assert!(
        ear.query_one(became, &[&KEY])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
    channel
}

/// Puts a claim with this channel in the queue of `a`.
async fn queue(admin: &tokio_postgres::Client, channel: &str) {
    let queue = format!(
        "SELECT (fencelock_queue('a', '\\x{:032x}', 'x', 1, 2000000, 60000000, 'ear', NULL, '{channel}')).ahead_",
        1
    );
    assert_eq!(number(admin, &queue).await, 0);
}

async fn hear(
    ear: &tokio_postgres::Client,
    channel: &str,
    interval: f64,
    polls: i32,
) -> Option<String> {
    let hear = "CALL fencelock_hear($1, '{}', $2, $3, NULL)";
    let channels = vec![channel];
    let heard = ear.query_one(hear, &[&channels, &interval, &polls]).await;
    heard.unwrap().get(0)
}

/// Waits for a lock. Returns when the client's ear is asleep.
async fn wait_asleep(
    admin: &tokio_postgres::Client,
    client: &Client,
) -> JoinHandle<Result<Guard, Error>> {
    let waiting = tokio::spawn(client.lock("a").into_future());
    until("it sleeps", async || {
        client.look("a").await.unwrap().waiters.len() == 1 && number(admin, ASLEEP).await == 1
    })
    .await;
    waiting
}

/// The ear sleeps for long here: only a cancellation ends its sleep.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_an_ear() {
    let server = Postgres::start().unwrap();
    let client = open(&server.url()).await.unwrap();
    let (admin, (ear, mut told)) = (raw(&server, "admin").await, listener(&server, "lock").await);
    let held = take(&client, "a").await;
    let channel = make_ear(&ear).await;
    queue(&admin, &channel).await;
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let (heard, _) = tokio::join!(
        soon("the ear", hear(&ear, &channel, LONG_INTERVAL, 1)),
        async {
            until("it sleeps", async || number(&admin, asleep).await == 1).await;
            held.release().await.unwrap();
        }
    );
    let heard = heard.expect("a grant");
    assert!(heard.starts_with(&format!("{:032x} ", 1)), "{heard}");
    // There was no notification, which would wake all listeners.
    ear.batch_execute("SELECT 1").await.unwrap();
    assert!(told.try_recv().is_err());
}

/// A cancellation that comes while the ear is not asleep is lost. The ear polls before it sleeps.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_cancellation_loses_no_grant() {
    let server = Postgres::start().unwrap();
    let client = open(&server.url()).await.unwrap();
    let (admin, (ear, _told)) = (raw(&server, "admin").await, listener(&server, "lock").await);
    let held = take(&client, "a").await;
    let channel = make_ear(&ear).await;
    queue(&admin, &channel).await;
    held.release().await.unwrap();
    let heard = soon("the ear", hear(&ear, &channel, LONG_INTERVAL, 1)).await;
    assert!(heard.is_some());
}

/// A releaser wakes an ear after its commit: the ear sees the grant at once, and does not sleep a second time before.
#[tokio::test(flavor = "multi_thread")]
async fn an_ear_is_woken_after_the_commit() {
    // The commit of a change of holders waits for a lock that the test holds.
    const HOLD_UP: &str = "\
        CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$; \
        CREATE CONSTRAINT TRIGGER hold_up AFTER INSERT OR DELETE ON fencelock_holders \
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold_up()";
    let server = Postgres::start().unwrap();
    let client = open(&server.url()).await.unwrap();
    let (admin, (ear, mut told)) = (raw(&server, "admin").await, listener(&server, "lock").await);
    admin.batch_execute(HOLD_UP).await.unwrap();
    let channel = make_ear(&ear).await;
    for by_eviction in [true, false] {
        let held = take(&client, "a").await;
        queue(&admin, &channel).await;
        let changing = async {
            until("it sleeps", async || number(&admin, ASLEEP).await == 1).await;
            let lock = admin.batch_execute("SELECT pg_advisory_lock(1)");
            lock.await.unwrap();
            let changer = client.clone();
            let changed = tokio::spawn(async move {
                if by_eviction {
                    let evicted = changer.evict("a", held.token(), Evict::Release);
                    assert!(evicted.await.unwrap());
                } else {
                    held.release().await.unwrap();
                }
            });
            let held_up = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted";
            until("it commits", async || number(&admin, held_up).await == 1).await;
            let unlock = admin.batch_execute("SELECT pg_advisory_unlock(1)");
            unlock.await.unwrap();
            changed.await.unwrap();
        };
        let hearing = async {
            let heard = soon("the ear", hear(&ear, &channel, LONG_INTERVAL, 1)).await;
            // With the answer to this request come the notifications of all that was committed when it woke.
            ear.batch_execute("SELECT 1").await.unwrap();
            (heard, told.try_recv().ok())
        };
        let ((heard, news), ()) = tokio::join!(hearing, changing);
        match by_eviction {
            true => assert!(news.is_some_and(|news| news.starts_with("turn "))),
            false => assert!(heard.is_some()),
        }
        let rest = "DELETE FROM fencelock_waiters; DELETE FROM fencelock_holders";
        admin.batch_execute(rest).await.unwrap();
    }
}

/// Needless cancellations at any moment, one after the other: every waiter still gets its turn at once.
#[tokio::test(flavor = "multi_thread")]
async fn needless_cancellations_harm_nobody() {
    const TURNS: usize = 60;
    let server = Postgres::start().unwrap();
    let _crowd = crowd(&server).await;
    let clients = [
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    ];
    let admin = raw(&server, "admin").await;
    let shots = tokio::spawn(async move {
        let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%' \
                      AND query ~ 'fencelock_(hear|become_ear)\\M'";
        let mut shots = 0;
        loop {
            shots += number(&admin, cancel).await;
            if shots >= 2000 {
                break;
            }
        }
    });
    let workers = clients.map(|client| {
        tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            for _ in 0..TURNS {
                let begun = Instant::now();
                let held = client.lock("a").await.unwrap();
                longest = longest.max(begun.elapsed());
                held.release().await.unwrap();
            }
            longest
        })
    });
    for worker in workers {
        let longest = soon("a worker", worker).await.unwrap();
        assert!(longest < Duration::from_secs(5), "{longest:?}");
    }
    shots.abort();
}

/// With few listeners clients are notified; with many they have ears; and with few again they are notified.
#[tokio::test(flavor = "multi_thread")]
async fn ears_come_and_go_with_the_crowd() {
    let server = Postgres::start().unwrap();
    let admin = raw(&server, "admin").await;
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    let held = take(&one, "a").await;
    let waiting = tokio::spawn(two.lock("a").into_future());
    until("it waits", async || {
        one.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    let (_, held) = hand_over(held, waiting).await;
    assert_eq!(number(&admin, EARS).await, 0);
    let crowd = crowd(&server).await;
    held.release().await.unwrap();
    // Another message than a grant by the releaser: this waiter is told that it is its turn.
    let held = hand_over_within(WOKEN, "its turn", async || {
        let held = take(&two, "a").await;
        let waiting = wait_asleep(&admin, &one).await;
        let begun = Instant::now();
        assert!(one.evict("a", held.token(), Evict::Release).await.unwrap());
        let next = soon("the waiter", waiting).await.unwrap().unwrap();
        (begun.elapsed(), next)
    })
    .await;
    // A hold that was granted to an ear is like any other.
    let waiting = wait_asleep(&admin, &two).await;
    let (_, held) = hand_over(held, waiting).await;
    soon("a renewal", held.prolonged()).await;
    assert!(held.is_valid());
    let state = "SELECT count(*) FROM fencelock_holders WHERE state = 'held'";
    assert_eq!(number(&admin, state).await, 1);
    let waiting = wait_asleep(&admin, &one).await;
    drop(crowd);
    let hearing = "SELECT count(*) FROM fencelock_waiters WHERE fencelock_hears(bell)";
    until("the waiter is no ear", async || {
        number(&admin, hearing).await == 0 && number(&admin, ASLEEP).await == 0
    })
    .await;
    let mut first = Some((held, waiting));
    let held = hand_over_within(WOKEN, "notified again", async || {
        let (held, waiting) = match first.take() {
            Some(first) => first,
            None => {
                let held = take(&two, "a").await;
                let waiting = tokio::spawn(one.lock("a").into_future());
                until("it waits", async || {
                    two.look("a").await.unwrap().waiters.len() == 1
                })
                .await;
                (held, waiting)
            }
        };
        hand_over(held, waiting).await
    })
    .await;
    held.release().await.unwrap();
}

/// The connection of an ear is ended while a lock is handed over to it: the next connection gets the grant.
#[tokio::test(flavor = "multi_thread")]
async fn an_ear_that_connects_again_gets_its_grant() {
    let server = Postgres::start().unwrap();
    let admin = raw(&server, "admin").await;
    let _crowd = crowd(&server).await;
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    let mut held = take(&one, "a").await;
    let end = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE query LIKE 'CALL fencelock_hear%' \
               AND application_name LIKE 'fencelock-%'";
    for turn in 0..4 {
        let waiting = wait_asleep(&admin, [&two, &one][turn % 2]).await;
        assert!(number(&admin, end).await >= 1);
        let (took, next) = hand_over(held, waiting).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        held = next;
    }
    held.release().await.unwrap();
    let held = hand_over_within(WOKEN, "another ear", async || {
        let held = take(&one, "a").await;
        let waiting = wait_asleep(&admin, &two).await;
        number(&admin, end).await;
        until("another ear sleeps", async || {
            number(&admin, ASLEEP).await == 1
        })
        .await;
        hand_over(held, waiting).await
    })
    .await;
    held.release().await.unwrap();
}

/// If a process number is used again, the new process is not mistaken for the ear.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_with_the_number_of_an_ear_is_not_cancelled() {
    let server = Postgres::start().unwrap();
    let client = open(&server.url()).await.unwrap();
    let (admin, bystander) = (raw(&server, "admin").await, raw(&server, "bystander").await);
    let (listener, mut told) = listener(&server, "lock").await;
    let held = take(&client, "a").await;
    let channel = channel(pid(&bystander).await);
    let listen = format!("LISTEN {channel}");
    listener.batch_execute(&listen).await.unwrap();
    queue(&admin, &channel).await;
    let sleep = bystander.query_one("SELECT pg_sleep(3)", &[]);
    let (slept, ()) = tokio::join!(sleep, async {
        held.release().await.unwrap();
    });
    slept.unwrap();
    // The connection that listens on the channel is notified instead.
    let news = soon("a notification", told.recv()).await.unwrap();
    assert!(news.starts_with("held "), "{news}");
}

/// A client that vanished with its ear delays the queue for one claim window.
#[tokio::test(flavor = "multi_thread")]
async fn the_ear_of_a_vanished_client_delays_the_queue_for_one_window() {
    let server = Postgres::start().unwrap();
    let admin = raw(&server, "admin").await;
    let _crowd = crowd(&server).await;
    let proxy = Proxy::start(server.port()).unwrap();
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url_at(proxy.port(), "lock")).await.unwrap(),
    );
    let held = take(&one, "a").await;
    let vanished = wait_asleep(&admin, &two).await;
    let next = tokio::spawn(one.lock("a").into_future());
    until("both wait", async || {
        one.look("a").await.unwrap().waiters.len() == 2
    })
    .await;
    proxy.requests(Flow::Lose);
    proxy.answers(Flow::Lose);
    let (took, held) = hand_over(held, next).await;
    assert!(took < Duration::from_secs(6), "{took:?}");
    held.release().await.unwrap();
    vanished.abort();
}

/// Where a connection cannot be cancelled, clients are notified as before, and the doctor says why.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_cancel_clients_listen() {
    let server = Postgres::start().unwrap();
    let (admin, (root, _)) = (
        raw(&server, "admin").await,
        listener(&server, "postgres").await,
    );
    let said = inspect(&server.url()).await.unwrap().diagnose().await;
    assert!(!format!("{said:?}").contains("pg_cancel_backend"));
    root.batch_execute("REVOKE EXECUTE ON FUNCTION pg_cancel_backend(integer) FROM PUBLIC")
        .await
        .unwrap();
    let _crowd = crowd(&server).await;
    let clients = [
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    ];
    let mut held = take(&clients[0], "a").await;
    for turn in 1..4 {
        held.release().await.unwrap();
        held = hand_over_within(WOKEN, "notified", async || {
            let held = take(&clients[(turn - 1) % 2], "a").await;
            let waiting = tokio::spawn(clients[turn % 2].lock("a").into_future());
            let tried = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%fencelock_become_ear%' AND state = 'idle'";
            until("it waits, and has tried", async || {
                clients[0].look("a").await.unwrap().waiters.len() == 1
                    && number(&admin, tried).await >= (turn as i64).min(2)
            })
            .await;
            hand_over(held, waiting).await
        })
        .await;
    }
    assert_eq!(number(&admin, EARS).await, 0);
    held.release().await.unwrap();
    let said = inspect(&server.url()).await.unwrap().diagnose().await;
    assert!(
        format!("{said:?}").contains("pg_cancel_backend"),
        "{said:?}"
    );
}

/// A releaser that may not cancel the ear of another user, and a releaser of an earlier version, which cancels no ear: the ear
/// finds the grant when it polls, and then its client listens instead.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_cannot_wake_ears_share_the_tables() {
    let server = Postgres::start().unwrap();
    let admin = raw(&server, "admin").await;
    let _crowd = crowd(&server).await;
    let client = open(&server.url()).await.unwrap();
    let (root, mut told) = listener(&server, "postgres").await;
    // An ear of a superuser, which no other user may cancel.
    let held = take(&client, "a").await;
    let channel = make_ear(&root).await;
    queue(&admin, &channel).await;
    let (heard, _) = tokio::join!(hear(&root, &channel, 0.1, 100), held.release());
    assert!(heard.is_some());
    assert_eq!(soon("a notification", told.recv()).await.unwrap(), "missed");
    let over = format!(
        "SELECT fencelock_let_go('a', 0, '\\x{:032x}')::integer::bigint",
        1
    );
    assert_eq!(number(&admin, &over).await, 1);
    // An old client holds, and a new one waits, again and again.
    let other = open(&server.url()).await.unwrap();
    let mut turns = 0..;
    for _ in 0..5 {
        let next = hand_over_within(WOKEN, "after an old client", async || {
            let turn = turns.next().unwrap();
            let take = format!(
                "SELECT fencelock_take('a', {turn}, '\\x{:032x}', 'x', 1, 60000000, 0, 'old', NULL, 'fencelock_{:032x}')",
                turn + 10,
                7
            );
            number(&admin, &take).await;
            let waiting = tokio::spawn(other.lock("a").into_future());
            until("it waits", async || {
                client.look("a").await.unwrap().waiters.len() == 1
                    && (turn > 0 || number(&admin, ASLEEP).await == 1)
            })
            .await;
            let let_go = format!(
                "SELECT fencelock_let_go('a', {turn}, '\\x{:032x}')::integer::bigint",
                turn + 10
            );
            let begun = Instant::now();
            assert_eq!(number(&admin, &let_go).await, 1);
            let next = soon("the waiter", waiting).await.unwrap().unwrap();
            (begun.elapsed(), next)
        })
        .await;
        next.release().await.unwrap();
    }
    // Three notifications were enough: the client listens.
    assert_eq!(number(&admin, EARS).await, 0);
    // A new client releases, and an old client that listens is notified.
    let (old, mut told) = listener(&server, "lock").await;
    let channel = format!("fencelock_{:032x}", 7);
    old.batch_execute(&format!("LISTEN {channel}"))
        .await
        .unwrap();
    let held = take(&client, "a").await;
    queue(&admin, &channel).await;
    held.release().await.unwrap();
    let news = soon("a notification", told.recv()).await.unwrap();
    assert!(news.starts_with("held "), "{news}");
}
