//! Fences on a PostgreSQL server.

use std::time::Duration;

use fencelock_fence::sql::{Dialect, Operation, Operations, RowFence, TableFence, postgres};
use fencelock_testbed::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::{exclusive, grants, model, says_who_won};

async fn connect(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn rows_and_tables_follow_the_rule() {
    use proptest::strategy::{Strategy, ValueTree};
    let server = Postgres::start().unwrap();
    let mut client = connect(&server).await;
    let mut runner = proptest::test_runner::TestRunner::default();
    let (of_row, of_table) = (
        RowFence::new("ledger").unwrap(),
        TableFence::new(Dialect::Postgres),
    );
    client
        .batch_execute("CREATE TABLE ledger (id INT PRIMARY KEY, value INT)")
        .await
        .unwrap();
    for statement in of_row.add_columns() {
        client.batch_execute(&statement).await.unwrap();
    }
    client.batch_execute(&of_table.create()).await.unwrap();
    for round in 0..20 {
        client
            .execute("INSERT INTO ledger VALUES ($1, 0)", &[&round])
            .await
            .unwrap();
        client
            .batch_execute("DELETE FROM fencelock_fence")
            .await
            .unwrap();
        let many = proptest::collection::vec(grants(), 1..30);
        let mut passed = Vec::new();
        for next in many.new_tree(&mut runner).unwrap().current() {
            let expected = model(&passed, &next);
            let won = |error: fencelock_fence::FenceError| error.stale().unwrap().won.get();
            let update = of_row.update("value = value + 1", "id = $1", &next);
            let by_row = match client.execute(&update, &[&round]).await.unwrap() {
                0 => {
                    let row = client
                        .query_opt(&of_row.select("id = $1"), &[&round])
                        .await
                        .unwrap();
                    of_row.explain(row.map(|r| (r.get(0), r.get(1), r.get(2))), &next)
                }
                _ => Ok(()),
            };
            assert_eq!(by_row.map_err(won), expected, "{next} after {passed:?}");
            let transaction = client.transaction().await.unwrap();
            let by_table = postgres::pass(&transaction, &of_table, &next).await;
            transaction.commit().await.unwrap();
            assert_eq!(by_table.map_err(won), expected, "{next} after {passed:?}");
            if expected.is_ok() {
                passed.push(next);
            }
        }
    }
}

/// The check and the writes of a transaction are one step: another holder waits, and is then checked against the
/// committed marks.
#[tokio::test]
async fn a_transaction_keeps_its_place_until_it_ends() {
    let server = Postgres::start().unwrap();
    let (mut early, mut late) = (connect(&server).await, connect(&server).await);
    let fence = TableFence::new(Dialect::Postgres);
    early.batch_execute(&fence.create()).await.unwrap();
    let first = early.transaction().await.unwrap();
    postgres::pass(&first, &fence, &exclusive(33))
        .await
        .unwrap();
    let of_34 = fence.clone();
    let waiting = tokio::spawn(async move {
        let transaction = late.transaction().await.unwrap();
        postgres::pass(&transaction, &of_34, &exclusive(34))
            .await
            .unwrap();
        transaction.commit().await.unwrap();
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        !waiting.is_finished(),
        "34 passed in the middle of a write of 33"
    );
    first.commit().await.unwrap();
    waiting.await.unwrap();
    let again = early.transaction().await.unwrap();
    let refused = postgres::pass(&again, &fence, &exclusive(33)).await;
    says_who_won(refused.unwrap_err().stale());
}

/// One operation in one transaction. Returns its outcome or the refusal.
async fn once(
    client: &mut Client,
    holder: &fencelock_core::Sequencer,
    operation: &Operation,
) -> fencelock_fence::Result<String> {
    let fence = TableFence::new(Dialect::Postgres);
    let operations = Operations::new(Dialect::Postgres);
    let transaction = client.transaction().await.unwrap();
    if let Some(outcome) = postgres::begin(&transaction, &operations, holder, operation).await? {
        return Ok(outcome);
    }
    postgres::pass(&transaction, &fence, holder).await?;
    let write = "UPDATE ledger SET value = value + 1 RETURNING 'is ' || value";
    let outcome: String = transaction.query_one(write, &[]).await.unwrap().get(0);
    postgres::finish(&transaction, &operations, holder, operation, &outcome).await?;
    transaction.commit().await.unwrap();
    Ok(outcome)
}

/// Of several attempts at the same time, also of different holders, one does the operation, and the others get its
/// outcome.
#[tokio::test]
async fn an_operation_is_done_once() {
    let server = Postgres::start().unwrap();
    let mut client = connect(&server).await;
    let (fence, operations) = (
        TableFence::new(Dialect::Postgres),
        Operations::new(Dialect::Postgres),
    );
    let tables = format!(
        "CREATE TABLE ledger (value INT); INSERT INTO ledger VALUES (0); {}; {}",
        fence.create(),
        operations.create()
    );
    client.batch_execute(&tables).await.unwrap();
    let pay = Operation::new("pay 'ä'; --").unwrap();
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (mut client, pay) = (connect(&server).await, pay.clone());
        tries.spawn(async move { once(&mut client, &crate::shared(34), &pay).await.unwrap() });
    }
    for outcome in tries.join_all().await {
        assert_eq!(outcome, "is 1");
    }
    let more = Operation::new("more").unwrap();
    assert_eq!(
        once(&mut client, &exclusive(36), &more).await.unwrap(),
        "is 2"
    );
    // 34 is late now, but its operation was done.
    assert_eq!(
        once(&mut client, &crate::shared(34), &pay).await.unwrap(),
        "is 1"
    );
    let late = Operation::new("late").unwrap();
    let refused = once(&mut client, &exclusive(35), &late).await.unwrap_err();
    assert_eq!(refused.stale().unwrap().won.get(), 36);
    assert_eq!(
        once(&mut client, &exclusive(36), &late).await.unwrap(),
        "is 3"
    );
    let other = pay.clone().fingerprint("4 to Ann").unwrap();
    let refused = once(&mut client, &exclusive(36), &other).await.unwrap_err();
    assert!(
        matches!(
            refused,
            fencelock_fence::FenceError::AnotherOperation { .. }
        ),
        "{refused:?}"
    );
    let hour = Duration::from_secs(3600);
    assert_eq!(
        client.execute(&operations.prune(hour), &[]).await.unwrap(),
        0
    );
    let earlier =
        "UPDATE fencelock_operations SET done_at = done_at - 3700 WHERE operation = 'more'";
    client.batch_execute(earlier).await.unwrap();
    assert_eq!(
        client.execute(&operations.prune(hour), &[]).await.unwrap(),
        1
    );
}

/// The second attempt waits for the end of the first, and does the operation if the first was rolled back.
#[tokio::test]
async fn a_second_attempt_does_what_was_rolled_back() {
    let server = Postgres::start().unwrap();
    let (mut early, mut late) = (connect(&server).await, connect(&server).await);
    let (fence, operations) = (
        TableFence::new(Dialect::Postgres),
        Operations::new(Dialect::Postgres),
    );
    let tables = format!(
        "CREATE TABLE ledger (value INT); INSERT INTO ledger VALUES (0); {}; {}",
        fence.create(),
        operations.create()
    );
    early.batch_execute(&tables).await.unwrap();
    let pay = Operation::new("pay").unwrap();
    let first = early.transaction().await.unwrap();
    let begun = postgres::begin(&first, &operations, &exclusive(33), &pay).await;
    assert_eq!(begun.unwrap(), None);
    let second = pay.clone();
    let waiting = tokio::spawn(async move { once(&mut late, &exclusive(33), &second).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "two are at the same operation");
    first.rollback().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), "is 1");
    assert_eq!(
        once(&mut early, &exclusive(33), &pay).await.unwrap(),
        "is 1"
    );
}
