//! Versioned rows on PostgreSQL.

use fencelock_testbed::Postgres;
use fencelock_versioned::{Dialect, is_postgres_conflict};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::bank::{Bank, all_tests, move_one};

impl Bank for Client {
    type Error = tokio_postgres::Error;
    const DIALECT: Dialect = Dialect::Postgres;

    async fn run(&mut self, sql: &str) -> Result<u64, Self::Error> {
        self.execute(sql, &[]).await
    }

    async fn row(&mut self, sql: &str) -> Result<Option<(i64, i64)>, Self::Error> {
        let row = self.query_opt(sql, &[]).await?;
        Ok(row.map(|row| (row.get(0), row.get::<_, i32>(1).into())))
    }

    fn is_conflict(error: &Self::Error) -> bool {
        is_postgres_conflict(error)
    }
}

async fn raw(server: &Postgres, name: &str) -> Client {
    let config = format!(
        "host=127.0.0.1 port={} user=lock dbname=lock application_name={name}",
        server.port()
    );
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn versions_show_every_change() {
    let server = Postgres::start().unwrap();
    let (mut one, mut other) = (raw(&server, "one").await, raw(&server, "other").await);
    all_tests(&mut one, &mut other).await;
}

/// In both directions at once, so that deadlocks are among the conflicts.
#[tokio::test]
async fn contended_rows_are_written_after_retries() {
    contended(&Postgres::start().unwrap()).await;
}

/// PostgreSQL also rolls back a serializable transaction because of rows that it only read.
#[tokio::test]
async fn serializable_transactions_are_retried() {
    let server = Postgres::builder()
        .config("default_transaction_isolation", "serializable")
        .start()
        .unwrap();
    contended(&server).await;
    let (one, other) = (raw(&server, "one").await, raw(&server, "other").await);
    let write = "UPDATE accounts SET balance = balance + 1 WHERE id = 1";
    one.batch_execute("BEGIN; TABLE accounts").await.unwrap();
    other.batch_execute(write).await.unwrap();
    let error = one.batch_execute(write).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
    assert!(is_postgres_conflict(&error));
}

async fn contended(server: &Postgres) {
    let admin = raw(server, "admin").await;
    let tables = "CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL, version BIGINT NOT NULL DEFAULT 1); \
                  INSERT INTO accounts (id, balance) VALUES (1, 100), (2, 100)";
    admin.batch_execute(tables).await.unwrap();
    let work = async |from, to| {
        let mut client = raw(server, "work").await;
        for _ in 0..25 {
            move_one(&mut client, from, to).await;
        }
    };
    tokio::join!(work(1, 2), work(2, 1), work(1, 2), work(1, 2));
    let balances = admin.query("SELECT balance FROM accounts ORDER BY id", &[]);
    let balances = balances.await.unwrap();
    let balances: Vec<i32> = balances.iter().map(|row| row.get(0)).collect();
    assert_eq!(balances, [50, 150]);
}
