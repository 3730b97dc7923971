//! Optimistic concurrency without a lock: two writers change one account, and neither update is lost.

use std::error::Error;

use fencelock_versioned::{Attempt, Dialect, Retry, Version, Versioned, retry_blocking};
use rusqlite::{Connection, Row};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let bank = Connection::open_in_memory()?;
    bank.execute_batch("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")?;
    let accounts = Versioned::new("accounts")?;
    bank.execute_batch(&accounts.add_column())?;
    // Writers that ignore the version are also noticed.
    for trigger in accounts.triggers(Dialect::Sqlite) {
        bank.execute_batch(&trigger)?;
    }
    bank.execute("INSERT INTO accounts (id, balance) VALUES (7, 100)", [])?;

    let mut conflicts = 1;
    let balance = retry_blocking(Retry::default(), || {
        let row = |row: &Row<'_>| Ok((Version(row.get(0)?), row.get::<_, i64>(1)?));
        let (seen, balance) = bank.query_row(&accounts.select("balance", "id = 7"), [], row)?;
        if conflicts > 0 {
            conflicts -= 1;
            bank.execute("UPDATE accounts SET balance = balance + 5 WHERE id = 7", [])?;
        }
        let balance = balance - 10;
        let update = accounts.update("balance = ?1", "id = 7", seen);
        let affected = bank.execute(&update, [balance])?;
        Ok::<_, rusqlite::Error>(Attempt::of_rows(affected as u64, balance))
    })?;
    println!("{balance}");
    assert_eq!(balance, 95);
    Ok(())
}
