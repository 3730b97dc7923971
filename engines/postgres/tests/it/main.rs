//! PostgreSQL: tests that the shared cases do not cover. Each test has a server of its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admission;
mod bound;
mod clock;
mod conflicts;
mod connections;
mod crashes;
mod ears;
mod hosts;
mod identity;
mod options;
#[cfg(feature = "tls")]
mod own_tls;
mod queue;
mod record;
mod restore;
mod rows;
mod settings;
#[path = "../../../sql/tests/shared/mod.rs"]
mod shared;
mod switch_over;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod waiting;

use std::time::{Duration, Instant};

use fencelock_core::{Error, LossReason, Mode, Token};
use fencelock_postgres as engine;
use fencelock_testbed::{ClockShim, Postgres, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;
use tokio_postgres::NoTls;

use shared::{LIMIT, open, token_of};

async fn raw(server: &Postgres, name: &str) -> tokio_postgres::Client {
    let config = format!(
        "host=127.0.0.1 port={} user=lock dbname=lock application_name={name}",
        server.port()
    );
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !done().await {
        assert!(begin.elapsed() < LIMIT, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Stops the first insertion of a connection named `slow` until the advisory lock 1 is free.
const STALL: &str = "\
    CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    IF current_setting('application_name') = 'slow' THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN NEW; END $$;";
