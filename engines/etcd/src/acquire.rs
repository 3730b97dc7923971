//! Acquiring: a claim takes the lock, or a place in the queue.
//!
//! An uncontended lock takes one small transaction. A claim on a lock that was contended recently joins the queue at once.

use std::sync::Arc;

use etcd_client::{KeyValue, TxnResponse};
use fencelock_core::engine::{Claim, Standing};
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Tokens};

use crate::entry::Entry;
use crate::error::RequestError;
use crate::hold::needs_own_session;
use crate::layout::{KeyNumber, Layout};
use crate::session::{Class, Pin, Session};
use crate::standing::{Position, position_at_end};
use crate::state::State;
use crate::stored::{self, DOWNGRADED, token_at};
use crate::token_base::{BeforeClaim, number_in};
use crate::txns::{NewClaim, found, revision};

/// How often a claim is put again because the client's knowledge of the store was out of date.
const TRIES: u32 = 5;

/// A claim that was sent, and what the client knew then.
struct Sent {
    key: String,
    at: BootInstant,
    base: Option<u64>,
    before: BeforeClaim,
    waiting: Option<Arc<Pin>>,
}

impl State {
    pub(crate) async fn place(self: &Arc<Self>, claim: &Claim) -> Result<Standing> {
        self.layout().check_name(&claim.name)?;
        claim.check_floor(&self.cluster.config.store, &self.promises)?;
        self.base.accept_above(claim.floor);
        let known = self.entries.lock().get(claim.id).cloned();
        if let Some(entry) = &known
            && let Some((revision, _)) = entry.created
        {
            if !entry.withdrawn {
                let sent = Clock::Boot.now();
                match entry.mode {
                    mode if mode == claim.mode => {}
                    Mode::Exclusive if entry.holds && claim.mode == Mode::Shared => {
                        return Box::pin(self.downgrade(claim, entry, sent)).await;
                    }
                    Mode::Exclusive => {}
                    // The key in the store keeps fewer others out than the mode that is asked for.
                    weaker => return Err(Error::stronger_mode(&self.cluster.config.store, weaker)),
                }
                let standing = Box::pin(self.standing(claim, sent, None)).await?;
                if let Some(standing) = standing {
                    return Ok(standing);
                }
            }
            // The hold or its session ended, or the key was deleted by hand: the claim has lost its place. Requests in doubt stay
            // in doubt.
            if entry.holds || entry.withdrawn {
                // The key of an ended hold, or of a claim that was withdrawn without a reply, is deleted at some time. The claim
                // must not find it, and hold by it.
                let deleted = self.cluster.delete_created(entry.key.as_bytes(), revision);
                deleted.await?;
            }
        }
        let mut taken = false;
        if known.is_none() && !self.contention.of(&claim.name).is_contended() {
            if let Some(standing) = self.take(claim).await? {
                return Ok(standing);
            }
            // For a shared claim only the queue shows whether the others exclude it.
            taken = claim.mode != Mode::Shared;
        }
        // Boxed, here and below, so that the future of an uncontended lock stays small.
        Box::pin(self.take_or_join(claim, taken)).await
    }

    /// Takes the lock, or a place in the queue. A free lock needs no waiting session, so none is begun until the lock was found
    /// `taken`.
    async fn take_or_join(self: &Arc<Self>, claim: &Claim, mut taken: bool) -> Result<Standing> {
        let mut tries = 0;
        while tries < TRIES {
            let base = self.base.number();
            if let Some(standing) = self.put(claim, taken).await? {
                return Ok(standing);
            }
            // When many clients start together, each raises the base. Those tries do not count.
            tries += u32::from(base == self.base.number());
            taken = true;
        }
        let action = format!("taking lock {}", claim.name);
        let cause = "its session or its key ended again and again; check whether somebody revokes leases or deletes keys";
        Err(Error::unavailable(
            &self.cluster.config.store,
            action,
            cause,
        ))
    }

