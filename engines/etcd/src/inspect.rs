//! Looking at locks, and evicting their holders.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    WatchOptions,
};
use fencelock_core::engine::{Cursor, Evict, Finding, Inspect, LockView, Page};
use fencelock_core::{Error, LockName, Result, Token};

use crate::layout::{message_key, range_end};
use crate::mail::{ASKED, EVICTED};
use crate::state::State;
use crate::stored::{self, Stored, admitted};

/// How many keys are listed at once.
const MAX_PAGE: usize = 5000;

/// How long a message waits for a holder that is not connected.
const MESSAGE_SECONDS: i64 = 5;

/// The remaining time of each lease that was looked up.
type Leases = HashMap<i64, Duration>;

#[async_trait]
impl Inspect for State {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let queue = self.queue(name).await?;
        self.view_of(name, &queue, &mut Leases::new()).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        loop {
            let prefix = self.layout().queue(name);
            let options = WatchOptions::new().with_range(range_end(&prefix));
            let (connection, mut watch) = self.cluster.watch(prefix.as_bytes(), options).await?;
            loop {
                let view = self.look(name).await?;
                if view.token() != seen {
                    return Ok(view);
                }
                let changed = tokio::select! {
                    changed = watch.next() => changed,
                    () = connection.closed() => break,
                };
                if changed.is_none() {
                    break;
                }
            }
        }
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let listing = self.layout().listing(prefix);
        let end = match listing.is_empty() {
            // The range of all keys.
            true => vec![0],
            false => range_end(&listing),
        };
        let before = at.as_ref().map(|at| self.claim_at(at, &listing));
        let before = before.transpose()?;
        let from = match at {
            Some(cursor) => cursor.0,
            None if listing.is_empty() => "\0".to_owned(),
            None => listing,
        };
        let (kvs, more) = self.claims_from(from.into_bytes(), end, limit).await?;
        let mut queues = self.queues_in(&kvs);
        // The page before has its last queue to the end.
        queues.retain(|(name, _)| before.as_ref() != Some(name));
        if more && let Some((name, queue)) = queues.last_mut() {
            // Its queue may continue in the next part.
            *queue = self.queue(name).await?;
        }
        let (mut items, mut leases) = (Vec::new(), Leases::new());
        for (name, queue) in &mut queues {
            queue.sort_by_key(|stored| stored.revision);
            let view = self.view_of(name, queue, &mut leases).await?;
            if !view.holders.is_empty() {
                items.push(view);
            }
        }
        let last = kvs.last().filter(|_| more);
        let next = last.and_then(|kv| Some(Cursor(format!("{}\0", kv.key_str().ok()?))));
        Ok(Page::new(items, next))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let queue = self.queue(name).await?;
        let holds = admitted(queue.iter().map(|stored| stored.mode));
        let mut holders = queue.iter().take(holds);
        let is_meant = |stored: &&Stored| stored.tokens.contains(token) && self.is_of(name, stored);
        let Some(holder) = holders.find(is_meant) else {
            return Ok(false);
        };
        if how == Evict::Ask && (holder.id.is_none() || holder.mailbox.is_none()) {
            return Err(Error::unsupported(
                &self.cluster.config.store,
                "asking for a release",
                "the holder is of another library, which hears no such request",
            ));
        }
        let mut changes = Vec::new();
        if how == Evict::Release {
            changes.push(TxnOp::delete(holder.key.clone(), None));
        }
        if let (Some(id), Some(client)) = (holder.id, &holder.mailbox) {
            let message = match how {
                Evict::Release => EVICTED,
                Evict::Ask => ASKED,
            };
            // With a lease that is not renewed, so that an unread message disappears.
            let (lease, _) = self.cluster.grant_lease(MESSAGE_SECONDS).await?;
            let options = PutOptions::new().with_lease(lease);
            changes.push(TxnOp::put(message_key(client, id), message, Some(options)));
        }
        let same = Compare::create_revision(holder.key.clone(), CompareOp::Equal, holder.revision);
        let evict = Txn::new().when([same]).and_then(changes);
        let action = || format!("evicting the holder of lock {name}");
        match self.cluster.txn(action, evict).await {
            Ok(reply) => Ok(reply.succeeded()),
            Err(failed) if failed.lease_expired => Ok(false),
            Err(failed) => Err(failed.error),
        }
    }
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.findings().await
    }
}

