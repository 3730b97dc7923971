//! The information that a server gives.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

use crate::machine;
use crate::reply::{setting, text};

/// The reply to `INFO`, and one setting, as far as this user may read them.
#[derive(Debug, Default)]
pub(crate) struct ServerInfo {
    fields: Option<HashMap<String, String>>,
    /// The setting `appendfsync`.
    pub(crate) fsync: Option<String>,
}

impl ServerInfo {
    pub(crate) fn new(info: Option<&Value>, fsync: Option<&Value>) -> Self {
        Self {
            fields: read(info),
            fsync: fsync.and_then(setting),
        }
    }

    /// Adds the reply to `INFO commandstats`.
    pub(crate) fn with_stats(mut self, stats: Option<&Value>) -> Self {
        if let Some(fields) = &mut self.fields {
            fields.extend(read(stats).unwrap_or_default());
        }
        self
    }

    /// Whether this user may read `INFO`.
    pub(crate) fn is_known(&self) -> bool {
        self.fields.is_some()
    }

    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        let fields = self.fields.as_ref()?;
        fields.get(field).map(String::as_str)
    }

    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    /// Changes with every start of the server.
    pub(crate) fn run_id(&self) -> Option<String> {
        self.get("run_id").map(str::to_owned)
    }

    /// How long it has run according to its clock, which may have been set since; up to a second too little.
    pub(crate) fn uptime(&self) -> Option<Duration> {
        let seconds = self.get("uptime_in_seconds")?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// The address of its master, if it is a replica.
    pub(crate) fn master(&self) -> Option<String> {
        if self.get("role") != Some("slave") {
            return None;
        }
        let (host, port) = (self.get("master_host")?, self.get("master_port")?);
        Some(format!("{host}:{port}"))
    }

    /// The least time that it has run, measured without clocks that can be set.
    pub(crate) fn ran(&self) -> Duration {
        machine::ran(|name| self.get(name)?.parse().ok())
    }

    /// Why this engine cannot work on such a server.
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
            (Some("0"), true) => {
                Some("it is not a node of a Redis Cluster; write redis://HOST:PORT")
            }
            _ => None,
        }
    }
}

/// The lines of `INFO`, if it was answered.
fn read(info: Option<&Value>) -> Option<HashMap<String, String>> {
    let text = text(info?)?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let pairs = pairs.map(|(key, value)| (key.into(), value.trim().into()));
    Some(pairs.collect())
}
