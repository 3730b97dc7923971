//! Sets the wall clock of one server forward and back, without a change of the machine's clock. The server preloads a
//! small library, which is compiled when it is needed. This works for redis-server, mariadbd, postgres and java, but
//! not for programs that ask the kernel directly, such as those in Go.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::process::program;

const SOURCE: &str = include_str!("clock_shim.c");

/// The wall clock of the servers that are started with [`ClockShim::env`]. At first it equals the machine's clock.
#[derive(Debug)]
pub struct ClockShim {
    dir: Dir,
    file: File,
    /// The offset from the machine's clock, in ns.
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

    /// The environment variables of a server that uses this clock.
    #[must_use]
    pub fn env(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", self.dir.join("shim.so")),
            ("FENCELOCK_CLOCK_OFFSET", self.dir.join("offset")),
        ]
    }

    /// Sets the clock forward at once.
    ///
    /// # Errors
    /// If the offset cannot be written.
    pub fn forward(&self, by: Duration) -> Result<()> {
        self.shift(nanos(by))
    }

    /// Sets the clock back at once.
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
