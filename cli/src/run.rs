//! `run`: a command under a lock. The guard process (`guard.rs`) starts it and ends it in time; this side holds the
//! lock, tells the guard of each renewal, and stands between the terminal, the shell and the command.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Child;
use std::time::Duration;

use fencelock::{BootInstant, Client, Clock, Guard, Release, in_words};
use rustix::process::{
    Pid, Signal, getpgrp, kill_current_process_group, kill_process, kill_process_group,
};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::args::{Run, Times};
use crate::exit::{Failure, Outcome as Exit, code, say};
use crate::group;
use crate::guard::{self, Terms};
use crate::joined;
use crate::session::{self, Session};
use crate::signals::Signals;
use crate::terminal::Terminal;
use crate::wire::{FRAME, News, Order, Outcome, Why};

/// How long to wait for word that should come at once: from the guard process when the lock is lost (then the command is
/// killed from here), or from whoever has continued this job.
const UNHEARD: Duration = Duration::from_millis(100);

/// For how long those whom `run` itself has killed are given to be gone.
const BURIED: Duration = Duration::from_secs(1);

/// For how long a store is told of the end of a lock that is lost anyway.
const AFTER_LOSS: Duration = Duration::from_millis(300);

pub(crate) async fn run(args: Run, store: Option<String>) -> Exit {
    let times = args.taking.times()?;
    let command = command_line(&args);
    let mut signals = Signals::listen().map_err(|error| Failure::internal("signals", error))?;
    let session = session::take(&args.taking, &times, &args.name, store, &mut signals).await?;
    let Session { client, guard } = session;
    let free_at = times.at_least.map(|least| Clock::Boot.now() + least);
    let verbose = args.taking.verbose;
    if verbose {
        let how = if guard.joined() { "joined" } else { "held" };
        say(&format!(
            "lock {} is {how}, token {}",
            args.name,
            guard.token()
        ));
    }
    let outcome = match prepare(&guard, &times).await {
        Err(failure) => Err(failure),
        Ok(environment) if guard.joined() => {
            joined::run(&guard, &times, &command, &environment, &mut signals).await
        }
        Ok(environment) => {
            let over = under_guard(&guard, &times, &command, &environment, &mut signals).await;
            if over.left {
                // Neither released nor renewed any more: the lock is free after its lease.
                std::mem::forget(guard);
                return over.exit;
            }
            over.exit
        }
    };
    let_go(&client, guard, outcome, free_at, verbose).await
}

/// The words of the command.
fn command_line(args: &Run) -> Vec<OsString> {
    match &args.shell {
        None => args.command.clone(),
        Some(text) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            vec![
                shell.unwrap_or_else(|| "/bin/sh".into()),
                "-c".into(),
                text.clone(),
            ]
        }
    }
}

/// Makes sure of the whole lease, and says what the command finds in its environment.
async fn prepare(guard: &Guard, times: &Times) -> Result<Vec<(&'static str, String)>, Failure> {
    // A store may grant a waiter a short lease first, to see whether it is still there. That is too short to start in:
    // the command would be asked to end at once.
    if !guard.joined() && guard.remaining() < times.ttl / 2 {
        guard.refresh(times.ttl).await?;
    }
    let sequencer = guard.sequencer().await?;
    Ok(vec![
        (guard::NAME, guard.name().to_string()),
        ("FENCELOCK_TOKEN", guard.token().to_string()),
        ("FENCELOCK_SEQUENCER", sequencer.to_string()),
        (session::OWNER, guard.owner().to_owned()),
    ])
}

/// The end of every command that cannot be started.
pub(crate) fn not_started(command: &[OsString], error: &io::Error) -> Failure {
    let program = command.first().map(|word| word.to_string_lossy());
    let program = program.unwrap_or_default();
    if error.kind() == io::ErrorKind::NotFound {
        let text = format!("{program}: the command is not found");
        return Failure::new(code::NOT_FOUND, text);
    }
    let text = format!("{program}: the command cannot be started: {error}");
    Failure::new(code::NOT_STARTED, text)
}

/// The end of every command whose lock is lost; `how` tells what became of the command.
pub(crate) fn lost(guard: &Guard, why: &str, how: &str) -> Failure {
    let name = guard.name();
    Failure::new(code::LOST, format!("lock {name} was lost: {why}; {how}"))
}

/// What becomes of a command whose lock is lost.
pub(crate) const ENDED: &str = "the command was ended";

/// How long before the end of the validity a command is asked to end.
pub(crate) fn grace(kill_after: Duration, lease: Duration) -> Duration {
    kill_after.min(lease / 3)
}

