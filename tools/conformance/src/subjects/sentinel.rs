//! A Redis master with two replicas and three Sentinels; both replicas confirm every grant.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_testbed::{Proxy, RedisSentinel, Result};

use crate::pool::{Lease, Pool};
use crate::subject::{Passwords, Server, Store, Subject};
use crate::subjects::redis::response_timeout;

/// The password of every server, so that the cases notice if it is printed.
const PASSWORD: &str = "hunter2-right";
const WRONG: &str = "hunter2-wrong";
/// Longer than every case. Fail-overs have tests of their own.
const DOWN_AFTER: Duration = Duration::from_secs(120);

static POOL: Pool<RedisSentinel> = Pool::new();

pub(crate) struct Sentinels;

#[async_trait]
impl Subject for Sentinels {
    fn name(&self) -> &'static str {
        "redis_sentinel"
    }

    fn has_server(&self) -> bool {
        true
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        let builder = RedisSentinel::builder()
            .password(PASSWORD)
            .down_after(DOWN_AFTER);
        if !server {
            let clean = |group: &RedisSentinel| group.servers()[0].command(&["FLUSHALL"]);
            let lease = POOL.lease(|| builder.start(), clean)?;
            return Ok(Box::new(Shared(lease)));
        }
        let group = builder.append_only("always").start()?;
        Ok(Box::new(Own {
            port: group.servers()[0].port(),
            proxy: Proxy::start(group.servers()[0].port())?,
            group: Mutex::new(group),
        }))
    }
}

fn url(group: &RedisSentinel, server: bool) -> String {
    format!("{}&replicas=2&{}", group.url(), response_timeout(server))
}

fn leftovers(group: &RedisSentinel) -> Result<u64> {
    let keys: Vec<String> = group.servers()[0].command(&["KEYS", "*"])?;
    let left = keys
        .iter()
        .filter(|key| *key != "fencelock:counter" && *key != "fencelock:record");
    Ok(left.count() as u64)
}

/// A group that cases use one after another.
struct Shared(Lease<RedisSentinel>);

#[async_trait]
impl Store for Shared {
    fn url(&self) -> String {
        url(&self.0, false)
    }

    async fn leftovers(&self) -> Result<u64> {
        leftovers(&self.0)
    }
}

/// A group for one case.
struct Own {
    group: Mutex<RedisSentinel>,
    port: u16,
    proxy: Proxy,
}

impl Own {
    fn group(&self) -> MutexGuard<'_, RedisSentinel> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for Own {
    fn url(&self) -> String {
        url(&self.group(), true)
    }

    async fn leftovers(&self) -> Result<u64> {
        leftovers(&self.group())
    }

    fn server(&self) -> Option<&dyn Server> {
        Some(self)
    }
}

/// The server of the case is the master.
impl Server for Own {
    fn pause(&self) -> Result<()> {
        self.group().servers()[0].pause()
    }

    fn resume(&self) -> Result<()> {
        self.group().servers()[0].resume()
    }

    fn kill9(&self) {
        self.group().servers()[0].kill9();
    }

    fn restart(&self) -> Result<()> {
        self.group().servers_mut()[0].restart()
    }

    fn restart_empty(&self) -> Result<()> {
        self.group().servers_mut()[0].restart_empty()
    }

    fn erase(&self) -> Result<()> {
        self.group().servers()[0].command(&["FLUSHALL"])
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn proxied_url(&self) -> String {
        let (port, proxy) = (self.port, self.proxy.port());
        format!(
            "{}&address-map=127.0.0.1:{port}=127.0.0.1:{proxy}",
            self.url()
        )
    }

    fn password_urls(&self) -> Option<Passwords> {
        let group = self.group();
        Some(Passwords {
            right: PASSWORD.to_owned(),
            right_url: group.url_with(PASSWORD),
            wrong: WRONG.to_owned(),
            wrong_url: group.url_with(WRONG),
        })
    }
}
