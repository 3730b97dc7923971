//! `Inspect` of a set that moves.

use async_trait::async_trait;
use fencelock_core::engine::{Cursor, Grant, HolderView, Page, WaiterView};
use fencelock_core::support::jitter;
use fencelock_core::{Error, Evict, Finding, Inspect, LockName, LockView, Purpose, Result, Token};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::known::Route;
use crate::moving::engine::Moving;
use crate::moving::knowledge::Now;
use crate::open::of_shard;
use crate::phase::Phase;

/// For how many names of a page the other store is asked at once.
const LOOKS_AT_ONCE: usize = 64;

#[async_trait]
impl Inspect for Moving {
    /// The holders at the store that counts. New waiters wait at the old store first.
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let (now, route) = self.route(name).await?;
        let Some(second) = route.second else {
            return self.look_at(route.first, name).await;
        };
        let (old, new) = tokio::join!(self.look_at(route.first, name), self.look_at(second, name));
        let latest = route.latest == second;
        Ok(match now.known.phase {
            Phase::BothNew => together(new?, old, route, latest),
            // In the other phases a hold goes on without the new store.
            _ => together(old?, new, route, !latest),
        })
    }

    /// Watches the store that counts. While a name is moving, this polls `look`.
    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let mut pause = std::time::Duration::from_millis(20);
        loop {
            let (now, route) = self.route(name).await?;
            if route.second.is_none() {
                let member = &self.state().members[route.first];
                let engine = member.engine().await?;
                let watched = tokio::select! {
                    watched = engine.inspect().watch(name, seen) => watched,
                    () = self.state().knowledge.changed(now.known.version) => continue,
                };
                return watched.map_err(|error| member.named(error));
            }
            let view = self.look(name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            tokio::time::sleep(jitter(pause)).await;
            pause = (pause * 3 / 2).min(std::time::Duration::from_millis(500));
        }
    }

    /// Lists store after store, with the names for which each store counts. A name that is moving is shown as `look` shows it:
    /// its holder may have the token of the other store, and others may wait there. The cursor is `SHARD:` and the cursor of
    /// that store.
    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let state = self.state();
        let now = state.known()?;
        let (id, within) = match &at {
            None => (state.ids[0].as_str(), ""),
            Some(cursor) => cursor.0.split_once(':').ok_or_else(|| cursor.refused())?,
        };
        let place = state.ids.iter().position(|known| known == id);
        let unknown = || Cursor(id.to_owned()).refused();
        let place = place.ok_or_else(unknown)?;
        let next_store = state.ids.get(place + 1);
        let next_store = next_store.map(|next| Cursor(format!("{next}:")));
        if !now.known.is_counted(id) {
            return Ok(Page::new(Vec::new(), next_store));
        }
        let member = &state.members[place];
        let within = (!within.is_empty()).then(|| Cursor(within.to_owned()));
        let inspect = member.engine().await?.inspect();
        let page = inspect.list(prefix, within, limit).await;
        let mut page = page.map_err(|error| member.named(error))?;
        page.items.retain(|view| now.known.counts(&view.name) == id);
        let looks = page.items.into_iter().map(|view| async {
            let route = state.route(&now.known, &view.name)?;
            let Some(other) = route.stores().find(|store| *store != place) else {
                return Ok(view);
            };
            let there = self.look_at(other, &view.name).await;
            Ok::<_, Error>(together(view, there, route, route.latest == place))
        });
        let looks = stream::iter(looks).buffered(LOOKS_AT_ONCE);
        let mut items: Vec<LockView> = looks.try_collect().await?;
        items.retain(|view| !view.holders.is_empty());
        let within = page.next.map(|next| Cursor(format!("{id}:{}", next.0)));
        Ok(Page::new(items, within.or(next_store)))
    }

    /// Evicts the holder with this token, as `look` shows it, from each store that has its claim.
    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let shown = self.look(name).await?;
        let mut meant = shown.holders.into_iter();
        let meant = meant.find(|holder| holder.token == Some(token));
        let (_, route) = self.route(name).await?;
        let Some(holder) = meant.filter(|holder| holder.claim.is_some()) else {
            // Another token of its range, or the holder is of another library. Both stores may have given the same number.
            let mut stores = vec![route.latest];
            stores.extend(route.other());
            for store in stores {
                if self.evict_at(store, name, token, how).await? {
                    return Ok(true);
                }
            }
            return Ok(false);
        };
        let (mut evicted, mut failed) = (false, None);
        for store in route.stores() {
            let evict = async {
                match token_in(&self.look_at(store, name).await?, &holder) {
                    Some(own) => self.evict_at(store, name, own, how).await,
                    None => Ok(false),
                }
            };
            match evict.await {
                Ok(done) => evicted |= done,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(evicted),
        }
    }

    /// Attests the owner's hold at each store that holds need now, for as long as knowledge of the record carries it. There is no
    /// token if only the holder knows which one it uses.
    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        // The token that is told here may not be an earlier store's: what a new grant needs is needed here too.
        let (now, route) = self.state().fresh(name).await?;
        let mut found: Option<(HolderView, Grant)> = None;
        let (mut own, mut other) = (None, None);
        for store in route.stores().filter(|store| route.needs(*store)) {
            let member = &self.state().members[store];
            let inspect = member.engine().await?.inspect();
            let attested = inspect.attest(name, owner).await;
            let Some((holder, grant)) = attested.map_err(|error| member.named(error))? else {
                return Ok(None);
            };
            match store == route.latest {
                true => own = holder.token,
                false => other = holder.token,
            }
            found = Some(match found {
                None => (holder, grant),
                Some((first, _)) if first.claim != holder.claim => return Ok(None),
                Some((first, mut both)) => {
                    let ends =
                        (both.counted_from + both.lease).min(grant.counted_from + grant.lease);
                    both.lease = ends.since(both.counted_from);
                    (first, both)
                }
            });
        }
        let Some((mut holder, mut grant)) = found else {
            return Ok(None);
        };
        grant.lease = grant.lease.min(now.ends().since(grant.counted_from));
        holder.token = route.token_of_holder(own, other);
        if let Some(store) = route.other()
            && holder.token.is_none()
            && !route.needs(store)
        {
            let other = token_in(&self.look_at(store, name).await?, &holder);
            holder.token = route.token_of_holder(own, other);
        }
        if let Some(token) = holder.token {
            grant.tokens.first = token;
        }
        let state = self.state();
        if !state.knowledge.carries_grant(&now, route, state.now()) {
            let why = "a step of the move came in between, or a store answered late; try again";
            let action = format!("asking who holds lock {name}");
            return Err(Error::unavailable(state, action, why));
        }
        Ok(Some((holder, grant)))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let state = self.state();
        let now = state.known()?;
        let (mut findings, mut versions) = (Vec::new(), Vec::new());
        for (id, member) in state.ids.iter().zip(&state.members) {
            let asked = async {
                let engine = member.engine().await?;
                let record = engine.record("", None).await?;
                Ok::<_, Error>((engine.inspect().diagnose().await?, record))
            };
            let phase = now.known.phase;
            match asked.await {
                Ok((found, record)) => {
                    findings.extend(found.iter().map(|finding| of_shard(id, finding)));
                    versions.extend(member.read(&record.text).map(|stored| (stored.version, id)));
                    if record.text.is_empty() && (phase != Phase::New || now.known.is_used(id)) {
                        findings.push(of_shard(id, &without_record()));
                    }
                }
                Err(error) if now.known.is_used(id) => findings.push(away(&error)),
                Err(error) if phase == Phase::Old => findings.push(not_ready(&error)),
                Err(error) => tracing::debug!(%error, "a store that is not in use"),
            }
        }
        findings.extend(under_way(&now));
        findings.extend(differ(&versions));
        Ok(findings)
    }
}

