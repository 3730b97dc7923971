//! A claim's way to the lock: placed, waiting, granted, withdrawn.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnResponse,
};
use fencelock_core::engine::{Claim, Leave, Place, Standing, Withdrawn};
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Tokens};

use crate::base::base_in;
use crate::claims::{Number, Placed, Wanted};
use crate::engine::Shared;
use crate::layout::{Layout, end_of};
use crate::refusal::Trouble;
use crate::session::{Class, Pin, Session};
use crate::txns::{found, revision};
use crate::value::{self, DOWNGRADED, admitted, at_token};

/// A waiter is woken by its predecessor's end. Should that ever be missed, it looks by itself this often.
const RECHECK: Duration = Duration::from_secs(30);

/// How often a claim is placed anew when what was known turns out to be over.
const TRIES: u32 = 5;

/// How a claim stands according to the store.
pub(crate) enum Stands {
    Held,
    Waits(Wanted),
    /// Its key is not there.
    Gone,
}

impl Shared {
    /// Whether the claim's hold is to be on a session of its own: others believe in its token and in its end.
    pub(crate) fn alone(claim: &Claim) -> bool {
        claim.record
    }

    pub(crate) async fn place(self: &Arc<Self>, claim: &Claim) -> Result<Standing> {
        let known = self.claims().get(claim.id).cloned();
        if let Some(placed) = &known
            && placed.there.is_some()
        {
            let asked = Clock::Boot.now();
            if placed.holds && placed.mode == Mode::Exclusive && claim.mode == Mode::Shared {
                return Box::pin(self.downgrade(claim, placed, asked)).await;
            }
            let standing = Box::pin(self.standing(claim, asked, None)).await?;
            if let Some(standing) = standing {
                return Ok(standing);
            }
            // The session ended, or somebody deleted the key. Its place is lost; what is in doubt stays so.
        }
        let mut taken = false;
        if known.is_none() && !self.claims().is_hot(&claim.name) {
            if let Some(standing) = self.take(claim).await? {
                return Ok(standing);
            }
            // Of readers only the line can tell whether they are in the way.
            taken = claim.mode != Mode::Shared;
        }
        // Boxed, here and below, so that the future of an uncontended lock stays small.
        Box::pin(self.take_or_join(claim, taken)).await
    }

    /// Takes the lock, or a place in line. For a lock that is free no line session is needed, so none is begun before it was
    /// found `taken`.
    async fn take_or_join(self: &Arc<Self>, claim: &Claim, taken: bool) -> Result<Standing> {
        let (mut tried, mut taken) = (0, taken);
        while tried < TRIES {
            let base = self.base.number();
            if let Some(standing) = self.put(claim, taken).await? {
                return Ok(standing);
            }
            // Many clients that come at once each lift what tokens are counted from: that is no fault.
            tried += u32::from(base == self.base.number());
            taken = true;
        }
        let action = format!("taking lock {}", claim.name);
        let cause = "what it stood on was over again and again";
        Err(Error::unavailable(&self.store.config.store, action, cause))
    }

    /// From exclusive to shared: under the same key, so in the same place before those who wait.
    async fn downgrade(
        self: &Arc<Self>,
        claim: &Claim,
        placed: &Placed,
        asked: BootInstant,
    ) -> Result<Standing> {
        let Some((revision, tokens)) = placed.there else {
            return Ok(Standing::Busy);
        };
        let moved = self.move_to(claim, &placed.key, revision, placed.base, DOWNGRADED);
        let Some(on) = moved.await? else {
            return Ok(Standing::Busy);
        };
        self.update(claim, |placed| placed.mode = claim.mode);
        let token = Tokens::one(at_token(tokens.first, DOWNGRADED));
        let grant = on.hold(claim, placed.key.as_bytes(), revision, token, asked);
        Ok(grant.map_or(Standing::Busy, Standing::Held))
    }

