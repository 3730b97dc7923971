use fencelock_core::engine::{HeldClaim, Renewal};
use fencelock_core::{BootInstant, Clock, Result};
use fencelock_sql::lease;
use rusqlite::{OptionalExtension, params};

use crate::handle::{Handle, How};
use crate::job::Action;
use crate::stored::{Sql, duration_value, instant_value, token_value};
use crate::transaction::Transaction;

/// The most holds that are renewed in one transaction, so that other processes have their turn in between.
const BATCH: usize = 500;

pub(crate) async fn renew(worker: &Handle, held: &[HeldClaim]) -> Vec<Renewal> {
    let mut renewals = Vec::with_capacity(held.len());
    for batch in held.chunks(BATCH) {
        match renew_batch(worker, batch.to_vec()).await {
            Ok(renewed) => renewals.extend(renewed),
            Err(error) => {
                // The other batches would take as long to fail, and validity runs out meanwhile.
                let rest = held.len() - renewals.len();
                renewals.extend(fencelock_sql::unknown(worker.file(), error, rest));
                break;
            }
        }
    }
    renewals
}

async fn renew_batch(worker: &Handle, batch: Vec<HeldClaim>) -> Result<Vec<Renewal>> {
    let asked_at = Clock::Boot.now();
    worker
        .run(
            How::Renew,
            Action::Other("renewing holds"),
            move |transaction| prolong_all(transaction, &batch, asked_at),
        )
        .await
}

/// Prolongs holds, and stores their present tokens and owners. A token outside of the grant belongs to an earlier grant of the
/// claim: a late request has placed the claim again since.
fn prolong_all(
    transaction: &mut Transaction<'_>,
    held: &[HeldClaim],
    asked_at: BootInstant,
) -> Sql<Vec<Renewal>> {
    let sql = "SELECT state = 'asked', expiry FROM holders \
               WHERE name = ?1 AND claim = ?2 AND expiry > ?3 AND state <> 'abandoned' \
               AND ?4 BETWEEN first AND first + count - 1 AND mode = ?5";
    let mut select = transaction.connection.prepare_cached(sql)?;
    let sql = "UPDATE holders SET expiry = ?3, lock_delay = ?4, token = ?5, owner = ?6, label = ?7, written = ?8, bell = ?9 \
               WHERE name = ?1 AND claim = ?2";
    let mut update = transaction.connection.prepare_cached(sql)?;
    let mut renewals = Vec::with_capacity(held.len());
    for held in held {
        let HeldClaim { claim, token, .. } = held;
        let (name, id) = (claim.name.as_str(), claim.id.as_bytes());
        let now = instant_value(transaction.now);
        let mode = lease::mode_text(claim.mode);
        let values = params![name, id, now, token_value(*token), mode];
        let live = select.query_row(values, |row| Ok((row.get(0)?, row.get(1)?)));
        let Some((asked, before)) = live.optional()? else {
            transaction.entries.remove_holding(claim.id);
            renewals.push(Renewal::Lost);
            continue;
        };
        let expiry: i64 = instant_value(lease::expiry(claim, transaction.now));
        update.execute(params![
            name,
            id,
            match held.shorten {
                true => expiry,
                false => expiry.max(before),
            },
            duration_value(claim.lock_delay),
            token_value(*token),
            &*claim.owner,
            claim.label.as_deref(),
            now,
            transaction.address.as_bytes(),
        ])?;
        transaction.entries.set_holding(claim.id, &claim.name);
        renewals.push(Renewal::kept(asked_at, claim.ttl, asked));
    }
    Ok(renewals)
}
