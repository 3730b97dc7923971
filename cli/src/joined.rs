//! `run` inside a `run` of the same lock: the command joins the hold and stays in the outer process group, which the
//! outer supervisor process ends as a whole.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use fencelock::{BootInstant, Clock, Guard};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::args::Times;
use crate::command::{ENDED, grace, held_too_long, lost, not_started};
use crate::environment;
use crate::exit::{Failure, Outcome, code};
use crate::signals::Signals;
use crate::terminal::{Terminal, unshielded};
use crate::wire::ChildExit;

pub(crate) async fn run(
    guard: &Guard,
    times: &Times,
    words: &[OsString],
    environment: &[(&'static str, String)],
    signals: &mut Signals,
) -> Outcome {
    let mut child = start(words, environment)?;
    let signal = signals_to(&child);
    let begun = Clock::Boot.now();
    let (mut failure, mut is_lost, mut kill_at) = (None, false, None);
    let near_end = near_end(guard, times);
    tokio::pin!(near_end);
    let status = loop {
        tokio::select! {
            biased;
            status = child.wait() => break status,
            // Also while the command has time to end.
            why = guard.lost(), if !is_lost => {
                is_lost = true;
                failure.get_or_insert_with(|| lost(guard, &why.to_string(), ENDED));
                signal(Signal::KILL);
            }
            () = &mut near_end, if failure.is_none() => {
                let why = "the outer command could not renew it in time";
                failure = Some(lost(guard, why, ENDED));
                kill_at = Some(ask_to_end(signal, times));
            }
            () = max_hold_over(begun, times.max_hold), if failure.is_none() => {
                failure = Some(held_too_long(guard, ENDED));
                kill_at = Some(ask_to_end(signal, times));
            }
            () = reached(kill_at) => {
                kill_at = None;
                signal(Signal::KILL);
            }
            number = signals.next() => forward(number, signal),
        }
    };
    let status = status.map_err(|error| Failure::internal("waiting for the command", error))?;
    match failure {
        Some(failure) => Err(failure),
        None => Ok(child_exit(status).code()),
    }
}

/// Runs a command without a lock (`--if-away run`). It has no token, not even that of an outer `run`.
pub(crate) async fn run_alone(
    name: &str,
    times: &Times,
    words: &[OsString],
    signals: &mut Signals,
) -> Outcome {
    let mut child = start(words, &[])?;
    let signal = signals_to(&child);
    let begun = Clock::Boot.now();
    let (mut over, mut kill_at) = (false, None);
    let status = loop {
        tokio::select! {
            biased;
            status = child.wait() => break status,
            () = max_hold_over(begun, times.max_hold), if !over => {
                over = true;
                kill_at = Some(ask_to_end(signal, times));
            }
            () = reached(kill_at) => {
                kill_at = None;
                signal(Signal::KILL);
            }
            number = signals.next() => forward(number, signal),
        }
    };
    let status = status.map_err(|error| Failure::internal("waiting for the command", error))?;
    match over {
        true => {
            let text =
                format!("lock {name} (not held, --if-away run): --max-hold is over; {ENDED}");
            Err(Failure::new(code::LOST, text))
        }
        false => Ok(child_exit(status).code()),
    }
}

/// Asks the command to end. Returns when to kill it.
fn ask_to_end(signal: impl Fn(Signal), times: &Times) -> BootInstant {
    signal(Signal::TERM);
    Clock::Boot.now() + times.kill_after
}

/// Passes on a signal that the command has not got from the terminal.
fn forward(number: i32, signal: impl Fn(Signal)) {
    if let Some(received) = Signal::from_named_raw(number)
        && !came_from_terminal(received)
    {
        signal(received);
    }
}

/// Sends signals to the child. To be called only before the child is reaped: its id may be reused after that.
fn signals_to(child: &Child) -> impl Fn(Signal) + Copy + use<> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    let pid = pid.and_then(Pid::from_raw);
    move |signal| {
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }
}

fn start(words: &[OsString], variables: &[(&'static str, String)]) -> Result<Child, Failure> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::usage("the command is missing"));
    };
    let mut command = Command::new(program);
    // The outer command may have set these, for another lock.
    for variable in [
        environment::NAME,
        environment::TOKEN,
        environment::SEQUENCER,
    ] {
        command.env_remove(variable);
    }
    let variables = variables.iter().map(|(key, value)| (key, value));
    command.args(arguments).envs(variables);
    unshielded(|| command.spawn()).map_err(|error| not_started(words, &error))
}

/// Whether the terminal has sent this signal to the command as well, since both are in the same process group.
fn came_from_terminal(signal: Signal) -> bool {
    let keys = [Signal::INT, Signal::QUIT, Signal::WINCH];
    keys.contains(&signal) && Terminal::open().is_some_and(|terminal| terminal.is_ours())
}

/// Returns when only the time that the command needs to end is left of the validity. The lease belongs to the outer
/// command and may be far shorter than the ttl on this command line: its length is the time that was left when it was last
/// prolonged.
async fn near_end(guard: &Guard, times: &Times) {
    let (mut until, mut lease) = (guard.valid_until(), guard.remaining());
    loop {
        let left = guard.remaining();
        if guard.valid_until() != until {
            (until, lease) = (guard.valid_until(), left);
        }
        let grace = grace(times.kill_after, lease);
        if left <= grace {
            return;
        }
        tokio::time::sleep((left - grace).min(Duration::from_secs(1))).await;
    }
}

async fn max_hold_over(begun: BootInstant, max_hold: Option<Duration>) {
    reached(max_hold.map(|most| begun + most)).await;
}

/// Returns at this instant, if there is one.
async fn reached(at: Option<BootInstant>) {
    match at {
        Some(at) => Clock::Boot.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn child_exit(status: ExitStatus) -> ChildExit {
    let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    match (status.code(), status.signal()) {
        (Some(code), _) => ChildExit::Code(byte(code)),
        (None, signal) => ChildExit::Signal(byte(signal.unwrap_or(0))),
    }
}