    /// Takes the lock if nobody is there: then this is all that is asked. `None` if somebody is, or in doubt.
    ///
    /// For claims that were not sent before: it does not look for what an earlier request may have put.
    async fn take(self: &Arc<Self>, claim: &Claim) -> Result<Option<Standing>> {
        loop {
            let hold = self.session_to_hold(claim).await?;
            let base = self.base().await?;
            let key = self.note(claim, base, None, &hold);
            let txn = self.taking(claim, &key, base, &hold);
            let (asked, seen) = (Clock::Boot.now(), self.base.connection(&self.store));
            let action = || format!("taking lock {}", claim.name);
            let answer = match self.store.txn(action, txn).await {
                Ok(answer) => answer,
                Err(trouble) => return Box::pin(self.not_put(claim, trouble, vec![hold])).await,
            };
            if !answer.succeeded() {
                let (counted, _) = found(&answer).next().unwrap_or_default();
                if self.base.has_moved(base, counted.first().and_then(base_in)) {
                    continue;
                }
                self.claims().heat(&claim.name);
                return Ok(None);
            }
            if self.is_from_before(&key, revision(&answer), seen).await? {
                continue;
            }
            self.note_there(claim, revision(&answer), &hold.0);
            return self.grant(claim, asked).await;
        }
    }

    /// Puts the claim's key unless it is there already. `None`: again, with what is known by now.
    async fn put(self: &Arc<Self>, claim: &Claim, taken: bool) -> Result<Option<Standing>> {
        let base = self.base().await?;
        let hold = self.session_to_hold(claim).await?;
        let class = Class::line(self.store.config.window);
        let counted = stands_in_line(claim) || (taken && claim.mode == Mode::Shared);
        let line = match (counted, taken) {
            (true, true) => Some(self.session(class, claim).await?),
            (true, false) => {
                let size = self.layout().longest(&claim.name);
                self.sessions.usable(class, size)
            }
            (false, _) => None,
        };
        let key = self.note(claim, base, line.as_ref(), &hold);
        let joins = line.as_ref().filter(|_| self.joins(claim));
        let txn = match joins {
            Some(line) => self.joining(claim, &key, base, line),
            None => self.placing(claim, &key, base, (&hold, line.as_ref())),
        };
        let (asked, seen) = (Clock::Boot.now(), self.base.connection(&self.store));
        let action = || format!("taking lock {}", claim.name);
        let answer = match self.store.txn(action, txn).await {
            Ok(answer) => answer,
            Err(trouble) => {
                let used = match joins {
                    Some(line) => vec![Arc::clone(line)],
                    None => line.into_iter().chain([hold]).collect(),
                };
                return self.not_put(claim, trouble, used).await;
            }
        };
        let went_back =
            answer.succeeded() && self.is_from_before(&key, revision(&answer), seen).await?;
        match joins {
            _ if went_back => Ok(None),
            Some(line) if answer.succeeded() => {
                self.note_there(claim, revision(&answer), &line.0);
                let (others, more) = found(&answer).next().unwrap_or_default();
                let stands = stands_last(key.as_bytes(), &others, more);
                match stands {
                    Some(Stands::Held) => self.claims().cool(&claim.name),
                    _ => self.claims().heat(&claim.name),
                }
                self.standing(claim, asked, stands).await
            }
            None if answer.succeeded() => {
                self.claims().cool(&claim.name);
                self.note_there(claim, revision(&answer), &hold.0);
                self.grant(claim, asked).await
            }
            _ => {
                self.claims().heat(&claim.name);
                self.not_free(claim, base, asked, &answer, line).await
            }
        }
    }

    /// The session that a hold of this claim is to be on.
    async fn session_to_hold(self: &Arc<Self>, claim: &Claim) -> Result<Arc<Pin>> {
        let hold = self
            .session(Class::of(claim, Self::alone(claim)), claim)
            .await?;
        if self.layout() == Layout::Concurrency {
            // Go's keys are named after the session: another claim of this client may have that name.
            let any = Number { series: 0, at: 0 };
            let key = self.key(claim, any, &hold);
            if self.claims().is_anothers(claim.id, &key) {
                return self.session(Class::of(claim, true), claim).await;
            }
        }
        Ok(hold)
    }

