//! The token base. It is added to the tokens that follow from the ids of transactions, once a claim has asked for tokens above
//! a floor.
//!
//! The node `%base` has the base and the earlier bases, each with the id of the transaction that set it. So the token of a
//! claim's node follows from the transaction that created the node: every client computes the same token at any time. Without
//! the node the base is 0.
//!
//! Each connection reads the node once and watches it. The server sends the notice of a change before the answer to any later
//! request over the same connection. So if the watch has not fired when a claim's node is confirmed, the known history has all
//! changes from before that node.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use fencelock_core::{Clock, Token};
use zookeeper_client::{CreateMode, Error as Refusal, Stat};

use crate::connection::Connection;
use crate::error::Failure;
use crate::session::ManagedSession;
use crate::state::State;
use crate::stored::{self, TOKENS_PER_TRANSACTION};
use crate::token_history::History;

/// The name of the node. No lock's node has such a name, since `%ba` encodes nothing.
const NODE: &str = "%base";

/// How often raising the base is tried again because others have changed it.
const ATTEMPTS: usize = 100;

impl State {
    /// The history with all changes from before the answers that this connection has received so far.
    pub(crate) async fn bases(&self, connection: &Connection) -> Result<Arc<History>, Failure> {
        let known = connection.while_open(|| connection.bases.current());
        if let Some(history) = known.flatten() {
            return Ok(history);
        }
        let path = self.base_path();
        // The watch is set before the node is read.
        let watch = connection.client().check_and_watch_stat(&path);
        let read = connection.client().get_data(&path);
        let (watched, read) = tokio::join!(connection.read(watch), connection.read(read));
        let (_, watcher) = watched?;
        let history = Arc::new(history(read)?.map_or_else(History::default, |(known, _)| known));
        connection.bases.set(&history, watcher);
        Ok(history)
    }

    /// Raises the base until the token of each later claim is above this floor, unless that was done before.
    pub(crate) async fn raise_tokens(
        &self,
        session: &ManagedSession,
        floor: Token,
    ) -> Result<(), Failure> {
        if self.raised.load(SeqCst) >= floor.get() {
            return Ok(());
        }
        let connection = &*session.connection().await?;
        let path = self.base_path();
        for _ in 0..ATTEMPTS {
            let now = self.latest_transaction(connection).await?;
            let read = connection.read(connection.client().get_data(&path)).await;
            let known = history(read)?;
            let stored = known.as_ref().map_or(0, |(history, _)| history.base());
            let counted = stored::first_token(now).get();
            let base = floor.get().saturating_sub(counted);
            let base = base.next_multiple_of(TOKENS_PER_TRANSACTION).max(stored);
            let changed = match &known {
                _ if base == stored => Ok(()),
                Some((history, stat)) => {
                    let (text, sent) = (history.write(base), Clock::Boot.now());
                    let client = connection.client();
                    let set = client.set_data(&path, text.as_bytes(), Some(stat.version));
                    connection.write(sent, set).await.map(drop)
                }
                None => {
                    let (text, sent) = (History::default().write(base), Clock::Boot.now());
                    let options = CreateMode::Persistent.with_acls(self.config.acls());
                    let client = connection.client();
                    let create = client.create(&path, text.as_bytes(), &options);
                    connection.write(sent, create).await.map(drop)
                }
            };
            match changed {
                Ok(()) => {
                    self.raised.fetch_max(floor.get(), SeqCst);
                    return Ok(());
                }
                Err(Failure::Refused(
                    Refusal::BadVersion | Refusal::NodeExists | Refusal::NoNode,
                )) => {}
                Err(failure) => return Err(failure),
            }
        }
        let why = "others change the token base again and again";
        Err(Failure::Unanswered(why.into()))
    }

    /// The id of a current transaction. Later transactions have higher ids.
    async fn latest_transaction(&self, connection: &Connection) -> Result<i64, Failure> {
        let path = format!("{}-{:x}", self.base_path(), connection.session.id);
        let options = CreateMode::EphemeralSequential.with_acls(self.config.acls());
        let sent = Clock::Boot.now();
        let create = connection.client().create(&path, b"", &options);
        let (stat, number) = connection.write(sent, create).await?;
        let path = format!("{path}{number}");
        let delete = connection.client().delete(&path, None);
        connection.write(Clock::Boot.now(), delete).await?;
        Ok(stat.czxid)
    }

    fn base_path(&self) -> String {
        format!("{}/{NODE}", self.config.root)
    }
}

/// The history in the node that was read; `None` if there is none.
fn history(read: Result<(Vec<u8>, Stat), Failure>) -> Result<Option<(History, Stat)>, Failure> {
    match read {
        Ok((bytes, stat)) => match History::read(&bytes, stat.mzxid) {
            Some(history) => Ok(Some((history, stat))),
            None => {
                let why = format!(
                    "its node {NODE} is damaged, or a newer version of fencelock wrote it; use that version"
                );
                Err(Failure::Unanswered(why))
            }
        },
        Err(Failure::Refused(Refusal::NoNode)) => Ok(None),
        Err(failure) => Err(failure),
    }
}
