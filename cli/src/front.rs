//! The step between the guard process and a command that gets the terminal: in the command's process already, it brings
//! its group to the foreground and then becomes the command, so that the command never runs without its terminal.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, getpgrp};

use crate::exit::{Failure, Outcome};
use crate::guard::this_binary;
use crate::run::not_started;
use crate::terminal::{Terminal, shield, unshielded};

/// The first argument of this step.
pub(crate) const WORD: &str = "__front";

/// This step, for a program that gets the terminal from the process group `from`.
pub(crate) fn command(from: Pid, program: &OsStr) -> io::Result<Command> {
    let mut command = Command::new(this_binary()?);
    command.arg(WORD).arg(Pid::as_raw(Some(from)).to_string());
    command.arg(program);
    Ok(command)
}

/// The step itself: everything after [`WORD`] on its command line. Returns only if the command cannot be started.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> Outcome {
    let from = arguments
        .next()
        .and_then(|text| text.to_str()?.parse().ok());
    let (from, command) = (from.and_then(Pid::from_raw), arguments.collect::<Vec<_>>());
    let (Some(from), Some((program, rest))) = (from, command.split_first()) else {
        return Err(Failure::usage("this word is for fencelock's own use"));
    };
    shield().map_err(|error| Failure::internal("blocking a signal", error))?;
    if let Some(terminal) = Terminal::open()
        // Not from a shell that has taken it back meanwhile.
        && terminal.is_of(from)
    {
        terminal.give(getpgrp());
    }
    let failed: io::Result<()> = unshielded(|| Err(Command::new(program).args(rest).exec()));
    match failed {
        Ok(()) => Err(Failure::internal(
            "starting the command",
            "it did not start",
        )),
        Err(error) => Err(not_started(&command, &error)),
    }
}
