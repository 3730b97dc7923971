//! The suite is worth something only if it fails: engines that are wrong in one way each, and the cases that must find
//! them. On the same engine without the fault the same cases pass.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use async_trait::async_trait;
use fencelock::engine::{
    Claim, Cursor, Evict, Grant, HeldClaim, Leave, LockView, Page, Place, Renewal, Standing,
    WaiterView, Withdrawn,
};
use fencelock::layers::Layer;
use fencelock::{
    ClaimId, Clock, Engine, LockName, Memory, Mode, Order, Promises, Result, Token, Tokens,
};
use fencelock_conformance::{Case, Needs, Store, Subject, cases, harness};

/// What an engine does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    Nothing,
    GrantsWhatIsHeld,
    RepeatsTokens,
    CountsTokensDown,
    RestartsTokensPerClient,
    BelievesTwiceAsLong,
    CountsFromTheReply,
    NeverReleases,
    NeverLeavesTheLine,
    ReleasesWhoeverHolds,
    ServesTheLastFirst,
    KeepsTheEvicted,
    EvictsAnyToken,
    EvictsWhenItShouldAsk,
    ShowsWhatWas,
    TakesExclusiveForShared,
    TakesSharedForExclusive,
    ReleasesAllReaders,
    ForgetsTheLockDelay,
    LeavesSomethingPerName,
    MixesUpNames,
    IgnoresRefreshes,
    ForgetsLabels,
    ListsByPattern,
    DowngradesInNameOnly,
    GrantsOnePermitMore,
    AdmitsUnequalPermits,
    ReleasesAllPermits,
    KnowsItsOwnClaimsOnly,
    ShortensByPlacing,
    RedrawsByPlacing,
    RenewsByIdAlone,
    /// No fault, if it keeps what it does promise.
    PromisesLittle,
}

/// Each mutant, and cases that must fail on it.
const MUTANTS: &[(Mutant, &[&str])] = &[
    (
        Mutant::GrantsWhatIsHeld,
        &["held_means_held", "tasks_and_clients_exclude_each_other"],
    ),
    (Mutant::RepeatsTokens, &["tokens_increase_over_release"]),
    (
        Mutant::CountsTokensDown,
        &[
            "tokens_increase_over_release",
            "tokens_increase_over_expiry",
        ],
    ),
    (
        Mutant::RestartsTokensPerClient,
        &["tokens_increase_over_release"],
    ),
    (Mutant::BelievesTwiceAsLong, &["the_client_knows_first"]),
    (Mutant::CountsFromTheReply, &["the_client_knows_first"]),
    (Mutant::NeverReleases, &["held_means_held"]),
    (
        Mutant::NeverLeavesTheLine,
        &["a_wait_dropped_at_any_moment"],
    ),
    (
        Mutant::ReleasesWhoeverHolds,
        &["a_late_release_spares_the_next"],
    ),
    (Mutant::ServesTheLastFirst, &["waiters_are_served_in_order"]),
    (
        Mutant::KeepsTheEvicted,
        &["eviction_is_fenced_by_the_token"],
    ),
    (Mutant::EvictsAnyToken, &["eviction_is_fenced_by_the_token"]),
    (
        Mutant::EvictsWhenItShouldAsk,
        &["a_holder_is_asked_to_let_go"],
    ),
    (Mutant::ShowsWhatWas, &["check_is_exact"]),
    (
        Mutant::TakesExclusiveForShared,
        &["held_means_held", "exclusive_keeps_shared_out"],
    ),
    (Mutant::TakesSharedForExclusive, &["shared_beside_shared"]),
    (Mutant::ReleasesAllReaders, &["shared_beside_shared"]),
    (
        Mutant::ForgetsTheLockDelay,
        &[
            "a_lock_delay_follows_a_loss",
            "an_unhealthy_holder_leaves_its_lock_delay",
        ],
    ),
    (
        Mutant::LeavesSomethingPerName,
        &["ten_thousand_names_leave_nothing"],
    ),
    (Mutant::MixesUpNames, &["no_name_holds_another"]),
    (
        Mutant::IgnoresRefreshes,
        &["without_renewal_refresh_prolongs"],
    ),
    (
        Mutant::ForgetsLabels,
        &["a_look_tells_who_holds_and_who_waits"],
    ),
    (Mutant::ListsByPattern, &["a_list_tells_what_is_held"]),
    (
        Mutant::DowngradesInNameOnly,
        &["a_downgrade_lets_readers_in"],
    ),
    (
        Mutant::GrantsOnePermitMore,
        &["permits_are_counted", "permits_are_served_in_order"],
    ),
    (
        Mutant::AdmitsUnequalPermits,
        &["permits_that_name_different_numbers_keep_each_other_out"],
    ),
    (Mutant::ReleasesAllPermits, &["permits_are_counted"]),
    (
        Mutant::KnowsItsOwnClaimsOnly,
        &["another_client_goes_on_with_a_claim"],
    ),
    (
        Mutant::ShortensByPlacing,
        &["a_late_place_does_not_shorten"],
    ),
    (Mutant::RedrawsByPlacing, &["a_late_place_does_not_shorten"]),
    (
        Mutant::RenewsByIdAlone,
        &["a_renewal_with_an_old_token_is_lost"],
    ),
];