    fn key(&self, claim: &Claim, number: Number, hold: &Pin) -> String {
        let lease = hold.0.lease;
        self.layout().key(claim, &self.client, number, lease)
    }

    /// Notes a claim that is about to be sent, with the sessions that it needs; its key.
    fn note(
        &self,
        claim: &Claim,
        base: Option<u64>,
        line: Option<&Arc<Pin>>,
        hold: &Arc<Pin>,
    ) -> String {
        // Numbered and noted at once: no other claim is to have this key.
        let mut claims = self.claims();
        let number = claims.number(claim);
        let earlier = claims.get(claim.id);
        let key = self.key(claim, number, hold);
        let placed = Placed {
            key: key.clone(),
            number,
            there: None,
            on: Arc::clone(&hold.0),
            at: 0,
            base,
            holds: false,
            mode: claim.mode,
            waits_for: None,
            doubtful: earlier.map_or_else(Vec::new, |placed| placed.doubtful.clone()),
            undone: false,
            pins: line.into_iter().chain([hold]).cloned().collect(),
        };
        claims.insert(claim, placed);
        key
    }

    /// What follows from an error of a request that was to put a claim in one of these sessions.
    async fn not_put(
        self: &Arc<Self>,
        claim: &Claim,
        trouble: Trouble,
        used: Vec<Arc<Pin>>,
    ) -> Result<Option<Standing>> {
        if trouble.maybe_done {
            for pin in &used {
                pin.0.retire();
            }
            self.claims().begin_series();
        }
        self.update(claim, |placed| {
            if trouble.maybe_done {
                let used = used.iter().map(|pin| Arc::clone(&pin.0));
                placed.doubtful.push(used.collect());
            }
            // Nothing but the request itself needs them.
            placed.pins.clear();
        });
        if trouble.lease_gone {
            let now = Clock::Boot.now();
            for pin in &used {
                self.check(&pin.0, now).await?;
            }
            return Ok(None);
        }
        self.claims().remove_unless_doubtful(claim.id);
        Err(trouble.error)
    }

    /// Whether a claim joins the line at once where one is to be expected, and takes a lock that turns out to be free as
    /// the first in line. Others would have to be moved to another session then.
    fn joins(&self, claim: &Claim) -> bool {
        let moves = Self::alone(claim) || !claim.lock_delay.is_zero();
        claim.mode == Mode::Exclusive && claim.wait && !moves
    }

    /// Somebody was there before.
    async fn not_free(
        self: &Arc<Self>,
        claim: &Claim,
        base: Option<u64>,
        asked: BootInstant,
        answer: &TxnResponse,
        line: Option<Arc<Pin>>,
    ) -> Result<Option<Standing>> {
        let mut gets = found(answer);
        let mut next = || gets.next().unwrap_or_default();
        let ((found_base, _), (own, _), (others, more)) = (next(), next(), next());
        let Some(own) = own.first() else {
            let found = found_base.first().and_then(base_in);
            if self.base.has_moved(base, found) {
                return Ok(None);
            }
            // A writer's key may be a reader's by now; only those who stand in line can tell.
            let readers = || self.are_readers(claim, &others);
            if line.is_some() || stands_in_line(claim) || readers()? {
                return Ok(None);
            }
            self.claims().give_up(claim.id);
            return Ok(Some(Standing::Busy));
        };
        if !self.is_mine(claim, own) {
            if self.layout() == Layout::Fencelock {
                // No claim of this client has this key: a snapshot that was restored brought it back.
                self.delete(own.key(), own.create_revision()).await?;
            }
            return Ok(None);
        }
        let on = self.sessions.on(own.lease());
        let Some(on) = on else {
            // Put by an earlier request, in a session that is over for this client: it is about to vanish.
            self.delete(own.key(), own.create_revision()).await?;
            return Ok(None);
        };
        // Put by an earlier request, its token is counted as that had it.
        let counted = value::base_in(own);
        self.update(claim, |placed| placed.base = counted);
        self.note_there(claim, own.create_revision(), &on);
        self.update(claim, |placed| {
            // The request that put it is done, and was the only one for this session: nobody new has come in since.
            let is_on = |session: &Arc<Session>| Arc::ptr_eq(session, &on);
            placed.doubtful.retain(|used| !used.iter().any(is_on));
            if !placed.pins.iter().any(|pin| is_on(&pin.0)) {
                placed.pins.push(on.pin(self.layout().longest(&claim.name)));
            }
        });
        let stands = match claim.mode {
            // If it is not the last, it was placed earlier, and others have come since.
            Mode::Exclusive => stands_last(own.key(), &others, more),
            Mode::Shared | Mode::Permit { .. } => Some(self.stands_in(claim, own, &others)?),
        };
        self.standing(claim, asked, stands).await
    }

