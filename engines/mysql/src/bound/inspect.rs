//! Locks as people see them, from the records.

use fencelock_core::engine::{Evict, LockView, Page};
use fencelock_core::{LockName, Token};
use fencelock_sql::bound::{SessionId, views};
use fencelock_sql::page_of;
use fencelock_sql::server::Failure;
use mysql_async::Row;

use super::connection::{BoundLocks, Session};
use super::stored::{claim_of, record_view, take, text_of};
use crate::request::{NOW, Request, bytes, quoted};

pub(super) enum Evicted {
    Nobody,
    End(SessionId),
    Asked,
}

impl BoundLocks {
    /// The rows of an inspection. An inspecting client creates no tables, and sees nothing where there are none.
    async fn inspected(&self, control: &mut Session, ask: String) -> Result<Vec<Row>, Failure> {
        match control.run(Request::of(ask)).await {
            Ok(mut answers) => Ok(std::mem::take(&mut answers[0].rows)),
            Err(Failure::NoTables(_)) if self.config.inspect_only => Ok(Vec::new()),
            Err(failed) => Err(failed),
        }
    }

    pub(super) async fn views(
        &self,
        control: &mut Session,
        names: &str,
    ) -> Result<Vec<LockView>, Failure> {
        // Signed, since the clock may be before the stored time, and the server refuses a statement in which an unsigned number
        // would be below zero. `p.time` is how long the connection has been idle.
        let what = format!(
            "b.name, b.count, b.claim, b.owner, b.token, b.label, {NOW} - CAST(b.since AS SIGNED), \
             IF(b.ttl < p.time * 1000000, 0, b.ttl - p.time * 1000000)"
        );
        let rest = format!("b.name IN ({names}) ORDER BY b.name, b.count = 0, b.since, b.token");
        let rows = self
            .inspected(control, self.open_records(&what, &rest))
            .await?;
        // Rows that another program wrote are not shown.
        Ok(views(rows.into_iter().filter_map(record_view)))
    }

    pub(super) async fn page(
        &self,
        control: &mut Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Page<LockView>, Failure> {
        let rest = format!(
            "b.count > 0 AND b.name >= {} AND b.name > {} ORDER BY b.name LIMIT {limit}",
            bytes(prefix.as_bytes()),
            bytes(after.as_bytes())
        );
        let mut rows = self
            .inspected(control, self.open_records("DISTINCT b.name", &rest))
            .await?;
        let names = rows.iter_mut().filter_map(|row| take::<Vec<u8>>(row, 0));
        let names = names.map(|name| String::from_utf8_lossy(&name).into_owned());
        let page = page_of(names.collect(), prefix, limit);
        let (names, next) = page.map_err(Failure::Final)?;
        let mut items = Vec::new();
        if !names.is_empty() {
            items = self.views(control, &quoted(&names)).await?;
            items.retain(|view| !view.holders.is_empty());
        }
        Ok(Page::new(items, next))
    }

    pub(super) async fn find_and_ask(
        &self,
        control: &mut Session,
        name: &LockName,
        token: Token,
        how: Evict,
    ) -> Result<Evicted, Failure> {
        let rest = format!(
            "b.name = {} AND {token} >= b.first AND {token} < b.first + b.count",
            bytes(name.as_str().as_bytes())
        );
        let find = Request::of(self.open_records("b.claim, CONCAT(b.conn, ' ', b.host)", &rest));
        let mut answers = control.run(find).await?;
        let Some(row) = answers[0].rows.first_mut() else {
            return Ok(Evicted::Nobody);
        };
        match (how, claim_of(row, 0), text_of(row, 1)) {
            (Evict::Release, _, Some(session)) => Ok(Evicted::End(SessionId(session))),
            (Evict::Ask, Some(claim), _) => {
                let (bound, claim) = (&self.tables.bound, bytes(claim.as_bytes()));
                let ask = format!("UPDATE {bound} SET asked = 1 WHERE claim = {claim}");
                control.run(Request::of(ask)).await?;
                Ok(Evicted::Asked)
            }
            _ => Ok(Evicted::Nobody),
        }
    }
}
