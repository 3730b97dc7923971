//! The guard process: it starts the command, holds the deadline, and ends the command's whole process group when the
//! deadline passes or `run` is gone, whatever state `run` is in.
//!
//! `run` starts it by executing this binary again, with a socket as its standard input. It is the command's parent, so
//! that the command never runs without it and its group's id cannot become another's; it stands in a process group of
//! its own with every signal blocked, so that what a terminal or a shell sends to the job does not reach it.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fencelock::{BootInstant, Clock};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use crate::exit::say;
use crate::group;
use crate::launch;
use crate::terminal::unshielded;
use crate::wire::{FRAME, News, Order, Outcome, Why};

/// The first argument of a guard process.
pub(crate) const WORD: &str = "__guard";

/// The variable with the lock's name, which the guard has from the command's environment.
pub(crate) const NAME: &str = "FENCELOCK_NAME";

/// The longest nap. A timer of the operating system stands still while the machine sleeps and a lease does not, so the
/// guard looks at the clock at least this often.
const NAP: Duration = Duration::from_millis(200);

/// For how long those who were killed are given to be gone, also when the lease is over.
const LINGER: Duration = Duration::from_secs(1);

/// What a guard is told when it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The lock is held until then.
    pub(crate) deadline: BootInstant,
    /// SIGTERM comes this long before the deadline.
    pub(crate) grace: Duration,
    /// From SIGTERM to SIGKILL when the deadline is not the cause.
    pub(crate) kill_after: Duration,
    /// When `--max-hold` is over.
    pub(crate) max_hold: Option<BootInstant>,
    /// The process group in the foreground from which the command gets the terminal, if it does.
    pub(crate) foreground: Option<Pid>,
    /// Whether an outer `run` holds a lock around this one. Then nothing may outlive this `run` for a moment: the outer
    /// one's deadline may be what ended it.
    pub(crate) nested: bool,
}

impl Terms {
    fn encode(&self) -> String {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let words = [
            self.deadline.as_nanos(),
            nanos(self.grace),
            nanos(self.kill_after),
            self.max_hold.map_or(u64::MAX, BootInstant::as_nanos),
            u64::from(Pid::as_raw(self.foreground).unsigned_abs()),
            self.nested.into(),
        ];
        words.map(|word| word.to_string()).join(",")
    }

    fn decode(text: &str) -> Option<Self> {
        let words: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
        let words: [u64; 6] = words.ok()?.try_into().ok()?;
        let [deadline, grace, kill_after, max_hold, foreground, nested] = words;
        Some(Self {
            deadline: BootInstant::from_nanos(deadline),
            grace: Duration::from_nanos(grace),
            kill_after: Duration::from_nanos(kill_after),
            max_hold: (max_hold != u64::MAX).then(|| BootInstant::from_nanos(max_hold)),
            foreground: i32::try_from(foreground).ok().and_then(Pid::from_raw),
            nested: nested != 0,
        })
    }
}

/// Starts a guard process, which starts `command` with this process's standard streams and the environment given.
pub(crate) fn start(
    terms: &Terms,
    command: &[OsString],
    environment: &[(&str, String)],
) -> io::Result<(std::process::Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    send_descriptor(&ours, io::stdin().as_fd())?;
    let mut guard = Command::new(this_binary()?);
    guard
        .arg0("fencelock-guard")
        .arg(WORD)
        .arg(terms.encode())
        .args(command)
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .process_group(0);
    let child = unshielded(|| guard.spawn())?;
    Ok((child, ours))
}

/// This very binary, also after an upgrade has replaced its file.
pub(crate) fn this_binary() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        Ok(link.to_owned())
    } else {
        std::env::current_exe()
    }
}

