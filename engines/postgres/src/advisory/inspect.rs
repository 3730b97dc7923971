//! Locks as people see them, from the records.

use std::time::Duration;

use fencelock_core::engine::{HolderView, LockView, Page};
use fencelock_core::{LockName, Result, Token};
use fencelock_sql::bound::{RecordView, views};
use fencelock_sql::lease::mode_from;
use fencelock_sql::page_of;
use tokio_postgres::Row;

use super::connection::Advisory;
use super::statements::{LIST, LOOK, STRATEGY};
use crate::connection::{Session, Values};

impl Advisory {
    pub(super) async fn view(&self, control: &mut Session, name: &LockName) -> Result<LockView> {
        let action = format!("looking at lock {name}");
        let values: Values<'_> = &[&STRATEGY, &name.as_str()];
        let rows = self.hosts.inspected(control, &action, LOOK, values).await?;
        let records = rows.iter().map(|row| {
            Ok(RecordView {
                name: name.clone(),
                holder: self.holder(row)?,
                holds: row.get(8),
            })
        });
        let records: Vec<RecordView> = records.collect::<Result<_>>()?;
        let view = views(records).into_iter().next();
        Ok(view.unwrap_or_else(|| LockView::free(name.clone())))
    }

    pub(super) async fn page(
        &self,
        control: &mut Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let values: Values<'_> = &[&STRATEGY, &prefix, &after, &(limit as i64)];
        let rows = self
            .hosts
            .inspected(control, "listing locks", LIST, values)
            .await?;
        let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let (names, next) = page_of(names, prefix, limit)?;
        let mut items = Vec::new();
        for name in &names {
            items.push(self.view(control, name).await?);
        }
        Ok(Page::new(items, next))
    }

    fn holder(&self, row: &Row) -> Result<HolderView> {
        let millis = |at: usize| Duration::from_millis(row.get::<_, i64>(at).unsigned_abs());
        let unknown = || self.hosts.internal("fencelock_bound has an unknown mode");
        let mode = mode_from(row.get(4)).ok_or_else(unknown)?;
        Ok(HolderView::new(row.get(2), mode)
            .claim(self.claim(row, 1)?)
            .token(Token(row.get::<_, i64>(3).unsigned_abs()))
            .ttl_left(millis(7))
            .held(millis(6))
            .label(row.get(5)))
    }
}
