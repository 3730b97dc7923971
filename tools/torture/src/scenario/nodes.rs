//! Recipes for several Redis servers: a fail-over, and Redlock on five servers.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fencelock::{Client, Guard, Release};
use fencelock_testbed::{
    ClockShim, Failure, Flow, Proxy, Redis, RedisSentinel, Result, seen_long_ago,
};

use super::redis::{LONG, say};
use super::story::{LOCK, LONG_LEASE, Scenario, Side, Sides, beside, let_go, open, take_for};
use crate::stores::loopback;

pub(super) static SCENARIOS: &[Scenario] = &[
    scenario!(
        "sentinel-failover",
        "a fail-over by Sentinel that loses a lock which never reached the replica",
        sentinel_failover
    ),
    scenario!(
        "redlock-empty",
        "Redlock: a node restarts empty, and votes again",
        redlock_empty
    ),
    scenario!(
        "redlock-clock",
        "Redlock: the clock of one node jumps",
        redlock_clock
    ),
    scenario!(
        "redlock-pause",
        "Redlock: a pause between the votes and the belief",
        redlock_pause
    ),
];

async fn sentinel_failover() -> Result<Sides> {
    let group = RedisSentinel::start()?;
    let mut naive = Side::begin();
    let master = group.master()?;
    group.cut_replication()?;
    naive.note("-", "the link from the master to its replicas is gone");
    let server = &group.servers()[master];
    say::<String>(
        server,
        &mut naive,
        "A",
        &["SET", LOCK, "A", "NX", "PX", LONG],
    )?;
    server.kill9();
    naive.note("-", "the master dies");
    let next = group.await_failover(master)?;
    naive.note("-", "the Sentinels make a replica the master");
    let server = &group.servers()[next];
    let second: Option<String> = say(
        server,
        &mut naive,
        "B",
        &["SET", LOCK, "B", "NX", "PX", LONG],
    )?;
    let naive = naive.end(
        second.is_none(),
        "A and B both have the lock: the new master does not know of A",
    );
    drop(group);

    let group = RedisSentinel::start()?;
    let url = format!("{}&replicas=2", group.url());
    let mut ours = Side::begin();
    let (one, two) = (open(&url).await?, open(&url).await?);
    let master = group.master()?;
    group.cut_replication()?;
    ours.note("-", "the link from the master to its replicas is gone");
    let unreplicated = beside(&one, &mut ours, "A").await;
    group.mend_replication();
    group.await_ready()?;
    ours.note("-", "the link is mended");
    let first = take_for(&one, &mut ours, "A", LONG_LEASE).await?;
    group.servers()[master].kill9();
    ours.note("-", "the master dies");
    group.await_failover(master)?;
    ours.note("-", "the Sentinels make a replica the master");
    let second = two.lock(LOCK).timeout(Duration::from_secs(2)).await;
    let kept = second.is_err() && first.is_valid();
    ours.note(
        "B",
        if second.is_err() {
            "does not get the lock"
        } else {
            "has it, too"
        },
    );
    let ours = ours.end(
        kept && !unreplicated,
        "with replicas=2 a grant counts once both replicas have it, so the new master knows of A",
    );
    Ok([naive, ours])
}

const NODES: usize = 5;
/// The `max-ttl` of Redlock here: a restarted node does not vote for this time and 2 s more.
const MAX_TTL: Duration = Duration::from_secs(10);

/// Five servers, each behind a proxy.
struct Five {
    nodes: Vec<Redis>,
    proxies: Vec<Proxy>,
    clock: Arc<ClockShim>,
}

impl Five {
    /// The clock of node C.
    fn start() -> Result<Self> {
        let clock = ClockShim::new()?;
        let (mut nodes, mut proxies) = (Vec::new(), Vec::new());
        for node in 0..NODES {
            let builder = Redis::builder();
            let node = match node {
                2 => builder.clock(&clock).start()?,
                _ => builder.start()?,
            };
            seen_long_ago(&node, 0)?;
            proxies.push(Proxy::start(node.port())?);
            nodes.push(node);
        }
        Ok(Self {
            nodes,
            proxies,
            clock,
        })
    }

