//! The wall clock of one server, set forward and back without touching the machine's. A small library, compiled when it is
//! wanted, is preloaded into the server: redis-server, mariadbd, postgres and java go by it; programs that ask the kernel
//! themselves (Go's) do not.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::process::program;

const SOURCE: &str = include_str!("clock_shim.c");

/// A wall clock that the servers started with [`ClockShim::env`] go by. It starts as the machine's own.
#[derive(Debug)]
pub struct ClockShim {
    dir: Dir,
    file: File,
    /// How far ahead of the machine's clock, in ns.
    ahead: Mutex<i64>,
}

impl ClockShim {
    /// Compiles the library, which takes some 50 ms.
    ///
    /// # Errors
    /// If there is no C compiler (`cc`), or it fails.
    pub fn new() -> Result<Arc<Self>> {
        let compiler = program("cc", "gcc libc6-dev")?;
        let dir = Dir::new("clock")?;
        let source = dir.join("shim.c");
        fs::write(&source, SOURCE).map_err(Failure::to(format!("write {source}")))?;
        let mut compile = Command::new(compiler);
        compile.args([
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            &dir.join("shim.so"),
            &source,
        ]);
        let output = compile.output().map_err(Failure::to("run cc"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::new(format!(
                "cc does not compile {source}: {said}"
            )));
        }
        let file =
            File::create(dir.join("offset")).map_err(Failure::to("make a clock's offset"))?;
        let shim = Self {
            dir,
            file,
            ahead: Mutex::new(0),
        };
        shim.shift(0)?;
        Ok(Arc::new(shim))
    }

    /// What a server's environment needs for it to go by this clock.
    #[must_use]
    pub fn env(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", self.dir.join("shim.so")),
            ("FENCELOCK_CLOCK_OFFSET", self.dir.join("offset")),
        ]
    }

    /// Sets the clock forward, from one moment to the next.
    ///
    /// # Errors
    /// If the offset cannot be written.
    pub fn forward(&self, by: Duration) -> Result<()> {
        self.shift(nanos(by))
    }

    /// Sets the clock back, from one moment to the next.
    ///
    /// # Errors
    /// If the offset cannot be written.
    pub fn back(&self, by: Duration) -> Result<()> {
        self.shift(-nanos(by))
    }

    fn shift(&self, by: i64) -> Result<()> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let shifted = ahead.saturating_add(by);
        let written = self.file.write_all_at(&shifted.to_ne_bytes(), 0);
        written.map_err(Failure::to("set a clock"))?;
        *ahead = shifted;
        Ok(())
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
