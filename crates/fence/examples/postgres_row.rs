//! A row in PostgreSQL that refuses late holders: the marks are columns of the row, and the check is part of the `UPDATE`.
//!
//! `cargo run -p fencelock-fence --features postgres --example postgres_row -- postgres://app@localhost/app`

mod story;

use fencelock::Sequencer;
use fencelock_fence::sql::RowFence;
use story::{Ledger, Result};
use tokio_postgres::{Client, NoTls};

struct Database {
    client: Client,
    fence: RowFence,
}

impl Database {
    async fn open(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let table = "CREATE TABLE IF NOT EXISTS fenced_ledger (id INT PRIMARY KEY, entry TEXT";
        let columns = RowFence::columns();
        let row = "INSERT INTO fenced_ledger (id) VALUES (7) ON CONFLICT DO NOTHING";
        client
            .batch_execute(&format!("{table}, {columns}); {row}"))
            .await?;
        let fence = RowFence::new("fenced_ledger")?;
        Ok(Self { client, fence })
    }
}

impl Ledger for Database {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        let update = self.fence.update("entry = $1", "id = 7", holder);
        if self.client.execute(&update, &[&text]).await? > 0 {
            return Ok(());
        }
        // No row was changed: find out who won.
        let select = self.fence.select("id = 7");
        let found = self.client.query_opt(&select, &[]).await?;
        let marks = found.map(|row| (row.get(0), row.get(1), row.get(2)));
        Ok(self.fence.explain(marks, holder)?)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    story::run(&Database::open(&place).await?, &place).await
}
