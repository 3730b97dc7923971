//! What a case works with: a store, its clients, and other processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::Engine;
use fencelock::{Client, Guard, Order, Promises, Result};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::remote::Remote;
use crate::subject::{Server, Store};
pub(crate) use crate::wait::{LIMIT, not_for, soon, until};

/// The context of a case.
pub struct Ctx {
    pub(crate) case: &'static str,
    pub(crate) store: Box<dyn Store>,
    pub(crate) promises: Promises,
    pub(crate) worker: PathBuf,
    pub(crate) claim_window: Duration,
}

impl Ctx {
    /// A lock name of the case's own.
    #[must_use]
    pub fn name(&self) -> String {
        format!("conformance/{}", self.case)
    }

    /// What the engine promises.
    #[must_use]
    pub fn promises(&self) -> &Promises {
        &self.promises
    }

    /// How long a dead waiter may delay the queue.
    #[must_use]
    pub fn claim_window(&self) -> Duration {
        self.claim_window
    }

    /// A time in which everything is done that does not need the end of a lease or a claim window, even on a busy machine.
    #[must_use]
    pub fn at_once(&self) -> Duration {
        self.claim_window * 3 / 4
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The server of a case that needs one.
    #[must_use]
    pub fn server(&self) -> &dyn Server {
        self.store
            .server()
            .expect("the case needs a server, so it was opened with one")
    }

    /// A new client, as of another process.
    pub async fn client(&self) -> Client {
        let client = soon("opening the store", self.store.connect()).await;
        client.unwrap_or_else(|error| panic!("the store could not be opened: {error}"))
    }

    /// An engine of the store, as of another process, for what a client does not do.
    pub async fn engine(&self) -> Arc<dyn Engine> {
        let engine = soon("opening the store", self.store.engine()).await;
        engine.unwrap_or_else(|error| panic!("the store could not be opened: {error}"))
    }

    /// An engine that reaches the server through the proxy.
    pub async fn proxied_engine(&self) -> Arc<dyn Engine> {
        let url = self.server().proxied_url();
        let engine = soon("opening through the proxy", self.store.open_at(&url)).await;
        engine.unwrap_or_else(|error| panic!("the store could not be opened: {error}"))
    }

    /// A new client that reaches the server through the proxy.
    pub async fn proxied(&self) -> Client {
        let url = self.server().proxied_url();
        let client = soon(
            "opening the store through the proxy",
            fencelock::connect(&url),
        )
        .await;
        client.unwrap_or_else(|error| {
            panic!("the store could not be opened through the proxy: {error}")
        })
    }

    /// Another process that has opened the store.
    pub async fn remote(&self) -> Remote {
        Remote::start(&self.worker, &self.store.url()).await
    }

    /// Another process that has opened the store through the proxy.
    pub async fn proxied_remote(&self) -> Remote {
        Remote::start(&self.worker, &self.server().proxied_url()).await
    }

    /// A short ttl that the engine takes.
    #[must_use]
    pub fn ttl(&self, millis: u64) -> Duration {
        Duration::from_millis(millis).max(self.promises.min_ttl)
    }

    /// Waits until `count` claims are queued. For an engine without a queue, waits until they have begun to poll.
    pub async fn await_queued(&self, client: &Client, name: &str, count: usize) {
        if self.promises.order == Order::Unordered {
            return sleep(Duration::from_millis(150)).await;
        }
        until(&format!("{count} claims are queued"), async || {
            client.look(name).await.unwrap().waiters.len() == count
        })
        .await;
    }

    /// Waits until the store is empty: no holders, no waiters, nothing per name.
    pub async fn await_nothing_left(&self) {
        let mut left = 0;
        let nothing = async {
            loop {
                left = self.store.leftovers().await.unwrap();
                if left == 0 {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(LIMIT, nothing).await.is_err() {
            panic!("{left} keys, rows or nodes are left in the store after {LIMIT:?}");
        }
    }
}

/// Waits for the lock in a task of its own. Aborting the task drops the waiting future.
pub(crate) fn wait_for(client: &Client, name: &str) -> JoinHandle<Result<Guard>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(&name).await })
}

/// The guard of a waiting task.
pub(crate) async fn got(what: &str, task: JoinHandle<Result<Guard>>) -> Guard {
    let got = soon(what, task).await.unwrap();
    got.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Acquires a free lock.
pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    let guard = soon("taking a free lock", client.lock(name)).await;
    guard.unwrap_or_else(|error| panic!("taking a free lock: {error}"))
}
