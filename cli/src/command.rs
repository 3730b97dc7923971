//! What every way to run a command shares: its words, its environment, and the failures that end it.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use fencelock::Guard;

use crate::args::{Run, Times};
use crate::environment;
use crate::exit::{Failure, code};

/// What happened to a command whose lock was lost.
pub(crate) const ENDED: &str = "the command was ended";

/// The program and its arguments.
pub(crate) fn words(args: &Run) -> Vec<OsString> {
    match &args.shell {
        None => args.command.clone(),
        Some(text) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| "/bin/sh".into());
            vec![shell, "-c".into(), text.clone()]
        }
    }
}

/// Makes sure that the command has a whole lease before it, and returns its environment variables.
pub(crate) async fn prepare(
    guard: &Guard,
    times: &Times,
) -> Result<Vec<(&'static str, String)>, Failure> {
    // A store may first grant a waiter a short lease, to see whether the waiter is still alive. That is too short for a
    // command: it would be asked to end at once.
    if !guard.joined() && guard.remaining() < times.ttl / 2 {
        guard.refresh(times.ttl).await?;
    }
    let sequencer = guard.sequencer().await?;
    Ok(vec![
        (environment::NAME, guard.name().to_string()),
        (environment::TOKEN, guard.token().to_string()),
        (environment::SEQUENCER, sequencer.to_string()),
        (environment::OWNER, guard.owner().to_owned()),
    ])
}

/// How long before the end of the validity a command is asked to end.
pub(crate) fn grace(kill_after: Duration, lease: Duration) -> Duration {
    kill_after.min(lease / 3)
}

/// How long before the end of the validity a command is killed. Between the signal and the end of the last process the kernel
/// has work to do. On a busy machine the supervisor may also be late itself.
pub(crate) fn reserve(lease: Duration) -> Duration {
    (lease / 12).min(Duration::from_secs(1))
}

/// The failure of a command that cannot be started.
pub(crate) fn not_started(command: &[OsString], error: &io::Error) -> Failure {
    let program = command.first().map(|word| word.to_string_lossy());
    let program = program.unwrap_or_default();
    if error.kind() == io::ErrorKind::NotFound {
        let text = format!("{program}: command not found");
        return Failure::new(code::NOT_FOUND, text);
    }
    let text = format!("{program}: the command cannot be started: {error}");
    Failure::new(code::NOT_STARTED, text)
}

/// The failure of a command whose lock was lost; `fate` says what happened to the command.
pub(crate) fn lost(guard: &Guard, why: &str, fate: &str) -> Failure {
    let name = guard.name();
    Failure::new(code::LOST, format!("lock {name} was lost: {why}; {fate}"))
}

/// The failure of a command whose `--max-hold` is over; `fate` says what happened to the command.
pub(crate) fn held_too_long(guard: &Guard, fate: &str) -> Failure {
    let name = guard.name();
    Failure::new(
        code::LOST,
        format!("lock {name}: --max-hold is over; {fate}"),
    )
}
