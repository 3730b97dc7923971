//! An ensemble of three servers whose links can be cut.

use std::time::{Duration, Instant};

use super::builder::ZooKeeperBuilder;
use super::server::{START, ZooKeeper};
use crate::failure::{Failure, Result};
use crate::port::Port;
use crate::proxy::{Beginning, Proxy};

impl ZooKeeperBuilder {
    /// Starts three servers, and waits until they have a leader.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn ensemble(self) -> Result<Ensemble> {
        Ensemble::start(self)
    }
}

/// Three servers. Each reaches the others through proxies of its own.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<ZooKeeper>,
    links: Vec<Link>,
    /// The ports on which the servers listen to each other.
    _ports: Vec<[Port; 2]>,
}

/// The connections from one server to another.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    proxies: [Proxy; 2],
}

/// A follower may connect before its leader listens. Without a proxy it would try again. But a connection that the
/// proxy accepts and resets ends the follower's attempt, and with it the election. So the proxy tries again instead.
const QUORUM: Beginning = Beginning {
    opening: None,
    patience: Duration::from_millis(500),
};

const ELECTION: Beginning = Beginning {
    opening: Some(without_address),
    patience: Duration::ZERO,
};

/// Removes the address from the first message that one server sends to another for elections. The message contains a
/// number of the protocol's version, the server's id, the length of its address, and the address. Servers with higher
/// ids connect back to that address, and so bypass the proxies. Old servers send no address; then the others use the
/// address in their own configuration.
fn without_address(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    let version: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
    if i64::from_be_bytes(version) >= 0 {
        return Some((8, version.to_vec()));
    }
    let id = bytes.get(8..16)?;
    let length: [u8; 4] = bytes.get(16..20)?.try_into().ok()?;
    let end = 20 + usize::try_from(u32::from_be_bytes(length)).ok()?;
    (bytes.len() >= end).then(|| (end, id.to_vec()))
}

impl Ensemble {
    fn start(builder: ZooKeeperBuilder) -> Result<Self> {
        // Without fsync, a follower that lacks a transaction of its new leader confirms it before the leader does. A
        // leader of version 3.8.0 takes that for a follower of another epoch, and there is never a leader again
        // (ZOOKEEPER-4685).
        let builder = builder.flag("-Dzookeeper.forceSync=yes");
        let mut ports = Vec::new();
        for _ in 0..3 {
            ports.push([Port::free()?, Port::free()?]);
        }
        let mut links = Vec::new();
        let mut servers = Vec::new();
        for from in 0..3 {
            let mut lines = String::new();
            for (to, [quorum, election]) in ports.iter().enumerate() {
                let (quorum, election) = if to == from {
                    (quorum.number(), election.number())
                } else {
                    let proxies = [
                        Proxy::start_with(quorum.number(), QUORUM)?,
                        Proxy::start_with(election.number(), ELECTION)?,
                    ];
                    let numbers = (proxies[0].port(), proxies[1].port());
                    links.push(Link { from, to, proxies });
                    numbers
                };
                lines += &format!("server.{}=127.0.0.1:{quorum}:{election}\n", to + 1);
            }
            servers.push(builder.clone().launch(Some(from + 1), &lines)?);
        }
        let ensemble = Self {
            servers,
            links,
            _ports: ports,
        };
        for server in &ensemble.servers {
            server.await_answer()?;
        }
        Ok(ensemble)
    }

    /// The store's URL with all three servers, without a chroot.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self
            .servers
            .iter()
            .map(|server| format!("127.0.0.1:{}", server.port()))
            .collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// One of the three servers.
    #[must_use]
    pub fn server(&self, at: usize) -> &ZooKeeper {
        &self.servers[at]
    }

    /// One of the three servers, mutable, for a restart.
    pub fn server_mut(&mut self, at: usize) -> &mut ZooKeeper {
        &mut self.servers[at]
    }

    /// The leader. Waits until there is one.
    ///
    /// # Errors
    /// If there is none after a minute.
    pub fn leader(&self) -> Result<usize> {
        self.leader_but(None)
    }

    /// The leader, if it is not `but`. Waits until there is one.
    ///
    /// # Errors
    /// If there is none after a minute.
    pub fn leader_but(&self, but: Option<usize>) -> Result<usize> {
        let begin = Instant::now();
        loop {
            let leads = |at: &usize| {
                Some(*at) != but && self.servers[*at].mode().as_deref() == Some("leader")
            };
            if let Some(leader) = (0..self.servers.len()).find(leads) {
                return Ok(leader);
            }
            if begin.elapsed() > START {
                return Err(Failure::new("three zookeeper servers have no leader"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts one server off from the other two. Clients still reach it.
    ///
    /// # Errors
    /// If a port cannot be switched.
    pub fn isolate(&self, server: usize) -> Result<()> {
        for proxy in self.links_of(server) {
            proxy.refuse(true)?;
            proxy.reset();
        }
        Ok(())
    }

    /// Ends the isolation of a server.
    ///
    /// # Errors
    /// If a port cannot be switched.
    pub fn join(&self, server: usize) -> Result<()> {
        self.links_of(server)
            .try_for_each(|proxy| proxy.refuse(false))
    }

    fn links_of(&self, server: usize) -> impl Iterator<Item = &Proxy> {
        let concerned = move |link: &&Link| link.from == server || link.to == server;
        self.links
            .iter()
            .filter(concerned)
            .flat_map(|link| &link.proxies)
    }

    /// SIGKILL for one of the servers.
    pub fn kill9(&self, server: usize) {
        self.servers[server].kill9();
    }

    /// Starts one of the servers again, and waits until it serves.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn restart(&mut self, server: usize) -> Result<()> {
        self.servers[server].restart()
    }
}
