//! Tokens are drawn in the order of grants.

use super::*;

/// The recipe that draws the token as the default of the competing row grants 3 and then 2 in this test. Our functions
/// draw after the row is won.
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

/// If a waiter sees a grant with a higher token than it saw before, it knows that the grant began after its request.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_the_next_waiter_begins_after_its_token_is_drawn() {
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
