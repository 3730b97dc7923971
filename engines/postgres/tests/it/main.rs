//! PostgreSQL on its bad days: what is not the same for all engines.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hosts;
#[path = "../../../sql/tests/shared/late.rs"]
mod late;
mod restore;
#[cfg(feature = "tls")]
mod tls;

use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Standing};
use fencelock_core::{ClaimIds, Client, Error, LockName, Mode, StoreUrl, Token};
use fencelock_testbed::{ClockShim, Postgres};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;
use tokio_postgres::NoTls;

const LIMIT: Duration = Duration::from_secs(15);

async fn open(url: &str) -> Result<Client, Error> {
    let engine = fencelock_postgres::connect(StoreUrl::parse(url)?).await?;
    Client::builder(engine).build()
}

async fn raw(server: &Postgres, name: &str) -> tokio_postgres::Client {
    let config = format!(
        "host=127.0.0.1 port={} user=lock dbname=lock application_name={name}",
        server.port()
    );
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !done().await {
        assert!(begin.elapsed() < LIMIT, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Stops the first insertion by a connection named `slow`, until somebody lets go of the advisory lock 1.
const STALL: &str = "\
    CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    IF current_setting('application_name') = 'slow' THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN NEW; END $$;";

/// Drawn as the default of the row that competes, a token is older than the grant: forced here, 3 is granted before 2. Drawn
/// after the row is won, as it is here, it is not.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_drawn_after_the_row_is_won() {
    let server = Postgres::start().unwrap();
    let client = open(&server.url()).await.unwrap();
    let (admin, slow, quick) = (
        raw(&server, "admin").await,
        raw(&server, "slow").await,
        raw(&server, "quick").await,
    );
    let make = format!(
        "{STALL} CREATE SEQUENCE s; CREATE TABLE naive (name text PRIMARY KEY, token bigint DEFAULT nextval('s')); \
         CREATE TRIGGER stall BEFORE INSERT ON naive FOR EACH ROW EXECUTE FUNCTION stall(); \
         CREATE TRIGGER stall BEFORE INSERT ON fencelock_locks FOR EACH ROW EXECUTE FUNCTION stall();"
    );
    admin.batch_execute(&make).await.unwrap();
    let naive = "INSERT INTO naive (name) VALUES ('a') ON CONFLICT DO NOTHING RETURNING token";
    let ours = |who: &str| {
        format!(
            "SELECT fencelock_take('a', 1, '\\x{who}', 'x', 1, 60000000, 0, 'me', NULL, 'bell')"
        )
    };
    for (take_slow, take_quick, release, inverts) in [
        (
            naive.to_owned(),
            naive.to_owned(),
            "DELETE FROM naive".to_owned(),
            true,
        ),
        (
            ours("01"),
            ours("02"),
            "SELECT fencelock_let_go('a', 1, '\\x02')".to_owned(),
            false,
        ),
    ] {
        admin
            .batch_execute("SELECT pg_advisory_lock(1)")
            .await
            .unwrap();
        let stalled = async {
            slow.query_one(&take_slow, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
        };
        let overtakes = async {
            until("the slow one is stalled", async || {
                let asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'slow' AND wait_event_type = 'Lock'";
                admin.query_one(asked, &[]).await.unwrap().get::<_, i64>(0) == 1
            })
            .await;
            let token: i64 = quick.query_one(&take_quick, &[]).await.unwrap().get(0);
            quick.batch_execute(&release).await.unwrap();
            admin
                .batch_execute("SELECT pg_advisory_unlock(1)")
                .await
                .unwrap();
            token
        };
        let (second, first) = tokio::join!(stalled, overtakes);
        assert_eq!(second < first, inverts, "first {first}, then {second}");
    }
    drop(client);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_ends_the_connections() {
    let server = Postgres::start().unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'fencelock'";
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let ttl = Duration::from_secs(3);
        let guard = one.lock(strategy).ttl(ttl).await.unwrap();
        server.psql("lock", end).unwrap();
        if strategy == "lease" {
            timeout(LIMIT, guard.prolonged()).await.unwrap();
            assert!(guard.is_valid());
            assert!(matches!(
                two.try_lock(strategy).await,
                Err(Error::Held { .. })
            ));
        } else {
            // Told at once, not when the lease is over.
            timeout(ttl / 2, guard.lost()).await.unwrap();
            let next = two.lock(strategy).timeout(LIMIT).await.unwrap();
            assert!(next.token() > guard.token());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_name_is_never_blocked() {
    let server = Postgres::start().unwrap();
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let held = one.lock("b").await.unwrap();
        let waits = tokio::spawn({
            let two = two.clone();
            async move { two.lock("b").await }
        });
        until("one waits", async || {
            one.look("b").await.unwrap().waiters.len() == 1
        })
        .await;
        // Before, behind and beside it, also such as are not there yet.
        for name in ["a", "c", "b2", "", "b"].map(|name| format!("{name}!")) {
            let other = timeout(Duration::from_secs(5), two.lock(&name))
                .await
                .unwrap()
                .unwrap();
            other.release().await.unwrap();
        }
        held.release().await.unwrap();
        timeout(LIMIT, waits)
            .await
            .unwrap()
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_waiters_share_a_few_connections() {
    let server = Postgres::start().unwrap();
    let few = format!("{}?max-connections=3", server.url());
    let (one, many) = (open(&few).await.unwrap(), open(&few).await.unwrap());
    let held = one.lock("0").await.unwrap();
    let mut all = vec![held];
    for i in 1..64 {
        all.push(one.lock(&i.to_string()).await.unwrap());
    }
    let waits: Vec<_> = (0..64)
        .map(|i| {
            let many = many.clone();
            tokio::spawn(async move { many.lock(&i.to_string()).await })
        })
        .collect();
    until("all stand in line", async || {
        one.look("63").await.unwrap().waiters.len() == 1
    })
    .await;
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencelock'";
    let connections: u32 = server.psql("lock", count).unwrap().parse().unwrap();
    // And one that listens.
    assert!(connections <= 2 * (3 + 1), "{connections}");
    for guard in all {
        guard.release().await.unwrap();
    }
    for wait in waits {
        let guard = timeout(LIMIT, wait).await.unwrap().unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// An hour ahead of the client nothing is different. Set forward while a lock is held, the database takes it for expired; but
/// whoever is granted it then has a higher token.
#[tokio::test(flavor = "multi_thread")]
async fn the_databases_clock_is_another() {
    let clock = ClockShim::new().unwrap();
    let hour = Duration::from_secs(3600);
    clock.forward(hour).unwrap();
    let server = Postgres::builder().clock(&clock).start().unwrap();
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    let guard = one.lock("a").ttl(Duration::from_millis(900)).await.unwrap();
    for _ in 0..4 {
        timeout(LIMIT, guard.prolonged()).await.unwrap();
        assert!(matches!(two.try_lock("a").await, Err(Error::Held { .. })));
    }
    clock.forward(hour).unwrap();
    let next = two.lock("a").timeout(LIMIT).await.unwrap();
    assert!(next.token() > guard.token());
    let last = next.token();
    next.release().await.unwrap();
    clock.back(2 * hour).unwrap();
    let again = two.lock("a").timeout(LIMIT).await.unwrap();
    assert!(again.token() > last);
}

/// Takes a lock as a process does that is killed right after.
async fn hold_and_vanish(url: &str, name: &str, ttl: Duration) -> Token {
    let engine = fencelock_postgres::connect(StoreUrl::parse(url).unwrap()).await;
    let claim = Claim {
        id: ClaimIds::new().unwrap().next(),
        owner: "vanished".into(),
        name: LockName::new(name).unwrap(),
        mode: Mode::Exclusive,
        ttl,
        lock_delay: Duration::ZERO,
        wait: false,
        reserve: 1,
        record: true,
        label: None,
    };
    match engine.unwrap().place(&claim).await.unwrap() {
        Standing::Held(grant) => grant.tokens.first,
        other => panic!("{other:?}"),
    }
}

/// Nobody renews, and nobody releases.
#[tokio::test(flavor = "multi_thread")]
async fn leases_end_in_time_whatever_the_database_shows() {
    for forward in [true, false] {
        let clock = ClockShim::new().unwrap();
        let hour = Duration::from_secs(3600);
        match forward {
            true => clock.forward(hour).unwrap(),
            false => clock.back(hour).unwrap(),
        }
        let server = Postgres::builder().clock(&clock).start().unwrap();
        let client = open(&server.url()).await.unwrap();
        let ttl = Duration::from_millis(900);
        let begun = Instant::now();
        let token = hold_and_vanish(&server.url(), "a", ttl).await;
        let view = client.look("a").await.unwrap();
        let left = view.holders[0].ttl_left.unwrap();
        assert!(left <= ttl && left > Duration::ZERO, "{left:?}");
        let next = client.lock("a").timeout(LIMIT).await.unwrap();
        let waited = begun.elapsed();
        assert!(waited >= ttl, "{waited:?}");
        assert!(waited < ttl + Duration::from_secs(4), "{waited:?}");
        assert!(next.token() > token);
    }
}

/// However soon the server ends what is idle, or takes long, for others.
#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_server_end_neither_a_hold_nor_a_wait() {
    let server = Postgres::start().unwrap();
    for limit in [
        "statement_timeout = '500ms'",
        "lock_timeout = '500ms'",
        "idle_in_transaction_session_timeout = '1s'",
        "idle_session_timeout = '1s'",
    ] {
        let set = format!("ALTER ROLE lock SET {limit}");
        server.psql("lock", &set).unwrap();
    }
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let other = open(&url).await.unwrap();
        let guard = one.lock("a").await.unwrap();
        let waiter = tokio::spawn(two.lock("a").into_future());
        let lost = timeout(Duration::from_secs(4), guard.lost()).await;
        assert!(lost.is_err(), "{strategy}: {lost:?}");
        // Nor was it ended and begun anew: a statement that is canceled, a connection that is terminated.
        let log = server.log();
        assert!(!log.contains(" due to "), "{strategy}: {log}");
        assert!(guard.is_valid() && !waiter.is_finished(), "{strategy}");
        let busy = other.try_lock("a").await.unwrap_err();
        assert!(matches!(busy, Error::Held { .. }), "{strategy}: {busy}");
        let token = guard.token();
        guard.release().await.unwrap();
        let next = timeout(LIMIT, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.token() > token);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_waits_outlives_the_end_of_its_connection() {
    let server = Postgres::start().unwrap();
    let admin = raw(&server, "admin").await;
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let ttl = Duration::from_secs(60);
        let guard = one.lock("a").ttl(ttl).await.unwrap();
        let waiter = tokio::spawn(two.lock("a").into_future());
        // A lease hangs on no connection, so all of them end, those that listen too.
        let which = match strategy {
            "lease" => "application_name = 'fencelock' AND query LIKE 'LISTEN%'",
            _ => "application_name = 'fencelock' AND wait_event_type = 'Lock'",
        };
        let those = match strategy {
            "lease" => "application_name = 'fencelock'",
            _ => which,
        };
        let expected = if strategy == "lease" { 2 } else { 1 };
        let mut ended = Vec::new();
        for _ in 0..2 {
            until("it waits", async || {
                let pids = format!("SELECT pid FROM pg_stat_activity WHERE {which}");
                let pids = admin.query(&pids, &[]).await.unwrap();
                let stands = one.look("a").await.unwrap().waiters.len() == 1;
                let new = pids
                    .iter()
                    .filter(|row| !ended.contains(&row.get::<_, i32>(0)));
                stands && new.count() == expected
            })
            .await;
            let end = format!(
                "SELECT pid, pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {those}"
            );
            let gone = admin.query(&end, &[]).await.unwrap();
            assert!(gone.iter().all(|row| row.get(1)), "{strategy}: {gone:?}");
            ended.extend(gone.iter().map(|row| row.get::<_, i32>(0)));
        }
        assert!(guard.is_valid() && !waiter.is_finished(), "{strategy}");
        let token = guard.token();
        guard.release().await.unwrap();
        let next = timeout(LIMIT, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.token() > token, "{strategy}");
    }
}

/// Somebody keeps the rows of one lock locked, as a client that is stopped in the middle of a transaction would.
#[tokio::test(flavor = "multi_thread")]
async fn rows_kept_locked_are_those_of_one_lock() {
    let server = Postgres::start().unwrap();
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    // Not renewed in the meantime.
    let ttl = Duration::from_secs(600);
    let held = one.lock("b").ttl(ttl).await.unwrap();
    let (stopped, admin) = (raw(&server, "stopped").await, raw(&server, "admin").await);
    let stop = "BEGIN; SELECT 1 FROM fencelock_locks WHERE name = 'b' FOR UPDATE; \
                SELECT 1 FROM fencelock_holders WHERE name = 'b' FOR UPDATE";
    stopped.batch_execute(stop).await.unwrap();
    let goes_on = async |name: &str| {
        let guard = two.try_lock(name).await.unwrap();
        let busy = one.try_lock(name).await.unwrap_err();
        assert!(matches!(busy, Error::Held { .. }), "{name}: {busy}");
        let next = tokio::spawn(one.lock(name).into_future());
        until("it waits", async || {
            two.look(name).await.unwrap().waiters.len() == 1
        })
        .await;
        guard.refresh(Duration::from_secs(30)).await.unwrap();
        guard.release().await.unwrap();
        next.await.unwrap().unwrap().release().await.unwrap();
        let reads = one.try_lock(name).shared().await.unwrap();
        let too = two.try_lock(name).shared().await.unwrap();
        reads.release().await.unwrap();
        too.release().await.unwrap();
    };
    for name in ["a", "b ", "B", "b!", "c", "\u{10ffff}"] {
        timeout(LIMIT, goes_on(name)).await.unwrap();
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencelock' AND wait_event_type = 'Lock'";
        let blocked = admin.query_one(blocked, &[]).await.unwrap();
        assert_eq!(blocked.get::<_, i64>(0), 0, "{name}");
    }
    stopped.batch_execute("ROLLBACK").await.unwrap();
    held.release().await.unwrap();
}

/// Whoever is next hears of it, and does not look in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_listen_and_do_not_ask() {
    let server = Postgres::builder()
        .config("log_statement", "all")
        .start()
        .unwrap();
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    let admin = raw(&server, "admin").await;
    until("both listen", async || {
        let count =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'";
        let count = admin.query_one(count, &[]).await.unwrap();
        count.get::<_, i64>(0) == 2
    })
    .await;
    let mut known = Vec::new();
    for _ in 0..7 {
        let held = one.lock("a").await.unwrap();
        let waits = tokio::spawn({
            let two = two.clone();
            async move { (two.lock("a").await.unwrap(), Instant::now()) }
        });
        until("it waits", async || {
            one.look("a").await.unwrap().waiters.len() == 1
        })
        .await;
        admin.batch_execute("SELECT 'mark'").await.unwrap();
        // Whoever asks by itself does so twice a second at least.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let log = server.log();
        let (_, log) = log.rsplit_once("SELECT 'mark'").unwrap();
        assert!(!log.contains("SELECT version FROM"), "{log}");
        let released = Instant::now();
        held.release().await.unwrap();
        let (next, granted) = timeout(LIMIT, waits).await.unwrap().unwrap();
        known.push(granted.saturating_duration_since(released));
        next.release().await.unwrap();
    }
    known.sort();
    assert!(known[3] < Duration::from_millis(100), "{known:?}");
}

/// Locks that hang on a connection do not hang on a clock.
#[tokio::test(flavor = "multi_thread")]
async fn the_databases_clock_moves_no_lock_of_a_connection() {
    let clock = ClockShim::new().unwrap();
    let hour = Duration::from_secs(3600);
    let server = Postgres::builder().clock(&clock).start().unwrap();
    let url = format!("{}?strategy=advisory", server.url());
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let guard = one.lock("a").ttl(Duration::from_secs(1)).await.unwrap();
    clock.forward(hour).unwrap();
    for _ in 0..3 {
        timeout(LIMIT, guard.prolonged()).await.unwrap();
        assert!(matches!(two.try_lock("a").await, Err(Error::Held { .. })));
    }
    clock.back(2 * hour).unwrap();
    let last = guard.token();
    guard.release().await.unwrap();
    let next = two.lock("a").timeout(LIMIT).await.unwrap();
    assert!(next.token() > last, "{} after {last}", next.token());
}

/// Twice. Whoever is granted the lock has a higher token than all before.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_comes_back_under_load() {
    for strategy in ["lease", "advisory"] {
        let mut server = Postgres::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let client = open(&url).await.unwrap();
            for name in ["a", "b"] {
                let (client, tell) = (client.clone(), tell.clone());
                tasks.push(tokio::spawn(async move {
                    loop {
                        let wish = client.lock(name).ttl(Duration::from_secs(2));
                        let Ok(guard) = wish.await else {
                            continue;
                        };
                        let _ = tell.send((name, guard.token(), guard.is_valid()));
                        let _ = guard.release().await;
                    }
                }));
            }
        }
        let mut last = std::collections::HashMap::new();
        let mut highest = Token(0);
        let mut hear = async |count: usize, highest: &mut Token| {
            for _ in 0..count {
                let (name, token, valid) = timeout(LIMIT, told.recv()).await.unwrap().unwrap();
                let before = last.insert(name, token);
                *highest = token.max(*highest);
                // Of a connection the server lets go before the holder knows.
                let known = valid && strategy == "lease";
                assert!(
                    !known || before < Some(token),
                    "{strategy} {name}: {token} after {before:?}"
                );
            }
        };
        let next = async |name: &str| {
            let client = open(&url).await.unwrap();
            let guard = client.lock(name).timeout(LIMIT).await.unwrap();
            let token = guard.token();
            guard.release().await.unwrap();
            token
        };
        for _ in 0..2 {
            hear(50, &mut highest).await;
            server.kill9();
            server.restart().unwrap();
            let token = next("b").await;
            assert!(token > highest, "{strategy}: {token} after {highest}");
        }
        hear(50, &mut highest).await;
        for task in tasks {
            task.abort();
        }
        let token = next("a").await;
        assert!(token > highest, "{strategy}: {token} after {highest}");
    }
}

/// The server goes on at once when one of its processes is killed, without what had not reached the disk: the values of a
/// sequence among it.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_go_on_above_when_one_process_of_the_server_is_killed() {
    for strategy in ["lease", "advisory"] {
        let server = Postgres::builder()
            .config("wal_writer_delay", "10s")
            .start()
            .unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let client = open(&url).await.unwrap();
        let mut last = Token(0);
        for _ in 0..2 {
            let start = server.psql("lock", "SELECT pg_postmaster_start_time()");
            let victim = raw(&server, "victim").await;
            let pid = victim.query_one("SELECT pg_backend_pid()", &[]).await;
            let pid: i32 = pid.unwrap().get(0);
            for _ in 0..100 {
                let guard = client.lock("a").await.unwrap();
                assert!(guard.token() > last, "{} after {last}", guard.token());
                last = guard.token();
                guard.release().await.unwrap();
            }
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            until("the server has ended all connections", async || {
                victim.is_closed()
            })
            .await;
            // Of another process, which has not heard of those tokens.
            let mut next = None;
            until("it is back", async || {
                next = open(&url).await.ok();
                next.is_some()
            })
            .await;
            let guard = next.unwrap().lock("a").timeout(LIMIT).await.unwrap();
            let token = guard.token();
            assert!(token > last, "{strategy}: {token} after {last}");
            last = token;
            guard.release().await.unwrap();
            until("the first is connected again", async || {
                client.try_lock("b").await.is_ok()
            })
            .await;
            let again = server.psql("lock", "SELECT pg_postmaster_start_time()");
            assert_eq!(again.unwrap(), start.unwrap());
        }
    }
}

/// Two renewals in one statement, and somebody who has one row and wants the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_tried_again() {
    let server = Postgres::start().unwrap();
    server
        .psql("lock", "GRANT SET ON PARAMETER deadlock_timeout TO lock")
        .unwrap();
    let client = open(&server.url()).await.unwrap();
    let ttl = Duration::from_secs(6);
    let one = client.lock("a").ttl(ttl).await.unwrap();
    let two = client.lock("b").ttl(ttl).await.unwrap();
    timeout(LIMIT, two.prolonged()).await.unwrap();
    let other = raw(&server, "other").await;
    let lock =
        |name: &str| format!("SELECT 1 FROM fencelock_holders WHERE name = '{name}' FOR UPDATE");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencelock' AND wait_event_type = 'Lock'";
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'lock'";
    let before: i64 = server.psql("lock", deadlocks).unwrap().parse().unwrap();
    // The renewal looks for deadlocks after a second, and is undone.
    let patient = "SET deadlock_timeout = '60s'; BEGIN";
    other.batch_execute(patient).await.unwrap();
    other.batch_execute(&lock("b")).await.unwrap();
    // The next renewal has a, and waits for b.
    let admin = raw(&server, "admin").await;
    until("a renewal waits", async || {
        let count = admin.query_one(waiting, &[]).await.unwrap();
        count.get::<_, i64>(0) == 1
    })
    .await;
    timeout(LIMIT, other.batch_execute(&lock("a")))
        .await
        .unwrap()
        .unwrap();
    other.batch_execute("ROLLBACK").await.unwrap();
    timeout(LIMIT, one.prolonged()).await.unwrap();
    timeout(LIMIT, two.prolonged()).await.unwrap();
    assert!(one.is_valid() && two.is_valid());
    until("the deadlock is counted", async || {
        let now: i64 = server.psql("lock", deadlocks).unwrap().parse().unwrap();
        now > before
    })
    .await;
}

/// Somebody who has just got its lock, and is to draw a token from somebody who wants that.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_over_a_token_is_tried_again() {
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('a', 7378697629483820646))";
    for waits in [true, false] {
        let server = Postgres::start().unwrap();
        server
            .psql("lock", "GRANT SET ON PARAMETER deadlock_timeout TO lock")
            .unwrap();
        let url = format!("{}?strategy=advisory&response-timeout=10s", server.url());
        let client = open(&url).await.unwrap();
        client.lock("a").await.unwrap().release().await.unwrap();
        let (holder, other) = (raw(&server, "holder").await, raw(&server, "other").await);
        holder.batch_execute("BEGIN").await.unwrap();
        if waits {
            holder.batch_execute(lock).await.unwrap();
        }
        // Ours looks for deadlocks after a second, and is undone; more than once if it is the quicker one again.
        let patient = "SET deadlock_timeout = '60s'; BEGIN";
        other.batch_execute(patient).await.unwrap();
        let tokens = "ALTER SEQUENCE fencelock_tokens CACHE 1";
        other.batch_execute(tokens).await.unwrap();
        let taken = tokio::spawn({
            let client = client.clone();
            async move {
                match waits {
                    true => client.lock("a").await,
                    false => client.try_lock("a").await,
                }
            }
        });
        let waiting = async |what: &str| {
            let count = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencelock' AND {what}"
            );
            server.psql("lock", &count).unwrap() == "1"
        };
        if waits {
            until("it waits for the lock", async || {
                waiting("wait_event_type = 'Lock'").await
            })
            .await;
        }
        holder.batch_execute("ROLLBACK").await.unwrap();
        until("it waits for a token", async || {
            waiting("wait_event = 'relation'").await
        })
        .await;
        timeout(LIMIT, other.batch_execute(lock))
            .await
            .unwrap()
            .unwrap();
        if waits {
            assert!(!taken.is_finished());
            other.batch_execute("ROLLBACK").await.unwrap();
            let guard = timeout(LIMIT, taken).await.unwrap().unwrap().unwrap();
            guard.release().await.unwrap();
        } else {
            let busy = timeout(LIMIT, taken).await.unwrap().unwrap();
            assert!(matches!(busy, Err(Error::Held { .. })), "{busy:?}");
            other.batch_execute("ROLLBACK").await.unwrap();
        }
        // Had once, and given back.
        holder.batch_execute("BEGIN").await.unwrap();
        timeout(LIMIT, holder.batch_execute(lock))
            .await
            .unwrap()
            .unwrap();
        // A connection tells its figures when it ends at the latest.
        client.close().await.unwrap();
        until("the deadlock is counted", async || {
            let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'lock'";
            server.psql("lock", deadlocks).unwrap() != "0"
        })
        .await;
    }
}

