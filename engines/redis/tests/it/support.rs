//! What the tests share: stores, claims, and short ways to ask.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Grant, HeldClaim, Leave, Place, Renewal, Standing, Withdrawn};
use fencelock_core::{ClaimIds, Engine, LockName, Mode, StoreUrl, Token};
use fencelock_redis::Redis;

/// An engine on a URL, and a source of claims.
pub(crate) struct Store {
    pub(crate) engine: Redis,
    ids: ClaimIds,
}

pub(crate) async fn open(url: &str) -> Store {
    let engine = Redis::connect(StoreUrl::parse(url).unwrap()).await.unwrap();
    let ids = ClaimIds::new().unwrap();
    Store { engine, ids }
}

/// Waits until the server listens to one process of all those that were open.
pub(crate) async fn one_listens(server: &fencelock_testbed::Redis) {
    let begin = Instant::now();
    let listened = || {
        server
            .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "fencelock:*"])
            .unwrap()
    };
    while listened().len() > 1 {
        assert!(begin.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(ms(2)).await;
    }
}

/// With options, after `?`.
pub(crate) async fn open_with(server: &fencelock_testbed::Redis, options: &str) -> Store {
    open(&format!("{}?{options}", server.url())).await
}

pub(crate) fn server() -> fencelock_testbed::Redis {
    fencelock_testbed::Redis::start().unwrap()
}

/// How often the server was given a command.
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

impl Store {
    /// A claim that waits, for 30 s, recorded: the way by script.
    pub(crate) fn claim(&self, name: &str) -> Claim {
        Claim {
            id: self.ids.next(),
            owner: "tester".into(),
            name: LockName::new(name).unwrap(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(30),
            lock_delay: Duration::ZERO,
            wait: true,
            reserve: 1,
            record: true,
            label: None,
        }
    }

    /// A claim that takes the fast path.
    pub(crate) fn plain(&self, name: &str) -> Claim {
        Claim {
            record: false,
            ..self.claim(name)
        }
    }

    pub(crate) fn shared(&self, name: &str) -> Claim {
        Claim {
            mode: Mode::Shared,
            ..self.claim(name)
        }
    }

    pub(crate) fn permit(&self, name: &str, of: u32) -> Claim {
        Claim {
            mode: Mode::Permit {
                of: NonZeroU32::new(of).unwrap(),
            },
            ..self.claim(name)
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

    /// The grant that comes by itself.
    pub(crate) async fn granted(&self, claim: &Claim, place: &Place) -> Grant {
        let changed = self.engine.wait(claim, place);
        let changed = tokio::time::timeout(Duration::from_secs(5), changed).await;
        match changed {
            Ok(Ok(Some(grant))) => grant,
            other => panic!("no grant came for {}: {other:?}", claim.name),
        }
    }

    /// As the core does it: place, wait until the recheck, place again.
    pub(crate) async fn lock(&self, claim: &Claim) -> Grant {
        loop {
            let place = match self.engine.place(claim).await {
                Ok(Standing::Held(grant)) => return grant,
                Ok(Standing::Waiting(place)) => place,
                Ok(Standing::Busy) => {
                    tokio::time::sleep(ms(5)).await;
                    continue;
                }
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(ms(5)).await;
                    continue;
                }
                Err(error) => panic!("{error}"),
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
        let mut renewed = self.engine.renew(&[HeldClaim { claim, token }]).await;
        assert_eq!(renewed.len(), 1);
        renewed.remove(0)
    }

    /// How much longer the server keeps the lock, in ms, as it says.
    pub(crate) fn pttl(server: &fencelock_testbed::Redis, name: &str) -> i64 {
        server.command(&["PTTL", name]).unwrap()
    }
}
