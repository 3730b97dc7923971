//! The engine around the stores of a set that moves from one map to another.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, EventStream, Grant, HeldClaim, Leave, Place, Record, RecordChange, Renewal, Standing,
    StoreListener, Withdrawn,
};
use fencelock_core::support::Mutex;
use fencelock_core::{
    ClaimId, Clock, Engine, Error, Inspect, LockName, Mode, Promises, Result, Token,
};
use futures_util::future::join_all;

use crate::member::{close_all, identity_of};
use crate::moving::acquire::place;
use crate::moving::release::{end, leave_busy, withdraw};
use crate::moving::renew::renew;
use crate::moving::state::State;
use crate::moving::wait::wait;
use crate::phase::Phase;

/// Two stores as one, between which the locks move while programs run.
///
/// [`Migration`](crate::Migration) writes the records and makes the steps. This engine reads the records, and takes for each
/// lock the stores that the phase demands.
pub struct Moving {
    state: Arc<State>,
    promises: Promises,
    events: Mutex<Option<EventStream>>,
}

impl Moving {
    pub(crate) fn new(state: Arc<State>, promises: Promises, events: EventStream) -> Self {
        let events = Mutex::new(Some(events));
        Self {
            state,
            promises,
            events,
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// The phase that this process knows.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        self.state.knowledge.now().map(|now| now.known.phase)
    }
}

impl Moving {
    /// The error for a client whose call failed. It must tell whether a store may still have something of the claim.
    async fn failed(&self, claim: &Claim, error: Error) -> Error {
        let asked = match self.state.entry(&claim.id) {
            Some(entry) => entry.is_asked().await,
            None => false,
        };
        if !asked {
            self.state.remove(&claim.id);
            return error;
        }
        if !error.is_retryable() {
            // After such an error the client does not withdraw.
            end(&self.state, claim).await;
            return error;
        }
        match error {
            // A breaker's error would say that no request was sent, but the other store got one.
            Error::Unavailable {
                store,
                action,
                cause,
                ..
            } => Error::unavailable(store, action, cause.to_string()),
            error => error,
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Engine for Moving {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    /// A claim belongs to its process, which withdraws it.
    fn forget(&self, _: &ClaimId) {}

    /// A store that prescribes them keeps no record, so none is in a set.
    fn claim_ids(&self) -> Option<[u8; 10]> {
        None
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        // Checked before the claim reaches a store.
        claim.check_floor(self, &self.promises)?;
        let entry = self.state.entry(&claim.id);
        match entry.and_then(|entry| entry.believed_mode()) {
            Some(held) if held != claim.mode && held != Mode::Exclusive => {
                return Err(Error::stronger_mode(self, held));
            }
            _ => {}
        }
        match place(&self.state, claim).await {
            Err(error) => Err(self.failed(claim, error).await),
            Ok(Standing::Busy) => {
                leave_busy(&self.state, claim).await;
                Ok(Standing::Busy)
            }
            standing => standing,
        }
    }

    async fn wait(&self, claim: &Claim, at: &Place) -> Result<Option<Grant>> {
        wait(&self.state, claim, at).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        renew(&self.state, held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        withdraw(&self.state, claim, how).await
    }

    /// The record of the first store that has one. All stores that some names need must answer. The record is not changed here.
    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        if change.is_some() {
            let why = "each of its stores has one, which `fencelock migrate` writes";
            return Err(Error::unsupported(self, "a record of its own", why));
        }
        let now = self.state.known()?;
        let members = self.state.ids.iter().zip(&self.state.members);
        let used = members.filter(|(id, _)| now.known.is_used(id));
        let asked = used.map(async |(_, member)| {
            let asked = async { member.engine().await?.record(scope, None).await };
            asked.await.map_err(|error| member.named(error))
        });
        let records = join_all(asked).await.into_iter();
        let records: Vec<Record> = records.collect::<Result<_>>()?;
        let mut written = records.into_iter().filter(|record| !record.text.is_empty());
        Ok(written.next().unwrap_or_default())
    }

    async fn raise_tokens(&self, _: Token) -> Result<Token> {
        let why = "its locks move while programs run, and each step raises the tokens that must be raised";
        Err(Error::unsupported(self, "raising all tokens", why))
    }

    /// The lock service is no store of a set.
    fn home_of(&self, _: &ClaimId) -> Option<String> {
        None
    }

    fn identity(&self) -> String {
        identity_of(&self.state.common, &self.state.members)
    }

    /// Names with the same stores share a lane.
    fn lane(&self, name: &LockName) -> u32 {
        let count = self.state.members.len();
        let route = self
            .state
            .known()
            .and_then(|now| self.state.route(&now.known, name));
        let lane = route.map_or(0, |route| {
            route
                .stores()
                .fold(0, |lane, store| lane * (count + 1) + store + 1)
        });
        u32::try_from(lane).unwrap_or(0)
    }

    /// The store that counts for the name, as far as this process knows.
    fn store_of(&self, name: &LockName) -> String {
        match self.state.knowledge.now() {
            Some(now) => now.known.counts(name).to_owned(),
            None => self.promises.engine.to_owned(),
        }
    }

    fn listen_to_stores(&self, listener: StoreListener) {
        self.state.common.listen(listener);
    }

    fn events(&self) -> Result<EventStream> {
        let events = self.events.lock().take();
        events.ok_or_else(|| Error::internal(self, "its events have a listener already"))
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        self.state.close();
        close_all(&self.state.members).await
    }
}

impl Drop for Moving {
    /// Stops reading the record.
    fn drop(&mut self) {
        self.state.close();
    }
}

impl fmt::Display for Moving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.state, f)
    }
}

impl fmt::Debug for Moving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.state, f)
    }
}
