//! The parameters of `fencelock_change`.

use std::time::Duration;

use fencelock_core::Result;
use fencelock_core::engine::Claim;
use fencelock_sql::lease::CLAIM_WINDOW;
use fencelock_sql::lease::{Holder, mode_text};
use fencelock_sql::server::{Change, DbInstant, Failure, HANDOFF_WINDOW, Write, Written};

use super::connection::Leases;
use super::statements::{WAKE, WRITE};
use super::stored::{count, id, length, tokens, version};
use crate::connection::{Session, Values};

impl Leases {
    pub(super) async fn write_change(
        &self,
        session: &mut Session,
        write: &Write<'_>,
    ) -> Result<Written, Failure> {
        let parameters = Parameters::of(write.change);
        let expired: Vec<i64> = write.expired_holders.iter().copied().map(first).collect();
        let (claims, channels): (Vec<&[u8]>, Vec<String>) = write
            .next
            .iter()
            .map(|(claim, channel)| {
                let channel = channel.as_deref().unwrap_or_default();
                (
                    &claim.as_bytes()[..],
                    String::from_utf8_lossy(channel).into_owned(),
                )
            })
            .unzip();
        let claim = parameters.claim;
        let channel = self.ear.channel();
        let values: Values<'_> = &[
            &write.name.as_str(),
            &version(write.version),
            &expired,
            &write.expired_waiters,
            &parameters.what,
            &parameters.holder.map(first),
            &parameters.ticket,
            &claim.map(id),
            &claim.map(|claim| mode_text(claim.mode).into_owned()),
            &claim.map(|claim| count(claim) as i32),
            &length(parameters.lease),
            &length(parameters.delay),
            &claim.map(|claim| &*claim.owner),
            &claim.and_then(|claim| claim.label.as_deref()),
            &&*channel,
            &write.last,
            &claims,
            &channels,
        ];
        let rows = self
            .query(session, "changing a lock", WRITE, values)
            .await?;
        let written = rows.first().map_or(-1, |row| row.get::<_, i64>(0));
        let told: Vec<&str> = rows.first().map_or_else(Vec::new, |row| row.get(1));
        if written >= 0 {
            self.wake(session, &told).await;
        }
        Ok(match (written, claim) {
            (-1, _) => Written::Stale,
            (0, _) | (_, None) => Written::Done(None),
            (first, Some(claim)) => Written::Done(Some(tokens(first, claim))),
        })
    }

    /// Wakes the ears with these channels, after the commit of what they are to see. If the connection fails here, they find it when
    /// they poll.
    pub(super) async fn wake(&self, session: &mut Session, ears: &[&str]) {
        if !ears.is_empty() {
            let _ = self.query(session, "waking waiters", WAKE, &[&ears]).await;
        }
    }
}

/// The parameters that depend on the kind of change.
struct Parameters<'a> {
    what: &'static str,
    claim: Option<&'a Claim>,
    holder: Option<&'a Holder<DbInstant>>,
    ticket: Option<i64>,
    /// How long the new row lasts.
    lease: Duration,
    /// The lock-delay of a holder; of a waiter, how long a grant by the releaser lasts.
    delay: Duration,
}

impl<'a> Parameters<'a> {
    fn of(change: Change<'a>) -> Self {
        let none = Self {
            what: "reap",
            claim: None,
            holder: None,
            ticket: None,
            lease: CLAIM_WINDOW,
            delay: Duration::ZERO,
        };
        match change {
            Change::Grant {
                claim,
                ticket,
                replaces,
            } => Self {
                what: "grant",
                claim: Some(claim),
                holder: replaces,
                ticket,
                lease: claim.ttl.saturating_add(claim.lock_delay),
                delay: claim.lock_delay,
            },
            Change::Enqueue { claim, ticket } => Self {
                what: "stand",
                claim: Some(claim),
                ticket: Some(ticket),
                delay: HANDOFF_WINDOW,
                ..none
            },
            Change::LeaveQueue { ticket } => Self {
                what: "leave",
                ticket: Some(ticket),
                ..none
            },
            Change::Release { holder } => Self {
                what: "release",
                holder: Some(holder),
                ..none
            },
            Change::Abandon { holder, lock_delay } => Self {
                what: "abandon",
                holder: Some(holder),
                delay: lock_delay,
                ..none
            },
            Change::Ask { holder } => Self {
                what: "ask",
                holder: Some(holder),
                ..none
            },
            Change::Reap => none,
        }
    }
}

fn first(holder: &Holder<DbInstant>) -> i64 {
    i64::try_from(holder.tokens.first.get()).unwrap_or(i64::MAX)
}
