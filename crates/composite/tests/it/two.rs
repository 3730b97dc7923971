//! Two stores between which a set moves, and what clients see meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use fencelock_composite::{How, Migrate, Moving, Phase, Prepare, Stepped};
use fencelock_core::engine::RecordChange;
use fencelock_core::{Client, Engine, Guard, LockName, Memory, Token};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::until;

pub(crate) const PACE: Duration = Duration::from_millis(1500);
pub(crate) const TIGHT: Duration = Duration::from_millis(300);
pub(crate) const TTL: Duration = Duration::from_millis(900);

/// For tests whose holds must live through steps, also on a machine that stands still for a second. A hold is renewed after a
/// third of its ttl.
pub(crate) const SLOW_PACE: Duration = Duration::from_millis(3300);
pub(crate) const SLOW_TTL: Duration = Duration::from_millis(2100);

/// For tests that make no step which waits for the pace. None of their leases ends by itself.
pub(crate) const LONG_PACE: Duration = Duration::from_secs(60);
pub(crate) const LONG_TTL: Duration = Duration::from_secs(40);

/// Two stores in memory.
pub(crate) struct Two {
    pub(crate) old: Memory,
    pub(crate) new: Memory,
}

impl Two {
    pub(crate) fn new() -> Self {
        let (old, new) = (Memory::new(), Memory::new());
        Self { old, new }
    }

    /// Two stores with records: programs may be switched.
    pub(crate) async fn prepared() -> Self {
        Self::paced(PACE).await
    }

    pub(crate) async fn paced(pace: Duration) -> Self {
        let two = Self::new();
        let terms = Prepare::default().pace(pace).tight(TIGHT);
        let done = two.migration().prepare(&terms, "test").await.unwrap();
        assert_eq!(done, Stepped::Done(Phase::Old));
        two
    }

    pub(crate) fn stores(&self) -> Migrate {
        let store = |memory: &Memory| Arc::new(memory.another()) as Arc<dyn Engine>;
        Migrate::between(("from", store(&self.old)), ("to", store(&self.new))).set("orders")
    }

    pub(crate) fn migration(&self) -> fencelock_composite::Migration {
        self.stores().migration().unwrap()
    }

    pub(crate) async fn engine(&self) -> Arc<Moving> {
        Arc::new(self.stores().open().await.unwrap())
    }

    pub(crate) async fn client(&self) -> Client {
        Client::new(self.engine().await).unwrap()
    }

    pub(crate) async fn begin(&self) {
        let begun = self.migration().begin(&How::new("test")).await.unwrap();
        assert_eq!(begun, Stepped::Done(Phase::BothOld));
    }

    /// All steps, to the new store alone.
    pub(crate) async fn move_all(&self) {
        self.begin().await;
        self.finish(Phase::BothNew).await;
        self.finish(Phase::New).await;
    }

    pub(crate) async fn finish(&self, to: Phase) {
        let finished = self.migration().finish(&How::new("test")).await.unwrap();
        assert_eq!(finished, Stepped::Done(to));
    }

    /// Goes through the hush to the end, where a store has lost its record.
    pub(crate) async fn finish_lost(&self) {
        let how = How::new("test").record_lost(true);
        let finished = self.migration().finish(&how).await.unwrap();
        assert_eq!(finished, Stepped::Done(Phase::BothNew));
    }

    pub(crate) async fn abort(&self) {
        let aborted = self.migration().abort(&How::new("test")).await.unwrap();
        assert_eq!(aborted, Stepped::Done(Phase::Old));
    }

    /// How many claims hold in each store.
    pub(crate) async fn held(&self, name: &str) -> [usize; 2] {
        let name = LockName::new(name).unwrap();
        let mut held = [0, 0];
        for (count, store) in held.iter_mut().zip([&self.old, &self.new]) {
            let view = store.inspect().look(&name).await.unwrap();
            *count = view.holders.len();
        }
        held
    }
}