/// Gives the lock back; others get it from `free_at` on (`--at-least`). The outcome of the command stands, unless the store
/// says that the lock was not held any more.
async fn let_go(
    client: &Client,
    guard: Guard,
    outcome: Exit,
    free_at: Option<BootInstant>,
    verbose: bool,
) -> Exit {
    let (name, until) = (guard.name().clone(), guard.valid_until());
    let own = !guard.joined();
    // After a loss there is nothing to wait for.
    let patience = if guard.is_valid() {
        session::CLOSING
    } else {
        AFTER_LOSS
    };
    let over = Instant::now() + patience;
    let released = timeout_at(over, guard.release()).await;
    let taken_away = matches!(
        released,
        Ok(Ok(Release::AlreadyExpired | Release::NotOwner))
    ) && Clock::Boot.now() < until;
    let _ = timeout_at(over, client.close()).await;
    match released {
        _ if outcome.is_err() => outcome,
        // The command has ended by itself, but the lock was another's already.
        _ if taken_away => {
            let text = format!("lock {name} was lost: it was taken away while the command ran");
            Err(Failure::new(code::LOST, text))
        }
        Ok(Ok(_)) => {
            if verbose && own {
                let left = free_at.map_or(Duration::ZERO, |at| at.since(Clock::Boot.now()));
                let stays = match left.is_zero() {
                    true => String::new(),
                    false => format!(", and stays taken for another {}", in_words(left)),
                };
                say(&format!("lock {name} is released{stays}"));
            }
            outcome
        }
        Ok(Err(_)) | Err(_) => {
            let text = "the store did not confirm the release; it is free after its lease";
            say(&format!("lock {name}: {text}"));
            outcome
        }
    }
}

/// The command, its guard process and its terminal, seen from `run`.
struct Job {
    /// The end of the validity that the guard process was started with.
    deadline: BootInstant,
    orders: StdStream,
    news: mpsc::UnboundedReceiver<News>,
    process: Child,
    /// The command's process group, once it runs.
    group: Option<Pid>,
    terminal: Option<Terminal>,
    /// The terminal is the command's now.
    given: bool,
    /// This job was to be stopped, and has not heard yet that it was continued.
    halted: bool,
    /// The command runs as a user whom the guard process may not signal.
    denied: bool,
    /// A part of the command goes on that could not be ended.
    left: bool,
}

/// The end of a job.
struct Over {
    exit: Exit,
    /// A part of the command goes on, so the lock must not be released before its lease is over.
    left: bool,
}

