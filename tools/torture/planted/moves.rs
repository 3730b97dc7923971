//! Schedules of a move between two stores, on two Redis servers: each makes one planted bug show, and must find nothing without
//! it. A client that is cut off from the records, an administrator that stands still or is killed, a record that is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock::composite::{How, Migrate, Migration, Moving, Phase, Prepare};
use fencelock::engine::{Engine, Record, RecordChange};
use fencelock::layers::Layer;
use fencelock::{Client, Error, Guard, Token, open_engine};
use fencelock_testbed::Redis;
use tokio::sync::{Notify, watch};

type Done<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Two clients believe in one lock at once.
const EXCLUSION: &str = "exclusion";

/// A later grant has a lower token.
const ORDER: &str = "token-order";

/// How far the old store's tokens are ahead of its time, so that each is one above the last one.
const AHEAD: u64 = 3_600_000_000;

const COUNTER: &str = "fencelock:counter";
const RECORD: &str = "fencelock:record";

/// Two thirds of the shortest pace here.
const TTL: Duration = Duration::from_millis(800);

/// For how long something is awaited that a bug brings at once.
const SHORTLY: Duration = Duration::from_millis(200);

/// Runs a schedule: the rules that were broken.
pub(crate) async fn run(name: &str) -> Done<Vec<&'static str>> {
    match name {
        "hush" => cut_off_before_the_hush().await,
        "floor" => tokens_over_the_step().await,
        "lost" => a_record_is_lost().await,
        "waiting" => cut_off_over_all_steps().await,
        "arbiter" => an_administrator_is_late_and_killed().await,
        "answer" => an_answer_is_late().await,
        _ => Err(format!("there is no schedule {name:?}").into()),
    }
}

/// What becomes of calls for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// The store cannot be reached for it.
    Cut,
    /// Its answers do not come before the way is open.
    AnswersLate,
    /// They are not sent before the way is open.
    Waits,
    /// They are never sent: whoever calls is about to be killed.
    Ends,
}

/// The way from one process to the record of one store.
#[derive(Debug)]
struct Gate {
    way: watch::Sender<Way>,
    /// How many calls have come to a way that is not open.
    met: watch::Sender<usize>,
    /// A change is about to be written: these ways are cut before.
    cuts: Vec<Arc<Gate>>,
    /// A change was written.
    wrote: Notify,
    /// Its writer stands still after it, at these ways.
    stops: watch::Sender<Vec<Arc<Gate>>>,
}

impl Gate {
    fn new(cuts: Vec<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            way: watch::Sender::new(Way::Open),
            met: watch::Sender::new(0),
            cuts,
            wrote: Notify::new(),
            stops: watch::Sender::new(Vec::new()),
        })
    }

    fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    async fn meets(&self) {
        // Its sender is here.
        let _ = self.met.subscribe().wait_for(|met| *met > 0).await;
    }
}

/// Those of both stores.
type Gates = [Arc<Gate>; 2];

fn gates() -> Gates {
    [0, 1].map(|_| Gate::new(Vec::new()))
}

fn set(gates: &Gates, way: Way) {
    for gate in gates {
        gate.set(way);
    }
}

#[derive(Debug)]
struct Gated {
    engine: Arc<dyn Engine>,
    gate: Arc<Gate>,
}

#[async_trait]
impl Layer for Gated {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record, Error> {
        let gate = &self.gate;
        let mut way = gate.way.subscribe();
        let now = *way.borrow();
        if now != Way::Open {
            gate.met.send_modify(|met| *met += 1);
        }
        let mut answer = None;
        match now {
            Way::Open => {}
            Way::Cut => return Err(Error::unavailable(self, "the record", "it is cut off")),
            Way::AnswersLate => answer = Some(self.engine.record(scope, change).await),
            Way::Waits | Way::Ends => {}
        }
        let open = way.wait_for(|way| *way == Way::Open);
        if open.await.is_err() || answer.is_some() {
            return answer.unwrap_or(Err(Error::Closed));
        }
        if change.is_some() {
            for cut in &gate.cuts {
                cut.set(Way::Cut);
            }
        }
        let record = self.engine.record(scope, change).await;
        if change.is_some() {
            for stop in &*gate.stops.borrow() {
                stop.set(Way::Waits);
            }
            gate.wrote.notify_one();
        }
        record
    }
}

