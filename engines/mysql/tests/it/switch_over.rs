//! Replicas that are promoted.

use super::*;

/// The replica has missed the last grants.
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
    let forgets = "a promoted replica may have missed the last grants";
    assert!(said.contains(forgets), "{said}");
    let mut last = token_of(&client, "a").await;
    replica.follow(&primary).unwrap();
    replica.cut_off().unwrap();
    for _ in 0..50 {
        last = token_of(&client, "a").await;
    }
    // A switch-over: the old primary takes no more writes, and its connections stay.
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
    // And back again, by force.
    primary.promote().unwrap();
    replica.kill9();
    let token = token_of(&client, "a").await;
    assert!(token > last, "{token} after {last}");
}

/// The replica knows the hold, so the switch-over loses nothing.
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

/// The primary's machine is gone, or it still accepts connections but does not answer.
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
