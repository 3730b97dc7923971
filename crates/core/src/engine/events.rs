//! The events of a store, as a stream.

use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::Stream;
use tokio::sync::mpsc;

use super::claim::Event;
use crate::types::{Error, Result};

/// The events that a store reports by itself; see [`Engine::events`](super::Engine::events). The stream continues after an
/// error and ends when the engine is closed.
pub struct EventStream(Pin<Box<dyn Stream<Item = Result<Event>> + Send>>);

impl EventStream {
    /// Any stream of events.
    pub fn new(events: impl Stream<Item = Result<Event>> + Send + 'static) -> Self {
        Self(Box::pin(events))
    }

    /// The next event; `None` once the engine is closed.
    ///
    /// # Cancel safety
    /// May be dropped; no event is lost.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        std::future::poll_fn(|cx| self.0.as_mut().poll_next(cx)).await
    }
}

impl Stream for EventStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventStream")
    }
}

/// The sender of an engine's events.
#[derive(Clone, Debug)]
pub struct EventSender(mpsc::UnboundedSender<Event>);

impl EventSender {
    /// Reports an event. If nobody listens any more, the engine is about to be dropped, and the event is ignored.
    pub fn tell(&self, event: Event) {
        let _ = self.0.send(event);
    }
}

/// The events of an engine, until its one listener takes them.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let (sender, source) = EventSource::channel();
/// let mut events = source.take(&"toy:")?;
/// sender.tell(Event::Lost(ClaimId::from_bytes([0; 16])));
/// assert!(matches!(events.next().await, Some(Ok(Event::Lost(_)))));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventSource(Mutex<Option<EventStream>>);

impl EventSource {
    /// A source, and the sender for the engine.
    #[must_use]
    pub fn channel() -> (EventSender, Self) {
        let (sender, mut events) = mpsc::unbounded_channel();
        let source = Self::of(move |cx| events.poll_recv(cx));
        (EventSender(sender), source)
    }

    /// A source with a limit of `most` events that wait to be read.
    #[must_use]
    pub fn bounded(most: usize) -> (mpsc::Sender<Event>, Self) {
        let (sender, mut events) = mpsc::channel(most);
        (sender, Self::of(move |cx| events.poll_recv(cx)))
    }

    fn of(
        mut receive: impl FnMut(&mut Context<'_>) -> Poll<Option<Event>> + Send + 'static,
    ) -> Self {
        let next = move |cx: &mut Context<'_>| receive(cx).map(|event| event.map(Ok));
        let events = EventStream::new(futures_util::stream::poll_fn(next));
        Self(Mutex::new(Some(events)))
    }

    /// The events, as [`Engine::events`](super::Engine::events) returns them.
    ///
    /// # Errors
    /// [`Error::Internal`] from the second call on.
    pub fn take(&self, store: &dyn fmt::Display) -> Result<EventStream> {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events
            .take()
            .ok_or_else(|| Error::internal(store, "its events have a listener already"))
    }
}
