//! The claims of this process that wait. Claims that hold are not kept here: a hold costs the engine no memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::{BootInstant, ClaimId};
use tokio::sync::Notify;

/// A grant that the server told of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pushed {
    pub(crate) first: u64,
    pub(crate) count: u32,
}

/// One claim that waits.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    news: Mutex<News>,
    bell: Notify,
    /// Its ticket in line, so that it stands where it stood if the server forgot it; 0 before the first answer.
    pub(crate) ticket: AtomicU64,
    /// The last pause behind a holder that will not hand over, in ms.
    pub(crate) pause: AtomicU32,
}

#[derive(Debug, Default)]
struct News {
    pushed: Option<Pushed>,
    /// When the server was last asked, and its counter of tokens then.
    place: Option<(BootInstant, u64)>,
    stirred: bool,
}

impl Waiter {
    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, pushed: Pushed) {
        self.news().pushed = Some(pushed);
        self.bell.notify_one();
    }

    pub(crate) fn stir(&self) {
        self.news().stirred = true;
        self.bell.notify_one();
    }

    /// The server was asked at `asked_at`, and says that the claim waits; its counter of tokens stood at `counter` then.
    pub(crate) fn stands(&self, asked_at: BootInstant, counter: u64) {
        self.news().place = Some((asked_at, counter));
    }

    /// Nothing was asked: a grant that comes in was for an earlier place.
    pub(crate) fn stands_nowhere(&self) {
        self.news().place = None;
    }

    /// Waits for a grant that was made after the server was last asked, and says when that was; `None` when the claim should
    /// be placed again. Cancel safe.
    pub(crate) async fn next(&self) -> Option<(Pushed, BootInstant)> {
        loop {
            {
                let mut news = self.news();
                if let Some(pushed) = news.pushed.take()
                    && let Some((asked_at, counter)) = news.place
                    && pushed.first > counter
                {
                    return Some((pushed, asked_at));
                }
                if std::mem::take(&mut news.stirred) {
                    return None;
                }
            }
            self.bell.notified().await;
        }
    }
}

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    all: Mutex<HashMap<ClaimId, Arc<Waiter>>>,
    count: AtomicUsize,
}

impl Waiters {
    fn all(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Waiter>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a claim, before anything that could put it in line is sent: the push may come first.
    pub(crate) fn register(&self, id: ClaimId) -> Arc<Waiter> {
        let mut all = self.all();
        let waiter = Arc::clone(all.entry(id).or_default());
        self.count.store(all.len(), Ordering::SeqCst);
        waiter
    }

    pub(crate) fn find(&self, id: &ClaimId) -> Option<Arc<Waiter>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.all().get(id).cloned()
    }

    pub(crate) fn remove(&self, id: &ClaimId) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut all = self.all();
            all.remove(id);
            self.count.store(all.len(), Ordering::SeqCst);
        }
    }

    /// Has all of them place again.
    pub(crate) fn stir_all(&self) {
        for waiter in self.all().values() {
            waiter.stir();
        }
    }
}
