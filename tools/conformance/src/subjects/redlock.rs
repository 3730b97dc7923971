//! Redlock on five Redis servers. Cases without faults share five servers, each in a database of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use async_trait::async_trait;
use fencelock_testbed::{Failure, Proxy, Redis, Result, seen_long_ago};

use crate::subject::{Passwords, Server, Store, Subject};

const NODES: usize = 5;
const DATABASES: u32 = 512;
const PASSWORD: &str = "hunter2-right";
const WRONG: &str = "hunter2-wrong";

/// Whether a key is permanent: the number of such keys does not depend on the number of locks.
const MEMORY: &str = "fencelock:redlock";

/// The five servers that cases share, as long as one of them runs.
pub(crate) struct FiveNodes {
    shared: Mutex<Weak<Vec<Redis>>>,
    databases: AtomicU32,
}

pub(crate) static FIVE_NODES: FiveNodes = FiveNodes {
    shared: Mutex::new(Weak::new()),
    databases: AtomicU32::new(0),
};

fn start() -> Result<Vec<Redis>> {
    let nodes = (0..NODES).map(|_| {
        Redis::builder()
            .config("databases", &DATABASES.to_string())
            .password(PASSWORD)
            .start()
    });
    nodes.collect()
}

fn url(ports: impl IntoIterator<Item = u16>, password: &str, database: u32) -> String {
    let hosts = ports.into_iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts: Vec<String> = hosts.collect();
    // While other tests run on the machine, a node may need more than 50 ms to answer.
    let options = "node-timeout=500ms&max-ttl=1h";
    format!(
        "redlock://:{password}@{}/{database}?{options}",
        hosts.join(",")
    )
}

#[async_trait]
impl Subject for FiveNodes {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn has_server(&self) -> bool {
        true
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        if server {
            let nodes = start()?;
            for node in &nodes {
                seen_long_ago(node, 0)?;
            }
            let ports: Vec<u16> = nodes.iter().map(Redis::port).collect();
            return Ok(Box::new(Own {
                proxy: Proxy::start_all(&ports)?,
                ports,
                nodes: Mutex::new(nodes),
            }));
        }
        let nodes = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            match shared.upgrade() {
                Some(nodes) => nodes,
                None => {
                    let nodes = Arc::new(start()?);
                    *shared = Arc::downgrade(&nodes);
                    nodes
                }
            }
        };
        let database = self.databases.fetch_add(1, Ordering::Relaxed) % DATABASES;
        for node in nodes.iter() {
            seen_long_ago(node, database)?;
        }
        Ok(Box::new(Shared { nodes, database }))
    }
}

/// The number of keys in a database, the maximum over all nodes.
fn leftovers(nodes: &[Redis], database: u32) -> Result<u64> {
    let mut most = 0;
    for node in nodes {
        let mut connection = node
            .connect()
            .map_err(|error| Failure::new(error.to_string()))?;
        let mut commands = redis::pipe();
        commands.cmd("SELECT").arg(database).ignore();
        commands.cmd("KEYS").arg("*");
        let keys: std::result::Result<(Vec<String>,), _> = commands.query(&mut connection);
        let (keys,) = keys.map_err(|error| Failure::new(error.to_string()))?;
        most = most.max(keys.iter().filter(|key| *key != MEMORY).count());
    }
    Ok(most as u64)
}

struct Shared {
    nodes: Arc<Vec<Redis>>,
    database: u32,
}

#[async_trait]
impl Store for Shared {
    fn url(&self) -> String {
        url(self.nodes.iter().map(Redis::port), PASSWORD, self.database)
    }

    async fn leftovers(&self) -> Result<u64> {
        leftovers(&self.nodes, self.database)
    }
}

struct Own {
    nodes: Mutex<Vec<Redis>>,
    ports: Vec<u16>,
    proxy: Proxy,
}

impl Own {
    fn nodes(&self) -> MutexGuard<'_, Vec<Redis>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn each(&self, harm: impl Fn(&mut Redis) -> Result<()> + Sync) -> Result<()> {
        let mut nodes = self.nodes();
        thread::scope(|scope| {
            let harm = &harm;
            let all = nodes.iter_mut().map(|node| scope.spawn(move || harm(node)));
            let all: Vec<_> = all.collect();
            all.into_iter().try_for_each(|one| {
                one.join()
                    .unwrap_or_else(|_| Err(Failure::new("it panicked")))
            })
        })
    }
}

#[async_trait]
impl Store for Own {
    fn url(&self) -> String {
        url(self.ports.iter().copied(), PASSWORD, 0)
    }

    async fn leftovers(&self) -> Result<u64> {
        leftovers(&self.nodes(), 0)
    }

    fn server(&self) -> Option<&dyn Server> {
        Some(self)
    }
}

impl Server for Own {
    fn pause(&self) -> Result<()> {
        self.each(|node| node.pause())
    }

    fn resume(&self) -> Result<()> {
        self.each(|node| node.resume())
    }

    fn kill9(&self) {
        // Cannot fail.
        let _ = self.each(|node| {
            node.kill9();
            Ok(())
        });
    }

    fn restart(&self) -> Result<()> {
        self.restart_empty()
    }

    fn restart_empty(&self) -> Result<()> {
        self.each(|node| {
            node.restart_empty()?;
            seen_long_ago(node, 0)
        })
    }

    fn erase(&self) -> Result<()> {
        self.each(|node| {
            node.command::<()>(&["FLUSHALL"])?;
            seen_long_ago(node, 0)
        })
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn proxied_url(&self) -> String {
        url(self.proxy.ports(), PASSWORD, 0)
    }

    fn password_urls(&self) -> Option<Passwords> {
        let url = |password: &str| {
            let hosts = self.ports.iter().map(|port| format!("127.0.0.1:{port}"));
            format!(
                "redlock://:{password}@{}",
                hosts.collect::<Vec<_>>().join(",")
            )
        };
        Some(Passwords {
            right: PASSWORD.to_owned(),
            right_url: url(PASSWORD),
            wrong: WRONG.to_owned(),
            wrong_url: url(WRONG),
        })
    }
}
