//! The state of the lease strategy, and its connections.

use std::fmt;
use std::sync::Arc;

use fencelock_core::support::Mutex;
use fencelock_core::{Error, LockName, Promises, Result};
use fencelock_sql::bound::CloseSignal;
use fencelock_sql::server::Failure;
use tokio_postgres::Row;

use super::listen::Ear;
use super::stored::promises;
use crate::connection::{Hosts, Session, Values, columns};
use crate::error::{failure, is_missing};
use crate::server::limits;

/// A PostgreSQL database with the tables of the lease engine.
pub(crate) struct Leases {
    pub(super) hosts: Arc<Hosts>,
    pub(super) promises: Mutex<Option<Promises>>,
    /// The database and the schema of the tables.
    tables: Mutex<Option<[String; 2]>>,
    pub(super) ear: Ear,
}

impl Leases {
    pub(crate) fn new(hosts: Hosts) -> Self {
        let hosts = Arc::new(hosts);
        Self {
            ear: Ear::new(Arc::clone(&hosts)),
            hosts,
            promises: Mutex::default(),
            tables: Mutex::default(),
        }
    }

    /// A connection that is ready.
    pub(super) async fn open_session(&self) -> Result<Session> {
        let mut session = self.hosts.connect(&CloseSignal::new(None), None).await?;
        // A database may have it off, but a lost commit would be a lost grant.
        const SAFE: &str = "\
            SELECT set_config('synchronous_commit', CASE WHEN setting = 'off' THEN 'on' ELSE setting END, false) \
            FROM (SELECT current_setting('synchronous_commit') AS setting) AS now";
        let safe = session.client.batch_execute(SAFE).await;
        safe.map_err(|error| self.hosts.error("preparing a connection", error))?;
        let known = self.promises.lock().is_some();
        if !known {
            self.hosts.rule_out_pooler(&session).await?;
            *self.tables.lock() = self.find_tables(&session).await?;
            let limits = limits(&self.hosts, &mut session, self.hosts.config.strategy).await?;
            let durable = !limits
                .iter()
                .any(|limit| limit.what.contains("loss of power"));
            *self.promises.lock() = Some(promises(limits, durable));
        }
        Ok(session)
    }

    /// The database of the connection, and the schema in which it finds the tables. Each user may find others.
    async fn find_tables(&self, session: &Session) -> Result<Option<[String; 2]>> {
        const FIND: &str = "\
            SELECT current_database(), coalesce((SELECT nspname FROM pg_class AS found \
                JOIN pg_namespace AS schema ON schema.oid = found.relnamespace \
                WHERE found.oid = to_regclass('fencelock_locks')), current_schema(), '')";
        let found = session.client.simple_query(FIND).await;
        let found = found.map_err(|error| self.hosts.error("finding the tables", error))?;
        Ok(columns(&found).and_then(|row| row.try_into().ok()))
    }

    /// The URL, and the database and schema unless the URL says the database and the schema is the usual one.
    pub(super) fn identity_of_tables(&self) -> String {
        let url = self.to_string();
        match &*self.tables.lock() {
            Some([database, schema])
                if schema != "public" || !url.ends_with(&format!("/{database}")) =>
            {
                format!("{url}, database {database:?}, schema {schema:?}")
            }
            _ => url,
        }
    }

    pub(super) async fn query(
        &self,
        session: &mut Session,
        action: &str,
        sql: &'static str,
        values: Values<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let config = &self.hosts.config;
        match session.try_query(sql, values).await {
            // An inspecting client creates no tables, and sees nothing where there are none.
            Err(error) if config.inspect_only && is_missing(&error) => Ok(Vec::new()),
            rows => rows.map_err(|error| failure(&config.store, action, error)),
        }
    }

    pub(super) fn unreadable(&self, name: &LockName) -> Failure {
        let why = "its rows were stored by a newer version of fencelock, or are damaged; use that version, or another name";
        Failure::Final(Error::not_a_lock(&self.hosts, name, why))
    }
}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.hosts, f)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leases({})", self.hosts)
    }
}
