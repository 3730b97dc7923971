//! Collects what the workers report.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::history::{Attempt, Claimed, End, Fault, Write};
use crate::register::Came;
use crate::worker::Event;

/// What was reported so far. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Record {
    parts: Arc<Mutex<Parts>>,
}

#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) claims: Vec<Claimed>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) troubles: Vec<String>,
    /// By worker, life and number.
    by_number: HashMap<(u32, u32, u64), usize>,
}

impl Record {
    pub(crate) fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trouble(&self, what: impl Into<String>) {
        self.parts().troubles.push(what.into());
    }

    /// The number of grants so far.
    pub(crate) fn grants(&self) -> usize {
        let parts = self.parts();
        parts
            .attempts
            .iter()
            .filter(|a| a.granted.is_some())
            .count()
    }
}

impl Parts {
    pub(crate) fn note(&mut self, worker: u32, life: u32, said: Event) {
        match said {
            Event::Ready => {}
            Event::Asked {
                n,
                task,
                name,
                shared,
                how,
                at,
            } => {
                self.by_number
                    .insert((worker, life, n), self.attempts.len());
                self.attempts.push(Attempt {
                    worker,
                    life,
                    task,
                    name,
                    shared,
                    how,
                    asked: at,
                    ..Attempt::default()
                });
            }
            Event::Granted {
                n,
                at,
                token,
                claim,
                valid,
            } => {
                if let Some(attempt) = self.attempt(worker, life, n) {
                    attempt.granted = Some(at);
                    attempt.token = Some(token);
                    attempt.claim = Some(claim);
                    attempt.valid = Some(valid);
                }
            }
            Event::Valid { n, until } => {
                if let Some(attempt) = self.attempt(worker, life, n) {
                    attempt.valid = Some(until);
                }
            }
            Event::Left {
                n,
                until,
                told,
                valid,
            } => {
                if let Some(attempt) = self.attempt(worker, life, n) {
                    attempt.until = Some(until);
                    attempt.told = told;
                    attempt.valid = Some(valid);
                }
            }
            Event::Over { n, at, end } => {
                if let Some(attempt) = self.attempt(worker, life, n) {
                    attempt.over = Some(at);
                    attempt.end = end;
                }
            }
            Event::Held(claim) => self.claims.push(claim),
            Event::Closed(None) => {}
            Event::Closed(Some(error)) => {
                self.troubles.push(format!(
                    "worker {worker} could not close its client: {error}"
                ));
            }
        }
    }

    fn attempt(&mut self, worker: u32, life: u32, n: u64) -> Option<&mut Attempt> {
        let index = *self.by_number.get(&(worker, life, n))?;
        self.attempts.get_mut(index)
    }

    /// A worker was killed: its tasks believed nothing after `killed`.
    pub(crate) fn gone(&mut self, worker: u32, life: u32, killed: Option<u64>) {
        let Some(killed) = killed else { return };
        let open = self.attempts.iter_mut().filter(|attempt| {
            attempt.worker == worker && attempt.life == life && attempt.end == End::Open
        });
        for attempt in open {
            attempt.end = End::Killed;
            attempt.over = Some(killed);
            let believed = || attempt.valid.map(|valid| valid.min(killed));
            attempt.until = attempt.until.or_else(believed);
        }
    }

    /// The writes to the resource, as part of the history.
    pub(crate) fn writes(&self, came: Vec<Came>) -> Vec<Write> {
        let write = |came: Came| {
            let mut parts = came.attempt.splitn(3, ':');
            let (worker, life, n) = (parts.next()?, parts.next()?, parts.next()?);
            let key = (worker.parse().ok()?, life.parse().ok()?, n.parse().ok()?);
            Some(Write {
                attempt: *self.by_number.get(&key)?,
                name: came.name,
                token: came.token,
                claim: came.claim,
                shared: came.shared,
                at: came.at,
                accepted: came.accepted,
                lost_update: came.lost_update,
            })
        };
        came.into_iter().filter_map(write).collect()
    }
}