/// A finding: the move is between its begin and its end.
fn under_way(now: &Now) -> Option<Finding> {
    let what = match now.known.phase {
        Phase::Old | Phase::New => return None,
        Phase::Hush => "nothing is granted: the set is between two stores",
        Phase::BothOld | Phase::BothNew => {
            "a move is under way: each lock is taken in two stores, and both must answer"
        }
    };
    let change = "finish the step with `fencelock migrate finish`, or go back with `fencelock migrate abort`; `fencelock migrate status` tells since when, and who made the last step";
    Some(Finding::new(Purpose::Efficiency, what, change))
}

/// A finding: a step was interrupted between two stores.
fn differ(versions: &[(u64, &String)]) -> Option<Finding> {
    let (oldest, newest) = (versions.iter().min()?, versions.iter().max()?);
    if oldest.0 == newest.0 {
        return None;
    }
    let what = format!(
        "[{}] has version {} of the record, and [{}] has version {}: a step is being made, or was interrupted",
        oldest.1, oldest.0, newest.1, newest.0
    );
    let change = "repeat the step, which writes the last version into all stores";
    Some(Finding::new(Purpose::Efficiency, what, change))
}

fn away(error: &Error) -> Finding {
    let what = format!("locks that need this store cannot be taken now: {error}");
    let change = "bring the store back, or go back with `fencelock migrate abort`";
    Finding::new(Purpose::Efficiency, what, change)
}

