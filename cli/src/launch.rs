//! The step between the supervisor and the command, in the command's own process: it ties the command's life to the
//! supervisor's, brings its group to the foreground of the terminal, unblocks the signals, and then becomes the command.
//! So the command never runs without these, and the supervisor never has to unblock signals itself.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, getpgrp, getpid, getppid};

use crate::command::not_started;
use crate::exit::{Failure, Outcome};
use crate::terminal::Terminal;

/// The first argument of this step.
pub(crate) const WORD: &str = "__launch";

/// This step for a program, which takes the terminal over from the process group `foreground`, if there is one.
pub(crate) fn command(foreground: Option<Pid>, program: &OsStr) -> io::Result<Command> {
    let mut command = Command::new(this_binary()?);
    command.arg(WORD);
    for pid in [Some(getpid()), foreground] {
        command.arg(Pid::as_raw(pid).to_string());
    }
    command.arg(program);
    Ok(command)
}

/// This very binary, even after an upgrade has replaced its file.
pub(crate) fn this_binary() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        Ok(link.to_owned())
    } else {
        std::env::current_exe()
    }
}

/// The step itself; `arguments` follow [`WORD`] on its command line. Returns only if the command cannot be started.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> Outcome {
    let mut pid = || {
        let number = arguments.next()?.to_str()?.parse().ok()?;
        Pid::from_raw(number)
    };
    let (supervisor, foreground) = (pid(), pid());
    let command: Vec<OsString> = arguments.collect();
    let Some((program, rest)) = command.split_first() else {
        return Err(Failure::usage("only fencelock itself may use this word"));
    };
    die_with_parent().map_err(|error| Failure::internal("binding the command's life", error))?;
    if getppid() != supervisor {
        return Err(Failure::internal(
            "starting the command",
            "its supervisor is gone",
        ));
    }
    if let Some(foreground) = foreground
        && let Some(terminal) = Terminal::open()
        // A shell that has taken the terminal back in the meantime keeps it.
        && terminal.is_of(foreground)
    {
        terminal.give(getpgrp());
    }
    // The supervisor's block of all signals is inherited. Signals that arrived since then take effect here.
    let unblocked = SigSet::all().thread_unblock();
    unblocked.map_err(|error| Failure::internal("unblocking signals", error))?;
    let error = Command::new(program).args(rest).exec();
    Err(not_started(&command, &error))
}

/// Has the kernel kill the command when the supervisor is killed. `run` then kills the command's children.
fn die_with_parent() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}