impl fmt::Display for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine.fmt(f)
    }
}

/// Two servers between which the locks move.
struct Move {
    servers: [Redis; 2],
}

impl Move {
    async fn prepared(pace: u64, tight: u64) -> Done<Self> {
        let server = || Redis::builder().append_only("always").start();
        let servers = [server()?, server()?];
        let now: Vec<String> = servers[0].command(&["TIME"])?;
        let ahead = now[0].parse::<u64>()? * 1_000_000 + AHEAD;
        servers[0].command::<()>(&["SET", COUNTER, &ahead.to_string()])?;
        let all = Self { servers };
        let terms = Prepare::default()
            .pace(Duration::from_millis(pace))
            .tight(Duration::from_millis(tight));
        let migration = all.stores(&gates()).await?.migration()?;
        migration.prepare(&terms, "planted").await?;
        Ok(all)
    }

    async fn stores(&self, gates: &Gates) -> Done<Migrate> {
        let mut stores = Vec::new();
        for (server, gate) in self.servers.iter().zip(gates) {
            let url = format!("{}?claim-window=400ms&outside-set=yes", server.url());
            let engine = open_engine(&*url).await?;
            let gate = Arc::clone(gate);
            stores.push(Arc::new(Gated { engine, gate }) as Arc<dyn Engine>);
        }
        let new = stores.pop().ok_or("two stores")?;
        let old = stores.pop().ok_or("two stores")?;
        let stores = Migrate::between(("from", old), ("to", new));
        Ok(stores.set("planted").breaker(false))
    }

    async fn client(&self, gates: &Gates) -> Done<(Client, Arc<Moving>)> {
        let engine = Arc::new(self.stores(gates).await?.open().await?);
        Ok((Client::new(engine.clone())?, engine))
    }

    async fn migration(&self, gates: &Gates) -> Done<Migration> {
        Ok(self.stores(gates).await?.migration()?)
    }

    async fn begin(&self) -> Done<()> {
        let how = how().despite_findings(true);
        self.migration(&gates()).await?.begin(&how).await?;
        Ok(())
    }

    async fn finish(&self) -> Done<()> {
        self.migration(&gates()).await?.finish(&how()).await?;
        Ok(())
    }
}

fn how() -> How<'static> {
    How::new("planted")
}

async fn take(client: &Client) -> Result<Guard, Error> {
    client.lock("x").ttl(TTL).timeout(TTL).await
}

/// The highest of some tokens, one after the other.
async fn highest(client: &Client, count: usize) -> Result<Token, Error> {
    let mut highest = Token(0);
    for _ in 0..count {
        let guard = take(client).await?;
        highest = highest.max(guard.token());
        guard.release().await?;
    }
    Ok(highest)
}

/// Whether a grant that comes after another one breaks a rule.
fn order(before: Token, after: Result<Token, Error>) -> Vec<&'static str> {
    match after {
        Ok(after) if after <= before => vec![ORDER],
        _ => Vec::new(),
    }
}

/// Whether somebody believes in the lock of a holder who believes.
async fn exclusion(holder: &Guard, other: &Client) -> Vec<&'static str> {
    match other.try_lock("x").ttl(TTL).await {
        Ok(guard) if guard.is_valid() && holder.is_valid() => vec![EXCLUSION],
        _ => Vec::new(),
    }
}

/// A client hears nothing from the moment on at which the step from phase 1 is written.
async fn cut_off_before_the_hush() -> Done<Vec<&'static str>> {
    let all = Move::prepared(1500, 1500).await?;
    all.begin().await?;
    let behind = gates();
    let (client, _) = all.client(&behind).await?;
    highest(&client, 1).await?;
    let admin = [0, 1].map(|_| Gate::new(behind.to_vec()));
    all.migration(&admin).await?.finish(&how()).await?;
    let (ahead, _) = all.client(&gates()).await?;
    let before = highest(&ahead, 8).await?;
    let after = client.try_lock("x").ttl(TTL).await;
    Ok(order(before, after.map(|guard| guard.token())))
}