/// What the server undoes because others were in its way, it is asked again. Here it is made to undo three in a row.
#[tokio::test(flavor = "multi_thread")]
async fn a_serialization_failure_is_tried_again() {
    const HICCUP: &str = "\
        CREATE SEQUENCE hiccups; CREATE FUNCTION hiccup() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF nextval('hiccups') <= 3 THEN RAISE 'not serializable' USING ERRCODE = 'serialization_failure'; END IF; \
        RETURN coalesce(NEW, OLD); END $$;";
    for (strategy, tables) in [
        (
            "lease",
            &["fencelock_locks", "fencelock_holders", "fencelock_waiters"][..],
        ),
        ("advisory", &["fencelock_bound"]),
    ] {
        let server = Postgres::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let admin = raw(&server, "admin").await;
        admin.batch_execute(HICCUP).await.unwrap();
        for table in tables {
            // Whoever clears up deletes what is not in use, at times of its own.
            let on = if strategy == "lease" {
                "INSERT OR UPDATE OR DELETE"
            } else {
                "INSERT"
            };
            let trigger = format!(
                "CREATE TRIGGER hiccup BEFORE {on} ON {table} FOR EACH ROW EXECUTE FUNCTION hiccup()"
            );
            admin.batch_execute(&trigger).await.unwrap();
        }
        let undone = async |what: &str| {
            until(what, async || {
                let last = admin.query_one("SELECT last_value FROM hiccups", &[]);
                last.await.unwrap().get::<_, i64>(0) > 3
            })
            .await;
            let restart = "ALTER SEQUENCE hiccups RESTART";
            admin.batch_execute(restart).await.unwrap();
        };
        let held = one.try_lock("a").await.unwrap();
        held.sequencer().await.unwrap();
        undone("it was taken").await;
        let waits = tokio::spawn({
            let two = two.clone();
            async move { two.lock("a").await }
        });
        until("one waits", async || {
            one.look("a").await.unwrap().waiters.len() == 1
        })
        .await;
        undone("it stands in line").await;
        held.release().await.unwrap();
        let next = timeout(LIMIT, waits).await.unwrap().unwrap().unwrap();
        next.sequencer().await.unwrap();
        undone("it was handed over").await;
        next.release().await.unwrap();
        let last = one.lock("b").await.unwrap();
        undone("it was taken by one that would wait").await;
        last.release().await.unwrap();
    }
}