/// A finding: the new store is not ready, before the change has begun.
fn not_ready(error: &Error) -> Finding {
    let what = format!("the move to the new store cannot begin: {error}");
    let change = "see that the new store answers and is the set's, or name another one";
    Finding::new(Purpose::Efficiency, what, change)
}

fn without_record() -> Finding {
    let what = "it has no record of the set: it is another store, or has lost its data";
    let change = "correct its URL; if its record was lost, the next `fencelock migrate` with --record-lost writes it again";
    Finding::new(Purpose::Efficiency, what, change)
}

/// What one store shows of a name that is moving, together with the other store, if that answered. `latest` says whether the one
/// store counts.
fn together(mut shown: LockView, other: Result<LockView>, route: Route, latest: bool) -> LockView {
    if let Ok(other) = other {
        if route.counts.is_none() {
            waits_in_the_hush(&mut shown, &other);
        }
        for holder in shown
            .holders
            .iter_mut()
            .filter(|holder| holder.claim.is_some())
        {
            let (own, there) = (holder.token, token_in(&other, holder));
            let tokens = if latest { (own, there) } else { (there, own) };
            holder.token = route.token_of_holder(tokens.0, tokens.1).or(own);
        }
        shown.waiters.extend(other.waiters);
    }
    shown
}

/// In the hush a hold needs both stores. A claim that has only the old one is the first waiter.
fn waits_in_the_hush(old: &mut LockView, new: &LockView) {
    let is_hold = |holder: &HolderView| {
        let mut there = new.holders.iter();
        holder.claim.is_none() || there.any(|there| there.claim == holder.claim)
    };
    let (holds, waits): (Vec<_>, Vec<_>) = old.holders.drain(..).partition(is_hold);
    old.holders = holds;
    let waits = waits
        .into_iter()
        .map(|first| WaiterView::new(first.owner, first.mode).label(first.label));
    old.waiters.splice(..0, waits);
}

/// The token of the holder's claim in another store.
fn token_in(view: &LockView, holder: &HolderView) -> Option<Token> {
    let mut holders = view.holders.iter();
    let there = holders.find(|there| holder.claim.is_some() && there.claim == holder.claim);
    there?.token
}

impl Moving {
    /// The knowledge, and the route of a name. The record is read again if the knowledge is too old.
    async fn route(&self, name: &LockName) -> Result<(Now, Route)> {
        let state = self.state();
        let now = state.known()?;
        let route = state.route(&now.known, name)?;
        if state.now() < now.ends() {
            return Ok((now, route));
        }
        for store in route.stores() {
            state.read(store).await?;
        }
        let now = state.known()?;
        let route = state.route(&now.known, name)?;
        Ok((now, route))
    }

    async fn look_at(&self, store: usize, name: &LockName) -> Result<LockView> {
        let member = &self.state().members[store];
        let view = member.engine().await?.inspect().look(name).await;
        view.map_err(|error| member.named(error))
    }

    async fn evict_at(
        &self,
        store: usize,
        name: &LockName,
        token: Token,
        how: Evict,
    ) -> Result<bool> {
        let member = &self.state().members[store];
        let inspect = member.engine().await?.inspect();
        let evicted = inspect.evict(name, token, how).await;
        evicted.map_err(|error| member.named(error))
    }
}
