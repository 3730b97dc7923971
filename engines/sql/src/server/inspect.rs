//! Looks at locks, and evicts holders.

use async_trait::async_trait;
use fencelock_core::engine::{Cursor, Event, Evict, Finding, Inspect, LockView, Page};
use fencelock_core::{Error, LockName, Result, Token};

use super::change::{Change, Written};
use super::dialect::Dialect;
use super::pool::{Lane, attempt};
use super::state::{Done, State, Tried, action, pause, write};
use super::stored::DbInstant;
use crate::lease::Holder;
use crate::page_of;

#[async_trait]
impl<D: Dialect> Inspect for State<D> {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call(action("looking at", name));
        let views = attempt!(call, Lane::Others, |session| {
            dialect.views(session, std::slice::from_ref(name)).await
        });
        let view = views.into_iter().next();
        Ok(view.unwrap_or_else(|| LockView::free(name.clone())))
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let dialect = &self.pool.dialect;
        let after = at.map(|at| at.name(prefix)).transpose()?;
        let (after, limit) = (after.unwrap_or_default(), limit.clamp(1, 1000));
        let mut call = self.pool.call("listing locks");
        let names = attempt!(call, Lane::Others, |session| {
            dialect.held_names(session, prefix, &after, limit).await
        });
        let (names, next) = page_of(names, prefix, limit)?;
        let mut items = Vec::new();
        if !names.is_empty() {
            items = attempt!(call, Lane::Others, |session| {
                dialect.views(session, &names).await
            });
            items.retain(|view| !view.holders.is_empty());
        }
        Ok(Page::new(items, next))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.check_writes("an eviction")?;
        let dialect = &self.pool.dialect;
        let what = match how {
            Evict::Release => "evicting the holder of",
            Evict::Ask => "asking the holder of",
        };
        let mut call = self.pool.call(action(what, name));
        let done = attempt!(call, Lane::Others, |session| {
            evict(dialect, session, name, token, how).await
        });
        self.wake(&done.next);
        match done.answer {
            Some(event) => self.events.tell(event),
            // An earlier attempt, whose answer was lost, may have done it.
            None if !call.lost.is_empty() => {
                return Err(Error::unsettled(dialect, action(what, name)));
            }
            None => return Ok(false),
        }
        Ok(true)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.pool.dialect.findings().await
    }
}

/// Evicts the holder with this token, or asks it to release. Returns what happened to which claim.
async fn evict<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    name: &LockName,
    token: Token,
    how: Evict,
) -> Tried<Done<Option<Event>>> {
    loop {
        let Some(read) = dialect.read(session, name).await? else {
            return Ok(Done::alone(None));
        };
        let is_meant = |holder: &&Holder<DbInstant>| {
            let asks_nobody = how == Evict::Ask && holder.abandoned;
            holder.tokens.contains(token) && holder.expiry > read.now && !asks_nobody
        };
        let Some(holder) = read.rows.holders.iter().find(is_meant) else {
            return Ok(Done::alone(None));
        };
        let (change, event) = match how {
            Evict::Release => (Change::Release { holder }, Event::Lost(holder.claim)),
            Evict::Ask => (Change::Ask { holder }, Event::Asked(holder.claim)),
        };
        let (written, next) = write(dialect, session, name, &read, change).await?;
        if let Written::Done(_) = written {
            dialect.notify(session, event).await?;
            let answer = Some(event);
            return Ok(Done { answer, next });
        }
        pause().await;
    }
}
