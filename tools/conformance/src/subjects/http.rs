//! The lock service: two replicas, each a real HTTP server, on the store of another subject. Every request of every
//! client goes to a random replica, or each connection goes to the next replica, as by a load balancer.
//!
//! Where the server of a case is the store's, the store has the faults, and the proxy is between clients and replicas.
//! [`OneReplica`] is the other way round: its server is a replica in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock::engine::{ClaimId, ClaimIds, Engine};
use fencelock_server::{BearerToken, Config, Grant, Principal, Right, Service, TokenHash};
use fencelock_testbed::{Dir, Failure, Port, Process, Proxy, Result, Worker};
use fencelock_wire::ClaimKey;

use crate::subject::{Passwords, Server, Store, Subject};
use crate::subjects::{etcd, memory, mysql, postgres, redis, redlock, sqlite, zookeeper};

/// Two replicas in this process.
pub(crate) struct TwoReplicas {
    name: &'static str,
    behind: &'static dyn Subject,
    /// Whether clients know one address alone, that of a load balancer.
    balanced: bool,
}

impl TwoReplicas {
    const fn before(name: &'static str, behind: &'static dyn Subject) -> Self {
        let balanced = false;
        Self {
            name,
            behind,
            balanced,
        }
    }

    const fn balanced(mut self) -> Self {
        self.balanced = true;
        self
    }
}

pub(crate) static MEMORY: TwoReplicas = TwoReplicas::before("http-memory", &memory::InMemory);
pub(crate) static REDIS: TwoReplicas = TwoReplicas::before("http-redis", &redis::OneRedis);
pub(crate) static BALANCED: TwoReplicas =
    TwoReplicas::before("http-balanced", &redis::OneRedis).balanced();
pub(crate) static SQLITE: TwoReplicas = TwoReplicas::before("http-sqlite", &sqlite::InFile);
pub(crate) static POSTGRES: TwoReplicas = TwoReplicas::before("http-postgres", &postgres::LEASE);
pub(crate) static MYSQL: TwoReplicas = TwoReplicas::before("http-mysql", &mysql::LEASE);
// On these stores a claim belongs to the replica that took it.
pub(crate) static ETCD: TwoReplicas = TwoReplicas::before("http-etcd", &etcd::OneEtcd);
pub(crate) static ZOOKEEPER: TwoReplicas =
    TwoReplicas::before("http-zookeeper", &zookeeper::OneZooKeeper);
pub(crate) static REDLOCK: TwoReplicas = TwoReplicas::before("http-redlock", &redlock::FIVE_NODES);

#[async_trait]
impl Subject for TwoReplicas {
    fn name(&self) -> &'static str {
        self.name
    }

    fn has_server(&self) -> bool {
        self.behind.has_server()
    }

    fn claim_window(&self) -> Duration {
        self.behind.claim_window()
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        let store = self.behind.open(server).await?;
        let tokens = Tokens::new()?;
        let replicas = [
            replica(&*store, &tokens).await?,
            replica(&*store, &tokens).await?,
        ];
        let ports: Vec<u16> = replicas
            .iter()
            .map(|replica| replica.address().port())
            .collect();
        let balancer = self.balanced.then(|| Proxy::balance(&ports)).transpose()?;
        let ports = match &balancer {
            Some(balancer) => vec![balancer.port()],
            None => ports,
        };
        let proxy = server.then(|| Proxy::start_all(&ports)).transpose()?;
        Ok(Box::new(Served {
            claims: Claims::new()?,
            _replicas: replicas,
            _balancer: balancer,
            ports,
            proxy,
            tokens,
            store,
        }))
    }
}

/// Files with a token that the replicas know, and with one that they do not know.
struct Tokens {
    right: BearerToken,
    wrong: BearerToken,
    dir: Dir,
}

impl Tokens {
    fn new() -> Result<Self> {
        let draw = || BearerToken::draw().map_err(|error| Failure::new(error.to_string()));
        let (right, wrong, dir) = (draw()?, draw()?, Dir::new("tokens")?);
        for (name, token) in [("right", &right), ("wrong", &wrong)] {
            let written = std::fs::write(dir.join(name), token.secret());
            written.map_err(|error| Failure::new(error.to_string()))?;
        }
        Ok(Self { right, wrong, dir })
    }