/// Whatever level of isolation the server gives those that ask for none.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_serializes_is_no_different() {
    let server = Postgres::builder()
        .config("default_transaction_isolation", "serializable")
        .start()
        .unwrap();
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move {
                    let client = open(&url).await.unwrap();
                    for _ in 0..25 {
                        for name in ["a", "b"] {
                            // Asked once: what the server undoes must not come this far.
                            match client.try_lock(name).await {
                                Ok(guard) => drop(guard.release().await.unwrap()),
                                Err(error) => {
                                    assert!(matches!(error, Error::Held { .. }), "{error}")
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            timeout(LIMIT, task).await.unwrap().unwrap();
        }
    }
}

/// Whoever is next has the lock as soon as it is released, without asking; if its process does not hear of it, because it
/// has vanished or because the news was lost, the lock waits for one claim window and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_in_line_is_granted_the_lock_by_its_releaser() {
    let server = Postgres::start().unwrap();
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    let held = one.lock("a").await.unwrap();
    let deaf = format!(
        "SELECT (fencelock_queue('a', '\\x{:032x}', 'x', 1, 2000000, 60000000, 'deaf', NULL, 'nobody')).ahead_",
        1
    );
    let admin = raw(&server, "admin").await;
    let ahead: i64 = admin.query_one(&deaf, &[]).await.unwrap().get(0);
    assert_eq!(ahead, 0);
    let next = tokio::spawn({
        let two = two.clone();
        async move { two.lock("a").await }
    });
    until("both stand in line", async || {
        one.look("a").await.unwrap().waiters.len() == 2
    })
    .await;
    let (last, released) = (held.token(), Instant::now());
    held.release().await.unwrap();
    let view = one.look("a").await.unwrap();
    assert_eq!(view.holders[0].owner, "deaf");
    assert!(view.token() > Some(last));
    let next = timeout(LIMIT, next).await.unwrap().unwrap().unwrap();
    assert!(released.elapsed() < Duration::from_secs(5));
    assert!(Some(next.token()) > view.token());
    // One of an older version is told that it is its turn, and granted nothing.
    let old = format!(
        "INSERT INTO fencelock_waiters (name, ticket, claim, mode, expiry, owner, bell) \
         VALUES ('a', 9, '\\x{:032x}', 'x', fencelock_now() + 60000000, 'old', 'old')",
        2
    );
    admin.batch_execute(&old).await.unwrap();
    next.release().await.unwrap();
    let view = one.look("a").await.unwrap();
    assert!(view.holders.is_empty(), "{view:?}");
    assert_eq!(view.waiters.len(), 1);
}

/// The replica hears no more of the primary, not even what is under way.
async fn cut_off(replica: &Postgres, primary: &Postgres) {
    for sql in [
        "ALTER SYSTEM SET primary_conninfo = ''",
        "SELECT pg_reload_conf()",
    ] {
        replica.psql("postgres", sql).unwrap();
    }
    until("nobody streams", async || {
        let count = "SELECT count(*) FROM pg_stat_replication";
        primary.psql("postgres", count).unwrap() == "0"
    })
    .await;
}

/// The primary dies, its replica has not heard of the last grants and is promoted: the client finds it, and tokens go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_goes_on_above() {
    for strategy in ["lease", "advisory"] {
        let primary = Postgres::start().unwrap();
        let replica = primary.replica().unwrap();
        let url = format!(
            "postgres://lock@127.0.0.1:{},127.0.0.1:{}/lock?strategy={strategy}",
            replica.port(),
            primary.port()
        );
        let client = open(&url).await.unwrap();
        let told = client
            .promises()
            .limits
            .iter()
            .any(|limit| limit.what.contains("replica") || limit.what.contains("switch-over"));
        assert!(told, "{:?}", client.promises().limits);
        let mut last = Token(0);
        for i in 0..100 {
            if i == 10 {
                cut_off(&replica, &primary).await;
            }
            // What the replica heard of last may be that it is held.
            let wish = client.lock("a").ttl(Duration::from_secs(2));
            let guard = wish.await.unwrap();
            assert!(guard.token() > last);
            last = guard.token();
            guard.release().await.unwrap();
        }
        primary.kill9();
        replica.promote().unwrap();
        let guard = client.lock("a").timeout(LIMIT).await.unwrap();
        assert!(guard.token() > last, "{} after {last}", guard.token());
    }
}

