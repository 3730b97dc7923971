//! Fences on a MariaDB server.

use std::time::Duration;

use fencelock_fence::sql::{Dialect, Operation, Operations, RowFence, TableFence, mysql};
use fencelock_testbed::MariaDb;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};

use crate::{exclusive, grants, model, says_who_won};

async fn connect(server: &MariaDb) -> Conn {
    Conn::from_url(server.url()).await.unwrap()
}

#[tokio::test]
async fn rows_and_tables_follow_the_rule() {
    use proptest::strategy::{Strategy, ValueTree};
    let server = MariaDb::start().unwrap();
    let mut conn = connect(&server).await;
    let mut runner = proptest::test_runner::TestRunner::default();
    let (of_row, of_table) = (
        RowFence::new("ledger").unwrap(),
        TableFence::new(Dialect::Mysql),
    );
    let table = "CREATE TABLE ledger (id INT PRIMARY KEY, value INT) ENGINE=InnoDB";
    conn.query_drop(table).await.unwrap();
    for statement in of_row.add_columns() {
        conn.query_drop(statement).await.unwrap();
    }
    conn.query_drop(of_table.create()).await.unwrap();
    for round in 0..20 {
        conn.exec_drop("INSERT INTO ledger (id, value) VALUES (?, 0)", (round,))
            .await
            .unwrap();
        conn.query_drop("DELETE FROM fencelock_fence")
            .await
            .unwrap();
        let many = proptest::collection::vec(grants(), 1..30);
        let mut passed = Vec::new();
        for next in many.new_tree(&mut runner).unwrap().current() {
            let expected = model(&passed, &next);
            let won = |error: fencelock_fence::FenceError| error.stale().unwrap().won.get();
            // A write of the same value counts as no change, and must not look like a refusal.
            let update = of_row.update("value = 1", "id = ?", &next);
            conn.exec_drop(update, (round,)).await.unwrap();
            let by_row = match conn.affected_rows() {
                0 => {
                    let found = conn.exec_first(of_row.select("id = ?"), (round,)).await;
                    of_row.explain(found.unwrap(), &next)
                }
                _ => Ok(()),
            };
            assert_eq!(by_row.map_err(won), expected, "{next} after {passed:?}");
            let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
            let by_table = mysql::pass(&mut transaction, &of_table, &next).await;
            transaction.commit().await.unwrap();
            assert_eq!(by_table.map_err(won), expected, "{next} after {passed:?}");
            if expected.is_ok() {
                passed.push(next);
            }
        }
    }
    conn.disconnect().await.unwrap();
}

