//! Deadlocks and failed serializations are retried.

use super::*;

/// Begins a transaction that leaves it to others to detect a deadlock.
const PATIENT: &str = "SET deadlock_timeout = '60s'; BEGIN";

/// The URL of a client whose connections detect a deadlock long before they give up. A connection looks for one once, so the test
/// must make the deadlock before that.
fn detects_deadlocks_soon(server: &Postgres) -> String {
    for sql in [
        "ALTER ROLE lock SET deadlock_timeout = '1s'",
        "GRANT SET ON PARAMETER deadlock_timeout TO lock",
    ] {
        server.psql("lock", sql).unwrap();
    }
    format!("{}?response-timeout=10s", server.url())
}

/// Two renewals in one statement, and a client that has locked one row and wants the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_tried_again() {
    let server = Postgres::start().unwrap();
    let url = detects_deadlocks_soon(&server);
    let client = open(&url).await.unwrap();
    let ttl = Duration::from_secs(6);
    let one = client.lock("a").ttl(ttl).await.unwrap();
    let two = client.lock("b").ttl(ttl).await.unwrap();
    timeout(LIMIT, two.prolonged()).await.unwrap();
    let other = raw(&server, "other").await;
    let lock =
        |name: &str| format!("SELECT 1 FROM fencelock_holders WHERE name = '{name}' FOR UPDATE");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%' AND wait_event_type = 'Lock'";
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'lock'";
    let before: i64 = server.psql("lock", deadlocks).unwrap().parse().unwrap();
    // The renewal detects the deadlock first, and is rolled back.
    other.batch_execute(PATIENT).await.unwrap();
    other.batch_execute(&lock("b")).await.unwrap();
    // The next renewal has locked a, and waits for b.
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

/// A claim has just taken its lock, and draws a token that another client, which wants the lock, has locked.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_over_a_token_is_tried_again() {
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('a', 7378697629483820646))";
    for waits in [true, false] {
        let server = Postgres::start().unwrap();
        let url = format!("{}&strategy=advisory", detects_deadlocks_soon(&server));
        let client = open(&url).await.unwrap();
        client.lock("a").await.unwrap().release().await.unwrap();
        let (holder, other) = (raw(&server, "holder").await, raw(&server, "other").await);
        holder.batch_execute("BEGIN").await.unwrap();
        if waits {
            holder.batch_execute(lock).await.unwrap();
        }
        // Fencelock's transaction detects the deadlock first, and is rolled back. That may happen again if it is faster again.
        other.batch_execute(PATIENT).await.unwrap();
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
        let admin = raw(&server, "admin").await;
        let waiting = async |what: &str| {
            let count = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%' AND {what}"
            );
            let count = admin.query_one(&count, &[]).await.unwrap();
            count.get::<_, i64>(0) == 1
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
        // The lock is taken once, and released.
        holder.batch_execute("BEGIN").await.unwrap();
        timeout(LIMIT, holder.batch_execute(lock))
            .await
            .unwrap()
            .unwrap();
        // A connection reports its figures at its end at the latest.
        client.close().await.unwrap();
        until("the deadlock is counted", async || {
            let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'lock'";
            server.psql("lock", deadlocks).unwrap() != "0"
        })
        .await;
    }
}

/// A call that the server rolls back after a conflict is retried. Here the server rolls back three in a row.
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
        let url = format!("{}?strategy={strategy}&response-timeout=10s", server.url());
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let admin = raw(&server, "admin").await;
        admin.batch_execute(HICCUP).await.unwrap();
        for table in tables {
            // The clean-up deletes unused rows at unpredictable times.
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
        undone("it waits").await;
        held.release().await.unwrap();
        let next = timeout(LIMIT, waits).await.unwrap().unwrap().unwrap();
        next.sequencer().await.unwrap();
        undone("it was handed over").await;
        next.release().await.unwrap();
        let last = one.lock("b").await.unwrap();
        undone("it was taken by a claim that would wait").await;
        last.release().await.unwrap();
    }
}

/// The default isolation level of the server does not matter.
#[tokio::test(flavor = "multi_thread")]
async fn a_serializable_database_behaves_the_same() {
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
                            // One attempt: a rolled back transaction must not become an error here.
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
