//! What a process may believe of a hold that it joins.
//!
//! Sessions show no countdown, and a node is there until its session ends, however long its holder has been dead. So
//! who wants to believe asks the holder: it writes a number into the hold's node, which the holder watches and answers
//! there with what is left of its own validity. That counts from before the number was written.

use std::sync::Arc;

use fencelock_core::engine::{Grant, HolderView};
use fencelock_core::{Clock, LockName, Result, Tokens};
use zookeeper_client::Error as Refusal;

use crate::data::Data;
use crate::inspect::Read;
use crate::session::{Link, Trouble};
use crate::store::{Spot, Store};

impl Store {
    /// The hold of this owner, which its process vouches for.
    pub(crate) async fn attest(
        &self,
        name: &LockName,
        owner: &str,
    ) -> Result<Option<(HolderView, Grant)>> {
        let trouble = |trouble| self.error(format!("joining the hold of lock {name}"), trouble);
        let limit = self.config.response_timeout;
        let asking = async {
            let link = self.line.link().await?;
            loop {
                // It changes only while its node is replaced, or another process asks, too.
                if let Some(asked) = self.ask_once(&link, name, owner).await? {
                    return Ok::<_, Read>(asked);
                }
            }
        };
        match tokio::time::timeout(limit, asking).await {
            Ok(Ok(vouched)) => Ok(vouched),
            Ok(Err(Read::Trouble(other))) => Err(trouble(other)),
            Ok(Err(Read::Error(error))) => Err(error),
            Err(_) => {
                let why = format!("the process that holds it has not answered within {limit:?}");
                Err(trouble(Trouble::Silent(why)))
            }
        }
    }

    /// Asks under a number of its own; `None` if somebody else wrote into the node before the answer.
    async fn ask_once(
        &self,
        link: &Arc<Link>,
        name: &LockName,
        owner: &str,
    ) -> Result<Option<Option<(HolderView, Grant)>>, Read> {
        let (line, holding) = self.read_line(link, name, 0).await?;
        let mut found = None;
        for seen in line.into_iter().take(holding) {
            let data = self.read_data(name, &seen.bytes).map_err(Read::Error)?;
            if let Some(data) = data.filter(|data| data.owner == owner) {
                found = Some((seen, data));
                break;
            }
        }
        let Some((seen, data)) = found else {
            return Ok(Some(None));
        };
        let path = self.path(name, &seen.stander.node);
        let number = fastrand::u64(..);
        let asking = Data {
            ping: Some(number),
            ..data
        };
        let counted_from = Clock::Boot.now();
        let version = Some(seen.stat.version);
        let set = link.client().set_data(&path, &asking.write(), version);
        match link.write(counted_from, set).await {
            Ok(_) => {}
            Err(Trouble::Answered(Refusal::NoNode | Refusal::BadVersion)) => return Ok(None),
            Err(other) => return Err(other.into()),
        }
        loop {
            let got = link.read(link.client().get_and_watch_data(&path)).await;
            let (bytes, _, watcher) = match got {
                Ok(got) => got,
                Err(Trouble::Answered(Refusal::NoNode)) => return Ok(None),
                Err(other) => return Err(other.into()),
            };
            let Some(data) = self.read_data(name, &bytes).map_err(Read::Error)? else {
                return Ok(None);
            };
            if let Some((answered, lease)) = data.pong
                && answered == number
            {
                let token = data.tokens(seen.stat.czxid).1;
                let grant = Grant {
                    tokens: Tokens::one(token),
                    counted_from,
                    lease,
                    recorded: true,
                };
                return Ok(Some(Some((seen.holder(Some(data)), grant))));
            }
            if data.ping != Some(number) {
                return Ok(None);
            }
            // In this order: a watcher must not be asked once its connection is gone.
            tokio::select! {
                biased;
                () = link.ended() => {
                    return Err(Trouble::Silent("the connection was lost".into()).into());
                }
                _ = watcher.changed() => {}
            }
        }
    }

    /// Answers who asked whether the holder of this node is there, if somebody did.
    pub(crate) async fn answer(
        &self,
        spot: &Arc<Spot>,
        bytes: &[u8],
        version: i32,
    ) -> Result<(), Trouble> {
        let Ok(data) = Data::read(bytes) else {
            return Ok(());
        };
        let Some(number) = data.ping else {
            return Ok(());
        };
        let left = {
            let now = spot.now();
            let left = now.until.since(Clock::Boot.now() + now.lock_delay);
            (now.held && !now.over && !now.unsure).then_some(left)
        };
        let Some(left) = left.filter(|left| !left.is_zero()) else {
            return Ok(());
        };
        let answer = Data {
            ping: None,
            pong: Some((number, left)),
            ..data
        };
        let (session, node) = {
            let now = spot.now();
            (Arc::clone(&now.session), now.node.clone())
        };
        let Some(node) = node else { return Ok(()) };
        let link = session.link().await?;
        let path = spot.above.below(&node.name);
        let sent = Clock::Boot.now();
        let set = link
            .client()
            .set_data(&path, &answer.write(), Some(version));
        match link.write(sent, set).await {
            // Whoever was quicker has woken the watch again.
            Ok(_) | Err(Trouble::Answered(Refusal::BadVersion | Refusal::NoNode)) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }
}
