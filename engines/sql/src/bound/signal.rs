//! Reports at once that a connection has ended, and which claim loses its hold by that.

use std::sync::Arc;

use fencelock_core::ClaimId;
use fencelock_core::engine::{Event, EventSender, LeaseKind};
use fencelock_core::support::Mutex;

/// The end of one connection.
pub struct CloseSignal {
    state: Mutex<State>,
    events: Option<EventSender>,
    on_close: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug, Default)]
struct State {
    claim: Option<ClaimId>,
    closed: bool,
}

impl CloseSignal {
    /// A signal that reports the loss of a hold to `events`.
    pub fn new(events: Option<EventSender>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            events,
            on_close: Box::new(|| {}),
        })
    }

    /// A signal that calls `on_close` when the connection has ended.
    pub fn with(on_close: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            events: None,
            on_close: Box::new(on_close),
        })
    }

    /// Notes that the connection has ended. The dialect calls this as soon as it knows.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        if let (Some(claim), Some(events)) = (state.claim.take(), &self.events) {
            events.tell(Event::Ended(claim, LeaseKind::Connection));
        }
        drop(state);
        (self.on_close)();
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// From now on the end of the connection is the loss of this claim. False if the connection has ended already.
    pub fn bind(&self, claim: ClaimId) -> bool {
        let mut state = self.state.lock();
        state.claim = (!state.closed).then_some(claim);
        !state.closed
    }

    /// From now on the end of the connection is no loss of a claim. False if the connection has ended already.
    pub fn unbind(&self) -> bool {
        let mut state = self.state.lock();
        state.claim = None;
        !state.closed
    }
}
