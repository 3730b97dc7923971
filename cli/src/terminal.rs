//! The terminal that a shell gave to this job, and that the command gets while it runs.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// The terminal that controls this session, if one does.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty");
        tty.ok().map(Self)
    }

    /// Whether this process's job is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    /// Whether a process group is in the foreground.
    pub(crate) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|front| front == group)
    }

    /// Brings a process group to the foreground. SIGTTOU must be blocked (see [`shield`]).
    pub(crate) fn give(&self, group: Pid) {
        // It fails if the group is gone already, or the terminal is; there is nothing to be done then.
        let _ = tcsetpgrp(&self.0, group);
    }

    /// Brings this process's job to the foreground. SIGTTOU must be blocked (see [`shield`]).
    pub(crate) fn take_back(&self) {
        self.give(getpgrp());
    }
}

/// Blocks the signal that would stop a job in the background for handing the terminal on, or for writing to it, in this
/// thread and those that it starts. Commands are to be started [`unshielded`].
pub(crate) fn shield() -> io::Result<()> {
    Ok(sigttou().thread_block()?)
}

/// Starts something that is not to inherit the [`shield`].
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
