//! Versioned rows on MariaDB.

use fencelock_testbed::MariaDb;
use fencelock_versioned::{Dialect, is_mysql_conflict};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};

use crate::bank::{Bank, all_tests, move_one};

impl Bank for Conn {
    type Error = mysql_async::Error;
    const DIALECT: Dialect = Dialect::Mysql;

    async fn run(&mut self, sql: &str) -> Result<u64, Self::Error> {
        self.query_drop(sql).await?;
        Ok(self.affected_rows())
    }

    async fn row(&mut self, sql: &str) -> Result<Option<(i64, i64)>, Self::Error> {
        self.query_first(sql).await
    }

    fn is_conflict(error: &Self::Error) -> bool {
        is_mysql_conflict(error)
    }
}

async fn bare(server: &MariaDb) -> Conn {
    let options = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port())
        .user(Some("lock"))
        .db_name(Some("lock"))
        .prefer_socket(false);
    let mut conn = Conn::new(options).await.unwrap();
    let read_committed = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
    conn.query_drop(read_committed).await.unwrap();
    conn
}

#[tokio::test]
async fn versions_show_every_change() {
    let server = MariaDb::start().unwrap();
    all_tests(&mut bare(&server).await, &mut bare(&server).await).await;
}

/// In both directions at once, so that deadlocks are among the conflicts.
#[tokio::test]
async fn contended_rows_are_written_after_retries() {
    let server = MariaDb::start().unwrap();
    let mut admin = bare(&server).await;
    let tables = "CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL, version BIGINT NOT NULL DEFAULT 1); \
                  INSERT INTO accounts (id, balance) VALUES (1, 100), (2, 100)";
    admin.query_drop(tables).await.unwrap();
    let work = async |from, to| {
        let mut conn = bare(&server).await;
        for _ in 0..25 {
            move_one(&mut conn, from, to).await;
        }
    };
    tokio::join!(work(1, 2), work(2, 1), work(1, 2), work(1, 2));
    let balances: Vec<i64> = admin
        .query("SELECT balance FROM accounts ORDER BY id")
        .await
        .unwrap();
    assert_eq!(balances, [50, 150]);
}
