//! MariaDB: what the shared suite does not know of. Here are leases; each test has a server of its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bound;
mod counter;
mod hosts;
#[path = "../../../sql/tests/shared/late.rs"]
mod late;
mod restore;
#[cfg(feature = "tls")]
mod tls;

use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Standing};
use fencelock_core::{ClaimIds, Client, Durability, Error, Guard, LockName, Mode, StoreUrl, Token};
use fencelock_testbed::{ClockShim, MariaDb};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use tokio::time::{sleep, timeout};

/// Far beyond what anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

/// How often the server gave up a wait for a row.
const TIMEOUTS: &str =
    "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_timeouts'";

async fn open(url: &str) -> fencelock_core::Result<Client> {
    let engine = fencelock_mysql::connect(StoreUrl::parse(url)?).await?;
    Client::builder(engine).build()
}

async fn client(server: &MariaDb) -> Client {
    open(&server.url()).await.unwrap()
}

/// A bare connection of the same user, to get in the way with.
async fn bare(server: &MariaDb) -> Conn {
    let options = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port())
        .user(Some("lock"))
        .db_name(Some("lock"))
        .prefer_socket(false);
    let mut conn = Conn::new(options).await.unwrap();
    let read_committed = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
    conn.query_drop(read_committed).await.unwrap();
    conn
}

async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    let done = timeout(LIMIT, future).await;
    done.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

async fn take(client: &Client, name: &str) -> Guard {
    soon("a lock", client.lock(name)).await.unwrap()
}

