//! A Redis master, its replicas, and the Sentinels that monitor them.

use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use crate::redis::Redis;

/// The Sentinels' name of the master.
const NAME: &str = "main";

/// How long discovery, a fail-over or a synchronisation may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The setup of a [`RedisSentinel`]; see [`RedisSentinel::builder`].
#[derive(Debug)]
#[must_use = "nothing is started before `start`"]
pub struct RedisSentinelBuilder {
    down_after: Duration,
    password: String,
    fsync: Option<String>,
    tls: bool,
}

impl RedisSentinelBuilder {
    /// Servers and Sentinels also listen with TLS; see [`RedisBuilder::tls`](crate::RedisBuilder::tls). They do not use
    /// TLS with each other.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// How long the master may be silent before it counts as down. Half a second by default.
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = time;
        self
    }

    /// The password of the servers, and of the Sentinels.
    pub fn password(mut self, password: &str) -> Self {
        self.password = password.to_owned();
        self
    }

    /// The servers keep append-only files.
    pub fn append_only(mut self, fsync: &str) -> Self {
        self.fsync = Some(fsync.to_owned());
        self
    }

    /// Starts one master, two replicas and three Sentinels, and waits until they all know each other: about two
    /// seconds.
    ///
    /// # Errors
    /// If redis-server is not installed, or one of them does not start.
    pub fn start(self) -> Result<RedisSentinel> {
        let mut servers: Vec<Redis> = Vec::new();
        for _ in 0..3 {
            let mut builder = Redis::builder()
                .password(&self.password)
                .config("masterauth", &self.password)
                .config("repl-diskless-sync-delay", "0")
                .config("repl-ping-replica-period", "1");
            if let Some(fsync) = &self.fsync {
                builder = builder.append_only(fsync);
            }
            if self.tls {
                builder = builder.tls();
            }
            servers.push(builder.start()?);
        }
        let master = servers[0].port().to_string();
        for replica in &servers[1..] {
            replica.command::<()>(&["REPLICAOF", "127.0.0.1", &master])?;
        }
        let millis = self.down_after.as_millis().to_string();
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let monitor = format!("monitor {NAME} 127.0.0.1 {master} 2");
            let builder = match self.tls {
                true => Redis::builder().tls(),
                false => Redis::builder(),
            };
            let builder = builder
                .sentinel()
                .password(&self.password)
                .config("sentinel", &monitor)
                .config("sentinel", &format!("auth-pass {NAME} {}", self.password))
                .config("sentinel", &format!("sentinel-pass {}", self.password))
                .config(
                    "sentinel",
                    &format!("down-after-milliseconds {NAME} {millis}"),
                )
                .config("sentinel", &format!("failover-timeout {NAME} 3000"))
                .config("sentinel", &format!("parallel-syncs {NAME} 2"));
            sentinels.push(builder.start()?);
        }
        let group = RedisSentinel {
            servers,
            sentinels,
            password: self.password,
        };
        group.await_ready()?;
        Ok(group)
    }
}

/// A master, two replicas and three Sentinels; killed when dropped.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
    password: String,
}

impl RedisSentinel {
    /// A group with options. By default it keeps no files and has a password.
    pub fn builder() -> RedisSentinelBuilder {
        RedisSentinelBuilder {
            down_after: Duration::from_millis(500),
            password: "testbed".to_owned(),
            fsync: None,
            tls: false,
        }
    }

