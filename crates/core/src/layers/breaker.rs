//! Fails at once while the store does not answer, instead of one timeout for each request.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::gate::{Away, Call, Gate, Outcome};
use super::layer::Layer;
use crate::engine::{
    Claim, Cursor, Engine, Evict, Finding, Grant, HeldClaim, HolderView, Leave, LockView, Page,
    Place, Purpose, Record, RecordChange, Renewal, Standing, StoreListener, Withdrawn,
};
use crate::types::{ClaimId, Error, LockName, Result, Token, in_words};

/// An engine whose requests for locks fail at once while the store is away (a *circuit breaker*: Nygard, "Release It!", 2007).
///
/// It opens after 5 failures in a row, or 2 s without an answer. Only [`Error::Unavailable`] is a failure: a lock that is held
/// is an answer. While it is open, `place` fails without a request to the store, and after each pause one `place` goes through
/// as a probe. The first pause lasts 0.25 s, and each further one twice as long, up to 15 s. The actual pause is drawn at random,
/// from half of that time to all of it. Any answer closes the breaker.
///
/// Renewals and releases always go through, and so do calls for inspection: their result is worth a timeout.
///
/// It also keeps a budget of retries, so that they do not overload a store that comes back. The budget is a tenth of the calls
/// that succeeded in the last 10 s, plus one per second. When it is used up, the breaker sends no more retries: a request that
/// waits makes its longest pause instead.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # use fencelock_core::layers::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let (fault, bad_day) = Fault::new(Arc::new(Memory::new()));
/// let breaker = Arc::new(Breaker::new(Arc::new(fault)));
/// let client = Client::new(breaker.clone())?;
/// bad_day.next([Trouble::LoseRequest; 20]);
/// while breaker.away().is_none() {
///     assert!(client.try_lock("report").await.unwrap_err().is_away());
/// }
/// // Now nobody waits for the store to find that it is away.
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Breaker {
    engine: Arc<dyn Engine>,
    gate: Arc<Gate>,
}

impl Breaker {
    /// Puts a breaker around an engine.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        let gate = Arc::new(Gate::new(engine.clock(), engine.promises().engine));
        Self { engine, gate }
    }

    /// How long the store has not answered, and when the next probe is due; `None` while requests go through.
    #[must_use]
    pub fn away(&self) -> Option<Away> {
        self.gate.away()
    }

    async fn pass<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let counted = self.gate.pass();
        let result = call.await;
        end(counted, &result);
        result
    }

    fn note<T>(&self, result: &Result<T>) {
        self.gate.note(outcome(result));
    }
}

fn end<T>(call: Call<'_>, result: &Result<T>) {
    call.end(outcome(result));
}

fn outcome<T>(result: &Result<T>) -> Outcome {
    match result {
        Err(error) if error.is_away() => Outcome::NoAnswer,
        // These errors do not come from the store: it was not asked.
        Err(Error::Closed | Error::Invalid { .. } | Error::Unsupported { .. }) => Outcome::Dropped,
        _ => Outcome::Answered,
    }
}

#[async_trait]
impl Layer for Breaker {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    fn listen_to_stores(&self, listener: StoreListener) {
        self.gate.listen(listener.clone());
        self.engine.listen_to_stores(listener);
    }

    fn forget(&self, claim: &ClaimId) {
        self.gate.forget(claim);
        self.engine.forget(claim);
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let call = match self.gate.enter(&claim.id) {
            Ok(call) => call,
            Err(not_sent) => {
                let action = format!("taking lock {}", claim.name);
                return Err(Error::unavailable(self, action, not_sent));
            }
        };
        let result = self.engine.place(claim).await;
        end(call, &result);
        result
    }

    /// Waiting may take long, so only its end counts, and an end without a grant does not count.
    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        let result = self.engine.wait(claim, place).await;
        if !matches!(result, Ok(None)) {
            self.note(&result);
        }
        result
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let call = self.gate.pass();
        let renewals = self.engine.renew(held).await;
        let away =
            |renewal: &Renewal| matches!(renewal, Renewal::Unknown(error) if error.is_away());
        call.end(match renewals.iter().all(away) {
            true if renewals.is_empty() => Outcome::Dropped,
            true => Outcome::NoAnswer,
            false => Outcome::Answered,
        });
        renewals
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.gate.forget(&claim.id);
        self.pass(self.engine.withdraw(claim, how)).await
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        self.pass(self.engine.record(scope, change)).await
    }

    async fn raise_tokens(&self, floor: Token) -> Result<Token> {
        self.pass(self.engine.raise_tokens(floor)).await
    }

    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.pass(self.engine.inspect().look(name)).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let result = self.engine.inspect().watch(name, seen).await;
        self.note(&result);
        result
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let result = self.engine.inspect().list(prefix, at, limit).await;
        self.note(&result);
        result
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.pass(self.engine.inspect().evict(name, token, how))
            .await
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        self.pass(self.engine.inspect().attest(name, owner)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let away = self.away();
        let result = self.engine.inspect().diagnose().await;
        self.note(&result);
        let mut findings = result?;
        findings.extend(away.map(|away| {
            let silent = in_words(away.silent);
            Finding::new(
                Purpose::Efficiency,
                format!("it did not answer for {silent}, and requests for locks failed at once"),
                "find out why it was away",
            )
        }));
        Ok(findings)
    }
}

impl fmt::Display for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.engine, f)
    }
}
