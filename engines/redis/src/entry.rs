//! The waiting claims of this process. Claims that hold have no entry: a hold costs the engine no memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId};
use tokio::sync::Notify;

/// A grant that a message announced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushedGrant {
    pub(crate) first: u64,
    pub(crate) count: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    news: Mutex<News>,
    wake_up: Notify,
    /// The claim's ticket in the queue, so that it keeps its place if the server has lost its queue; 0 before the first reply.
    /// For Redlock it is the counter that the next attempt suggests.
    pub(crate) ticket: AtomicU64,
    /// The last pause between attempts, in ms, while the holder does not hand the lock over.
    pub(crate) pause: AtomicU32,
}

#[derive(Debug, Default)]
struct News {
    pushed: Option<PushedGrant>,
    woken: bool,
    /// Set while the server says that the claim waits: the time of that request, and the counter of tokens.
    place: Option<(BootInstant, u64)>,
}

impl Entry {
    pub(crate) fn push(&self, pushed: PushedGrant) {
        self.news.lock().pushed = Some(pushed);
        self.wake_up.notify_one();
    }

    /// Wakes the claim, so that it is placed again.
    pub(crate) fn wake(&self) {
        self.news.lock().woken = true;
        self.wake_up.notify_one();
    }

    /// Notes that the server, in a request sent at `asked_at`, said that the claim waits, and that its counter was `counter`.
    pub(crate) fn waits(&self, asked_at: BootInstant, counter: u64) {
        self.news.lock().place = Some((asked_at, counter));
    }

    /// Notes that no request was sent, so a pushed grant belongs to an earlier place.
    pub(crate) fn not_asked(&self) {
        self.news.lock().place = None;
    }

    /// Waits for a grant that was made after the last request. Returns it with the time of that request; `None` when the claim
    /// should be placed again. Cancel safe.
    pub(crate) async fn next(&self) -> Option<(PushedGrant, BootInstant)> {
        loop {
            {
                let mut news = self.news.lock();
                if let Some(pushed) = news.pushed.take()
                    && let Some((asked_at, counter)) = news.place
                    && pushed.first > counter
                {
                    return Some((pushed, asked_at));
                }
                if std::mem::take(&mut news.woken) {
                    return None;
                }
            }
            self.wake_up.notified().await;
        }
    }

    /// The next pause between attempts: random, growing, at most `longest`.
    pub(crate) fn next_pause(&self, longest: u32) -> u32 {
        let next = pause_after(self.pause.load(Ordering::Relaxed), longest);
        self.pause.store(next, Ordering::Relaxed);
        next
    }
}

/// A random pause in ms, up to three times the last one.
pub(crate) fn pause_after(last: u32, longest: u32) -> u32 {
    fastrand::u32(10..=last.max(10) * 3).min(longest)
}

#[derive(Debug, Default)]
pub(crate) struct Entries {
    all: Mutex<HashMap<ClaimId, Arc<Entry>>>,
    count: AtomicUsize,
}

impl Entries {
    /// Registers a claim. This comes before any request that could queue it: the push may overtake the reply.
    pub(crate) fn register(&self, id: ClaimId) -> Arc<Entry> {
        let mut all = self.all.lock();
        let entry = Arc::clone(all.entry(id).or_default());
        self.count.store(all.len(), Ordering::SeqCst);
        entry
    }

    pub(crate) fn find(&self, id: &ClaimId) -> Option<Arc<Entry>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.all.lock().get(id).cloned()
    }

    pub(crate) fn remove(&self, id: &ClaimId) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut all = self.all.lock();
            all.remove(id);
            self.count.store(all.len(), Ordering::SeqCst);
        }
    }

    pub(crate) fn wake_all(&self) {
        for entry in self.all.lock().values() {
            entry.wake();
        }
    }
}
