//! Database servers. Their leases follow the database's clock.

use std::sync::Arc;

use fencelock_testbed::{ClockShim, MariaDb, Postgres, Result};

use super::store::{TWO_HOLDERS, TestStore, jump, of_connections, unknown};
use crate::fault::FaultKind;
use crate::history::Rule;

/// The strategy with leases. The locks of the other strategies are bound to connections.
const LEASE: &str = "lease";

const ADVISORY: &str = "advisory";

/// What both kinds of server have in common.
trait Server: Send {
    fn port(&self) -> u16;
    fn url_at(&self, port: u16) -> String;
    fn pause(&self) -> Result<()>;
    fn resume(&self) -> Result<()>;
    fn kill9(&self);
    fn restart(&mut self) -> Result<()>;
    /// The same without its data.
    fn restart_empty(&mut self) -> Result<()>;
    /// Ends every connection except its own.
    fn kill_connections(&self) -> Result<()>;
}

/// The methods that a server of the testbed already has.
macro_rules! own_methods {
    () => {
        fn port(&self) -> u16 {
            Self::port(self)
        }

        fn url_at(&self, port: u16) -> String {
            Self::url_at(self, port, "lock")
        }

        fn pause(&self) -> Result<()> {
            Self::pause(self)
        }

        fn resume(&self) -> Result<()> {
            Self::resume(self)
        }

        fn kill9(&self) {
            Self::kill9(self);
        }

        fn restart(&mut self) -> Result<()> {
            Self::restart(self)
        }

        fn restart_empty(&mut self) -> Result<()> {
            Self::restart_empty(self)
        }
    };
}

struct Database<S> {
    name: &'static str,
    server: S,
    clock: Arc<ClockShim>,
    strategy: &'static str,
}

pub(super) fn start_mariadb() -> Result<Box<dyn TestStore>> {
    mariadb("mysql", LEASE)
}

pub(super) fn start_get_lock() -> Result<Box<dyn TestStore>> {
    mariadb("mysql-get-lock", "get-lock")
}

pub(super) fn start_mysql_for_update() -> Result<Box<dyn TestStore>> {
    mariadb("mysql-for-update", "for-update")
}

pub(super) fn start_postgres() -> Result<Box<dyn TestStore>> {
    postgres("postgres", LEASE)
}

pub(super) fn start_advisory() -> Result<Box<dyn TestStore>> {
    postgres("postgres-advisory", ADVISORY)
}

fn mariadb(name: &'static str, strategy: &'static str) -> Result<Box<dyn TestStore>> {
    let clock = ClockShim::new()?;
    let server = MariaDb::builder().clock(&clock).start()?;
    Ok(database(name, server, clock, strategy))
}

fn postgres(name: &'static str, strategy: &'static str) -> Result<Box<dyn TestStore>> {
    let clock = ClockShim::new()?;
    let server = Postgres::builder().clock(&clock).start()?;
    Ok(database(name, server, clock, strategy))
}

fn database<S: Server + 'static>(
    name: &'static str,
    server: S,
    clock: Arc<ClockShim>,
    strategy: &'static str,
) -> Box<dyn TestStore> {
    Box::new(Database {
        name,
        server,
        clock,
        strategy,
    })
}

impl Server for MariaDb {
    own_methods!();

    fn kill_connections(&self) -> Result<()> {
        end_connections(self)
    }
}

/// Ends every connection to a MariaDB but its own.
pub(super) fn end_connections(server: &MariaDb) -> Result<()> {
    let others = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user <> 'system user'";
    for id in server.sql(others)?.lines() {
        // The connection may have ended already.
        drop(server.sql(&format!("KILL {id}")));
    }
    Ok(())
}

impl Server for Postgres {
    own_methods!();

    fn kill_connections(&self) -> Result<()> {
        end_sessions(self)
    }
}

/// Ends every connection to a PostgreSQL's locks.
pub(super) fn end_sessions(server: &Postgres) -> Result<()> {
    let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                  WHERE datname = 'lock' AND pid <> pg_backend_pid()";
    server.psql("postgres", others).map(drop)
}

impl<S: Server> TestStore for Database<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.server.port()]
    }

    fn url(&self, ports: &[u16]) -> String {
        let url = self.server.url_at(ports[0]);
        format!("{url}?strategy={}", self.strategy)
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::Restart,
            FaultKind::RestartEmpty,
            FaultKind::KillConnections,
            FaultKind::ClockForward,
        ]
    }

    fn begin(&mut self, kind: FaultKind, _node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.server.pause(),
            FaultKind::Restart | FaultKind::RestartEmpty => {
                self.server.kill9();
                Ok(())
            }
            FaultKind::KillConnections => self.server.kill_connections(),
            FaultKind::ClockForward => jump(&self.clock, true),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, kind: FaultKind, _node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.server.resume(),
            FaultKind::Restart => self.server.restart(),
            FaultKind::RestartEmpty => self.server.restart_empty(),
            FaultKind::KillConnections => Ok(()),
            FaultKind::ClockForward => jump(&self.clock, false),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, kind: FaultKind) -> (Vec<Rule>, &'static str) {
        match kind {
            FaultKind::RestartEmpty => (TWO_HOLDERS.into(), "the server forgot every lock"),
            // docs/stores/postgres.md, "What it assumes".
            FaultKind::ClockForward if self.strategy == ADVISORY => (
                TWO_HOLDERS.into(),
                "a server whose clock is set forward may end a connection, and the lock is free before its holder knows that",
            ),
            _ if self.strategy != LEASE => of_connections(kind),
            FaultKind::ClockForward => (
                TWO_HOLDERS.into(),
                "its clock must not be set forward while a lock is held",
            ),
            _ => (Vec::new(), ""),
        }
    }

    fn window(&self) -> u64 {
        6000
    }

    fn left(&mut self) -> Result<Vec<String>> {
        // `list`, which is called for every store, shows what is held.
        Ok(Vec::new())
    }
}
