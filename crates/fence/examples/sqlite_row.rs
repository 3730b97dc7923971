//! A row that refuses who is late: the marks are columns of it, the check is part of the `UPDATE`.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Client, Memory, Sequencer};
use fencelock_fence::FenceError;
use fencelock_fence::sql::RowFence;
use rusqlite::{Connection, OptionalExtension, Row};

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ledger = Connection::open_in_memory()?;
    let fence = RowFence::new("ledger")?;
    ledger.execute_batch("CREATE TABLE ledger (id INTEGER PRIMARY KEY, balance INTEGER)")?;
    for statement in fence.add_columns() {
        ledger.execute_batch(&statement)?;
    }
    ledger.execute_batch("INSERT INTO ledger (id, balance) VALUES (7, 100)")?;
    let write = |holder: &Sequencer, balance: i64| {
        let update = fence.update("balance = ?1", "id = 7", holder);
        if ledger.execute(&update, [balance])? > 0 {
            return Ok(());
        }
        // Nothing was changed: who has been here?
        let marks = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let found = ledger.query_row(&fence.select("id = 7"), [], marks);
        fence.explain(found.optional()?, holder)?;
        Ok::<_, Box<dyn std::error::Error>>(())
    };

    let store = Memory::new();
    let sleeper = Client::new(Arc::new(store.another()))?;
    let successor = Client::new(Arc::new(store))?;
    let asleep = sleeper.lock("ledger").ttl(Duration::from_millis(500));
    let asleep = asleep.renew(false).await?;
    let early = asleep.sequencer().await?;
    // Granted once the sleeper's lease is over.
    let next = successor.lock("ledger").await?;
    write(&next.sequencer().await?, 90)?;
    let refusal = write(&early, 80).err().ok_or("a stale write passed")?;
    println!("{refusal}");
    let stale = refusal.downcast_ref().and_then(FenceError::stale);
    assert_eq!(stale.map(|stale| stale.won), Some(next.token()));
    let balance: i64 = ledger.query_row("SELECT balance FROM ledger", [], |row| row.get(0))?;
    assert_eq!(balance, 90);
    Ok(())
}
