//! The steps from phase to phase.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{MAX_FLOOR, RecordChange};
use fencelock_core::{
    BootInstant, Clock, ConfigPart, Engine, Error, Purpose, Result, Token, in_words,
};

use crate::migration::change::{How, Migration, Opened, Stepped, close};
use crate::migration::floor;
use crate::migration::pairs::{Pairs, Side, Unpaired};
use crate::migration::records::{Records, Settled};
use crate::phase::Phase;
use crate::stored::{AFTER_LOSS, Stored, now};
use crate::times::Times;
use crate::unused::check_unused;

/// How many holders a message names.
const NAMED: usize = 5;

/// How far tokens that follow the time may be ahead of it.
const AHEAD: Duration = Duration::from_secs(10);

impl Migration {
    /// From the old store alone to both stores, with the old one counting.
    ///
    /// # Errors
    /// The errors of the stores, which all must answer.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// use fencelock_composite::{How, Migrate, Phase, Prepare, Stepped};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let (one, other) = (Memory::new(), Memory::new());
    /// # let moved = || Migrate::between(
    /// #     ("from", Arc::new(one.another()) as Arc<dyn Engine>),
    /// #     ("to", Arc::new(other.another()) as Arc<dyn Engine>),
    /// # ).set("orders").migration();
    /// # let wanted = Prepare::default().pace(Duration::from_millis(300)).tight(Duration::from_millis(100));
    /// moved()?.prepare(&wanted, "me").await?;
    /// let how = How::new("me").despite_findings(true); // a store in memory has findings
    /// assert_eq!(moved()?.begin(&how).await?, Stepped::Done(Phase::BothOld));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn begin(&self, how: &How<'_>) -> Result<Stepped> {
        let opened = self.open().await?;
        let stepped = self.walk(&opened, how, Phase::BothOld, |phase| match phase {
            Phase::Old | Phase::BothOld => None,
            _ => Some("it was begun already; go on with `fencelock migrate finish`, or back with `fencelock migrate abort`"),
        });
        let stepped = stepped.await;
        opened.close().await;
        stepped
    }

    /// From there through the hush to both stores, with the new one counting. Called again, to the new store alone.
    ///
    /// With [`How::to`] it goes to that phase and no further. So a script that repeats it after an error does not leave the old
    /// store too early.
    ///
    /// # Errors
    /// The errors of the stores, which all must answer. [`Error::Invalid`] if `to` is neither [`Phase::BothNew`] nor
    /// [`Phase::New`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// use fencelock_composite::{How, Migrate, Phase, Prepare, Stepped};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let (one, other) = (Memory::new(), Memory::new());
    /// # let moved = || Migrate::between(
    /// #     ("from", Arc::new(one.another()) as Arc<dyn Engine>),
    /// #     ("to", Arc::new(other.another()) as Arc<dyn Engine>),
    /// # ).set("orders").migration();
    /// # let wanted = Prepare::default().pace(Duration::from_millis(300)).tight(Duration::from_millis(100));
    /// # moved()?.prepare(&wanted, "me").await?;
    /// # let how = How::new("me").despite_findings(true);
    /// # moved()?.begin(&how).await?;
    /// assert_eq!(moved()?.finish(&how).await?, Stepped::Done(Phase::BothNew));
    /// assert_eq!(moved()?.finish(&how).await?, Stepped::Done(Phase::New));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn finish(&self, how: &How<'_>) -> Result<Stepped> {
        if let Some(to) = how
            .to
            .filter(|to| ![Phase::BothNew, Phase::New].contains(to))
        {
            let why = "`finish` ends in phase 3 or 4";
            return Err(Error::invalid("phase", to.to_string(), why));
        }
        let opened = self.open().await?;
        let stepped = self.finish_opened(&opened, how).await;
        opened.close().await;
        stepped
    }

    async fn finish_opened(&self, opened: &Opened, how: &How<'_>) -> Result<Stepped> {
        let records = self.records(opened, how.record_lost);
        // An earlier call may have failed before all stores knew the phase. This one completes that step and stops there.
        let completes = !records.is_settled().await?;
        let target = match (records.settle().await?.stored.phase(), how.to) {
            (Phase::Old, _) => {
                let why = "it has not begun; begin with `fencelock migrate begin`";
                return Ok(Stepped::NotYet(why.to_owned()));
            }
            (phase, Some(to)) if phase > to => return Ok(Stepped::Done(phase)),
            (_, Some(to)) => to,
            (Phase::BothOld | Phase::Hush, None) => Phase::BothNew,
            (Phase::BothNew, None) if completes => Phase::BothNew,
            (Phase::BothNew | Phase::New, None) => Phase::New,
        };
        self.walk(opened, how, target, |_| None).await
    }

    /// Back to the old store alone, from any phase. In the first phase this gives the new store back: programs may use it by
    /// itself or in another set, and [`begin`](Self::begin) takes it again if no lock is held there.
    ///
    /// # Errors
    /// The errors of the stores, which all must answer.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// use fencelock_composite::{How, Migrate, Phase, Prepare, Stepped};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let (one, other) = (Memory::new(), Memory::new());
    /// # let moved = || Migrate::between(
    /// #     ("from", Arc::new(one.another()) as Arc<dyn Engine>),
    /// #     ("to", Arc::new(other.another()) as Arc<dyn Engine>),
    /// # ).set("orders").migration();
    /// # let wanted = Prepare::default().pace(Duration::from_millis(300)).tight(Duration::from_millis(100));
    /// # moved()?.prepare(&wanted, "me").await?;
    /// # let how = How::new("me").despite_findings(true);
    /// # moved()?.begin(&how).await?;
    /// assert_eq!(moved()?.abort(&how).await?, Stepped::Done(Phase::Old));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn abort(&self, how: &How<'_>) -> Result<Stepped> {
        let opened = self.open().await?;
        let stepped = self.abort_opened(&opened, how).await;
        opened.close().await;
        stepped
    }

    async fn abort_opened(&self, opened: &Opened, how: &How<'_>) -> Result<Stepped> {
        let records = self.records(opened, how.record_lost);
        for (at, version) in records.doubles().await? {
            records.take_over(at, version, true).await?;
        }
        let settled = records.settle().await?;
        if settled.stored.phase() != Phase::Old {
            return self.walk(opened, how, Phase::Old, |_| None).await;
        }
        if !settled.stored.is_given_back() {
            let mut next = settled.stored.next(Phase::Old);
            next.sign(how.by);
            if let Some(moving) = &mut next.moving {
                moving.given_back = true;
            }
            if records.step(&settled, &next).await?.is_none() {
                let why = "somebody else has changed the record meanwhile";
                return Ok(Stepped::NotYet(why.to_owned()));
            }
        }
        (how.tell)("the new store may be used by itself, or by another set, until this one begins");
        Ok(Stepped::Done(Phase::Old))
    }

    /// To the new store alone, although the old one is gone for good and does not answer. If it comes back, the next step brings
    /// its record up to date. Until then a program that reaches it and not the new store may lock there.
    ///
    /// While the old store counts, it alone knows its tokens. So before both stores with the new one counting, this needs
    /// [`How::highest_token`].
    ///
    /// # Errors
    /// The errors of the new store. [`Error::Unsupported`] if the old store's tokens are not known, or where shards are added or
    /// removed. [`Error::Invalid`] if tokens cannot be raised that far.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// use fencelock_composite::{How, Migrate, Phase, Prepare, Stepped};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let (one, other) = (Memory::new(), Memory::new());
    /// # let moved = || Migrate::between(
    /// #     ("from", Arc::new(one.another()) as Arc<dyn Engine>),
    /// #     ("to", Arc::new(other.another()) as Arc<dyn Engine>),
    /// # ).set("orders").migration();
    /// # let wanted = Prepare::default().pace(Duration::from_millis(300)).tight(Duration::from_millis(100));
    /// # moved()?.prepare(&wanted, "me").await?;
    /// # let how = How::new("me").despite_findings(true);
    /// # moved()?.begin(&how).await?;
    /// moved()?.finish(&how).await?;
    /// assert_eq!(moved()?.finish_without_old(&how).await?, Stepped::Done(Phase::New));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn finish_without_old(&self, how: &How<'_>) -> Result<Stepped> {
        if self.maps.sets.is_some() {
            let why = "it works only for one store that replaces another; here shards are added or removed, whose old stores must answer: go on with `fencelock migrate finish`, or back with `fencelock migrate abort`";
            let action = "going on without an old store";
            return Err(Error::unsupported(&self.set, action, why));
        }
        let (id, _) = self.maps.new.shards().next().ok_or(Error::Closed)?;
        let store = self.shard(id)?.store.open().await?;
        let finished = self.finish_alone(id, &store, how).await;
        close(&*store).await;
        finished
    }

    async fn finish_alone(
        &self,
        id: &str,
        store: &Arc<dyn Engine>,
        how: &How<'_>,
    ) -> Result<Stepped> {
        let record = store.record("", None).await?;
        let stored = Stored::parse_change(&record.text, &self.set, id, &self.maps);
        let stored = stored.map_err(|why| Error::config(store, ConfigPart::Record, why))?;
        let times = times_of(&stored)?;
        let counted = stored.phase() >= Phase::BothNew;
        let pause = match stored.phase() {
            // Some programs may know a later version that only the old store had, of a step back. They share the new store with
            // all others. The next version makes them follow.
            Phase::New => Duration::ZERO,
            // No program can renew a hold in the old store, so after this time none believes in one.
            _ => times.pace + times.lock_delay,
        };
        match how.highest_token {
            None if !counted => {
                let why = format!(
                    "the set is in phase {}, so nobody knows which tokens the old store gave; if you know a token that none of them was above, such as the highest mark of the fences and some room, say it with --highest-token; else use new names for the locks, or let the fences begin anew",
                    stored.phase()
                );
                let action = "going on without the old store";
                return Err(Error::unsupported(store, action, why));
            }
            Some(highest) if highest > MAX_FLOOR => {
                let why = format!("it leaves no room for the tokens above it; at most {MAX_FLOOR}");
                return Err(Error::invalid("highest token", highest.to_string(), why));
            }
            _ => {}
        }
        if stored.is_given_back() {
            // Programs may have begun to use the store by itself.
            check_unused(&**store).await?;
        }
        self.wait(how, Phase::New, Clock::Boot.now(), pause).await;
        let mut next = stored.next(Phase::New);
        let raised = match how.highest_token {
            Some(highest) => Some(floor::raise(store, highest).await?.get()),
            None => None,
        };
        // Where the store counts already, holds have tokens below this one. Its counter alone is raised then.
        if let (Some(moving), Some(floor), false) = (&mut next.moving, raised, counted) {
            // Grants that the store made before it counted are not above the floor.
            moving.floors.insert(id.to_owned(), floor);
            moving.taken = [moving.taken[1], floor];
            moving.drawn = [(id.to_owned(), floor)].into();
            moving.floors_at.get_or_insert_with(now);
            moving.given_back = false;
            moving.floor_due = false;
            moving.hush_from = None;
        }
        next.version = stored.version + AFTER_LOSS;
        next.sign(how.by);
        let text = next.text()?;
        let change = RecordChange::new(record.version, &text)?;
        match store.record("", Some(&change)).await?.text == text {
            true => Ok(Stepped::Done(Phase::New)),
            false => Ok(Stepped::NotYet(
                "somebody else has changed the record meanwhile".to_owned(),
            )),
        }
    }

    /// Makes steps until the set is in this phase. `refused` says in which phases that is refused.
    async fn walk(
        &self,
        opened: &Opened,
        how: &How<'_>,
        target: Phase,
        refused: impl Fn(Phase) -> Option<&'static str> + Send,
    ) -> Result<Stepped> {
        let records = self.records(opened, how.record_lost);
        let mut settled = records.settle().await?;
        loop {
            let phase = settled.stored.phase();
            if let Some(why) = refused(phase) {
                return Ok(Stepped::NotYet(why.to_owned()));
            }
            if phase == target {
                return Ok(Stepped::Done(phase));
            }
            let to = match phase < target {
                true => Phase::from_number(phase.number() + 1),
                false => Phase::from_number(phase.number().saturating_sub(1)),
            };
            let to = to.unwrap_or(target);
            #[cfg(fencelock_planted)]
            let to = without_hush(phase, to);
            settled = match self.step(&records, opened, how, &settled, to).await? {
                Ok(Some(next)) => {
                    (how.tell)(&format!("phase {to}"));
                    next
                }
                // Another administrator makes steps, too.
                Ok(None) => records.settle().await?,
                Err(why) => return Ok(Stepped::NotYet(why)),
            };
        }
    }

    /// Makes one step: the wait, the conditions, and the record. `Err` says why it cannot be made yet. `None` if somebody else
    /// was faster.
    async fn step(
        &self,
        records: &Records<'_>,
        opened: &Opened,
        how: &How<'_>,
        from: &Settled,
        to: Phase,
    ) -> Result<Result<Option<Settled>, String>> {
        let phase = from.stored.phase();
        if (phase, to) == (Phase::Old, Phase::BothOld)
            && let Some(why) = self.unfit(opened, how, &from.stored).await?
        {
            return Ok(Err(why));
        }
        self.wait(
            how,
            to,
            from.seen,
            pause_before(phase, to, times_of(&from.stored)?),
        )
        .await;
        if let Some(alone) = must_be_paired(phase, to) {
            match self.unpaired(opened, how, alone).await {
                // Going back must be possible for a user without the right to list.
                Err(error @ (Error::Refused { .. } | Error::Unsupported { .. }))
                    if to == Phase::Old =>
                {
                    (how.tell)(&format!(
                        "nobody looks for locks in the new store alone: {error}"
                    ));
                }
                Err(error) => return Err(error),
                Ok(Some(why)) => return Ok(Err(why)),
                Ok(None) => {}
            }
        }
        let mut next = from.stored.next(to);
        next.sign(how.by);
        if let Some(moving) = &mut next.moving {
            moving.given_back = false;
            let before = moving.hush_from.take();
            let floor_due = std::mem::take(&mut moving.floor_due);
            if to == Phase::Hush {
                moving.hush_from = Some(phase.number());
            }
            // Back to the phase before the hush, the tokens go on as they were.
            let changes = phase == Phase::Hush && (before != Some(to.number()) || floor_due);
            #[cfg(fencelock_planted)]
            let changes = changes || (phase, to) == (phase, without_hush(phase, Phase::Hush));
            if changes {
                let taken = self
                    .take_floor(opened, to, from.stored.room_for_lost())
                    .await?;
                let targets = self.owners_after(to).into_iter();
                let floor = taken.floor.get();
                moving
                    .floors
                    .extend(targets.map(|id| (id.to_owned(), floor)));
                // After a loss nobody can tell which stores' tokens have counted last.
                let earlier = if floor_due { floor } else { moving.taken[1] };
                moving.taken = [earlier, floor];
                let drawn = taken.drawn.iter().map(|token| token.get());
                moving.drawn = opened.ids.iter().cloned().zip(drawn).collect();
                moving.floors_at.get_or_insert_with(now);
            }
        }
        Ok(Ok(records.step(from, &next).await?))
    }

    /// Waits until this long after `seen`.
    async fn wait(&self, how: &How<'_>, to: Phase, seen: BootInstant, pause: Duration) {
        #[cfg(fencelock_planted)]
        let pause = match fencelock_core::planted::is("step-without-waiting") {
            true => Duration::ZERO,
            false => pause,
        };
        let until = seen + pause;
        let left = until.since(Clock::Boot.now());
        if left >= Duration::from_secs(1) {
            (how.tell)(&format!(
                "waiting {} s before phase {to}",
                left.as_secs_f64().ceil()
            ));
        }
        Clock::Boot.sleep_until(until).await;
    }

    /// The stores that count after the hush, for names that move.
    fn owners_after(&self, to: Phase) -> Vec<&str> {
        self.maps.owners_of_moved(to == Phase::BothNew)
    }

    async fn take_floor(&self, opened: &Opened, to: Phase, room: u64) -> Result<floor::Taken> {
        let targets = self.owners_after(to).into_iter();
        let targets = targets.map(|id| opened.at(id).cloned());
        let targets: Vec<_> = targets.collect::<Result<_>>()?;
        floor::take(&opened.engines, &targets, room).await
    }

    /// Why the stores are not ready for the beginning.
    async fn unfit(
        &self,
        opened: &Opened,
        how: &How<'_>,
        stored: &Stored,
    ) -> Result<Option<String>> {
        if stored.is_given_back() {
            for id in self.maps.added() {
                // Programs may have begun to use the store by itself.
                match check_unused(&**opened.at(id)?).await {
                    Err(Error::Config { why, .. }) => return Ok(Some(format!("[{id}] {why}"))),
                    checked => checked?,
                }
            }
        }
        for (id, engine) in opened.ids.iter().zip(&opened.engines) {
            let broken = stored.promises.broken_by(engine.promises());
            if !broken.is_empty() {
                let what = broken.join(", ");
                return Ok(Some(format!(
                    "[{id}] it does not offer {what} (any more), which the record promises; configure the store as it was"
                )));
            }
            let found = engine.inspect().diagnose().await?;
            let harmful = found
                .iter()
                .find(|found| found.purpose == Purpose::Correctness);
            if let Some(found) = harmful.filter(|_| !how.despite_findings) {
                return Ok(Some(format!(
                    "[{id}] {}; {} (or begin all the same with --despite-findings)",
                    found.what, found.change
                )));
            }
        }
        Ok(match highest(opened).await? {
            Err(why) => Some(why),
            Ok(highest) => ahead_of_time(opened, highest),
        })
    }

    /// Holders in this store alone, which do not exclude those of the next phase, or would lose their holds: programs that were
    /// not switched, or holds that are not completed yet.
    async fn unpaired(
        &self,
        opened: &Opened,
        how: &How<'_>,
        alone: Side,
    ) -> Result<Option<String>> {
        let store = match alone {
            Side::Old => "old",
            Side::New => "new",
        };
        if !how.quiet.is_zero() {
            let wanted = in_words(how.quiet);
            (how.tell)(&format!(
                "waiting until nobody has held the {store} store alone for {wanted}"
            ));
        }
        let waits = |found: &[Unpaired]| {
            let (named, patience) = (name_all(found), in_words(how.patience));
            (how.tell)(&format!(
                "waiting for locks that are held in the {store} store alone, {patience} at most: {named}"
            ));
        };
        let sides = [alone];
        let pairs = Pairs {
            opened,
            maps: &self.maps,
            sides: &sides,
        };
        let found = pairs
            .lingering(how.quiet, how.patience, &waits)
            .await?
            .lingering;
        Ok((!found.is_empty()).then(|| {
            format!(
                "{} locks are held in the {store} store alone ({}): by programs that were not switched to the set, or that do \
                 not renew; switch or end them, and repeat this",
                found.len(),
                name_all(&found)
            )
        }))
    }
}

