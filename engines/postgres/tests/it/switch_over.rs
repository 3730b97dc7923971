//! Replicas that are promoted.

use super::*;

/// Cuts the replica off from the primary, including what is in flight.
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

/// The primary dies, and a replica that missed the last grants is promoted. The client finds it, and tokens continue
/// above the earlier ones.
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
            // The replica's last knowledge may be that the lock is held.
            let request = client.lock("a").ttl(Duration::from_secs(2));
            let guard = request.await.unwrap();
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

/// The primary falls silent, but its machine still accepts connections. A connected client finds the replica.
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
