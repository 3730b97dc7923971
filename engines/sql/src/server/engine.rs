use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, EventSource, EventStream, Grant, HeldClaim, Inspect, Leave, Place, Record, RecordChange,
    Renewal, Standing, Withdrawn,
};
use fencelock_core::support::{Contention, Mutex};
use fencelock_core::{ClaimId, Engine, Error, Promises, Result};
use tokio::task::AbortHandle;

use super::dialect::Dialect;
use super::entry::Entries;
use super::pool::{Lane, Pool, attempt};
use super::state::State;
use crate::{Settings, record_action};

/// Leases in the tables of a database server.
pub struct LeaseEngine<D: Dialect> {
    state: Arc<State<D>>,
    promises: Promises,
    events: EventSource,
    tasks: Vec<AbortHandle>,
}

impl<D: Dialect> LeaseEngine<D> {
    /// Connects for the first time.
    ///
    /// # Errors
    /// The dialect's; [`Error::Unavailable`] if the server does not answer in time.
    pub async fn open(dialect: D, settings: Settings) -> Result<Self> {
        let connected = tokio::time::timeout(settings.connect_timeout, dialect.connect()).await;
        let session = connected.map_err(|_| {
            let cause = format!(
                "no answer within {:?}; is the server up and reachable (connect-timeout)?",
                settings.connect_timeout
            );
            Error::unavailable(&dialect, "connecting", cause)
        })??;
        let promises = dialect.promises();
        let (sender, events) = EventSource::channel();
        let connections = settings.connections.get();
        let state = Arc::new(State {
            raised: AtomicU64::new(0),
            contention: Contention::default(),
            pool: Pool::new(dialect, settings.response_timeout, connections),
            entries: Entries::default(),
            unsettled: Mutex::default(),
            events: sender,
        });
        state.pool.put(session);
        let mut tasks = Vec::new();
        // An inspecting client removes nothing and receives nothing.
        if !state.pool.dialect.inspect_only() {
            let reap = Arc::clone(&state).reap_now_and_then();
            tasks.push(tokio::spawn(reap).abort_handle());
            tasks.push(tokio::spawn(Arc::clone(&state).listen()).abort_handle());
        }
        Ok(Self {
            state,
            promises,
            events,
            tasks,
        })
    }
}

#[async_trait]
impl<D: Dialect> Engine for LeaseEngine<D> {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    fn identity(&self) -> String {
        self.state.pool.dialect.identity()
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.state.place(claim).await
    }

    /// Returns when this process ends a hold, or a message comes, perhaps with the grant, if the database can deliver messages.
    /// Otherwise it polls with growing, random intervals.
    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.state.wait(claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.state.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.state.withdraw(claim, how).await
    }

    fn forget(&self, claim: &ClaimId) {
        self.state.forget(*claim);
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        if change.is_some() {
            self.state.check_writes("a change of the record")?;
        }
        let pool = &self.state.pool;
        let mut call = pool.call(record_action(change));
        Ok(attempt!(call, Lane::Others, |session| {
            pool.dialect.record(session, scope, change).await
        }))
    }

    /// Changes of a hold by this engine are reported at once. Changes by others are reported by a message of the database, or
    /// with the next renewal.
    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        &*self.state
    }

    async fn close(&self) -> Result<()> {
        for task in &self.tasks {
            task.abort();
        }
        self.state.pool.dialect.finish().await;
        self.state.pool.dialect.close();
        self.state.pool.close();
        Ok(())
    }
}

impl<D: Dialect> Drop for LeaseEngine<D> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.state.pool.dialect.close();
    }
}

impl<D: Dialect> fmt::Display for LeaseEngine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.state.pool.dialect, f)
    }
}

impl<D: Dialect> fmt::Debug for LeaseEngine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.state.pool.dialect, f)
    }
}