    fn are_readers(&self, claim: &Claim, line: &[KeyValue]) -> Result<bool> {
        if claim.mode != Mode::Shared {
            return Ok(false);
        }
        let mut line = line.iter().map(|kv| value::read(self.layout(), kv));
        let all = line.try_fold(true, |all, stored| Ok(all && stored?.mode == Mode::Shared));
        all.map_err(|why| self.not_a_lock(&claim.name, why))
    }

    /// In Go's layout the key may be another claim's.
    fn is_mine(&self, claim: &Claim, own: &KeyValue) -> bool {
        let stored = value::read(self.layout(), own);
        stored.is_ok_and(|stored| stored.id == Some(claim.id))
    }

    /// Whether a claim of this client has this key.
    pub(crate) fn is_known(&self, key: &[u8]) -> bool {
        let claims = self.claims();
        let mut known = claims.values().filter(|placed| !placed.undone);
        known.any(|placed| placed.key.as_bytes() == key)
    }

    pub(crate) fn update(&self, claim: &Claim, change: impl FnOnce(&mut Placed)) {
        if let Some(placed) = self.claims().get_mut(claim.id) {
            change(placed);
        }
    }

    /// Whether a key was put at a revision that this client had seen before it asked, or over another
    /// connection than the one over which tokens were lifted: a snapshot may have been restored. Takes the key back then,
    /// since its token may have been another claim's.
    async fn is_from_before(
        &self,
        key: &str,
        revision: i64,
        (connection, seen): (Option<u64>, i64),
    ) -> Result<bool> {
        let broke = connection.is_some_and(|connection| self.store.is_over(connection));
        if revision > seen && !broke {
            return Ok(false);
        }
        if revision <= seen {
            self.store.went_back(revision);
        }
        self.base.forget();
        self.delete(key.as_bytes(), revision).await?;
        Ok(true)
    }

    fn note_there(&self, claim: &Claim, revision: i64, on: &Arc<Session>) {
        self.update(claim, |placed| {
            let tokens = Tokens {
                first: value::first_token(placed.base, revision),
                count: value::count(claim, placed.base),
            };
            self.base.saw(at_token(tokens.first, DOWNGRADED));
            placed.there = Some((revision, tokens));
            placed.on = Arc::clone(on);
        });
    }

    /// How a claim whose key was put stands now; asked of the store unless that is known. `None` if its key is gone.
    pub(crate) async fn standing(
        self: &Arc<Self>,
        claim: &Claim,
        asked: BootInstant,
        known: Option<Stands>,
    ) -> Result<Option<Standing>> {
        let stands = match known {
            Some(stands) => stands,
            None => self.ask(claim).await?,
        };
        match stands {
            Stands::Held => self.grant(claim, asked).await,
            Stands::Gone => Ok(None),
            Stands::Waits(_) if !claim.wait => {
                // It had to be put to be counted.
                if let Some((key, revision)) = self.key_of(claim) {
                    self.delete(key.as_bytes(), revision).await?;
                }
                self.claims().give_up(claim.id);
                Ok(Some(Standing::Busy))
            }
            Stands::Waits(wanted) => {
                self.update(claim, |placed| placed.waits_for = Some(wanted));
                Ok(Some(Standing::Waiting(Place {
                    ahead: None,
                    recheck: asked + RECHECK,
                })))
            }
        }
    }