/// The guard process itself: everything after [`WORD`] on its command line.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    SigSet::all().thread_block()?;
    let terms = arguments.next();
    let terms = terms
        .as_deref()
        .and_then(OsStr::to_str)
        .and_then(Terms::decode);
    let (Some(terms), Some(program)) = (terms, arguments.next()) else {
        return Err(io::Error::other("this word is for fencelock's own use"));
    };
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive_descriptor(&control)?;
    if Clock::Boot.now() >= terms.deadline {
        // Stopped for too long before it could start anything.
        let killed = Outcome::Signal(u8::try_from(Signal::KILL.as_raw()).unwrap_or(0));
        return control.write_all(&News::Ended(killed, Some(Why::Lost)).encode());
    }
    let mut command = launch::command(terms.foreground, &program)?;
    command
        .args(arguments)
        .stdin(Stdio::from(stdin))
        .process_group(0);
    let spawned = command.spawn();
    // Its standard input is the command's alone.
    drop(command);
    let child = match spawned {
        Ok(child) => child,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            return control.write_all(&News::NotStarted(errno).encode());
        }
    };
    // A process id is a positive number.
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let group = group.ok_or_else(|| io::Error::other("a command without a process id"))?;
    let (waiter, child_news) = UnixStream::pair()?;
    std::thread::spawn(move || await_child(group, waiter));
    control.set_nonblocking(true)?;
    child_news.set_nonblocking(true)?;
    let mut watch = Watch {
        control,
        child_news,
        group,
        terms,
        ending: None,
        orphan: false,
        denied: false,
    };
    watch.tell(News::Started(group.as_raw_pid()));
    let watched = watch.watch();
    if watched.is_err() {
        watch.signal(Signal::KILL);
    }
    // Only then may the group's id become another's.
    let _ = waitpid(Some(group), WaitOptions::empty());
    watched
}

/// An end that has begun.
#[derive(Clone, Copy, Debug)]
struct Ending {
    why: Why,
    kill_at: BootInstant,
    killed: bool,
}

struct Watch {
    control: UnixStream,
    child_news: UnixStream,
    group: Pid,
    terms: Terms,
    ending: Option<Ending>,
    /// `run` is gone.
    orphan: bool,
    /// It was said that the command may not be signalled.
    denied: bool,
}

impl Watch {
    /// Returns when the command is over.
    fn watch(&mut self) -> io::Result<()> {
        loop {
            // What `run` has to say comes first: the newest deadline is the one that counts.
            self.take_orders()?;
            let now = Clock::Boot.now();
            self.act(now);
            while let Some(bytes) = read_frame(&mut self.child_news)? {
                match News::decode(bytes) {
                    Some(News::Ended(outcome, _)) => {
                        self.finish(outcome);
                        return Ok(());
                    }
                    Some(news) => self.tell(news),
                    None => {}
                }
            }
            self.sleep(self.next(now))?;
        }
    }

