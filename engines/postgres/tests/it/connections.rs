//! Connections that end, fall silent, or are limited in number.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_ends_the_connections() {
    let server = Postgres::start().unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%'";
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        // The first renewal comes after a third of it.
        let ttl = Duration::from_secs(if strategy == "lease" { 4 } else { 60 });
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
            // The loss is reported at once, not by a renewal or when the lease is over.
            let why = timeout(ttl / 6, guard.lost()).await.unwrap();
            assert_eq!(why, LossReason::ConnectionEnded);
            let next = two.lock(strategy).timeout(LIMIT).await.unwrap();
            assert!(next.token() > guard.token());
        }
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
    until("all are in the queue", async || {
        one.look("63").await.unwrap().waiters.len() == 1
    })
    .await;
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%'";
    let connections: u32 = server.psql("lock", count).unwrap().parse().unwrap();
    // Each client also has a connection that listens.
    assert!(connections <= 2 * (3 + 1), "{connections}");
    for guard in all {
        guard.release().await.unwrap();
    }
    for wait in waits {
        let guard = timeout(LIMIT, wait).await.unwrap().unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// The server ends idle connections and long statements early.
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
        // The wait did not end and start again either: no statement was cancelled, and no connection was terminated.
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
async fn a_waiter_outlives_the_end_of_its_connection() {
    let server = Postgres::start().unwrap();
    let admin = raw(&server, "admin").await;
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let ttl = Duration::from_secs(60);
        let guard = one.lock("a").ttl(ttl).await.unwrap();
        let waiter = tokio::spawn(two.lock("a").into_future());
        // A lease is bound to no connection, so all connections end, including those that listen.
        let which = match strategy {
            "lease" => "application_name LIKE 'fencelock-%' AND query ~ '^LISTEN|fencelock_hear'",
            _ => "application_name LIKE 'fencelock-%' AND wait_event_type = 'Lock'",
        };
        let those = match strategy {
            "lease" => "application_name LIKE 'fencelock-%'",
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
            ended.extend(gone.iter().map(|row| row.get::<_, i32>(0)));
        }
        assert!(guard.is_valid() && !waiter.is_finished(), "{strategy}");
        let token = guard.token();
        guard.release().await.unwrap();
        let next = timeout(LIMIT, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.token() > token, "{strategy}");
    }
}

/// The server's process of one hold is stopped. That hold is lost, and the other hold is renewed in time.
#[tokio::test(flavor = "multi_thread")]
async fn no_other_hold_is_lost_by_a_silent_connection() {
    let server = Postgres::start().unwrap();
    // No renewal may wait until the client gives up the silent connection.
    let options = "strategy=advisory&response-timeout=20s";
    let client = open(&format!("{}?{options}", server.url())).await;
    let client = client.unwrap();
    let ttl = Duration::from_secs(3);
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
    for _ in 0..2 {
        timeout(LIMIT, other.prolonged()).await.unwrap();
        assert!(other.is_valid());
    }
    kill_process(pid, Signal::CONT).unwrap();
}
