//! The line inside this process: tasks that wish for one name stand here in order and cost one remote waiter.
//!
//! For each name at most one of them, the *driver*, stands in the store's line. A grant with a range of tokens is passed
//! on to the next task here without a round trip, once per token, and then the store's line has its turn.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::fast::RandomState;
use tokio::sync::oneshot;

use crate::client::Inner;
use crate::drive::{Caller, Heard};
use crate::engine::Claim;
use crate::guard::Guard;
use crate::hold::Hold;
use crate::types::LockName;

/// The lines of a client, one for each name that is wished for or held exclusively.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: Mutex<HashMap<LockName, Line, RandomState>>,
}

#[derive(Debug, Default)]
struct Line {
    holder: Option<Arc<Hold>>,
    /// Who stands in the store's line.
    driver: Option<Arc<Caller>>,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    claim: Claim,
    /// A hold that was passed on would do.
    plain: bool,
    caller: Arc<Caller>,
    turn: oneshot::Sender<Turn>,
}

/// What a task in line is told.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Place your claim at the store.
    Drive(Seat),
    /// The lock was passed on to you. Dropping this passes it on or releases it.
    Passed(Guard),
}

/// Where a task finds itself after entering.
pub(crate) enum Entered {
    /// In front: the seat is yours.
    Drive(Seat),
    /// In line: you will be told.
    Wait(oneshot::Receiver<Turn>),
}

/// The right to stand in the store's line for a name. Dropping it gives it to the next task here.
#[derive(Debug)]
pub(crate) struct Seat {
    inner: Weak<Inner>,
    name: LockName,
    /// Others of this process were here at the same time, so a range of tokens is worth its price.
    pub(crate) contended: bool,
    seated: bool,
}

impl Lines {
    fn lines(&self) -> MutexGuard<'_, HashMap<LockName, Line, RandomState>> {
        // No code under this lock can panic halfway.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process holds the lock exclusively, as far as it believes.
    pub(crate) fn holds(&self, name: &LockName) -> bool {
        let lines = self.lines();
        let holder = lines.get(name).and_then(|line| line.holder.as_ref());
        holder.is_some_and(|hold| hold.is_valid())
    }

    /// What is known here of the store's last word on a lock.
    pub(crate) fn heard(&self, name: &LockName) -> Heard {
        if self.holds(name) {
            return Heard::Held;
        }
        let driver = self.lines().get(name).and_then(|line| line.driver.clone());
        driver.map_or(Heard::Nothing, |driver| driver.heard())
    }

    /// Joins the line for the claim's name. `plain`: a hold that was passed on would do.
    pub(crate) fn enter(
        &self,
        inner: &Arc<Inner>,
        claim: &Claim,
        plain: bool,
        caller: &Arc<Caller>,
    ) -> Entered {
        let mut lines = self.lines();
        let seat = |contended| {
            Entered::Drive(Seat {
                inner: Arc::downgrade(inner),
                name: claim.name.clone(),
                contended,
                seated: true,
            })
        };
        let Some(line) = lines.get_mut(&claim.name) else {
            let line = Line {
                driver: Some(Arc::clone(caller)),
                ..Line::default()
            };
            lines.insert(claim.name.clone(), line);
            return seat(false);
        };
        // Those who went away leave their places behind; sweep now and then.
        if line.queue.len() % 64 == 63 {
            line.queue.retain(|waiter| !waiter.turn.is_closed());
        }
        let (turn, told) = oneshot::channel();
        let waiter = Waiter {
            claim: claim.clone(),
            plain,
            caller: Arc::clone(caller),
            turn,
        };
        if line.driver.is_none() && line.queue.is_empty() && !line.passes_to(&waiter) {
            line.driver = Some(Arc::clone(caller));
            return seat(true);
        }
        line.queue.push_back(waiter);
        Entered::Wait(told)
    }

