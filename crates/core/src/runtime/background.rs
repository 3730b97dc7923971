//! The background work of a client: work that a caller began and no longer awaits, and its end.

use crate::support::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Whether a client was closed.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    closed: AtomicBool,
    news: Notify,
}

impl Closing {
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.news.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns once the client is closed.
    pub(crate) async fn closed(&self) {
        let closed = self.news.notified();
        tokio::pin!(closed);
        closed.as_mut().enable();
        if !self.is_closed() {
            closed.await;
        }
    }
}

#[derive(Debug)]
pub(crate) struct Background {
    runtime: Handle,
    /// How much work there is, and a notification of its end.
    count: AtomicUsize,
    ended: Notify,
    /// Tasks that live as long as the client.
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Background {
    pub(crate) fn new(runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            count: AtomicUsize::new(0),
            ended: Notify::new(),
            tasks: Mutex::default(),
        })
    }

    /// Runs a task until it ends or the client does.
    pub(crate) fn run_with_client(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.runtime.spawn(task).abort_handle();
        self.tasks.lock().push(task);
    }

    /// Ends the tasks that live as long as the client.
    pub(crate) fn stop(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    /// Runs a task that nothing waits for, and that may be dropped at any time.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Counts as work until it is dropped. Closing the client waits for all work.
    pub(crate) fn working(self: &Arc<Self>) -> Working {
        self.count.fetch_add(1, Ordering::SeqCst);
        Working(Arc::clone(self))
    }

    /// Does some work in the background; closing the client waits for that.
    pub(crate) fn run(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        // The count goes down even if the work panics or the runtime is shut down.
        let counted = self.working();
        self.runtime.spawn(async move {
            work.await;
            drop(counted);
        });
    }

    /// Returns when no work is left.
    pub(crate) async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }

    /// A future that continues in the background if it is dropped.
    pub(crate) fn carry<T, F>(self: &Arc<Self>, future: F) -> Carried<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        Carried {
            future: Some(Box::pin(future)),
            background: Arc::clone(self),
        }
    }
}

/// Work that is being done.
pub(crate) struct Working(Arc<Background>);

impl Drop for Working {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

/// A future whose calls in flight are never dropped: if the handle is dropped, the rest runs in the background.
pub(crate) struct Carried<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    background: Arc<Background>,
}

impl<T: Send + 'static> Future for Carried<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = self.future.as_mut() else {
            // It was polled after its end. The contract of futures allows any result.
            return Poll::Pending;
        };
        let result = std::task::ready!(future.as_mut().poll(cx));
        self.future = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        if let Some(rest) = self.future.take() {
            self.background.run(async move {
                rest.await;
            });
        }
    }
}
