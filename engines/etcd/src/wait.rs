//! Waiting for one's turn: watches first, then reads, so that nothing between is missed and etcd need not look anything up in
//! its history (which it does every 100 ms only).
//!
//! A claim that is to hold alone watches the key before its own. That one's end is its turn if nobody else was before it. It
//! need not look who was: whoever holds a lock that others wait for says so as it releases it (see the module `release`), and
//! whoever held had nobody before it. It watches its own key, too, so that it does not take a turn that it has lost. etcd tells
//! of all that in the order in which it happened, on one stream.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, WatchFilterType, WatchOptions};
use fencelock_core::engine::{Claim, Grant, Standing};
use fencelock_core::{Clock, Mode, Result};
use futures_util::future::select_all;

use crate::claims::{Before, Placed, Wanted};
use crate::engine::Shared;
use crate::layout::{end_of, released};
use crate::link::Link;
use crate::place::Stands;
use crate::watches::Watch;

/// What happened at once is told at once, but not in one message.
const TOGETHER: Duration = Duration::from_millis(2);

/// What is watched over one connection.
struct Watched {
    link: Arc<Link>,
    ends: Vec<End>,
}

/// The end of one key, or the word of its release.
struct End {
    key: Vec<u8>,
    watch: Watch,
    /// The revision that created the one that ends, if it is certain that the end of just that one will be told.
    sure: Option<i64>,
}

impl End {
    /// What was put after the watch was in place cannot end unseen.
    fn is_sure(&self, created: i64) -> bool {
        self.sure == Some(created) || self.watch.from < created
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
}

/// Which of the watches told something.
enum Told {
    /// The one at this place.
    Of(usize),
    /// They are over.
    Over,
    /// The claim's session has ended.
    Ended,
}

impl Shared {
    /// Waits until it may be a claim's turn; with the grant if it is.
    pub(crate) async fn wait(self: &Arc<Self>, claim: &Claim) -> Result<Option<Grant>> {
        let mut watched = None;
        loop {
            let placed = self.claims().get(claim.id).cloned();
            let Some(placed) = placed else {
                return Ok(None);
            };
            let Some(wanted) = placed.waits_for.clone() else {
                return Ok(None);
            };
            let again = match (&wanted, claim.mode) {
                (Wanted::Key(before), Mode::Exclusive) => {
                    self.behind(claim, &placed, before, &mut watched).await?
                }
                _ => self.beside(claim, &placed, &wanted).await?,
            };
            match again {
                Some(Standing::Held(grant)) => return Ok(Some(grant)),
                Some(Standing::Waiting(_)) => {}
                Some(Standing::Busy) | None => return Ok(None),
            }
        }
    }

    /// Waits behind one, until it stands otherwise than before.
    async fn behind(
        self: &Arc<Self>,
        claim: &Claim,
        placed: &Placed,
        before: &Before,
        watched: &mut Option<Watched>,
    ) -> Result<Option<Standing>> {
        let Some((revision, _)) = placed.there else {
            return Ok(None);
        };
        let own = (placed.key.as_bytes(), revision);
        let last = (&before.key[..], before.created);
        let released = released(&before.key);
        // In this order: the end of one's own place comes before one's turn.
        let mut keys = vec![own];
        keys.extend(released.iter().map(|key| (key.as_bytes(), before.created)));
        keys.push(last);
        let mut now = self.watch_all(&keys, watched.take()).await?;
        let each = || now.ends.iter().zip(&keys);
        let over = each().any(|(end, (_, created))| end.is_over(*created));
        let sure = each().all(|(end, (_, created))| end.is_sure(*created));
        // What is there was not released before.
        if over || !(sure || self.are_there(&[own, last]).await?) {
            return self.look_behind(claim, now, own, watched).await;
        }
        for (end, (_, created)) in now.ends.iter_mut().zip(&keys) {
            end.sure = Some(*created);
        }
        let told = {
            let ends = now.ends.iter_mut().zip(&keys);
            let ends = ends.map(|(end, (_, created))| Box::pin(end.watch.told(*created)));
            tokio::select! {
                biased;
                (so, at, _) = select_all(ends) => if so { Told::Of(at) } else { Told::Over },
                () = now.link.gone() => Told::Over,
                () = placed.on.ended() => Told::Ended,
            }
        };
        match told {
            Told::Of(0) | Told::Ended => Ok(None),
            Told::Of(at) => {
                let released = match (at, &mut now.ends[..]) {
                    (1, [_, _, _]) => true,
                    // The end comes with the word of the release, if there is one, but perhaps before it.
                    (2, [_, released, _]) if !before.is_first => {
                        let told = released.watch.told(before.created);
                        tokio::time::timeout(TOGETHER, told).await.unwrap_or(false)
                    }
                    _ => false,
                };
                if released || before.is_first {
                    return self.grant(claim, Clock::Boot.now()).await;
                }
                self.look_behind(claim, now, own, watched).await
            }
            Told::Over => {
                let stands = Stands::Waits(Wanted::Key(before.clone()));
                self.standing(claim, Clock::Boot.now(), Some(stands)).await
            }
        }
    }

