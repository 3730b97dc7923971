//! The statements follow the rule on SQLite.

use fencelock_fence::FenceError;
use fencelock_fence::sql::{Dialect, Operation, Operations, RowFence, TableFence, sqlite};
use proptest::prelude::*;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::{exclusive, grants, model, says_who_won, shared};

fn update(
    connection: &Connection,
    fence: &RowFence,
    value: i64,
    sequencer: &fencelock_core::Sequencer,
) -> fencelock_fence::Result<()> {
    let statement = fence.update("value = ?1", "id = ?2", sequencer);
    if connection.execute(&statement, (value, 7)).unwrap() > 0 {
        return Ok(());
    }
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let found = connection.query_row(&fence.select("id = ?1"), [7], row);
    fence.explain(found.optional().unwrap(), sequencer)
}

fn ledger() -> (Connection, RowFence, TableFence) {
    let connection = Connection::open_in_memory().unwrap();
    let table = "CREATE TABLE ledger (id INTEGER PRIMARY KEY, value INTEGER); INSERT INTO ledger VALUES (7, 0)";
    connection.execute_batch(table).unwrap();
    let (row, of_table) = (
        RowFence::new("ledger").unwrap(),
        TableFence::new(Dialect::Sqlite),
    );
    for statement in row.add_columns() {
        connection.execute_batch(&statement).unwrap();
    }
    connection.execute_batch(&of_table.create()).unwrap();
    (connection, row, of_table)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn rows_and_tables_follow_the_rule(grants in proptest::collection::vec(grants(), 1..40)) {
        let (mut connection, of_row, of_table) = ledger();
        let mut passed = Vec::new();
        for (at, next) in grants.into_iter().enumerate() {
            let expected = model(&passed, &next);
            let won = |error: fencelock_fence::FenceError| error.stale().unwrap().won.get();
            let by_row = update(&connection, &of_row, at as i64, &next);
            prop_assert_eq!(by_row.map_err(won), expected);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            let by_table = sqlite::pass(&transaction, &of_table, &next);
            transaction.commit().unwrap();
            prop_assert_eq!(by_table.map_err(won), expected);
            if expected.is_ok() {
                passed.push(next);
                let value: i64 = connection.query_row("SELECT value FROM ledger", [], |r| r.get(0)).unwrap();
                prop_assert_eq!(value, at as i64);
            }
        }
    }
}

#[test]
fn the_story_of_33_and_34() {
    let (connection, fence, _) = ledger();
    update(&connection, &fence, 33, &exclusive(33)).unwrap();
    update(&connection, &fence, 34, &exclusive(34)).unwrap();
    says_who_won(
        update(&connection, &fence, 33, &exclusive(33))
            .unwrap_err()
            .stale(),
    );
}

/// The row was inserted after the update: nothing was written, and the holder must not believe that it was.
#[test]
fn a_row_that_was_inserted_after_the_update_was_not_written() {
    let (connection, fence, _) = ledger();
    for holder in [exclusive(34), shared(34)] {
        connection.execute("DELETE FROM ledger", ()).unwrap();
        let statement = fence.update("value = 1", "id = 7", &holder);
        assert_eq!(connection.execute(&statement, ()).unwrap(), 0);
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let select = fence.select("id = 7");
        for come in ["", "INSERT INTO ledger (id, value) VALUES (7, 0)"] {
            connection.execute_batch(come).unwrap();
            let found = connection.query_row(&select, (), row).optional().unwrap();
            let told = fence.explain(found, &holder);
            assert!(matches!(told, Err(FenceError::NoRow { .. })), "{told:?}");
        }
        update(&connection, &fence, 1, &holder).unwrap();
    }
}

/// One operation in one transaction. Returns its outcome or the refusal.
fn once(
    connection: &mut Connection,
    holder: &fencelock_core::Sequencer,
    operation: &Operation,
) -> fencelock_fence::Result<String> {
    let fence = TableFence::new(Dialect::Sqlite);
    let operations = Operations::new(Dialect::Sqlite);
    let immediate = TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(immediate).unwrap();
    if let Some(outcome) = sqlite::begin(&transaction, &operations, holder, operation)? {
        return Ok(outcome);
    }
    sqlite::pass(&transaction, &fence, holder)?;
    let write = "UPDATE ledger SET value = value + 1 RETURNING 'is ' || value";
    let outcome: String = transaction.query_row(write, (), |row| row.get(0)).unwrap();
    sqlite::finish(&transaction, &operations, holder, operation, &outcome)?;
    transaction.commit().unwrap();
    Ok(outcome)
}

fn with_operations() -> Connection {
    let (connection, _, of_table) = ledger();
    let operations = Operations::new(Dialect::Sqlite).create();
    connection.execute_batch(&operations).unwrap();
    connection.execute_batch(&of_table.create()).unwrap();
    connection
}

