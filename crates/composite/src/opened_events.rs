//! The events of all stores of a set as one stream, including stores that are opened later.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use fencelock_core::Result;
use fencelock_core::engine::{Event, EventStream};
use fencelock_core::support::Mutex;
use futures_util::stream::SelectAll;
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;

/// Adds the events of each store that is opened to the common stream.
#[derive(Debug)]
pub(crate) struct Joining {
    streams: Mutex<Option<mpsc::UnboundedSender<EventStream>>>,
    /// Which events matter, by the id of their store. All of them if no filter is set.
    pub(crate) filter: Arc<OnceLock<Filter>>,
}

/// Whether an event of the store with this id matters.
type Matters = dyn Fn(&str, &Event) -> bool + Send + Sync;

/// A filter, as a value with `Debug`.
pub(crate) struct Filter(pub(crate) Box<Matters>);

impl Joining {
    /// A `Joining` and the common stream.
    pub(crate) fn channel() -> (Self, EventStream) {
        let (sender, joining) = mpsc::unbounded_channel();
        let all = All {
            joining,
            joined: SelectAll::new(),
        };
        let streams = Mutex::new(Some(sender));
        let filter = Arc::default();
        (Self { streams, filter }, EventStream::new(all))
    }

    /// Adds the events of the store with this id.
    pub(crate) fn join(&self, events: Result<EventStream>, id: &str, store: &str) -> Result<()> {
        let (id, filter) = (id.to_owned(), Arc::clone(&self.filter));
        let matters = move |event: &Result<Event>| {
            let filter = filter.get();
            let event = event.as_ref().ok();
            std::future::ready(match (filter, event) {
                (Some(Filter(matters)), Some(event)) => matters(&id, event),
                _ => true,
            })
        };
        let events = EventStream::new(events?.filter(matters));
        tracing::debug!(store, "opened");
        match &*self.streams.lock() {
            // Sending fails if nobody listens: the set is about to be dropped.
            Some(joining) => drop(joining.send(events)),
            None => return Err(fencelock_core::Error::Closed),
        }
        Ok(())
    }

    /// Lets no more stores join. The stream ends with the last of its streams.
    pub(crate) fn close(&self) {
        drop(self.streams.lock().take());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.streams.lock().is_none()
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filter")
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
            // All streams so far have ended, but others may join.
            Poll::Ready(None) if !over => Poll::Pending,
            polled => polled,
        }
    }
}