    /// Takes the lock if the queue is empty, and reads nothing. `None` if the queue is not empty, or the outcome is in doubt.
    ///
    /// For claims that were not sent before: it does not look for what an earlier request may have put.
    async fn take(self: &Arc<Self>, claim: &Claim) -> Result<Option<Standing>> {
        loop {
            let hold = self.session_for_hold(claim).await?;
            let base = self.base.current(&self.cluster).await?;
            let sent = self.prepare(claim, base, None, &hold);
            let txn = self.take_txn(&sent.new_claim(claim), &hold);
            let action = || format!("taking lock {}", claim.name);
            let reply = match self.cluster.txn(action, txn).await {
                Ok(reply) => reply,
                Err(failed) => return Box::pin(self.put_failed(claim, failed, vec![hold])).await,
            };
            if !reply.succeeded() {
                let (stored, _) = found(&reply).next().unwrap_or_default();
                if self
                    .base
                    .has_changed(base, stored.first().and_then(number_in))
                {
                    continue;
                }
                self.contention.of(&claim.name).raise();
                return Ok(None);
            }
            if self.taken_back(claim, &sent, revision(&reply)).await? {
                continue;
            }
            self.note_created(claim, revision(&reply), &hold.session);
            return self.grant(claim, sent.at).await;
        }
    }

    /// Puts the claim's key unless it exists. `None` means to try again, since the client has learnt something new.
    async fn put(self: &Arc<Self>, claim: &Claim, taken: bool) -> Result<Option<Standing>> {
        let base = self.base.current(&self.cluster).await?;
        let hold = self.session_for_hold(claim).await?;
        let waiting = self.session_for_waiting(claim, taken).await?;
        let sent = self.prepare(claim, base, waiting, &hold);
        let new = sent.new_claim(claim);
        let waiting = sent.waiting.as_ref();
        let joins = waiting.filter(|_| joins_at_once(claim));
        let txn = match joins {
            Some(waiting) => self.join_txn(&new, waiting),
            None => self.take_or_join_txn(&new, &hold, waiting),
        };
        let action = || format!("taking lock {}", claim.name);
        let reply = match self.cluster.txn(action, txn).await {
            Ok(reply) => reply,
            Err(failed) => {
                let used = match joins {
                    Some(waiting) => vec![Arc::clone(waiting)],
                    None => waiting.cloned().into_iter().chain([hold]).collect(),
                };
                return self.put_failed(claim, failed, used).await;
            }
        };
        if !reply.succeeded() {
            self.contention.of(&claim.name).raise();
            return self.not_free(claim, &sent, &reply).await;
        }
        if self.taken_back(claim, &sent, revision(&reply)).await? {
            return Ok(None);
        }
        match joins {
            Some(waiting) => {
                self.note_created(claim, revision(&reply), &waiting.session);
                self.joined(claim, &sent, &reply).await
            }
            None => {
                self.contention.of(&claim.name).lower();
                self.note_created(claim, revision(&reply), &hold.session);
                self.grant(claim, sent.at).await
            }
        }
    }

    async fn joined(
        self: &Arc<Self>,
        claim: &Claim,
        sent: &Sent,
        reply: &TxnResponse,
    ) -> Result<Option<Standing>> {
        let (queue, more) = found(reply).next().unwrap_or_default();
        let position = position_at_end(sent.key.as_bytes(), &queue, more);
        match position {
            Some(Position::Holds) => self.contention.of(&claim.name).lower(),
            _ => self.contention.of(&claim.name).raise(),
        }
        self.standing(claim, sent.at, position).await
    }

    async fn session_for_hold(self: &Arc<Self>, claim: &Claim) -> Result<Arc<Pin>> {
        let class = Class::for_hold(claim, needs_own_session(claim));
        let hold = self.session(class, claim).await?;
        if self.layout() == Layout::Concurrency {
            // Go's keys are named after the session: another claim of this client may have that key.
            let any = KeyNumber {
                series: 0,
                index: 0,
            };
            let key = self.key(claim, any, &hold);
            if self.entries.lock().another_has(claim.id, &key) {
                return self.session(Class::for_hold(claim, true), claim).await;
            }
        }
        Ok(hold)
    }

