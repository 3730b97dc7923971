//! Injects faults into an engine: requests lost, replies lost, both late. For tests.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::layer::Layer;
use crate::engine::{Claim, Engine, HeldClaim, Leave, Renewal, Standing, Withdrawn};
use crate::support::Mutex;
use crate::types::{Error, Result};

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Nothing.
    None,
    /// The request never arrives; the caller gets the error of a missing answer.
    LoseRequest,
    /// The request takes effect; the caller gets the error of a missing answer.
    LoseReply,
    /// The request arrives late.
    DelayRequest(Duration),
    /// The request takes effect at once, and its answer comes late.
    DelayReply(Duration),
    /// The caller gets the error of a missing answer, and later the request still takes effect.
    ArriveAfterError(Duration),
    /// The request waits until [`FaultHandle::open`] lets it through.
    Hold,
}

type Chance = Box<dyn FnMut(&'static str) -> Trouble + Send>;

struct Script {
    next: VecDeque<Trouble>,
    chance: Option<Chance>,
}

/// Chooses the fault of each call of a [`Fault`]. Cheap to clone.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # use fencelock_core::layers::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let (engine, faults) = Fault::new(Arc::new(Memory::new()));
/// let client = Client::new(Arc::new(engine))?;
/// faults.next([Trouble::LoseRequest]);
/// assert!(client.try_lock("report").await.unwrap_err().is_away());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FaultHandle {
    script: Arc<Mutex<Script>>,
    gate: Arc<Semaphore>,
}

impl FaultHandle {
    /// The next calls of `place`, `renew` and `withdraw` get these troubles, one each. After that chance decides again.
    pub fn next(&self, troubles: impl IntoIterator<Item = Trouble>) {
        self.script.lock().next.extend(troubles);
    }

    /// Each call of `place`, `renew` and `withdraw` calls `chance` with its name.
    pub fn by_chance(&self, chance: impl FnMut(&'static str) -> Trouble + Send + 'static) {
        self.script.lock().chance = Some(Box::new(chance));
    }

    /// No more troubles.
    pub fn calm(&self) {
        let mut script = self.script.lock();
        script.next.clear();
        script.chance = None;
    }

    /// Lets this many requests through that [`Trouble::Hold`] keeps or will keep.
    pub fn open(&self, requests: usize) {
        self.gate.add_permits(requests);
    }

    fn draw(&self, call: &'static str) -> Trouble {
        let mut script = self.script.lock();
        match (script.next.pop_front(), &mut script.chance) {
            (Some(trouble), _) => trouble,
            (None, Some(chance)) => chance(call),
            (None, None) => Trouble::None,
        }
    }
}

impl fmt::Debug for FaultHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultHandle")
    }
}

/// An engine with injected faults.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # use fencelock_core::layers::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let (fault, bad_day) = Fault::new(Arc::new(Memory::new()));
/// let client = Client::new(Arc::new(fault))?;
/// bad_day.next([Trouble::LoseReply]);
/// // The request is repeated, and the lock is not taken twice.
/// client.lock("report").await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Fault {
    engine: Arc<dyn Engine>,
    handle: FaultHandle,
}

impl Fault {
    /// Wraps `engine`; troubles come through the handle.
    pub fn new(engine: Arc<dyn Engine>) -> (Self, FaultHandle) {
        let (next, chance) = (VecDeque::new(), None);
        let handle = FaultHandle {
            script: Arc::new(Mutex::new(Script { next, chance })),
            gate: Arc::new(Semaphore::new(0)),
        };
        let fault = Self {
            engine,
            handle: handle.clone(),
        };
        (fault, handle)
    }

    fn no_answer(&self, call: &'static str) -> Error {
        Error::unavailable(self, call, "no answer came (a fault that a test asked for)")
    }

    async fn inject<T>(&self, call: &'static str, request: impl Future<Output = T>) -> Result<T> {
        match self.handle.draw(call) {
            Trouble::None => Ok(request.await),
            Trouble::LoseRequest | Trouble::ArriveAfterError(_) => Err(self.no_answer(call)),
            Trouble::LoseReply => {
                request.await;
                Err(self.no_answer(call))
            }
            Trouble::DelayRequest(delay) => {
                tokio::time::sleep(delay).await;
                Ok(request.await)
            }
            Trouble::DelayReply(delay) => {
                let reply = request.await;
                tokio::time::sleep(delay).await;
                Ok(reply)
            }
            Trouble::Hold => {
                // This cannot fail: the semaphore is never closed.
                if let Ok(permit) = self.handle.gate.acquire().await {
                    permit.forget();
                }
                Ok(request.await)
            }
        }
    }

    /// The delay of [`Trouble::ArriveAfterError`], if that is the next trouble.
    fn late(&self) -> Option<Duration> {
        let script = self.handle.script.lock();
        match script.next.front() {
            Some(Trouble::ArriveAfterError(delay)) => Some(*delay),
            _ => None,
        }
    }
}

#[async_trait]
impl Layer for Fault {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        if let Some(delay) = self.late() {
            let (engine, claim) = (Arc::clone(&self.engine), claim.clone());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = engine.place(&claim).await;
            });
        }
        self.inject("place", self.engine.place(claim)).await?
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        if let Some(delay) = self.late() {
            let (engine, held) = (Arc::clone(&self.engine), held.to_vec());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = engine.renew(&held).await;
            });
        }
        match self.inject("renew", self.engine.renew(held)).await {
            Ok(renewals) => renewals,
            Err(_) => {
                let unknown = |_| Renewal::Unknown(self.no_answer("renew"));
                held.iter().map(unknown).collect()
            }
        }
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        if let Some(delay) = self.late() {
            let (engine, claim) = (Arc::clone(&self.engine), claim.clone());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = engine.withdraw(&claim, how).await;
            });
        }
        self.inject("withdraw", self.engine.withdraw(claim, how))
            .await?
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.engine, f)
    }
}
