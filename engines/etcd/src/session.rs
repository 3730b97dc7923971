//! Sessions: leases that keep the keys of many claims, kept alive for all of them at once.
//!
//! A session is for one length of lease, and for so many keys; then another of the same length is begun. Claims that wait stand in the *line session*, whose lease is the claim window,
//! so that the dead leave the line soon; the first renewal of a hold moves it into the session of its own ttl. A claim
//! whose token others read (a child process may believe in it) has a session of its own, which nobody else prolongs.
//!
//! A session in which a request of unknown outcome may still take effect is *retired*: nobody new comes in, keys that
//! nobody knows are deleted, and it is revoked as soon as it is empty. Then that request fails for good.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant};
use fencelock_core::{BootInstant, ClaimId, Clock, Result, Tokens};
use tokio::sync::Notify;

use crate::attempt::Attempts;
use crate::engine::Shared;
use crate::layout::is_released;
use crate::refusal::Trouble;

/// For how long a session that nobody needs is kept for the next one.
const IDLE: Duration = Duration::from_secs(30);

/// How many bytes of keys are put in a session. The server tells them all in one answer, and the driver takes no more than
/// 4 MiB for one.
const MOST: usize = 3 << 20;

/// Whom a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    /// The length of its lease.
    seconds: u64,
    /// For this claim alone.
    only: Option<ClaimId>,
}

/// A lease, and the holds on it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) lease: i64,
    /// For how long the server keeps it.
    ttl: Duration,
    class: Class,
    state: Mutex<State>,
    /// The bytes of the keys of those who keep it alive.
    pinned: AtomicUsize,
    /// One check at a time.
    checking: tokio::sync::Mutex<()>,
    news: Notify,
}

#[derive(Debug)]
struct State {
    /// When the last request was sent that prolonged it.
    confirmed: BootInstant,
    /// When the last one was sent after which its members' keys were seen to be there, too.
    audited: BootInstant,
    /// When it was last needed.
    used: BootInstant,
    ended: bool,
    retired: bool,
    /// A request of unknown outcome may put a key in it.
    doubtful: bool,
    /// It is being revoked: nothing may be believed of it any more.
    revoked: bool,
    /// The connection over which keys were looked for last that no claim has.
    swept: u64,
    members: HashMap<ClaimId, Member>,
}

/// A hold.
#[derive(Clone, Debug)]
struct Member {
    key: Vec<u8>,
    revision: i64,
    since: BootInstant,
    /// When the server is to let go unless it is renewed.
    until: BootInstant,
}

/// Keeps a session alive for a claim that is on it or may come to be, with a key of so many bytes.
#[derive(Debug)]
pub(crate) struct Pin(pub(crate) Arc<Session>, usize);

impl Drop for Pin {
    fn drop(&mut self) {
        if self.0.pinned.fetch_sub(self.1, Ordering::SeqCst) == self.1 {
            self.0.tell_if_retired();
        }
    }
}

impl Class {
    /// For a hold of this claim.
    pub(crate) fn of(claim: &Claim, only: bool) -> Self {
        // A third more, so that a grant has its whole ttl however long ago the session was prolonged.
        let lease = claim.ttl.saturating_add(claim.ttl / 3);
        Self {
            seconds: seconds(lease.saturating_add(claim.lock_delay)),
            only: only.then_some(claim.id),
        }
    }

    /// For those who wait.
    pub(crate) fn line(window: Duration) -> Self {
        Self {
            seconds: seconds(window),
            only: None,
        }
    }
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

impl Session {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pin(self: &Arc<Self>, size: usize) -> Arc<Pin> {
        self.pinned.fetch_add(size, Ordering::SeqCst);
        self.state().used = Clock::Boot.now();
        Arc::new(Pin(Arc::clone(self), size))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// Returns once the lease is over, or this client has ended it.
    pub(crate) async fn ended(&self) {
        self.until(|session| session.has_ended()).await;
    }

    async fn until(&self, done: impl Fn(&Self) -> bool) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if done(self) {
                return;
            }
            news.await;
        }
    }

    /// Nobody new may come in: see above.
    pub(crate) fn retire(&self) {
        {
            let mut state = self.state();
            (state.retired, state.doubtful) = (true, true);
        }
        self.news.notify_waiters();
    }

    fn is_empty(&self) -> bool {
        self.pinned.load(Ordering::SeqCst) == 0 && self.state().members.is_empty()
    }