impl State {
    /// The lock of the claim after whose key a page begins. A cursor of anywhere else would show keys of other programs.
    fn claim_at(&self, at: &Cursor, listing: &str) -> Result<LockName> {
        let key = at.0.strip_suffix('\0');
        let key = key.filter(|key| key.starts_with(listing));
        let name = key.and_then(|key| self.layout().name_of(key.as_bytes()));
        name.ok_or_else(|| at.refused())
    }

    /// The claims among some keys, and whether there are more keys after the last of them. It reads on over the keys of other
    /// programs, since the last key of a page is shown as its cursor.
    async fn claims_from(
        &self,
        mut from: Vec<u8>,
        end: Vec<u8>,
        limit: usize,
    ) -> Result<(Vec<KeyValue>, bool)> {
        let mut limit = limit.clamp(2, MAX_PAGE);
        let mut claims = Vec::new();
        loop {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(limit as i64);
            let action = || "listing locks".into();
            let mut got = self.cluster.get(action, &from, options).await?;
            let (more, kvs) = (got.more(), got.take_kvs());
            let last = kvs.last().map(|kv| (kv.key().to_vec(), self.is_claim(kv)));
            claims.extend(kvs.into_iter().filter(|kv| self.is_claim(kv)));
            match last {
                Some((key, false)) if more => from = [&key[..], b"\0"].concat(),
                _ => return Ok((claims, more)),
            }
            limit = MAX_PAGE;
        }
    }

    /// Whether a key is a claim. Keys of other programs may look like those of Go's layout, but have no lease.
    fn is_claim(&self, kv: &KeyValue) -> bool {
        kv.lease() != 0 && self.layout().name_of(kv.key()).is_some()
    }

    /// All claims for a lock, in order.
    async fn queue(&self, name: &LockName) -> Result<Vec<Stored>> {
        let prefix = self.layout().queue(name);
        let all = GetOptions::new()
            .with_range(range_end(&prefix))
            .with_sort(SortTarget::Create, SortOrder::Ascend);
        let action = || format!("looking at lock {name}");
        let got = self.cluster.get(action, prefix.as_bytes(), all).await?;
        let read = |kv| stored::read(self.layout(), kv).map_err(|why| self.not_a_lock(name, why));
        let mut queue: Vec<Stored> = got.kvs().iter().map(read).collect::<Result<_>>()?;
        for stored in queue.iter_mut().filter(|stored| !self.is_of(name, stored)) {
            stored.hide_owner();
        }
        Ok(queue)
    }

    /// Whether a key in the queue of this lock is a claim for this lock. In Go's layout the keys of lock `a/b` are in the queue
    /// of lock `a`, and exclude its claims.
    fn is_of(&self, name: &LockName, stored: &Stored) -> bool {
        self.layout().name_of(&stored.key).as_ref() == Some(name)
    }

    async fn view_of(
        &self,
        name: &LockName,
        queue: &[Stored],
        leases: &mut Leases,
    ) -> Result<LockView> {
        let holds = admitted(queue.iter().map(|stored| stored.mode));
        let (holders, waiters) = queue.split_at(holds);
        let mut view = LockView::free(name.clone());
        for holder in holders {
            let left = self.lease_left(holder.lease, leases).await?;
            view.holders.push(holder.holder(left));
        }
        let waiters = waiters.iter().take(LockView::MOST_WAITERS);
        view.waiters = waiters.map(Stored::waiter).collect();
        Ok(view)
    }

    /// How long a lease has left. `None` for a key without a lease.
    async fn lease_left(&self, lease: i64, leases: &mut Leases) -> Result<Option<Duration>> {
        if lease == 0 {
            return Ok(None);
        }
        if let Some(left) = leases.get(&lease) {
            return Ok(Some(*left));
        }
        let left = self.cluster.lease_left(lease).await?.unwrap_or_default();
        leases.insert(lease, left);
        Ok(Some(left))
    }

    /// These claims, by lock.
    fn queues_in(&self, kvs: &[KeyValue]) -> Vec<(LockName, Vec<Stored>)> {
        let mut queues: Vec<(LockName, Vec<Stored>)> = Vec::new();
        for kv in kvs {
            let Some(name) = self.layout().name_of(kv.key()) else {
                continue;
            };
            let Ok(stored) = stored::read(self.layout(), kv) else {
                continue;
            };
            match queues.last_mut() {
                Some((last, queue)) if *last == name => queue.push(stored),
                _ => queues.push((name, vec![stored])),
            }
        }
        queues
    }
}