/// The primary does not die but falls silent: its machine still takes connections. Whoever was connected finds the replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_primary_is_left_for_a_promoted_replica() {
    for strategy in ["lease", "advisory"] {
        let primary = Postgres::start().unwrap();
        let replica = primary.replica().unwrap();
        let url = format!(
            "postgres://lock@127.0.0.1:{},127.0.0.1:{}/lock?strategy={strategy}",
            primary.port(),
            replica.port()
        );
        let client = open(&url).await.unwrap();
        client.lock("a").await.unwrap().release().await.unwrap();
        primary.pause().unwrap();
        replica.promote().unwrap();
        let guard = client.lock("b").timeout(LIMIT).await.unwrap();
        guard.release().await.unwrap();
    }
}

/// The process of one hold is stopped. It is lost, and the other is renewed in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_costs_no_other_hold() {
    let server = Postgres::start().unwrap();
    let client = open(&format!("{}?strategy=advisory", server.url())).await;
    let client = client.unwrap();
    let ttl = Duration::from_secs(1);
    let silent = client.lock("a").ttl(ttl).await.unwrap();
    let other = client.lock("b").ttl(ttl).await.unwrap();
    let mut pid = String::new();
    until("it is written down", async || {
        let ask = "SELECT pid FROM fencelock_bound WHERE name = 'a' AND count > 0";
        pid = server.psql("lock", ask).unwrap();
        !pid.is_empty()
    })
    .await;
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    timeout(LIMIT, silent.lost()).await.unwrap();
    for _ in 0..6 {
        timeout(LIMIT, other.prolonged()).await.unwrap();
        assert!(other.is_valid());
    }
    kill_process(pid, Signal::CONT).unwrap();
}

