//! Waiting. Watches are opened before the queue is read, so that no change is missed. A watch then needs nothing from etcd's
//! history, which etcd reads only every 100 ms.
//!
//! An exclusive claim watches the key of its predecessor. If the predecessor was the head of the queue, its end is the claim's
//! turn. The claim does not read the queue to find out. Two things tell it: a client that releases a contended lock puts a
//! release notice (see the module `release`), and a holder has no predecessor. The claim also watches its own key, so that it
//! does not take a turn after its own end. etcd reports all of that on one stream, in the order of the changes.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, WatchFilterType, WatchOptions};
use fencelock_core::engine::{Claim, Grant, Standing};
use fencelock_core::{Clock, Mode, Result};
use futures_util::FutureExt;
use futures_util::future::select_all;

use crate::connection::Connection;
use crate::entry::{Entry, Predecessor, WaitsFor};
use crate::layout::{range_end, release_notice};
use crate::session::Session;
use crate::standing::Position;
use crate::state::State;
use crate::watches::Watch;

/// Changes of one transaction are reported close together, but not in one message.
const TOGETHER: Duration = Duration::from_millis(2);

/// A key, and the revision that created it.
type Key<'a> = (&'a [u8], i64);

/// What is watched over one connection.
struct Watched {
    connection: Arc<Connection>,
    ends: Vec<End>,
}

/// A watch for the end of one key, or for the release notice of a key.
struct End {
    key: Vec<u8>,
    watch: Watch,
    /// The create revision with which the key existed after the watch was open.
    confirmed: Option<i64>,
}

/// What ended a wait for one of several watches.
enum Woken {
    /// The watch with this index.
    By(usize),
    /// The watches have ended.
    WatchesEnded,
    SessionEnded,
}

impl End {
    /// Whether the end of the key with this create revision cannot be missed.
    fn is_certain(&self, created: i64) -> bool {
        self.confirmed == Some(created) || self.watch.from < created
    }

    fn is_over(&self, created: i64) -> bool {
        self.watch.last > created
    }
}

impl Watched {
    /// The newest revision that these watches know of.
    fn seen(&self) -> i64 {
        let seen = self.ends.iter().map(|end| end.watch.seen());
        seen.max().unwrap_or(0)
    }