/// Another holder waits for the transaction, and is then checked against the committed marks, even if its own
/// transaction began earlier.
#[tokio::test]
async fn a_transaction_keeps_its_place_until_it_ends() {
    let server = MariaDb::start().unwrap();
    let (mut early, mut late) = (connect(&server).await, connect(&server).await);
    let fence = TableFence::new(Dialect::Mysql);
    early.query_drop(fence.create()).await.unwrap();
    let mut first = early.start_transaction(TxOpts::default()).await.unwrap();
    mysql::pass(&mut first, &fence, &exclusive(34))
        .await
        .unwrap();
    let of_33 = fence.clone();
    let waiting = tokio::spawn(async move {
        let mut transaction = late.start_transaction(TxOpts::default()).await.unwrap();
        // Its snapshot is older than the commit of 34.
        transaction
            .query_drop("SELECT 1 FROM fencelock_fence")
            .await
            .unwrap();
        let refused = mysql::pass(&mut transaction, &of_33, &exclusive(33)).await;
        transaction.rollback().await.unwrap();
        refused
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "judged in the middle of a write");
    first.commit().await.unwrap();
    says_who_won(waiting.await.unwrap().unwrap_err().stale());
}

/// `explain` reads the present row, not the row at the start of the transaction.
#[tokio::test]
async fn a_row_says_in_a_transaction_who_won() {
    let server = MariaDb::start().unwrap();
    let (mut early, mut late) = (connect(&server).await, connect(&server).await);
    let fence = RowFence::new("ledger").unwrap();
    let table = format!("CREATE TABLE ledger (id INT, {})", RowFence::columns());
    early.query_drop(table).await.unwrap();
    early
        .query_drop("INSERT INTO ledger (id) VALUES (7)")
        .await
        .unwrap();
    let update = |token| fence.update("id = id", "id = 7", &exclusive(token));
    early.query_drop(update(33)).await.unwrap();
    let mut transaction = early.start_transaction(TxOpts::default()).await.unwrap();
    transaction
        .query_drop("SELECT 1 FROM ledger")
        .await
        .unwrap();
    late.query_drop(update(34)).await.unwrap();
    transaction.query_drop(update(33)).await.unwrap();
    assert_eq!(transaction.affected_rows(), 0);
    let found = transaction.query_first(fence.select("id = 7")).await;
    let refused = fence.explain(found.unwrap(), &exclusive(33));
    says_who_won(refused.unwrap_err().stale());
}

/// One operation in one transaction. Returns its outcome or the refusal.
async fn once(
    conn: &mut Conn,
    holder: &fencelock_core::Sequencer,
    operation: &Operation,
) -> fencelock_fence::Result<String> {
    let fence = TableFence::new(Dialect::Mysql);
    let operations = Operations::new(Dialect::Mysql);
    let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
    // Its snapshot is older than the commit that it waits for.
    let view = "SELECT 1 FROM fencelock_operations";
    transaction.query_drop(view).await.unwrap();
    if let Some(outcome) = mysql::begin(&mut transaction, &operations, holder, operation).await? {
        return Ok(outcome);
    }
    mysql::pass(&mut transaction, &fence, holder).await?;
    let write = "UPDATE ledger SET value = value + 1";
    transaction.query_drop(write).await.unwrap();
    let read = "SELECT CONCAT('is ', value, ' ä€😀') FROM ledger";
    let outcome: Option<String> = transaction.query_first(read).await.unwrap();
    let outcome = outcome.unwrap();
    mysql::finish(&mut transaction, &operations, holder, operation, &outcome).await?;
    transaction.commit().await.unwrap();
    Ok(outcome)
}

async fn with_operations(server: &MariaDb) -> Conn {
    let mut conn = connect(server).await;
    for statement in [
        "CREATE TABLE ledger (value INT) ENGINE=InnoDB",
        "INSERT INTO ledger VALUES (0)",
        &TableFence::new(Dialect::Mysql).create(),
        &Operations::new(Dialect::Mysql).create(),
    ] {
        conn.query_drop(statement).await.unwrap();
    }
    conn
}

/// Of several attempts at the same time, one does the operation, and the others get its outcome.
#[tokio::test]
async fn an_operation_is_done_once() {
    let server = MariaDb::start().unwrap();
    let mut conn = with_operations(&server).await;
    let operations = Operations::new(Dialect::Mysql);
    let pay = Operation::new("pay 'ä'; --").unwrap();
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (mut conn, pay) = (connect(&server).await, pay.clone());
        tries.spawn(async move { once(&mut conn, &crate::shared(34), &pay).await.unwrap() });
    }
    for outcome in tries.join_all().await {
        assert_eq!(outcome, "is 1 ä€😀");
    }
    let more = Operation::new("more").unwrap();
    let done = once(&mut conn, &exclusive(36), &more).await;
    assert_eq!(done.unwrap(), "is 2 ä€😀");
    // 34 is late now, but its operation was done.
    let again = once(&mut conn, &crate::shared(34), &pay).await;
    assert_eq!(again.unwrap(), "is 1 ä€😀");
    let late = Operation::new("late").unwrap();
    let refused = once(&mut conn, &exclusive(35), &late).await.unwrap_err();
    assert_eq!(refused.stale().unwrap().won.get(), 36);
    let done = once(&mut conn, &exclusive(36), &late).await;
    assert_eq!(done.unwrap(), "is 3 ä€😀");
    let other = pay.clone().fingerprint("4 to Ann").unwrap();
    let refused = once(&mut conn, &exclusive(36), &other).await.unwrap_err();
    assert!(
        matches!(
            refused,
            fencelock_fence::FenceError::AnotherOperation { .. }
        ),
        "{refused:?}"
    );
    let earlier =
        "UPDATE fencelock_operations SET done_at = done_at - 3700 WHERE operation = 'more'";
    conn.query_drop(earlier).await.unwrap();
    conn.query_drop(operations.prune(Duration::from_secs(3600)))
        .await
        .unwrap();
    assert_eq!(conn.affected_rows(), 1);
}

/// The second attempt waits for the end of the first, and does the operation if the first was rolled back.
#[tokio::test]
async fn a_second_attempt_does_what_was_rolled_back() {
    let server = MariaDb::start().unwrap();
    let (mut early, mut late) = (with_operations(&server).await, connect(&server).await);
    let operations = Operations::new(Dialect::Mysql);
    let pay = Operation::new("pay").unwrap();
    let mut first = early.start_transaction(TxOpts::default()).await.unwrap();
    let begun = mysql::begin(&mut first, &operations, &exclusive(33), &pay).await;
    assert_eq!(begun.unwrap(), None);
    let second = pay.clone();
    let waiting = tokio::spawn(async move { once(&mut late, &exclusive(33), &second).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "two are at the same operation");
    first.rollback().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), "is 1 ä€😀");
    let again = once(&mut early, &exclusive(33), &pay).await;
    assert_eq!(again.unwrap(), "is 1 ä€😀");
}
