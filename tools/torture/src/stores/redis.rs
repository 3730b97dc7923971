//! One redis-server, with or without an append-only file.

use std::sync::Arc;

use fencelock_testbed::{ClockShim, Redis, Result};

use super::store::{
    STALE_QUEUE, TWO_HOLDERS, TestStore, begin_at, heal_at, jump, keys_left, unknown,
};
use crate::fault::FaultKind;
use crate::history::Rule;

/// Whether a key is permanent: the number of such keys does not depend on the number of locks.
pub(super) const COUNTER: &str = "fencelock:counter";

/// A short ttl, so that more happens in the same time.
const WINDOW: u64 = 400;

struct OneRedis {
    redis: Redis,
    clock: Arc<ClockShim>,
    remembers: bool,
}

pub(super) fn start() -> Result<Box<dyn TestStore>> {
    launch(true)
}

pub(super) fn start_volatile() -> Result<Box<dyn TestStore>> {
    launch(false)
}

fn launch(remembers: bool) -> Result<Box<dyn TestStore>> {
    let clock = ClockShim::new()?;
    let redis = Redis::builder().clock(&clock);
    let redis = match remembers {
        true => redis.append_only("always").start()?,
        false => redis.start()?,
    };
    Ok(Box::new(OneRedis {
        redis,
        clock,
        remembers,
    }))
}

impl TestStore for OneRedis {
    fn name(&self) -> &'static str {
        match self.remembers {
            true => "redis",
            false => "redis-volatile",
        }
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.redis.port()]
    }

    fn url(&self, ports: &[u16]) -> String {
        let url = self.redis.url_at(ports[0]);
        format!("{url}?claim-window={WINDOW}ms")
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::Restart,
            FaultKind::RestartEmpty,
            FaultKind::KillConnections,
            FaultKind::ClockForward,
        ]
    }

    fn begin(&mut self, kind: FaultKind, _node: usize) -> Result<()> {
        match kind {
            FaultKind::RestartEmpty => {
                self.redis.kill9();
                Ok(())
            }
            FaultKind::ClockForward => jump(&self.clock, true),
            _ => begin_at(&self.redis, kind).unwrap_or_else(|| Err(unknown(self, kind))),
        }
    }

    fn heal(&mut self, kind: FaultKind, _node: usize) -> Result<()> {
        match kind {
            FaultKind::RestartEmpty => self.redis.restart_empty(),
            FaultKind::ClockForward => jump(&self.clock, false),
            _ => heal_at(&mut self.redis, kind).unwrap_or_else(|| Err(unknown(self, kind))),
        }
    }

    fn excuses(&self, kind: FaultKind) -> (Vec<Rule>, &'static str) {
        match kind {
            FaultKind::ClockForward => (
                TWO_HOLDERS.into(),
                "its clock must not be set forward while a lock is held",
            ),
            FaultKind::RestartEmpty => (TWO_HOLDERS.into(), "the server forgot every lock"),
            FaultKind::Restart if !self.remembers => (
                TWO_HOLDERS.into(),
                "a server without an append-only file forgets every lock with a restart",
            ),
            _ => (Vec::new(), ""),
        }
    }

    fn window(&self) -> u64 {
        WINDOW
    }

    fn forgets_after(&self) -> u64 {
        STALE_QUEUE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        keys_left(std::slice::from_ref(&self.redis), |key| key == COUNTER)
    }
}
