//! `--if-away`: what `run` does when the store is away. The user of the command decides this, never the store.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use fencelock::Error;
use fencelock::engine::{Claim, Engine, Grant, Place, Standing};
use fencelock::layers::{Breaker, Layer};
use fencelock::support::Mutex;
use tokio::sync::watch;

use crate::args::{IfAway, Times};
use crate::exit::{Failure, Outcome, code, say};
use crate::joined;
use crate::signals::Signals;

/// A store that grants nothing for this long counts as away: longer than a step of a move takes.
const STALLED: Duration = Duration::from_secs(5);

/// Learns that a store is away when the store's breaker opens, or when it grants nothing for a while.
#[derive(Clone, Debug)]
pub(crate) struct AwayWatch(watch::Sender<Option<(String, String)>>);

impl AwayWatch {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Puts a breaker and this watch around an engine.
    pub(crate) fn around(&self, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let breaker = Breaker::new(engine);
        let watch = self.clone();
        let stalled_since = Mutex::default();
        Arc::new(Watched {
            breaker,
            watch,
            stalled_since,
        })
    }

    /// Returns when the store is away, with the error.
    pub(crate) async fn away(&self) -> Error {
        let mut noted = self.0.subscribe();
        let away = noted.wait_for(Option::is_some).await;
        let away = away.ok().and_then(|away| away.clone());
        let (store, why) = away.unwrap_or_default();
        Error::unavailable(store, "taking the lock", why)
    }
}

#[derive(Debug)]
struct Watched {
    breaker: Breaker,
    watch: AwayWatch,
    /// Since when the store has answered that it grants nothing.
    stalled_since: Mutex<Option<Instant>>,
}

impl Watched {
    fn note<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::Unavailable { store, cause, .. }) = &answer
            && self.breaker.away().is_some()
        {
            self.is_away(store.clone(), cause.to_string());
        }
        answer
    }

    /// A store that grants nothing for a while, as in an interrupted move, counts as one that is away.
    fn note_stall(&self, stalled: Option<&str>) {
        let mut since = self.stalled_since.lock();
        let Some(why) = stalled else {
            *since = None;
            return;
        };
        if since.get_or_insert_with(Instant::now).elapsed() >= STALLED {
            self.is_away(self.breaker.to_string(), why.to_owned());
        }
    }

    fn is_away(&self, store: String, why: String) {
        self.watch.0.send_if_modified(|noted| {
            let first = noted.is_none();
            if first {
                *noted = Some((store, why));
            }
            first
        });
    }
}

#[async_trait]
impl Layer for Watched {
    fn below(&self) -> &dyn Engine {
        &self.breaker
    }

    async fn place(&self, claim: &Claim) -> Result<Standing, Error> {
        let placed = self.note(self.below().place(claim).await);
        if let Ok(standing) = &placed {
            self.note_stall(match standing {
                Standing::Waiting(place) => place.stalled.as_deref(),
                _ => None,
            });
        }
        placed
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>, Error> {
        self.note(self.below().wait(claim, place).await)
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.breaker, f)
    }
}

/// Runs or skips a command whose lock was not taken because the store is away, or fails.
pub(crate) async fn instead(
    choice: IfAway,
    failure: Failure,
    name: &str,
    times: &Times,
    words: &[OsString],
    signals: &mut Signals,
) -> Outcome {
    match choice {
        _ if !failure.is_away() => Err(failure),
        IfAway::Wait | IfAway::Fail => Err(failure),
        IfAway::Skip => {
            let _ = failure.report();
            say(&format!(
                "lock {name}: the store is away, so the command was not run (--if-away skip)"
            ));
            Ok(code::DONE)
        }
        IfAway::Run => {
            let _ = failure.report();
            say(&format!(
                "warning: lock {name}: the store is away, so the command runs without a lock (--if-away run)"
            ));
            joined::run_alone(name, times, words, signals).await
        }
    }
}
