//! PostgreSQL: each case has its own database on a server that cases share, or a server of its own. Each strategy is a
//! subject.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_testbed::{Postgres, Proxy, Result};

use crate::subject::{Passwords, Server, Store, Subject};

/// The password of every server, so that the cases notice if it is printed.
const PASSWORD: &str = "hunter2-right";
const WRONG: &str = "hunter2-wrong";

/// The tables whose rows exist only while a name is used.
const ROWS: &str = "\
    SELECT coalesce(sum((xpath('/row/n/text()', query_to_xml(format('SELECT count(*) AS n FROM %I', relname), false, true, '')) \
    )[1]::text::bigint), 0) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'fencelock%' AND relname NOT IN ('fencelock_store', 'fencelock_record', \
    'fencelock_bound_record')";

/// Deletes everything, as an administrator might.
const ERASE: &str = "\
    DO $$ DECLARE thing record; BEGIN \
    FOR thing IN SELECT relname, relkind FROM pg_class WHERE relname LIKE 'fencelock%' AND relkind IN ('r', 'S') LOOP \
    EXECUTE format('DROP %s %I CASCADE', CASE thing.relkind WHEN 'r' THEN 'TABLE' ELSE 'SEQUENCE' END, thing.relname); \
    END LOOP; END $$";

pub(crate) struct OnPostgres {
    name: &'static str,
    strategy: &'static str,
}

pub(crate) static LEASE: OnPostgres = OnPostgres {
    name: "postgres",
    strategy: "lease",
};
pub(crate) static ADVISORY: OnPostgres = OnPostgres {
    name: "postgres-advisory",
    strategy: "advisory",
};

/// The server that cases share, as long as a case uses it.
static SHARED: Mutex<Weak<Mutex<Postgres>>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

fn shared() -> Result<Arc<Mutex<Postgres>>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = shared.upgrade() {
        return Ok(server);
    }
    let server = Arc::new(Mutex::new(Postgres::builder().password(PASSWORD).start()?));
    *shared = Arc::downgrade(&server);
    Ok(server)
}

#[async_trait]
impl Subject for OnPostgres {
    fn name(&self) -> &'static str {
        self.name
    }

    fn has_server(&self) -> bool {
        true
    }

    fn claim_window(&self) -> Duration {
        Duration::from_secs(if self.strategy == "lease" { 6 } else { 2 })
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        let (postgres, database) = if server {
            let postgres = Postgres::builder().password(PASSWORD).start()?;
            (Arc::new(Mutex::new(postgres)), "lock".to_owned())
        } else {
            let postgres = shared()?;
            let database = format!("case_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
            lock(&postgres).create_database(&database)?;
            (postgres, database)
        };
        let port = lock(&postgres).port();
        Ok(Box::new(Database {
            proxy: server.then(|| Proxy::start(port)).transpose()?,
            postgres,
            port,
            database,
            strategy: self.strategy,
        }))
    }
}

fn lock(postgres: &Mutex<Postgres>) -> MutexGuard<'_, Postgres> {
    postgres.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Database {
    postgres: Arc<Mutex<Postgres>>,
    port: u16,
    database: String,
    strategy: &'static str,
    /// The proxy before a server for one case.
    proxy: Option<Proxy>,
}

impl Database {
    fn url_at(&self, port: u16, password: &str) -> String {
        let (database, strategy) = (&self.database, self.strategy);
        format!(
            "postgres://lock:{password}@127.0.0.1:{port}/{database}?strategy={strategy}&max-connections=64"
        )
    }
}

#[async_trait]
impl Store for Database {
    fn url(&self) -> String {
        self.url_at(self.port, PASSWORD)
    }

    async fn leftovers(&self) -> Result<u64> {
        let rows = lock(&self.postgres).psql(&self.database, ROWS)?;
        Ok(rows.parse().unwrap_or(u64::MAX))
    }

    fn server(&self) -> Option<&dyn Server> {
        self.proxy.is_some().then_some(self)
    }
}

impl Server for Database {
    fn pause(&self) -> Result<()> {
        lock(&self.postgres).pause()
    }

    fn resume(&self) -> Result<()> {
        lock(&self.postgres).resume()
    }

    fn kill9(&self) {
        lock(&self.postgres).kill9();
    }

    fn restart(&self) -> Result<()> {
        lock(&self.postgres).restart()
    }

    fn restart_empty(&self) -> Result<()> {
        lock(&self.postgres).restart_empty()
    }

    fn erase(&self) -> Result<()> {
        lock(&self.postgres).psql(&self.database, ERASE).map(drop)
    }

    fn proxy(&self) -> &Proxy {
        self.proxy
            .as_ref()
            .expect("a case with a server has a proxy before it")
    }

    fn proxied_url(&self) -> String {
        self.url_at(self.proxy().port(), PASSWORD)
    }

    fn password_urls(&self) -> Option<Passwords> {
        Some(Passwords {
            right: PASSWORD.to_owned(),
            right_url: self.url_at(self.port, PASSWORD),
            wrong: WRONG.to_owned(),
            wrong_url: self.url_at(self.port, WRONG),
        })
    }
}
