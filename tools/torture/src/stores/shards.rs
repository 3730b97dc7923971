//! Three Redis servers as shards of a set whose map stays as it is. The nodes are the servers.

use fencelock_testbed::{Failure, Redis, Result};

use super::migrate::{RECORD, encoded, on_a_thread};
use super::redis::COUNTER;
use super::store::{STALE_QUEUE, TestStore, begin_at, heal_at, keys_left, unknown};
use crate::fault::FaultKind;
use crate::history::Rule;

/// A short ttl, so that more happens in the same time.
const WINDOW: u64 = 400;

const IDS: [&str; 3] = ["a", "b", "c"];

struct Shards {
    servers: Vec<Redis>,
}

pub(super) fn start() -> Result<Box<dyn TestStore>> {
    let server = |_| Redis::builder().append_only("always").start();
    let servers = IDS.iter().map(server).collect::<Result<_>>()?;
    let store = Shards { servers };
    let set = store.url(&store.ports());
    on_a_thread(async move {
        let made = fencelock::init(set).await;
        made.map_err(Failure::to("make the set"))
    })?;
    Ok(Box::new(store))
}

impl TestStore for Shards {
    fn name(&self) -> &'static str {
        "shards"
    }

    fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(Redis::port).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        let shards = IDS.iter().zip(self.servers.iter().zip(ports));
        let shards = shards.map(|(id, (server, port))| {
            let url = format!("{}?claim-window={WINDOW}ms", server.url_at(*port));
            format!("{id}={}", encoded(&url))
        });
        let shards: Vec<_> = shards.collect();
        format!("shards:?set=torture&{}", shards.join("&"))
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::Restart,
            FaultKind::KillConnections,
        ]
    }

    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        let begun = begin_at(&self.servers[node], kind);
        begun.unwrap_or_else(|| Err(unknown(self, kind)))
    }

    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        let healed = heal_at(&mut self.servers[node], kind);
        healed.unwrap_or_else(|| Err(unknown(self, kind)))
    }

    fn excuses(&self, _kind: FaultKind) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn window(&self) -> u64 {
        WINDOW
    }

    fn forgets_after(&self) -> u64 {
        STALE_QUEUE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        keys_left(&self.servers, |key| key == COUNTER || key == RECORD)
    }
}
