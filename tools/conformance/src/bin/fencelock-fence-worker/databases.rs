//! PostgreSQL: rows that have marks themselves. SQLite and MySQL: transactions with a table of marks.

use std::time::Duration;

use async_trait::async_trait;
use fencelock::Sequencer;
use fencelock::fence::FenceError;
use fencelock::fence::sql::{Dialect, RowFence, TableFence, mysql, sqlite};
use mysql_async::TxOpts;
use mysql_async::prelude::Queryable;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use tokio::sync::Mutex;

use crate::Resource;

const LEDGER: &str =
    "CREATE TABLE ledger (name VARCHAR(255) NOT NULL PRIMARY KEY, entry VARCHAR(255) NOT NULL)";

pub(crate) struct Sqlite {
    connection: Mutex<Connection>,
    fence: TableFence,
}

impl Sqlite {
    pub(crate) fn open(at: &str) -> Self {
        let connection = Connection::open(at).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        Self {
            connection: Mutex::new(connection),
            fence: TableFence::new(Dialect::Sqlite),
        }
    }
}

#[async_trait]
impl Resource for Sqlite {
    async fn set_up(&self) {
        let connection = self.connection.lock().await;
        for statement in [LEDGER, &self.fence.create()] {
            connection.execute_batch(statement).unwrap();
        }
    }

    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        let mut connection = self.connection.lock().await;
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .unwrap();
        sqlite::pass(&transaction, &self.fence, sequencer)?;
        let write = "INSERT OR REPLACE INTO ledger VALUES (?1, ?2)";
        transaction
            .execute(write, (sequencer.name.as_str(), text))
            .unwrap();
        transaction.commit().unwrap();
        Ok(())
    }

    async fn read(&self, name: &str) -> String {
        let connection = self.connection.lock().await;
        let read = "SELECT entry FROM ledger WHERE name = ?1";
        let entry = connection.query_row(read, [name], |row| row.get(0));
        entry.optional().unwrap().unwrap_or_default()
    }
}

pub(crate) struct Postgres {
    client: tokio_postgres::Client,
    fence: RowFence,
}

impl Postgres {
    pub(crate) async fn open(url: &str) -> Self {
        let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        tokio::spawn(connection);
        let fence = RowFence::new("ledger").unwrap();
        Self { client, fence }
    }
}

#[async_trait]
impl Resource for Postgres {
    async fn set_up(&self) {
        self.client.batch_execute(LEDGER).await.unwrap();
        for statement in self.fence.add_columns() {
            self.client.batch_execute(&statement).await.unwrap();
        }
    }

    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        let name = sequencer.name.as_str();
        // A row must exist before it can be protected.
        let row = "INSERT INTO ledger VALUES ($1, '') ON CONFLICT DO NOTHING";
        self.client.execute(row, &[&name]).await.unwrap();
        let update = self.fence.update("entry = $2", "name = $1", sequencer);
        if self.client.execute(&update, &[&name, &text]).await.unwrap() > 0 {
            return Ok(());
        }
        let select = self.fence.select("name = $1");
        let found = self.client.query_opt(&select, &[&name]).await.unwrap();
        let found = found.map(|row| (row.get(0), row.get(1), row.get(2)));
        self.fence.explain(found, sequencer)
    }

    async fn read(&self, name: &str) -> String {
        let read = "SELECT entry FROM ledger WHERE name = $1";
        let row = self.client.query_opt(read, &[&name]).await.unwrap();
        row.map(|row| row.get(0)).unwrap_or_default()
    }
}

pub(crate) struct Mysql {
    conn: Mutex<mysql_async::Conn>,
    fence: TableFence,
}

impl Mysql {
    pub(crate) async fn open(url: &str) -> Self {
        let conn = mysql_async::Conn::from_url(url).await.unwrap();
        Self {
            conn: Mutex::new(conn),
            fence: TableFence::new(Dialect::Mysql),
        }
    }
}

#[async_trait]
impl Resource for Mysql {
    async fn set_up(&self) {
        let mut conn = self.conn.lock().await;
        conn.query_drop(LEDGER).await.unwrap();
        conn.query_drop(self.fence.create()).await.unwrap();
    }

    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        let mut conn = self.conn.lock().await;
        let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
        let passed = mysql::pass(&mut transaction, &self.fence, sequencer).await;
        if let Err(refusal) = passed {
            transaction.rollback().await.unwrap();
            return Err(refusal);
        }
        let write = "REPLACE INTO ledger VALUES (?, ?)";
        let entry = (sequencer.name.as_str(), text);
        transaction.exec_drop(write, entry).await.unwrap();
        transaction.commit().await.unwrap();
        Ok(())
    }

    async fn read(&self, name: &str) -> String {
        let mut conn = self.conn.lock().await;
        let read = "SELECT entry FROM ledger WHERE name = ?";
        let entry: Option<String> = conn.exec_first(read, (name,)).await.unwrap();
        entry.unwrap_or_default()
    }
}
