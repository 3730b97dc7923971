//! What a server says about itself, and what that means for a lock.

use std::collections::HashMap;
use std::time::Duration;

use fencelock_core::{Durability, LeaseKind, Limit, Order, Promises, Wake};
use redis::Value;

/// `INFO`, as far as it may be read.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    fields: Option<HashMap<String, String>>,
    /// `appendfsync`, if `CONFIG GET` may be read.
    fsync: Option<String>,
}

impl Facts {
    pub(crate) fn new(info: Option<&Value>, fsync: Option<&Value>) -> Self {
        let text = match info {
            Some(Value::BulkString(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Some(Value::VerbatimString { text, .. }) => Some(text.clone()),
            _ => None,
        };
        let fields = text.map(|text| {
            let pairs = text.lines().filter_map(|line| line.split_once(':'));
            pairs.map(|(k, v)| (k.into(), v.trim().into())).collect()
        });
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
        Self { fields, fsync }
    }

    fn get(&self, field: &str) -> Option<&str> {
        let fields = self.fields.as_ref()?;
        fields.get(field).map(String::as_str)
    }

    fn number(&self, field: &str) -> u64 {
        self.get(field).and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    /// Changes with every start of the server.
    pub(crate) fn run_id(&self) -> Option<String> {
        self.get("run_id").map(str::to_owned)
    }

    /// For how long it has run; it may be up to a second less.
    pub(crate) fn uptime(&self) -> Option<Duration> {
        let seconds = self.get("uptime_in_seconds")?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// Why this engine cannot serve on such a server.
    pub(crate) fn unfit(&self) -> Option<&'static str> {
        if self.get("redis_mode") == Some("sentinel") {
            return Some("it is a Sentinel, not a server that holds data; name the server itself");
        }
        if self.get("cluster_enabled") == Some("1") {
            return Some(
                "it is a node of a Redis Cluster, and this engine serves single nodes; name a server outside a cluster",
            );
        }
        None
    }

    fn durability(&self) -> Durability {
        match (self.get("aof_enabled"), self.fsync.as_deref()) {
            (Some("1"), Some("always")) => Durability::Durable,
            (Some("1"), _) => Durability::Process,
            _ => Durability::Volatile,
        }
    }

    /// What stands between this server and correctness.
    fn limits(&self, restart_delay: Duration) -> Vec<Limit> {
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
        let delayed = !restart_delay.is_zero();
        match self.durability() {
            Durability::Durable => {}
            Durability::Process if !delayed => limit(
                "after a loss of power the last grants may be forgotten, and granted again",
                "CONFIG SET appendfsync always; or open the store with restart-delay=TTL, the longest ttl in use",
            ),
            Durability::Volatile if !delayed => limit(
                "a restart of the server forgets every lock, and grants it again",
                "CONFIG SET appendonly yes and CONFIG SET appendfsync always; or open the store with restart-delay=TTL, \
                 the longest ttl in use",
            ),
            _ => {}
        }
        let policy = self.get("maxmemory_policy").unwrap_or("noeviction");
        if self.number("maxmemory") > 0 && policy != "noeviction" {
            limit(
                &format!(
                    "when memory is short the server evicts keys ({policy}), and locks with them"
                ),
                "CONFIG SET maxmemory-policy noeviction, or keep locks on a server of their own",
            );
        }
        if self.number("connected_slaves") > 0 {
            limit(
                "the server has replicas: after a fail-over to one of them the last grants may be forgotten, and granted \
                 again",
                "keep locks on a server that is never failed over",
            );
        }
        limits
    }

    pub(crate) fn promises(&self, restart_delay: Duration) -> Promises {
        Promises {
            engine: "redis",
            order: Order::Fifo,
            shared: true,
            permits: true,
            lock_delay: true,
            ranges: true,
            lease: LeaseKind::Lease,
            wake: Wake::Push,
            durability: self.durability(),
            clock: "the server's clock runs at about the right rate and is not set forward while a lock is held",
            min_ttl: Duration::from_millis(10),
            max_ttl: Duration::from_secs(10 * 365 * 86_400),
            limits: self.limits(restart_delay),
        }
    }
}
