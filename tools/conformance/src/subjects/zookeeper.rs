//! One ZooKeeper server, and an ensemble of three. A server takes a second to start, so cases share one, each below its
//! own chroot. Cases that stop or kill the server have their own. All cases share the ensemble, and no case stops or
//! kills its servers: the engine's own tests do that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_testbed::{Ensemble, Failure, Proxy, Result, ZooKeeper};

use crate::subject::{Passwords, Server, Store, Subject};

/// The password of the user that owns all nodes, so that the cases notice if it is printed.
const PASSWORD: &str = "hunter2-right";
const WRONG: &str = "hunter2-wrong";

pub(crate) struct OneZooKeeper;

pub(crate) struct ThreeZooKeepers;

/// Started with the first case that shares it, ended with the last.
static SHARED: Mutex<Weak<Mutex<ZooKeeper>>> = Mutex::new(Weak::new());
static THREE: Mutex<Weak<Ensemble>> = Mutex::new(Weak::new());

/// Numbers the chroots.
static ROOTS: AtomicU64 = AtomicU64::new(0);

/// The shared server, started if necessary.
fn shared<T>(shared: &Mutex<Weak<T>>, start: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = shared.upgrade() {
        return Ok(server);
    }
    let server = Arc::new(start()?);
    *shared = Arc::downgrade(&server);
    Ok(server)
}

/// A fresh chroot.
fn next_root() -> String {
    format!("/case-{}", ROOTS.fetch_add(1, Ordering::Relaxed))
}

/// Starts servers on a thread that may block.
async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::new(error.to_string()))?
}

#[async_trait]
impl Subject for OneZooKeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn has_server(&self) -> bool {
        true
    }

    fn claim_window(&self) -> Duration {
        // This includes the time that servers need to notice the end of a session.
        Duration::from_millis(6500)
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        let open = move || {
            let zookeeper = match server {
                true => Arc::new(Mutex::new(ZooKeeper::start()?)),
                false => shared(&SHARED, || Ok(Mutex::new(ZooKeeper::start()?)))?,
            };
            let root = next_root();
            let port = {
                let zookeeper = zookeeper.lock().unwrap_or_else(PoisonError::into_inner);
                zookeeper.make_root(&root, Some(&user(PASSWORD)))?;
                zookeeper.port()
            };
            let node = Node {
                proxy: server.then(|| Proxy::start(port)).transpose()?,
                port,
                root,
                zookeeper,
            };
            Ok(Box::new(node) as Box<dyn Store>)
        };
        elsewhere(open).await
    }
}

#[async_trait]
impl Subject for ThreeZooKeepers {
    fn name(&self) -> &'static str {
        "zookeeper-cluster"
    }

    fn claim_window(&self) -> Duration {
        OneZooKeeper.claim_window()
    }

    async fn open(&self, _server: bool) -> Result<Box<dyn Store>> {
        let open = || {
            // No case wants an election. During one a lock may seem taken for a moment after its release.
            let start = || ZooKeeper::builder().sync_limit(50).ensemble();
            let ensemble = shared(&THREE, start)?;
            let root = next_root();
            ensemble.server(0).make_root(&root, None)?;
            Ok(Box::new(Three { ensemble, root }) as Box<dyn Store>)
        };
        elsewhere(open).await
    }
}

struct Three {
    ensemble: Arc<Ensemble>,
    root: String,
}

#[async_trait]
impl Store for Three {
    fn url(&self) -> String {
        format!("{}{}", self.ensemble.url(), self.root)
    }

    async fn leftovers(&self) -> Result<u64> {
        let server = self.ensemble.server(0);
        let permanent = count_permanent(server, &self.root, None)?;
        Ok(server.count_below(&self.root, None)? - permanent)
    }
}

/// The permanent nodes: those of records, and the token base.
fn count_permanent(server: &ZooKeeper, root: &str, user: Option<&str>) -> Result<u64> {
    let records = server.count_children(root, "%record", user)?;
    Ok(records + server.count_children(root, "%base", user)?)
}

fn user(password: &str) -> String {
    format!("lock:{password}")
}

struct Node {
    zookeeper: Arc<Mutex<ZooKeeper>>,
    port: u16,
    root: String,
    proxy: Option<Proxy>,
}

impl Node {
    fn zookeeper(&self) -> MutexGuard<'_, ZooKeeper> {
        self.zookeeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn url_at(&self, port: u16, password: &str) -> String {
        let (user, root) = (user(password), &self.root);
        format!("zookeeper://{user}@127.0.0.1:{port}{root}")
    }
}

#[async_trait]
impl Store for Node {
    fn url(&self) -> String {
        self.url_at(self.port, PASSWORD)
    }

    async fn leftovers(&self) -> Result<u64> {
        let (zookeeper, user) = (self.zookeeper(), Some(user(PASSWORD)));
        let permanent = count_permanent(&zookeeper, &self.root, user.as_deref())?;
        Ok(zookeeper.count_below(&self.root, user.as_deref())? - permanent)
    }

    fn server(&self) -> Option<&dyn Server> {
        self.proxy.as_ref().map(|_| self as &dyn Server)
    }
}

impl Server for Node {
    fn pause(&self) -> Result<()> {
        self.zookeeper().pause()
    }

    fn resume(&self) -> Result<()> {
        self.zookeeper().resume()
    }

    fn kill9(&self) {
        self.zookeeper().kill9();
    }

    fn restart(&self) -> Result<()> {
        self.zookeeper().restart()
    }

    fn restart_empty(&self) -> Result<()> {
        let mut zookeeper = self.zookeeper();
        zookeeper.restart_empty()?;
        zookeeper.make_root(&self.root, Some(&user(PASSWORD)))
    }

    fn erase(&self) -> Result<()> {
        self.zookeeper()
            .erase_below(&self.root, Some(&user(PASSWORD)))
    }

    fn proxy(&self) -> &Proxy {
        self.proxy
            .as_ref()
            .expect("a store with a server has a proxy")
    }

    fn proxied_url(&self) -> String {
        self.url_at(self.proxy().port(), PASSWORD)
    }

    fn password_urls(&self) -> Option<Passwords> {
        Some(Passwords {
            right: PASSWORD.to_owned(),
            right_url: self.url_at(self.port, PASSWORD),
            wrong: WRONG.to_owned(),
            wrong_url: self.url_at(self.port, WRONG),
        })
    }
}
