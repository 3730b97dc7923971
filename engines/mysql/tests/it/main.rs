//! MariaDB: tests that the shared cases do not cover. Each test has a server of its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bound;
mod clock;
mod conflicts;
mod counter;
mod crashes;
mod ears;
mod hosts;
mod options;
mod queue;
mod record;
mod restore;
#[path = "../../../sql/tests/shared/mod.rs"]
mod shared;
mod switch_over;
mod tables;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod waiting;

use std::time::{Duration, Instant};

use fencelock_core::{Client, Durability, Error, Token};
use fencelock_mysql as engine;
use fencelock_testbed::{ClockShim, MariaDb};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use tokio::time::{sleep, timeout};

use shared::{LIMIT, open, soon, take, token_of};

/// Counts the row waits that the server gave up.
const TIMEOUTS: &str =
    "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_timeouts'";

async fn client(server: &MariaDb) -> Client {
    open(&server.url()).await.unwrap()
}

/// A bare connection of the same user, to cause conflicts.
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

fn number(server: &MariaDb, sql: &str) -> u64 {
    server.sql(sql).unwrap().parse().unwrap()
}

fn status(server: &MariaDb, variable: &str) -> u64 {
    let line = server.sql(&format!("SHOW GLOBAL STATUS LIKE '{variable}'"));
    line.unwrap().split('\t').nth(1).unwrap().parse().unwrap()
}

/// How many statements wait in the server for a lock of this strategy. A count of the running statements would say less: the
/// thread that sends a replica its changes is one of them, and stays for a while after the replica has left.
fn waiting(server: &MariaDb, strategy: &str) -> u64 {
    match strategy {
        "for-update" => status(server, "Innodb_row_lock_current_waits"),
        _ => {
            let user_lock =
                "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'";
            number(server, user_lock)
        }
    }
}

/// How many connections the clients have.
fn connections(server: &MariaDb) -> u64 {
    let used = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'lock'";
    number(server, used)
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < LIMIT, "timed out: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}
