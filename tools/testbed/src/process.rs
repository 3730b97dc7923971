//! A child process that can be stopped, continued and killed, and that never outlives this process.

use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::failure::{Failure, Result};

/// The signals for a server of one process. The struct has it in its field `process`.
macro_rules! signals {
    () => {
        /// SIGSTOP: connections stay open, and requests get no answer.
        ///
        /// # Errors
        /// If it is not running.
        pub fn pause(&self) -> Result<()> {
            self.process.pause()
        }

        /// SIGCONT: it answers the requests that have arrived in the meantime.
        ///
        /// # Errors
        /// If it is not running.
        pub fn resume(&self) -> Result<()> {
            self.process.resume()
        }

        /// SIGKILL, and waits until it has ended. The port stays reserved.
        pub fn kill9(&self) {
            self.process.kill9();
        }
    };
}
pub(crate) use signals;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub ExitStatus);

/// The standard streams of the child.
#[derive(Debug)]
pub struct Streams {
    /// Standard input.
    pub stdin: Stdio,
    /// Standard output.
    pub stdout: Stdio,
    /// Standard error.
    pub stderr: Stdio,
}

/// A child process; killed when dropped.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    shared: Arc<Shared>,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

/// `None` until the child is reaped. Until then its pid is not used again.
#[derive(Debug, Default)]
struct Shared {
    ended: Mutex<Option<Ended>>,
    reaped: Condvar,
}

impl Shared {
    fn ended(&self) -> MutexGuard<'_, Option<Ended>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Starts `command` with these streams. On Linux the kernel kills it when this process ends in any way.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: &Command, streams: Streams) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let shared = Arc::new(Shared::default());
        let (tell, told) = mpsc::channel();
        let mut command = dying_with_us(command);
        command
            .stdin(streams.stdin)
            .stdout(streams.stdout)
            .stderr(streams.stderr);
        // One thread per child that lives as long as the child. The kernel's parent-death signal follows the parent
        // *thread*, and the caller's thread may belong to a test that shares its server with other tests.
        let nurse = {
            let shared = Arc::clone(&shared);
            move || match command.spawn() {
                Ok(mut child) => {
                    let pid = Pid::from_child(&child);
                    let pipes = (child.stdin.take(), child.stdout.take());
                    // Cannot fail: the receiver waits below.
                    drop(tell.send(Ok((pid, pipes))));
                    reap(pid, child, &shared);
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread = std::thread::Builder::new().name(format!("nurse of {name}"));
        let started = Failure::to(format!("start a thread for {name}"));
        thread.spawn(nurse).map_err(started)?;
        let spawned = told
            .recv()
            .map_err(Failure::to(format!("start {name}")))?
            .map_err(Failure::to(format!("start {name}")))?;
        let (pid, (stdin, stdout)) = spawned;
        Ok(Self {
            pid,
            shared,
            stdin,
            stdout,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// SIGSTOP: it stops, its connections stay open, and the kernel buffers what is sent to it.
    ///
    /// # Errors
    /// If it has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        // The signal takes effect later: wait until every thread has stopped.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let stopped = waitid(WaitId::Pid(self.pid), options);
        stopped
            .map(drop)
            .map_err(Failure::to(format!("stop process {}", self.pid())))
    }

    /// SIGCONT: it continues.
    ///
    /// # Errors
    /// If it has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM.
    ///
    /// # Errors
    /// If it has ended.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// SIGKILL, and waits until it has ended. No effect if it has already ended.
    pub fn kill9(&self) -> Ended {
        // Fails only if the process has ended.
        drop(self.signal(Signal::KILL));
        let mut ended = self.shared.ended();
        loop {
            if let Some(ended) = *ended {
                return ended;
            }
            let waited = self.shared.reaped.wait(ended);
            ended = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        *self.shared.ended()
    }

    /// Waits until it has ended, for at most `limit`.
    #[must_use]
    pub fn wait_for(&self, limit: Duration) -> Option<Ended> {
        let deadline = Instant::now() + limit;
        let mut ended = self.shared.ended();
        while ended.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.reaped.wait_timeout(ended, left);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *ended
    }

    pub(crate) fn take_pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.stdin.take(), self.stdout.take())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // Under the mutex, so that nobody reaps the child and its pid is not used again in the meantime.
        let ended = self.shared.ended();
        if let Some(Ended(status)) = *ended {
            let pid = self.pid();
            return Err(Failure::new(format!(
                "process {pid} has ended ({status}); it cannot get signals"
            )));
        }
        kill_process(self.pid, signal)
            .map_err(Failure::to(format!("signal process {}", self.pid())))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Waits for the end of the child, then reaps it under the mutex, so that no signal goes to a reused pid.
fn reap(pid: Pid, mut child: Child, shared: &Shared) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
    let mut ended = shared.ended();
    // Fails only for a process that is not our child, which cannot happen.
    *ended = Some(Ended(child.wait().unwrap_or_default()));
    shared.reaped.notify_all();
}

/// Finds a program in PATH. The failure says how to install it.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf> {
    in_path(name).ok_or_else(|| {
        Failure::new(format!(
            "{name} is not installed; install it with: apt-get install -y --no-install-recommends {package}"
        ))
    })
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(name));
    candidates.find(|candidate| candidate.is_file())
}

/// The same command under `setpriv --pdeathsig`, if `setpriv` is installed.
fn dying_with_us(command: &Command) -> Command {
    let mut wrapped = match in_path("setpriv") {
        Some(setpriv) => {
            let mut wrapped = Command::new(setpriv);
            wrapped
                .args(["--pdeathsig", "KILL", "--"])
                .arg(command.get_program());
            wrapped
        }
        None => Command::new(command.get_program()),
    };
    wrapped.args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}
