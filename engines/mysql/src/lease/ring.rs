//! Wakes waiters of other clients, by requests of their own: no release waits for them.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{ClaimId, LockName};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::stored::name;
use crate::ear::{Control, EAR, kill, ring};
use crate::request::{NOW, Request, bytes};
use crate::tables::Tables;

/// A control connection that rang nobody for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Whom to wake.
#[derive(Debug)]
pub(super) enum Ring {
    /// The client with this ear.
    Ear(String),
    /// The client of this waiter.
    Waiter(LockName, ClaimId),
    /// The client of the first waiter.
    First(LockName),
}

/// Rings in the background.
pub(super) struct Ringer {
    tables: Arc<Tables>,
    control: Arc<Control>,
    task: Mutex<Option<(UnboundedSender<Ring>, AbortHandle)>>,
}

impl Ringer {
    pub(super) fn new(tables: Arc<Tables>, control: Arc<Control>) -> Self {
        let task = Mutex::default();
        Self {
            tables,
            control,
            task,
        }
    }

    pub(super) fn ring(&self, ring: Ring) {
        let mut task = self.task.lock();
        let ring = match &*task {
            None => ring,
            Some((sender, _)) => match sender.send(ring) {
                Ok(()) => return,
                // The task has ended.
                Err(unsent) => unsent.0,
            },
        };
        let (sender, rings) = unbounded_channel();
        // The receiver is there.
        let _ = sender.send(ring);
        let ringing = ring_all(Arc::clone(&self.tables), Arc::clone(&self.control), rings);
        *task = Some((sender, tokio::spawn(ringing).abort_handle()));
    }

    pub(super) fn close(&self) {
        if let Some((_, task)) = self.task.lock().take() {
            task.abort();
        }
        self.control.hang_up();
    }
}

async fn ring_all(tables: Arc<Tables>, control: Arc<Control>, mut rings: UnboundedReceiver<Ring>) {
    while let Ok(Some(ring)) = tokio::time::timeout(IDLE, rings.recv()).await {
        if let Err(error) = control.run(&request(&tables, ring)).await {
            tracing::debug!(%error, "a waiter is not woken; it will ask");
        }
    }
}

fn request(tables: &Tables, whom: Ring) -> Request {
    let Tables { waiters, ears, .. } = tables;
    let ear = match whom {
        Ring::Ear(ear) => return ring(&ear),
        Ring::Waiter(of, claim) => format!(
            "SELECT CONCAT('{EAR}', ear) FROM {ears} WHERE name = {} AND claim = {} LIMIT 1",
            name(&of),
            bytes(claim.as_bytes())
        ),
        Ring::First(of) => format!(
            "SELECT CONCAT('{EAR}', e.ear) FROM {waiters} AS w LEFT JOIN {ears} AS e \
             ON e.name = w.name AND e.ticket = w.ticket AND e.claim = w.claim \
             WHERE w.name = {} AND w.expiry > {NOW} ORDER BY w.ticket LIMIT 1",
            name(&of)
        ),
    };
    // KILL takes no subquery.
    let mut request = Request::of(format!("SET @fencelock_ear = ({ear})"));
    request.push(kill("COALESCE(@fencelock_ear, 'fencelock-none')"));
    request
}
