//! The supervisor process starts the command and holds the deadline. It ends the command's whole process group when the
//! deadline passes or `run` is gone, even while `run` is stopped.
//!
//! `run` starts the supervisor by executing this binary again, with a socket as its standard input. The supervisor is the
//! parent of the command: so the command never runs without it, and the id of the command's group is not reused. The supervisor
//! has a process group of its own and blocks every signal. So the signals that a terminal or a shell sends to the job do not
//! reach it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencelock::{BootInstant, Clock};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use crate::descriptor;
use crate::environment::NAME;
use crate::exit::say;
use crate::group;
use crate::launch::{self, this_binary};
use crate::terminal::unshielded;
use crate::wire::{Cause, ChildExit, Order, Report, Terms, read_frame};

/// The first argument of a supervisor process.
pub(crate) const WORD: &str = "__supervisor";

/// The longest sleep. While the machine is suspended, a timer of the operating system stands still, and a lease does not. So
/// the supervisor reads the clock at least this often.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long to wait until killed processes are gone, also after the lease has ended.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts a supervisor process, which starts the command `words` with this process's standard streams and the given
/// environment.
pub(crate) fn start(
    terms: &Terms,
    words: &[OsString],
    environment: &[(&str, String)],
) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    descriptor::send(&ours, io::stdin().as_fd())?;
    let mut supervisor = Command::new(this_binary()?);
    supervisor
        .arg0("fencelock-supervisor")
        .arg(WORD)
        .arg(terms.encode())
        .args(words)
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .process_group(0);
    let child = unshielded(|| supervisor.spawn())?;
    Ok((child, ours))
}

/// The supervisor process itself; `arguments` follow [`WORD`] on its command line.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    SigSet::all().thread_block()?;
    let terms = arguments.next();
    let terms = terms
        .as_deref()
        .and_then(OsStr::to_str)
        .and_then(Terms::decode);
    let (Some(terms), Some(program)) = (terms, arguments.next()) else {
        return Err(io::Error::other("only fencelock itself may use this word"));
    };
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = descriptor::receive(&control)?;
    if terms.left(Clock::Boot.now()).is_zero() {
        // This process was stopped until it is too late for a command.
        let killed = ChildExit::Signal(u8::try_from(Signal::KILL.as_raw()).unwrap_or(0));
        return control.write_all(&Report::Ended(killed, Some(Cause::Lost)).encode());
    }
    match spawn(&terms, &program, arguments, stdin) {
        Ok(child) => supervise(&child, control, terms),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            control.write_all(&Report::NotStarted(errno).encode())
        }
    }
}

/// Starts the command. Its standard input stays open in the command alone.
fn spawn(
    terms: &Terms,
    program: &OsStr,
    arguments: impl Iterator<Item = OsString>,
    stdin: OwnedFd,
) -> io::Result<Child> {
    launch::command(terms.foreground, program)?
        .args(arguments)
        .stdin(Stdio::from(stdin))
        .process_group(0)
        .spawn()
}

/// Watches over the command until it ends.
fn supervise(child: &Child, control: UnixStream, terms: Terms) -> io::Result<()> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let group = group.ok_or_else(|| io::Error::other("a command without a process id"))?;
    let (sender, child_reports) = UnixStream::pair()?;
    std::thread::spawn(move || await_child(group, sender));
    control.set_nonblocking(true)?;
    child_reports.set_nonblocking(true)?;
    let mut supervisor = Supervisor {
        control,
        child_reports,
        group,
        terms,
        ending: None,
        orphaned: false,
        denied: false,
    };
    supervisor.report(Report::Started(group.as_raw_pid()));
    let result = supervisor.watch();
    if result.is_err() {
        supervisor.signal(Signal::KILL);
    }
    // Reaped last: until here the id of the group cannot be reused.
    let _ = waitpid(Some(group), WaitOptions::empty());
    result
}

/// The ending of the command has begun.
#[derive(Clone, Copy, Debug)]
struct Ending {
    cause: Cause,
    kill_at: BootInstant,
    killed: bool,
}

struct Supervisor {
    control: UnixStream,
    child_reports: UnixStream,
    group: Pid,
    terms: Terms,
    ending: Option<Ending>,
    /// `run` is gone.
    orphaned: bool,
    /// The supervisor has already said that it may not signal the command.
    denied: bool,
}

impl Supervisor {
    /// Returns when the command has ended.
    fn watch(&mut self) -> io::Result<()> {
        loop {
            // Orders come first, so that a new deadline counts before the old one is acted on.
            self.take_orders()?;
            let now = Clock::Boot.now();
            self.act(now);
            while let Some(bytes) = read_frame(&mut self.child_reports)? {
                match Report::decode(bytes) {
                    Some(Report::Ended(exit, _)) => {
                        self.finish(exit);
                        return Ok(());
                    }
                    Some(report) => self.report(report),
                    None => {}
                }
            }
            self.sleep(self.next_action(now))?;
        }
    }

