//! The sessions of one client: one for waiting claims and young holds, and one for each timeout that holds need.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Claim;
use futures_util::future::join_all;

use crate::config::Config;
use crate::connection::{Session, patience};
use crate::error::Failure;
use crate::session::{ManagedSession, SessionEvents};

/// The most sessions that have exactly the timeout that a hold needs. Each pair of ttl and lock-delay may need its own.
const MAX_EXACT: usize = 16;

pub(crate) struct SessionPool {
    config: Arc<Config>,
    pub(crate) waiting: Arc<ManagedSession>,
    /// The shortest and the longest timeout that the servers grant.
    pub(crate) limits: (Duration, Duration),
    /// The sessions of holds, by the requested timeout.
    for_holds: tokio::sync::Mutex<HashMap<Duration, Arc<ManagedSession>>>,
    events: SessionEvents,
}

impl SessionPool {
    pub(crate) fn new(
        config: Arc<Config>,
        waiting: Arc<ManagedSession>,
        limits: (Duration, Duration),
        events: SessionEvents,
    ) -> Self {
        Self {
            config,
            waiting,
            limits,
            for_holds: tokio::sync::Mutex::default(),
            events,
        }
    }

    /// The session timeout that a hold of this claim needs. The client gives up after two thirds of it, the ttl.
    pub(crate) fn timeout(&self, claim: &Claim) -> Duration {
        let timeout = claim.ttl.saturating_mul(3) / 2;
        let timeout = timeout.saturating_add(claim.lock_delay);
        timeout.clamp(self.limits.0, self.limits.1)
    }

    /// How long a client may believe in a hold of this session without renewal.
    pub(crate) fn lease(&self, claim: &Claim, session: &Session) -> Duration {
        let sure = session.timeout.saturating_sub(claim.lock_delay) * 2 / 3;
        sure.min(claim.ttl)
    }

    pub(crate) async fn for_waiting(&self, claim: &Claim) -> Result<Arc<ManagedSession>, Failure> {
        let timeout = self.timeout(claim);
        if timeout >= self.waiting.timeout {
            return Ok(Arc::clone(&self.waiting));
        }
        self.with_timeout(timeout).await
    }

    /// A session with this timeout. If there are many sessions already, holds share one that is up to twice as long.
    pub(crate) async fn with_timeout(
        &self,
        timeout: Duration,
    ) -> Result<Arc<ManagedSession>, Failure> {
        // Enough time for one silent server and the reply of another one.
        let limit = patience(timeout) + self.config.response_timeout;
        match tokio::time::timeout(limit, self.find_or_open(timeout)).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::Unanswered(format!("no session within {limit:?}"))),
        }
    }

    async fn find_or_open(&self, wanted: Duration) -> Result<Arc<ManagedSession>, Failure> {
        let mut sessions = self.for_holds.lock().await;
        if let Some(managed) = sessions.get(&wanted) {
            return Ok(Arc::clone(managed));
        }
        let mut timeout = wanted;
        if sessions.len() >= MAX_EXACT {
            // There are few powers of two, and one of them is long enough for any hold.
            timeout = self.rounded(wanted);
            let all = sessions.values().chain([&self.waiting]);
            let fitting = all.filter(|managed| (wanted..=timeout).contains(&managed.timeout));
            if let Some(shortest) = fitting.min_by_key(|managed| managed.timeout) {
                return Ok(Arc::clone(shortest));
            }
            // An entry that has a node, or may have one, keeps a reference to the session. New references come from here
            // only.
            let unused = sessions.extract_if(|_, managed| Arc::strong_count(managed) == 1);
            let unused: Vec<_> = unused.map(|(_, managed)| managed).collect();
            join_all(unused.iter().map(|managed| managed.close(true))).await;
        }
        let opened = ManagedSession::open(&self.config, timeout, self.events.clone()).await;
        let opened = opened.map_err(|error| Failure::Unanswered(error.to_string()))?;
        sessions.insert(timeout, Arc::clone(&opened));
        Ok(opened)
    }

    /// The next power of two in nanoseconds, within the servers' limit.
    fn rounded(&self, timeout: Duration) -> Duration {
        let nanos = u64::try_from(timeout.as_nanos()).ok();
        let next = nanos.and_then(u64::checked_next_power_of_two);
        next.map_or(self.limits.1, Duration::from_nanos)
            .min(self.limits.1)
    }

    pub(crate) async fn all(&self) -> Vec<Arc<ManagedSession>> {
        let sessions = self.for_holds.lock().await;
        let all = sessions.values().chain([&self.waiting]);
        all.map(Arc::clone).collect()
    }
}
