//! `etcdctl lock`, which holds the lock for as long as its process lives.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::failure::Failure;

/// How long `etcdctl` may take to acquire a free lock without a wait. It has no option for that.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Locks by running `etcdctl`.
pub(crate) struct Etcdctl {
    endpoint: String,
    held: Option<Running>,
}

/// The process, and its output, which stays open. A write to a closed pipe would end the process and leave its key for
/// a lease.
type Running = (Child, Lines<BufReader<ChildStdout>>);

impl Etcdctl {
    pub(crate) fn new(endpoint: String) -> Self {
        Self {
            endpoint,
            held: None,
        }
    }

    pub(crate) async fn take(
        &mut self,
        name: &str,
        ttl: Duration,
        wait: bool,
    ) -> Result<bool, Failure> {
        // Killed together with this process, so that its session ends like that of a killed client.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "etcdctl"])
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint, "lock", "--ttl"])
            .arg(ttl.as_secs().max(1).to_string())
            .arg(name)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("setpriv, for etcdctl: {error}"))?;
        let stdout = child.stdout.take().ok_or("etcdctl has no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let limit = if wait { Duration::MAX } else { AT_ONCE };
        // It prints its key when it holds the lock.
        match tokio::time::timeout(limit, lines.next_line()).await {
            Ok(Ok(Some(_))) => self.held = Some((child, lines)),
            Ok(ended) => return Err(format!("etcdctl ended: {ended:?}").into()),
            Err(_) => {
                end(child).await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) async fn release(&mut self) -> Result<bool, Failure> {
        let held = self.held.take().ok_or("a release without a hold")?;
        end(held.0).await?;
        Ok(true)
    }
}

/// Asks the process to end. It then releases the lock, or leaves the queue.
async fn end(mut child: Child) -> Result<(), Failure> {
    let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    kill_process(id.ok_or("etcdctl has ended by itself")?, Signal::TERM)?;
    child.wait().await?;
    Ok(())
}