    fn url(ports: &[u16]) -> String {
        let max_ttl = MAX_TTL.as_secs();
        format!(
            "redlock://{}?node-timeout=200ms&max-ttl={max_ttl}s",
            loopback(ports)
        )
    }

    fn direct(&self) -> String {
        Self::url(&self.nodes.iter().map(Redis::port).collect::<Vec<_>>())
    }

    fn proxied(&self) -> String {
        Self::url(&self.proxies.iter().map(Proxy::port).collect::<Vec<_>>())
    }

    /// Clients behind the proxies no longer reach D and E.
    fn cut(&self) -> Result<()> {
        for proxy in &self.proxies[3..] {
            proxy.refuse(true)?;
            proxy.reset();
        }
        Ok(())
    }

    /// The recipe: SET NX PX on these nodes. Returns the number of successes.
    fn vote(&self, side: &mut Side, who: &'static str, nodes: &[usize]) -> Result<usize> {
        let mut yes = Vec::new();
        for &node in nodes {
            let set = ["SET", LOCK, who, "NX", "PX", LONG];
            if self.nodes[node].command::<Option<String>>(&set)?.is_some() {
                yes.push(["A", "B", "C", "D", "E"][node]);
            }
        }
        side.note(
            who,
            format!("SET NX PX {LONG}: yes from {}", yes.join(", ")),
        );
        Ok(yes.len())
    }

    fn forget(&self) -> Result<()> {
        let forget = |node: &Redis| node.command::<()>(&["DEL", LOCK]);
        self.nodes.iter().try_for_each(forget)
    }

    /// This library: the first client holds at A, B and C, and the second is connected to all.
    async fn held_at_three(&self, side: &mut Side) -> Result<(Client, Guard, Client)> {
        let (one, two) = (open(&self.proxied()).await?, open(&self.direct()).await?);
        // Both are connected to all nodes, and all nodes vote.
        for client in [&one, &two] {
            let before = client
                .lock("before")
                .timeout(Duration::from_secs(10))
                .ttl(MAX_TTL)
                .await;
            let before = before.map_err(|e| Failure::new(e.to_string()))?;
            before
                .release()
                .await
                .map_err(|e| Failure::new(e.to_string()))?;
        }
        self.cut()?;
        side.note("1", "does not reach the nodes D and E");
        let first = take_for(&one, side, "1", MAX_TTL).await?;
        // Votes after the decision arrive soon.
        let begin = Instant::now();
        loop {
            let has = |node: &Redis| node.command::<u64>(&["EXISTS", LOCK]);
            let votes: Vec<u64> = self.nodes.iter().map(has).collect::<Result<_>>()?;
            if votes.iter().sum::<u64>() == 3 {
                return Ok((one, first, two));
            }
            if begin.elapsed() > Duration::from_secs(10) {
                return Err(Failure::new(format!("the lock is held at {votes:?}")));
            }
            sleep(Duration::from_millis(5));
        }
    }
}

async fn redlock_empty() -> Result<Sides> {
    let mut five = Five::start()?;
    let mut naive = Side::begin();
    let first = five.vote(&mut naive, "1", &[0, 1, 2])?;
    five.nodes[2].restart_empty()?;
    naive.note("-", "the node C restarts without its data");
    let second = five.vote(&mut naive, "2", &[2, 3, 4])?;
    let naive = naive.end(
        first < 3 || second < 3,
        "1 has A, B and C; 2 has C, D and E: both have a majority",
    );

    five.forget()?;
    seen_long_ago(&five.nodes[2], 0)?;
    let mut ours = Side::begin();
    let (_one, first, two) = five.held_at_three(&mut ours).await?;
    five.nodes[2].restart_empty()?;
    ours.note("-", "the node C restarts without its data");
    let second = beside(&two, &mut ours, "2").await;
    let kept = !second && first.is_valid();
    let ours = ours.end(
        kept,
        "C does not vote until every lease from before its restart has ended",
    );
    Ok([naive, ours])
}

