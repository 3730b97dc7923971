//! MariaDB: each case has its own database, and a case that breaks the server has its own server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_testbed::{MariaDb, Proxy, Result};

use crate::subject::{Passwords, Server, Store, Subject};

/// The password of every server, so that the cases notice if it is printed.
const PASSWORD: &str = "hunter2-right";
const WRONG: &str = "hunter2-wrong";

/// A strategy on MariaDB.
pub(crate) struct OnMariaDb {
    name: &'static str,
    strategy: &'static str,
    claim_window: Duration,
    /// The server that cases share. It ends with the last case.
    shared: Mutex<Weak<MariaDb>>,
    databases: AtomicU32,
}

/// Rows that expire.
pub(crate) static LEASE: OnMariaDb = OnMariaDb::new("mysql", "lease", Duration::from_secs(6));

/// Rows that a transaction keeps locked.
pub(crate) static FOR_UPDATE: OnMariaDb =
    OnMariaDb::new("mysql-for-update", "for-update", Duration::from_secs(2));
/// Locks that the server keeps for a connection.
pub(crate) static GET_LOCK: OnMariaDb =
    OnMariaDb::new("mysql-get-lock", "get-lock", Duration::from_secs(2));

impl OnMariaDb {
    const fn new(name: &'static str, strategy: &'static str, claim_window: Duration) -> Self {
        Self {
            name,
            strategy,
            claim_window,
            shared: Mutex::new(Weak::new()),
            databases: AtomicU32::new(0),
        }
    }

    fn shared(&self) -> Result<Arc<MariaDb>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Ok(server);
        }
        let server = Arc::new(start()?);
        server.sql("GRANT ALL ON `case\\_%`.* TO 'lock'@'%'")?;
        *shared = Arc::downgrade(&server);
        Ok(server)
    }
}

fn start() -> Result<MariaDb> {
    MariaDb::builder().password(PASSWORD).start()
}

#[async_trait]
impl Subject for OnMariaDb {
    fn name(&self) -> &'static str {
        self.name
    }

    fn has_server(&self) -> bool {
        true
    }

    fn claim_window(&self) -> Duration {
        self.claim_window
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        if server {
            let server = start()?;
            return Ok(Box::new(Own {
                proxy: Proxy::start(server.port())?,
                port: server.port(),
                server: Mutex::new(server),
                strategy: self.strategy,
            }));
        }
        let server = self.shared()?;
        let number = self.databases.fetch_add(1, Ordering::SeqCst);
        let database = format!("case_{number}");
        server.sql(&format!("CREATE DATABASE {database}"))?;
        Ok(Box::new(Database {
            server,
            database,
            strategy: self.strategy,
        }))
    }
}

/// The options of a store's URL. If each waiter needs a connection, there are enough for all waiters of a case.
fn options(strategy: &str) -> String {
    match strategy {
        "lease" => "strategy=lease".to_owned(),
        _ => format!("strategy={strategy}&max-connections=64"),
    }
}

/// The tables without permanent rows.
const EMPTIED: &str = "table_name NOT REGEXP '_(store|counter|draws|record)$'";

/// The number of rows in a database, except permanent rows, whose number does not depend on the number of locks.
fn rows(server: &MariaDb, database: &str) -> Result<u64> {
    let tables = server.sql(&format!(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}' AND {EMPTIED}"
    ))?;
    let mut counts = tables
        .lines()
        .map(|table| format!("(SELECT COUNT(*) FROM {database}.{table})"));
    let Some(first) = counts.next() else {
        return Ok(0);
    };
    let sum = counts.fold(first, |sum, count| format!("{sum} + {count}"));
    let sum = server.sql(&format!("SELECT {sum}"))?;
    Ok(sum.parse().unwrap_or(u64::MAX))
}

/// A database on the shared server.
struct Database {
    server: Arc<MariaDb>,
    database: String,
    strategy: &'static str,
}

#[async_trait]
impl Store for Database {
    fn url(&self) -> String {
        let url = self.server.url_at(self.server.port(), &self.database);
        format!("{url}?{}", options(self.strategy))
    }

    async fn leftovers(&self) -> Result<u64> {
        rows(&self.server, &self.database)
    }
}

/// A server for one case.
struct Own {
    server: Mutex<MariaDb>,
    port: u16,
    proxy: Proxy,
    strategy: &'static str,
}

impl Own {
    fn server(&self) -> MutexGuard<'_, MariaDb> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn url(&self, port: u16, password: &str) -> String {
        let options = options(self.strategy);
        format!("mysql://lock:{password}@127.0.0.1:{port}/lock?{options}")
    }
}

#[async_trait]
impl Store for Own {
    fn url(&self) -> String {
        self.url(self.port, PASSWORD)
    }

    async fn leftovers(&self) -> Result<u64> {
        rows(&self.server(), "lock")
    }

    fn server(&self) -> Option<&dyn Server> {
        Some(self)
    }
}

impl Server for Own {
    fn pause(&self) -> Result<()> {
        self.server().pause()
    }

    fn resume(&self) -> Result<()> {
        self.server().resume()
    }

    fn kill9(&self) {
        self.server().kill9();
    }

    fn restart(&self) -> Result<()> {
        self.server().restart()
    }

    fn restart_empty(&self) -> Result<()> {
        self.server().restart_empty()
    }

    fn erase(&self) -> Result<()> {
        let server = self.server();
        let emptied = server.sql(&format!(
            "SELECT CONCAT('TRUNCATE TABLE `lock`.', table_name) FROM information_schema.tables WHERE table_schema = 'lock' AND {EMPTIED}"
        ))?;
        let emptied = emptied.lines().collect::<Vec<_>>().join("; ");
        if emptied.is_empty() {
            return Ok(());
        }
        server.sql(&emptied).map(drop)
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn proxied_url(&self) -> String {
        self.url(self.proxy.port(), PASSWORD)
    }

    fn password_urls(&self) -> Option<Passwords> {
        Some(Passwords {
            right: PASSWORD.to_owned(),
            right_url: self.url(self.port, PASSWORD),
            wrong: WRONG.to_owned(),
            wrong_url: self.url(self.port, WRONG),
        })
    }
}