async fn under_guard(
    guard: &Guard,
    times: &Times,
    command: &[OsString],
    environment: &[(&'static str, String)],
    signals: &mut Signals,
) -> Over {
    let mut job = match Job::start(times, guard.valid_until(), command, environment) {
        Ok(job) => job,
        Err(error) => {
            let exit = Err(Failure::internal("starting the guard process", error));
            return Over { exit, left: false };
        }
    };
    let exit = job.attend(guard, signals).await;
    let left = job.left;
    Over { exit, left }
}

impl Job {
    /// Stands between the guard process and everybody else until the command is over.
    async fn attend(&mut self, guard: &Guard, signals: &mut Signals) -> Exit {
        let job = self;
        let mut sent = job.deadline;
        let mut lost_because: Option<String> = None;
        let mut asked = false;
        let ended = loop {
            tokio::select! {
                biased;
                news = job.news.recv() => match news {
                    None => break None,
                    Some(News::Started(pid)) => job.group = Pid::from_raw(pid),
                    Some(News::NotStarted(errno)) => {
                        job.finish();
                        let error = io::Error::from_raw_os_error(errno);
                        return Err(Failure::internal("starting a process for the command", error));
                    }
                    Some(News::Stopped(signal)) => job.stopped(signal, guard),
                    Some(News::Ending(_)) => {}
                    Some(News::Denied) => job.denied = true,
                    Some(News::Left) => job.left = true,
                    Some(News::Ended(outcome, why)) => break Some((outcome, why)),
                },
                why = guard.lost(), if lost_because.is_none() => {
                    lost_because = Some(why.to_string());
                    job.order(Order::Lost);
                }
                () = tokio::time::sleep(UNHEARD), if lost_because.is_some() => job.kill(),
                () = tokio::time::sleep(UNHEARD), if job.halted => job.not_halted(guard),
                until = end_of_validity(guard, sent), if lost_because.is_none() => {
                    sent = until;
                    job.order(Order::Deadline(until));
                }
                () = guard.asked_to_release(), if !asked => {
                    asked = true;
                    let name = guard.name();
                    say(&format!("lock {name}: somebody asks for it (release --ask), so the command is asked to end"));
                    job.order(Order::Signal(Signal::TERM.as_raw()));
                }
                signal = signals.next() => {
                    if signal == Signal::CONT.as_raw() {
                        job.resume(guard);
                    } else {
                        job.order(Order::Signal(signal));
                    }
                }
            }
        };
        if ended.is_none() {
            job.kill();
            job.left = job
                .group
                .is_some_and(|group| !group::await_end(group, BURIED));
        }
        job.finish();
        job.verdict(guard, ended, lost_because.as_deref())
    }

    /// What the end of the command comes to; without an outcome the guard process was killed.
    fn verdict(
        &self,
        guard: &Guard,
        ended: Option<(Outcome, Option<Why>)>,
        lost_because: Option<&str>,
    ) -> Exit {
        let how = self.fate();
        match ended {
            Some((outcome, None)) => Ok(outcome.code()),
            Some((_, Some(Why::MaxHold))) => {
                let name = guard.name();
                let text = format!("lock {name}: --max-hold is over; {how}");
                Err(Failure::new(code::LOST, text))
            }
            Some(_) => {
                let unrenewed = "it could not be renewed in time";
                Err(lost(guard, lost_because.unwrap_or(unrenewed), how))
            }
            None => {
                let text = format!("the guard process was killed; {how}");
                Err(Failure::new(code::INTERNAL, text))
            }
        }
    }

    /// What became of a command that was to end.
    fn fate(&self) -> &'static str {
        match (self.left, self.denied) {
            (true, _) => {
                "a part of the command goes on, which this user may not signal; the lock is free after its lease"
            }
            (false, true) => {
                "this user may not signal the command, which went on until it ended by itself"
            }
            (false, false) => ENDED,
        }
    }
}

/// The end of the validity, as soon as it is another than `known`.
async fn end_of_validity(guard: &Guard, known: BootInstant) -> BootInstant {
    let now = guard.valid_until();
    if now == known {
        guard.prolonged().await
    } else {
        now
    }
}

impl Job {
    fn start(
        times: &Times,
        deadline: BootInstant,
        command: &[OsString],
        environment: &[(&'static str, String)],
    ) -> io::Result<Self> {
        let terminal = Terminal::open();
        let given = terminal.as_ref().is_some_and(Terminal::is_ours);
        let terms = Terms {
            deadline,
            grace: grace(times.kill_after, times.ttl),
            kill_after: times.kill_after,
            max_hold: times.max_hold.map(|most| Clock::Boot.now() + most),
            foreground: given.then(getpgrp),
            nested: session::outer_owner().is_some(),
        };
        let (process, socket) = guard::start(&terms, command, environment)?;
        socket.set_nonblocking(true)?;
        let orders = socket.try_clone()?;
        let reader = UnixStream::from_std(socket)?;
        let (tell, news) = mpsc::unbounded_channel();
        tokio::spawn(async move { hear(reader, &tell).await });
        Ok(Self {
            deadline,
            orders,
            news,
            process,
            group: None,
            terminal,
            given,
            halted: false,
            denied: false,
            left: false,
        })
    }

    /// Tells the guard process. If it is gone, its silence says so.
    fn order(&self, order: Order) {
        let _ = (&self.orders).write_all(&order.encode());
    }

    /// The command was stopped. Whoever can continue this job is to see it stopped as well.
    fn stopped(&mut self, signal: i32, guard: &Guard) {
        let Some(terminal) = &self.terminal else {
            // Whoever stopped it will continue it; the lock is kept.
            return;
        };
        let wants_terminal = [Signal::TTIN, Signal::TTOU]
            .map(Signal::as_raw)
            .contains(&signal);
        if self.given && wants_terminal {
            // It was quicker than the terminal's handing over.
            return self.resume(guard);
        }
        if std::mem::take(&mut self.given) {
            terminal.take_back();
        }
        // Returns when this job is continued, or at once if nobody could do that.
        let _ = kill_current_process_group(Signal::TSTP);
        self.halted = true;
    }

    /// Nobody has continued this job, so it was never stopped: nobody could have. The command goes on, if it can.
    fn not_halted(&mut self, guard: &Guard) {
        self.halted = false;
        if self.terminal.as_ref().is_some_and(Terminal::is_ours) {
            self.resume(guard);
        }
    }

    /// This job was continued, and so is the command if the lock is held still.
    fn resume(&mut self, guard: &Guard) {
        self.halted = false;
        if !guard.is_valid() {
            // The guard process has ended it, or is about to.
            return;
        }
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group)
            && terminal.is_ours()
        {
            terminal.give(group);
            self.given = true;
        }
        self.order(Order::Signal(Signal::CONT.as_raw()));
    }

    /// Kills the command from here, and wakes the guard process, in case somebody stopped it.
    fn kill(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(guard) = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
        {
            let _ = kill_process(guard, Signal::CONT);
        }
    }

    /// The command is over: the terminal is this job's again, and the guard process is waited for.
    fn finish(&mut self) {
        if let Some(terminal) = &self.terminal
            && std::mem::take(&mut self.given)
        {
            terminal.take_back();
        }
        // It has nothing left to do.
        let _ = self.process.wait();
    }
}

/// Passes on what the guard process tells, until it is gone.
async fn hear(mut reader: UnixStream, tell: &mpsc::UnboundedSender<News>) {
    let mut bytes = [0; FRAME];
    while reader.read_exact(&mut bytes).await.is_ok() {
        if let Some(news) = News::decode(bytes)
            && tell.send(news).is_err()
        {
            return;
        }
    }
}
