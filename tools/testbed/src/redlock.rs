//! Independent redis-servers for Redlock.

use std::sync::Arc;

use crate::clock_shim::ClockShim;
use crate::failure::{Failure, Result};
use crate::redis::{Redis, RedisBuilder};

/// Independent servers that vote at once (see [`seen_long_ago`]); killed when dropped.
#[derive(Debug)]
pub struct Redlock {
    nodes: Vec<Redis>,
    clocks: Vec<Arc<ClockShim>>,
}

impl Redlock {
    /// Starts `count` servers without passwords.
    ///
    /// # Errors
    /// If redis-server is not installed, or one of them does not start.
    pub fn start(count: usize) -> Result<Self> {
        Self::start_each(count, |_| Redis::builder())
    }

    /// Starts `count` servers, each with its own setup.
    ///
    /// # Errors
    /// As [`Redlock::start`].
    pub fn start_each(count: usize, builder: impl Fn(usize) -> RedisBuilder) -> Result<Self> {
        let nodes: Result<Vec<Redis>> = (0..count).map(|node| builder(node).start()).collect();
        let (nodes, clocks) = (nodes?, Vec::new());
        for node in &nodes {
            seen_long_ago(node, 0)?;
        }
        Ok(Self { nodes, clocks })
    }

    /// Starts `count` servers, each with a clock of its own that can be set.
    ///
    /// # Errors
    /// As [`Redlock::start`], or if a clock cannot be made.
    pub fn start_with_clocks(count: usize) -> Result<Self> {
        let clocks: Vec<_> = (0..count)
            .map(|_| ClockShim::new())
            .collect::<Result<_>>()?;
        let started = Self::start_each(count, |node| Redis::builder().clock(&clocks[node]))?;
        Ok(Self { clocks, ..started })
    }

    /// The store's URL, without options.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.nodes.iter().map(Redis::port))
    }

    /// The same store's URL through other ports, one for each node, such as those of proxies.
    #[must_use]
    pub fn url_at(&self, ports: impl IntoIterator<Item = u16>) -> String {
        let hosts = self.nodes.iter().zip(ports);
        let hosts = hosts.map(|(node, port)| node.url_at(port).replace("redis://", ""));
        format!("redlock://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// The servers.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The servers, mutable, for a restart.
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }

    /// Their clocks; empty without [clocks of their own](Redlock::start_with_clocks).
    #[must_use]
    pub fn clocks(&self) -> &[Arc<ClockShim>] {
        &self.clocks
    }
}

/// Lets a server vote at once. By default the engine does not let a new server vote for half a minute. It stores on the server
/// when it first saw that server. This sets that time to long ago.
///
/// # Errors
/// If the server does not answer.
pub fn seen_long_ago(node: &Redis, database: u32) -> Result<()> {
    let info: String = node.command(&["INFO", "server"])?;
    let run = info
        .lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .ok_or_else(|| Failure::new("a redis-server without a run id"))?;
    let since = format!("{run}:1");
    // A day before the machine started.
    let watch = format!("{}=-86400000,", machine()?);
    let noted = node.connect().and_then(|mut connection| {
        let mut commands = redis::pipe();
        commands.cmd("SELECT").arg(database);
        commands
            .cmd("HSET")
            .arg("fencelock:redlock")
            .arg("since")
            .arg(since)
            .arg("watch")
            .arg(&watch);
        commands.query::<()>(&mut connection)
    });
    noted.map_err(Failure::to("note since when a server is seen"))
}

/// How clients identify this machine: its boot id, and the time namespace.
fn machine() -> Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot = boot.map_err(Failure::to("read the machine's boot id"))?;
    let namespace = std::fs::read_link("/proc/self/ns/time");
    let namespace = namespace.map_or_else(|_| String::new(), |link| link.display().to_string());
    let both = boot + &namespace;
    Ok(both.chars().filter(char::is_ascii_hexdigit).collect())
}