/// So many connections and no more, whatever waits; the rest stands in line in this process.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_beyond_the_bound_queue_in_the_process() {
    let server = Postgres::start().unwrap();
    let url = format!("{}?strategy=advisory", server.url());
    let one = open(&url).await.unwrap();
    let many = open(&format!("{url}&max-connections=4")).await.unwrap();
    let (mut held, mut waiters) = (Vec::new(), Vec::new());
    for i in 0..16 {
        let name = format!("job {i}");
        held.push(one.lock(&name).await.unwrap());
        let many = many.clone();
        waiters.push(tokio::spawn(async move {
            many.lock(&name).await.unwrap().release().await.unwrap();
        }));
    }
    let count = |which: &str| {
        let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencelock'";
        let counted = server.psql("lock", &format!("{ours} AND {which}"));
        counted.unwrap().parse::<u32>().unwrap()
    };
    until("four wait", async || count("wait_event_type = 'Lock'") == 4).await;
    // Each of the two has a control connection.
    let connections = count("true");
    assert!(connections <= 16 + 4 + 2, "{connections}");
    let busy = timeout(LIMIT, many.try_lock("free")).await.unwrap();
    let busy = busy.unwrap_err();
    assert!(busy.to_string().contains("max-connections"), "{busy}");
    for guard in held {
        guard.release().await.unwrap();
    }
    for waiter in waiters {
        timeout(LIMIT, waiter).await.unwrap().unwrap();
    }
}

