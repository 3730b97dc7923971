use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, EventSource, EventStream, Grant, HeldClaim, Inspect, Leave, Place, Record, RecordChange,
    Renewal, Standing, Withdrawn,
};
use fencelock_core::support::Mutex;
use fencelock_core::{Engine, Promises, Result};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::background::{check_connections, clean_up};
use super::control::{Control, on_control};
use super::dialect::Dialect;
use super::entry::Entry;
use super::pool::Pool;
use super::record::record_lasting;
use super::state::State;
use crate::record_action;

/// The engine on a dialect.
pub struct BoundEngine<D: Dialect> {
    state: Arc<State<D>>,
    events: EventSource,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl<D: Dialect> BoundEngine<D> {
    /// Opens the store: makes the control connection.
    pub async fn open(dialect: D) -> Result<Self> {
        let dialect = Arc::new(dialect);
        let settings = dialect.settings();
        let (sender, events) = EventSource::channel();
        let (to_record, lasting) = mpsc::unbounded_channel();
        let control = Control::new(Arc::clone(&dialect), settings);
        let promises = control.open().await?;
        let state = Arc::new(State {
            pool: Pool::new(Arc::clone(&dialect), settings, sender),
            dialect,
            promises,
            settings,
            control,
            entries: Mutex::default(),
            to_record,
            used: AtomicBool::new(true),
            closed: AtomicBool::new(false),
        });
        let mut tasks = Vec::new();
        // An inspecting client writes nothing, and so does not clean up.
        if !state.dialect.inspect_only() {
            tasks.push(tokio::spawn(record_lasting(
                Arc::downgrade(&state),
                lasting,
            )));
            tasks.push(tokio::spawn(clean_up(Arc::downgrade(&state))));
            if let Some(every) = state.dialect.check_interval() {
                tasks.push(tokio::spawn(check_connections(
                    Arc::downgrade(&state),
                    every,
                )));
            }
        }
        Ok(Self {
            state,
            events,
            tasks: Mutex::new(tasks),
        })
    }
}

#[async_trait]
impl<D: Dialect> Engine for BoundEngine<D> {
    fn promises(&self) -> &Promises {
        &self.state.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let state = &self.state;
        state.check_open()?;
        state.check_writes("a lock")?;
        claim.check_floor(&*state.dialect, &state.promises)?;
        state.used.store(true, Ordering::Relaxed);
        let entry = Arc::clone(state.entries.lock().entry(claim.id).or_default());
        let mut entry = entry.lock().await;
        let standing = state.place(claim, &mut entry).await;
        if matches!(*entry, Entry::Empty) {
            state.entries.lock().remove(&claim.id);
        }
        standing
    }

    async fn wait(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        let Some(entry) = self.state.entry(claim.id) else {
            return Ok(None);
        };
        let entry = entry.lock().await;
        match &*entry {
            Entry::Queued(ticket) => {
                let ticket = Arc::clone(ticket);
                drop(entry);
                ticket.turn().await;
            }
            Entry::Waiting(waiting) => {
                let outcome = Arc::clone(&waiting.outcome);
                drop(entry);
                outcome.finished().await;
            }
            _ => {}
        }
        Ok(None)
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.state.used.store(true, Ordering::Relaxed);
        self.state.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let state = &self.state;
        let Some(entry) = state.entry(claim.id) else {
            return Ok(Withdrawn::NotOwner);
        };
        let withdrawn = state.withdraw(claim, how, &mut *entry.lock().await).await?;
        state.entries.lock().remove(&claim.id);
        Ok(withdrawn)
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        let state = &self.state;
        state.check_open()?;
        if change.is_some() {
            state.check_writes("a change of the record")?;
        }
        let action = record_action(change);
        on_control!(state.control, action, store_record(scope, change))
    }

    /// Holds whose connection ended. A request to let go arrives with a renewal.
    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        &*self.state
    }

    async fn close(&self) -> Result<()> {
        let state = &self.state;
        if state.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.abort();
        }
        state.entries.lock().clear();
        state.pool.close();
        if state.used.load(Ordering::Relaxed) && !state.dialect.inspect_only() {
            last_clean_up(state).await;
        }
        state.control.close().await;
        Ok(())
    }
}

async fn last_clean_up<D: Dialect>(state: &State<D>) {
    if let Err(error) = on_control!(state.control, "cleaning up", clean_up(true)) {
        tracing::debug!(store = %state.dialect, %error, "another process will clean up what this one left");
    }
}

impl<D: Dialect> Drop for BoundEngine<D> {
    fn drop(&mut self) {
        // Waits in the background share the rest.
        self.state.entries.lock().clear();
        self.state.pool.close();
        let is_due =
            !self.state.closed.load(Ordering::SeqCst) && !self.state.dialect.inspect_only();
        if is_due && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let state = Arc::clone(&self.state);
            runtime.spawn(async move { last_clean_up(&state).await });
        }
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }
}

impl<D: Dialect> fmt::Display for BoundEngine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.state.dialect, f)
    }
}

impl<D: Dialect> fmt::Debug for BoundEngine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoundEngine({})", self.state.dialect)
    }
}
