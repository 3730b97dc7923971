//! etcd: a server, or a cluster of three, of its own for each case.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_testbed::{Etcd, Proxy, Result};

use crate::subject::{Passwords, Server, Store, Subject};

/// A user with the documented rights, and a password, so that the cases notice if it is printed.
const USER: &str = "ann";
const PASSWORD: &str = "hunter2-right";
const WRONG: &str = "hunter2-wrong";

pub(crate) struct OneEtcd;

pub(crate) struct ThreeEtcds;

#[async_trait]
impl Subject for OneEtcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn has_server(&self) -> bool {
        true
    }

    fn claim_window(&self) -> Duration {
        WINDOW
    }

    async fn open(&self, _server: bool) -> Result<Box<dyn Store>> {
        open(1)
    }
}

#[async_trait]
impl Subject for ThreeEtcds {
    fn name(&self) -> &'static str {
        "etcd-cluster"
    }

    fn has_server(&self) -> bool {
        true
    }

    fn claim_window(&self) -> Duration {
        WINDOW
    }

    async fn open(&self, _server: bool) -> Result<Box<dyn Store>> {
        open(3)
    }
}

/// The claim window of five seconds, and the time that a server needs to notice the end of a lease.
const WINDOW: Duration = Duration::from_secs(6);

fn open(members: usize) -> Result<Box<dyn Store>> {
    let etcd = Etcd::cluster(members).user(USER, PASSWORD).start()?;
    Ok(Box::new(Cluster {
        proxy: Proxy::start(etcd.port(0))?,
        etcd,
    }))
}

struct Cluster {
    etcd: Etcd,
    /// The proxy before its first member.
    proxy: Proxy,
}

impl Cluster {
    fn all(&self, signal: impl Fn(usize) -> Result<()>) -> Result<()> {
        (0..self.etcd.size()).try_for_each(signal)
    }
}

#[async_trait]
impl Store for Cluster {
    fn url(&self) -> String {
        self.etcd.url()
    }

    async fn leftovers(&self) -> Result<u64> {
        let locks = self.etcd.keys("fencelock/lock/")?;
        Ok(locks + self.etcd.keys("fencelock/mail/")?)
    }

    fn server(&self) -> Option<&dyn Server> {
        Some(self)
    }
}

impl Server for Cluster {
    fn pause(&self) -> Result<()> {
        self.all(|member| self.etcd.pause(member))
    }

    fn resume(&self) -> Result<()> {
        self.all(|member| self.etcd.resume(member))
    }

    fn kill9(&self) {
        self.etcd.kill9_all();
    }

    fn restart(&self) -> Result<()> {
        self.etcd.restart()
    }

    fn restart_empty(&self) -> Result<()> {
        self.etcd.restart_empty()
    }

    fn erase(&self) -> Result<()> {
        self.etcd.erase()
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn proxied_url(&self) -> String {
        self.etcd.url_at(&[self.proxy.port()])
    }

    fn password_urls(&self) -> Option<Passwords> {
        let url = |password: &str| {
            let port = self.etcd.port(0);
            format!("etcd://{USER}:{password}@127.0.0.1:{port}")
        };
        Some(Passwords {
            right: PASSWORD.to_owned(),
            right_url: url(PASSWORD),
            wrong: WRONG.to_owned(),
            wrong_url: url(WRONG),
        })
    }
}