    /// Reads how a claim stands whose key was put, as the quorum has it.
    pub(crate) async fn ask(&self, claim: &Claim) -> Result<Stands> {
        let Some(read) = self.reading_standing(claim, false) else {
            return Ok(Stands::Gone);
        };
        let answer = self.read_standing(claim, read).await?;
        self.stands_by(claim, &answer)
    }

    /// The same as the member has it that is asked, at this revision or later: if it is behind that, the quorum is asked. A
    /// member that is behind the quorum may still see somebody before the claim, but who is first once stays so.
    pub(crate) async fn ask_member(&self, claim: &Claim, at_least: i64) -> Result<Stands> {
        let Some(read) = self.reading_standing(claim, true) else {
            return Ok(Stands::Gone);
        };
        let answer = self.read_standing(claim, read).await?;
        match revision(&answer) < at_least {
            true => self.ask(claim).await,
            false => self.stands_by(claim, &answer),
        }
    }

    async fn read_standing(&self, claim: &Claim, read: Txn) -> Result<TxnResponse> {
        let action = || format!("waiting for lock {}", claim.name);
        Ok(self.store.txn(action, read).await?)
    }

    /// The transaction: if the claim's key is there, reads it and what is before it. `None` if it was not put.
    fn reading_standing(&self, claim: &Claim, of_the_member: bool) -> Option<Txn> {
        let (key, revision) = self.key_of(claim)?;
        let prefix = self.layout().line(&claim.name);
        let before = GetOptions::new()
            .with_range(end_of(&prefix))
            .with_max_create_revision(revision - 1);
        let (own, before) = match claim.mode {
            Mode::Exclusive => (
                GetOptions::new().with_keys_only(),
                before
                    .with_sort(SortTarget::Create, SortOrder::Descend)
                    .with_keys_only()
                    .with_limit(1),
            ),
            _ => (
                GetOptions::new(),
                before.with_sort(SortTarget::Create, SortOrder::Ascend),
            ),
        };
        let gets = [(key.clone(), own), (prefix, before)];
        let gets = gets.map(|(key, options)| {
            let options = match of_the_member {
                true => options.with_serializable(),
                false => options,
            };
            TxnOp::get(key, Some(options))
        });
        let mine = Compare::create_revision(key, CompareOp::Equal, revision);
        Some(Txn::new().when([mine]).and_then(gets))
    }

    /// A claim's key and the revision that created it, if it was put.
    fn key_of(&self, claim: &Claim) -> Option<(String, i64)> {
        let claims = self.claims();
        let placed = claims.get(claim.id)?;
        let (revision, _) = placed.there?;
        Some((placed.key.clone(), revision))
    }

    /// How a claim stands by what such a transaction read.
    fn stands_by(&self, claim: &Claim, answer: &TxnResponse) -> Result<Stands> {
        let mut got = found(answer);
        let (Some((own, _)), Some((mut others, more))) = (got.next(), got.next()) else {
            return Ok(Stands::Gone);
        };
        let Some(own) = own.into_iter().next() else {
            return Ok(Stands::Gone);
        };
        match claim.mode {
            Mode::Exclusive => Ok(match others.first() {
                None => Stands::Held,
                Some(before) => Stands::Waits(Wanted::end_of(before, !more)),
            }),
            _ => {
                others.push(own.clone());
                self.stands_in(claim, &own, &others)
            }
        }
    }