    /// Whether a hold of this claim may stay here.
    pub(crate) fn suits(&self, claim: &Claim, only: bool) -> bool {
        let class = Class::of(claim, only);
        let long_enough = self.class.seconds.max(self.ttl.as_secs()) >= class.seconds;
        self.class.only == class.only && long_enough
    }

    /// What a hold of this claim may believe, asked about at `asked`; and notes it as a member until then. `None` if the
    /// session is over.
    pub(crate) fn hold(
        &self,
        claim: &Claim,
        key: &[u8],
        revision: i64,
        tokens: Tokens,
        asked: BootInstant,
    ) -> Option<Grant> {
        let mut state = self.state();
        if state.ended || state.revoked {
            return None;
        }
        let counted_from = state.confirmed;
        let most = self.ttl.saturating_sub(claim.lock_delay);
        let lease = most.min(asked.since(counted_from) + claim.ttl);
        let since = state.members.get(&claim.id).map_or(asked, |m| m.since);
        let member = Member {
            key: key.to_vec(),
            revision,
            since,
            until: asked + claim.ttl + claim.lock_delay,
        };
        state.members.insert(claim.id, member);
        state.used = asked;
        Some(Grant {
            tokens,
            counted_from,
            lease,
            recorded: true,
        })
    }

    pub(crate) fn is_member(&self, claim: ClaimId) -> bool {
        self.state().members.contains_key(&claim)
    }

    /// Forgets a hold; false if there was none.
    pub(crate) fn leave(&self, claim: ClaimId) -> bool {
        let left = self.state().members.remove(&claim).is_some();
        if left {
            self.tell_if_retired();
        }
        left
    }

    /// One that is retired is ended as soon as it is empty. Others are kept for a while, so nobody is woken.
    fn tell_if_retired(&self) {
        if self.is_retired_and_empty() {
            self.news.notify_waiters();
        }
    }

    /// Leaves a hold to its lock-delay. Validity ended a little before the lease did.
    pub(crate) fn abandon(&self, claim: &Claim) {
        let margin = claim.ttl / 50 + Duration::from_millis(10);
        let most = Clock::Boot.now() + claim.lock_delay + margin;
        if let Some(member) = self.state().members.get_mut(&claim.id) {
            member.until = member.until.min(most);
        }
    }

    fn end(&self) -> Vec<ClaimId> {
        let mut state = self.state();
        state.ended = true;
        let members = state.members.drain().map(|(id, _)| id).collect();
        drop(state);
        self.news.notify_waiters();
        members
    }
}

/// All sessions of a client.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: Mutex<HashMap<Class, Arc<Session>>>,
    /// By lease, those that are retired as well.
    all: Mutex<HashMap<i64, Arc<Session>>>,
    opening: Attempts,
}

impl Sessions {
    fn open(&self) -> MutexGuard<'_, HashMap<Class, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<i64, Arc<Session>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn on(&self, lease: i64) -> Option<Arc<Session>> {
        self.all().get(&lease).cloned()
    }

    /// One that is open and has room for a key of that size.
    pub(crate) fn usable(&self, class: Class, size: usize) -> Option<Arc<Pin>> {
        let session = self.open().get(&class).cloned()?;
        let state = session.state();
        // One that was not confirmed for so long may be over.
        let fresh = Clock::Boot.now().since(state.confirmed) < session.ttl * 2 / 3;
        let full = session.pinned.load(Ordering::SeqCst) + size > MOST;
        if !fresh || full || state.ended || state.retired {
            return None;
        }
        // Under the lock, so that the session is not found empty meanwhile.
        session.pinned.fetch_add(size, Ordering::SeqCst);
        drop(state);
        Some(Arc::new(Pin(session, size)))
    }

    fn remove(&self, session: &Arc<Session>) {
        self.all().remove(&session.lease);
        let mut open = self.open();
        if let Some(now) = open.get(&session.class)
            && Arc::ptr_eq(now, session)
        {
            open.remove(&session.class);
        }
    }

    /// Those that nobody needs, taken out.
    pub(crate) fn take_empty(&self) -> Vec<Arc<Session>> {
        let all: Vec<_> = self.all().values().cloned().collect();
        let empty = all.into_iter().filter(|session| session.is_empty());
        empty.inspect(|session| self.remove(session)).collect()
    }
}

