//! A lock on PostgreSQL without a library, by the store's strategy: one INSERT of a unique name and one DELETE; an
//! advisory lock. All statements prepared.

use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};
use tokio_postgres::{Client, Config, NoTls};

use super::{check_plain, failed, statements};

/// How to reach the server; each task has a connection of its own.
#[derive(Clone)]
pub(crate) struct BarePostgres {
    config: Config,
    strategy: String,
}

impl BarePostgres {
    /// A table next to the store's.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let mut parts = StoreUrl::parse(url)?;
        check_plain(&mut parts)?;
        let password = parts.take_password()?;
        let strategy = parts.take("strategy").unwrap_or_else(|| "lease".to_owned());
        let host = parts.hosts.first().map_or("127.0.0.1", String::as_str);
        let (name, port) = host.split_once(':').unwrap_or((host, "5432"));
        let port = port.parse();
        let mut config = Config::new();
        config.host(name);
        config.port(port.map_err(|_| parts.refuse("its port is not a number"))?);
        config.user(parts.user.as_deref().unwrap_or("postgres"));
        config.dbname(&parts.path);
        if let Some(password) = password {
            config.password(password);
        }
        let this = Self { config, strategy };
        let table = "CREATE TABLE IF NOT EXISTS fencelock_bare (name text PRIMARY KEY, value text NOT NULL, ends bigint NOT NULL)";
        this.connect()
            .await?
            .batch_execute(table)
            .await
            .map_err(refuse)?;
        Ok(this)
    }

    async fn connect(&self) -> Result<Client> {
        let (client, connection) = self.config.connect(NoTls).await.map_err(refuse)?;
        // The task ends with its client.
        drop(tokio::spawn(connection));
        Ok(client)
    }

    /// Locks `names` in turn until `until`. Returns the number of pairs.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let client = self.connect().await?;
        let value = format!("bare:{:032x}", Clock::Boot.now().as_nanos());
        let insert = "INSERT INTO fencelock_bare (name, value, ends) VALUES ($1, $2, 30000)";
        let delete = "DELETE FROM fencelock_bare WHERE name = $1 AND value = $2";
        let mut pairs = 0;
        match self.strategy.as_str() {
            "advisory" => {
                let take = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
                let release = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
                let take = client.prepare(take).await.map_err(refuse)?;
                let release = client.prepare(release).await.map_err(refuse)?;
                for name in statements(names, until) {
                    client.query(&take, &[name]).await.map_err(refuse)?;
                    client.query(&release, &[name]).await.map_err(refuse)?;
                    pairs += 1;
                }
            }
            _ => {
                let take = client.prepare(insert).await.map_err(refuse)?;
                let release = client.prepare(delete).await.map_err(refuse)?;
                for name in statements(names, until) {
                    client
                        .execute(&take, &[name, &value])
                        .await
                        .map_err(refuse)?;
                    client
                        .execute(&release, &[name, &value])
                        .await
                        .map_err(refuse)?;
                    pairs += 1;
                }
            }
        }
        Ok(pairs)
    }

    /// Times of `SELECT 1`, in nanoseconds.
    pub(crate) async fn round_trips(&self, count: usize) -> Result<Vec<f64>> {
        let client = self.connect().await?;
        let ask = client.prepare("SELECT 1").await.map_err(refuse)?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begun = Clock::Boot.now();
            client.query(&ask, &[]).await.map_err(refuse)?;
            times.push(Clock::Boot.now().since(begun).as_nanos() as f64);
        }
        Ok(times)
    }

    /// How many transactions have ended in the database. The server counts those of the last second late.
    pub(crate) async fn commands_so_far(&self) -> Result<u64> {
        let client = self.connect().await?;
        let ask = "SELECT (xact_commit + xact_rollback)::text FROM pg_stat_database WHERE datname = current_database()";
        let row = client.query_one(ask, &[]).await.map_err(refuse)?;
        let count: String = row.try_get(0).map_err(refuse)?;
        count
            .parse()
            .map_err(|error| failed("pg_stat_database", error))
    }

    /// Removes the table.
    pub(crate) async fn remove(&self) -> Result<()> {
        let client = self.connect().await?;
        let dropped = client.batch_execute("DROP TABLE IF EXISTS fencelock_bare");
        dropped.await.map_err(refuse)
    }
}

fn refuse(error: tokio_postgres::Error) -> Error {
    failed("the bare PostgreSQL client", error)
}
