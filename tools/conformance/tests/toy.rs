//! A toy engine, written by following CONTRIBUTING.md ("How to add an engine") step by step: leases in a map, and
//! waiters that poll. It promises little, and passes every conformance case of what it promises.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use fencelock::engine::{
    Claim, ClaimId, Cursor, Engine, Event, EventSender, EventSource, EventStream, Grant, HeldClaim,
    Inspect, Leave, Page, Place, Renewal, Standing, Tokens, Withdrawn,
};
use fencelock::support::admission::admits;
use fencelock::{
    BootInstant, Clock, Evict, HolderView, LockName, LockView, Mode, Promises, Result, Token,
};
use fencelock_conformance::{Needs, Store, Subject, cases, harness};

/// Cases that open the store by its URL are skipped: a toy has no scheme in `fencelock::connect`.
const BY_URL: [&str; 2] = ["promises_are_consistent", "unknown_options_are_refused"];

/// How long a waiter pauses between two polls.
const POLL: Duration = Duration::from_millis(10);

// Step 1: what the store keeps of a lock.

struct Row {
    claim: Claim,
    token: Token,
    since: BootInstant,
    expiry: BootInstant,
    asked: bool,
    events: EventSender,
}

#[derive(Default)]
struct Table {
    rows: HashMap<LockName, Row>,
    counter: u64,
}

// Step 2: the engine, and what it promises.

struct Toy {
    table: Arc<Mutex<Table>>,
    promises: Promises,
    events: EventSource,
    sender: EventSender,
}

impl Toy {
    fn on(table: Arc<Mutex<Table>>) -> Self {
        let (sender, events) = EventSource::channel();
        Self {
            table,
            promises: promises(),
            events,
            sender,
        }
    }

    /// The table, without the rows that have expired.
    fn table(&self) -> MutexGuard<'_, Table> {
        let mut table = self.table.lock().unwrap();
        let now = Clock::Boot.now();
        table.rows.retain(|_, row| row.expiry > now);
        table
    }
}

fn promises() -> Promises {
    Promises::new("toy", "none: client and store share one clock")
        .lock_delay(true)
        // Only its own client knows of a waiter.
        .portable(false)
        .min_ttl(Duration::from_millis(10))
        .max_ttl(Duration::from_secs(365 * 86_400))
        .claim_window(Duration::from_millis(100))
}

impl Row {
    fn grant(&self, now: BootInstant, lease: Duration) -> Grant {
        Grant::new(Tokens::one(self.token), now, lease)
    }
}

// Step 3: place, wait, renew, withdraw. Each may be repeated with the same claim id.

#[async_trait]
impl Engine for Toy {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        claim.check_floor("toy:", &self.promises)?;
        let now = Clock::Boot.now();
        let expiry = now + claim.ttl + claim.lock_delay;
        let mut table = self.table();
        if let Some(row) = table.rows.get_mut(&claim.name)
            && row.claim.id == claim.id
        {
            row.expiry = row.expiry.max(expiry);
            return Ok(Standing::Held(row.grant(now, claim.ttl)));
        }
        let holder = table.rows.get(&claim.name).map(|row| row.claim.mode);
        if admits(claim.mode, holder) {
            table.counter += 1;
            let row = Row {
                claim: claim.clone(),
                token: Token(table.counter),
                since: now,
                expiry,
                asked: false,
                events: self.sender.clone(),
            };
            let grant = row.grant(now, claim.ttl);
            table.rows.insert(claim.name.clone(), row);
            return Ok(Standing::Held(grant));
        }
        Ok(match claim.wait {
            true => Standing::Waiting(Place::new(now + POLL)),
            false => Standing::Busy,
        })
    }

    /// No waiter is notified: the core places its claim again at the recheck time.
    async fn wait(&self, _claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        Clock::Boot.sleep_until(place.recheck).await;
        Ok(None)
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let now = Clock::Boot.now();
        let mut table = self.table();
        let mut renew = |held: &HeldClaim| {
            let row = table.rows.get_mut(&held.claim.name);
            let same = |row: &&mut Row| row.claim.id == held.claim.id && row.token == held.token;
            let Some(row) = row.filter(same) else {
                return Renewal::Lost;
            };
            let expiry = now + held.claim.ttl + row.claim.lock_delay;
            row.expiry = match held.shorten {
                true => expiry,
                // The call may come late.
                false => expiry.max(row.expiry),
            };
            Renewal::kept(now, held.claim.ttl, row.asked)
        };
        held.iter().map(&mut renew).collect()
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let mut table = self.table();
        let Some(row) = table.rows.get_mut(&claim.name) else {
            return Ok(Withdrawn::Expired);
        };
        if row.claim.id != claim.id {
            return Ok(Withdrawn::NotOwner);
        }
        match how {
            Leave::Release => drop(table.rows.remove(&claim.name)),
            Leave::Abandon => {
                let delayed = Clock::Boot.now() + claim.lock_delay;
                row.expiry = row.expiry.min(delayed);
            }
        }
        Ok(Withdrawn::Released)
    }

    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

