//! More claims than connections, with the connection-bound strategies.

use super::*;
use crate::shared::queue;

const BOTH: [&str; 2] = ["get-lock", "for-update"];

fn url(server: &MariaDb, strategy: &str) -> String {
    format!("{}?strategy={strategy}", server.url())
}

async fn with_both(test: impl AsyncFn(&str)) {
    let server = MariaDb::start().unwrap();
    for strategy in BOTH {
        test(&url(&server, strategy)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn free_names_are_taken_and_no_waiter_is_listed() {
    let server = MariaDb::start().unwrap();
    let note = "CREATE TABLE `lock`.listed (name VARBINARY(999)); \
                CREATE TRIGGER `lock`.note AFTER INSERT ON `lock`.fencelock_bound FOR EACH ROW \
                INSERT INTO `lock`.listed SELECT NEW.name FROM DUAL WHERE NEW.count = 0";
    let listed = "SELECT COUNT(*) FROM `lock`.listed";
    for strategy in BOTH {
        let client = open(&format!("{}&max-connections=4", url(&server, strategy))).await;
        let client = client.unwrap();
        if strategy == BOTH[0] {
            server.sql(note).unwrap();
        }
        queue::free_names_are_taken(&client).await;
        assert_eq!(number(&server, listed), 0, "{strategy}");
        // Each of the clients has a control connection.
        assert!(connections(&server) <= 4 + 2);
        client.close().await.unwrap();
    }
    // A claim that really waits in the server is listed.
    let url = url(&server, BOTH[0]);
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let held = take(&one, "held").await;
    let waits = tokio::spawn(two.lock("held").into_future());
    until("it is listed", || number(&server, listed) == 1).await;
    held.release().await.unwrap();
    let next = soon("the lock", waits).await.unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_listed_once_it_waits_in_the_server() {
    with_both(queue::a_claim_is_listed_once_it_waits_in_the_server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_shared_in_order() {
    with_both(queue::connections_are_shared_in_order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_leaves_the_queue() {
    with_both(queue::a_request_leaves_the_queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_go_on_while_others_queue() {
    with_both(queue::holders_go_on_while_others_queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_beyond_the_bound_queue_in_the_process() {
    let server = MariaDb::start().unwrap();
    for strategy in BOTH {
        let waiting = || waiting(&server, strategy);
        let connections = || connections(&server);
        let url = url(&server, strategy);
        queue::waiters_beyond_the_bound_queue_in_the_process(&url, waiting, connections).await;
    }
}