/// The highest token of these stores; or why tokens cannot be raised above it.
async fn highest(opened: &Opened) -> Result<Result<Token, String>> {
    match floor::take(&opened.engines, &[], 0).await {
        Err(Error::Invalid { why, .. }) => Ok(Err(format!("{why} ({MAX_FLOOR})"))),
        taken => Ok(Ok(taken?.floor)),
    }
}

/// Why these stores are not fit if their tokens are raised above this one. A store that forgets its tokens begins at the time
/// again. Clients notice that by its record, unless another store keeps the record.
fn ahead_of_time(opened: &Opened, highest: Token) -> Option<String> {
    let mut stores = opened.ids.iter().zip(&opened.engines);
    let (id, _) = stores.find(|(_, engine)| engine.promises().record_apart)?;
    let time = Duration::from_secs(now()) + AHEAD;
    (u128::from(highest.get()) > time.as_micros()).then(|| {
        format!(
            "[{id}] tokens would be raised above {highest}, which is ahead of the time in microseconds; if this store forgets its \
             tokens, it begins at the time again, and nobody notices, since another store keeps its record; use \
             `fencelock migrate offline`"
        )
    })
}

/// The first of these locks and holders.
fn name_all(found: &[Unpaired]) -> String {
    let named = found.iter().take(NAMED);
    let named = named.map(|unpaired| format!("{} by {}", unpaired.name, unpaired.owner));
    let named: Vec<_> = named.collect();
    let more = if found.len() > NAMED {
        " and others"
    } else {
        ""
    };
    named.join(", ") + more
}