// Step 4: inspection for people and resources. `watch`, `attest` and `diagnose` have defaults.

#[async_trait]
impl Inspect for Toy {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let table = self.table();
        let row = table.rows.get(name);
        Ok(row.map_or_else(|| LockView::free(name.clone()), view))
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, _: usize) -> Result<Page<LockView>> {
        if let Some(at) = at {
            // There is one page only.
            return Err(at.refused());
        }
        let table = self.table();
        let found = table.rows.values();
        let found = found.filter(|row| row.claim.name.as_str().starts_with(prefix));
        Ok(Page::new(found.map(view).collect(), None))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let mut table = self.table();
        let row = table.rows.get_mut(name).filter(|row| row.token == token);
        let Some(row) = row else { return Ok(false) };
        let id: ClaimId = row.claim.id;
        match how {
            Evict::Ask => {
                row.asked = true;
                row.events.tell(Event::Asked(id));
            }
            Evict::Release => row.events.tell(Event::Lost(id)),
        }
        if how == Evict::Release {
            table.rows.remove(name);
        }
        Ok(true)
    }
}

fn view(row: &Row) -> LockView {
    let (now, claim) = (Clock::Boot.now(), &row.claim);
    let mut view = LockView::free(claim.name.clone());
    view.holders.push(
        HolderView::new(claim.owner.to_string(), Mode::Exclusive)
            .claim(claim.id)
            .token(row.token)
            .ttl_left(row.expiry.since(now))
            .lock_delay(claim.lock_delay)
            .held(now.since(row.since))
            .label(claim.label.as_deref().map(str::to_owned)),
    );
    view
}

impl fmt::Debug for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Toy")
    }
}

impl fmt::Display for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("toy:")
    }
}

// Step 5: a subject, so that every case of the list runs on it.

struct ToySubject;

#[async_trait]
impl Subject for ToySubject {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn spans_processes(&self) -> bool {
        false
    }

    async fn open(&self, _server: bool) -> fencelock_testbed::Result<Box<dyn Store>> {
        Ok(Box::new(ToyStore::default()))
    }
}

#[derive(Default)]
struct ToyStore(Arc<Mutex<Table>>);

#[async_trait]
impl Store for ToyStore {
    async fn engine(&self) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(Toy::on(Arc::clone(&self.0))))
    }

    fn url(&self) -> String {
        "toy:".to_owned()
    }

    async fn leftovers(&self) -> fencelock_testbed::Result<u64> {
        Ok(Toy::on(Arc::clone(&self.0)).table().rows.len() as u64)
    }
}

#[test]
fn the_toy_engine_passes_every_case_of_what_it_promises() {
    let promises = promises();
    let cases: Vec<_> = cases::cases()
        .into_iter()
        .filter(|case| case.needs == Needs::Store && (case.promised)(&promises))
        .filter(|case| !BY_URL.contains(&case.name))
        .collect();
    assert!(cases.len() > 30, "only {} cases", cases.len());
    let run = |case| harness::run(&ToySubject, &promises, case, Path::new("")).err();
    let failed: Vec<_> = std::thread::scope(|scope| {
        let threads = cases
            .iter()
            .map(|case| (case.name, scope.spawn(|| run(*case))));
        let threads: Vec<_> = threads.collect();
        let ended = threads.into_iter();
        let ended = ended.map(|(name, thread)| (name, thread.join().unwrap()));
        ended.filter(|(_, failed)| failed.is_some()).collect()
    });
    assert!(failed.is_empty(), "{failed:#?}");
}