#[test]
fn an_operation_is_done_once() {
    let mut ledger = with_operations();
    let pay = Operation::new("pay 'ä'; --").unwrap();
    assert_eq!(once(&mut ledger, &exclusive(33), &pay).unwrap(), "is 1");
    assert_eq!(once(&mut ledger, &exclusive(33), &pay).unwrap(), "is 1");
    let more = Operation::new("more").unwrap();
    assert_eq!(once(&mut ledger, &exclusive(34), &more).unwrap(), "is 2");
    // 33 has done the operation. 33 is late now, and its outcome is still known.
    assert_eq!(once(&mut ledger, &exclusive(33), &pay).unwrap(), "is 1");
    assert_eq!(once(&mut ledger, &exclusive(35), &pay).unwrap(), "is 1");
    let late = Operation::new("late").unwrap();
    let refused = once(&mut ledger, &exclusive(33), &late).unwrap_err();
    says_who_won(refused.stale());
    // The refused operation was not done.
    assert_eq!(once(&mut ledger, &exclusive(34), &late).unwrap(), "is 3");
    // Ids are counted for each lock separately.
    let mut of_another = exclusive(33);
    of_another.name = fencelock_core::LockName::new("another").unwrap();
    assert_eq!(once(&mut ledger, &of_another, &pay).unwrap(), "is 4");
}

#[test]
fn an_id_belongs_to_one_operation() {
    let mut ledger = with_operations();
    let of = |what: &str| Operation::new("pay").unwrap().fingerprint(what).unwrap();
    once(&mut ledger, &exclusive(33), &of("3 to Ann")).unwrap();
    once(&mut ledger, &exclusive(33), &of("3 to Ann")).unwrap();
    for other in [of("4 to Ann"), Operation::new("pay").unwrap()] {
        let refused = once(&mut ledger, &exclusive(33), &other).unwrap_err();
        assert!(
            matches!(refused, FenceError::AnotherOperation { .. }),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("choose a new id"), "{refused}");
    }
    assert!(Operation::new(&"x".repeat(256)).is_err());
    assert!(
        Operation::new("x")
            .unwrap()
            .fingerprint(&"x".repeat(256))
            .is_err()
    );
}

/// Nobody knows whether the operation was done, so it is neither done again nor answered.
#[test]
fn a_commit_without_an_outcome_is_reported() {
    let mut ledger = with_operations();
    let operations = Operations::new(Dialect::Sqlite);
    let pay = Operation::new("pay").unwrap();
    let transaction = ledger.transaction().unwrap();
    let unbegun = sqlite::finish(&transaction, &operations, &exclusive(33), &pay, "x");
    assert!(
        matches!(unbegun, Err(FenceError::Damaged { .. })),
        "{unbegun:?}"
    );
    let begun = sqlite::begin(&transaction, &operations, &exclusive(33), &pay);
    assert_eq!(begun.unwrap(), None);
    transaction.commit().unwrap();
    let told = once(&mut ledger, &exclusive(33), &pay).unwrap_err();
    assert!(matches!(told, FenceError::Damaged { .. }), "{told:?}");
    assert!(
        told.to_string()
            .contains("find out whether it was carried out"),
        "{told}"
    );
}

#[test]
fn old_outcomes_are_deleted_by_prune() {
    let mut ledger = with_operations();
    let operations = Operations::new(Dialect::Sqlite);
    let hour = std::time::Duration::from_secs(3600);
    let (old, new) = (
        Operation::new("old").unwrap(),
        Operation::new("new").unwrap(),
    );
    once(&mut ledger, &exclusive(33), &old).unwrap();
    let earlier = "UPDATE fencelock_operations SET done_at = done_at - 3700";
    ledger.execute(earlier, ()).unwrap();
    once(&mut ledger, &exclusive(33), &new).unwrap();
    assert_eq!(ledger.execute(&operations.prune(hour), ()).unwrap(), 1);
    assert_eq!(once(&mut ledger, &exclusive(33), &new).unwrap(), "is 2");
    assert_eq!(once(&mut ledger, &exclusive(33), &old).unwrap(), "is 3");
}

/// The fence in the protected row, with the statements themselves.
#[test]
fn an_operation_with_a_row_fence_is_done_once() {
    let (mut connection, fence, _) = ledger();
    let operations = Operations::in_table(Dialect::Sqlite, "done").unwrap();
    connection.execute_batch(&operations.create()).unwrap();
    let (holder, pay) = (exclusive(33), Operation::new("pay").unwrap());
    for _ in 0..3 {
        let transaction = connection.transaction().unwrap();
        if transaction
            .execute(&operations.begin(&holder, &pay), ())
            .unwrap()
            == 0
        {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let found = transaction.query_row(&operations.select(&holder, &pay), (), row);
            let outcome = operations.outcome(found.optional().unwrap(), &pay);
            assert_eq!(outcome.unwrap(), "paid");
            continue;
        }
        let update = fence.update("value = value + 1", "id = 7", &holder);
        assert_eq!(transaction.execute(&update, ()).unwrap(), 1);
        let kept = transaction.execute(&operations.finish(&holder, &pay), ["paid"]);
        assert_eq!(kept.unwrap(), 1);
        transaction.commit().unwrap();
    }
    let value: i64 = connection
        .query_row("SELECT value FROM ledger", (), |row| row.get(0))
        .unwrap();
    assert_eq!(value, 1);
}
