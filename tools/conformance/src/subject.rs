//! An engine under test, and the stores that it is tested on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock::Client;
use fencelock::engine::{ClaimId, ClaimIds, Engine};
use fencelock_testbed::{Proxy, Result};

/// An engine under test.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The first part of its cases' names: `redis` in `redis::fifo_order`.
    fn name(&self) -> &'static str;

    /// Whether several processes can open one store.
    fn spans_processes(&self) -> bool {
        true
    }

    /// Whether there is a server that can be stopped, killed and cut off.
    fn has_server(&self) -> bool {
        false
    }

    /// How long a dead waiter may delay the queue, as the engine documents it.
    fn claim_window(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// A fresh, empty store for one case. With `server`, on a server for one case.
    async fn open(&self, server: bool) -> Result<Box<dyn Store>>;
}

/// A store for one case; removed when dropped.
#[async_trait]
pub trait Store: Send + Sync {
    /// Opens the store as another process would: with an engine of its own.
    async fn connect(&self) -> fencelock::Result<Client> {
        Client::new(self.engine().await?)
    }

    /// Opens the store's engine as another process would, for cases below the client.
    async fn engine(&self) -> fencelock::Result<Arc<dyn Engine>> {
        self.open_at(&self.url()).await
    }

    /// The same at another URL of this store.
    async fn open_at(&self, url: &str) -> fencelock::Result<Arc<dyn Engine>> {
        fencelock::open_engine(url).await
    }

    /// The id of a claim with which each of these engines can go on.
    fn claim_id(&self) -> ClaimId {
        ClaimIds::new().unwrap().next()
    }

    /// Its URL.
    fn url(&self) -> String;

    /// The number of keys, rows or nodes in it, without those whose number does not depend on the number of locks.
    async fn leftovers(&self) -> Result<u64>;

    /// Its server, if the store was opened with one of its own.
    fn server(&self) -> Option<&dyn Server> {
        None
    }
}

/// A server for one case. It remembers over a restart what the engine promises to remember.
pub trait Server: Send + Sync {
    /// SIGSTOP.
    fn pause(&self) -> Result<()>;
    /// SIGCONT.
    fn resume(&self) -> Result<()>;
    /// SIGKILL.
    fn kill9(&self);
    /// Starts it again with its data.
    fn restart(&self) -> Result<()>;
    /// Starts it again without its data.
    fn restart_empty(&self) -> Result<()>;
    /// Erases all data of the running server, as an administrator might. Connections stay open.
    fn erase(&self) -> Result<()>;
    /// A proxy before the server.
    fn proxy(&self) -> &Proxy;
    /// The store's URL through the proxy.
    fn proxied_url(&self) -> String;
    /// URLs of the store with the right and a wrong password; `None` if it has no passwords.
    fn password_urls(&self) -> Option<Passwords> {
        None
    }
}

/// Passwords, which must never be printed, and URLs with them.
#[derive(Clone, Debug)]
pub struct Passwords {
    /// The right password.
    pub right: String,
    /// The store's URL with it.
    pub right_url: String,
    /// A wrong password.
    pub wrong: String,
    /// The store's URL with that.
    pub wrong_url: String,
}
