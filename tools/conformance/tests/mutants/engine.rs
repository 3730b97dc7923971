//! An engine in memory with one fault.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fencelock::engine::{
    Claim, ClaimId, Cursor, Engine, Evict, Grant, HeldClaim, Leave, LockView, Page, Place, Record,
    RecordChange, Renewal, Standing, Tokens, WaiterView, Withdrawn,
};
use fencelock::layers::Layer;
use fencelock::{Clock, LockName, Memory, Mode, Promises, Result, Token};
use fencelock_conformance::{Store, Subject};

use crate::mutant::{Mutant, promises};

/// The subject with this fault.
pub(crate) struct Wrong(pub(crate) Mutant);

#[async_trait]
impl Subject for Wrong {
    fn name(&self) -> &'static str {
        "mutant"
    }

    async fn open(&self, _server: bool) -> fencelock_testbed::Result<Box<dyn Store>> {
        Ok(Box::new(WrongStore {
            memory: Memory::new(),
            mutant: self.0,
            state: Arc::default(),
        }))
    }
}

struct WrongStore {
    memory: Memory,
    mutant: Mutant,
    state: Arc<State>,
}

/// What the engines on one store share besides the store.
#[derive(Default)]
struct State {
    engines: AtomicU64,
    drawn: AtomicU64,
    queue: Mutex<HashMap<LockName, Vec<ClaimId>>>,
    seen: Mutex<HashMap<LockName, LockView>>,
}

#[async_trait]
impl Store for WrongStore {
    async fn engine(&self) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(WrongEngine {
            memory: self.memory.another(),
            mutant: self.mutant,
            number: self.state.engines.fetch_add(1, Ordering::SeqCst),
            state: Arc::clone(&self.state),
            drawn: AtomicU64::new(0),
            promises: promises(self.mutant),
        }))
    }

    fn url(&self) -> String {
        "memory:".to_owned()
    }

    async fn leftovers(&self) -> fencelock_testbed::Result<u64> {
        Ok(self.memory.len() as u64)
    }
}

struct WrongEngine {
    memory: Memory,
    mutant: Mutant,
    number: u64,
    state: Arc<State>,
    drawn: AtomicU64,
    promises: Promises,
}

impl WrongEngine {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    /// The claim that the mutant passes on.
    fn sent(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        match self.mutant {
            Mutant::TreatsExclusiveAsShared => claim.mode = Mode::Shared,
            Mutant::TreatsSharedAsExclusive => claim.mode = Mode::Exclusive,
            Mutant::IgnoresTheLockDelay => claim.lock_delay = Duration::ZERO,
            Mutant::ForgetsLabels => claim.label = None,
            Mutant::IgnoresFloors => claim.floor = Token(0),
            Mutant::GrantsOnePermitMore => {
                if let Mode::Permit { of } = claim.mode {
                    let of = of.saturating_add(1);
                    claim.mode = Mode::Permit { of };
                }
            }
            Mutant::AdmitsUnequalPermits => {
                if let Mode::Permit { of } = &mut claim.mode {
                    *of = NonZeroU32::MAX;
                }
            }
            Mutant::KnowsItsOwnClaimsOnly => {
                let mut id = *claim.id.as_bytes();
                id[0] ^= self.number as u8;
                claim.id = ClaimId::from_bytes(id);
            }
            Mutant::MixesUpNames => {
                claim.name = LockName::new(&claim.name.as_str().to_lowercase()).unwrap();
            }
            _ => {}
        }
        claim
    }