    fn take_orders(&mut self) -> io::Result<()> {
        while !self.orphaned {
            match read_frame(&mut self.control) {
                Ok(Some(bytes)) => match Order::decode(bytes) {
                    Some(Order::Deadline(at)) => self.terms.deadline = at,
                    Some(Order::Signal(number)) => {
                        if let Some(signal) = Signal::from_named_raw(number) {
                            self.signal(signal);
                        }
                    }
                    Some(Order::Lost) => self.terms.deadline = BootInstant::from_nanos(0),
                    None => {}
                },
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.orphaned = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Begins or completes the ending of the command if it is due.
    fn act(&mut self, now: BootInstant) {
        let terms = self.terms;
        let latest = now + terms.left(now);
        if now >= latest {
            self.end(Cause::Lost, now);
        } else if self.orphaned {
            let kill_at = if terms.nested {
                now
            } else {
                (now + terms.kill_after).min(latest)
            };
            self.end(Cause::Abandoned, kill_at);
        } else if now + terms.grace >= terms.deadline {
            self.end(Cause::Lost, latest);
        } else if terms.max_hold.is_some_and(|at| now >= at) {
            self.end(Cause::MaxHold, now + terms.kill_after);
        }
        if let Some(ending) = &mut self.ending
            && !ending.killed
            && now >= ending.kill_at
        {
            ending.killed = true;
            self.signal(Signal::KILL);
            // The signal to the group succeeds if it reaches any process of it. The command itself may be another user's.
            if !group::may_signal(self.group) {
                self.deny();
            }
        }
    }

    /// Begins to end the command. If that has begun already, `kill_at` may bring the kill forward.
    fn end(&mut self, cause: Cause, kill_at: BootInstant) {
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(kill_at);
            return;
        }
        self.ending = Some(Ending {
            cause,
            kill_at,
            killed: false,
        });
        if Clock::Boot.now() < kill_at {
            self.signal(Signal::TERM);
            // A stopped command continues, so that it can react.
            self.signal(Signal::CONT);
        }
        self.report(Report::Ending(cause));
    }

    /// The command itself has ended. Other processes of its group may stay, unless the lock is no longer this job's.
    fn finish(&mut self, exit: ChildExit) {
        if self.ending.is_some() {
            self.signal(Signal::KILL);
            // No signals are sent after this, so the id of the group may be reused once the group is empty.
            let _ = waitpid(Some(self.group), WaitOptions::empty());
            // The lock must not be released while a process still runs that had to end. After the lease it is free anyway.
            let lease = self.terms.deadline.since(Clock::Boot.now());
            if !group::await_end(self.group, REAP_TIMEOUT) {
                self.deny();
                if !group::await_end(self.group, lease) {
                    self.report(Report::Survivors);
                }
            }
        }
        let cause = self.ending.map(|ending| ending.cause);
        self.report(Report::Ended(exit, cause));
    }

    /// The time until something is due.
    fn next_action(&self, now: BootInstant) -> Duration {
        let left = self.terms.left(now);
        let ending = match self.ending {
            None => {
                let lease = self.terms.deadline.since(now);
                lease.saturating_sub(self.terms.grace).min(left)
            }
            Some(ending) if !ending.killed => ending.kill_at.since(now).min(left),
            Some(_) => POLL_INTERVAL,
        };
        let max_hold = self.terms.max_hold.filter(|_| self.ending.is_none());
        let max_hold = max_hold.map_or(POLL_INTERVAL, |at| at.since(now));
        ending.min(max_hold).min(POLL_INTERVAL)
    }

    fn sleep(&self, most: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: most.as_secs().try_into().unwrap_or(0),
            tv_nsec: most.subsec_nanos().into(),
        };
        let mut sources = vec![PollFd::new(&self.child_reports, PollFlags::IN)];
        if !self.orphaned {
            sources.push(PollFd::new(&self.control, PollFlags::IN));
        }
        match poll(&mut sources, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn signal(&mut self, signal: Signal) {
        if !group::signal(self.group, signal) {
            self.deny();
        }
    }

    /// Says once that this user may not signal the command. The supervisor says it, since `run` may be gone.
    fn deny(&mut self) {
        if std::mem::replace(&mut self.denied, true) {
            return;
        }
        let name = std::env::var(NAME).unwrap_or_default();
        let what = "the command, or a part of it, still runs as another user, and this user may not signal it";
        say(&format!("lock {name}: {what}; {}", group::ADVICE));
        self.report(Report::Denied);
    }

    fn report(&mut self, report: Report) {
        // If `run` is gone, the next read from the socket shows that.
        let _ = self.control.write_all(&report.encode());
    }
}

/// Waits for the command and reports its end. The command is not reaped here, so that the id of its group is not reused.
fn await_child(child: Pid, mut sender: UnixStream) {
    loop {
        let states = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let status = match waitid(WaitId::Pid(child), states) {
            Ok(Some(status)) => status,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            // Only for a process that is not our child.
            Err(_) => return,
        };
        let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
        let report = if let Some(code) = status.exit_status() {
            Report::Ended(ChildExit::Code(byte(code)), None)
        } else if let Some(signal) = status.terminating_signal() {
            Report::Ended(ChildExit::Signal(byte(signal)), None)
        } else {
            // Takes the stop from the kernel, so that it is reported once.
            let taken = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            let _ = waitid(WaitId::Pid(child), taken);
            match status.stopping_signal() {
                Some(signal) => Report::Stopped(signal),
                None => continue,
            }
        };
        let sent = sender.write_all(&report.encode());
        if sent.is_err() || matches!(report, Report::Ended(..)) {
            return;
        }
    }
}
