//! Database servers. Their leases are on the database's clock.

use std::sync::Arc;

use fencelock_testbed::{ClockShim, MariaDb, Postgres, Result};

use crate::beds::{Bed, TWO_HOLDERS, jump, of_connections, unknown};
use crate::harm::Harm;
use crate::history::Rule;

/// Rows that expire, by the database's clock. The other strategies' locks hang on connections.
const LEASE: &str = "lease";

/// What both kinds of server can do.
trait Server: Send {
    fn port(&self) -> u16;
    fn url_at(&self, port: u16) -> String;
    fn pause(&self) -> Result<()>;
    fn resume(&self) -> Result<()>;
    fn kill9(&self);
    fn restart(&mut self) -> Result<()>;
    /// The same with nothing of what it had.
    fn restart_empty(&mut self) -> Result<()>;
    /// Ends every connection but its own.
    fn kill_connections(&self) -> Result<()>;
}

struct Database<S> {
    name: &'static str,
    server: S,
    clock: Arc<ClockShim>,
    strategy: &'static str,
}

pub(super) fn start_mariadb() -> Result<Box<dyn Bed>> {
    mariadb("mysql", LEASE)
}

pub(super) fn start_get_lock() -> Result<Box<dyn Bed>> {
    mariadb("mysql-get-lock", "get-lock")
}

pub(super) fn start_mysql_for_update() -> Result<Box<dyn Bed>> {
    mariadb("mysql-for-update", "for-update")
}

pub(super) fn start_postgres() -> Result<Box<dyn Bed>> {
    postgres("postgres", LEASE)
}

pub(super) fn start_advisory() -> Result<Box<dyn Bed>> {
    postgres("postgres-advisory", "advisory")
}

fn mariadb(name: &'static str, strategy: &'static str) -> Result<Box<dyn Bed>> {
    let clock = ClockShim::new()?;
    let server = MariaDb::builder().clock(&clock).start()?;
    Ok(database(name, server, clock, strategy))
}

fn postgres(name: &'static str, strategy: &'static str) -> Result<Box<dyn Bed>> {
    let clock = ClockShim::new()?;
    let server = Postgres::builder().clock(&clock).start()?;
    Ok(database(name, server, clock, strategy))
}

fn database<S: Server + 'static>(
    name: &'static str,
    server: S,
    clock: Arc<ClockShim>,
    strategy: &'static str,
) -> Box<dyn Bed> {
    Box::new(Database {
        name,
        server,
        clock,
        strategy,
    })
}

impl Server for MariaDb {
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

    fn kill_connections(&self) -> Result<()> {
        let others = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user <> 'system user'";
        for id in self.sql(others)?.lines() {
            // It may have ended by itself meanwhile.
            drop(self.sql(&format!("KILL {id}")));
        }
        Ok(())
    }
}

impl Server for Postgres {
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

    fn kill_connections(&self) -> Result<()> {
        let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                      WHERE datname = 'lock' AND pid <> pg_backend_pid()";
        self.psql("postgres", others).map(drop)
    }
}

impl<S: Server> Bed for Database<S> {
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

    fn harms(&self) -> Vec<Harm> {
        vec![
            Harm::Pause,
            Harm::Restart,
            Harm::RestartEmpty,
            Harm::KillConnections,
            Harm::ClockForward,
        ]
    }

    fn begin(&mut self, harm: Harm, _node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.server.pause(),
            Harm::Restart | Harm::RestartEmpty => {
                self.server.kill9();
                Ok(())
            }
            Harm::KillConnections => self.server.kill_connections(),
            Harm::ClockForward => jump(&self.clock, true),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, harm: Harm, _node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.server.resume(),
            Harm::Restart => self.server.restart(),
            Harm::RestartEmpty => self.server.restart_empty(),
            Harm::KillConnections => Ok(()),
            Harm::ClockForward => jump(&self.clock, false),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, harm: Harm) -> (Vec<Rule>, &'static str) {
        match harm {
            Harm::RestartEmpty => (TWO_HOLDERS.into(), "the server forgot every lock"),
            _ if self.strategy != LEASE => of_connections(harm),
            Harm::ClockForward => (
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
        // The listing of locks, which is asked of every store, tells what is held.
        Ok(Vec::new())
    }
}
