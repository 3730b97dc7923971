//! Tokens are drawn in the order of grants.

use super::*;

/// Otherwise a client that has read the old gate would mistake the new one for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_a_downgrade_replaces_has_another_version() {
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

/// The recipe that draws the token as the default of the competing INSERT grants 4 and then 3. Here a claim locks the
/// lock's row for draws from before the draw until its grant.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_drawn_in_the_order_of_grants() {
    let server = MariaDb::start().unwrap();
    let mut setup = bare(&server).await;
    let table = "CREATE TABLE naive (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(50) UNIQUE) ENGINE = InnoDB";
    setup.query_drop(table).await.unwrap();
    let (mut slow, mut fast) = (bare(&server).await, bare(&server).await);
    setup.query_drop("START TRANSACTION").await.unwrap();
    // Before `work` in the index, so that no statement waits for the gap of `work`.
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
    for case in ["free", "in the queue", "a reader", "beside a reader"] {
        let mut held = match case {
            "in the queue" => Some(take(&one, "job").await),
            "beside a reader" => Some(one.lock("job").shared().await.unwrap()),
            _ => None,
        };
        let request = match case {
            "free" | "in the queue" => two.lock("job"),
            _ => two.lock("job").shared(),
        };
        let begin = || tokio::spawn(request.into_future());
        setup.query_drop("START TRANSACTION").await.unwrap();
        // The row for draws of `job`. A shared lock on it also keeps exclusive claims out.
        let turn = "SELECT 1 FROM fencelock_draws WHERE id = 683 LOCK IN SHARE MODE";
        let turn = setup.query_drop(turn);
        let waiting = if case == "in the queue" {
            let waiting = begin();
            until("it waits", || {
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
