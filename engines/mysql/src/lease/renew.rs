//! Renews many holds in one transaction, and prolongs one.

use std::collections::{BTreeMap, HashMap};

use fencelock_core::engine::{Claim, HeldClaim};
use fencelock_core::{Mode, Token};
use fencelock_sql::server::micros;
use mysql_async::from_row_opt;

use super::connection::{Leases, Session, Tried};
use super::stored::{id, label, list, offset};
use crate::request::{NOW, Request, bytes};

/// A row that can be renewed.
const LIVE: &str = "expiry > @fencelock_now AND state IN ('held', 'asked')";

impl Leases {
    pub(super) async fn renew_all(
        &self,
        session: &mut Session,
        held: &[HeldClaim],
    ) -> Tried<Vec<Option<bool>>> {
        let is_exclusive = |held: &&HeldClaim| held.claim.mode == Mode::Exclusive;
        let (exclusive, others): (Vec<_>, Vec<_>) = held.iter().partition(is_exclusive);
        let mut request = Request::transaction();
        request.push(format!("SET @fencelock_now = {NOW}"));
        let mut selects = Vec::new();
        for (table, tokens, held) in [
            (&self.tables.locks, "tokens", exclusive),
            (&self.tables.holders, "1", others),
        ] {
            if held.is_empty() {
                continue;
            }
            let ids = list(held.iter().map(|held| id(held.token)));
            selects.push(format!(
                "SELECT id, claim, state = 'asked', {tokens} FROM {table} WHERE id IN ({ids}) AND {LIVE}"
            ));
            renew_in(&mut request, table, &held);
        }
        let kept = request.push(selects.join(" UNION ALL "));
        request.commit();
        let mut answers = self.run(session, &request).await?;
        let rows = std::mem::take(&mut answers[kept].rows).into_iter();
        let kept: HashMap<u64, (Vec<u8>, bool, u64)> = rows
            .filter_map(|row| from_row_opt::<(u64, Vec<u8>, bool, u64)>(row).ok())
            .map(|(id, claim, asked, tokens)| (id, (claim, asked, tokens)))
            .collect();
        let renewed = held.iter().map(|held| {
            let (claim, asked, tokens) = kept.get(&id(held.token))?;
            let has_token = offset(held.token) < *tokens;
            (has_token && claim == held.claim.id.as_bytes()).then_some(*asked)
        });
        Ok(renewed.collect())
    }

    pub(super) async fn prolong_hold(
        &self,
        session: &mut Session,
        claim: &Claim,
        first: Token,
    ) -> Tried<bool> {
        let table = match claim.mode {
            Mode::Exclusive => &self.tables.locks,
            Mode::Shared | Mode::Permit { .. } => &self.tables.holders,
        };
        let mine = format!(
            "id = {} AND claim = {} AND state IN ('held', 'asked') AND expiry > {NOW}",
            id(first),
            bytes(claim.id.as_bytes())
        );
        let mut request = Request::of(format!(
            "UPDATE {table} SET expiry = GREATEST(expiry, {NOW} + {}), lock_delay = GREATEST(lock_delay, {}) WHERE {mine}",
            micros(claim.ttl.saturating_add(claim.lock_delay)),
            micros(claim.lock_delay),
        ));
        // The UPDATE does not count a row that stays as it is.
        let held = request.push(format!("SELECT 1 FROM {table} WHERE {mine}"));
        let answers = self.run(session, &request).await?;
        Ok(!answers[held].rows.is_empty())
    }
}

/// The updates of one table. Holds with the same lease share an update, except those whose token has changed within the grant,
/// which have more to store.
fn renew_in(request: &mut Request, table: &str, held: &[&HeldClaim]) {
    let mut alike: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for held in held {
        let claim = &held.claim;
        let expiry = format!(
            "@fencelock_now + {}",
            micros(claim.ttl.saturating_add(claim.lock_delay))
        );
        let expiry = match held.shorten {
            true => expiry,
            false => format!("GREATEST(expiry, {expiry})"),
        };
        let lease = format!(
            "expiry = {expiry}, lock_delay = {}",
            micros(claim.lock_delay)
        );
        let current = offset(held.token);
        if current == 0 {
            alike.entry(lease).or_default().push(id(held.token));
            continue;
        }
        let live = match claim.mode {
            Mode::Exclusive => format!("{LIVE} AND tokens > {current}"),
            Mode::Shared | Mode::Permit { .. } => "FALSE".to_owned(),
        };
        request.push(format!(
            "UPDATE {table} SET {lease}, current = GREATEST(current, {current}), owner = {}, label = {} WHERE id = {} AND {live}",
            bytes(claim.owner.as_bytes()),
            label(claim),
            id(held.token),
        ));
    }
    for (lease, ids) in alike {
        let ids = list(ids);
        request.push(format!(
            "UPDATE {table} SET {lease} WHERE id IN ({ids}) AND {LIVE}"
        ));
    }
}
