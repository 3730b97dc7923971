//! What a server says about itself, and what that means for a lock.

use std::collections::HashMap;
use std::time::Duration;

use fencelock_core::{Durability, LeaseKind, Limit, Order, Promises, Wake};
use redis::Value;

use crate::config::{Config, Servers};

/// `INFO`, as far as it may be read.
#[derive(Debug, Default)]
pub(crate) struct ServerInfo {
    fields: Option<HashMap<String, String>>,
    /// `appendfsync`, if `CONFIG GET` may be read.
    fsync: Option<String>,
}

impl ServerInfo {
    pub(crate) fn new(info: Option<&Value>, fsync: Option<&Value>) -> Self {
        let as_text = |value: &Value| match value {
            Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Value::SimpleString(text) => Some(text.clone()),
            _ => None,
        };
        let fsync = match fsync {
            Some(Value::Map(pairs)) => pairs.first().and_then(|(_, value)| as_text(value)),
            Some(Value::Array(items)) => items.get(1).and_then(as_text),
            _ => None,
        };
        let fields = read(info);
        Self { fields, fsync }
    }

    /// With `INFO commandstats` besides.
    pub(crate) fn with_stats(mut self, stats: Option<&Value>) -> Self {
        if let Some(fields) = &mut self.fields {
            fields.extend(read(stats).unwrap_or_default());
        }
        self
    }

    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        let fields = self.fields.as_ref()?;
        fields.get(field).map(String::as_str)
    }

    /// A number among them, if it may be read.
    pub(crate) fn count(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    fn number(&self, field: &str) -> u64 {
        self.get(field).and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    /// Changes with every start of the server.
    pub(crate) fn run_id(&self) -> Option<String> {
        self.get("run_id").map(str::to_owned)
    }

    /// For how long it has run, by its clock, which may have been set since; it may be up to a second less.
    pub(crate) fn uptime(&self) -> Option<Duration> {
        let seconds = self.get("uptime_in_seconds")?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// Where the master of this server is, if it is a replica.
    pub(crate) fn master(&self) -> Option<String> {
        if self.get("role") != Some("slave") {
            return None;
        }
        let (host, port) = (self.get("master_host")?, self.get("master_port")?);
        Some(format!("{host}:{port}"))
    }

    /// For how long it has run at least, whatever its clock says.
    pub(crate) fn ran(&self) -> Duration {
        crate::machine::ran(|name| self.get(name)?.parse().ok())
    }

    /// Why this engine cannot serve on such a server.
    pub(crate) fn unfit(&self, cluster: bool) -> Option<&'static str> {
        if self.get("redis_mode") == Some("sentinel") {
            return Some(
                "it is a Sentinel, not a server that holds data; write redis+sentinel://HOST:PORT/MASTER",
            );
        }
        match (self.get("cluster_enabled"), cluster) {
            (Some("1"), false) => {
                Some("it is a node of a Redis Cluster; write redis+cluster://HOST:PORT")
            }
            (Some("0"), true) => Some("it is no node of a Redis Cluster; write redis://HOST:PORT"),
            _ => None,
        }
    }

    /// What the server remembers by the settings that it has now.
    fn durability_now(&self) -> Durability {
        match (self.get("aof_enabled"), self.fsync.as_deref()) {
            (Some("1"), Some("always")) => Durability::Durable,
            (Some("1"), _) => Durability::Process,
            _ => Durability::Volatile,
        }
    }

    /// What it remembers by those that its next start finds, too.
    fn durability(&self) -> Durability {
        match self.durability_now() {
            now if self.settings_last() => now,
            Durability::Durable | Durability::Process if self.append_only_from_start() => {
                Durability::Process
            }
            _ => Durability::Volatile,
        }
    }

    /// What of the durability may be missing.
    fn forgets(&self) -> Option<Limit> {
        let (now, lasts) = (self.durability_now(), self.durability());
        let or = "or open the store with restart-delay=TTL, the longest ttl in use";
        let wanted = ["appendonly yes", "appendfsync always"];
        let limit = |what: &str, change: String| {
            let (what, change) = (what.to_owned(), format!("{change}; {or}"));
            Some(Limit { what, change })
        };
        match (now, lasts) {
            (_, Durability::Durable) => None,
            (Durability::Durable, Durability::Process) => limit(
                "the server flushes every grant to its disk until its next start only, as far as can be seen: appendfsync \
                 may have been set with CONFIG SET, which ends with the process; after that start a loss of power may cost \
                 the last grants, and grant them again",
                self.keep(&wanted),
            ),
            (Durability::Durable | Durability::Process, Durability::Volatile) => limit(
                "the server remembers grants until its next start only, as far as can be seen: appendonly may have been \
                 set with CONFIG SET, which ends with the process; that start forgets every lock, and grants it again",
                match now {
                    Durability::Durable => self.keep(&wanted),
                    _ => self.lasting(&wanted),
                },
            ),
            (_, Durability::Process) => limit(
                "after a loss of power the last grants may be forgotten, and granted again",
                self.lasting(&wanted[1..]),
            ),
            (_, Durability::Volatile) => limit(
                "a restart of the server forgets every lock, and grants it again",
                self.lasting(&wanted),
            ),
        }
    }

    /// What stands between this server and correctness.
    fn limits(&self, config: &Config) -> Vec<Limit> {
        let mut limits = Vec::new();
        let mut limit = |what: &str, change: &str| {
            limits.push(Limit {
                what: what.into(),
                change: change.into(),
            });
        };
        if self.fields.is_none() {
            limit(
                "the server does not say how it keeps data: this user may not read INFO",
                "allow the command INFO, and CONFIG GET, to this user",
            );
            return limits;
        }
        let promotes = !config.promotion_delay.is_zero();
        if !config.delays()
            && let Some(Limit { what, change }) = self.forgets()
        {
            limit(&what, &change);
        }
        let policy = self.get("maxmemory_policy").unwrap_or("noeviction");
        let limited = self.number("maxmemory") > 0;
        if limited && policy == "noeviction" && !self.settings_last() {
            limit(
                "the server evicts no keys until its next start only, as far as can be seen: maxmemory-policy may have been \
                 set with CONFIG SET, which ends with the process",
                &self.keep(&["maxmemory-policy noeviction"]),
            );
        }
        if limited && policy != "noeviction" {
            limit(
                &format!(
                    "when memory is short the server evicts keys ({policy}), and locks with them"
                ),
                &format!(
                    "{}; or keep locks on a server of their own",
                    self.lasting(&["maxmemory-policy noeviction"])
                ),
            );
        }
        let (replicas, asked) = (self.number("connected_slaves"), u64::from(config.replicas));
        if replicas > asked && !promotes {
            let change = match &config.servers {
                Servers::Sentinel { .. } => format!(
                    "open the store with replicas={replicas}, or with promotion-delay=TTL, the longest ttl in use"
                ),
                _ => format!("open the store with replicas={replicas}"),
            };
            let what = match asked {
                0 => "the server has replicas: after a fail-over to one of them the last grants may be forgotten, and \
                      granted again"
                    .to_owned(),
                _ => format!(
                    "the server has {replicas} replicas, and a grant counts when {asked} have it: after a fail-over to \
                     another it may be forgotten, and granted again"
                ),
            };
            limit(&what, &change);
        }
        if promotes && asked < replicas.max(1) {
            limit(
                "a fail-over forgets locks, and frees them once promotion-delay is over; it does not if a Sentinel that \
                 voted for it hears nothing of its outcome for 1.5 s while a holder beside it still reaches the old master",
                &format!("open the store with replicas={}", replicas.max(1)),
            );
        }
        limits
    }

    /// What a store of servers that say this can promise: no more than the least of them.
    pub(crate) fn promises(all: &[Self], config: &Config) -> Promises {
        let weaker = |one: &Durability, other: &Durability| rank(*one).cmp(&rank(*other));
        let durability = all.iter().map(Self::durability).min_by(weaker);
        let mut limits: Vec<Limit> = Vec::new();
        for limit in all.iter().flat_map(|facts| facts.limits(config)) {
            if !limits.contains(&limit) {
                limits.push(limit);
            }
        }
        let max_ttl = Duration::from_secs(10 * 365 * 86_400);
        Promises {
            engine: match config.servers {
                Servers::One => "redis",
                Servers::Sentinel { .. } => "redis-sentinel",
                Servers::Cluster(_) => "redis-cluster",
            },
            order: Order::Fifo,
            shared: true,
            permits: true,
            lock_delay: true,
            ranges: true,
            portable: true,
            lease: LeaseKind::Lease,
            wake: Wake::Push,
            durability: durability.unwrap_or(Durability::Volatile),
            clock: match config.servers {
                Servers::One => {
                    "the server's clock runs at about the right rate and is not set forward while a lock is held"
                }
                _ => {
                    "the servers' clocks run at about the right rate, show the same time, and are not set forward while \
                     a lock is held"
                }
            },
            min_ttl: Duration::from_millis(10),
            // A lease that outlives the delay would be forgotten all the same.
            max_ttl: match config.promotion_delay {
                Duration::ZERO => max_ttl,
                delay => delay,
            },
            limits,
        }
    }
}

/// The lines of `INFO`, if there was an answer.
fn read(info: Option<&Value>) -> Option<HashMap<String, String>> {
    let text = match info {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes),
        Some(Value::VerbatimString { text, .. }) => text.into(),
        _ => return None,
    };
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let pairs = pairs.map(|(key, value)| (key.into(), value.trim().into()));
    Some(pairs.collect())
}

fn rank(durability: Durability) -> u8 {
    match durability {
        Durability::Volatile => 0,
        Durability::Process => 1,
        Durability::Durable => 2,
    }
}