    /// The session in which this claim would wait. If the lock was not found `taken`, only a session that exists already.
    async fn session_for_waiting(
        self: &Arc<Self>,
        claim: &Claim,
        taken: bool,
    ) -> Result<Option<Arc<Pin>>> {
        let class = Class::for_waiting(self.cluster.config.claim_window);
        let joins = may_join(claim) || (taken && claim.mode == Mode::Shared);
        match (joins, taken) {
            (false, _) => Ok(None),
            (true, true) => self.session(class, claim).await.map(Some),
            (true, false) => {
                let bytes = self.layout().max_key_len(&claim.name);
                Ok(self.sessions.usable(class, bytes))
            }
        }
    }

    fn key(&self, claim: &Claim, number: KeyNumber, hold: &Pin) -> String {
        let lease = hold.session.lease;
        self.layout().key(claim, &self.client, number, lease)
    }

    /// Adds the entry of a claim that is about to be sent, and chooses its key.
    fn prepare(
        &self,
        claim: &Claim,
        base: Option<u64>,
        waiting: Option<Arc<Pin>>,
        hold: &Arc<Pin>,
    ) -> Sent {
        let key = {
            // Numbered and added under one lock: no other claim may get this key.
            let mut entries = self.entries.lock();
            let number = entries.number(claim);
            let earlier = entries.get(claim.id);
            let key = self.key(claim, number, hold);
            let entry = Entry {
                key: key.clone(),
                number,
                created: None,
                session: Arc::clone(&hold.session),
                token_offset: 0,
                base,
                holds: false,
                mode: claim.mode,
                waits_for: None,
                in_doubt: earlier.map_or_else(Vec::new, |entry| entry.in_doubt.clone()),
                withdrawn: false,
                pins: waiting.iter().chain([hold]).cloned().collect(),
                moves_in_doubt: Vec::new(),
            };
            entries.insert(claim, entry);
            key
        };
        Sent {
            key,
            at: Clock::Boot.now(),
            base,
            before: self.base.before_claim(&self.cluster),
            waiting,
        }
    }

    /// A request that was to put a claim in one of these sessions failed.
    async fn put_failed(
        self: &Arc<Self>,
        claim: &Claim,
        failed: RequestError,
        used: Vec<Arc<Pin>>,
    ) -> Result<Option<Standing>> {
        if failed.in_doubt {
            for pin in &used {
                pin.session.retire();
            }
            self.entries.lock().begin_series();
        }
        self.update(claim, |entry| {
            if failed.in_doubt {
                let used = used.iter().map(|pin| Arc::clone(&pin.session));
                entry.in_doubt.push(used.collect());
            }
            // Nothing but the request itself needs the sessions.
            entry.pins.clear();
        });
        if failed.lease_expired {
            let now = Clock::Boot.now();
            for pin in &used {
                self.check(&pin.session, now).await?;
            }
            return Ok(None);
        }
        self.entries.lock().remove_unless_in_doubt(claim.id);
        Err(failed.error)
    }

    /// Finds the claim's standing when the lock was not free, or the claim's key existed already.
    async fn not_free(
        self: &Arc<Self>,
        claim: &Claim,
        sent: &Sent,
        reply: &TxnResponse,
    ) -> Result<Option<Standing>> {
        let mut gets = found(reply);
        let mut next = || gets.next().unwrap_or_default();
        let ((base, _), (own, _), (queue, more)) = (next(), next(), next());
        let Some(own) = own.first() else {
            let base = base.first().and_then(number_in);
            if self.base.has_changed(sent.base, base) {
                return Ok(None);
            }
            // The key of an exclusive claim may belong to a reader now, after a downgrade. Only the queue shows that.
            let only_readers = || self.are_readers(claim, &queue);
            if sent.waiting.is_some() || may_join(claim) || only_readers()? {
                return Ok(None);
            }
            self.entries.lock().give_up(claim.id);
            return Ok(Some(Standing::Busy));
        };
        if !self.adopt(claim, own).await? {
            return Ok(None);
        }
        let position = match claim.mode {
            // A claim that is not the last was put by an earlier request.
            Mode::Exclusive => position_at_end(own.key(), &queue, more),
            Mode::Shared | Mode::Permit { .. } => Some(self.position_among(claim, own, &queue)?),
        };
        self.standing(claim, sent.at, position).await
    }

