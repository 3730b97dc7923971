//! A lock on MySQL or MariaDB without a library, by the store's strategy: one INSERT of a unique name and one DELETE, each
//! its own transaction; an existing row, locked FOR UPDATE in a transaction; GET_LOCK. All statements prepared. Bare clients
//! in a ring have the number of the turn in one row. Each waits in the server for its turn, and is woken by KILL QUERY.

use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row};

use super::{Place, check_plain, failed, statements};

/// A KILL ended the statement.
const INTERRUPTED: u16 = 1317;
/// KILL found no such connection.
const NOBODY: u16 = 1094;

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
                    let name = last(name, 60);
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

    /// Takes a place in the ring `name`.
    pub(crate) async fn entry(&self, name: &str, place: Place) -> Result<MySqlEntry> {
        let (mut conn, mut ear) = (self.connect().await?, self.connect().await?);
        let put = "REPLACE INTO fencelock_bare (name, value, ends) VALUES (?, '', 0)";
        if place.at == 0 {
            conn.exec_drop(put, (name,)).await.map_err(refuse)?;
        }
        let own = format!("{name}/{}", place.at);
        conn.exec_drop(put, (&own,)).await.map_err(refuse)?;
        for (conn, lock) in [
            (&mut conn, bell(name, place.at)),
            (&mut ear, ear_lock(name, place.at)),
        ] {
            let take = conn.query_first(format!("SELECT GET_LOCK('{lock}', 5)"));
            if take.await.map_err(refuse)? != Some(1) {
                return Err(failed(
                    "the bare MySQL client",
                    format!("{lock} was not free"),
                ));
            }
        }
        Ok(MySqlEntry {
            conn,
            ear,
            name: name.to_owned(),
            own,
            place,
            turn: place.at as u64,
            sits: true,
        })
    }

    /// Removes the table.
    pub(crate) async fn remove(&self) -> Result<()> {
        let mut conn = self.connect().await?;
        let dropped = conn.query_drop("DROP TABLE IF EXISTS fencelock_bare").await;
        dropped.map_err(refuse)?;
        conn.disconnect().await.map_err(refuse)
    }
}

/// A place in the ring.
pub(crate) struct MySqlEntry {
    conn: Conn,
    /// The connection that waits in the server.
    ear: Conn,
    name: String,
    /// The name of its own row.
    own: String,
    place: Place,
    /// Its next turn.
    turn: u64,
    /// Whether it has written its request for that turn.
    sits: bool,
}

impl MySqlEntry {
    /// Asks for the turn, and waits for it. Returns a number that increases with each turn.
    pub(crate) async fn take(&mut self) -> Result<u64> {
        if !self.sits {
            let sit = "UPDATE fencelock_bare SET ends = ends + 1 WHERE name = ?";
            self.conn
                .exec_drop(sit, (&self.own,))
                .await
                .map_err(refuse)?;
            self.sits = true;
        }
        let turn = format!(
            "SELECT ends FROM fencelock_bare WHERE name = '{}'",
            self.name
        );
        let wait = format!(
            "SELECT IF(({turn}) < {}, GET_LOCK('{}', 1), 0); {turn}",
            self.turn,
            bell(&self.name, self.place.at)
        );
        while self.ask(&wait).await?.is_none_or(|now| now < self.turn) {}
        Ok(self.turn + 1)
    }

    /// Runs the request of the ear. Returns the number that its last statement found. `None` if a KILL ended it.
    async fn ask(&mut self, wait: &str) -> Result<Option<u64>> {
        let answer = async {
            let mut answers = self.ear.query_iter(wait).await?;
            answers.collect::<Row>().await?;
            answers.collect::<u64>().await
        };
        match answer.await {
            Ok(found) => Ok(found.first().copied()),
            Err(mysql_async::Error::Server(server)) if server.code == INTERRUPTED => Ok(None),
            Err(error) => Err(refuse(error)),
        }
    }

    /// Ends the turn, and wakes the next place.
    pub(crate) async fn release(&mut self) -> Result<()> {
        let next = ear_lock(&self.name, (self.place.at + 1) % self.place.of);
        let release = format!(
            "UPDATE fencelock_bare SET ends = ends + 1 WHERE name = '{}'; \
             KILL QUERY COALESCE(IS_USED_LOCK('{next}'), 0)",
            self.name
        );
        self.turn += self.place.of as u64;
        self.sits = false;
        match self.conn.query_drop(release).await {
            // At the end of the measurement the next one has left.
            Err(mysql_async::Error::Server(server)) if server.code == NOBODY => Ok(()),
            released => released.map_err(refuse),
        }
    }
}

/// The lock for which a place waits until it is woken. Its other connection holds it.
fn bell(ring: &str, at: usize) -> String {
    format!("bare-bell-{}-{at}", last(ring, 40))
}

/// The lock that the waiting connection of a place holds, by which others find it.
fn ear_lock(ring: &str, at: usize) -> String {
    format!("bare-ear-{}-{at}", last(ring, 40))
}

/// The last bytes of a name: the server accepts locks of at most 64 characters.
fn last(name: &str, most: usize) -> &str {
    &name[name.len().saturating_sub(most)..]
}

fn refuse(error: mysql_async::Error) -> Error {
    failed("the bare MySQL client", error)
}