impl Shared {
    /// A session of this class for a claim, begun if there is none.
    pub(crate) async fn session(self: &Arc<Self>, class: Class, claim: &Claim) -> Result<Arc<Pin>> {
        let size = self.layout().longest(&claim.name);
        if let Some(pin) = self.sessions.usable(class, size) {
            return Ok(pin);
        }
        // Of those for many, one is begun for all who come at once.
        let mut opening = match class.only {
            Some(_) => None,
            None => {
                let limit = self.store.config.response_timeout;
                let opening = self.sessions.opening.begin(limit).await;
                Some(opening.ok_or_else(|| self.store.silent("beginning a session", limit))?)
            }
        };
        if let Some(pin) = self.sessions.usable(class, size) {
            return Ok(pin);
        }
        if let Some(opening) = &opening {
            opening.inherit(&self.store.config.store)?;
        }
        let connection = self.store.connection().await?;
        let confirmed = Clock::Boot.now();
        let seconds = i64::try_from(class.seconds).unwrap_or(i64::MAX);
        let granted = self.store.grant(seconds).await;
        if let (Some(opening), Err(trouble)) = (&mut opening, &granted) {
            opening.fail(&trouble.error);
        }
        let (lease, ttl) = granted?;
        let session = Arc::new(Session {
            lease,
            ttl,
            class,
            state: Mutex::new(State {
                confirmed,
                audited: confirmed,
                used: confirmed,
                ended: false,
                retired: false,
                doubtful: false,
                revoked: false,
                swept: connection,
                members: HashMap::new(),
            }),
            pinned: AtomicUsize::new(0),
            checking: tokio::sync::Mutex::default(),
            news: Notify::new(),
        });
        let pin = session.pin(size);
        self.sessions.all().insert(lease, Arc::clone(&session));
        self.sessions.open().insert(class, Arc::clone(&session));
        self.spawn(keep(Arc::clone(self), session));
        Ok(pin)
    }