/// How long all stores must have had the record of `from` before the next step. A client may believe for this long by older
/// knowledge, in holds that share no store with the holds of phase `to`.
fn pause_before(from: Phase, to: Phase, times: Times) -> Duration {
    match to {
        Phase::Old | Phase::New => times.pace + times.lock_delay,
        // In the first and the last phase, knowledge carries a new grant as long as a hold.
        Phase::Hush => {
            debug_assert_ne!(from, Phase::Hush);
            times.pace + times.lock_delay
        }
        Phase::BothOld | Phase::BothNew => times.tight,
    }
}

/// In which store nobody may hold alone before this step. The hush needs both stores. The last phase leaves the other store, so
/// a program that locks only there would no longer exclude others.
fn must_be_paired(from: Phase, to: Phase) -> Option<Side> {
    match (from, to) {
        (Phase::BothOld, Phase::Hush) | (_, Phase::New) => Some(Side::Old),
        (_, Phase::Hush | Phase::Old) => Some(Side::New),
        _ => None,
    }
}

fn times_of(stored: &Stored) -> Result<Times> {
    let times = stored.times();
    times.ok_or_else(|| Error::internal(&stored.set, "a record without pace"))
}

/// A planted bug: the hush is left out.
#[cfg(fencelock_planted)]
fn without_hush(phase: Phase, to: Phase) -> Phase {
    match (phase, to) {
        (Phase::BothOld, Phase::Hush) if fencelock_core::planted::is("no-hush") => Phase::BothNew,
        (Phase::BothNew, Phase::Hush) if fencelock_core::planted::is("no-hush") => Phase::BothOld,
        (_, to) => to,
    }
}