    /// Notes that these keys exist.
    fn confirm(&mut self, keys: &[Key<'_>]) {
        for (key, created) in keys {
            if let Some(end) = self.ends.iter_mut().find(|end| end.key == *key) {
                end.confirmed = Some(*created);
            }
        }
    }

    /// Waits until one of these keys ends.
    async fn next(&mut self, keys: &[Key<'_>], session: &Session) -> Woken {
        let ends = self.ends.iter_mut().zip(keys);
        let ends = ends.map(|(end, (_, created))| Box::pin(end.watch.changed_after(*created)));
        tokio::select! {
            biased;
            (changed, index, _) = select_all(ends) => match changed {
                true => Woken::By(index),
                false => Woken::WatchesEnded,
            },
            () = self.connection.closed() => Woken::WatchesEnded,
            () = session.ended() => Woken::SessionEnded,
        }
    }

    /// Whether the own key, which this revision created, ended before what was reported last. That is known by now, but perhaps
    /// was not when its watch was asked.
    fn own_has_ended(&mut self, revision: i64) -> bool {
        let own = self.ends.first_mut();
        own.is_some_and(|own| own.watch.changed_after(revision).now_or_never() == Some(true))
    }

    /// Whether the predecessor said that it held, now that the watch with this index reported something.
    async fn was_released(&mut self, index: usize, predecessor: &Predecessor) -> bool {
        match (index, &mut self.ends[..]) {
            (1, [_, _, _]) => true,
            // The end comes together with the release notice if there is one, but perhaps before it.
            (2, [_, notice, _]) => {
                let noticed = notice.watch.changed_after(predecessor.created);
                tokio::time::timeout(TOGETHER, noticed)
                    .await
                    .unwrap_or(false)
            }
            _ => false,
        }
    }
}

impl State {
    /// Waits until it may be the claim's turn. Returns the grant if it is.
    pub(crate) async fn wait(self: &Arc<Self>, claim: &Claim) -> Result<Option<Grant>> {
        let mut watched = None;
        loop {
            let entry = self.entries.lock().get(claim.id).cloned();
            let Some(entry) = entry else {
                return Ok(None);
            };
            let Some(waits_for) = &entry.waits_for else {
                return Ok(None);
            };
            let standing = match (waits_for, claim.mode) {
                (WaitsFor::Key(predecessor), Mode::Exclusive) => {
                    self.wait_behind(claim, &entry, predecessor, &mut watched)
                        .await?
                }
                _ => self.wait_beside(claim, &entry, waits_for).await?,
            };
            match standing {
                Some(Standing::Held(grant)) => return Ok(Some(grant)),
                Some(Standing::Waiting(_)) => {}
                _ => return Ok(None),
            }
        }
    }

    /// Waits for a predecessor until the standing may have changed.
    async fn wait_behind(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry,
        predecessor: &Predecessor,
        watched: &mut Option<Watched>,
    ) -> Result<Option<Standing>> {
        let Some((revision, _)) = entry.created else {
            return Ok(None);
        };
        let own = (entry.key.as_bytes(), revision);
        let before = (&predecessor.key[..], predecessor.created);
        let notice = release_notice(&predecessor.key);
        // In this order: the end of the own key is noticed before the turn.
        let mut keys = vec![own];
        keys.extend(notice.iter().map(|key| (key.as_bytes(), before.1)));
        keys.push(before);
        let mut now = self.watch_all(&keys, watched.take()).await?;
        let each = || now.ends.iter().zip(&keys);
        let over = each().any(|(end, (_, created))| end.is_over(*created));
        let certain = each().all(|(end, (_, created))| end.is_certain(*created));
        // A predecessor that still exists has not been released.
        if over || !(certain || self.all_exist(&[own, before]).await?) {
            return self.look(claim, now, own, watched).await;
        }
        now.confirm(&keys);
        match now.next(&keys, &entry.session).await {
            Woken::By(0) | Woken::SessionEnded => Ok(None),
            Woken::By(index) => {
                let released = predecessor.is_head || now.was_released(index, predecessor).await;
                if now.own_has_ended(revision) {
                    return Ok(None);
                }
                if released {
                    return self.grant(claim, Clock::Boot.now()).await;
                }
                self.look(claim, now, own, watched).await
            }
            Woken::WatchesEnded => {
                let position = Position::Waits(WaitsFor::Key(predecessor.clone()));
                self.standing(claim, Clock::Boot.now(), Some(position))
                    .await
            }
        }
    }

    /// Reads the claim's standing while the watches are open, and keeps them.
    async fn look(
        self: &Arc<Self>,
        claim: &Claim,
        mut now: Watched,
        own: Key<'_>,
        watched: &mut Option<Watched>,
    ) -> Result<Option<Standing>> {
        let sent = Clock::Boot.now();
        let position = self.position_at_member(claim, now.seen()).await?;
        if let Position::Waits(WaitsFor::Key(before)) = &position {
            now.confirm(&[own, (&before.key, before.created)]);
            if let Some(notice) = release_notice(&before.key) {
                now.confirm(&[(notice.as_bytes(), before.created)]);
            }
        }
        *watched = Some(now);
        self.standing(claim, sent, Some(position)).await
    }

    /// Watches the end of exactly these keys, in their order. Existing watches are kept.
    async fn watch_all(&self, keys: &[Key<'_>], earlier: Option<Watched>) -> Result<Watched> {
        let (connection, mut ends) = match earlier {
            Some(Watched { connection, ends }) => (Some(connection), ends),
            None => (None, Vec::new()),
        };
        let is_watched = |key: &[u8]| ends.iter().any(|end| end.key == key);
        let new = keys.iter().map(|(key, _)| *key);
        let new: Vec<&[u8]> = new.filter(|key| !is_watched(key)).collect();
        let connection = match connection {
            Some(connection) if new.is_empty() => connection,
            earlier => {
                let (connection, watches) = self.cluster.watch_each(&new).await?;
                if earlier.is_some_and(|earlier| !Arc::ptr_eq(&earlier, &connection)) {
                    // The earlier watches have ended.
                    return Box::pin(self.watch_all(keys, None)).await;
                }
                ends.extend(new.into_iter().zip(watches).map(|(key, watch)| End {
                    key: key.to_vec(),
                    watch,
                    confirmed: None,
                }));
                connection
            }
        };
        let index = |end: &End| keys.iter().position(|(key, _)| *key == end.key);
        ends.retain(|end| index(end).is_some());
        ends.sort_by_key(|end| index(end));
        Ok(Watched { connection, ends })
    }

    /// Whether all these keys exist with these create revisions.
    async fn all_exist(&self, keys: &[Key<'_>]) -> Result<bool> {
        let same =
            |(key, created): &Key<'_>| Compare::create_revision(*key, CompareOp::Equal, *created);
        // A transaction that reads nothing is answered by the member alone, which is also the one that watches.
        let look = Txn::new().when(keys.iter().map(same).collect::<Vec<_>>());
        let looked = self.cluster.txn(|| "waiting".into(), look).await?;
        Ok(looked.succeeded())
    }

    /// Waits as one of several that may hold together, until the standing may have changed.
    async fn wait_beside(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry,
        waits_for: &WaitsFor,
    ) -> Result<Option<Standing>> {
        let options = match claim.mode {
            // A writer that is downgraded admits readers.
            Mode::Shared => WatchOptions::new(),
            _ => WatchOptions::new().with_filters([WatchFilterType::NoPut]),
        };
        let (connection, mut watch) = match waits_for {
            WaitsFor::Key(before) => self.cluster.watch(&before.key, options).await?,
            WaitsFor::Any => {
                let queue = self.layout().queue(&claim.name);
                let options = options.with_range(range_end(&queue));
                self.cluster.watch(queue.as_bytes(), options).await?
            }
        };
        loop {
            let sent = Clock::Boot.now();
            // The member's watch is open: it will report changes that the member has not applied yet.
            let position = self.position_at_member(claim, watch.seen()).await?;
            let same = matches!(&position, Position::Waits(now) if now == waits_for);
            let standing = self.standing(claim, sent, Some(position)).await?;
            if !same {
                return Ok(standing);
            }
            let changed = tokio::select! {
                changed = watch.changed_after(0) => changed,
                () = connection.closed() => false,
                () = entry.session.ended() => return Ok(None),
            };
            if !changed {
                return Ok(standing);
            }
        }
    }
}
