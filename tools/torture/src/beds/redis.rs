//! One redis-server, with a memory over restarts or without.

use std::sync::Arc;

use fencelock_testbed::{ClockShim, Redis, Result};

use crate::beds::{Bed, FORGOTTEN_LINE, TWO_HOLDERS, jump, keys_left, kill_clients, unknown};
use crate::harm::Harm;
use crate::history::Rule;

/// Stands there however many names were locked.
pub(super) const COUNTER: &str = "fencelock:counter";

/// Short, so that more happens in the same time.
const WINDOW: u64 = 400;

struct OneRedis {
    redis: Redis,
    clock: Arc<ClockShim>,
    remembers: bool,
}

pub(super) fn start() -> Result<Box<dyn Bed>> {
    launch(true)
}

pub(super) fn start_volatile() -> Result<Box<dyn Bed>> {
    launch(false)
}

fn launch(remembers: bool) -> Result<Box<dyn Bed>> {
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

impl Bed for OneRedis {
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

    fn harms(&self) -> Vec<Harm> {
        vec![
            Harm::Pause,
            Harm::Restart,
            Harm::RestartEmpty,
            Harm::KillConnections,
            Harm::ClockForward,
        ]
    }

    fn begin(&mut self, harm: Harm, _node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.redis.pause(),
            Harm::Restart | Harm::RestartEmpty => {
                self.redis.kill9();
                Ok(())
            }
            Harm::KillConnections => kill_clients(&self.redis),
            Harm::ClockForward => jump(&self.clock, true),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, harm: Harm, _node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.redis.resume(),
            Harm::Restart => self.redis.restart(),
            Harm::RestartEmpty => self.redis.restart_empty(),
            Harm::KillConnections => Ok(()),
            Harm::ClockForward => jump(&self.clock, false),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, harm: Harm) -> (Vec<Rule>, &'static str) {
        match harm {
            Harm::ClockForward => (
                TWO_HOLDERS.into(),
                "its clock must not be set forward while a lock is held",
            ),
            Harm::RestartEmpty => (TWO_HOLDERS.into(), "the server forgot every lock"),
            Harm::Restart if !self.remembers => (
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
        FORGOTTEN_LINE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        keys_left(std::slice::from_ref(&self.redis), |key| key == COUNTER)
    }
}