    /// A hold came to its end here. Passes it on if that may be; `true` means that it was, and nothing is left to do.
    pub(crate) fn leave(&self, inner: &Arc<Inner>, hold: &Arc<Hold>) -> bool {
        loop {
            let mut lines = self.lines();
            let Some(line) = lines.get_mut(&hold.claim.name) else {
                return false;
            };
            if !line.holder.as_ref().is_some_and(|h| Arc::ptr_eq(h, hold)) {
                return false;
            }
            while line.queue.front().is_some_and(|w| w.turn.is_closed()) {
                line.queue.pop_front();
            }
            let next = line.queue.front();
            if next.is_some_and(|next| line.passes_to(next))
                && let Some(next) = line.queue.pop_front()
            {
                hold.pass();
                // With the last token passed, the next task may go and stand in the store's line already.
                let seat = line.next_driver(inner, &hold.claim.name);
                drop(lines);
                give(seat);
                let guard = Guard::new(Arc::clone(inner), Arc::clone(hold));
                match next.turn.send(Turn::Passed(guard)) {
                    Ok(()) => return true,
                    Err(Turn::Passed(guard)) => {
                        // It went away just now. The hold is still ours to pass on.
                        guard.dissolve();
                        continue;
                    }
                    Err(Turn::Drive(_)) => return true,
                }
            }
            line.holder = None;
            let seat = line.next_driver(inner, &hold.claim.name);
            if seat.is_none() && line.driver.is_none() && line.queue.is_empty() {
                lines.remove(&hold.claim.name);
            }
            drop(lines);
            give(seat);
            return false;
        }
    }
}

type Seating = (Waiter, Seat);

impl Line {
    /// Whether the present holder may pass its hold on to this waiter. Not past the driver, which came before all in the
    /// queue: it waits for a hold of its own because that of the holder would not do.
    fn passes_to(&self, waiter: &Waiter) -> bool {
        let holder = self.holder.as_ref();
        waiter.plain
            && self.driver.is_none()
            && holder.is_some_and(|hold| hold.may_pass_to(&waiter.claim))
    }

    /// Seats the first in line if nobody drives and the holder, if any, has nothing for it.
    fn next_driver(&mut self, inner: &Arc<Inner>, name: &LockName) -> Option<Seating> {
        while let Some(waiter) = self.queue.front() {
            if waiter.turn.is_closed() {
                self.queue.pop_front();
                continue;
            }
            if self.driver.is_some() || self.passes_to(waiter) {
                return None;
            }
            let waiter = self.queue.pop_front()?;
            self.driver = Some(Arc::clone(&waiter.caller));
            let seat = Seat {
                inner: Arc::downgrade(inner),
                name: name.clone(),
                contended: true,
                seated: true,
            };
            return Some((waiter, seat));
        }
        None
    }
}

/// Tells a task that it is seated. If it went away, its seat is dropped here, which seats the next.
fn give(seating: Option<Seating>) {
    if let Some((waiter, seat)) = seating {
        let _ = waiter.turn.send(Turn::Drive(seat));
    }
}

impl Seat {
    /// The driver's claim was granted: it becomes the holder, and the seat is free.
    pub(crate) fn granted(mut self, inner: &Arc<Inner>, hold: &Arc<Hold>) {
        self.seated = false;
        let mut lines = inner.lines.lines();
        let Some(line) = lines.get_mut(&self.name) else {
            return;
        };
        line.driver = None;
        line.holder = Some(Arc::clone(hold));
        let seat = line.next_driver(inner, &self.name);
        drop(lines);
        give(seat);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.seated {
            return;
        }
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        let mut lines = inner.lines.lines();
        let Some(line) = lines.get_mut(&self.name) else {
            return;
        };
        line.driver = None;
        let seat = line.next_driver(&inner, &self.name);
        if seat.is_none() && line.driver.is_none() && line.holder.is_none() && line.queue.is_empty()
        {
            lines.remove(&self.name);
        }
        drop(lines);
        give(seat);
    }
}