    /// Makes sure that the session was alive, and its members' keys there, at some moment after `since`.
    pub(crate) async fn check(
        &self,
        session: &Arc<Session>,
        since: BootInstant,
    ) -> Result<(), Trouble> {
        let _checking = session.checking.lock().await;
        if session.state().audited >= since || session.has_ended() {
            return Ok(());
        }
        let asked = Clock::Boot.now();
        let kept = self.store.keep_alive(session.lease);
        let (kept, audited) = futures_util::future::join(kept, self.audit(session, asked)).await;
        match kept {
            Ok(()) => {
                session.state().confirmed = asked;
                audited?;
                session.state().audited = asked;
                if let Err(trouble) = self.sweep(session).await {
                    tracing::debug!(error = %trouble.error, "looking for keys of nobody; trying again");
                }
                Ok(())
            }
            Err(trouble) if trouble.lease_gone => {
                self.end(session);
                Ok(())
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// What went on before a connection was made is not known: a snapshot that was restored brings keys back whose claims
    /// are long over. Over each connection such keys are looked for once, and deleted.
    async fn sweep(&self, session: &Arc<Session>) -> Result<(), Trouble> {
        let connection = self.store.connection().await.map_err(Trouble::unsent)?;
        if session.state().swept == connection {
            return Ok(());
        }
        if let Some((_, keys)) = self.store.lease(session.lease, true).await? {
            let members: Vec<Vec<u8>> = {
                let state = session.state();
                state.members.values().map(|m| m.key.clone()).collect()
            };
            let is_left = |key: &&Vec<u8>| {
                // Claims are noted before they are sent.
                !members.contains(key) && !is_released(key) && !self.is_known(key)
            };
            for key in keys.iter().filter(is_left) {
                self.delete_on(key, session.lease).await?;
            }
        }
        session.state().swept = connection;
        Ok(())
    }

    /// The session is over: tells those who hold in it.
    pub(crate) fn end(&self, session: &Arc<Session>) {
        self.sessions.remove(session);
        for id in session.end() {
            self.lost(id);
        }
        if session.state().doubtful {
            self.claims().remove_settled();
        }
    }

    /// Compares the keys on a lease with those that should be there.
    async fn audit(&self, session: &Arc<Session>, asked: BootInstant) -> Result<(), Trouble> {
        let (members, retired) = {
            let state = session.state();
            (state.members.clone(), state.retired)
        };
        if members.is_empty() && !retired {
            return Ok(());
        }
        let Some((_, keys)) = self.store.lease(session.lease, true).await? else {
            return Ok(());
        };
        let there: std::collections::HashSet<&Vec<u8>> = keys.iter().collect();
        let before = members.iter().filter(|(_, member)| member.since < asked);
        for (id, member) in before.filter(|(_, member)| !there.contains(&member.key)) {
            // The leader answers for leases without asking the others, and may be behind: the quorum has the last word.
            if !self.is_there(&member.key, member.revision).await? && session.leave(*id) {
                self.lost(*id);
            }
        }
        if retired {
            for key in keys.iter().filter(|key| !self.is_known(key)) {
                // A claim on another session may have the key by now.
                self.delete_on(key, session.lease).await?;
                self.claims().remove_undone(key);
            }
        }
        Ok(())
    }

    /// Takes the time out of holds that were not renewed.
    async fn reap(&self, session: &Arc<Session>) {
        let now = Clock::Boot.now();
        let over: Vec<_> = {
            let mut state = session.state();
            let over = state.members.extract_if(|_, member| member.until <= now);
            over.collect()
        };
        for (id, member) in over {
            if let Err(trouble) = self.delete(&member.key, member.revision).await {
                tracing::debug!(error = %trouble.error, "ending a hold that was not renewed; trying again");
                let until = Clock::Boot.now() + Duration::from_millis(500);
                let member = Member { until, ..member };
                session.state().members.entry(id).or_insert(member);
            }
        }
    }
}

/// Keeps a session alive while it is needed, and then ends it.
async fn keep(shared: Arc<Shared>, session: Arc<Session>) {
    let mut failed = false;
    loop {
        let wake = session.next_look(failed);
        tokio::select! {
            () = Clock::Boot.sleep_until(wake) => {}
            () = session.until(|session| session.has_ended() || session.is_retired_and_empty()) => {}
        }
        shared.reap(&session).await;
        if session.has_ended() {
            break;
        }
        let now = Clock::Boot.now();
        if session.is_empty() && session.is_spent(now) {
            shared.finish(&session).await;
            failed = true;
            continue;
        }
        failed = false;
        if !session.is_held_alone() && now >= session.state().confirmed + session.ttl / 4 {
            let checked = shared.check(&session, now).await;
            if let Err(trouble) = &checked {
                tracing::debug!(error = %trouble.error, "keeping a session alive; trying again");
            }
            failed = checked.is_err();
        }
    }
    shared.end(&session);
}

impl Session {
    fn is_retired_and_empty(&self) -> bool {
        self.state().retired && self.is_empty()
    }

    /// What is one claim's alone is prolonged by its holder's renewals and by nothing else.
    fn is_held_alone(&self) -> bool {
        self.class.only.is_some() && !self.state().members.is_empty()
    }

    /// When there is something to do: it is to be prolonged, a hold is over, or nobody has needed it for long.
    fn next_look(&self, failed: bool) -> BootInstant {
        let (now, held_alone, empty) = (Clock::Boot.now(), self.is_held_alone(), self.is_empty());
        let state = self.state();
        let prolong = match failed {
            true => now + (self.ttl / 20).min(Duration::from_millis(500)),
            false => state.confirmed + self.ttl / 4,
        };
        let over = state.members.values().map(|member| member.until).min();
        let looks = [
            (!held_alone).then_some(prolong),
            over,
            empty.then_some(state.used + IDLE),
        ];
        let first = looks.into_iter().flatten().min().unwrap_or(prolong);
        first.max(now + Duration::from_millis(10))
    }

    /// Whether nobody will need it again.
    fn is_spent(&self, now: BootInstant) -> bool {
        let state = self.state();
        let idle = now.since(state.used) >= IDLE;
        state.retired || self.class.only.is_some() || idle
    }
}

impl Shared {
    /// Revokes a session that is empty.
    async fn finish(&self, session: &Arc<Session>) {
        {
            let mut state = session.state();
            if session.pinned.load(Ordering::SeqCst) > 0 || !state.members.is_empty() {
                return;
            }
            state.retired = true;
            state.revoked = true;
        }
        match self.store.revoke(session.lease).await {
            Ok(()) => self.end(session),
            Err(trouble) if trouble.lease_gone => self.end(session),
            Err(trouble) => {
                tracing::debug!(error = %trouble.error, "ending a session; trying again")
            }
        }
    }
}
