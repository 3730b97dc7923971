//! The controlling terminal: the shell gives it to this job, and this job to the command while it runs.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty");
        tty.ok().map(Self)
    }

    /// Whether this job is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    /// Whether a process group is in the foreground.
    pub(crate) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|front| front == group)
    }

    /// Brings a process group to the foreground. SIGTTOU must be blocked (see [`shield`]).
    pub(crate) fn give(&self, group: Pid) {
        // Fails only if the group or the terminal is gone. Then nothing needs to be done.
        let _ = tcsetpgrp(&self.0, group);
    }

    /// Brings this job to the foreground. SIGTTOU must be blocked (see [`shield`]).
    pub(crate) fn take_back(&self) {
        self.give(getpgrp());
    }
}

/// Blocks SIGTTOU in this thread and in the threads that it starts. The signal would stop a job in the background that
/// hands the terminal over or writes to it. Commands must be started [`unshielded`].
pub(crate) fn shield() -> io::Result<()> {
    Ok(sigttou().thread_block()?)
}

/// Starts a process that does not inherit the [`shield`].
pub(crate) fn unshielded<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    sigttou().thread_unblock()?;
    let started = start();
    shield()?;
    started
}

fn sigttou() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTTOU);
    set
}