fn case(name: &str) -> &'static Case {
    let mut all = cases::cases().into_iter();
    all.find(|case| case.name == name)
        .unwrap_or_else(|| panic!("there is no case {name}"))
}

/// Runs cases on mutants, each on a thread of its own, for most of the time is spent waiting; says why which failed.
fn run(runs: &[(Mutant, &'static str)]) -> Vec<Option<String>> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Failures of mutants are what is wanted, and not to be read by anybody.
            let thread = std::thread::current();
            if !thread
                .name()
                .is_some_and(|name| name.starts_with("mutant::"))
            {
                usual(panic);
            }
        }));
    });
    let outcomes = std::thread::scope(|scope| {
        let run = |(mutant, name): (Mutant, &'static str)| {
            let subject = Wrong(mutant);
            let promises = promises(mutant);
            harness::run(&subject, &promises, case(name), Path::new("")).err()
        };
        let threads: Vec<_> = runs
            .iter()
            .map(|wanted| scope.spawn(move || run(*wanted)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join())
            .collect::<Vec<_>>()
    });
    outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap())
        .collect()
}

#[test]
fn every_mutant_is_found_and_the_original_is_not() {
    let names: BTreeSet<&str> = MUTANTS
        .iter()
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    let original: Vec<_> = names
        .into_iter()
        .map(|name| (Mutant::Nothing, name))
        .collect();
    for ((_, name), failed) in original.iter().zip(run(&original)) {
        assert_eq!(failed, None, "{name} fails on an engine without a fault");
    }
    let mutants: Vec<_> = MUTANTS
        .iter()
        .flat_map(|(mutant, names)| names.iter().map(|name| (*mutant, *name)))
        .collect();
    let mut missed = Vec::new();
    for (run, failed) in mutants.iter().zip(run(&mutants)) {
        if failed.is_none() {
            missed.push(run);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// What is not promised is refused, and its cases are not run; all others are, and pass.
#[test]
fn an_engine_that_promises_little_passes_what_is_left() {
    let little = promises(Mutant::PromisesLittle);
    let (kept, left_out): (Vec<&Case>, Vec<&Case>) = cases::cases()
        .into_iter()
        .filter(|case| case.needs == Needs::Store)
        .partition(|case| (case.promised)(&little));
    let left_out: BTreeSet<&str> = left_out.iter().map(|case| case.name).collect();
    for name in [
        "waiters_are_served_in_order",
        "shared_beside_shared",
        "a_lock_delay_follows_a_loss",
    ] {
        assert!(left_out.contains(name), "{name} is run");
    }
    let kept: Vec<_> = kept
        .iter()
        .map(|case| (Mutant::PromisesLittle, case.name))
        .collect();
    assert!(
        kept.iter()
            .any(|(_, name)| *name == "what_is_not_promised_is_refused")
    );
    for ((_, name), failed) in kept.iter().zip(run(&kept)) {
        assert_eq!(failed, None, "{name}");
    }
}

fn promises(mutant: Mutant) -> Promises {
    let all = Memory::new().promises().clone();
    match mutant {
        Mutant::PromisesLittle => Promises {
            order: Order::Unordered,
            shared: false,
            permits: false,
            lock_delay: false,
            ranges: false,
            ..all
        },
        _ => all,
    }
}

struct Wrong(Mutant);

#[async_trait]
impl Subject for Wrong {
    fn name(&self) -> &'static str {
        "mutant"
    }

    async fn open(&self, _server: bool) -> fencelock_testbed::Result<Box<dyn Store>> {
        Ok(Box::new(WrongStore {
            memory: Memory::new(),
            mutant: self.0,
            shared: Arc::default(),
        }))
    }
}

struct WrongStore {
    memory: Memory,
    mutant: Mutant,
    shared: Arc<Shared>,
}

/// What the engines on one store have in common beside the store.
#[derive(Default)]
struct Shared {
    engines: AtomicU64,
    drawn: AtomicU64,
    line: Mutex<HashMap<LockName, Vec<ClaimId>>>,
    seen: Mutex<HashMap<LockName, LockView>>,
}

#[async_trait]
impl Store for WrongStore {
    async fn engine(&self) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(WrongEngine {
            memory: self.memory.another(),
            mutant: self.mutant,
            number: self.shared.engines.fetch_add(1, Ordering::SeqCst),
            shared: Arc::clone(&self.shared),
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
    shared: Arc<Shared>,
    drawn: AtomicU64,
    promises: Promises,
}

impl WrongEngine {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    /// The claim as the mutant sends it on.
    fn sent(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        match self.mutant {
            Mutant::TakesExclusiveForShared => claim.mode = Mode::Shared,
            Mutant::TakesSharedForExclusive => claim.mode = Mode::Exclusive,
            Mutant::ForgetsTheLockDelay => claim.lock_delay = Duration::ZERO,
            Mutant::ForgetsLabels => claim.label = None,
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

    /// The grant as the mutant tells of it.
    fn told(&self, mut grant: Grant) -> Grant {
        let token = &mut grant.tokens.first.0;
        match self.mutant {
            Mutant::RepeatsTokens => *token = token.div_ceil(2),
            Mutant::CountsTokensDown => *token = (1 << 40) - *token,
            Mutant::RestartsTokensPerClient => *token = self.drawn.fetch_add(1, Ordering::SeqCst),
            Mutant::BelievesTwiceAsLong => grant.lease *= 2,
            Mutant::CountsFromTheReply => {
                grant.counted_from = grant.counted_from + Duration::from_millis(30);
            }
            Mutant::RedrawsByPlacing => *token += self.shared.drawn.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
        grant
    }

    /// The view as the mutant tells of it.
    fn shown(&self, name: &LockName, mut view: LockView) -> LockView {
        match self.mutant {
            Mutant::ShowsWhatWas => {
                let mut seen = self.shared.seen.lock().unwrap();
                if !view.holders.is_empty() {
                    seen.insert(name.clone(), view.clone());
                }
                return seen.get(name).cloned().unwrap_or(view);
            }
            Mutant::ServesTheLastFirst => {
                let line = self.shared.line.lock().unwrap();
                let count = line.get(name).map_or(0, Vec::len);
                view.waiters = vec![
                    WaiterView {
                        owner: String::new(),
                        mode: Mode::Exclusive,
                        label: None,
                    };
                    count
                ];
            }
            _ => {}
        }
        view
    }

    /// Renews by the claim's id, whatever the token.
    async fn renew_by_id(&self, claim: &Claim) -> Result<Vec<Renewal>> {
        let view = self.memory.inspect().look(&claim.name).await?;
        let mut holders = view.holders.into_iter();
        let mine = holders.find(|holder| holder.claim == Some(claim.id));
        let token = mine.and_then(|holder| holder.token).unwrap_or(Token(0));
        let claim = claim.clone();
        Ok(self.memory.renew(&[HeldClaim { claim, token }]).await)
    }

    fn waiting(&self, recheck: Duration) -> Standing {
        Standing::Waiting(Place {
            ahead: None,
            recheck: Clock::Boot.now() + recheck,
        })
    }

    /// A line that serves whoever came last.
    async fn place_last_first(&self, claim: &Claim) -> Result<Standing> {
        let is_last = {
            let mut line = self.shared.line.lock().unwrap();
            let line = line.entry(claim.name.clone()).or_default();
            if !line.contains(&claim.id) {
                line.push(claim.id);
            }
            line.last() == Some(&claim.id)
        };
        let asked = Claim {
            wait: false,
            ..claim.clone()
        };
        let standing = match is_last {
            true => self.memory.place(&asked).await?,
            false => Standing::Busy,
        };
        if matches!(standing, Standing::Held(_)) || !claim.wait {
            self.leave_line(claim);
        }
        match standing {
            Standing::Busy if claim.wait => Ok(self.waiting(Duration::from_millis(5))),
            standing => Ok(standing),
        }
    }

    fn leave_line(&self, claim: &Claim) {
        let mut line = self.shared.line.lock().unwrap();
        if let Some(line) = line.get_mut(&claim.name) {
            line.retain(|id| *id != claim.id);
        }
    }

    /// Withdraws every claim that holds the name, whosever it is.
    async fn withdraw_all(&self, claim: &Claim) -> Result<Withdrawn> {
        let view = self.memory.inspect().look(&claim.name).await?;
        for holder in view.holders {
            let other = Claim {
                id: holder.claim.unwrap(),
                ..claim.clone()
            };
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
                return self.memory.place(&Claim { mode, ..claim }).await;
            }
        }
        Ok(match self.memory.place(claim).await? {
            Standing::Held(grant) if self.is(Mutant::ShortensByPlacing) => {
                self.renew_by_id(claim).await?;
                Standing::Held(grant)
            }
            Standing::Held(grant) => Standing::Held(self.told(grant)),
            _ if self.is(Mutant::GrantsWhatIsHeld) => Standing::Held(Grant {
                tokens: Tokens::one(Token(
                    1000 + self.shared.drawn.fetch_add(1, Ordering::SeqCst),
                )),
                counted_from: Clock::Boot.now(),
                lease: claim.ttl,
                recorded: true,
            }),
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
            .map(|held| HeldClaim {
                claim: self.sent(&held.claim),
                token: held.token,
            })
            .collect();
        if self.is(Mutant::IgnoresRefreshes) {
            let kept = |held: &HeldClaim| Renewal::Kept {
                counted_from: Clock::Boot.now(),
                lease: held.claim.ttl,
                asked: false,
            };
            return held.iter().map(kept).collect();
        }
        if self.is(Mutant::RenewsByIdAlone) {
            let mut renewals = Vec::new();
            for held in &held {
                renewals.extend(self.renew_by_id(&held.claim).await.unwrap());
            }
            return renewals;
        }
        self.memory.renew(&held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let claim = &self.sent(claim);
        self.leave_line(claim);
        let view = self.memory.inspect().look(&claim.name).await?;
        let holds = view
            .holders
            .iter()
            .any(|holder| holder.claim == Some(claim.id));
        match self.mutant {
            Mutant::NeverReleases if holds => Ok(Withdrawn::Released),
            Mutant::NeverLeavesTheLine if !holds => Ok(Withdrawn::LeftQueue),
            Mutant::ReleasesWhoeverHolds => self.withdraw_all(claim).await,
            Mutant::ReleasesAllPermits if matches!(claim.mode, Mode::Permit { .. }) => {
                self.withdraw_all(claim).await
            }
            Mutant::ReleasesAllReaders if claim.mode == Mode::Shared => {
                self.withdraw_all(claim).await
            }
            Mutant::LeavesSomethingPerName => {
                let name = LockName::new(&format!("was/{}", claim.name))?;
                let left = Claim {
                    name,
                    wait: false,
                    ttl: Duration::from_secs(3600),
                    ..claim.clone()
                };
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
        write!(f, "an engine that is wrong: {:?}", self.mutant)
    }
}

impl fmt::Display for WrongEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