    /// Looks at the line, with watches in place.
    async fn look_behind(
        self: &Arc<Self>,
        claim: &Claim,
        mut now: Watched,
        own: (&[u8], i64),
        watched: &mut Option<Watched>,
    ) -> Result<Option<Standing>> {
        let asked = Clock::Boot.now();
        let stands = self.ask_member(claim, now.seen()).await?;
        if let Stands::Waits(Wanted::Key(before)) = &stands {
            let released = released(&before.key);
            let released = released.iter().map(|key| (key.as_bytes(), before.created));
            let last = (&before.key[..], before.created);
            for (key, created) in [own, last].into_iter().chain(released) {
                let known = now.ends.iter_mut().find(|end| end.key == key);
                if let Some(end) = known {
                    end.sure = Some(created);
                }
            }
        }
        *watched = Some(now);
        self.standing(claim, asked, Some(stands)).await
    }

    /// Watches the ends of these keys and of no others, in their order.
    async fn watch_all(&self, keys: &[(&[u8], i64)], before: Option<Watched>) -> Result<Watched> {
        let (link, mut known) = match before {
            Some(Watched { link, ends }) => (Some(link), ends),
            None => (None, Vec::new()),
        };
        let is_known = |key: &[u8]| known.iter().any(|end| end.key == key);
        let new: Vec<&[u8]> = keys.iter().map(|(key, _)| *key).collect();
        let new: Vec<&[u8]> = new.into_iter().filter(|key| !is_known(key)).collect();
        let link = match link {
            Some(link) if new.is_empty() => link,
            before => {
                let (link, watches) = self.store.watch_each(&new).await?;
                if before.is_some_and(|before| !Arc::ptr_eq(&before, &link)) {
                    // The others are over.
                    return Box::pin(self.watch_all(keys, None)).await;
                }
                let ends = new.into_iter().zip(watches).map(|(key, watch)| End {
                    key: key.to_vec(),
                    watch,
                    sure: None,
                });
                known.extend(ends);
                link
            }
        };
        let place = |end: &End| keys.iter().position(|(key, _)| *key == end.key);
        known.retain(|end| place(end).is_some());
        known.sort_by_key(|end| place(end));
        Ok(Watched { link, ends: known })
    }

    /// Whether all these keys are there, as they were created then.
    async fn are_there(&self, keys: &[(&[u8], i64)]) -> Result<bool> {
        let same = |(key, created): &(&[u8], i64)| {
            Compare::create_revision(*key, CompareOp::Equal, *created)
        };
        // One that reads nothing else is answered by the member alone, which is the one that watches.
        let look = Txn::new().when(keys.iter().map(same).collect::<Vec<_>>());
        let looked = self.store.txn(|| "waiting".into(), look).await?;
        Ok(looked.succeeded())
    }

    /// Waits, beside others that are alike, for one end or any.
    async fn beside(
        self: &Arc<Self>,
        claim: &Claim,
        placed: &Placed,
        wanted: &Wanted,
    ) -> Result<Option<Standing>> {
        let prefix = self.layout().line(&claim.name);
        let options = match claim.mode {
            // A writer that is downgraded lets readers in.
            Mode::Shared => WatchOptions::new(),
            _ => WatchOptions::new().with_filters([WatchFilterType::NoPut]),
        };
        let (link, mut watch) = match wanted {
            Wanted::Key(before) => self.store.watch(&before.key, options).await?,
            Wanted::Any => {
                let options = options.with_range(end_of(&prefix));
                self.store.watch(prefix.as_bytes(), options).await?
            }
        };
        loop {
            let asked = Clock::Boot.now();
            // That member's watch is in place: what it has not applied yet, it will tell.
            let stands = self.ask_member(claim, watch.seen()).await?;
            let same = matches!(&stands, Stands::Waits(now) if now == wanted);
            let standing = self.standing(claim, asked, Some(stands)).await?;
            if !same {
                return Ok(standing);
            }
            let told = tokio::select! {
                told = watch.told(0) => told,
                () = link.gone() => false,
                () = placed.on.ended() => return Ok(None),
            };
            if !told {
                return Ok(standing);
            }
        }
    }
}