/// The new store's tokens are far behind.
async fn tokens_over_the_step() -> Done<Vec<&'static str>> {
    let all = Move::prepared(1200, 300).await?;
    all.begin().await?;
    let (client, _) = all.client(&gates()).await?;
    let before = highest(&client, 1).await?;
    all.finish().await?;
    let (client, _) = all.client(&gates()).await?;
    Ok(order(before, highest(&client, 1).await))
}

/// After the move the new store loses its record, and a program is started. The holder hears nothing of it.
async fn a_record_is_lost() -> Done<Vec<&'static str>> {
    let all = Move::prepared(1500, 300).await?;
    all.begin().await?;
    all.finish().await?;
    all.finish().await?;
    let own = gates();
    let (holder, _) = all.client(&own).await?;
    let guard = take(&holder).await?;
    set(&own, Way::Cut);
    all.servers[1].command::<()>(&["DEL", RECORD])?;
    let (started, engine) = all.client(&gates()).await?;
    let fooled = async {
        while engine.phase() != Some(Phase::Old) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    // Without the bug it is not.
    let _ = tokio::time::timeout(SHORTLY, fooled).await;
    Ok(exclusion(&guard, &started).await)
}

/// A client knows the old store alone, and hears nothing while all steps go by.
async fn cut_off_over_all_steps() -> Done<Vec<&'static str>> {
    let all = Move::prepared(1500, 300).await?;
    let behind = gates();
    let (client, _) = all.client(&behind).await?;
    highest(&client, 1).await?;
    // `begin` looks at the stores for some seconds first.
    let admin = [0, 1].map(|_| Gate::new(behind.to_vec()));
    let begun = all.migration(&admin).await?;
    begun.begin(&how().despite_findings(true)).await?;
    all.finish().await?;
    all.finish().await?;
    let (ahead, _) = all.client(&gates()).await?;
    let guard = take(&ahead).await?;
    Ok(exclusion(&guard, &client).await)
}

/// A client has asked for the record in phase 0, and the answers come after all steps.
async fn an_answer_is_late() -> Done<Vec<&'static str>> {
    let all = Move::prepared(1500, 300).await?;
    let late = gates();
    let (client, _) = all.client(&late).await?;
    set(&late, Way::AnswersLate);
    for gate in &late {
        gate.meets().await;
    }
    all.begin().await?;
    all.finish().await?;
    all.finish().await?;
    let (ahead, _) = all.client(&gates()).await?;
    let guard = take(&ahead).await?;
    set(&late, Way::Open);
    Ok(exclusion(&guard, &client).await)
}

/// One administrator is about to leave the old store when another one goes back. The first one is late: the hush is written,
/// and the second one stands still. Then the first one is killed where it would see that.
async fn an_administrator_is_late_and_killed() -> Done<Vec<&'static str>> {
    let all = Arc::new(Move::prepared(2000, 400).await?);
    all.begin().await?;
    all.finish().await?;

    let (first, second) = (gates(), gates());
    let forth = all.migration(&first).await?;
    let waits = Arc::new(Notify::new());
    let forth = tokio::spawn({
        let waits = Arc::clone(&waits);
        async move {
            let tell = |what: &str| {
                if what.starts_with("waiting") {
                    waits.notify_one();
                }
            };
            let how = how().tell(&tell);
            forth.finish(&how).await.map(|_| ())
        }
    });
    waits.notified().await;
    set(&first, Way::Waits);

    second[0].stops.send_replace(second.to_vec());
    let back = all.migration(&second).await?;
    let back = tokio::spawn(async move { back.abort(&how()).await.map(|_| ()) });
    second[0].wrote.notified().await;
    second[0].stops.send_replace(Vec::new());
    first[0].set(Way::Ends);
    first[1].set(Way::Open);
    // It waits at the old store's record, in which it would see the hush.
    let _ = tokio::time::timeout(Duration::from_secs(5), first[0].meets()).await;
    forth.abort();

    let own = gates();
    own[0].set(Way::Cut);
    let (misled, _) = all.client(&own).await?;
    set(&own, Way::Cut);
    set(&second, Way::Open);
    let (client, engine) = all.client(&gates()).await?;
    while engine.phase() != Some(Phase::BothOld) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let broken = match highest(&misled, 20).await {
        Ok(before) => order(before, highest(&client, 1).await),
        Err(_) => Vec::new(),
    };
    back.abort();
    Ok(broken)
}
