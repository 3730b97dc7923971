//! Looking at locks, and taking them from their holders.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    WatchOptions,
};
use fencelock_core::engine::{Cursor, Evict, LockView, Page};
use fencelock_core::{LockName, Result, Token};

use crate::engine::Shared;
use crate::layout::{end_of, letter};
use crate::mail::{ASKED, EVICTED};
use crate::value::{self, Stored, admitted};

/// How many waiters are shown of a long line.
const WAITERS: usize = 1000;

/// For how long a letter waits for a holder that is not connected just now.
const LETTER_SECONDS: i64 = 5;

/// What is left of each lease that was asked about.
type Leases = HashMap<i64, Option<Duration>>;

impl Shared {
    pub(crate) async fn look(
        self: &Arc<Self>,
        name: &LockName,
        unlike: Option<Option<Token>>,
    ) -> Result<LockView> {
        let Some(seen) = unlike else {
            let line = self.line(name).await?;
            return self.view(name, &line, &mut Leases::new()).await;
        };
        loop {
            let prefix = self.layout().line(name);
            let options = WatchOptions::new().with_range(end_of(&prefix));
            let (link, mut watch) = self.store.watch(prefix.as_bytes(), options).await?;
            loop {
                let line = self.line(name).await?;
                let view = self.view(name, &line, &mut Leases::new()).await?;
                if view.token() != seen {
                    return Ok(view);
                }
                let told = tokio::select! {
                    told = watch.message() => told,
                    () = link.gone() => break,
                };
                if told.is_none() {
                    break;
                }
            }
        }
    }

    /// All claims for a name, in order.
    async fn line(&self, name: &LockName) -> Result<Vec<Stored>> {
        let prefix = self.layout().line(name);
        let all = GetOptions::new()
            .with_range(end_of(&prefix))
            .with_sort(SortTarget::Create, SortOrder::Ascend);
        let action = || format!("looking at lock {name}");
        let got = self.store.get(action, &prefix, all).await?;
        self.parse(name, got.kvs())
    }

    fn parse(&self, name: &LockName, kvs: &[KeyValue]) -> Result<Vec<Stored>> {
        let read = |kv| value::read(self.layout(), kv).map_err(|why| self.not_a_lock(name, why));
        kvs.iter().map(read).collect()
    }

    async fn view(
        &self,
        name: &LockName,
        line: &[Stored],
        leases: &mut Leases,
    ) -> Result<LockView> {
        let holds = admitted(line.iter().map(|stored| stored.mode));
        let (holders, waiters) = line.split_at(holds);
        let mut view = LockView::free(name.clone());
        for holder in holders {
            let left = match leases.get(&holder.lease) {
                Some(left) => *left,
                None if holder.lease == 0 => None,
                None => {
                    let told = self.store.lease(holder.lease, false).await?;
                    let left = Some(told.map_or(Duration::ZERO, |(left, _)| left));
                    leases.insert(holder.lease, left);
                    left
                }
            };
            view.holders.push(holder.holder(left));
        }
        view.waiters = waiters.iter().take(WAITERS).map(Stored::waiter).collect();
        Ok(view)
    }

    pub(crate) async fn list(
        &self,
        prefix: &str,
        at: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let beginning = self.layout().beginning(prefix);
        let end = match beginning.is_empty() {
            // All keys there are.
            true => vec![0],
            false => end_of(&beginning),
        };
        let from = at.map_or_else(|| beginning.clone(), |cursor| cursor.0);
        let from = if from.is_empty() {
            "\0".to_owned()
        } else {
            from
        };
        let limit = limit.clamp(2, 5000);
        let options = GetOptions::new()
            .with_range(end)
            .with_limit(i64::try_from(limit).unwrap_or(5000));
        let mut got = self
            .store
            .get(|| "listing locks".into(), &from, options)
            .await?;
        let more = got.more();
        let kvs = got.take_kvs();
        let mut lines: Vec<(LockName, Vec<Stored>)> = Vec::new();
        for kv in &kvs {
            let Some(name) = self.layout().name_of(kv.key()) else {
                continue;
            };
            // Go's layout has no mark of its own: keys of other programs look alike, and have no lease.
            if kv.lease() == 0 {
                continue;
            }
            let Ok(stored) = value::read(self.layout(), kv) else {
                continue;
            };
            match lines.last_mut() {
                Some((last, line)) if *last == name => line.push(stored),
                _ => lines.push((name, vec![stored])),
            }
        }
        if more && let Some((name, line)) = lines.last_mut() {
            // It may go on in the next part.
            *line = self.line(name).await?;
        }
        let (mut items, mut leases) = (Vec::new(), Leases::new());
        for (name, line) in &mut lines {
            line.sort_by_key(|stored| stored.revision);
            let view = self.view(name, line, &mut leases).await?;
            if !view.holders.is_empty() {
                items.push(view);
            }
        }
        let last = kvs.last().filter(|_| more);
        let next = last.and_then(|kv| Some(Cursor(format!("{}\0", kv.key_str().ok()?))));
        Ok(Page { items, next })
    }

    pub(crate) async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let line = self.line(name).await?;
        let holds = admitted(line.iter().map(|stored| stored.mode));
        let holder = line[..holds]
            .iter()
            .find(|stored| stored.tokens.contains(token));
        let Some(holder) = holder else {
            return Ok(false);
        };
        let mut todo = Vec::new();
        if how == Evict::Release {
            todo.push(TxnOp::delete(holder.key.clone(), None));
        }
        if let (Some(id), Some(client)) = (holder.id, &holder.mailbox) {
            let text = match how {
                Evict::Release => EVICTED,
                Evict::Ask => ASKED,
            };
            // On a lease that nobody prolongs: gone soon if nobody reads it.
            let (lease, _) = self.store.grant(LETTER_SECONDS).await?;
            let options = PutOptions::new().with_lease(lease);
            todo.push(TxnOp::put(letter(client, id), text, Some(options)));
        }
        let same = Compare::create_revision(holder.key.clone(), CompareOp::Equal, holder.revision);
        let evict = Txn::new().when([same]).and_then(todo);
        match self
            .store
            .txn(|| format!("taking lock {name} away"), evict)
            .await
        {
            Ok(answer) => Ok(answer.succeeded()),
            Err(trouble) if trouble.lease_gone => Ok(false),
            Err(trouble) => Err(trouble.error),
        }
    }
}
