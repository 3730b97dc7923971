//! The alone hint: a claim can know, without reading the queue, that no other claim is there.
//!
//! Servers number the children of a node in the order of their creation. Suppose that a claim was alone, that its node is
//! deleted, and that the next claim's node gets the next number. Then no other node was created between them, and the next
//! claim is alone, too. This is true while the lock's node is the same one. A watch on the lock's node tells when it is
//! replaced: the server sends that notice before the answer to any later request over the same connection.

use fencelock_core::support::Mutex;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use zookeeper_client::OneshotWatcher;

use crate::connection::Connection;
use crate::names;

/// What this client knows about being alone at one lock.
#[derive(Debug, Default)]
pub(crate) struct AloneHint(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Whether this client's last claim was alone when it read the queue.
    alone: bool,
    watch: Option<NodeWatch>,
    last: Option<Last>,
}

/// The last claim that was alone while the watch was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    number: i64,
    deleted: bool,
}

struct NodeWatch {
    connection: Weak<Connection>,
    changed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for NodeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeWatch").finish_non_exhaustive()
    }
}

/// How a new claim learns whether it is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Read,
    WatchAndRead,
    /// Read the queue only if the claim's node does not get this number.
    ReadUnless(i64),
}

impl Known {
    /// Whether the watch is set over this connection and has not fired.
    fn is_watched(&mut self, connection: &Arc<Connection>) -> bool {
        let watched = match &mut self.watch {
            Some(watch) if std::ptr::eq(watch.connection.as_ptr(), &**connection) => {
                connection.while_open(|| (&mut watch.changed).now_or_never().is_none())
            }
            _ => None,
        };
        if watched != Some(true) {
            self.watch = None;
            self.last = None;
        }
        watched == Some(true)
    }
}

impl AloneHint {
    /// The plan of a claim whose node is about to be created over this connection.
    pub(crate) fn plan(&self, connection: &Arc<Connection>) -> Plan {
        let mut known = self.0.lock();
        match (known.is_watched(connection), known.last) {
            (
                true,
                Some(Last {
                    number,
                    deleted: true,
                }),
            ) => Plan::ReadUnless(number + 1),
            (false, _) if known.alone => Plan::WatchAndRead,
            _ => Plan::Read,
        }
    }

    /// Whether a claim is alone after its node got the number of its plan. The plan must still follow from what is known: the
    /// watch may have fired and been set anew since.
    pub(crate) fn confirms(&self, number: i64, connection: &Arc<Connection>) -> bool {
        let mut known = self.0.lock();
        let plan = Last {
            number: number - 1,
            deleted: true,
        };
        let confirmed = known.is_watched(connection) && known.last == Some(plan);
        if confirmed {
            known.last = Some(Last {
                number,
                deleted: false,
            });
        }
        confirmed
    }

    /// Notes a watch that was set before the queue was read.
    pub(crate) fn set_watch(&self, connection: &Arc<Connection>, watcher: OneshotWatcher) {
        let watch = NodeWatch {
            connection: Arc::downgrade(connection),
            changed: Box::pin(watcher.changed().map(drop)),
        };
        // The old watch is dropped outside the lock.
        let old = {
            let mut known = self.0.lock();
            known.last = None;
            known.watch.replace(watch)
        };
        drop(old);
    }

    /// Notes the children that a claim read after its own node had been created.
    pub(crate) fn note_children(
        &self,
        node: &str,
        connection: &Arc<Connection>,
        children: &[String],
    ) {
        let alone = matches!(children, [only] if only == node);
        let mut known = self.0.lock();
        known.alone = alone;
        let number = number(node).filter(|_| alone && known.is_watched(connection));
        known.last = number.map(|number| Last {
            number,
            deleted: false,
        });
    }

    /// Notes that a claim's node is deleted for certain.
    pub(crate) fn note_deleted(&self, node: &str) {
        if let Some(last) = &mut self.0.lock().last
            && number(node) == Some(last.number)
        {
            last.deleted = true;
        }
    }
}

fn number(node: &str) -> Option<i64> {
    let (_, number) = names::split_number(node)?;
    number.parse().ok()
}
