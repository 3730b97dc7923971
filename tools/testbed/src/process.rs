//! A child process that can be stopped, continued and killed by its own pid, and that never outlives this process.

use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::failure::{Failure, Result};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub ExitStatus);

/// Where the child's input comes from and its output goes.
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

/// `None` as long as the pid is the child's, running or not; nobody else can be given the pid until it is reaped.
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
    /// Starts `command`, with these streams instead of its own. On Linux the kernel kills it when this process dies,
    /// however it dies.
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
        // A thread per child, which lives as long as the child does: the kernel's "die with your parent" means the
        // parent's *thread*, and the caller's may be that of a test which shares its server with others.
        let nurse = {
            let shared = Arc::clone(&shared);
            move || match command.spawn() {
                Ok(mut child) => {
                    let pid = Pid::from_child(&child);
                    let pipes = (child.stdin.take(), child.stdout.take());
                    // The receiver waits below.
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

    /// SIGSTOP: it does nothing more, its connections stay open, and what is sent to it is buffered.
    ///
    /// # Errors
    /// If it has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        // The signal is sent, not yet taken: wait until every thread of it has stopped.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let stopped = waitid(WaitId::Pid(self.pid), options);
        stopped
            .map(drop)
            .map_err(Failure::to(format!("stop process {}", self.pid())))
    }

    /// SIGCONT: it goes on, and works off what has come in meanwhile.
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

    /// SIGKILL, and waits until it is gone. Nothing happens if it has ended already.
    pub fn kill9(&self) -> Ended {
        // It fails if the process has ended, which is what is wanted.
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
        // Under the mutex, so that the pid is not reaped and given to somebody else meanwhile.
        let ended = self.shared.ended();
        if let Some(Ended(status)) = *ended {
            let pid = self.pid();
            return Err(Failure::new(format!(
                "process {pid} has ended ({status}); it takes no signals"
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

/// Waits for the end of the child without reaping it, then reaps it while nobody can be signalling it.
fn reap(pid: Pid, mut child: Child, shared: &Shared) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
    let mut ended = shared.ended();
    // A child that cannot be waited for is no child of ours any more; there is no such case, and no status for it.
    *ended = Some(Ended(child.wait().unwrap_or_default()));
    shared.reaped.notify_all();
}

/// Finds a program, as a shell would, or says how to install it.
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

/// The same command under `setpriv --pdeathsig`, where there is one.
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
