//! The parameters of `fencelock_change`.

use std::time::Duration;

use fencelock_core::Result;
use fencelock_sql::lease::{Holder, mode_text};
use fencelock_sql::server::{
    CLAIM_WINDOW, Change, DbInstant, Failure, HANDOFF_WINDOW, Write, Written,
};

use super::connection::Leases;
use super::statements::WRITE;
use super::stored::{count, id, length, tokens, version};
use crate::connection::{Session, Values};

impl Leases {
    pub(super) async fn write_change(
        &self,
        session: &mut Session,
        write: &Write<'_>,
    ) -> Result<Written, Failure> {
        let (mut meant, mut place, mut delay) = (None, None, Duration::ZERO);
        let (what, claim) = match write.change {
            Change::Grant {
                claim,
                ticket,
                replaces,
            } => {
                (place, meant, delay) = (ticket, replaces, claim.lock_delay);
                ("grant", Some(claim))
            }
            Change::Enqueue { claim, ticket } => {
                (place, delay) = (Some(ticket), HANDOFF_WINDOW);
                ("stand", Some(claim))
            }
            Change::LeaveQueue { ticket } => {
                place = Some(ticket);
                ("leave", None)
            }
            Change::Release { holder } => {
                meant = Some(holder);
                ("release", None)
            }
            Change::Abandon { holder, lock_delay } => {
                (meant, delay) = (Some(holder), lock_delay);
                ("abandon", None)
            }
            Change::Ask { holder } => {
                meant = Some(holder);
                ("ask", None)
            }
            Change::Reap => ("bury", None),
        };
        let lease = match write.change {
            Change::Grant { claim, .. } => claim.ttl.saturating_add(claim.lock_delay),
            _ => CLAIM_WINDOW,
        };
        let first = |holder: &Holder<DbInstant>| {
            i64::try_from(holder.tokens.first.get()).unwrap_or(i64::MAX)
        };
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
        let values: Values<'_> = &[
            &write.name.as_str(),
            &version(write.version),
            &expired,
            &write.expired_waiters,
            &what,
            &meant.map(first),
            &place,
            &claim.map(id),
            &claim.map(|claim| mode_text(claim.mode).into_owned()),
            &claim.map(|claim| count(claim) as i32),
            &length(lease),
            &length(delay),
            &claim.map(|claim| &*claim.owner),
            &claim.and_then(|claim| claim.label.as_deref()),
            &self.channel,
            &write.last,
            &claims,
            &channels,
        ];
        let rows = self.query(session, "change a lock", WRITE, values).await?;
        let written = rows.first().map_or(-1, |row| row.get::<_, i64>(0));
        Ok(match (written, claim) {
            (-1, _) => Written::Stale,
            (0, _) | (_, None) => Written::Done(None),
            (first, Some(claim)) => Written::Done(Some(tokens(first, claim))),
        })
    }
}
