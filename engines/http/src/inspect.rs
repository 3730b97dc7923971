//! `Inspect`: look, watch, list, evict, attest, and diagnose.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use fencelock_core::engine::{Cursor, Evict, Grant, HolderView, Inspect, LockView, Page};
use fencelock_core::{Finding, LockName, Result, Token, Tokens};
use fencelock_wire::{Attest, Attested, EvictHow, Evicted, Findings, Lock, Locks, millis};
use futures_util::future::join_all;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::Ask;
use crate::error::Action;
use crate::reply::Reply;
use crate::state::{Request, State};

/// How long one request watches a lock.
const WATCHES: Duration = Duration::from_secs(10);

impl State {
    async fn get<T: DeserializeOwned>(&self, path: &str, action: Action<'_>) -> Result<T> {
        self.get_within(path, action, self.config.response_timeout)
            .await
    }

    async fn get_within<T: DeserializeOwned>(
        &self,
        path: &str,
        action: Action<'_>,
        limit: Duration,
    ) -> Result<T> {
        let request = Request {
            ask: Ask::get(path),
            action,
            claim: None,
            at: None,
            home: None,
            with_others: None,
            // A request that watches a lock has more time, and stays where it is.
            moves_on: limit <= self.config.response_timeout,
            limit,
        };
        let reply = self.ask(request).await?;
        Ok(self.read(&reply, action)?)
    }

    /// What replica `at` attests, or any replica.
    async fn attested(
        &self,
        body: &Attest,
        action: Action<'_>,
        at: Option<usize>,
    ) -> Result<Option<(HolderView, Grant)>> {
        let reply = self.send("/v1/attest", body, action, at).await?;
        let attested: Attested = self.read(&reply, action)?;
        let Some(holder) = attested.holder.map(HolderView::from) else {
            return Ok(None);
        };
        let lease = Duration::from_millis(attested.lease_ms_since_sent);
        // Without a token, only the holder's process knows it (see `Inspect::attest`).
        let token = holder.token.unwrap_or(Token(0));
        let grant = Grant::new(Tokens::one(token), reply.sent, lease);
        Ok(Some((holder, grant)))
    }

    /// Sends a request that is about no claim.
    async fn send(
        &self,
        path: &str,
        body: &impl Serialize,
        action: Action<'_>,
        at: Option<usize>,
    ) -> Result<Reply> {
        let body: Bytes = self.json(body)?;
        let request = Request {
            ask: Ask {
                method: &Method::POST,
                body: Some(&body),
                ..Ask::get(path)
            },
            action,
            claim: None,
            at,
            home: None,
            with_others: None,
            // An eviction that is repeated finds nobody, although it took effect.
            moves_on: false,
            limit: self.config.response_timeout,
        };
        Ok(self.ask(request).await?)
    }
}

/// A value for a query, percent-encoded.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[async_trait]
impl Inspect for State {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let path = format!("/v1/lock?name={}", encoded(name.as_str()));
        let lock: Lock = self.get(&path, Action::of("looking at", name)).await?;
        Ok(lock.into())
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let word = seen.map_or_else(|| "none".to_owned(), |token| token.to_string());
        let (name_text, wait) = (encoded(name.as_str()), millis(WATCHES));
        let path = format!("/v1/lock?name={name_text}&seen={word}&wait_ms={wait}");
        let limit = WATCHES + self.config.response_timeout;
        loop {
            let action = Action::of("watching", name);
            let lock: Lock = self.get_within(&path, action, limit).await?;
            let view = LockView::from(lock);
            if view.token() != seen {
                return Ok(view);
            }
            // A service may answer before the time is over: pause, to not ask too often.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let mut path = format!("/v1/locks?prefix={}&limit={limit}", encoded(prefix));
        if let Some(Cursor(cursor)) = at {
            path.push_str("&cursor=");
            path.push_str(&encoded(&cursor));
        }
        let locks: Locks = self.get(&path, Action::plain("listing locks")).await?;
        let views = locks.locks.into_iter().map(LockView::from).collect();
        Ok(Page::new(views, locks.next.map(Cursor)))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let how = match how {
            Evict::Release => EvictHow::Release,
            Evict::Ask => EvictHow::Ask,
        };
        let action = Action::of("evicting the holder of", name);
        let name = name.clone();
        let body = fencelock_wire::Evict { name, token, how };
        let reply = self.send("/v1/evict", &body, action, None).await?;
        let evicted: Evicted = self.read(&reply, action)?;
        Ok(evicted.done)
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        let action = Action::of("asking who holds", name);
        let body = Attest {
            name: name.clone(),
            owner: owner.to_owned(),
        };
        if self.homes.is_none() {
            return self.attested(&body, action, None).await;
        }
        // Only the replica with the claim knows how long it keeps the claim. All others attest nothing.
        let asked = (0..self.replicas.len()).map(|at| self.attested(&body, action, Some(at)));
        let (mut found, mut failed) = (None, None);
        for answer in join_all(asked).await {
            match answer {
                Ok(Some((holder, grant))) if !grant.lease.is_zero() => {
                    return Ok(Some((holder, grant)));
                }
                Ok(Some(other)) => found = Some(other),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        match (found, failed) {
            (found, None) => Ok(found),
            (_, Some(error)) => Err(error),
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let action = Action::plain("asking for findings");
        let findings: Findings = self.get("/v1/store/findings", action).await?;
        let findings = findings.findings.into_iter().map(Finding::from);
        // The service also reports the limits of its store's promises.
        let limits = &self.promises.limits;
        Ok(findings.filter(|found| !limits.contains(found)).collect())
    }
}
