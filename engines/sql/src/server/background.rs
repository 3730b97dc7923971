//! Tasks that run while the engine is open: they listen for messages, and remove expired rows.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Clock, LockName, Result};

use super::change::Change;
use super::dialect::Dialect;
use super::message::Message;
use super::pool::{Lane, attempt};
use super::release::forget_settled;
use super::state::{Done, State, Tried, action, write};

/// How often each engine looks for expired rows of unused locks.
const REAP: Duration = Duration::from_secs(30);

impl<D: Dialect> State<D> {
    pub(super) async fn listen(self: Arc<Self>) {
        loop {
            match self.pool.dialect.next_message().await {
                Message::Turn(claim) => self.entries.wake(claim),
                Message::Granted(pushed) => self.entries.push(pushed),
                Message::Holder(event) => self.events.tell(event),
                Message::Missed => self.entries.wake_all(),
            }
        }
    }

    pub(super) async fn reap_now_and_then(self: Arc<Self>) {
        loop {
            tokio::time::sleep(REAP.mul_f32(0.5 + fastrand::f32())).await;
            forget_settled(&mut self.unsettled.lock(), Clock::Boot.now());
            if let Err(error) = self.reap().await {
                tracing::debug!(store = %self.pool.dialect, %error, "expired rows stay for now");
            }
        }
    }

    async fn reap(&self) -> Result<()> {
        let mut call = self.pool.call("looking for what has expired");
        let dialect = &self.pool.dialect;
        let names = attempt!(call, Lane::Others, |session| dialect.expired(session).await);
        for name in names {
            let mut call = self
                .pool
                .call(action("clearing what has expired of", &name));
            let done = attempt!(call, Lane::Others, |session| {
                reap(dialect, session, &name).await
            });
            self.wake(&done.next);
        }
        Ok(())
    }
}

async fn reap<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    name: &LockName,
) -> Tried<Done<()>> {
    let Some(read) = dialect.read(session, name).await? else {
        return Ok(Done::alone(()));
    };
    // If another client changed the lock meanwhile, it has removed the expired rows.
    let (_, next) = write(dialect, session, name, &read, Change::Reap).await?;
    Ok(Done { answer: (), next })
}
