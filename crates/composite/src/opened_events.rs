//! The events of all stores of a set as one stream, also of those that are opened later.

use std::pin::Pin;
use std::task::{Context, Poll};

use fencelock_core::Result;
use fencelock_core::engine::{Event, EventStream};
use fencelock_core::support::Mutex;
use futures_util::Stream;
use futures_util::stream::SelectAll;
use tokio::sync::mpsc;

/// Where the events of a store that was opened join those of the others.
#[derive(Debug)]
pub(crate) struct Joining(Mutex<Option<mpsc::UnboundedSender<EventStream>>>);

impl Joining {
    /// Where streams join, and the stream of all.
    pub(crate) fn channel() -> (Self, EventStream) {
        let (sender, joining) = mpsc::unbounded_channel();
        let all = All {
            joining,
            joined: SelectAll::new(),
        };
        (Self(Mutex::new(Some(sender))), EventStream::new(all))
    }

    /// Adds the events of a store.
    pub(crate) fn join(&self, events: Result<EventStream>, store: &str) -> Result<()> {
        let events = events?;
        tracing::debug!(store, "opened");
        match &*self.0.lock() {
            // If nobody listens, the set is about to be dropped.
            Some(joining) => drop(joining.send(events)),
            None => return Err(fencelock_core::Error::Closed),
        }
        Ok(())
    }

    /// From now on no store joins, and the stream ends with the last one that did.
    pub(crate) fn close(&self) {
        drop(self.0.lock().take());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().is_none()
    }
}

struct All {
    joining: mpsc::UnboundedReceiver<EventStream>,
    joined: SelectAll<EventStream>,
}

impl Stream for All {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let over = loop {
            match self.joining.poll_recv(cx) {
                Poll::Ready(Some(events)) => self.joined.push(events),
                Poll::Ready(None) => break true,
                Poll::Pending => break false,
            }
        };
        match Pin::new(&mut self.joined).poll_next(cx) {
            // Of the stores that are open now.
            Poll::Ready(None) if !over => Poll::Pending,
            polled => polled,
        }
    }
}
