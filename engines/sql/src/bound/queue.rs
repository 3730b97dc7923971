//! The queue of this process for a connection.

use std::pin::Pin;
use std::sync::Arc;

use fencelock_core::{Error, Result};
use futures_util::FutureExt;
use tokio::sync::{AcquireError, Mutex, OwnedSemaphorePermit, Semaphore};

/// The right to one connection.
pub(super) type Permit = OwnedSemaphorePermit;

/// A claim's place in the queue; first come, first served. A drop leaves the queue, and passes on a permit that has arrived.
pub(super) struct Ticket(Mutex<Turn>);

enum Turn {
    Ahead(Pin<Box<dyn Future<Output = Result<Permit, AcquireError>> + Send>>),
    Come(Result<Permit>),
    Taken,
}

impl Ticket {
    pub(super) fn new(permits: &Arc<Semaphore>) -> Self {
        let permit = Arc::clone(permits).acquire_owned();
        Self(Mutex::new(Turn::Ahead(Box::pin(permit))))
    }

    /// Returns once it is the claim's turn. Cancel safe: the ticket keeps its place.
    pub(super) async fn turn(&self) {
        let mut turn = self.0.lock().await;
        if let Turn::Ahead(permit) = &mut *turn {
            let permit = permit.await.map_err(|_| Error::Closed);
            *turn = Turn::Come(permit);
        }
    }

    /// The result of the turn; `None` if it has not come yet.
    pub(super) fn take(&self) -> Option<Result<Permit>> {
        // A task that has it locked waits for the turn.
        let mut turn = self.0.try_lock().ok()?;
        let permit = match std::mem::replace(&mut *turn, Turn::Taken) {
            Turn::Ahead(mut permit) => match (&mut permit).now_or_never() {
                Some(permit) => permit.map_err(|_| Error::Closed),
                None => {
                    *turn = Turn::Ahead(permit);
                    return None;
                }
            },
            Turn::Come(permit) => permit,
            Turn::Taken => Err(Error::Closed),
        };
        Some(permit)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_ticket_keeps_its_place_and_passes_on_its_permit() {
        let permits = Arc::new(Semaphore::new(1));
        let held = Arc::clone(&permits).try_acquire_owned().unwrap();
        let [first, second, third] = [(); 3].map(|()| Ticket::new(&permits));
        for ticket in [&first, &second, &third] {
            // Waits, and is dropped.
            assert!(ticket.turn().now_or_never().is_none());
            assert!(ticket.take().is_none());
        }
        drop(held);
        assert!(second.turn().now_or_never().is_none());
        first.turn().now_or_never().unwrap();
        // The first ticket has its permit, which was not taken out.
        drop(first);
        let permit = second.take().unwrap().unwrap();
        assert!(third.take().is_none());
        permits.close();
        assert!(matches!(third.take(), Some(Err(Error::Closed))));
        drop(permit);
    }
}
