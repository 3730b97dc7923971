//! The future of a request: it ends with the guard, or with its timeout, and may be dropped at any time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::guard::Guard;
use crate::runtime::attempt::Attempt;
use crate::runtime::background::Carried;
use crate::runtime::caller::{Caller, Heard};
use crate::runtime::state::State;
use crate::types::{Error, LockName, Result};

/// The future of an [`Acquire`](crate::Acquire).
///
/// # Cancel safety
/// May be dropped at any time: what it began is undone in the background, and neither a lock nor a place in the queue is
/// left.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// # let guard = client.lock("report").await?;
/// let waiting = client.lock("report").into_future();
/// drop(waiting); // leaves the queue
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Acquiring {
    carried: Option<Carried<Result<Guard>>>,
    caller: Arc<Caller>,
    state: Arc<State>,
    timeout: Option<Timeout>,
    /// Whether the caller gets the guard at once.
    delivers: bool,
    attempt: Option<Attempt>,
}

struct Timeout {
    alarm: Pin<Box<dyn Future<Output = ()> + Send>>,
    waited: Duration,
}

impl Acquiring {
    pub(crate) fn begin(
        state: Arc<State>,
        caller: Arc<Caller>,
        attempt: Option<Attempt>,
        timeout: Option<Duration>,
        acquire: impl Future<Output = Result<Guard>> + Send + 'static,
    ) -> Self {
        let clock = state.clock;
        let timeout = timeout.map(|timeout| {
            let ends = clock.now() + timeout;
            Timeout {
                alarm: Box::pin(async move { clock.sleep_until(ends).await }),
                waited: timeout,
            }
        });
        Self {
            carried: Some(state.background.carry(acquire)),
            caller,
            state,
            timeout,
            delivers: true,
            attempt,
        }
    }

    /// For one guard of several, which the caller gets together, by [`Guard::deliver`].
    pub(crate) fn part_of_several(mut self) -> Self {
        self.delivers = false;
        self
    }

    /// Lets the rest of the request run in the background, where it is undone.
    fn leave(&mut self) {
        self.caller.leave();
        self.carried = None;
        if let Some(attempt) = &mut self.attempt {
            attempt.cancel(&self.state);
        }
    }

    /// The error of a request that was not granted in time.
    fn gave_up(&self, name: LockName, waited: Duration) -> Error {
        let mut heard = self.caller.heard();
        if matches!(heard, Heard::Nothing) {
            // The request waits for other tasks of this process, and these may have got an answer.
            heard = self.state.queues.heard(&name);
        }
        let cause = match heard {
            Heard::Held => return Error::TimedOut { name, waited },
            Heard::Failed(cause) => cause,
            Heard::Nothing => format!("no answer within {waited:?}"),
        };
        Error::unavailable(&self.state.engine, format!("taking lock {name}"), cause)
    }
}

impl Future for Acquiring {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(carried) = this.carried.as_mut() else {
            return Poll::Pending;
        };
        if let Poll::Ready(result) = Pin::new(carried).poll(cx) {
            if this.delivers
                && let Ok(guard) = &result
            {
                guard.deliver();
            }
            if let Some(attempt) = &mut this.attempt {
                attempt.end(&this.state, &result);
            }
            return Poll::Ready(result);
        }
        let Some(timeout) = this.timeout.as_mut() else {
            return Poll::Pending;
        };
        std::task::ready!(timeout.alarm.as_mut().poll(cx));
        let waited = timeout.waited;
        let Some(mut attempt) = this.attempt.take() else {
            return Poll::Ready(Err(Error::Closed));
        };
        let error = Err(this.gave_up(attempt.name.clone(), waited));
        attempt.end(&this.state, &error);
        this.leave();
        Poll::Ready(error)
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.leave();
    }
}

impl std::fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}