pub(crate) async fn token(client: &Client, name: &str) -> Token {
    let request = client.lock(name).ttl(TTL).timeout(Duration::from_secs(10));
    let guard = request.await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

pub(crate) async fn knows(engine: &Moving, phase: Phase) {
    until("the engine knows", async || engine.phase() == Some(phase)).await;
}

/// What `attest` told of a hold: its lock, the phase that the engine knew before, and the token.
pub(crate) type Told = (LockName, Option<Phase>, Option<Token>);

/// What `attest` tells of these holds while `steps` goes on, and at its end: each answer once.
pub(crate) async fn told_of(
    engine: &Moving,
    guards: &[Guard],
    steps: impl Future<Output = ()>,
) -> Vec<Told> {
    let mut told = Vec::new();
    let mut attest = async || {
        for guard in guards {
            let phase = engine.phase();
            let attested = engine.inspect().attest(guard.name(), guard.owner());
            let (holder, _) = attested.await.unwrap().unwrap();
            let wrong = holder.token.is_some_and(|token| token != guard.token());
            assert!(!wrong, "{phase:?}: {holder:?} and not {}", guard.token());
            let answer = (guard.name().clone(), phase, holder.token);
            if !told.contains(&answer) {
                told.push(answer);
            }
        }
    };
    let often = async {
        loop {
            attest().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = steps => {}
        () = often => {}
    }
    attest().await;
    told
}

/// Takes a lock again and again. Returns its token and whether it is valid, at the beginning and at the end of each hold.
pub(crate) async fn holds_until(
    done: &AtomicBool,
    client: &Client,
    name: &str,
) -> Vec<(Token, bool)> {
    let mut tokens = Vec::new();
    while !done.load(SeqCst) {
        let request = client
            .lock(name)
            .ttl(SLOW_TTL)
            .timeout(Duration::from_secs(10));
        let guard = request.await.unwrap();
        tokens.push((guard.token(), guard.is_valid()));
        tokio::time::sleep(Duration::from_millis(3)).await;
        tokens.push((guard.token(), guard.is_valid()));
        guard.release().await.unwrap();
    }
    tokens
}

/// Checks that each hold of these workers was valid to its end, that tokens grew, and that no two holds had the same one.
pub(crate) async fn grow_and_differ(workers: Vec<JoinHandle<Vec<(Token, bool)>>>) {
    let mut all = Vec::new();
    for worker in workers {
        let tokens = worker.await.unwrap();
        assert!(tokens.is_sorted(), "{tokens:?}");
        assert!(tokens.iter().all(|(_, valid)| *valid));
        all.extend(tokens.iter().step_by(2).map(|(token, _)| *token));
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert!(count > 20 && all.len() == count, "{count}");
}

/// Writes a phase without the wait that a real step needs.
pub(crate) async fn set_phase(two: &Two, phase: u32, version: u64, floor: u64) {
    for store in [&two.old, &two.new] {
        change_record(store, |record| {
            record["phase"] = phase.into();
            record["version"] = version.into();
            record["floors"] = json!({ "to": floor, "from": floor });
        })
        .await;
    }
}

/// Changes the record of one store.
pub(crate) async fn change_record(store: &Memory, change: impl FnOnce(&mut Value)) {
    let record = store.record("", None).await.unwrap();
    let mut text = serde_json::from_str(&record.text).unwrap();
    change(&mut text);
    restore(store, &text.to_string()).await;
}

/// Writes the record of one store, as a restored backup has it.
pub(crate) async fn restore(store: &Memory, text: &str) {
    let now = store.record("", None).await.unwrap();
    let change = RecordChange::new(now.version, text).unwrap();
    store.record("", Some(&change)).await.unwrap();
}

/// The number of another version of the record, so many later.
pub(crate) fn version(record: &Value, later: i64) -> Value {
    (record["version"].as_i64().unwrap() + later).into()
}
