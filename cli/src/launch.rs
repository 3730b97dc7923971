//! The step between the guard process and the command, in the command's own process: it binds the command's life to the
//! guard's, brings its group to the foreground of the terminal, lets signals through, and then becomes the command. So the
//! command never runs without any of this, and the guard never has to let signals through itself.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, getpgrp, getpid, getppid};

use crate::exit::{Failure, Outcome};
use crate::guard::this_binary;
use crate::run::not_started;
use crate::terminal::Terminal;

/// The first argument of this step.
pub(crate) const WORD: &str = "__launch";

/// This step, for a program that gets the terminal from a process group in the foreground, or none.
pub(crate) fn command(from: Option<Pid>, program: &OsStr) -> io::Result<Command> {
    let mut command = Command::new(this_binary()?);
    command.arg(WORD);
    for pid in [Some(getpid()), from] {
        command.arg(Pid::as_raw(pid).to_string());
    }
    command.arg(program);
    Ok(command)
}

/// The step itself: everything after [`WORD`] on its command line. Returns only if the command cannot be started.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> Outcome {
    let mut pid = || {
        let number = arguments.next()?.to_str()?.parse().ok()?;
        Pid::from_raw(number)
    };
    let (guard, from) = (pid(), pid());
    let command: Vec<OsString> = arguments.collect();
    let Some((program, rest)) = command.split_first() else {
        return Err(Failure::usage("this word is for fencelock's own use"));
    };
    die_with_parent().map_err(|error| Failure::internal("binding the command's life", error))?;
    if getppid() != guard {
        return Err(Failure::internal(
            "starting the command",
            "its guard is gone",
        ));
    }
    if let Some(from) = from
        && let Some(terminal) = Terminal::open()
        // Not from a shell that has taken it back meanwhile.
        && terminal.is_of(from)
    {
        terminal.give(getpgrp());
    }
    // Inherited from the guard. What came meanwhile takes effect here.
    let unblocked = SigSet::all().thread_unblock();
    unblocked.map_err(|error| Failure::internal("letting signals through", error))?;
    let error = Command::new(program).args(rest).exec();
    Err(not_started(&command, &error))
}

/// Has the kernel kill the command when the guard process is killed. Its children are killed by `run` then.
fn die_with_parent() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}
