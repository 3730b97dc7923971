//! The state of the advisory strategy, and its connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Result;
use fencelock_sql::bound::CloseSignal;

use crate::connection::{Hosts, Session};

/// Locks that are bound to a session.
pub(crate) struct Advisory {
    pub(super) hosts: Hosts,
}

impl Advisory {
    pub(crate) const fn new(hosts: Hosts) -> Self {
        Self { hosts }
    }

    /// Sets the idle timeout of the connection, unless it is set already. Returns whether a request was sent.
    pub(super) async fn set_idle(&self, session: &mut Session, idle: Duration) -> Result<bool> {
        if session.idle == Some(idle) {
            return Ok(false);
        }
        session.idle = None;
        let millis = idle.as_millis().max(1);
        let sql = format!("SET idle_session_timeout = {millis}");
        let set = session.client.batch_execute(&sql).await;
        set.map_err(|error| self.hosts.error("setting an idle timeout", error))?;
        session.idle = Some(idle);
        Ok(true)
    }

    /// A connection that is ready.
    pub(super) async fn open_session(&self, signal: Arc<CloseSignal>) -> Result<Session> {
        let session = self.hosts.connect(&signal, None).await?;
        if self.hosts.config.inspect_only {
            return Ok(session);
        }
        // Records of connections need not survive a crash of the server, so commits may be asynchronous.
        let relax = session
            .client
            .batch_execute("SET synchronous_commit = off")
            .await;
        relax.map_err(|error| self.hosts.error("preparing a connection", error))?;
        Ok(session)
    }
}

impl fmt::Display for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.hosts, f)
    }
}

impl fmt::Debug for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Advisory({})", self.hosts)
    }
}