    fn take_orders(&mut self) -> io::Result<()> {
        while !self.orphan {
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
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.orphan = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Does what is due.
    fn act(&mut self, now: BootInstant) {
        let terms = self.terms;
        if now >= terms.deadline {
            self.end(Why::Lost, now);
        } else if self.orphan {
            let kill_at = if terms.nested {
                now
            } else {
                (now + terms.kill_after).min(terms.deadline)
            };
            self.end(Why::Abandoned, kill_at);
        } else if now + terms.grace >= terms.deadline {
            self.end(Why::Lost, terms.deadline);
        } else if terms.max_hold.is_some_and(|at| now >= at) {
            self.end(Why::MaxHold, now + terms.kill_after);
        }
        if let Some(ending) = &mut self.ending
            && !ending.killed
            && now >= ending.kill_at
        {
            ending.killed = true;
            self.signal(Signal::KILL);
            // Others of the group may have been killed, and the command itself not.
            if !group::may_signal(self.group) {
                self.deny();
            }
        }
    }

    /// Begins to end the command, or brings an end that has begun forward.
    fn end(&mut self, why: Why, kill_at: BootInstant) {
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(kill_at);
            return;
        }
        self.ending = Some(Ending {
            why,
            kill_at,
            killed: false,
        });
        if Clock::Boot.now() < kill_at {
            self.signal(Signal::TERM);
            // A command that was stopped can use the time as well.
            self.signal(Signal::CONT);
        }
        self.tell(News::Ending(why));
    }

    /// The command itself is over. What it left in its group may stay, unless the lock is no longer this job's.
    fn finish(&mut self, outcome: Outcome) {
        if self.ending.is_some() {
            self.signal(Signal::KILL);
            // Nobody is signalled from here on, so the group's id may become another's once nobody is left in it.
            let _ = waitpid(Some(self.group), WaitOptions::empty());
            // The lock must not be released while somebody goes on who was to be ended; after its lease it is free anyway.
            let lease = self.terms.deadline.since(Clock::Boot.now());
            if !group::await_end(self.group, LINGER) {
                self.deny();
                if !group::await_end(self.group, lease) {
                    self.tell(News::Left);
                }
            }
        }
        self.tell(News::Ended(outcome, self.ending.map(|ending| ending.why)));
    }

    /// When something is due next.
    fn next(&self, now: BootInstant) -> Duration {
        let deadline = self.terms.deadline;
        let term = match self.ending {
            // Before `deadline - grace`, without an instant below zero.
            None => deadline.since(now).saturating_sub(self.terms.grace),
            Some(ending) if !ending.killed => ending.kill_at.since(now).min(deadline.since(now)),
            Some(_) => NAP,
        };
        let max_hold = self.terms.max_hold.filter(|_| self.ending.is_none());
        let max_hold = max_hold.map_or(NAP, |at| at.since(now));
        term.min(max_hold).min(NAP)
    }

    fn sleep(&self, most: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: most.as_secs().try_into().unwrap_or(0),
            tv_nsec: most.subsec_nanos().into(),
        };
        let mut sources = vec![PollFd::new(&self.child_news, PollFlags::IN)];
        if !self.orphan {
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

    /// Says, once, that the command may not be signalled. Said from here, since `run` may be gone.
    fn deny(&mut self) {
        if std::mem::replace(&mut self.denied, true) {
            return;
        }
        let name = std::env::var(NAME).unwrap_or_default();
        let what = "the command, or a part of it, runs as another user, whom this one may not signal, and goes on";
        say(&format!("lock {name}: {what}; {}", group::INSTEAD));
        self.tell(News::Denied);
    }

    fn tell(&mut self, news: News) {
        // If `run` is gone, reading from it says so.
        let _ = self.control.write_all(&news.encode());
    }
}

/// Waits for the command and reports. It is not reaped here, so that its process group keeps its id.
fn await_child(child: Pid, mut report: UnixStream) {
    loop {
        let states = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let status = match waitid(WaitId::Pid(child), states) {
            Ok(Some(status)) => status,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            // It is not our child: impossible.
            Err(_) => return,
        };
        let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
        let news = if let Some(code) = status.exit_status() {
            News::Ended(Outcome::Code(byte(code)), None)
        } else if let Some(signal) = status.terminating_signal() {
            News::Ended(Outcome::Signal(byte(signal)), None)
        } else {
            // Told once: the state is taken off the kernel's list.
            let taken = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            let _ = waitid(WaitId::Pid(child), taken);
            match status.stopping_signal() {
                Some(signal) => News::Stopped(signal),
                None => continue,
            }
        };
        let told = report.write_all(&news.encode());
        if told.is_err() || matches!(news, News::Ended(..)) {
            return;
        }
    }
}

/// The next message of a socket that does not block, if one is there. Messages are written whole, so one that has begun
/// ends at once.
fn read_frame(stream: &mut UnixStream) -> io::Result<Option<[u8; FRAME]>> {
    let mut bytes = [0; FRAME];
    let mut have = 0;
    while have < FRAME {
        match stream.read(&mut bytes[have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && have == 0 => {
                return Ok(None);
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                // A peer that was killed with messages unread.
                io::ErrorKind::ConnectionReset => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                _ => return Err(error),
            },
        }
    }
    Ok(Some(bytes))
}

fn send_descriptor(socket: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !message.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    sendmsg(
        socket,
        &[IoSlice::new(b"0")],
        &mut message,
        SendFlags::empty(),
    )?;
    Ok(())
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut message,
        flags,
    )?;
    for part in message.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = part
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::Error::other("run did not send its standard input"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_survive_the_command_line() {
        let mut terms = Terms {
            deadline: BootInstant::from_nanos(123_456_789_012),
            grace: Duration::from_millis(1500),
            kill_after: Duration::from_secs(5),
            max_hold: None,
            foreground: Pid::from_raw(4711),
            nested: false,
        };
        assert_eq!(Terms::decode(&terms.encode()), Some(terms));
        terms.max_hold = Some(BootInstant::from_nanos(7));
        terms.foreground = None;
        terms.nested = true;
        assert_eq!(Terms::decode(&terms.encode()), Some(terms));
        assert_eq!(Terms::decode("1,2,3"), None);
    }
}
