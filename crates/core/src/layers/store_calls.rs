//! Reports the calls of an engine through the `metrics` facade: how many, with which outcome, and how long they took.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use metrics::{
    Key, Label, Level, Metadata, Unit, describe_counter, describe_histogram, with_recorder,
};

use super::layer::Layer;
use crate::engine::{
    Claim, Cursor, Engine, Evict, Finding, Grant, HeldClaim, HolderView, Leave, LockView, Page,
    Place, Renewal, Standing, Withdrawn,
};
use crate::types::{Error, LockName, Result, Token};

static METADATA: Metadata<'static> = Metadata::new("fencelock", Level::INFO, Some(module_path!()));

const CALLS: &str = "fencelock_store_calls_total";
const SECONDS: &str = "fencelock_store_call_seconds";

/// Reports the calls of the engine below.
#[derive(Debug)]
pub(crate) struct StoreCalls {
    engine: Arc<dyn Engine>,
    place: Call,
    wait: Call,
    renew: Call,
    withdraw: Call,
    look: Call,
    watch: Call,
    list: Call,
    evict: Call,
    attest: Call,
    diagnose: Call,
}

/// The keys of one call.
#[derive(Debug)]
struct Call {
    labels: [Label; 2],
    ok: Key,
    /// `None` for a call that waits for an event: its duration says nothing about the store.
    seconds: Option<Key>,
}

impl Call {
    fn new(engine: &'static str, call: &'static str) -> Self {
        let labels = [
            Label::from_static_parts("engine", engine),
            Label::from_static_parts("call", call),
        ];
        let waits = matches!(call, "wait" | "watch");
        Self {
            ok: key(&labels, "ok"),
            seconds: (!waits).then(|| Key::from_parts(SECONDS, labels.to_vec())),
            labels,
        }
    }

    /// Counts and times a call.
    async fn of<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let mut counted = self.begin();
        let result = call.await;
        counted.outcome = result.as_ref().err().map_or("ok", Error::as_str);
        result
    }

    fn begin(&self) -> Counted<'_> {
        Counted {
            call: self,
            begun: Instant::now(),
            outcome: "cancelled",
        }
    }
}

fn key(labels: &[Label; 2], outcome: &'static str) -> Key {
    let [engine, call] = labels.clone();
    let outcome = Label::from_static_parts("outcome", outcome);
    Key::from_parts(CALLS, vec![engine, call, outcome])
}

/// A call under way. The core drops calls that wait.
struct Counted<'a> {
    call: &'a Call,
    begun: Instant,
    outcome: &'static str,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        with_recorder(|recorder| {
            let count = |key: &Key| recorder.register_counter(key, &METADATA).increment(1);
            match self.outcome {
                "ok" => count(&self.call.ok),
                outcome => count(&key(&self.call.labels, outcome)),
            }
            if let Some(seconds) = &self.call.seconds {
                let seconds = recorder.register_histogram(seconds, &METADATA);
                seconds.record(self.begun.elapsed().as_secs_f64());
            }
        });
    }
}

impl StoreCalls {
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Self {
        describe_counter!(
            CALLS,
            Unit::Count,
            "Calls of the store, by call and outcome"
        );
        describe_histogram!(SECONDS, Unit::Seconds, "How long a call of the store took");
        let name = engine.promises().engine;
        let call = |call| Call::new(name, call);
        Self {
            engine,
            place: call("place"),
            wait: call("wait"),
            renew: call("renew"),
            withdraw: call("withdraw"),
            look: call("look"),
            watch: call("watch"),
            list: call("list"),
            evict: call("evict"),
            attest: call("attest"),
            diagnose: call("diagnose"),
        }
    }
}

#[async_trait]
impl Layer for StoreCalls {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.place.of(self.engine.place(claim)).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.wait.of(self.engine.wait(claim, place)).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut counted = self.renew.begin();
        let renewals = self.engine.renew(held).await;
        let error = renewals.iter().find_map(|renewal| match renewal {
            Renewal::Unknown(error) => Some(error),
            _ => None,
        });
        counted.outcome = error.map_or("ok", Error::as_str);
        renewals
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.withdraw.of(self.engine.withdraw(claim, how)).await
    }

    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.look.of(self.engine.inspect().look(name)).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        self.watch.of(self.engine.inspect().watch(name, seen)).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let list = self.engine.inspect().list(prefix, at, limit);
        self.list.of(list).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let evict = self.engine.inspect().evict(name, token, how);
        self.evict.of(evict).await
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        let attest = self.engine.inspect().attest(name, owner);
        self.attest.of(attest).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.diagnose.of(self.engine.inspect().diagnose()).await
    }
}

impl fmt::Display for StoreCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.engine, f)
    }
}