async fn redlock_clock() -> Result<Sides> {
    let five = Five::start()?;
    let jump = Duration::from_secs(3600);
    let mut naive = Side::begin();
    let first = five.vote(&mut naive, "1", &[0, 1, 2])?;
    five.clock.forward(jump)?;
    naive.note("-", "the clock of C is set forward by an hour");
    let second = five.vote(&mut naive, "2", &[2, 3, 4])?;
    let naive = naive.end(
        first < 3 || second < 3,
        "1 has A, B and C; 2 has C, D and E: both have a majority",
    );

    five.clock.back(jump)?;
    five.forget()?;
    let mut ours = Side::begin();
    let (_one, first, two) = five.held_at_three(&mut ours).await?;
    five.clock.forward(jump)?;
    ours.note("-", "the clock of C is set forward by an hour");
    let second = beside(&two, &mut ours, "2").await;
    let kept = !second && first.is_valid();
    let ours = ours.end(
        kept,
        "2 sees that C's clock has moved against its own, and does not count its vote",
    );
    Ok([naive, ours])
}

async fn redlock_pause() -> Result<Sides> {
    let five = Five::start()?;
    let mut naive = Side::begin();
    for (node, name) in five.nodes.iter().zip(["A", "B", "C", "D", "E"]) {
        let set = ["SET", LOCK, "1", "NX", "PX", "300"];
        node.command::<()>(&set)?;
        naive.note(
            "1",
            format!("SET NX PX 300 at {name}; the answer is on its way"),
        );
    }
    sleep(super::story::PAST);
    naive.note("1", "stalls before it reads any answer");
    let second = five.vote(&mut naive, "2", &[0, 1, 2, 3, 4])?;
    naive.note(
        "1",
        "continues, reads five times yes, and believes that it holds",
    );
    let naive = naive.end(
        second < 3,
        "1 believes because of answers about leases that have ended",
    );

    five.forget()?;
    let mut ours = Side::begin();
    let (one, two) = (open(&five.proxied()).await?, open(&five.direct()).await?);
    five.proxies
        .iter()
        .for_each(|proxy| proxy.answers(Flow::Hold));
    ours.note("1", "asks for the lock; the answers of all nodes are stuck");
    let asking = tokio::spawn({
        let request = one.lock(LOCK).timeout(Duration::from_secs(20)).ttl(MAX_TTL);
        async move { request.await }
    });
    let held_by_somebody = || five.nodes[0].command::<u64>(&["EXISTS", LOCK]);
    let begin = Instant::now();
    while held_by_somebody()? == 0 {
        if begin.elapsed() > Duration::from_secs(10) {
            return Err(Failure::new("the request does not reach the nodes"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let second = take_for(&two, &mut ours, "2", MAX_TTL).await?;
    five.proxies
        .iter()
        .for_each(|proxy| proxy.answers(Flow::Pass));
    ours.note("1", "all the answers arrive");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let early = asking.is_finished();
    ours.note(
        "1",
        if early {
            "believes that it holds"
        } else {
            "does not believe that it holds, and waits"
        },
    );
    let kept = !early && second.is_valid();
    let released = let_go(second, &mut ours, "2").await?;
    let first = asking.await.map_err(|e| Failure::new(e.to_string()))?;
    let first = first.map_err(|e| Failure::new(e.to_string()))?;
    ours.note("1", format!("has the lock, token {}", first.token()));
    let after = let_go(first, &mut ours, "1").await?;
    let ours = ours.end(
        kept && released == Release::Released && after == Release::Released,
        "validity counts from before the first request, so late answers do not count",
    );
    Ok([naive, ours])
}
