//! A killed server, and killed connections.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn neither_hold_nor_place_is_lost_by_killed_connections() {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_comes_back_under_load() {
    for strategy in ["lease", "get-lock", "for-update"] {
        let mut server = MariaDb::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        shared::crashes::a_killed_server_comes_back_under_load(&url, || {
            server.kill9();
            server.restart().unwrap();
        })
        .await;
    }
}
