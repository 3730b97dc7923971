//! One Redis: a server of its own for each case, which takes 10 ms to start.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fencelock_testbed::{Proxy, Redis, Result};

use crate::subject::{Passwords, Server, Store, Subject};

/// The password of every server, so that the cases notice if it is printed.
const PASSWORD: &str = "hunter2-right";
const WRONG: &str = "hunter2-wrong";

/// The keys whose number does not depend on the number of locks.
const PERMANENT: [&str; 2] = ["fencelock:counter", "fencelock:record"];

/// How long a request may take: longer than a busy machine stands still. A case with a server of its own stops it for
/// longer than this.
pub(super) fn response_timeout(server: bool) -> &'static str {
    match server {
        true => "response-timeout=1500ms",
        false => "response-timeout=5s",
    }
}

pub(crate) struct OneRedis;

#[async_trait]
impl Subject for OneRedis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn has_server(&self) -> bool {
        true
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        let builder = Redis::builder();
        // With an append-only file if the case kills the server; otherwise with the default configuration.
        let builder = if server {
            builder.append_only("always")
        } else {
            builder
        };
        let redis = builder.password(PASSWORD).start()?;
        Ok(Box::new(Node {
            proxy: Proxy::start(redis.port())?,
            port: redis.port(),
            redis: Mutex::new(redis),
            timeout: response_timeout(server),
        }))
    }
}

struct Node {
    redis: Mutex<Redis>,
    port: u16,
    proxy: Proxy,
    timeout: &'static str,
}

impl Node {
    fn redis(&self) -> MutexGuard<'_, Redis> {
        self.redis.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for Node {
    fn url(&self) -> String {
        format!("{}?{}", self.redis().url(), self.timeout)
    }

    async fn leftovers(&self) -> Result<u64> {
        let keys: Vec<String> = self.redis().command(&["KEYS", "*"])?;
        Ok(keys
            .iter()
            .filter(|key| !PERMANENT.contains(&key.as_str()))
            .count() as u64)
    }

    fn server(&self) -> Option<&dyn Server> {
        Some(self)
    }
}

impl Server for Node {
    fn pause(&self) -> Result<()> {
        self.redis().pause()
    }

    fn resume(&self) -> Result<()> {
        self.redis().resume()
    }

    fn kill9(&self) {
        self.redis().kill9();
    }

    fn restart(&self) -> Result<()> {
        self.redis().restart()
    }

    fn restart_empty(&self) -> Result<()> {
        self.redis().restart_empty()
    }

    fn erase(&self) -> Result<()> {
        self.redis().command(&["FLUSHALL"])
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn proxied_url(&self) -> String {
        let url = self.redis().url_at(self.proxy.port());
        format!("{url}?{}", self.timeout)
    }

    fn password_urls(&self) -> Option<Passwords> {
        let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", self.port);
        Some(Passwords {
            right: PASSWORD.to_owned(),
            right_url: url(PASSWORD),
            wrong: WRONG.to_owned(),
            wrong_url: url(WRONG),
        })
    }
}