    /// How a claim stands in a line that was read from its head to this claim at least.
    fn stands_in(&self, claim: &Claim, own: &KeyValue, line: &[KeyValue]) -> Result<Stands> {
        let mut before = Vec::new();
        for kv in line {
            let stored = value::read(self.layout(), kv);
            let stored = stored.map_err(|why| self.not_a_lock(&claim.name, why))?;
            before.push((kv, stored.mode));
            if kv.key() == own.key() {
                break;
            }
        }
        let modes = before.iter().map(|(_, mode)| *mode);
        if admitted(modes) == before.len() {
            return Ok(Stands::Held);
        }
        // The last that may not stand beside this one; or, where it is their number, any of them.
        let same = |mode: &Mode| mode.letter() == claim.mode.letter();
        let other = before.into_iter().rev().find(|(_, mode)| !same(mode));
        let wanted = other.map_or(Wanted::Any, |(kv, _)| Wanted::end_of(kv, false));
        Ok(Stands::Waits(wanted))
    }

    /// The claim is at the head of the line. What it may believe; moved to a session of its own kind first if it has to be.
    pub(crate) async fn grant(
        self: &Arc<Self>,
        claim: &Claim,
        asked: BootInstant,
    ) -> Result<Option<Standing>> {
        self.read_mail();
        let alone = Self::alone(claim);
        let moves = |placed: &Placed| {
            (alone || !claim.lock_delay.is_zero()) && !placed.on.suits(claim, alone)
        };
        let to_move = self.claims().get(claim.id).filter(|p| moves(p)).cloned();
        if let Some(placed) = to_move {
            let Some((revision, _)) = placed.there else {
                return Ok(None);
            };
            let moved = self.move_to(claim, &placed.key, revision, placed.base, placed.at);
            if Box::pin(moved).await?.is_none() {
                return Ok(None);
            }
        }
        let mut claims = self.claims();
        let Some(placed) = claims.get_mut(claim.id) else {
            return Ok(None);
        };
        let Some((revision, tokens)) = placed.there else {
            return Ok(None);
        };
        let key = placed.key.as_bytes();
        let granted = placed.on.hold(claim, key, revision, tokens, asked);
        placed.holds = granted.is_some();
        placed.waits_for = None;
        Ok(granted.map(Standing::Held))
    }

    /// Puts a hold on the lease of a session that is long enough, with a value that names the token it has by now. `None`
    /// if its key is gone.
    pub(crate) async fn move_to(
        self: &Arc<Self>,
        claim: &Claim,
        key: &str,
        revision: i64,
        base: Option<u64>,
        at: u32,
    ) -> Result<Option<Arc<Session>>> {
        for _ in 0..TRIES {
            let pin = self
                .session(Class::of(claim, Self::alone(claim)), claim)
                .await?;
            let options = PutOptions::new().with_lease(pin.0.lease);
            let value = value::write(claim, base, &self.client, at);
            let same = Compare::create_revision(key, CompareOp::Equal, revision);
            let put = Txn::new()
                .when([same])
                .and_then([TxnOp::put(key, value, Some(options))]);
            let action = || format!("renewing lock {}", claim.name);
            match self.store.txn(action, put).await {
                Ok(answer) if !answer.succeeded() => return Ok(None),
                Ok(_) => {}
                Err(trouble) if trouble.lease_gone => {
                    self.check(&pin.0, Clock::Boot.now()).await?;
                    continue;
                }
                Err(trouble) => {
                    // It may be there by now: that session is not to end under it.
                    self.update(claim, |placed| {
                        if !placed
                            .pins
                            .iter()
                            .any(|known| Arc::ptr_eq(&known.0, &pin.0))
                        {
                            placed.pins.push(pin);
                        }
                    });
                    return Err(trouble.error);
                }
            }
            let session = Arc::clone(&pin.0);
            self.update(claim, |placed| {
                if !Arc::ptr_eq(&placed.on, &session) {
                    placed.on.leave(claim.id);
                }
                placed.on = Arc::clone(&session);
                placed.at = at;
                placed.pins = vec![pin];
            });
            return Ok(Some(session));
        }
        Ok(None)
    }

