//! A command in a job of its own. The supervisor process starts the command and ends it in time. This side tells the
//! supervisor of each renewal, and stands between the terminal, the shell and the command.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Child;
use std::time::Duration;

use fencelock::{BootInstant, Clock, Guard};
use rustix::process::{
    Pid, Signal, getpgrp, kill_current_process_group, kill_process, kill_process_group,
};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::args::Times;
use crate::command::{ENDED, grace, held_too_long, lost, reserve};
use crate::environment;
use crate::exit::{Failure, Outcome, code, say};
use crate::group;
use crate::signals::Signals;
use crate::supervisor;
use crate::terminal::Terminal;
use crate::wire::{Cause, ChildExit, FRAME, Order, Report, Terms};

/// How long to wait for something that should happen at once: for the supervisor to end the command after a loss (then
/// this side kills it), or for the signal that continues this job.
const GRACE: Duration = Duration::from_millis(100);

/// How long to wait until the processes that this side has killed are gone.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// The end of a job.
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    /// A part of the command still runs, so the lock must not be released before its lease ends.
    pub(crate) survivors: bool,
}

/// Runs the command until it ends, or until the lock is lost.
pub(crate) async fn run(
    guard: &Guard,
    times: &Times,
    words: &[OsString],
    environment: &[(&'static str, String)],
    signals: &mut Signals,
) -> End {
    let mut job = match Job::start(times, guard, words, environment) {
        Ok(job) => job,
        Err(error) => {
            let outcome = Err(Failure::internal("starting the supervisor process", error));
            let survivors = false;
            return End { outcome, survivors };
        }
    };
    let outcome = job.attend(guard, signals).await;
    let survivors = job.survivors;
    End { outcome, survivors }
}

/// The command, its supervisor process and its terminal, as `run` sees them.
struct Job {
    /// The newest end of the validity that the supervisor knows.
    deadline: BootInstant,
    orders: StdStream,
    reports: mpsc::UnboundedReceiver<Report>,
    supervisor: Child,
    /// The command's process group, once it runs.
    group: Option<Pid>,
    terminal: Option<Terminal>,
    /// The command has the terminal.
    given: bool,
    /// This job has stopped itself, and has not continued yet.
    halted: bool,
    /// Why the lock is lost.
    loss: Option<String>,
    /// Somebody has asked for the lock, and the command was asked to end.
    asked: bool,
    /// The command runs as a user whom the supervisor may not signal.
    denied: bool,
    /// A part of the command could not be ended.
    survivors: bool,
}

impl Job {
    fn start(
        times: &Times,
        guard: &Guard,
        words: &[OsString],
        environment: &[(&'static str, String)],
    ) -> io::Result<Self> {
        let deadline = guard.valid_until();
        // A store may grant less than the ttl at a time, as ZooKeeper does when its longest session is shorter.
        let lease = guard.remaining().min(times.ttl);
        let terminal = Terminal::open();
        let given = terminal.as_ref().is_some_and(Terminal::is_ours);
        let terms = Terms {
            deadline,
            grace: grace(times.kill_after, lease),
            reserve: reserve(lease),
            kill_after: times.kill_after,
            max_hold: times.max_hold.map(|most| Clock::Boot.now() + most),
            foreground: given.then(getpgrp),
            nested: environment::outer_owner().is_some(),
        };
        let (supervisor, socket) = supervisor::start(&terms, words, environment)?;
        socket.set_nonblocking(true)?;
        let orders = socket.try_clone()?;
        let reader = UnixStream::from_std(socket)?;
        let (sender, reports) = mpsc::unbounded_channel();
        tokio::spawn(async move { receive_reports(reader, &sender).await });
        Ok(Self {
            deadline,
            orders,
            reports,
            supervisor,
            group: None,
            terminal,
            given,
            halted: false,
            loss: None,
            asked: false,
            denied: false,
            survivors: false,
        })
    }

    /// Passes on what happens to the lock, the command and this process until the command ends.
    async fn attend(&mut self, guard: &Guard, signals: &mut Signals) -> Outcome {
        let ended = loop {
            tokio::select! {
                biased;
                report = self.reports.recv() => match report {
                    None => break None,
                    Some(Report::Ended(exit, cause)) => break Some((exit, cause)),
                    Some(Report::NotStarted(errno)) => {
                        self.finish();
                        let error = io::Error::from_raw_os_error(errno);
                        return Err(Failure::internal("starting a process for the command", error));
                    }
                    Some(report) => self.note(report, guard),
                },
                why = guard.lost(), if self.loss.is_none() => {
                    self.loss = Some(why.to_string());
                    self.order(Order::Lost);
                }
                () = tokio::time::sleep(GRACE), if self.loss.is_some() => self.kill(),
                () = tokio::time::sleep(GRACE), if self.halted => self.not_halted(guard),
                until = end_of_validity(guard, self.deadline), if self.loss.is_none() => {
                    self.deadline = until;
                    self.order(Order::Deadline(until));
                }
                () = guard.asked_to_release(), if !self.asked => self.ask_to_end(guard),
                signal = signals.next() => {
                    if signal == Signal::CONT.as_raw() {
                        self.resume(guard);
                    } else {
                        self.order(Order::Signal(signal));
                    }
                }
            }
        };
        if ended.is_none() {
            self.kill();
            let gone = |group| group::await_end(group, REAP_TIMEOUT);
            self.survivors = self.group.is_some_and(|group| !gone(group));
        }
        self.finish();
        self.outcome(guard, ended)
    }

    /// Takes note of a report that does not end the job.
    fn note(&mut self, report: Report, guard: &Guard) {
        match report {
            Report::Started(pid) => self.group = Pid::from_raw(pid),
            Report::Stopped(signal) => self.stopped(signal, guard),
            Report::Denied => self.denied = true,
            Report::Survivors => self.survivors = true,
            Report::Ending(_) | Report::NotStarted(_) | Report::Ended(..) => {}
        }
    }

    /// Another client, or a replica that is about to end, asks for the lock: asks the command to end.
    fn ask_to_end(&mut self, guard: &Guard) {
        self.asked = true;
        let name = guard.name();
        let why = "another client (release --ask), or a replica of the lock service that is about to end, asks for it";
        say(&format!("lock {name}: {why}; the command is asked to end"));
        self.order(Order::Signal(Signal::TERM.as_raw()));
    }

    /// The outcome of the job. `ended` is `None` if the supervisor process was killed.
    fn outcome(&self, guard: &Guard, ended: Option<(ChildExit, Option<Cause>)>) -> Outcome {
        let fate = self.fate();
        match ended {
            Some((exit, None)) => Ok(exit.code()),
            Some((_, Some(Cause::MaxHold))) => Err(held_too_long(guard, fate)),
            Some(_) => {
                let why = self.loss.as_deref();
                let why = why.unwrap_or("it could not be renewed in time");
                Err(lost(guard, why, fate))
            }
            None => {
                let text = format!("the supervisor process was killed; {fate}");
                Err(Failure::new(code::INTERNAL, text))
            }
        }
    }

    /// What happened to a command that had to end.
    fn fate(&self) -> &'static str {
        match (self.survivors, self.denied) {
            (true, _) => {
                "a part of the command still runs, and this user may not signal it; the lock is free when its lease ends"
            }
            (false, true) => {
                "this user may not signal the command, which went on until it ended by itself"
            }
            (false, false) => ENDED,
        }
    }

    /// Sends an order to the supervisor. If the supervisor is gone, the channel of reports ends.
    fn order(&self, order: Order) {
        let _ = (&self.orders).write_all(&order.encode());
    }

    /// The command was stopped: stops this job too, so that the shell can continue it.
    fn stopped(&mut self, signal: i32, guard: &Guard) {
        let Some(terminal) = &self.terminal else {
            // The process that stopped the command will continue it. The lock stays held.
            return;
        };
        let wants_terminal = [Signal::TTIN, Signal::TTOU]
            .map(Signal::as_raw)
            .contains(&signal);
        if self.given && wants_terminal {
            // The command used the terminal before it was in the foreground.
            return self.resume(guard);
        }
        if std::mem::take(&mut self.given) {
            terminal.take_back();
        }
        // Returns when this job is continued. Returns at once if no process could continue it: the kernel ignores the
        // signal then.
        let _ = kill_current_process_group(Signal::TSTP);
        self.halted = true;
    }

    /// No signal has continued this job, so it never stopped. The command continues if it can.
    fn not_halted(&mut self, guard: &Guard) {
        self.halted = false;
        if self.terminal.as_ref().is_some_and(Terminal::is_ours) {
            self.resume(guard);
        }
    }

    /// This job was continued: continues the command if the lock is still held.
    fn resume(&mut self, guard: &Guard) {
        self.halted = false;
        if !guard.is_valid() {
            // The supervisor has ended the command, or is about to.
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

    /// Kills the command from here, and continues the supervisor in case it was stopped.
    fn kill(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let supervisor = i32::try_from(self.supervisor.id()).ok();
        if let Some(supervisor) = supervisor.and_then(Pid::from_raw) {
            let _ = kill_process(supervisor, Signal::CONT);
        }
    }

    /// The command has ended: takes the terminal back and waits for the supervisor process.
    fn finish(&mut self) {
        if let Some(terminal) = &self.terminal
            && std::mem::take(&mut self.given)
        {
            terminal.take_back();
        }
        let _ = self.supervisor.wait();
    }
}

/// Returns the end of the validity as soon as it differs from `known`.
async fn end_of_validity(guard: &Guard, known: BootInstant) -> BootInstant {
    let now = guard.valid_until();
    if now == known {
        guard.prolonged().await
    } else {
        now
    }
}

/// Passes on the supervisor's reports until it is gone.
async fn receive_reports(mut reader: UnixStream, sender: &mpsc::UnboundedSender<Report>) {
    let mut bytes = [0; FRAME];
    while reader.read_exact(&mut bytes).await.is_ok() {
        if let Some(report) = Report::decode(bytes)
            && sender.send(report).is_err()
        {
            return;
        }
    }
}
