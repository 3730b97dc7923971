//! A transaction in MySQL or MariaDB that refuses late holders, and then writes as many rows as it needs.
//!
//! `cargo run -p fencelock-fence --features mysql --example mysql_transaction -- mysql://app@127.0.0.1:3306/app`

mod story;

use fencelock::Sequencer;
use fencelock_fence::sql::{Dialect, TableFence, mysql};
use mysql_async::prelude::Queryable;
use mysql_async::{Pool, TxOpts};
use story::{Ledger, Result};

struct Database {
    pool: Pool,
    fence: TableFence,
}

impl Database {
    async fn open(url: &str) -> Result<Self> {
        let pool = Pool::from_url(url)?;
        let fence = TableFence::new(Dialect::Mysql);
        let mut conn = pool.get_conn().await?;
        conn.query_drop(fence.create()).await?;
        let table = "CREATE TABLE IF NOT EXISTS fenced_ledger (id INT PRIMARY KEY, entry TEXT)";
        conn.query_drop(table).await?;
        Ok(Self { pool, fence })
    }
}

impl Ledger for Database {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        // Rolled back when it is dropped, which happens if the fence refuses the holder.
        let mut transaction = self.pool.start_transaction(TxOpts::default()).await?;
        mysql::pass(&mut transaction, &self.fence, holder).await?;
        let write = "REPLACE INTO fenced_ledger VALUES (7, ?)";
        transaction.exec_drop(write, (text,)).await?;
        transaction.commit().await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    let database = Database::open(&place).await?;
    let result = story::run(&database, &place).await;
    database.pool.disconnect().await?;
    result
}