/// Whoever has asked for its place knows that a grant with a higher token than it saw begins after that.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_the_next_in_line_begins_after_its_token_is_drawn() {
    let server = Postgres::start().unwrap();
    let _client = open(&server.url()).await.unwrap();
    let (admin, slow) = (raw(&server, "admin").await, raw(&server, "slow").await);
    let make = format!(
        "{STALL} CREATE TRIGGER stall AFTER DELETE ON fencelock_waiters FOR EACH ROW EXECUTE FUNCTION stall(); \
         SELECT fencelock_take('a', 1, '\\x01', 'x', 1, 60000000, 0, 'me', NULL, 'bell'); \
         SELECT fencelock_queue('a', '\\x02', 'x', 1, 60000000, 60000000, 'next', NULL, 'bell'); \
         SELECT pg_advisory_lock(1)"
    );
    admin.batch_execute(&make).await.unwrap();
    let release = tokio::spawn(async move {
        let released = slow.batch_execute("SELECT fencelock_let_go('a', 1, '\\x01')");
        released.await
    });
    until("the releaser is stalled", async || {
        let asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'slow' AND wait_event = 'advisory'";
        admin.query_one(asked, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    let now = "SELECT fencelock_now(), pg_advisory_unlock(1)";
    let drawn_after: i64 = admin.query_one(now, &[]).await.unwrap().get(0);
    timeout(LIMIT, release).await.unwrap().unwrap().unwrap();
    let begins = "SELECT expiry - 60000000 FROM fencelock_holders WHERE owner = 'next'";
    let begins: i64 = admin.query_one(begins, &[]).await.unwrap().get(0);
    assert!(begins >= drawn_after, "{begins} before {drawn_after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn weak_settings_are_told() {
    let server = Postgres::builder()
        .config("fsync", "off")
        .config("synchronous_commit", "off")
        .start()
        .unwrap();
    let client = open(&server.url()).await.unwrap();
    let limits = &client.promises().limits;
    assert!(
        limits.iter().any(|limit| limit.what.contains("fsync")),
        "{limits:?}"
    );
    // That it is off is not told but mended.
    let note = "\
        CREATE TABLE noted (setting text); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$; \
        CREATE TRIGGER note BEFORE INSERT ON fencelock_holders FOR EACH ROW EXECUTE FUNCTION note()";
    raw(&server, "admin")
        .await
        .batch_execute(note)
        .await
        .unwrap();
    drop(client.lock("a").await.unwrap());
    assert_eq!(server.psql("lock", "TABLE noted").unwrap(), "on");
    // What is weaker than the names of standbys ask for. Without names it is not told: nobody is to be waited for.
    for commit in ["local", "remote_write"] {
        for names in ["nobody", ""] {
            let server = Postgres::builder()
                .config("fsync", "on")
                .config("full_page_writes", "on")
                .config("synchronous_commit", commit)
                .start()
                .unwrap();
            // Made, like the tables, while no standby has to be waited for.
            drop(open(&server.url()).await.unwrap());
            for sql in [
                format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"),
                "SELECT pg_reload_conf()".into(),
            ] {
                server.psql("postgres", &sql).unwrap();
            }
            until("it has names", async || {
                server
                    .psql("lock", "SHOW synchronous_standby_names")
                    .unwrap()
                    == names
            })
            .await;
            let client = open(&server.url()).await.unwrap();
            let limits = &client.promises().limits;
            let weak = format!("synchronous_commit is {commit}");
            let told: Vec<_> = (limits.iter().map(|limit| &limit.what))
                .filter(|what| what.contains(&weak))
                .collect();
            assert_eq!(told.len(), usize::from(!names.is_empty()), "{limits:?}");
            assert_eq!(limits.len(), told.len(), "{limits:?}");
            let findings = client.diagnose().await.unwrap();
            let told = findings.iter().filter(|found| found.what.contains(&weak));
            assert_eq!(told.count(), limits.len(), "{findings:?}");
        }
    }
    let server = Postgres::builder()
        .config("fsync", "on")
        .config("full_page_writes", "on")
        .start()
        .unwrap();
    let client = open(&server.url()).await.unwrap();
    assert!(client.promises().limits.is_empty());
}

/// PgBouncer that shares connections between transactions is noticed; one that does not is none of our business.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_connections_is_refused() {
    let server = Postgres::start().unwrap();
    for (mode, refused) in [
        ("transaction", true),
        ("statement", true),
        ("session", false),
    ] {
        let pooler = server.pooler(mode).unwrap();
        for strategy in ["lease", "advisory"] {
            let url = format!(
                "postgres://lock@127.0.0.1:{}/lock?strategy={strategy}",
                pooler.port()
            );
            match open(&url).await {
                Err(Error::Config { why, .. }) if refused => {
                    assert!(why.contains("PgBouncer"), "{why}")
                }
                Ok(client) if !refused => drop(client.lock("a").await.unwrap()),
                other => panic!("{mode} {strategy}: {other:?}"),
            }
        }
    }
}