    /// Takes over the claim's key if an earlier request, or this one, put it. `false` if the key cannot be used.
    async fn adopt(&self, claim: &Claim, own: &KeyValue) -> Result<bool> {
        let stored = stored::read(self.layout(), own);
        let is_mine = stored.is_ok_and(|stored| stored.id == Some(claim.id));
        if !is_mine && self.layout() == Layout::Concurrency {
            // Another claim of this session.
            return Ok(false);
        }
        let session = self.sessions.by_lease(own.lease()).filter(|_| is_mine);
        let Some(session) = session else {
            // A snapshot that was restored brought the key back, or the key is in a session that this client has ended.
            self.cluster
                .delete_created(own.key(), own.create_revision())
                .await?;
            return Ok(false);
        };
        // An earlier request may have been sent with another base.
        let base = stored::base_of(own);
        self.update(claim, |entry| entry.base = base);
        self.note_created(claim, own.create_revision(), &session);
        self.update(claim, |entry| {
            // The request that put it is no longer in doubt, and was the only one for this session.
            let is_used = |used: &Arc<Session>| Arc::ptr_eq(used, &session);
            entry.in_doubt.retain(|used| !used.iter().any(is_used));
            entry.keep(session.pin(self.layout().max_key_len(&claim.name)));
        });
        Ok(true)
    }

    fn are_readers(&self, claim: &Claim, queue: &[KeyValue]) -> Result<bool> {
        if claim.mode != Mode::Shared {
            return Ok(false);
        }
        for kv in queue {
            let stored = stored::read(self.layout(), kv);
            let stored = stored.map_err(|why| self.not_a_lock(&claim.name, why))?;
            if stored.mode != Mode::Shared {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Deletes a key if a snapshot may have been restored in between, because another claim may then have had its token. There
    /// are two signs: the key was put at a revision that this client had seen before, or over another connection than that over
    /// which the base was raised.
    async fn taken_back(&self, claim: &Claim, sent: &Sent, revision: i64) -> Result<bool> {
        let raised_over = sent.before.connection;
        let replaced = raised_over.is_some_and(|number| self.cluster.was_replaced(number));
        let went_back = revision <= sent.before.revision;
        if !went_back && !replaced {
            return Ok(false);
        }
        if went_back {
            self.cluster.note_restore(revision);
        }
        self.base.forget();
        let deleted = self
            .cluster
            .delete_created(sent.key.as_bytes(), revision)
            .await;
        self.or_give_up_key(claim, deleted)?;
        Ok(true)
    }

    /// Notes that the claim's key exists, and its tokens.
    fn note_created(&self, claim: &Claim, revision: i64, session: &Arc<Session>) {
        self.update(claim, |entry| {
            let tokens = Tokens::new(
                stored::first_token(entry.base, revision),
                stored::token_count(claim, entry.base),
            );
            self.base.note_token(token_at(tokens.first, DOWNGRADED));
            entry.created = Some((revision, tokens));
            entry.session = Arc::clone(session);
        });
    }
}

impl Sent {
    fn new_claim<'a>(&'a self, claim: &'a Claim) -> NewClaim<'a> {
        NewClaim {
            claim,
            key: &self.key,
            base: self.base,
        }
    }
}

/// Whether the claim is put even if it does not hold: to wait, or to be counted among the permits.
fn may_join(claim: &Claim) -> bool {
    claim.wait || matches!(claim.mode, Mode::Permit { .. })
}

/// Whether the claim joins the queue of a contended lock at once, and holds in the waiting session if it is the first. Claims
/// that would then have to move to another session do not.
fn joins_at_once(claim: &Claim) -> bool {
    let must_move = needs_own_session(claim) || !claim.lock_delay.is_zero();
    claim.mode == Mode::Exclusive && claim.wait && !must_move
}
