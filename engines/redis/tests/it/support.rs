//! Common parts of the tests: stores, claims, and short forms of calls.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_core::engine::{
    Claim, Evict, Grant, HeldClaim, Leave, LockView, Place, Renewal, Standing, Withdrawn,
};
use fencelock_core::{ClaimIds, ConfigPart, Engine, Error, LockName, Mode, StoreUrl, Token};
use fencelock_redis::Redis;

/// An engine, and a source of claims.
pub(crate) struct Store<E = Redis> {
    pub(crate) engine: Arc<E>,
    pub(crate) ids: ClaimIds,
}

/// Unless the URL says otherwise, a response may take long: many calls here are made once, and the machine may be busy.
pub(crate) async fn open(url: &str) -> Store {
    let mut url = url.to_owned();
    if !url.contains("response-timeout=") {
        let and = if url.contains('?') { '&' } else { '?' };
        url.push_str(&format!("{and}response-timeout=5s"));
    }
    let url = StoreUrl::parse(&url).unwrap();
    Store::new(Redis::connect(url).await.unwrap())
}

/// The error when a store cannot be opened.
pub(crate) async fn refused(url: &str) -> Error {
    match Redis::connect(StoreUrl::parse(url).unwrap()).await {
        Ok(_) => panic!("{url} is accepted"),
        Err(error) => error,
    }
}

/// Checks that an error is about this part of the configuration.
pub(crate) fn wrong_in(error: &Error, expected: ConfigPart) {
    match error {
        Error::Config { part, .. } => assert_eq!(*part, expected, "{error}"),
        other => panic!("{other:?}"),
    }
}

/// Waits until something is true.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < Duration::from_secs(15),
            "timed out: {what}"
        );
        tokio::time::sleep(ms(2)).await;
    }
}

/// Checks that the locks left no keys.
pub(crate) fn nothing_is_left(server: &fencelock_testbed::Redis) {
    let keys: Vec<String> = server.command(&["KEYS", "*"]).unwrap();
    assert_eq!(keys, ["fencelock:counter"]);
}

/// Waits until the server has one subscriber left.
pub(crate) async fn one_listens(server: &fencelock_testbed::Redis) {
    let channels = || {
        server
            .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "fencelock:*"])
            .unwrap()
    };
    until("one listens", || channels().len() <= 1).await;
}

pub(crate) async fn open_with(server: &fencelock_testbed::Redis, options: &str) -> Store {
    open(&format!("{}?{options}", server.url())).await
}

pub(crate) fn server() -> fencelock_testbed::Redis {
    fencelock_testbed::Redis::start().unwrap()
}

/// How many times the server received a command.
pub(crate) fn calls(server: &fencelock_testbed::Redis, command: &str) -> u64 {
    let stats: String = server.command(&["INFO", "commandstats"]).unwrap();
    let begin = format!("cmdstat_{command}:calls=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&begin));
    let count = count.and_then(|rest| rest.split(',').next());
    count.map_or(0, |count| count.parse().unwrap())
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Store<Redis> {
    /// A claim that waits for 30 s and is recorded, so it is placed by script.
    pub(crate) fn claim(&self, name: &str) -> Claim {
        Claim::new(self.ids.next(), "tester", LockName::new(name).unwrap()).record(true)
    }

    /// A claim that takes the fast path.
    pub(crate) fn plain(&self, name: &str) -> Claim {
        self.claim(name).record(false)
    }

    pub(crate) fn shared(&self, name: &str) -> Claim {
        self.claim(name).mode(Mode::Shared)
    }

    pub(crate) fn permit(&self, name: &str, of: u32) -> Claim {
        self.claim(name).mode(Mode::Permit {
            of: NonZeroU32::new(of).unwrap(),
        })
    }

    /// How many ms longer the server keeps the lock.
    pub(crate) fn pttl(server: &fencelock_testbed::Redis, name: &str) -> i64 {
        server.command(&["PTTL", name]).unwrap()
    }
}

impl<E: Engine> Store<E> {
    pub(crate) fn new(engine: E) -> Self {
        Self {
            engine: Arc::new(engine),
            ids: ClaimIds::new().unwrap(),
        }
    }

    pub(crate) async fn held(&self, claim: &Claim) -> Grant {
        match self.engine.place(claim).await {
            Ok(Standing::Held(grant)) => grant,
            other => panic!("{} is not held: {other:?}", claim.name),
        }
    }

    pub(crate) async fn waits(&self, claim: &Claim) -> Place {
        match self.engine.place(claim).await {
            Ok(Standing::Waiting(place)) => place,
            other => panic!("{} does not wait: {other:?}", claim.name),
        }
    }

    /// The pushed grant.
    pub(crate) async fn granted(&self, claim: &Claim, place: &Place) -> Grant {
        let changed = self.engine.wait(claim, place);
        let changed = tokio::time::timeout(Duration::from_secs(15), changed).await;
        match changed {
            Ok(Ok(Some(grant))) => grant,
            other => panic!("no grant came for {}: {other:?}", claim.name),
        }
    }

    /// Like the core: places the claim, waits until the recheck, and places it again.
    pub(crate) async fn lock(&self, claim: &Claim) -> Grant {
        loop {
            let place = match self.engine.place(claim).await {
                Ok(Standing::Held(grant)) => return grant,
                Ok(Standing::Waiting(place)) => place,
                Err(error) if !error.is_retryable() => panic!("{error}"),
                _ => {
                    tokio::time::sleep(ms(5)).await;
                    continue;
                }
            };
            let clock = self.engine.clock();
            tokio::select! {
                changed = self.engine.wait(claim, &place) => {
                    if let Some(grant) = changed.unwrap() {
                        return grant;
                    }
                }
                () = clock.sleep_until(place.recheck) => {}
            }
        }
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Withdrawn {
        self.engine.withdraw(claim, Leave::Release).await.unwrap()
    }

    pub(crate) async fn abandon(&self, claim: &Claim) -> Withdrawn {
        self.engine.withdraw(claim, Leave::Abandon).await.unwrap()
    }

    pub(crate) async fn renew(&self, claim: &Claim, token: Token) -> Renewal {
        let claim = claim.clone();
        let mut renewed = self.engine.renew(&[HeldClaim::new(claim, token)]).await;
        assert_eq!(renewed.len(), 1);
        renewed.remove(0)
    }

    /// A renewal that must succeed.
    pub(crate) async fn kept(&self, claim: &Claim, token: Token) {
        let renewed = self.renew(claim, token).await;
        assert!(matches!(renewed, Renewal::Kept { .. }), "{renewed:?}");
    }

    /// A renewal that must find the hold lost.
    pub(crate) async fn lost(&self, claim: &Claim, token: Token) {
        let renewed = self.renew(claim, token).await;
        assert!(matches!(renewed, Renewal::Lost), "{renewed:?}");
    }

    pub(crate) async fn look(&self, name: &LockName) -> LockView {
        self.engine.inspect().look(name).await.unwrap()
    }

    pub(crate) async fn evict(&self, name: &LockName, token: Token, how: Evict) -> bool {
        self.engine.inspect().evict(name, token, how).await.unwrap()
    }
}
