//! The engine around the stores of a set: each call goes to the store of the lock's name.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, EventStream, Grant, HeldClaim, Leave, Place, Record, RecordChange, Renewal, Standing,
    StoreListener, Withdrawn, check_floor,
};
use fencelock_core::support::Mutex;
use fencelock_core::{ClaimId, Clock, Engine, Error, Inspect, LockName, Promises, Result, Token};
use futures_util::future::join_all;

use crate::map::Map;
use crate::member::{Common, Member, close_all, identity_of};
use crate::migration::floor;

/// Several stores as one: each name lies on one of them.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// use fencelock_composite::Routed;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let (one, other) = (Memory::new(), Memory::new());
/// let shards = || -> [(&str, Arc<dyn Engine>); 2] {
///     [("a", Arc::new(one.another())), ("b", Arc::new(other.another()))]
/// };
/// Routed::shards(shards()).set("orders").init().await?; // once, when the set is made
/// let engine = Routed::shards(shards()).set("orders").open().await?;
/// let client = Client::new(Arc::new(engine))?;
/// client.lock("report").await?.release().await?;
/// # Ok(())
/// # }
/// ```
pub struct Routed {
    common: Arc<Common>,
    map: Map,
    /// Sorted by id.
    members: Vec<Member>,
    promises: Promises,
    clock: Clock,
    events: Mutex<Option<EventStream>>,
}

impl Routed {
    pub(crate) fn new(
        common: Arc<Common>,
        map: Map,
        members: Vec<Member>,
        promises: Promises,
        clock: Option<Clock>,
        events: EventStream,
    ) -> Self {
        Self {
            common,
            map,
            members,
            promises,
            clock: clock.unwrap_or(Clock::Boot),
            events: Mutex::new(Some(events)),
        }
    }

    /// The id of the shard on which a name lies.
    #[must_use]
    pub fn shard_of(&self, name: &LockName) -> &str {
        self.map.shard_of(name.as_str())
    }

    /// The ids of the shards whose stores are open.
    #[must_use]
    pub fn opened(&self) -> Vec<&str> {
        let opened = self
            .members
            .iter()
            .filter(|member| member.opened().is_some());
        opened.map(|member| member.id.as_str()).collect()
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(crate) const fn map(&self) -> &Map {
        &self.map
    }

    /// The map and the members are of the same ids, in the same order.
    fn place_of(&self, name: &LockName) -> usize {
        self.map.place_of(name.as_str())
    }

    /// The shard of a name.
    pub(crate) fn member(&self, name: &LockName) -> &Member {
        &self.members[self.place_of(name)]
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Engine for Routed {
    /// A store that prescribes them keeps no record, so none is in a set.
    fn claim_ids(&self) -> Option<[u8; 10]> {
        None
    }

    fn promises(&self) -> &Promises {
        &self.promises
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let member = self.member(&claim.name);
        let placed = member.engine().await?.place(claim).await;
        placed.map_err(|error| member.named(error))
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        let member = self.member(&claim.name);
        let waited = member.engine().await?.wait(claim, place).await;
        waited.map_err(|error| member.named(error))
    }

    /// Splits the batch by store and calls all stores at once. The slowest store determines how long it takes; the core avoids
    /// that by separate batches for each [`lane`](Engine::lane).
    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut split: Vec<Vec<usize>> = self.members.iter().map(|_| Vec::new()).collect();
        for (at, held) in held.iter().enumerate() {
            split[self.place_of(&held.claim.name)].push(at);
        }
        let parts = self.members.iter().zip(&split);
        let parts = parts.filter(|(_, places)| !places.is_empty());
        let asked = parts.map(async |(member, places)| {
            let part: Vec<_> = places.iter().map(|at| held[*at].clone()).collect();
            (places, member, renew_at(member, &part).await)
        });
        let mut renewals: Vec<Option<Renewal>> = held.iter().map(|_| None).collect();
        for (places, member, answers) in join_all(asked).await {
            for (at, answer) in places.iter().zip(answers) {
                renewals[*at] = Some(match answer {
                    Renewal::Unknown(error) => Renewal::Unknown(member.named(error)),
                    answer => answer,
                });
            }
        }
        let no_answer = || Renewal::Unknown(Error::internal(self, "a renewal had no answer"));
        let renewals = renewals.into_iter();
        renewals
            .map(|renewal| renewal.unwrap_or_else(no_answer))
            .collect()
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let member = self.member(&claim.name);
        let withdrawn = member.engine().await?.withdraw(claim, how).await;
        withdrawn.map_err(|error| member.named(error))
    }

    /// The record of the first store that answers. It says to which map all of them belong. The record is not changed here.
    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        if change.is_some() {
            let why = "each of its stores has one, which `fencelock shards` writes";
            return Err(Error::unsupported(self, "a record of its own", why));
        }
        let mut away = None;
        for member in &self.members {
            let asked = async { member.engine().await?.record(scope, None).await };
            match asked.await {
                Err(error) if error.is_away() => away = away.or(Some(error)),
                answer => return answer,
            }
        }
        Err(away.unwrap_or(Error::Closed))
    }

    async fn raise_tokens(&self, floor: Token) -> Result<Token> {
        check_floor(floor)?;
        let mut engines = Vec::new();
        for member in &self.members {
            engines.push(Arc::clone(member.engine().await?));
        }
        floor::raise_all(&engines, floor).await
    }

    fn forget(&self, claim: &ClaimId) {
        for engine in self.members.iter().filter_map(Member::opened) {
            engine.forget(claim);
        }
    }

    /// The lock service is no store of a set.
    fn home_of(&self, _: &ClaimId) -> Option<String> {
        None
    }

    fn identity(&self) -> String {
        identity_of(&self.common, &self.members)
    }

    fn lane(&self, name: &LockName) -> u32 {
        u32::try_from(self.place_of(name)).unwrap_or(0)
    }

    fn store_of(&self, name: &LockName) -> String {
        self.shard_of(name).to_owned()
    }

    fn listen_to_stores(&self, listener: StoreListener) {
        self.common.listen(listener);
    }

    fn events(&self) -> Result<EventStream> {
        let events = self.events.lock().take();
        events.ok_or_else(|| Error::internal(self, "its events have a listener already"))
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        self.common.joining.close();
        close_all(&self.members).await
    }
}

/// Renews holds of one store.
async fn renew_at(member: &Member, held: &[HeldClaim]) -> Vec<Renewal> {
    match member.engine().await {
        Ok(engine) => engine.renew(held).await,
        Err(error) => {
            let why = error.to_string();
            let unknown = |_| {
                let error = Error::unavailable(member, "renewing holds", why.as_str());
                Renewal::Unknown(error)
            };
            held.iter().map(unknown).collect()
        }
    }
}

impl fmt::Display for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shards:{}", self.common.set)
    }
}

impl fmt::Debug for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Routed({self}: {})", self.map)
    }
}
