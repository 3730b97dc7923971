//! Wakes waiters of other clients, by separate requests: no release waits for them.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{ClaimId, LockName};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::stored::name;
use crate::ear::{Control, EAR, kill, wake};
use crate::request::{NOW, Request, bytes};
use crate::tables::Tables;

/// A control connection that was not used for this long is closed, unless there is an ear.
const IDLE: Duration = Duration::from_secs(60);

/// How long the end of the client waits for the requests that are still to be sent.
const LAST_REQUESTS: Duration = Duration::from_millis(500);

/// Whom to wake.
#[derive(Debug)]
pub(super) enum Whom {
    /// The client with this ear.
    Ear(String),
    /// The client of this waiter.
    Waiter(LockName, ClaimId),
    /// The client of the first waiter.
    First(LockName),
}

/// Wakes other clients' waiters in the background.
pub(super) struct BackgroundWaker {
    tables: Arc<Tables>,
    control: Arc<Control>,
    task: Mutex<Option<(UnboundedSender<Whom>, JoinHandle<()>)>>,
}

impl BackgroundWaker {
    pub(super) fn new(tables: Arc<Tables>, control: Arc<Control>) -> Self {
        let task = Mutex::default();
        Self {
            tables,
            control,
            task,
        }
    }

    pub(super) fn wake(&self, whom: Whom) {
        let mut task = self.task.lock();
        let whom = match &*task {
            None => whom,
            Some((sender, _)) => match sender.send(whom) {
                Ok(()) => return,
                // The task has ended.
                Err(unsent) => unsent.0,
            },
        };
        let (sender, queued) = unbounded_channel();
        // This cannot fail: the receiver exists.
        let _ = sender.send(whom);
        let waking = wake_all(Arc::clone(&self.tables), Arc::clone(&self.control), queued);
        *task = Some((sender, tokio::spawn(waking)));
    }

    /// Waits until everybody is woken, who would otherwise ask only after a while.
    pub(super) async fn finish(&self) {
        let task = self.task.lock().take();
        if let Some((sender, mut task)) = task {
            drop(sender);
            if tokio::time::timeout(LAST_REQUESTS, &mut task)
                .await
                .is_err()
            {
                task.abort();
            }
        }
    }

    pub(super) fn close(&self) {
        if let Some((_, task)) = self.task.lock().take() {
            task.abort();
        }
        self.control.hang_up();
    }
}

async fn wake_all(tables: Arc<Tables>, control: Arc<Control>, mut queued: UnboundedReceiver<Whom>) {
    while let Ok(Some(whom)) = tokio::time::timeout(IDLE, queued.recv()).await {
        if let Err(error) = control.run(&request(&tables, whom)).await {
            tracing::debug!(%error, "a waiter is not woken; it will ask");
        }
    }
    control.hang_up_without_ear();
}

fn request(tables: &Tables, whom: Whom) -> Request {
    let Tables { waiters, ears, .. } = tables;
    let ear = match whom {
        Whom::Ear(ear) => return wake(&ear),
        Whom::Waiter(of, claim) => format!(
            "SELECT CONCAT('{EAR}', ear) FROM {ears} WHERE name = {} AND claim = {} LIMIT 1",
            name(&of),
            bytes(claim.as_bytes())
        ),
        Whom::First(of) => format!(
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
