//! `Inspect` of a set.

use async_trait::async_trait;
use fencelock_core::engine::{Cursor, Grant, HolderView, Page};
use fencelock_core::{Evict, Finding, Inspect, LockName, LockView, Result, Token};

use crate::diagnose::diagnose;
use crate::engine::Routed;
use crate::member::Member;

#[async_trait]
impl Inspect for Routed {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let member = self.member(name);
        let view = member.engine().await?.inspect().look(name).await;
        view.map_err(|error| member.named(error))
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let member = self.member(name);
        let view = member.engine().await?.inspect().watch(name, seen).await;
        view.map_err(|error| member.named(error))
    }

    /// Lists store after store. The cursor is `SHARD:` and the cursor of that store. A store that is away is an error that
    /// names it.
    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let (place, at) = match &at {
            None => (0, None),
            Some(cursor) => self.place_at(cursor)?,
        };
        let member = &self.members()[place];
        let inspect = member.engine().await?.inspect();
        let page = inspect.list(prefix, at, limit).await;
        let page = page.map_err(|error| member.named(error))?;
        let next = match (page.next, self.members().get(place + 1)) {
            (Some(next), _) => Some(Cursor(format!("{}:{}", member.id, next.0))),
            (None, Some(next)) => Some(Cursor(format!("{}:", next.id))),
            (None, None) => None,
        };
        Ok(Page::new(page.items, next))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let member = self.member(name);
        let evicted = member
            .engine()
            .await?
            .inspect()
            .evict(name, token, how)
            .await;
        evicted.map_err(|error| member.named(error))
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        let member = self.member(name);
        let attested = member.engine().await?.inspect().attest(name, owner).await;
        attested.map_err(|error| member.named(error))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        diagnose(self).await
    }
}

impl Routed {
    /// The shard of a cursor, and the cursor within it.
    fn place_at(&self, cursor: &Cursor) -> Result<(usize, Option<Cursor>)> {
        let parts = cursor.0.split_once(':');
        let (id, within) = parts.ok_or_else(|| cursor.refused())?;
        let place = self
            .members()
            .iter()
            .position(|member: &Member| member.id == id);
        let place = place.ok_or_else(|| cursor.refused())?;
        let within = (!within.is_empty()).then(|| Cursor(within.to_owned()));
        Ok((place, within))
    }
}
