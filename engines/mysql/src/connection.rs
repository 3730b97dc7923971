//! Finds the server that takes writes, and prepares a connection to it.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{ConfigPart, Error, Result};
use fencelock_sql::server::{Host, Servers};
use mysql_async::Conn;

use super::config::{Config, WAIT_TIMEOUT};
use super::error::caller_error;
use super::request::Request;
use super::server::{self, ServerInfo};
use super::tls;

pub(crate) struct Connected {
    pub(crate) conn: Conn,
    pub(crate) info: ServerInfo,
    /// What names the connection at the server: its id, and the address and port that it comes from.
    pub(crate) id: String,
}

/// A connection to the first host that takes writes. An inspecting client takes any host if there is none.
pub(crate) async fn connect(config: &Config) -> Result<Connected> {
    if config.hosts.len() == 1 || config.inspect_only {
        return Ok(config.connect_to_writable().await?.0);
    }
    config.second_server.connect(config).await
}

/// Ends a connection in the background, without waiting for a server that may not answer.
pub(crate) fn hang_up(conn: Conn) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            // Even if this fails, the connection ends.
            let _ = tokio::time::timeout(Duration::from_secs(1), conn.disconnect()).await;
        });
    }
}

#[async_trait]
impl Servers for Config {
    type Session = Connected;

    fn count(&self) -> usize {
        self.hosts.len()
    }

    fn address(&self, host: usize) -> String {
        let host = &self.hosts[host];
        format!("{}:{}", host.name, host.port)
    }

    async fn connect_to_writable(&self) -> Result<(Connected, usize)> {
        let (mut failure, mut replica) = (None, None);
        for host in 0..self.hosts.len() {
            let error = match connect_in_time(self, host).await {
                Ok(found) if found.info.takes_writes() => return Ok((found, host)),
                Ok(found) => {
                    replica.get_or_insert((found, host));
                    let why = "the server is read-only: a replica, or a server that is being switched over";
                    Error::unavailable(&self.store, connect_action(self, host), why)
                }
                Err(error) => error,
            };
            // An error that an operator must fix is more useful than the error of a server that is down.
            if failure.as_ref().is_none_or(Error::is_retryable) {
                failure = Some(error);
            }
        }
        match replica {
            Some(replica) if self.inspect_only => Ok(replica),
            _ => Err(failure.unwrap_or_else(|| {
                Error::config(
                    &self.store,
                    ConfigPart::Url,
                    "it names no host; write mysql://USER@HOST/DATABASE",
                )
            })),
        }
    }

    async fn connect_if_writable(&self, host: usize) -> Option<Connected> {
        let found = connect_in_time(self, host).await.ok()?;
        found.info.takes_writes().then_some(found)
    }

    async fn lock_server(&self, session: &mut Connected, key: i64) -> Option<bool> {
        let lock = Request::of(format!("SELECT GET_LOCK('fencelock-same-{key:016x}', 0)"));
        let answers = lock.run(&mut session.conn).await.ok()?;
        let locked = answers[0].rows.first()?.get::<Option<u64>, _>(0)?;
        Some(locked == Some(1))
    }

    fn is_cluster(&self, session: &Connected) -> bool {
        session.info.is_cluster()
    }

    fn hang_up(&self, session: Connected) {
        hang_up(session.conn);
    }

    fn way_out(&self) -> &'static str {
        "Set read_only = 1 on the one that is the other's replica, or name one of them"
    }
}

impl std::fmt::Display for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.store)
    }
}

fn connect_action(config: &Config, host: usize) -> String {
    format!("connecting to {}", config.address(host))
}

async fn connect_in_time(config: &Config, host: usize) -> Result<Connected> {
    // Each host has its share of the time for an answer.
    let share = config.hosts.len().try_into().unwrap_or(1);
    let limit = config.settings.response_timeout / share;
    let action = connect_action(config, host);
    let connect = connect_to(config, &config.hosts[host], &action);
    let connected = tokio::time::timeout(limit, connect).await;
    connected.unwrap_or_else(|_| {
        // A MySQL server sends the first bytes.
        let why = format!("no answer within {limit:?}; is it a MySQL or MariaDB server?");
        Err(Error::unavailable(&config.store, action, why))
    })
}

async fn connect_to(config: &Config, host: &Host, action: &str) -> Result<Connected> {
    let Some(options) = config.options(host) else {
        let why = format!("it does not name {}", host.name);
        return Err(Error::config(&config.store, ConfigPart::Server, why));
    };
    let mut conn = tls::connect(&config.store, &config.tls, host, options, action).await?;
    let mut request = Request::default();
    request.push("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    // Shorter than a call waits for its answer, so that the call can retry after a conflict.
    let patience = (config.settings.response_timeout / 2).as_secs().max(1);
    request.push(format!(
        "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = {patience}, \
         wait_timeout = {WAIT_TIMEOUT}, net_write_timeout = 60"
    ));
    let settings = request.push(server::ASK);
    let own = request.push(
        "SELECT CONCAT(id, ' ', host) FROM information_schema.processlist WHERE id = CONNECTION_ID()",
    );
    let answers = request.run(&mut conn).await;
    let answers = answers.map_err(|error| caller_error(&config.store, action, error))?;
    let pairs = answers[settings].rows.iter().cloned();
    let variables = pairs.map(mysql_async::from_row::<(String, String)>);
    let info = ServerInfo::new(variables.collect());
    info.check(&config.store)?;
    let id = answers[own].rows.first().and_then(|row| row.get(0));
    let id = id.unwrap_or_default();
    Ok(Connected { conn, info, id })
}
