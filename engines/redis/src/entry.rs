//! The claims of this process that wait. Claims that hold are not kept here: a hold costs the engine no memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::ClaimId;
use tokio::sync::Notify;

/// A grant that the server told of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushedGrant {
    pub(crate) first: u64,
    pub(crate) count: u32,
}

/// One claim that waits.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    news: Mutex<News>,
    bell: Notify,
    /// Its ticket in line, so that it stands where it stood if the server forgot it; 0 before the first answer.
    pub(crate) ticket: AtomicU64,
    /// The last pause behind a holder that will not hand over, in ms.
    pub(crate) pause: AtomicU32,
}

#[derive(Debug, Default)]
struct News {
    pushed: Option<PushedGrant>,
    woken: bool,
}

impl Entry {
    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, pushed: PushedGrant) {
        self.news().pushed = Some(pushed);
        self.bell.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.news().woken = true;
        self.bell.notify_one();
    }

    /// Waits for a grant with a token above `mark`; `None` when the claim should be placed again. Cancel safe.
    pub(crate) async fn next(&self, mark: u64) -> Option<PushedGrant> {
        loop {
            {
                let mut news = self.news();
                if let Some(pushed) = news.pushed.take().filter(|pushed| pushed.first > mark) {
                    return Some(pushed);
                }
                if std::mem::take(&mut news.woken) {
                    return None;
                }
            }
            self.bell.notified().await;
        }
    }
}

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    all: Mutex<HashMap<ClaimId, Arc<Entry>>>,
    count: AtomicUsize,
}

impl Entries {
    fn all(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Entry>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a claim, before anything that could put it in line is sent: the push may come first.
    pub(crate) fn register(&self, id: ClaimId) -> Arc<Entry> {
        let mut all = self.all();
        let waiter = Arc::clone(all.entry(id).or_default());
        self.count.store(all.len(), Ordering::SeqCst);
        waiter
    }

    pub(crate) fn find(&self, id: &ClaimId) -> Option<Arc<Entry>> {
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
    pub(crate) fn wake_all(&self) {
        for waiter in self.all().values() {
            waiter.wake();
        }
    }
}
