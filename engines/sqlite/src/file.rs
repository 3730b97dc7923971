//! What an engine knows of its file, even while the file is closed or replaced.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use fencelock_core::{ConfigPart, Error, Result};

use crate::boot::Boot;
use crate::config::Config;

#[derive(Debug)]
pub(crate) struct File {
    pub(crate) config: Config,
    pub(crate) boot: Boot,
    /// The highest token that this engine has seen. It outlives the file, because an old copy may be put back.
    highest: AtomicI64,
}

impl File {
    pub(crate) fn new(config: Config) -> Result<Self> {
        let boot = Boot::find().map_err(|why| Error::config(&config, ConfigPart::Server, why))?;
        Ok(Self {
            config,
            boot,
            highest: AtomicI64::new(0),
        })
    }

    /// The highest token that this engine has seen.
    pub(crate) fn highest(&self) -> i64 {
        self.highest.load(Ordering::Relaxed)
    }

    /// Notes that the file has this token.
    pub(crate) fn saw_token(&self, token: i64) {
        self.highest.fetch_max(token, Ordering::Relaxed);
    }

    /// The last of `count` new tokens by the counter, where `stored` is the last token in the file.
    ///
    /// It is above every token that this engine has seen, and not below the time in microseconds, which grows faster than any
    /// counter. So tokens go on increasing even if the file was deleted, an old copy was put back, or a loss of power took the
    /// last commits.
    pub(crate) fn next_token(&self, stored: i64, count: u32) -> i64 {
        let highest = self.highest.fetch_max(stored, Ordering::Relaxed);
        let next = highest.max(stored).saturating_add(count.into());
        let next = next.max(micros());
        self.saw_token(next);
        next
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.config, f)
    }
}

/// The time in microseconds since 1970, from which tokens are counted.
pub(crate) fn micros() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |time| i64::try_from(time.as_micros()).unwrap_or(1))
}