    pub(crate) async fn withdraw(self: &Arc<Self>, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let Some(placed) = self.claims().get(claim.id).cloned() else {
            return Ok(Withdrawn::NotOwner);
        };
        let expired = placed.on.has_ended();
        if how == Leave::Abandon && placed.holds && !claim.lock_delay.is_zero() {
            placed.on.abandon(claim);
            // Its key stays for a while.
            self.claims().begin_series();
            self.claims().remove(claim.id);
            return Ok(Withdrawn::Expired);
        }
        let deleted = match placed.there {
            Some((revision, _)) => {
                let deleted = match self.layout() {
                    // No other claim has had this key meanwhile, nor will one if there is no answer.
                    Layout::Fencelock => self.release(claim, &placed).await,
                    Layout::Concurrency => self.delete(placed.key.as_bytes(), revision).await,
                };
                if deleted.is_err() {
                    self.claims().begin_series();
                }
                if deleted.is_err() && !placed.holds {
                    // Its session may live for as long as this client: its key must not, whether or not anybody asks
                    // again. A hold ends when nobody renews it.
                    placed.on.retire();
                    self.update(claim, |placed| {
                        placed.undone = true;
                        placed.pins.clear();
                    });
                }
                deleted?
            }
            None => self.undo(claim, &placed).await?,
        };
        placed.on.leave(claim.id);
        self.update(claim, |placed| placed.there = None);
        if !self.is_settled(claim, &placed).await {
            let cause = "an earlier request may still take effect";
            let store = &self.store.config.store;
            return Err(Error::unavailable(store, "releasing", cause));
        }
        self.claims().remove(claim.id);
        Ok(match (deleted, placed.holds) {
            (true, true) => Withdrawn::Released,
            (true, false) => Withdrawn::LeftQueue,
            (false, _) if expired => Withdrawn::Expired,
            (false, _) => Withdrawn::NotOwner,
        })
    }

    /// Takes back a request that had no answer, as far as it was done.
    async fn undo(&self, claim: &Claim, placed: &Placed) -> Result<bool, Trouble> {
        self.update(claim, |placed| {
            placed.undone = true;
            placed.pins.clear();
        });
        self.delete_any(&placed.key).await
    }

    /// Whether no request that had no answer can put the claim any more: the sessions that it would be put in are over.
    async fn is_settled(&self, claim: &Claim, placed: &Placed) -> bool {
        self.update(claim, |placed| {
            placed.pins.clear();
            placed.undone = true;
        });
        if placed.doubtful.is_empty() {
            return true;
        }
        let doubtful = placed.doubtful.iter().flatten();
        let ended = doubtful.map(|session| session.ended());
        let ended = futures_util::future::join_all(ended);
        let limit = self.store.config.response_timeout;
        tokio::time::timeout(limit, ended).await.is_ok()
    }

    pub(crate) fn not_a_lock(&self, name: &fencelock_core::LockName, why: &str) -> Error {
        Error::NotALock {
            store: self.store.config.store.clone(),
            name: name.clone(),
            why: why.to_owned(),
        }
    }
}

/// How a claim that wants the lock alone stands at the end of a line, of which these are the last two, the last first; and
/// whether there are `more`. `None` if it is not the last.
fn stands_last(own: &[u8], line: &[KeyValue], more: bool) -> Option<Stands> {
    match line {
        [last] if last.key() == own => Some(Stands::Held),
        [last, before] if last.key() == own => Some(Stands::Waits(Wanted::end_of(before, !more))),
        _ => None,
    }
}

/// Whether the claim is put although it does not hold: to wait, or to be counted.
fn stands_in_line(claim: &Claim) -> bool {
    claim.wait || matches!(claim.mode, Mode::Permit { .. })
}
