//! A lock on MySQL or MariaDB without a library, by the store's strategy: one INSERT of a unique name and one DELETE, each
//! its own transaction; an existing row, locked FOR UPDATE in a transaction; GET_LOCK. All statements prepared.

use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};

use super::{check_plain, failed, statements};

/// How to reach the server; each task has a connection of its own.
#[derive(Clone)]
pub(crate) struct BareMySql {
    options: Opts,
    strategy: String,
}

impl BareMySql {
    /// A table next to the store's.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let mut parts = StoreUrl::parse(url)?;
        check_plain(&mut parts)?;
        let password = parts.take_password()?;
        let strategy = parts.take("strategy").unwrap_or_else(|| "lease".to_owned());
        let host = parts.hosts.first().map_or("127.0.0.1", String::as_str);
        let (name, port) = host.split_once(':').unwrap_or((host, "3306"));
        let port = port.parse();
        let options = OptsBuilder::default()
            .ip_or_hostname(name)
            .tcp_port(port.map_err(|_| parts.refuse("its port is not a number"))?)
            .user(parts.user.clone())
            .pass(password)
            .db_name(Some(parts.path.clone()))
            .prefer_socket(false);
        let this = Self {
            options: options.into(),
            strategy,
        };
        let mut conn = this.connect().await?;
        let table = "CREATE TABLE IF NOT EXISTS fencelock_bare (name VARBINARY(512) NOT NULL PRIMARY KEY, \
                     value VARBINARY(64) NOT NULL, ends BIGINT NOT NULL) ENGINE = InnoDB";
        conn.query_drop(table).await.map_err(refuse)?;
        conn.disconnect().await.map_err(refuse)?;
        Ok(this)
    }

    async fn connect(&self) -> Result<Conn> {
        Conn::new(self.options.clone()).await.map_err(refuse)
    }

    /// Locks `names` in turn until `until`. Returns the number of pairs.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let mut conn = self.connect().await?;
        let value = format!("bare:{:032x}", Clock::Boot.now().as_nanos());
        let (take, release) = match self.strategy.as_str() {
            "for-update" => {
                for name in names {
                    let row =
                        "INSERT IGNORE INTO fencelock_bare (name, value, ends) VALUES (?, '', 0)";
                    conn.exec_drop(row, (name,)).await.map_err(refuse)?;
                }
                (
                    "SELECT 1 FROM fencelock_bare WHERE name = ? FOR UPDATE",
                    "COMMIT",
                )
            }
            "get-lock" => ("SELECT GET_LOCK(?, 0)", "SELECT RELEASE_LOCK(?)"),
            _ => (
                "INSERT INTO fencelock_bare (name, value, ends) VALUES (?, ?, 30000)",
                "DELETE FROM fencelock_bare WHERE name = ? AND value = ?",
            ),
        };
        let take = conn.prep(take).await.map_err(refuse)?;
        let release = conn.prep(release).await.map_err(refuse)?;
        let mut pairs = 0;
        for name in statements(names, until) {
            let done = match self.strategy.as_str() {
                "for-update" => {
                    conn.query_drop("START TRANSACTION").await.map_err(refuse)?;
                    conn.exec_drop(&take, (name,)).await.map_err(refuse)?;
                    conn.exec_drop(&release, ()).await
                }
                "get-lock" => {
                    // The server accepts at most 64 characters.
                    let name = &name[name.len().saturating_sub(60)..];
                    conn.exec_drop(&take, (name,)).await.map_err(refuse)?;
                    conn.exec_drop(&release, (name,)).await
                }
                _ => {
                    let taken = conn.exec_drop(&take, (name, &value)).await;
                    taken.map_err(refuse)?;
                    conn.exec_drop(&release, (name, &value)).await
                }
            };
            done.map_err(refuse)?;
            pairs += 1;
        }
        conn.disconnect().await.map_err(refuse)?;
        Ok(pairs)
    }

    /// Times of a ping, in nanoseconds.
    pub(crate) async fn round_trips(&self, count: usize) -> Result<Vec<f64>> {
        let mut conn = self.connect().await?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begun = Clock::Boot.now();
            conn.ping().await.map_err(refuse)?;
            times.push(Clock::Boot.now().since(begun).as_nanos() as f64);
        }
        conn.disconnect().await.map_err(refuse)?;
        Ok(times)
    }

    /// How many statements the server has run since its start, including those within procedures.
    pub(crate) async fn commands_so_far(&self) -> Result<u64> {
        let mut conn = self.connect().await?;
        let ask = "SHOW GLOBAL STATUS LIKE 'Queries'";
        let row: Option<(String, String)> = conn.query_first(ask).await.map_err(refuse)?;
        conn.disconnect().await.map_err(refuse)?;
        let count = row.and_then(|(_, count)| count.parse().ok());
        count.ok_or_else(|| failed("SHOW GLOBAL STATUS", "it has no Queries"))
    }

    /// Removes the table.
    pub(crate) async fn remove(&self) -> Result<()> {
        let mut conn = self.connect().await?;
        let dropped = conn.query_drop("DROP TABLE IF EXISTS fencelock_bare").await;
        dropped.map_err(refuse)?;
        conn.disconnect().await.map_err(refuse)
    }
}

fn refuse(error: mysql_async::Error) -> Error {
    failed("the bare MySQL client", error)
}
