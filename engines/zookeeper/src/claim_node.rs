//! A claim's node.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, Clock, Mode, Token};
use futures_util::TryFutureExt;
use zookeeper_client::{CreateMode, Error as Refusal, MultiWriteError};

use crate::connection::{Life, Link};
use crate::entry::{Node, Spot};
use crate::error::Trouble;
use crate::names;
use crate::session::Session;
use crate::state::Store;
use crate::stored;

/// How often the nodes above may vanish while a claim's is made.
pub(crate) const TRIES: usize = 10;

impl Store {
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
    pub(crate) async fn downgrade(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        link: &Arc<Link>,
        node: Node,
    ) -> Result<Node, Trouble> {
        let Some((before, number)) = names::split(&node.name) else {
            return Ok(node);
        };
        let prefix = names::prefix(claim.id, claim.mode);
        let exclusive = names::prefix(claim.id, Mode::Exclusive);
        if before == prefix || before != exclusive || !spot.now().held {
            return Ok(node);
        }
        let name = format!("{prefix}{number}");
        let session = Arc::clone(&spot.now().session);
        let token = {
            let mut now = spot.now();
            now.first = stored::downgraded(now.first);
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
            if !names::is_of(&name, spot.id) {
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
        spot.above.hint.note_deleted(&node);
        spot.now().node = None;
        Ok(true)
    }
}

/// A write that changes nothing, and says whether a node is there.
pub(crate) fn confirm<'a>(
    link: &'a Link,
    path: &str,
) -> impl Future<Output = Result<(), Refusal>> + use<'a> {
    let mut writer = link.client().new_multi_writer();
    let added = writer.add_check_version(path, -1);
    let commit = added.map(|()| writer.commit());
    async {
        let committed: Result<_, MultiWriteError> = commit?.await;
        committed.map(drop).map_err(Refusal::from)
    }
}