    /// Every client may do everything, but a wrong token is refused.
    fn config(&self) -> Config {
        let mut known = Principal::new("conformance");
        known.tokens.push(TokenHash {
            id: self.right.id().to_owned(),
            sha256: self.right.sha256(),
            not_after: None,
        });
        known.rights.push(Grant::on_all(Right::ALL));
        let mut config = Config::trusting();
        config.principals.push(known);
        config
    }
}

/// A replica on a store, with an engine of its own.
async fn replica(store: &dyn Store, tokens: &Tokens) -> Result<fencelock_server::Server> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(error.to_string());
    let engine = store.engine().await.map_err(|error| failed(&error))?;
    let service = Service::new(engine, tokens.config()).map_err(|error| failed(&error))?;
    let started = fencelock_server::Server::start(([127, 0, 0, 1], 0).into(), service);
    started.await.map_err(|error| failed(&error))
}

fn url(ports: impl IntoIterator<Item = u16>) -> String {
    let hosts = ports.into_iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    format!("fencelock+http://{hosts}?spread=request")
}

/// Claims for cases below the client. Every engine of the case can continue them.
struct Claims {
    key: ClaimKey,
    ids: ClaimIds,
}

impl Claims {
    fn new() -> Result<Self> {
        let key = ClaimKey::draw().map_err(|error| Failure::new(error.to_string()))?;
        let ids = ClaimIds::with(key.claim_ids());
        Ok(Self { key, ids })
    }

    async fn open(&self, url: &str) -> fencelock::Result<Arc<dyn Engine>> {
        let options = fencelock::http::Options::from(fencelock::StoreUrl::parse(url)?);
        fencelock::open_engine(options.claim_key(self.key.secret())).await
    }
}

/// A store behind two replicas.
struct Served {
    claims: Claims,
    /// The replicas. They end with the store.
    _replicas: [fencelock_server::Server; 2],
    _balancer: Option<Proxy>,
    /// Where clients reach them.
    ports: Vec<u16>,
    proxy: Option<Proxy>,
    tokens: Tokens,
    store: Box<dyn Store>,
}

impl Served {
    fn behind(&self) -> &dyn Server {
        let server = self.store.server();
        server.expect("a case with a server has the store's server")
    }
}

#[async_trait]
impl Store for Served {
    async fn open_at(&self, url: &str) -> fencelock::Result<Arc<dyn Engine>> {
        self.claims.open(url).await
    }

    fn claim_id(&self) -> ClaimId {
        self.claims.ids.next()
    }

    fn url(&self) -> String {
        url(self.ports.iter().copied())
    }

    async fn leftovers(&self) -> Result<u64> {
        self.store.leftovers().await
    }

    fn server(&self) -> Option<&dyn Server> {
        self.proxy.as_ref().map(|_| self as &dyn Server)
    }
}

/// The store's server, and a proxy between clients and replicas.
impl Server for Served {
    fn pause(&self) -> Result<()> {
        self.behind().pause()
    }

    fn resume(&self) -> Result<()> {
        self.behind().resume()
    }

    fn kill9(&self) {
        self.behind().kill9();
    }

    fn restart(&self) -> Result<()> {
        self.behind().restart()
    }

    fn restart_empty(&self) -> Result<()> {
        self.behind().restart_empty()
    }

    fn erase(&self) -> Result<()> {
        self.behind().erase()
    }

    fn proxy(&self) -> &Proxy {
        let proxy = self.proxy.as_ref();
        proxy.expect("a case with a server has a proxy")
    }

    fn proxied_url(&self) -> String {
        url(self.proxy().ports())
    }

    fn password_urls(&self) -> Option<Passwords> {
        let Tokens { right, wrong, dir } = &self.tokens;
        let url = |name| format!("{}&token-file={}", self.url(), dir.join(name));
        Some(Passwords {
            right: right.secret(),
            right_url: url("right"),
            wrong: wrong.secret(),
            wrong_url: url("wrong"),
        })
    }
}

