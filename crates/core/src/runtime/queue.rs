//! The queue inside this process: tasks that want one lock wait here in order and cost the store one waiter.
//!
//! For each name at most one of them, the *front*, waits in the store's queue. If a grant has a range of tokens, this queue hands
//! it on to the next task without a round trip, once per token. After the last token the store's queue has its turn.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use tokio::sync::oneshot;

use super::caller::{Caller, Heard};
use super::hold::Hold;
use crate::engine::Claim;
use crate::support::Mutex;
use crate::types::LockName;

/// The queues of a client: one for each name that is requested or held exclusively. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues(Arc<Mutex<HashMap<LockName, Queue, RandomState>>>);

#[derive(Debug, Default)]
struct Queue {
    holder: Option<Arc<Hold>>,
    /// The task that waits in the store's queue.
    front: Option<Arc<Caller>>,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    claim: Claim,
    /// Whether a hold that is handed on is sufficient.
    plain: bool,
    caller: Arc<Caller>,
    turn: oneshot::Sender<Turn>,
}

/// The message for a waiting task.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Place your claim at the store.
    Front(Front),
    /// The lock was handed on to you; this hold counts a guard of yours already.
    HandedOn(Arc<Hold>),
}

/// The position of a task after entering.
pub(crate) enum Entered {
    /// At the front.
    Front(Front),
    /// In the queue; the message comes through this channel.
    Waiting(oneshot::Receiver<Turn>),
}

/// The right to wait in the store's queue for a name. Dropping it gives it to the next task here.
#[derive(Debug)]
pub(crate) struct Front {
    queues: Queues,
    name: LockName,
    /// Whether other tasks of this process were in the queue at the same time, so that a range of tokens is worth its price.
    pub(crate) contended: bool,
    granted: bool,
}

impl Queues {
    fn front(&self, name: &LockName, contended: bool) -> Front {
        Front {
            queues: self.clone(),
            name: name.clone(),
            contended,
            granted: false,
        }
    }

    /// Whether this process holds the lock exclusively, as far as it believes.
    pub(crate) fn holds(&self, name: &LockName) -> bool {
        let all = self.0.lock();
        let holder = all.get(name).and_then(|queue| queue.holder.as_ref());
        holder.is_some_and(|hold| hold.is_valid())
    }

    /// What the store said last about a lock, as far as this process knows.
    pub(crate) fn heard(&self, name: &LockName) -> Heard {
        if self.holds(name) {
            return Heard::Held;
        }
        let front = self
            .0
            .lock()
            .get(name)
            .and_then(|queue| queue.front.clone());
        front.map_or(Heard::Nothing, |front| front.heard())
    }

    /// Joins the queue for the claim's name. `plain` if a hold that is handed on is sufficient.
    pub(crate) fn enter(&self, claim: &Claim, plain: bool, caller: &Arc<Caller>) -> Entered {
        let mut all = self.0.lock();
        let Some(queue) = all.get_mut(&claim.name) else {
            let queue = Queue {
                front: Some(Arc::clone(caller)),
                ..Queue::default()
            };
            all.insert(claim.name.clone(), queue);
            return Entered::Front(self.front(&claim.name, false));
        };
        // Dropped tasks leave their entries, so sweep from time to time.
        if queue.waiters.len() % 64 == 63 {
            queue.waiters.retain(|waiter| !waiter.turn.is_closed());
        }
        let (turn, told) = oneshot::channel();
        let waiter = Waiter {
            claim: claim.clone(),
            plain,
            caller: Arc::clone(caller),
            turn,
        };
        if queue.front.is_none() && queue.waiters.is_empty() && !queue.hands_on_to(&waiter) {
            queue.front = Some(Arc::clone(caller));
            return Entered::Front(self.front(&claim.name, true));
        }
        queue.waiters.push_back(waiter);
        Entered::Waiting(told)
    }

    /// Ends a hold. Hands it on if possible. True if it was handed on, and nothing is left to do.
    pub(crate) fn leave(&self, hold: &Arc<Hold>) -> bool {
        loop {
            let mut all = self.0.lock();
            let Some(queue) = all.get_mut(&hold.claim.name) else {
                return false;
            };
            if !queue.holder.as_ref().is_some_and(|h| Arc::ptr_eq(h, hold)) {
                return false;
            }
            while queue.waiters.front().is_some_and(|w| w.turn.is_closed()) {
                queue.waiters.pop_front();
            }
            let next = queue.waiters.front();
            if next.is_some_and(|next| queue.hands_on_to(next))
                && let Some(next) = queue.waiters.pop_front()
            {
                hold.hand_on();
                hold.add_guard();
                // After the last token was handed on, the next task may already go to the store's queue.
                let front = queue.next_front(self, &hold.claim.name);
                drop(all);
                tell(front);
                if next.turn.send(Turn::HandedOn(Arc::clone(hold))).is_ok() {
                    return true;
                }
                // The task was dropped just now, so the hold must still be handed on.
                hold.drop_guard();
                continue;
            }
            queue.holder = None;
            let front = queue.next_front(self, &hold.claim.name);
            if front.is_none() && queue.is_unused() {
                all.remove(&hold.claim.name);
            }
            drop(all);
            tell(front);
            return false;
        }
    }
}

impl Queue {
    fn is_unused(&self) -> bool {
        self.front.is_none() && self.holder.is_none() && self.waiters.is_empty()
    }

    /// Whether the present holder may hand its hold on to this waiter. It must not be handed on past the front, which came
    /// before all waiters. The front waits for a hold of its own, because the holder's is not sufficient for it.
    fn hands_on_to(&self, waiter: &Waiter) -> bool {
        let holder = self.holder.as_ref();
        waiter.plain
            && self.front.is_none()
            && holder.is_some_and(|hold| hold.may_hand_on_to(&waiter.claim))
    }

    /// Makes the first waiter the front, if there is no front and the holder, if any, hands nothing on to it.
    fn next_front(&mut self, queues: &Queues, name: &LockName) -> Option<(Waiter, Front)> {
        while let Some(waiter) = self.waiters.front() {
            if waiter.turn.is_closed() {
                self.waiters.pop_front();
                continue;
            }
            if self.front.is_some() || self.hands_on_to(waiter) {
                return None;
            }
            let waiter = self.waiters.pop_front()?;
            self.front = Some(Arc::clone(&waiter.caller));
            return Some((waiter, queues.front(name, true)));
        }
        None
    }
}

/// Tells a task that it is at the front. If the task was dropped, dropping its turn makes the next one the front.
fn tell(front: Option<(Waiter, Front)>) {
    if let Some((waiter, front)) = front {
        let _ = waiter.turn.send(Turn::Front(front));
    }
}

impl Front {
    /// Notes that the claim of the front was granted: it becomes the holder, and there is no front.
    pub(crate) fn granted(mut self, hold: &Arc<Hold>) {
        self.granted = true;
        let mut all = self.queues.0.lock();
        let Some(queue) = all.get_mut(&self.name) else {
            return;
        };
        queue.front = None;
        queue.holder = Some(Arc::clone(hold));
        let front = queue.next_front(&self.queues, &self.name);
        drop(all);
        tell(front);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if self.granted {
            return;
        }
        let mut all = self.queues.0.lock();
        let Some(queue) = all.get_mut(&self.name) else {
            return;
        };
        queue.front = None;
        let front = queue.next_front(&self.queues, &self.name);
        if front.is_none() && queue.is_unused() {
            all.remove(&self.name);
        }
        drop(all);
        tell(front);
    }
}
