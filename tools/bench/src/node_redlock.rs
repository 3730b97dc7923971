//! The contender `node-redlock`: a program in JavaScript that tools/interop/setup.sh installs.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use fencelock::{BootInstant, Clock, Result};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Mutex;

use crate::bare::{failed, redlock};
use crate::foreign::interop;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/node_redlock.mjs");

/// A running node; killed when dropped.
#[derive(Clone)]
pub(crate) struct NodeRedlock(Arc<Mutex<Running>>);

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Where tools/interop/setup.sh has installed it.
pub(crate) fn installed() -> Option<PathBuf> {
    interop("node_modules/redlock5")
}

impl NodeRedlock {
    /// Connects to the nodes that `url` names.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let why = "it is not installed; run tools/interop/setup.sh";
        let installed = installed().ok_or_else(|| failed("node-redlock", why))?;
        let mut command = Command::new("node");
        command.arg(PROGRAM).args(redlock::nodes(url)?);
        command.current_dir(installed).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed("node", error))?;
        let stdout = child.stdout.take();
        let stdout = stdout.ok_or_else(|| failed("node-redlock", "it has no stdout"))?;
        let lines = BufReader::new(stdout).lines();
        let mut running = Running { child, lines };
        running.line().await?;
        Ok(Self(Arc::new(Mutex::new(running))))
    }

    /// Runs one worker for each list of names until `until`. Returns the total number of pairs.
    pub(crate) async fn pairs(&self, names: Vec<Vec<String>>, until: BootInstant) -> Result<u64> {
        let mut running = self.0.lock().await;
        let period = until.since(Clock::Boot.now());
        let job = format!("{}\n", json!({"names": names, "ms": period.as_millis()}));
        let gone = || failed("node-redlock", "it does not read its job");
        let stdin = running.child.stdin.as_mut().ok_or_else(gone)?;
        let told = stdin.write_all(job.as_bytes()).await;
        told.map_err(|error| failed("node-redlock", error))?;
        let line = running.line().await?;
        line.parse().map_err(|error| failed("node-redlock", error))
    }
}

impl Running {
    async fn line(&mut self) -> Result<String> {
        let line = self.lines.next_line().await;
        let line = line.map_err(|error| failed("node-redlock", error))?;
        line.ok_or_else(|| failed("node-redlock", "it ended; its error is on stderr"))
    }
}