/// A replica that is a process of its own: the server of each case. It is the only one that clients use.
#[derive(Debug)]
pub struct OneReplica {
    /// The binary `fencelock-conformance-worker`.
    worker: PathBuf,
}

impl OneReplica {
    /// Replicas run this binary.
    #[must_use]
    pub fn new(worker: &Path) -> Self {
        let worker = worker.to_owned();
        Self { worker }
    }
}

#[async_trait]
impl Subject for OneReplica {
    fn name(&self) -> &'static str {
        "http-replica"
    }

    fn has_server(&self) -> bool {
        true
    }

    fn claim_window(&self) -> Duration {
        redis::OneRedis.claim_window()
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        let store = redis::OneRedis.open(server).await?;
        let port = Port::free()?;
        let (number, url, worker) = (port.number(), store.url(), self.worker.clone());
        let process = tokio::task::spawn_blocking(move || start(&worker, &url, number));
        let process = process
            .await
            .map_err(|error| Failure::new(error.to_string()))??;
        Ok(Box::new(OwnProcess {
            claims: Claims::new()?,
            worker: self.worker.clone(),
            process: Mutex::new(process),
            proxy: Proxy::start(number)?,
            port,
            store,
        }))
    }
}

/// Starts a replica, and waits until it serves.
fn start(worker: &Path, store: &str, port: u16) -> Result<Worker> {
    let mut command = Command::new(worker);
    command.args(["--replica", store, &port.to_string()]);
    let mut worker = Worker::spawn(&command)?;
    let mut lines = worker.take_lines();
    match lines.blocking_recv() {
        Some(_) => Ok(worker),
        None => Err(Failure::new("the replica ended; its error is above")),
    }
}

struct OwnProcess {
    claims: Claims,
    worker: PathBuf,
    process: Mutex<Worker>,
    port: Port,
    proxy: Proxy,
    store: Box<dyn Store>,
}

impl OwnProcess {
    fn process(&self) -> MutexGuard<'_, Worker> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, act: impl FnOnce(&Process) -> Result<()>) -> Result<()> {
        act(self.process().process())
    }

    fn behind(&self) -> &dyn Server {
        self.store.server().expect("Redis is a server")
    }

    fn start_again(&self) -> Result<()> {
        let mut process = self.process();
        process.process().kill9();
        let (url, port) = (self.store.url(), self.port.number());
        // Waits for a line, which blocks.
        let started = std::thread::scope(|scope| {
            let started = scope.spawn(|| start(&self.worker, &url, port));
            started.join()
        });
        *process = started.map_err(|_| Failure::new("starting a replica panicked"))??;
        Ok(())
    }
}

#[async_trait]
impl Store for OwnProcess {
    async fn open_at(&self, url: &str) -> fencelock::Result<Arc<dyn Engine>> {
        self.claims.open(url).await
    }

    fn claim_id(&self) -> ClaimId {
        self.claims.ids.next()
    }

    fn url(&self) -> String {
        url([self.port.number()])
    }

    async fn leftovers(&self) -> Result<u64> {
        self.store.leftovers().await
    }

    fn server(&self) -> Option<&dyn Server> {
        Some(self)
    }
}

/// The replica. A replica has no data, so where data must be lost, the store loses it.
impl Server for OwnProcess {
    fn pause(&self) -> Result<()> {
        self.signal(Process::pause)
    }

    fn resume(&self) -> Result<()> {
        self.signal(Process::resume)
    }

    fn kill9(&self) {
        self.process().process().kill9();
    }

    fn restart(&self) -> Result<()> {
        self.start_again()
    }

    fn restart_empty(&self) -> Result<()> {
        self.behind().restart_empty()?;
        self.start_again()
    }

    fn erase(&self) -> Result<()> {
        self.behind().erase()
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn proxied_url(&self) -> String {
        url([self.proxy.port()])
    }
}
