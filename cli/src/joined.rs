//! `run` within a `run` of the same lock: the command joins the hold and stays in the outer process group, whose guard
//! process ends it with all the rest.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use fencelock::{Clock, Guard};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use crate::args::Times;
use crate::exit::{Failure, Outcome as Exit, code};
use crate::run::{ENDED, grace, lost, not_started};
use crate::signals::Signals;
use crate::terminal::{Terminal, unshielded};
use crate::wire::Outcome;

pub(crate) async fn run(
    guard: &Guard,
    times: &Times,
    command: &[OsString],
    environment: &[(&'static str, String)],
    signals: &mut Signals,
) -> Exit {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::usage("the command is missing"));
    };
    let environment = environment.iter().map(|(key, value)| (key, value));
    let mut child = Command::new(program);
    child.args(arguments).envs(environment);
    let spawned = unshielded(|| child.spawn());
    let mut child = spawned.map_err(|error| not_started(command, &error))?;
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    let pid = pid.and_then(Pid::from_raw);
    // Not after it was waited for: its id may then be another's.
    let signal = |signal| {
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    };
    let begun = Clock::Boot.now();
    let mut ended_because = None;
    let near_end = near_end(guard, times);
    tokio::pin!(near_end);
    let status = loop {
        tokio::select! {
            biased;
            status = child.wait() => break status,
            why = guard.lost(), if ended_because.is_none() => {
                ended_because = Some(lost(guard, &why.to_string(), ENDED));
                signal(Signal::KILL);
            }
            () = &mut near_end, if ended_because.is_none() => {
                let why = "the outer command could not renew it in time";
                ended_because = Some(lost(guard, why, ENDED));
                signal(Signal::TERM);
            }
            () = over(begun, times.max_hold), if ended_because.is_none() => {
                let text = format!("lock {}: --max-hold is over; the command was ended", guard.name());
                ended_because = Some(Failure::new(code::LOST, text));
                signal(Signal::TERM);
            }
            () = tokio::time::sleep(times.kill_after), if ended_because.is_some() => signal(Signal::KILL),
            number = signals.next() => {
                if let Some(received) = Signal::from_named_raw(number)
                    && !came_from_terminal(received)
                {
                    signal(received);
                }
            }
        }
    };
    let status = status.map_err(|error| Failure::internal("waiting for the command", error))?;
    match ended_because {
        Some(failure) => Err(failure),
        None => Ok(outcome(status).code()),
    }
}

/// Whether the command got this signal as well, being in the same process group.
fn came_from_terminal(signal: Signal) -> bool {
    let keys = [Signal::INT, Signal::QUIT, Signal::WINCH];
    keys.contains(&signal) && Terminal::open().is_some_and(|terminal| terminal.is_ours())
}

/// Returns when of the validity only the time is left that the command needs to end. The lease is the outer command's, and
/// may be far shorter than one that this command line names: it is as long as was ever left of it.
async fn near_end(guard: &Guard, times: &Times) {
    let mut lease = Duration::ZERO;
    loop {
        let left = guard.remaining();
        lease = lease.max(left);
        let grace = grace(times.kill_after, lease);
        if left <= grace {
            return;
        }
        tokio::time::sleep((left - grace).min(Duration::from_secs(1))).await;
    }
}

async fn over(begun: fencelock::BootInstant, max_hold: Option<Duration>) {
    match max_hold {
        Some(most) => Clock::Boot.sleep_until(begun + most).await,
        None => std::future::pending().await,
    }
}

fn outcome(status: ExitStatus) -> Outcome {
    let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    match (status.code(), status.signal()) {
        (Some(code), _) => Outcome::Code(byte(code)),
        (None, signal) => Outcome::Signal(byte(signal.unwrap_or(0))),
    }
}
