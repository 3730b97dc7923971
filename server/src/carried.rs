//! A call of the engine that goes on if the request that made it is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A call that runs in the task of its request, which saves a task and two wake-ups for each request. If the request is dropped
/// before the call has ended, the call gets a task of its own.
pub(crate) struct Carried<F: Future<Output: Send> + Send + 'static> {
    call: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future<Output: Send> + Send + 'static> Carried<F> {
    /// Must be called within a tokio runtime.
    pub(crate) fn new(call: F) -> Self {
        Self {
            call: Some(Box::pin(call)),
            runtime: Handle::current(),
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Carried<F> {
    /// `None` if the result was taken before.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out, so that a call that panics is not polled again.
        let Some(mut call) = self.call.take() else {
            return Poll::Ready(None);
        };
        match call.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                self.call = Some(call);
                Poll::Pending
            }
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Carried<F> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.runtime.spawn(call);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_call_that_is_awaited_answers() {
        let carried = Carried::new(async {
            tokio::task::yield_now().await;
            7
        });
        assert_eq!(carried.await, Some(7));
    }

    #[tokio::test]
    async fn a_call_goes_on_when_its_request_is_dropped() {
        let (go, gone) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let mut carried = Box::pin(Carried::new(async {
            gone.await.unwrap();
            end.send("ended").unwrap();
        }));
        assert_eq!(carried.as_mut().now_or_never(), None);
        drop(carried);
        go.send(()).unwrap();
        assert_eq!(ended.await, Ok("ended"));
    }

    #[tokio::test]
    async fn a_call_that_was_never_awaited_is_made() {
        let (end, ended) = oneshot::channel();
        drop(Carried::new(async { end.send("ended").unwrap() }));
        assert_eq!(ended.await, Ok("ended"));
    }

    #[tokio::test]
    async fn a_call_that_panicked_is_not_polled_again() {
        let call = async {
            tokio::task::yield_now().await;
            panic!("as a test");
        };
        let mut carried: Carried<Pin<Box<dyn Future<Output = ()> + Send>>> =
            Carried::new(Box::pin(call));
        let ended = AssertUnwindSafe(&mut carried).catch_unwind().await;
        assert!(ended.is_err());
        assert_eq!(carried.await, None);
    }
}