async fn token_of(client: &Client, name: &str) -> Token {
    let guard = take(client, name).await;
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

fn number(server: &MariaDb, sql: &str) -> u64 {
    server.sql(sql).unwrap().parse().unwrap()
}

fn status(server: &MariaDb, variable: &str) -> u64 {
    let line = server.sql(&format!("SHOW GLOBAL STATUS LIKE '{variable}'"));
    line.unwrap().split('\t').nth(1).unwrap().parse().unwrap()
}

/// How many connections there are of those who lock.
fn connections(server: &MariaDb) -> u64 {
    let used = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'lock'";
    number(server, used)
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < LIMIT, "waited in vain until {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Takes a lock as a process does that is killed right after.
async fn hold_and_vanish(url: &str, name: &str, ttl: Duration) -> Token {
    let engine = fencelock_mysql::connect(StoreUrl::parse(url).unwrap()).await;
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

/// Somebody keeps the rows of one lock locked, as a client that is stopped in the middle of a transaction would.
#[tokio::test(flavor = "multi_thread")]
async fn another_name_is_never_blocked() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let held = take(&one, "m").await;
    let waiter = tokio::spawn({
        let two = two.clone();
        async move { two.lock("m").await }
    });
    until("it waits", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_waiters") == 1
    })
    .await;
    let mut stopped = bare(&server).await;
    for statement in [
        "START TRANSACTION",
        "SELECT * FROM fencelock_locks WHERE name = 'm' FOR UPDATE",
        "SELECT * FROM fencelock_holders WHERE name = 'm' FOR UPDATE",
        "SELECT * FROM fencelock_waiters WHERE name = 'm' FOR UPDATE",
    ] {
        stopped.query_drop(statement).await.unwrap();
    }
    // Before it, after it, and beside it.
    let names = ["a", "l", "m ", "M", "m0", "ma", "n", "z", "\u{10ffff}"];
    let begun = Instant::now();
    for name in names {
        let guard = two.try_lock(name).await.unwrap();
        let busy = one.try_lock(name).await.unwrap_err();
        assert!(matches!(busy, Error::Held { .. }), "{name}: {busy}");
        let next = tokio::spawn({
            let (one, name) = (one.clone(), name.to_owned());
            async move { one.lock(&name).await }
        });
        sleep(Duration::from_millis(30)).await;
        guard.refresh(Duration::from_secs(30)).await.unwrap();
        guard.release().await.unwrap();
        let next = soon("the next one", next).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
    // A statement that waits for a row does so for two seconds.
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(status(&server, "Innodb_row_lock_waits"), 0);
    stopped.query_drop("ROLLBACK").await.unwrap();
    held.release().await.unwrap();
    drop(soon("the waiter", waiter).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_connections_cost_neither_hold_nor_place() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let ttl = Duration::from_secs(3);
    let guard = soon("the lock", one.lock("a").ttl(ttl)).await.unwrap();
    let waiter = tokio::spawn({
        let two = two.clone();
        async move { two.lock("a").await }
    });
    for _ in 0..5 {
        soon("a renewal", guard.prolonged()).await;
        server.sql("KILL USER 'lock'").unwrap();
    }
    assert!(guard.is_valid() && !waiter.is_finished());
    server.sql("KILL USER 'lock'").unwrap();
    guard.release().await.unwrap();
    let next = soon("the waiter", waiter).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// Under load, twice. Nobody is granted a token that is not above all of before.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_comes_back_under_load() {
    for strategy in ["lease", "get-lock", "for-update"] {
        let mut server = MariaDb::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let client = open(&url).await.unwrap();
            for name in ["a", "b", "c"] {
                let (client, tell) = (client.clone(), tell.clone());
                tasks.push(tokio::spawn(async move {
                    loop {
                        let Ok(guard) = client.lock(name).ttl(Duration::from_secs(2)).await else {
                            continue;
                        };
                        // While it holds, nobody else tells.
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
                let (name, token, valid) = soon("a grant", told.recv()).await.unwrap();
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
        for _ in 0..2 {
            hear(60, &mut highest).await;
            server.kill9();
            server.restart().unwrap();
            let token = token_of(&open(&url).await.unwrap(), "b").await;
            assert!(token > highest, "{strategy}: {token} after {highest}");
        }
        hear(60, &mut highest).await;
        for task in tasks {
            task.abort();
        }
        let token = token_of(&open(&url).await.unwrap(), "a").await;
        assert!(token > highest, "{strategy}: {token} after {highest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_clock_is_off_by_an_hour_keeps_leases() {
    for forward in [true, false] {
        let clock = ClockShim::new().unwrap();
        let hour = Duration::from_secs(3600);
        match forward {
            true => clock.forward(hour).unwrap(),
            false => clock.back(hour).unwrap(),
        }
        let server = MariaDb::builder().clock(&clock).start().unwrap();
        let (one, two) = (client(&server).await, client(&server).await);
        let ttl = Duration::from_millis(900);
        let guard = soon("the lock", one.lock("a").ttl(ttl)).await.unwrap();
        for _ in 0..4 {
            soon("a renewal", guard.prolonged()).await;
            assert!(matches!(two.try_lock("a").await, Err(Error::Held { .. })));
        }
        let view = two.look("a").await.unwrap();
        let left = view.holders[0].ttl_left.unwrap();
        assert!(left <= ttl && left > Duration::ZERO, "{left:?}");
        drop(guard);
        // One whose process vanishes: nobody renews, and nobody releases.
        let begun = Instant::now();
        let token = hold_and_vanish(&server.url(), "b", ttl).await;
        let view = two.look("b").await.unwrap();
        let left = view.holders[0].ttl_left.unwrap();
        assert!(left <= ttl && left > Duration::ZERO, "{left:?}");
        let next = soon("the lock", two.lock("b")).await.unwrap();
        let waited = begun.elapsed();
        assert!(waited >= ttl, "{waited:?}");
        assert!(waited < ttl + Duration::from_secs(4), "{waited:?}");
        assert!(next.token() > token);
    }
}

/// Exclusion may break; tokens must not, neither with the jump nor when the clock is set back again.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_whatever_the_clock_does() {
    let clock = ClockShim::new().unwrap();
    let mut server = MariaDb::builder().clock(&clock).start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let guard = take(&one, "a").await;
    clock.forward(Duration::from_secs(3600)).unwrap();
    let mut last = guard.token();
    let mut above = |token: Token| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    above(token_of(&two, "a").await);
    above(token_of(&client(&server).await, "a").await);
    clock.back(Duration::from_secs(7200)).unwrap();
    above(token_of(&two, "a").await);
    above(token_of(&client(&server).await, "a").await);
    server.kill9();
    server.restart().unwrap();
    above(token_of(&two, "a").await);
    above(token_of(&client(&server).await, "a").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_tried_again() {
    let server = MariaDb::start().unwrap();
    let one = client(&server).await;
    let ttl = Duration::from_secs(3);
    let first = soon("the lock", one.lock("a").ttl(ttl)).await.unwrap();
    let second = soon("the lock", one.lock("b").ttl(ttl)).await.unwrap();
    soon("a renewal of both", second.prolonged()).await;
    let mut other = bare(&server).await;
    // Whoever has changed more rows is spared.
    other
        .query_drop("CREATE TABLE heavy (a INT)")
        .await
        .unwrap();
    other.query_drop("START TRANSACTION").await.unwrap();
    let heavy = "INSERT INTO heavy SELECT seq FROM seq_1_to_500";
    other.query_drop(heavy).await.unwrap();
    let lock = |name| format!("SELECT 1 FROM fencelock_locks WHERE name = '{name}' FOR UPDATE");
    other.query_drop(lock("b")).await.unwrap();
    let before = status(&server, "Innodb_deadlocks");
    // The next renewal has a, and waits for b.
    until("it waits", || {
        status(&server, "Innodb_row_lock_current_waits") > 0
    })
    .await;
    soon("the deadlock", other.query_drop(lock("a")))
        .await
        .unwrap();
    other.query_drop("ROLLBACK").await.unwrap();
    assert!(status(&server, "Innodb_deadlocks") > before);
    soon("a renewal", first.prolonged()).await;
    soon("a renewal", second.prolonged()).await;
    assert!(first.is_valid() && second.is_valid());
}

/// The counter of ids is one for all names.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_waits_for_a_row_holds_up_no_other_name() {
    let server = MariaDb::start().unwrap();
    let one = client(&server).await;
    let patient = open(&format!("{}?response-timeout=20s", server.url())).await;
    let held = take(&one, "m").await;
    let mut stopped = bare(&server).await;
    stopped.query_drop("START TRANSACTION").await.unwrap();
    let stop = "SELECT 1 FROM fencelock_locks WHERE name = 'm' FOR UPDATE";
    stopped.query_drop(stop).await.unwrap();
    let reader = tokio::spawn(patient.unwrap().lock("m").shared().into_future());
    until("the reader waits for the row", || {
        status(&server, "Innodb_row_lock_current_waits") == 1
    })
    .await;
    for name in ["a", "n"] {
        one.try_lock(name).await.unwrap().release().await.unwrap();
        let read = one.try_lock(name).shared().await.unwrap();
        read.release().await.unwrap();
    }
    assert_eq!(status(&server, "Innodb_row_lock_current_waits"), 1);
    stopped.query_drop("ROLLBACK").await.unwrap();
    held.release().await.unwrap();
    drop(soon("the reader", reader).await.unwrap().unwrap());
}

/// Whoever has read it before would take it for the same otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_made_anew_by_a_downgrade_has_another_version() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let version = || number(&server, "SELECT version FROM `lock`.fencelock_locks");
    let held = take(&one, "m").await;
    let before = version();
    let held = soon("a downgrade", held.downgrade()).await.unwrap();
    assert_ne!(version(), before);
    held.release().await.unwrap();

    let held = take(&one, "m").await;
    let reader = tokio::spawn(two.lock("m").shared().into_future());
    until("it waits", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_waiters") == 1
    })
    .await;
    let before = version();
    let held = soon("a downgrade", held.downgrade()).await.unwrap();
    assert_ne!(version(), before);
    drop(soon("the reader", reader).await.unwrap().unwrap());
    held.release().await.unwrap();
}

/// A statement that the server makes wait for a row gives up before its client does.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_row_that_took_too_long_is_tried_again() {
    let server = MariaDb::start().unwrap();
    waits_too_long(&server, || number(&server, TIMEOUTS)).await;
    // Or it ends what takes too long altogether.
    let hasty = MariaDb::builder().flag("max-statement-time=0.5");
    let hasty = hasty.start().unwrap();
    waits_too_long(&hasty, || status(&hasty, "Max_statement_time_exceeded")).await;
}

async fn waits_too_long(server: &MariaDb, timeouts: impl Fn() -> u64) {
    let client = open(&format!("{}?response-timeout=1900ms", server.url())).await;
    let client = client.unwrap();
    let mut stopped = bare(server).await;
    let mut held = Some(take(&client, "m").await);
    for what in ["a release", "a take"] {
        let before = timeouts();
        stopped.query_drop("START TRANSACTION").await.unwrap();
        let stop = match what {
            "a release" => "SELECT 1 FROM fencelock_locks WHERE name = 'm' FOR UPDATE",
            _ => {
                "INSERT INTO fencelock_locks SELECT 'n', 1, 1, 'none', '', 0, 0, 0, 0, 0, '', NULL"
            }
        };
        stopped.query_drop(stop).await.unwrap();
        let asked = tokio::spawn({
            let (client, held) = (client.clone(), held.take());
            async move {
                match held {
                    Some(held) => held.release().await,
                    None => client.lock("n").await?.release().await,
                }
            }
        });
        until("the server gave up", || timeouts() > before).await;
        stopped.query_drop("ROLLBACK").await.unwrap();
        soon(what, asked).await.unwrap().unwrap();
    }
    let left = "SELECT COUNT(*) FROM `lock`.fencelock_locks";
    assert_eq!(number(server, left), 0);
}

/// And they ask seldom.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_waiters_use_a_few_connections() {
    let server = MariaDb::start().unwrap();
    let few = format!("{}?max-connections=3", server.url());
    let (one, two) = (open(&few).await.unwrap(), open(&few).await.unwrap());
    let mut held = Vec::new();
    let mut waiters = Vec::new();
    for i in 0..64 {
        let name = format!("job {i}");
        held.push(one.lock(&name).ttl(Duration::from_secs(600)).await.unwrap());
        let two = two.clone();
        waiters.push(tokio::spawn(async move { two.lock(&name).await }));
    }
    until("all wait", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_waiters") == 64
    })
    .await;
    sleep(Duration::from_secs(2)).await;
    let (questions, begun) = (status(&server, "Questions"), Instant::now());
    sleep(Duration::from_secs(4)).await;
    let asked = status(&server, "Questions") - questions;
    let rate = asked as f64 / begun.elapsed().as_secs_f64() / 64.0;
    println!("{rate:.1} statements per second and waiter");
    assert!(rate < 5.0, "{rate} statements per second and waiter");
    let used = connections(&server);
    assert!(used <= 2 * 3, "{used}");
    for (guard, waiter) in held.into_iter().zip(waiters) {
        guard.release().await.unwrap();
        let next = soon("the waiter", waiter).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// The longer it has waited, the more seldom a waiter asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_asks_ever_more_seldom() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let held = one.lock("a").ttl(Duration::from_secs(600)).await.unwrap();
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.lock("a").await }
    });
    until("it waits", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_waiters") == 1
    })
    .await;
    let asked = async |length: Duration| {
        let (before, begun) = (status(&server, "Questions"), Instant::now());
        sleep(length).await;
        let (after, length) = (status(&server, "Questions"), begun.elapsed());
        // What it costs to ask for that number.
        let own = status(&server, "Questions") - after;
        (after - before - own) as f64 / length.as_secs_f64()
    };
    let first = asked(Duration::from_millis(400)).await;
    sleep(Duration::from_secs(2)).await;
    let then = asked(Duration::from_secs(2)).await;
    println!("{first:.1} statements per second, then {then:.1}");
    assert!(then < first / 1.5, "{first}, then {then}");
    assert!(then < 5.0, "{then} statements per second");
    held.release().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// The replica has not heard of the last grants.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_over_the_promotion_of_a_replica() {
    let primary = MariaDb::builder().replicated().start().unwrap();
    let before = client(&primary).await;
    token_of(&before, "a").await;
    let replica = primary.replica().unwrap();
    let url = format!(
        "mysql://lock@127.0.0.1:{},127.0.0.1:{}/lock",
        replica.port(),
        primary.port()
    );
    let client = open(&url).await.unwrap();
    let said = format!("{:?}", client.promises().limits);
    let forgets = "a replica that is promoted may not have heard of the last grants";
    assert!(said.contains(forgets), "{said}");
    let mut last = token_of(&client, "a").await;
    replica.follow(&primary).unwrap();
    replica.cut_off().unwrap();
    for _ in 0..50 {
        last = token_of(&client, "a").await;
    }
    // A switch-over: the old one takes no more writes, and its connections stay.
    primary.demote().unwrap();
    let error = client.try_lock("a").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    replica.promote().unwrap();
    for _ in 0..3 {
        let token = token_of(&client, "a").await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    assert_eq!(number(&primary, "SELECT @@read_only"), 1);
    // And back, by force.
    primary.promote().unwrap();
    replica.kill9();
    let token = token_of(&client, "a").await;
    assert!(token > last, "{token} after {last}");
}

/// The replica knows of the hold: nothing is lost by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_through_a_switch_over() {
    let primary = MariaDb::builder().replicated().start().unwrap();
    let replica = primary.replica().unwrap();
    let url = format!(
        "mysql://lock@127.0.0.1:{},127.0.0.1:{}/lock",
        primary.port(),
        replica.port()
    );
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let ttl = Duration::from_secs(6);
    let guard = soon("the lock", one.lock("a").ttl(ttl)).await.unwrap();
    let expiry = "SELECT MAX(expiry) FROM `lock`.fencelock_locks WHERE name = 'a'";
    replica.follow(&primary).unwrap();
    primary.demote().unwrap();
    replica.follow(&primary).unwrap();
    let known = number(&replica, expiry);
    replica.promote().unwrap();
    soon("a renewal", guard.prolonged()).await;
    assert!(number(&replica, expiry) > known, "renewed there");
    assert!(guard.is_valid());
    let busy = two.try_lock("a").await.unwrap_err();
    assert!(matches!(busy, Error::Held { .. }), "{busy}");
    assert_eq!(number(&primary, "SELECT @@read_only"), 1);
    let token = guard.token();
    guard.release().await.unwrap();
    let next = token_of(&two, "a").await;
    assert!(next > token, "{next} after {token}");
}

/// Its machine is gone, or still takes connections and answers nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_or_silent_primary_is_left_for_a_promoted_replica() {
    for dead in [true, false] {
        let primary = MariaDb::builder().replicated().start().unwrap();
        let replica = primary.replica().unwrap();
        let mut clients = Vec::new();
        for strategy in ["lease", "get-lock", "for-update"] {
            let url = format!(
                "mysql://lock@127.0.0.1:{},127.0.0.1:{}/lock?strategy={strategy}",
                primary.port(),
                replica.port()
            );
            let client = open(&url).await.unwrap();
            let token = token_of(&client, "a").await;
            clients.push((strategy, client, token));
        }
        replica.follow(&primary).unwrap();
        match dead {
            true => primary.kill9(),
            false => primary.pause().unwrap(),
        }
        replica.promote().unwrap();
        for (strategy, client, last) in clients {
            let guard = client.lock("b").timeout(LIMIT).await.unwrap();
            let token = guard.token();
            assert!(token > last, "{strategy}: {token} after {last}");
            guard.release().await.unwrap();
        }
    }
}

/// The recipe that draws the token as the default of the competing INSERT grants 4 and then 3. Here whoever is granted a
/// lock has the turn to draw for it, before it draws and until it is granted.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_drawn_in_the_order_of_grants() {
    let server = MariaDb::start().unwrap();
    let mut setup = bare(&server).await;
    let table = "CREATE TABLE naive (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(50) UNIQUE) ENGINE = InnoDB";
    setup.query_drop(table).await.unwrap();
    let (mut slow, mut fast) = (bare(&server).await, bare(&server).await);
    setup.query_drop("START TRANSACTION").await.unwrap();
    // Before `work` in the index, so that the wait for it is no wait for the gap that `work` goes into.
    setup
        .query_drop("INSERT INTO naive (name) VALUES ('other')")
        .await
        .unwrap();
    let waiting = tokio::spawn(async move {
        slow.query_drop("INSERT INTO naive (name) VALUES ('other'), ('work')")
            .await
            .unwrap();
        slow.query_first::<u64, _>("SELECT id FROM naive WHERE name = 'work'")
            .await
            .unwrap()
    });
    until("it waits", || {
        status(&server, "Innodb_row_lock_current_waits") > 0
    })
    .await;
    fast.query_drop("INSERT INTO naive (name) VALUES ('work')")
        .await
        .unwrap();
    let first = fast.last_insert_id();
    fast.query_drop("DELETE FROM naive WHERE name = 'work'")
        .await
        .unwrap();
    setup.query_drop("ROLLBACK").await.unwrap();
    let second = soon("the slow one", waiting).await.unwrap();
    assert!(
        second < first,
        "the naive recipe inverts: {second:?} after {first:?}"
    );

    let (one, two) = (client(&server).await, client(&server).await);
    for case in ["free", "in line", "a reader", "beside a reader"] {
        let mut held = match case {
            "in line" => Some(take(&one, "job").await),
            "beside a reader" => Some(one.lock("job").shared().await.unwrap()),
            _ => None,
        };
        let wish = match case {
            "free" | "in line" => two.lock("job"),
            _ => two.lock("job").shared(),
        };
        let begin = || tokio::spawn(wish.into_future());
        setup.query_drop("START TRANSACTION").await.unwrap();
        // The turn of `job`; even as a reader, it keeps out whoever is to have it alone.
        let turn = "SELECT 1 FROM fencelock_draws WHERE id = 683 LOCK IN SHARE MODE";
        let turn = setup.query_drop(turn);
        let waiting = if case == "in line" {
            let waiting = begin();
            until("it stands in line", || {
                number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_waiters") == 1
            })
            .await;
            turn.await.unwrap();
            held.take().unwrap().release().await.unwrap();
            waiting
        } else {
            turn.await.unwrap();
            begin()
        };
        until("it waits for its turn", || {
            status(&server, "Innodb_row_lock_current_waits") > 0
        })
        .await;
        let mut drawn = Token(0);
        for _ in 0..20 {
            drawn = token_of(&one, "other").await;
        }
        setup.query_drop("COMMIT").await.unwrap();
        let guard = soon("the waiting one", waiting).await.unwrap().unwrap();
        let token = guard.token();
        assert!(token > drawn, "{case}: {token} was drawn before {drawn}");
        guard.release().await.unwrap();
        if let Some(beside) = held {
            beside.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_administrator_emptied_is_made_anew() {
    let server = MariaDb::start().unwrap();
    let client = client(&server).await;
    let first = token_of(&client, "a").await;
    for emptied in [
        "TRUNCATE `lock`.fencelock_draws",
        "DROP TABLE `lock`.fencelock_draws",
    ] {
        server.sql(emptied).unwrap();
        assert!(token_of(&client, "a").await > first);
        let rows = "SELECT COUNT(*) FROM `lock`.fencelock_draws";
        assert_eq!(number(&server, rows), 1000, "{emptied}");
    }
}

/// Whoever comes first, or none of them alone: there is one counter afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn many_make_the_tables_at_once() {
    for strategy in ["lease", "get-lock", "for-update"] {
        let server = MariaDb::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move { token_of(&open(&url).await.unwrap(), "a").await })
            })
            .collect();
        let mut tokens = std::collections::BTreeSet::new();
        for task in tasks {
            let token = soon("a client", task).await.unwrap();
            assert!(tokens.insert(token), "{strategy}: {token} twice");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_a_clear_error() {
    let server = MariaDb::start().unwrap();
    server
        .sql(
            "CREATE USER 'poor'@'%' IDENTIFIED BY 'poor-secret'; CREATE DATABASE theirs; \
              GRANT SELECT, INSERT, UPDATE, DELETE ON theirs.* TO 'poor'@'%'",
        )
        .unwrap();
    let url = format!(
        "mysql://poor:poor-secret@127.0.0.1:{}/theirs",
        server.port()
    );
    let error = open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("CREATE") && !text.contains("secret"),
        "{text}"
    );
    let schema = fencelock_mysql::schema("fencelock");
    server.sql(&format!("USE theirs; {schema}")).unwrap();
    token_of(&open(&url).await.unwrap(), "a").await;
    // The tables of a later version are left alone.
    server
        .sql("UPDATE theirs.fencelock_store SET format = 3")
        .unwrap();
    let error = open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("another version"), "{error}");
    let nowhere = format!("mysql://lock@127.0.0.1:{}/nowhere", server.port());
    let error = open(&nowhere).await.unwrap_err();
    assert!(
        matches!(error, Error::Config { .. } | Error::Refused { .. }),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_may_forget_is_said() {
    let server = MariaDb::builder()
        .flag("innodb-flush-log-at-trx-commit=0")
        .replicated()
        .flag("sync-binlog=0")
        .start()
        .unwrap();
    let promises = client(&server).await.promises().clone();
    let said = format!("{:?}", promises.limits);
    assert!(said.contains("innodb_flush_log_at_trx_commit"), "{said}");
    assert!(said.contains("sync_binlog"), "{said}");
    assert_eq!(promises.durability, Durability::Volatile);
    let late = MariaDb::builder()
        .flag("innodb-flush-log-at-trx-commit=2")
        .start()
        .unwrap();
    let promises = client(&late).await.promises().clone();
    let said = format!("{:?}", promises.limits);
    let forgets = "a server that lost power may have forgotten the grants of its last second \
                   (innodb_flush_log_at_trx_commit is 2)";
    assert!(said.contains(forgets), "{said}");
    assert_eq!(promises.durability, Durability::Process);
    let safe = MariaDb::builder()
        .flag("innodb-flush-log-at-trx-commit=1")
        .start()
        .unwrap();
    let promises = client(&safe).await.promises().clone();
    assert_eq!(promises.limits, []);
    assert_eq!(promises.durability, Durability::Durable);
}
