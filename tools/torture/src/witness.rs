//! A layer between the core and the engine that records when each claim was placed, queued and granted.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use fencelock::engine::{Claim, ClaimId, Engine, Grant, Leave, Place, Standing, Withdrawn};
use fencelock::layers::Layer;
use fencelock::{Clock, Mode, Result, Token};

/// What is known of one claim. Reported when it holds; other claims are not needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) placed: u64,
    pub(crate) stood: Option<u64>,
}

type Tell = Box<dyn Fn(&Claim, Seen, u64, Token) + Send + Sync>;

pub(crate) struct Witness {
    engine: Arc<dyn Engine>,
    open: Mutex<HashMap<ClaimId, Seen>>,
    tell: Tell,
}

impl Witness {
    /// `tell` is called for each claim that holds, with the instant when that was known and its first token.
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        tell: impl Fn(&Claim, Seen, u64, Token) + Send + Sync + 'static,
    ) -> Self {
        Self {
            engine,
            open: Mutex::default(),
            tell: Box::new(tell),
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<ClaimId, Seen>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn granted(&self, claim: &Claim, grant: &Grant) {
        if let Some(seen) = self.open().remove(&claim.id) {
            let now = Clock::Boot.now().as_nanos();
            (self.tell)(claim, seen, now, grant.tokens.first);
        }
    }
}

#[async_trait]
impl Layer for Witness {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        if claim.wait && claim.mode == Mode::Exclusive {
            let now = Clock::Boot.now().as_nanos();
            let (placed, stood) = (now, None);
            self.open()
                .entry(claim.id)
                .or_insert(Seen { placed, stood });
        }
        let standing = self.engine.place(claim).await?;
        match &standing {
            Standing::Held(grant) => self.granted(claim, grant),
            Standing::Waiting(_) => {
                if let Some(seen) = self.open().get_mut(&claim.id) {
                    let now = || Clock::Boot.now().as_nanos();
                    seen.stood.get_or_insert_with(now);
                }
            }
            _ => {}
        }
        Ok(standing)
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        let granted = self.engine.wait(claim, place).await?;
        if let Some(grant) = &granted {
            self.granted(claim, grant);
        }
        Ok(granted)
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.open().remove(&claim.id);
        self.engine.withdraw(claim, how).await
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Witness").field(&self.engine).finish()
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.engine, f)
    }
}
