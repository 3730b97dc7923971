//! On SQLite: the statements do what the rule says.

use fencelock_fence::FenceError;
use fencelock_fence::sql::{Dialect, RowFence, TableFence, sqlite};
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

/// The row came after the update had looked: nothing was written, and the holder must not believe that it was.
#[test]
fn a_row_that_came_too_late_was_not_written() {
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
