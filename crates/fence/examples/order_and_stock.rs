//! An order is carried out exactly once, however often it is sent: the transaction that writes also stores the outcome.
//!
//! `cargo run -p fencelock-fence --features sqlite --example order_and_stock -- shop.db order-1 3`
//!
//! Run it twice: both answers are the same. With `KILL_AT=STEP` it kills itself with `kill -9` at that step (it prints its
//! steps). Then run it again with the same order.

use std::error::Error;
use std::process::Command;
use std::time::Duration;
use std::{env, process, thread};

use fencelock::Sequencer;
use fencelock_fence::sql::{Dialect, Operation, Operations, TableFence, sqlite};
use rusqlite::{Connection, TransactionBehavior};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

struct Shop {
    database: Connection,
    fence: TableFence,
    operations: Operations,
}

impl Shop {
    /// Opens the shop. A new one has 100 apples.
    fn open(path: &str) -> Result<Self> {
        let database = Connection::open(path)?;
        database.busy_timeout(Duration::from_secs(5))?;
        let fence = TableFence::new(Dialect::Sqlite);
        let operations = Operations::new(Dialect::Sqlite);
        database.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, left_over INTEGER NOT NULL);
             INSERT OR IGNORE INTO stock VALUES ('apples', 100);
             CREATE TABLE IF NOT EXISTS orders (id TEXT NOT NULL, apples INTEGER NOT NULL);
             {}; {}",
            fence.create(),
            operations.create()
        ))?;
        Ok(Self {
            database,
            fence,
            operations,
        })
    }

    /// Takes from the stock and writes the order, or returns the first answer.
    fn order(&mut self, holder: &Sequencer, operation: &Operation, apples: u32) -> Result<String> {
        let immediate = TransactionBehavior::Immediate;
        let transaction = self.database.transaction_with_behavior(immediate)?;
        let begun = sqlite::begin(&transaction, &self.operations, holder, operation)?;
        if let Some(outcome) = begun {
            return Ok(outcome);
        }
        step("begun")?;
        sqlite::pass(&transaction, &self.fence, holder)?;
        step("passed the fence")?;
        let take =
            "UPDATE stock SET left_over = left_over - ?1 WHERE item = 'apples' RETURNING left_over";
        let left: i64 = transaction.query_row(take, [apples], |row| row.get(0))?;
        step("took from the stock")?;
        let write = "INSERT INTO orders VALUES (?1, ?2)";
        transaction.execute(write, (operation.id(), apples))?;
        step("wrote the order")?;
        let outcome = format!("{} has {apples} apples; {left} are left", operation.id());
        sqlite::finish(&transaction, &self.operations, holder, operation, &outcome)?;
        step("kept the outcome")?;
        transaction.commit()?;
        step("committed")?;
        Ok(outcome)
    }
}

/// Prints the step, and kills this process if `KILL_AT` names it.
fn step(name: &str) -> Result<()> {
    println!("step: {name}");
    if env::var("KILL_AT").as_deref() == Ok(name) {
        let pid = process::id().to_string();
        Command::new("kill").args(["-9", &pid]).status()?;
        thread::sleep(Duration::MAX);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let mut next = |what: &'static str| arguments.next().ok_or(what);
    let path = next("say where the shop is, such as shop.db")?;
    let id = next("say which order it is, such as order-1")?;
    let apples = next("say how many apples, such as 3")?.parse()?;
    let mut shop = Shop::open(&path)?;
    let client = fencelock::connect(format!("sqlite:{path}.locks")).await?;
    step("opened")?;
    // If this process is killed, the next one waits until the lease of this length ends.
    let guard = client.lock("shop").ttl(Duration::from_secs(2)).await?;
    step("locked")?;
    let operation = Operation::new(&id)?.fingerprint(&format!("{apples} apples"))?;
    let outcome = shop.order(&guard.sequencer().await?, &operation, apples)?;
    println!("{outcome}");
    guard.release().await?;
    step("released")?;
    client.close().await?;
    Ok(())
}
