//! A claim's way into the line, to its turn, and out.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Leave, Place, Standing, Withdrawn};
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Token, Tokens};
use futures_util::TryFutureExt;
use futures_util::future::{join_all, join3, select_all};
use zookeeper_client::{
    CreateMode, CreateOptions, Error as Refusal, MultiWriteError, MultiWriteResult,
};

use crate::data::{self, Data};
use crate::line::{self, Turn};
use crate::quiet::Ask;
use crate::session::{Life, Link, Session, Trouble};
use crate::store::{Node, PARENT_DATA, Spot, Store};

/// A waiter asks again after so long at the latest. Its watch tells it before; this is for what nobody foresaw.
const RECHECK: Duration = Duration::from_secs(15);

/// How often the nodes above may vanish while a claim's is made.
const TRIES: usize = 10;

/// Over which connection a claim's node was made, the line then, and when that was asked for.
type Entered = (Arc<Link>, Seen, BootInstant);

/// What is known of the line that a claim stands in.
enum Seen {
    /// There is nobody else in it.
    Alone,
    /// The children of the node above it.
    Line(Vec<String>),
}

/// Where a claim stands.
enum Stood {
    Held(Grant),
    Waiting(Place),
    /// Its node is gone.
    Gone,
}

impl Store {
    pub(crate) async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.check_delay(claim)?;
        let spot = match self.spot(claim.id) {
            // Boxed, as all that is rare, so that the future of an uncontended lock stays small.
            Some(spot) => match Box::pin(self.again(&spot, claim)).await? {
                Stood::Held(grant) => return Ok(Standing::Held(grant)),
                Stood::Waiting(place) => {
                    return Box::pin(self.wait_or_leave(&spot, claim, place)).await;
                }
                Stood::Gone => spot,
            },
            None => {
                let trouble = |trouble| self.error(taking(claim), trouble);
                let session = self.line_session(claim).await.map_err(trouble)?;
                let link = session.link().await.map_err(trouble)?;
                if !claim.wait && !Box::pin(self.is_free(&link, claim)).await? {
                    return Ok(Standing::Busy);
                }
                self.add(claim, session, Arc::clone(&link.life))
            }
        };
        for _ in 0..TRIES {
            let entered = self.enter(&spot, claim).await;
            let (link, seen, sent) =
                entered.map_err(|trouble| self.error(taking(claim), trouble))?;
            match self.judge(&spot, claim, (&link, seen), sent).await? {
                Stood::Held(grant) => return Ok(Standing::Held(grant)),
                Stood::Waiting(place) => {
                    return Box::pin(self.wait_or_leave(&spot, claim, place)).await;
                }
                // Deleted as soon as it was there; by an administrator, one must think.
                Stood::Gone => {}
            }
        }
        let vanishes = Trouble::Silent("its node vanishes as soon as it is made".into());
        Err(self.error(taking(claim), vanishes))
    }

    /// A session must outlive the client's belief by the lock-delay.
    fn check_delay(&self, claim: &Claim) -> Result<()> {
        let longest = self.limits.1 / 2;
        if claim.lock_delay <= longest {
            return Ok(());
        }
        let given = format!("{:?}", claim.lock_delay);
        let why = format!(
            "sessions of this store last {:?} at most, which leaves {longest:?} for a lock-delay; raise the server's maxSessionTimeout",
            self.limits.1
        );
        Err(Error::invalid("lock-delay", given, why))
    }

    /// Whether a claim that is not to wait has a chance. Reading costs the servers less than a node that goes at once.
    async fn is_free(&self, link: &Link, claim: &Claim) -> Result<bool> {
        let children = self.fresh_children(link, &claim.name).await;
        let children = children.map_err(|trouble| self.error(taking(claim), trouble))?;
        let mut line = self.sorted(&claim.name, children)?;
        Ok(line.admits(claim.mode))
    }

    async fn wait_or_leave(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        place: Place,
    ) -> Result<Standing> {
        if claim.wait {
            return Ok(Standing::Waiting(place));
        }
        let left = self.leave(spot).await;
        left.map_err(|trouble| self.error(taking(claim), trouble))?;
        Ok(Standing::Busy)
    }

    /// Makes a claim's node, and sees the line with it.
    async fn enter(&self, spot: &Arc<Spot>, claim: &Claim) -> Result<Entered, Trouble> {
        // A node that this connection's server does not show may be there all the same.
        if spot.now().node.is_some() {
            Box::pin(self.delete(spot)).await?;
        }
        let session = Arc::clone(&spot.now().session);
        let link = session.link().await?;
        {
            let mut now = spot.now();
            now.life = Arc::clone(&link.life);
            now.node = None;
            now.from = None;
            now.held = false;
            now.over = false;
            now.asked = false;
            now.unsure = true;
            now.count = match claim.mode {
                Mode::Exclusive => claim.reserve.clamp(1, data::MOST),
                Mode::Shared | Mode::Permit { .. } => 1,
            };
        }
        let data = Data::of(claim, spot.now().count).write();
        let above = &*spot.above;
        let before = line::prefix(claim.id, claim.mode);
        let prefix = above.below(&before);
        let options = CreateMode::EphemeralSequential.with_acls(self.config.acls());
        for _ in 0..TRIES {
            if !above.is_made() {
                let first = self.enter_first(spot, &link, (&prefix, &data, &options));
                if let Some(entered) = Box::pin(first).await? {
                    return Ok(entered);
                }
                continue;
            }
            let sent = Clock::Boot.now();
            let ask = above.what_to_ask(&link);
            let create = async {
                let create = link.client().create(&prefix, &data, &options);
                link.write(sent, create).await
            };
            let (watched, created, children) = match ask {
                Ask::Unless(_) => (Ok(None), create.await, Ok(None)),
                Ask::Look | Ask::SetAlarm => {
                    let alarm = async {
                        if ask != Ask::SetAlarm {
                            return Ok(None);
                        }
                        let watch = link.client().check_and_watch_stat(&above.path);
                        link.read(watch).await.map(Some)
                    };
                    let list = self.children_now(&link, &above.path).map_ok(Some);
                    // Polled in this order, so sent in this order.
                    Box::pin(join3(alarm, create, list)).await
                }
            };
            let (stat, sequence) = match created {
                Ok(created) => created,
                Err(Trouble::Answered(Refusal::NoNode)) => {
                    above.set_made(false);
                    continue;
                }
                Err(trouble) => return Err(self.if_answered(spot, trouble)),
            };
            let node = format!("{before}{sequence}");
            let found = Node {
                name: node.clone(),
                czxid: stat.czxid,
                version: 0,
            };
            self.made(spot, &link, found);
            if let Ok(Some((Some(_), watcher))) = watched {
                above.set_alarm(&link, watcher);
            }
            let number = sequence.into_i64();
            if ask == Ask::Unless(number) && above.is_still_quiet(number, &link) {
                return Ok((link, Seen::Alone, sent));
            }
            let children = match children? {
                Some(children) => children,
                None => Box::pin(self.children_now(&link, &above.path)).await?,
            };
            above.note_line(&node, &link, &children);
            return Ok((link, Seen::Line(children), sent));
        }
        Err(Trouble::Silent(
            "the node of its name comes and goes".into(),
        ))
    }

    /// Makes a claim's node and the one above it in the same breath, so that none is ever left without children but by its
    /// server. `None` if something else is to be tried now.
    async fn enter_first(
        &self,
        spot: &Arc<Spot>,
        link: &Arc<Link>,
        (prefix, data, options): (&str, &[u8], &CreateOptions<'_>),
    ) -> Result<Option<Entered>, Trouble> {
        let above = &*spot.above;
        let mut writer = link.client().new_multi_writer();
        let container = CreateMode::Container.with_acls(self.config.acls());
        let written = writer
            .add_create(&above.path, PARENT_DATA, &container)
            .and_then(|()| writer.add_create(prefix, data, options));
        written.map_err(|error| self.if_answered(spot, Trouble::Answered(error)))?;
        let sent = Clock::Boot.now();
        let commit = writer.commit();
        let results = match link.write(sent, commit.map_err(Refusal::from)).await {
            Ok(results) => results,
            Err(Trouble::Answered(Refusal::NodeExists)) => {
                self.parent_made(spot, false);
                return Ok(None);
            }
            Err(Trouble::Answered(Refusal::NoNode)) => {
                self.make_root(link).await?;
                return Ok(None);
            }
            Err(trouble) => return Err(self.if_answered(spot, trouble)),
        };
        let path = results.into_iter().find_map(|result| match result {
            MultiWriteResult::Create { path, .. } if path.starts_with(prefix) => Some(path),
            _ => None,
        });
        let path =
            path.ok_or_else(|| Trouble::Silent("the server did not say what it made".into()))?;
        self.parent_made(spot, true);
        // Servers before 3.8.2 do not say here when it was made.
        let stat = link.client().check_stat(&path);
        let list = self.children_now(link, &above.path);
        let (stat, children) = tokio::join!(link.read(stat), list);
        let Some(stat) = stat? else {
            return Ok(None);
        };
        let found = Node {
            name: path[above.path.len() + 1..].to_owned(),
            czxid: stat.czxid,
            version: stat.version,
        };
        let node = found.name.clone();
        self.made(spot, link, found);
        let children = children?;
        above.note_line(&node, link, &children);
        Ok(Some((Arc::clone(link), Seen::Line(children), sent)))
    }

    /// The children of a name's node, by its path; none if it is gone.
    async fn children_now(&self, link: &Link, parent: &str) -> Result<Vec<String>, Trouble> {
        self.children(link, link.client().list_children(parent))
            .await
    }

    /// A claim's node is there, whatever becomes of the answers to come.
    fn made(&self, spot: &Spot, link: &Link, node: Node) {
        let mut now = spot.now();
        now.unsure = false;
        now.life = Arc::clone(&link.life);
        now.node = Some(node);
    }

    /// A refusal leaves nothing behind.
    fn if_answered(&self, spot: &Arc<Spot>, trouble: Trouble) -> Trouble {
        if matches!(trouble, Trouble::Answered(_)) {
            self.remove(spot);
        }
        trouble
    }

    /// Looks again at a claim that was placed before.
    async fn again(&self, spot: &Arc<Spot>, claim: &Claim) -> Result<Stood> {
        let trouble = |trouble| self.error(taking(claim), trouble);
        if spot.now().unsure {
            self.settle(spot).await.map_err(trouble)?;
        }
        if spot.now().over {
            // What is over stays over; a new grant needs a new node.
            self.delete(spot).await.map_err(trouble)?;
            return Ok(Stood::Gone);
        }
        let (session, life, node) = {
            let now = spot.now();
            (
                Arc::clone(&now.session),
                Arc::clone(&now.life),
                now.node.clone(),
            )
        };
        let Some(node) = node else {
            return Ok(Stood::Gone);
        };
        let link = session.link().await.map_err(trouble)?;
        if !Arc::ptr_eq(&link.life, &life) {
            return Ok(Stood::Gone);
        }
        let node = match self.downgrade(spot, claim, &link, node).await {
            Ok(node) => node,
            Err(Trouble::Answered(Refusal::NoNode)) => return Ok(Stood::Gone),
            Err(other) => return Err(trouble(other)),
        };
        let sent = Clock::Boot.now();
        let confirm = confirm(&link, &spot.above.below(&node.name));
        let list = self.children_now(&link, &spot.above.path);
        let (confirmed, children) = tokio::join!(link.write(sent, confirm), list);
        match confirmed {
            Ok(()) => {}
            Err(Trouble::Answered(Refusal::NoNode)) => return Ok(Stood::Gone),
            Err(other) => return Err(trouble(other)),
        }
        let mut children = children.map_err(trouble)?;
        let mut checked = Vec::new();
        loop {
            let seen = (&link, Seen::Line(children));
            let stood = self.judge(spot, claim, seen, sent).await?;
            let behind = spot.now().behind.clone();
            if !matches!(stood, Stood::Waiting(_)) || behind == checked {
                return Ok(stood);
            }
            // Whoever looks again has waited for long, or lost a connection: are those ahead there at all?
            self.lay(&link, &behind).await.map_err(trouble)?;
            let list = self.children_now(&link, &spot.above.path);
            children = list.await.map_err(trouble)?;
            checked = behind;
        }
    }

    /// Whether it is a claim's turn in the line that was seen. `sent`: when its session was last confirmed.
    async fn judge(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        (link, seen): (&Arc<Link>, Seen),
        sent: BootInstant,
    ) -> Result<Stood> {
        if let Seen::Line(children) = seen
            && let Some(stood) = self.not_held(spot, claim, children)?
        {
            return Ok(stood);
        }
        let Some(czxid) = spot.now().node.as_ref().map(|node| node.czxid) else {
            return Ok(Stood::Gone);
        };
        let (life, held, from) = {
            let now = spot.now();
            (Arc::clone(&now.life), now.held, now.first)
        };
        let first = if held { from } else { data::first_token(czxid) };
        {
            let mut now = spot.now();
            now.first = first;
            if !held {
                now.recorded = first;
            }
        }
        let mut granted = (sent, life);
        // With a lock-delay it holds only in a session that lasts for it.
        let wanted = self.wanted(claim);
        if !claim.lock_delay.is_zero() && spot.now().session.timeout < wanted {
            match Box::pin(self.move_to(spot, claim, wanted, first)).await {
                Ok(moved) => granted = moved,
                Err(Trouble::Answered(Refusal::NoNode)) => return Ok(Stood::Gone),
                Err(trouble) => return Err(self.error(taking(claim), trouble)),
            }
        }
        let (counted_from, life) = granted;
        let lease = self.lease(claim, &life);
        self.stand_until(spot, counted_from + (lease + claim.lock_delay));
        self.arm_if_recorded(spot, claim, link);
        let count = spot.now().count;
        Ok(Stood::Held(Grant {
            tokens: Tokens { first, count },
            counted_from,
            lease,
            recorded: true,
        }))
    }

    /// Where a claim stands in the line that these children are, unless it holds.
    fn not_held(&self, spot: &Spot, claim: &Claim, children: Vec<String>) -> Result<Option<Stood>> {
        let line = self.sorted(&claim.name, children)?;
        let node = spot.now().node.as_ref().map(|node| node.name.clone());
        let Some(at) = node.and_then(|node| line.find(&node)) else {
            return Ok(Some(Stood::Gone));
        };
        let Turn::Behind(others) = line.turn(at) else {
            return Ok(None);
        };
        let behind = others
            .into_iter()
            .map(|other| spot.above.below(&line.0[other].node));
        spot.now().behind = behind.collect();
        Ok(Some(Stood::Waiting(Place {
            ahead: Some((at - line.holding()) as u64),
            recheck: Clock::Boot.now() + RECHECK,
        })))
    }

    /// Waits until it may be a claim's turn.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Option<Grant>> {
        let Some(spot) = self.spot(claim.id) else {
            return Ok(None);
        };
        loop {
            let now = spot.now().clone();
            let Some(node) = now.node.filter(|_| !now.unsure && !now.over) else {
                return Ok(None);
            };
            let link = now.session.any_link().await;
            if !Arc::ptr_eq(&link.life, &now.life) {
                return Ok(None);
            }
            match self.await_one(&link, &now.behind).await {
                Ok(true) => {}
                // Another connection may lead to a server that is behind: ask in full.
                Ok(false) => return Ok(None),
                Err(trouble) => return Err(self.error(waiting(claim), trouble)),
            }
            let parent = &spot.above.path;
            // A session that was confirmed lately need not be confirmed again.
            let sent = Clock::Boot.now();
            let lease = self.lease(claim, &link.life);
            let stale = sent.since(link.life.confirmed()) > lease / 4;
            let (confirmed, children) = if stale {
                let confirm = confirm(&link, &spot.above.below(&node.name));
                let list = self.children_now(&link, parent);
                let (confirmed, children) = tokio::join!(link.write(sent, confirm), list);
                (confirmed.map(|()| sent), children)
            } else {
                let confirmed = link.life.confirmed();
                (Ok(confirmed), self.children_now(&link, parent).await)
            };
            let confirmed = match confirmed {
                Ok(confirmed) => confirmed,
                Err(Trouble::Answered(Refusal::NoNode)) => return Ok(None),
                Err(trouble) => return Err(self.error(waiting(claim), trouble)),
            };
            let children = children.map_err(|trouble| self.error(waiting(claim), trouble))?;
            let seen = (&link, Seen::Line(children));
            match self.judge(&spot, claim, seen, confirmed).await? {
                Stood::Held(grant) => return Ok(Some(grant)),
                Stood::Waiting(_) => {}
                Stood::Gone => return Ok(None),
            }
        }
    }

    /// Waits until one of these nodes is gone or was replaced; `false` if the connection was lost before.
    async fn await_one(&self, link: &Link, paths: &[String]) -> Result<bool, Trouble> {
        let asked: Vec<_> = paths
            .iter()
            .map(|path| link.client().check_and_watch_stat(path))
            .collect();
        let answers = join_all(asked.into_iter().map(|asked| link.read(asked))).await;
        let mut watchers = Vec::new();
        for answer in answers {
            let (stat, watcher) = answer?;
            if stat.is_none() {
                return Ok(true);
            }
            watchers.push(Box::pin(watcher.changed()));
        }
        if watchers.is_empty() {
            return Ok(true);
        }
        // In this order: a watcher must not be asked once its connection is gone.
        tokio::select! {
            biased;
            () = link.ended() => Ok(false),
            _ = select_all(watchers) => Ok(true),
        }
    }

    /// Moves a claim's node to another session; it keeps its place, and its lease counts from the instant returned.
    pub(crate) async fn move_to(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        wanted: Duration,
        token: Token,
    ) -> Result<(BootInstant, Arc<Life>), Trouble> {
        let session = self.session(wanted).await?;
        let link = session.link().await?;
        let Some(node) = spot.now().node.clone() else {
            return Err(Trouble::Answered(Refusal::NoNode));
        };
        let name = node.name.clone();
        let replaced = self.replace(spot, claim, &link, (&session, node), &name, token);
        let sent = replaced.await?;
        Ok((sent, Arc::clone(&link.life)))
    }

    /// A weaker mode on a hold: another node in the same place, with a token above the one before.
    async fn downgrade(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        link: &Arc<Link>,
        node: Node,
    ) -> Result<Node, Trouble> {
        let Some((before, number)) = line::split(&node.name) else {
            return Ok(node);
        };
        let prefix = line::prefix(claim.id, claim.mode);
        let exclusive = line::prefix(claim.id, Mode::Exclusive);
        if before == prefix || before != exclusive || !spot.now().held {
            return Ok(node);
        }
        let name = format!("{prefix}{number}");
        let session = Arc::clone(&spot.now().session);
        let token = {
            let mut now = spot.now();
            now.first = data::downgraded(now.first);
            now.count = 1;
            now.first
        };
        self.replace(spot, claim, link, (&session, node), &name, token)
            .await?;
        let node = spot.now().node.clone();
        node.ok_or(Trouble::Answered(Refusal::NoNode))
    }

    /// Puts another node in the place of a claim's, in one transaction, in the session of `link`.
    async fn replace(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        link: &Arc<Link>,
        (session, mut node): (&Arc<Session>, Node),
        name: &str,
        token: Token,
    ) -> Result<BootInstant, Trouble> {
        let (old, new) = (spot.above.below(&node.name), spot.above.below(name));
        for _ in 0..TRIES {
            let data = spot.now().data(claim, token);
            let options = CreateMode::Ephemeral.with_acls(self.config.acls());
            let mut writer = link.client().new_multi_writer();
            // Not if somebody has written into it meanwhile, to ask for the lock.
            let added = writer
                .add_delete(&old, Some(node.version))
                .and_then(|()| writer.add_create(&new, &data.write(), &options));
            added.map_err(Trouble::Answered)?;
            {
                let mut now = spot.now();
                if !Arc::ptr_eq(&now.session, session) {
                    now.from = Some((Arc::clone(&now.session), Arc::clone(&now.life)));
                }
                now.session = Arc::clone(session);
                now.life = Arc::clone(&link.life);
                now.unsure = true;
            }
            let sent = Clock::Boot.now();
            let commit = writer.commit();
            let committed = link.write(sent, commit.map_err(Refusal::from)).await;
            match committed {
                Ok(_) => {
                    let mut now = spot.now();
                    now.unsure = false;
                    now.from = None;
                    now.recorded = token;
                    now.node = Some(Node {
                        name: name.to_owned(),
                        // It keeps the place of the node before; its tokens stand in its data.
                        czxid: node.czxid,
                        version: 0,
                    });
                    drop(now);
                    self.arm_if_recorded(spot, claim, link);
                    return Ok(sent);
                }
                Err(trouble @ Trouble::Silent(_)) => return Err(trouble),
                Err(refused) => {
                    let mut now = spot.now();
                    now.unsure = false;
                    if let Some((session, life)) = now.from.take() {
                        now.session = session;
                        now.life = life;
                    }
                    if !matches!(refused, Trouble::Answered(Refusal::BadVersion)) {
                        return Err(refused);
                    }
                }
            }
            let (bytes, stat) = link.read(link.client().get_data(&old)).await?;
            node.version = stat.version;
            self.note_written(spot, &bytes);
        }
        Err(Trouble::Silent(
            "somebody keeps writing into its node".into(),
        ))
    }

    /// Finds out what became of what was asked without an answer.
    pub(crate) async fn settle(&self, spot: &Arc<Spot>) -> Result<(), Trouble> {
        let now = spot.now().clone();
        let link = now.session.link().await?;
        let children = self.fresh_children(&link, &spot.name).await?;
        let mut mine = Vec::new();
        for name in children {
            if !line::is_of(&name, spot.id) {
                continue;
            }
            let path = spot.above.below(&name);
            if let Some(stat) = link.read(link.client().check_stat(&path)).await? {
                mine.push((name, stat));
            }
        }
        let mut settled = spot.now();
        settled.unsure = false;
        settled.node = None;
        // One of a session that has ended may stand there, too, and goes by itself.
        let of = |life: &Life| {
            mine.iter()
                .find(|(_, stat)| stat.ephemeral_owner == life.id)
        };
        let found = match (of(&now.life), now.from) {
            (Some(found), _) => Some(found),
            (None, Some((session, life))) => {
                let found = of(&life);
                if found.is_some() {
                    (settled.session, settled.life) = (session, life);
                }
                found
            }
            (None, None) => None,
        };
        let Some((name, stat)) = found else {
            return Ok(());
        };
        settled.from = None;
        settled.node = Some(Node {
            name: name.clone(),
            czxid: match &now.node {
                // Replaced in its place, or not.
                Some(node) => node.czxid,
                None => stat.czxid,
            },
            version: stat.version,
        });
        Ok(())
    }

    pub(crate) async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let trouble = |trouble| {
            let action = format!("withdrawing from lock {}", claim.name);
            self.error(action, trouble)
        };
        let Some(spot) = self.spot(claim.id) else {
            return Box::pin(self.absent(claim)).await.map_err(trouble);
        };
        let withdrawn = self.withdraw_from(&spot, claim, how).await;
        if withdrawn.is_err() && (how == Leave::Release || !spot.now().held) {
            // Its session may live for as long as this client: its node must not, whether or not anybody asks again.
            self.end_at(&spot, Clock::Boot.now());
        }
        withdrawn.map_err(trouble)
    }

    async fn withdraw_from(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        how: Leave,
    ) -> Result<Withdrawn, Trouble> {
        if spot.now().unsure {
            Box::pin(self.settle(spot)).await?;
        }
        let (held, over, stands) = {
            let now = spot.now();
            (now.held, now.over, now.node.is_some())
        };
        if how == Leave::Abandon && held && stands {
            let end = {
                let mut now = spot.now();
                now.over = true;
                // At the end of its validity a margin of the lease is left, and goes before the lock-delay.
                let margin = claim.ttl / 50 + Duration::from_millis(20);
                let end = Clock::Boot.now() + now.lock_delay;
                if now.until > end + margin {
                    end
                } else {
                    now.until
                }
            };
            if end > Clock::Boot.now() {
                self.end_at(spot, end);
                return Ok(Withdrawn::Expired);
            }
        }
        let was_there = self.leave(spot).await?;
        match (was_there, held) {
            (true, true) if over => Ok(Withdrawn::Expired),
            (true, true) => Ok(Withdrawn::Released),
            (_, false) => Ok(Withdrawn::LeftQueue),
            (false, true) => Box::pin(self.absent(claim)).await,
        }
    }

    /// Has a claim's node deleted then, for as often as it takes.
    fn end_at(&self, spot: &Spot, end: BootInstant) {
        spot.now().until = end;
        self.state().ends.push(std::cmp::Reverse((end, spot.id)));
        self.work.notify_one();
    }

    /// What to say of a claim that is not there.
    async fn absent(&self, claim: &Claim) -> Result<Withdrawn, Trouble> {
        let link = self.line.link().await?;
        let children = self.fresh_children(&link, &claim.name).await?;
        Ok(match children.is_empty() {
            true => Withdrawn::Expired,
            false => Withdrawn::NotOwner,
        })
    }

    /// Takes a claim out of the line and out of the books; whether it was there.
    async fn leave(&self, spot: &Arc<Spot>) -> Result<bool, Trouble> {
        let was_there = self.delete(spot).await?;
        self.remove(spot);
        Ok(was_there)
    }

    /// Deletes a claim's own node, and never another one: no two claims have nodes of the same name.
    pub(crate) async fn delete(&self, spot: &Arc<Spot>) -> Result<bool, Trouble> {
        let (node, session, life) = {
            let mut now = spot.now();
            // Nobody is to be told of its end.
            now.over |= now.held;
            let node = now.node.as_ref().map(|node| node.name.clone());
            (node, Arc::clone(&now.session), Arc::clone(&now.life))
        };
        let Some(node) = node else {
            return Ok(false);
        };
        if life.is_over() {
            spot.now().node = None;
            return Ok(false);
        }
        let link = session.link().await?;
        let path = spot.above.below(&node);
        let sent = Clock::Boot.now();
        let deleted = link.write(sent, link.client().delete(&path, None)).await;
        match deleted {
            Ok(()) => {}
            Err(Trouble::Answered(Refusal::NoNode)) => {
                spot.now().node = None;
                return Ok(false);
            }
            Err(trouble) => return Err(trouble),
        }
        spot.above.note_gone(&node);
        spot.now().node = None;
        Ok(true)
    }
}

/// A write that changes nothing, and says whether a node is there.
fn confirm<'a>(link: &'a Link, path: &str) -> impl Future<Output = Result<(), Refusal>> + use<'a> {
    let mut writer = link.client().new_multi_writer();
    let added = writer.add_check_version(path, -1);
    let commit = added.map(|()| writer.commit());
    async {
        let committed: Result<_, MultiWriteError> = commit?.await;
        committed.map(drop).map_err(Refusal::from)
    }
}

fn taking(claim: &Claim) -> String {
    format!("taking lock {}", claim.name)
}

fn waiting(claim: &Claim) -> String {
    format!("waiting for lock {}", claim.name)
}