    /// The grant that the mutant reports.
    fn reported(&self, mut grant: Grant) -> Grant {
        let token = &mut grant.tokens.first.0;
        match self.mutant {
            Mutant::RepeatsTokens => *token = token.div_ceil(2),
            Mutant::CountsTokensDown => *token = (1 << 40) - *token,
            Mutant::RestartsTokensPerClient => *token = self.drawn.fetch_add(1, Ordering::SeqCst),
            Mutant::BelievesTwiceAsLong => grant.lease *= 2,
            Mutant::CountsFromTheReply => {
                grant.counted_from = grant.counted_from + Duration::from_millis(30);
            }
            Mutant::RedrawsByPlacing => *token += self.state.drawn.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
        grant
    }

    /// The view that the mutant reports.
    fn shown(&self, name: &LockName, mut view: LockView) -> LockView {
        match self.mutant {
            Mutant::ShowsWhatWas => {
                let mut seen = self.state.seen.lock().unwrap();
                if !view.holders.is_empty() {
                    seen.insert(name.clone(), view.clone());
                }
                return seen.get(name).cloned().unwrap_or(view);
            }
            Mutant::ServesTheLastFirst => {
                let queue = self.state.queue.lock().unwrap();
                let count = queue.get(name).map_or(0, Vec::len);
                view.waiters = vec![WaiterView::new(String::new(), Mode::Exclusive); count];
            }
            _ => {}
        }
        view
    }

    /// Renews by the id of the claim, for any token.
    async fn renew_by_id(&self, claim: &Claim, shorten: bool) -> Result<Vec<Renewal>> {
        let view = self.memory.inspect().look(&claim.name).await?;
        let mut holders = view.holders.into_iter();
        let mine = holders.find(|holder| holder.claim == Some(claim.id));
        let token = mine.and_then(|holder| holder.token).unwrap_or(Token(0));
        let claim = claim.clone();
        let held = HeldClaim::new(claim, token).shorten(shorten);
        Ok(self.memory.renew(&[held]).await)
    }

    fn waiting(&self, recheck: Duration) -> Standing {
        Standing::Waiting(Place::new(Clock::Boot.now() + recheck))
    }

    /// A queue that serves the last claim first.
    async fn place_last_first(&self, claim: &Claim) -> Result<Standing> {
        let is_last = {
            let mut queue = self.state.queue.lock().unwrap();
            let queue = queue.entry(claim.name.clone()).or_default();
            if !queue.contains(&claim.id) {
                queue.push(claim.id);
            }
            queue.last() == Some(&claim.id)
        };
        let asked = claim.clone().wait(false);
        let standing = match is_last {
            true => self.memory.place(&asked).await?,
            false => Standing::Busy,
        };
        if matches!(standing, Standing::Held(_)) || !claim.wait {
            self.leave_queue(claim);
        }
        match standing {
            Standing::Busy if claim.wait => Ok(self.waiting(Duration::from_millis(5))),
            standing => Ok(standing),
        }
    }

    fn leave_queue(&self, claim: &Claim) {
        let mut queue = self.state.queue.lock().unwrap();
        if let Some(queue) = queue.get_mut(&claim.name) {
            queue.retain(|id| *id != claim.id);
        }
    }

    /// Withdraws every claim that holds the name, of any owner.
    async fn withdraw_all(&self, claim: &Claim) -> Result<Withdrawn> {
        let view = self.memory.inspect().look(&claim.name).await?;
        for holder in view.holders {
            let mut other = claim.clone();
            other.id = holder.claim.unwrap();
            self.memory.withdraw(&other, Leave::Release).await?;
        }
        self.memory.withdraw(claim, Leave::Release).await?;
        Ok(Withdrawn::Released)
    }
}

#[async_trait]
impl Layer for WrongEngine {
    fn below(&self) -> &dyn Engine {
        &self.memory
    }

    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        let mut change = change.cloned();
        if let Some(change) = &mut change
            && self.is(Mutant::ChangesAnyRecord)
        {
            change.from = self.memory.record(scope, None).await?.version;
        }
        self.memory.record(scope, change.as_ref()).await
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let claim = &self.sent(claim);
        if self.is(Mutant::ServesTheLastFirst) {
            return self.place_last_first(claim).await;
        }
        if self.is(Mutant::DowngradesInNameOnly) {
            let view = self.memory.inspect().look(&claim.name).await?;
            let mut held = view.holders.iter();
            if let Some(held) = held.find(|holder| holder.claim == Some(claim.id)) {
                let mode = held.mode;
                let claim = claim.clone();
                return self.memory.place(&claim.mode(mode)).await;
            }
        }
        Ok(match self.memory.place(claim).await? {
            Standing::Held(grant) if self.is(Mutant::ShortensByPlacing) => {
                self.renew_by_id(claim, true).await?;
                Standing::Held(grant)
            }
            Standing::Held(grant) => Standing::Held(self.reported(grant)),
            _ if self.is(Mutant::GrantsWhatIsHeld) => Standing::Held(Grant::new(
                Tokens::one(Token(
                    1000 + self.state.drawn.fetch_add(1, Ordering::SeqCst),
                )),
                Clock::Boot.now(),
                claim.ttl,
            )),
            standing => standing,
        })
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        if self.is(Mutant::ServesTheLastFirst) {
            return std::future::pending().await;
        }
        self.memory.wait(&self.sent(claim), place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let held: Vec<HeldClaim> = held
            .iter()
            .map(|held| {
                let shorten = match self.mutant {
                    Mutant::ShortensByRenewing => true,
                    Mutant::NeverShortens => false,
                    _ => held.shorten,
                };
                HeldClaim::new(self.sent(&held.claim), held.token).shorten(shorten)
            })
            .collect();
        if self.is(Mutant::IgnoresRefreshes) {
            let kept = |held: &HeldClaim| Renewal::kept(Clock::Boot.now(), held.claim.ttl, false);
            return held.iter().map(kept).collect();
        }
        if self.is(Mutant::RenewsByIdAlone) {
            let mut renewals = Vec::new();
            for held in &held {
                let renewed = self.renew_by_id(&held.claim, held.shorten).await;
                renewals.extend(renewed.unwrap());
            }
            return renewals;
        }
        self.memory.renew(&held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let claim = &self.sent(claim);
        self.leave_queue(claim);
        let view = self.memory.inspect().look(&claim.name).await?;
        let holds = view
            .holders
            .iter()
            .any(|holder| holder.claim == Some(claim.id));
        match self.mutant {
            Mutant::NeverReleases if holds => Ok(Withdrawn::Released),
            Mutant::NeverLeavesTheQueue if !holds => Ok(Withdrawn::LeftQueue),
            Mutant::ReleasesAnyHolder => self.withdraw_all(claim).await,
            Mutant::ReleasesAllPermits if matches!(claim.mode, Mode::Permit { .. }) => {
                self.withdraw_all(claim).await
            }
            Mutant::ReleasesAllReaders if claim.mode == Mode::Shared => {
                self.withdraw_all(claim).await
            }
            Mutant::LeavesSomethingPerName => {
                let name = LockName::new(&format!("was/{}", claim.name))?;
                let mut left = claim.clone().wait(false).ttl(Duration::from_secs(3600));
                left.name = name;
                self.memory.place(&left).await?;
                self.memory.withdraw(claim, how).await
            }
            _ => self.memory.withdraw(claim, how).await,
        }
    }

    async fn look(&self, name: &LockName) -> Result<LockView> {
        let view = self.memory.inspect().look(name).await?;
        Ok(self.shown(name, view))
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let view = self.memory.inspect().watch(name, seen).await?;
        Ok(self.shown(name, view))
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let prefix = match self.mutant {
            Mutant::ListsByPattern => prefix.split(['*', '?', '[', '%', '_']).next().unwrap(),
            _ => prefix,
        };
        self.memory.inspect().list(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        match self.mutant {
            Mutant::KeepsTheEvicted => {
                Ok(self.memory.inspect().look(name).await?.token() == Some(token))
            }
            Mutant::EvictsAnyToken => {
                let held = self.memory.inspect().look(name).await?.token();
                self.memory
                    .inspect()
                    .evict(name, held.unwrap_or(token), how)
                    .await
            }
            Mutant::EvictsWhenItShouldAsk => {
                self.memory
                    .inspect()
                    .evict(name, token, Evict::Release)
                    .await
            }
            _ => self.memory.inspect().evict(name, token, how).await,
        }
    }
}

impl fmt::Debug for WrongEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an engine with the fault {:?}", self.mutant)
    }
}

impl fmt::Display for WrongEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
