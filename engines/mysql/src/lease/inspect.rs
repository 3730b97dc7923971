//! Reads locks: for the rules, and as people see them.

use fencelock_core::engine::{LockView, WaiterView};
use fencelock_core::{LockName, Token};
use fencelock_sql::lease::Rows;
use fencelock_sql::server::{DbInstant, Snapshot};

use super::connection::{Leases, Session, Tried};
use super::stored::{HOLDER, StoredRow, WAITER, all_rows, name};
use crate::request::{NOW, Request, bytes, quoted};
use crate::tables::Tables;

/// How many names with expired rows are read at once.
const REAP_BATCH: usize = 100;

impl Leases {
    pub(super) async fn snapshot(
        &self,
        session: &mut Session,
        of: &LockName,
    ) -> Tried<Option<Snapshot>> {
        let request = Request::of(all_rows(&self.tables, &name(of), self.ears.work()));
        let mut answers = self.run(session, &request).await?;
        let rows = std::mem::take(&mut answers[0].rows).into_iter();
        let rows = rows.map(StoredRow::read).collect::<Option<Vec<_>>>();
        let rows = rows.ok_or_else(|| self.unreadable(of))?;
        let mut gate = None;
        let (mut holders, mut queue) = (Vec::new(), Vec::new());
        for row in &rows {
            match (row.kind, row.mode) {
                (HOLDER, Some(mode)) => holders.push(row.holder(mode)),
                (WAITER, Some(mode)) => queue.push(row.waiter(mode)),
                _ => gate = Some((row.number, row.expiry)),
            }
        }
        queue.sort_by_key(|waiter| waiter.ticket);
        Ok(gate.map(|(version, now)| Snapshot {
            now,
            version,
            drawn: Token(0),
            rows: Rows { holders, queue },
        }))
    }

    pub(super) async fn views_of(
        &self,
        session: &mut Session,
        names: &[LockName],
    ) -> Tried<Vec<LockView>> {
        let request = Request::of(all_rows(&self.tables, &quoted(names), false));
        let rows = self.inspected(session, &request).await?.into_iter();
        // Unreadable rows are not shown. Taking such a lock is an error.
        Ok(views(rows.filter_map(StoredRow::read).collect()))
    }

    pub(super) async fn names(
        &self,
        session: &mut Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Tried<Vec<String>> {
        let Tables { locks, holders, .. } = &*self.tables;
        let mut request = Request::default();
        request.push(format!(
            "SELECT name FROM {locks} WHERE name >= {} AND name > {} AND (state <> 'none' AND expiry > {NOW} OR EXISTS \
             (SELECT 1 FROM {holders} AS h WHERE h.name = {locks}.name AND h.expiry > {NOW})) ORDER BY name LIMIT {limit}",
            bytes(prefix.as_bytes()),
            bytes(after.as_bytes()),
        ));
        let rows = self.inspected(session, &request).await?;
        let names = rows.iter().filter_map(|row| row.get::<Vec<u8>, _>(0));
        let names = names.map(|name| String::from_utf8_lossy(&name).into_owned());
        Ok(names.collect())
    }

    pub(super) async fn expired_names(&self, session: &mut Session) -> Tried<Vec<LockName>> {
        let Tables {
            locks,
            holders,
            waiters,
            ..
        } = &*self.tables;
        let mut request = Request::default();
        request.push(format!(
            "(SELECT name FROM {locks} WHERE state <> 'none' AND expiry <= {NOW} LIMIT {REAP_BATCH}) UNION \
             (SELECT name FROM {holders} WHERE expiry <= {NOW} LIMIT {REAP_BATCH}) UNION \
             (SELECT name FROM {waiters} WHERE expiry <= {NOW} LIMIT {REAP_BATCH})"
        ));
        let answers = self.run(session, &request).await?;
        let names = answers[0].rows.iter().filter_map(|row| {
            let name = String::from_utf8(row.get(0)?).ok()?;
            LockName::new(&name).ok()
        });
        Ok(names.collect())
    }
}

/// Locks as people see them, from all their rows.
fn views(mut rows: Vec<StoredRow>) -> Vec<LockView> {
    rows.sort_by(|a, b| {
        (a.name.as_str(), a.kind, a.number).cmp(&(b.name.as_str(), b.kind, b.number))
    });
    let mut views: Vec<LockView> = Vec::new();
    let mut now = DbInstant(0);
    for row in rows {
        let Some(mode) = row.mode else {
            now = row.expiry;
            views.push(LockView::free(row.name));
            continue;
        };
        let Some(view) = views.last_mut().filter(|view| view.name == row.name) else {
            continue;
        };
        if row.expiry <= now {
            continue;
        }
        if row.kind == HOLDER {
            view.holders.push(row.holder_view(mode, now));
        } else if view.waiters.len() < LockView::MOST_WAITERS {
            let owner = row.owner;
            view.waiters.push(WaiterView::new(owner, mode));
        }
    }
    views
}
