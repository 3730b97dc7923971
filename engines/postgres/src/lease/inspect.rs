//! Reads locks: for the rules, and as people see them.

use std::time::Duration;

use fencelock_core::engine::{HolderView, LockView, WaiterView};
use fencelock_core::{LockName, Result, Token, Tokens};
use fencelock_sql::lease::{Holder, Rows, Waiter, mode_from};
use fencelock_sql::server::{DbInstant, Failure, Snapshot};

use super::connection::Leases;
use super::statements::{LOOK, READ};
use super::stored::claim;
use crate::connection::Session;

impl Leases {
    pub(super) async fn snapshot(
        &self,
        session: &mut Session,
        name: &LockName,
    ) -> Result<Option<Snapshot>, Failure> {
        let rows = self
            .query(session, "reading a lock", READ, &[&name.as_str()])
            .await?;
        let mut gate = None;
        let mut found = Rows {
            holders: Vec::new(),
            queue: Vec::new(),
        };
        for row in &rows {
            let number: i64 = row.get(1);
            let expiry = DbInstant(row.get::<_, i64>(2).unsigned_abs());
            if row.get::<_, i32>(0) == 0 {
                let drawn = Token(row.get::<_, i64>(8).unsigned_abs());
                gate = Some((number.unsigned_abs(), expiry, drawn));
                continue;
            }
            let (Some(mode), Some(claim)) = (mode_from(row.get(3)), claim(row, 4)) else {
                return Err(self.unreadable(name));
            };
            if row.get::<_, i32>(0) == 1 {
                let first = Token(number.unsigned_abs());
                found.holders.push(Holder {
                    claim,
                    mode,
                    tokens: Tokens::new(first, row.get::<_, i32>(5).unsigned_abs()),
                    expiry,
                    abandoned: row.get(6),
                });
            } else {
                found.queue.push(Waiter {
                    claim,
                    ticket: number,
                    mode,
                    expiry,
                    address: Some(row.get::<_, &str>(7).into()),
                });
            }
        }
        Ok(gate.map(|(version, now, drawn)| Snapshot {
            now,
            version,
            drawn,
            rows: found,
        }))
    }

    pub(super) async fn views_of(
        &self,
        session: &mut Session,
        names: &[LockName],
    ) -> Result<Vec<LockView>, Failure> {
        let wanted: Vec<&str> = names.iter().map(LockName::as_str).collect();
        let rows = self
            .query(session, "looking at locks", LOOK, &[&wanted])
            .await?;
        let mut views: Vec<LockView> = names.iter().cloned().map(LockView::free).collect();
        for row in rows {
            let left: i64 = row.get(6);
            let of: &str = row.get(0);
            let Some(view) = views.iter_mut().find(|view| view.name.as_str() == of) else {
                continue;
            };
            // Unreadable rows are not shown. Taking such a lock is an error.
            let (Some(mode), Some(claim)) = (mode_from(row.get(3)), claim(&row, 5)) else {
                continue;
            };
            if left <= 0 {
                continue;
            }
            let owner = row.get(4);
            if row.get::<_, i32>(1) == 2 {
                if view.waiters.len() < LockView::MOST_WAITERS {
                    let label = row.get(9);
                    view.waiters.push(WaiterView::new(owner, mode).label(label));
                }
                continue;
            }
            let length =
                |at: usize| Duration::from_micros(row.get::<_, i64>(at).max(0).unsigned_abs());
            view.holders.push(
                HolderView::new(owner, mode)
                    .claim(claim)
                    .token(Token(row.get::<_, i64>(2).unsigned_abs()))
                    .ttl_left(length(6))
                    .lock_delay(length(7).min(length(6)))
                    .held(length(8))
                    .label(row.get(9)),
            );
        }
        Ok(views)
    }
}
