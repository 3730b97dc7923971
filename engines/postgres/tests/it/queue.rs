//! More claims than connections, with `strategy=advisory`.

use super::*;
use crate::shared::{queue, soon, take};

fn url(server: &Postgres) -> String {
    format!("{}?strategy=advisory", server.url())
}

/// How many connections of the clients are in this state.
fn connections(server: &Postgres, which: &str) -> u64 {
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%'";
    let counted = server.psql("lock", &format!("{ours} AND {which}"));
    counted.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn free_names_are_taken_and_no_waiter_is_listed() {
    let server = Postgres::start().unwrap();
    let client = open(&format!("{}&max-connections=4", url(&server))).await;
    let client = client.unwrap();
    let note = "CREATE TABLE listed (name text); \
                CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN \
                INSERT INTO listed VALUES (NEW.name); RETURN NEW; END $$; \
                CREATE TRIGGER note AFTER INSERT ON fencelock_bound FOR EACH ROW WHEN (NEW.count = 0) \
                EXECUTE FUNCTION note()";
    server.psql("lock", note).unwrap();
    let listed = || server.psql("lock", "SELECT count(*) FROM listed").unwrap();
    queue::free_names_are_taken(&client).await;
    assert_eq!(listed(), "0");
    let connections = connections(&server, "true");
    // Besides the control connection.
    assert!(connections <= 4 + 1, "{connections}");
    // A claim that really waits in the server is listed.
    let other = open(&url(&server)).await.unwrap();
    let held = take(&other, "held").await;
    let waits = tokio::spawn(client.lock("held").into_future());
    until("it is listed", async || listed() == "1").await;
    held.release().await.unwrap();
    let next = soon("the lock", waits).await.unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_listed_once_it_waits_in_the_server() {
    let server = Postgres::start().unwrap();
    queue::a_claim_is_listed_once_it_waits_in_the_server(&url(&server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_shared_in_order() {
    let server = Postgres::start().unwrap();
    queue::connections_are_shared_in_order(&url(&server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_leaves_the_queue() {
    let server = Postgres::start().unwrap();
    queue::a_request_leaves_the_queue(&url(&server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_go_on_while_others_queue() {
    let server = Postgres::start().unwrap();
    queue::holders_go_on_while_others_queue(&url(&server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_beyond_the_bound_queue_in_the_process() {
    let server = Postgres::start().unwrap();
    let waiting = || connections(&server, "wait_event_type = 'Lock'");
    let all = || connections(&server, "true");
    queue::waiters_beyond_the_bound_queue_in_the_process(&url(&server), waiting, all).await;
}
