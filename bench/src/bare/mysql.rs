//! A lock on MySQL or MariaDB without a library: one INSERT of a unique name and one DELETE, each prepared, each its own
//! transaction.

use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};

use super::failed;

/// How to reach the server; each task has a connection of its own.
#[derive(Clone)]
pub(crate) struct BareMySql {
    options: Opts,
}

impl BareMySql {
    /// A table beside the store's own.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let mut parts = StoreUrl::parse(url)?;
        let password = parts.take_password()?;
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

    /// Takes and releases `names` in turn until `until`; how many times.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let mut conn = self.connect().await?;
        let value = format!("bare:{:032x}", Clock::Boot.now().as_nanos());
        let mut prepare = async |sql: &str| conn.prep(sql).await.map_err(refuse);
        let take =
            prepare("INSERT INTO fencelock_bare (name, value, ends) VALUES (?, ?, ?)").await?;
        let release = prepare("DELETE FROM fencelock_bare WHERE name = ? AND value = ?").await?;
        let mut pairs = 0;
        for name in names.iter().cycle() {
            if Clock::Boot.now() >= until {
                break;
            }
            let taken = conn.exec_drop(&take, (name, &value, 30_000)).await;
            taken.map_err(refuse)?;
            let released = conn.exec_drop(&release, (name, &value)).await;
            released.map_err(refuse)?;
            pairs += 1;
        }
        conn.disconnect().await.map_err(refuse)?;
        Ok(pairs)
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