    /// As [`RedisSentinelBuilder::start`].
    ///
    /// # Errors
    /// As [`RedisSentinelBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// The store's URL. The Sentinels have the password of the servers.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_with(&self.password)
    }

    /// The same with another password for the servers.
    #[must_use]
    pub fn url_with(&self, password: &str) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
            .collect();
        let file = self.password_file();
        format!(
            "redis+sentinel://:{password}@{}/{NAME}?sentinel-password-file={file}",
            hosts.join(",")
        )
    }

    /// A file with the Sentinels' password.
    #[must_use]
    pub fn password_file(&self) -> String {
        let path = self.sentinels[0].dir().join("password");
        // A failure shows later, when the file is read.
        drop(std::fs::write(&path, &self.password));
        path.to_string_lossy().into_owned()
    }

    /// The servers. The first is the initial master.
    #[must_use]
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// The servers, mutable, for a restart.
    pub fn servers_mut(&mut self) -> &mut [Redis] {
        &mut self.servers
    }

    /// The Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// The master, according to most of the Sentinels.
    ///
    /// # Errors
    /// If they do not answer, or disagree.
    pub fn master(&self) -> Result<usize> {
        let mut votes = vec![0; self.servers.len()];
        for sentinel in &self.sentinels {
            let get = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
            let (_, port): (String, u16) = sentinel.command(&get)?;
            if let Some(at) = self.servers.iter().position(|server| server.port() == port) {
                votes[at] += 1;
            }
        }
        let most = votes
            .iter()
            .position(|votes| *votes > self.sentinels.len() / 2);
        most.ok_or_else(|| Failure::new(format!("the Sentinels disagree: {votes:?}")))
    }

    /// Waits until another server than `before` is the master and answers as one.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn await_failover(&self, before: usize) -> Result<usize> {
        until("a fail-over", || {
            let master = self.master()?;
            let role = || -> Result<String> {
                let info: String = self.servers[master].command(&["INFO", "replication"])?;
                Ok(info)
            };
            if master != before && role()?.contains("role:master") {
                return Ok(master);
            }
            Err(Failure::new(format!("server {master} is the master")))
        })
    }

    /// Waits until both replicas are in sync with the master and every Sentinel knows all servers.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn await_ready(&self) -> Result<()> {
        until("replicas and Sentinels", || {
            let master = self.master()?;
            let info: String = self.servers[master].command(&["INFO", "replication"])?;
            let online = info.matches("state=online").count();
            if online + 1 != self.servers.len() {
                return Err(Failure::new(format!("{online} replicas are online")));
            }
            for sentinel in &self.sentinels {
                let about: std::collections::HashMap<String, String> =
                    sentinel.command(&["SENTINEL", "MASTER", NAME])?;
                let get = |field: &str| about.get(field).map_or("", String::as_str);
                let known = (get("num-slaves"), get("num-other-sentinels"), get("flags"));
                if known != ("2", "2", "master") {
                    return Err(Failure::new(format!("a Sentinel knows {known:?}")));
                }
            }
            Ok(())
        })
    }

    /// Cuts the replicas off from the master, which continues to run. They may still be promoted.
    ///
    /// # Errors
    /// If one of them does not answer.
    pub fn cut_replication(&self) -> Result<()> {
        let master = self.master()?;
        for (at, server) in self.servers.iter().enumerate() {
            if at != master {
                server.command::<()>(&["CONFIG", "SET", "masterauth", "cut"])?;
            }
        }
        self.servers[master].command::<i64>(&["CLIENT", "KILL", "TYPE", "replica"])?;
        until("the replicas are gone", || {
            let info: String = self.servers[master].command(&["INFO", "replication"])?;
            match info.contains("connected_slaves:0") {
                true => Ok(()),
                false => Err(Failure::new(info)),
            }
        })
    }

    /// Ends [`RedisSentinel::cut_replication`] on all running servers.
    pub fn mend_replication(&self) {
        for server in &self.servers {
            // A stopped server needs no repair.
            drop(server.command::<()>(&["CONFIG", "SET", "masterauth", &self.password]));
        }
    }

    /// Starts a killed server again, as a replica of the present master.
    ///
    /// # Errors
    /// If it does not start.
    pub fn rejoin(&mut self, at: usize) -> Result<()> {
        let master = self.servers[self.master()?].port().to_string();
        self.servers[at].restart()?;
        // Sentinels make servers store their configuration, including the change of `cut_replication`.
        self.mend_replication();
        self.servers[at].command::<()>(&["REPLICAOF", "127.0.0.1", &master])
    }
}

/// Polls until a condition is true.
pub(crate) fn until<T>(what: &str, mut done: impl FnMut() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    loop {
        match done() {
            Ok(done) => return Ok(done),
            Err(error) if begin.elapsed() > PATIENCE => {
                return Err(Failure::new(format!(
                    "timed out waiting for {what}: {error}"
                )));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
