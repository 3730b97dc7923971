//! Row locks: one lock never blocks another.

use super::*;

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
        // Names before, after and next to it in the index. None of them exists yet.
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

/// A client keeps the rows of one lock locked, as if it were stopped inside a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn rows_kept_locked_are_those_of_one_lock() {
    let server = Postgres::start().unwrap();
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    // No renewal happens meanwhile.
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
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%' AND wait_event_type = 'Lock'";
        let blocked = admin.query_one(blocked, &[]).await.unwrap();
        assert_eq!(blocked.get::<_, i64>(0), 0, "{name}");
    }
    stopped.batch_execute("ROLLBACK").await.unwrap();
    held.release().await.unwrap();
}
