//! An engine under test, and the stores that it is tested on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock::{Client, Engine};
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

    /// For how long a waiter that died may hold up the line, as its engine documents it.
    fn claim_window(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// A fresh, empty store that nobody else uses. With `server`, on a server that nobody else uses either.
    async fn open(&self, server: bool) -> Result<Box<dyn Store>>;
}

/// A store to run one case on; gone when dropped.
#[async_trait]
pub trait Store: Send + Sync {
    /// Opens the store as another process would: with an engine of its own.
    async fn connect(&self) -> fencelock::Result<Client> {
        Client::new(self.engine().await?)
    }

    /// Opens the store's engine as another process would, for cases below the client.
    async fn engine(&self) -> fencelock::Result<Arc<dyn Engine>> {
        fencelock::open_engine(&self.url()).await
    }

    /// Its URL.
    fn url(&self) -> String;

    /// How much is in it (keys, rows, nodes) apart from what stands there however many names were locked.
    async fn leftovers(&self) -> Result<u64>;

    /// Its server, if the store was opened with one of its own.
    fn server(&self) -> Option<&dyn Server> {
        None
    }
}

/// A server of a case's own. It remembers over a restart what the engine promises to remember.
pub trait Server: Send + Sync {
    /// SIGSTOP.
    fn pause(&self) -> Result<()>;
    /// SIGCONT.
    fn resume(&self) -> Result<()>;
    /// SIGKILL.
    fn kill9(&self);
    /// Starts it again as it was.
    fn restart(&self) -> Result<()>;
    /// Starts it again without anything it had.
    fn restart_empty(&self) -> Result<()>;
    /// Erases everything that the server knows, as an administrator might, while it runs and connections stay.
    fn erase(&self) -> Result<()>;
    /// A proxy before the server.
    fn proxy(&self) -> &Proxy;
    /// The store's URL by way of the proxy.
    fn proxied_url(&self) -> String;
    /// URLs of the store with the password that it wants, and with another one; `None` if it has no passwords.
    fn password_urls(&self) -> Option<Passwords> {
        None
    }
}

/// What must never be printed, and URLs that hold it.
#[derive(Clone, Debug)]
pub struct Passwords {
    /// The password that the store wants.
    pub right: String,
    /// The store's URL with it.
    pub right_url: String,
    /// Another one.
    pub wrong: String,
    /// The store's URL with that.
    pub wrong_url: String,
}
