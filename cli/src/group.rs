//! The command's process group: signals to it, and whether a process of it still runs.

use std::time::Duration;

use fencelock::Clock;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, kill_process_group, test_kill_process, test_kill_process_group,
};

/// The time between two looks at a group that is ending.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What to do instead of running a command that changes its user.
pub(crate) const ADVICE: &str = "run fencelock itself as that user: `sudo fencelock run NAME -- COMMAND`, not `fencelock run NAME -- sudo COMMAND`";

/// Sends a signal to every process of the group. False if there are processes and this user may not signal any of them.
pub(crate) fn signal(group: Pid, signal: Signal) -> bool {
    kill_process_group(group, signal) != Err(Errno::PERM)
}

/// Whether this user may signal the process, or it is gone.
pub(crate) fn may_signal(process: Pid) -> bool {
    test_kill_process(process) != Err(Errno::PERM)
}

/// Waits until no process of the group runs, for at most `timeout`. False if one still runs. The leader must have been
/// reaped.
pub(crate) fn await_end(group: Pid, timeout: Duration) -> bool {
    let until = Clock::Boot.now() + timeout;
    while runs(group) {
        if Clock::Boot.now() >= until {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

/// What this user sees of a group's processes.
enum Seen {
    /// One runs, or this cannot be seen.
    Running,
    /// All have ended, and not all are reaped.
    Ended,
    /// There is none.
    Nothing,
}

/// Whether a process of the group runs. A process that has ended and is not reaped does not count.
fn runs(group: Pid) -> bool {
    // Cheap and usually enough, but it also finds processes that have ended and are not reaped.
    let tested = test_kill_process_group(group);
    tested != Err(Errno::SRCH)
        && match see(group) {
            Seen::Running => true,
            Seen::Ended => false,
            // The processes of another user may be hidden (hidepid, ProtectProc).
            Seen::Nothing => tested == Err(Errno::PERM),
        }
}

#[cfg(target_os = "linux")]
fn see(group: Pid) -> Seen {
    let group = group.as_raw_pid().to_string();
    let Ok(all) = std::fs::read_dir("/proc") else {
        return Seen::Running;
    };
    let mut seen = Seen::Nothing;
    for stat in all.filter_map(|entry| std::fs::read(entry.ok()?.path().join("stat")).ok()) {
        let stat = String::from_utf8_lossy(&stat);
        // The program's name, in parentheses, may contain anything. After it: state, parent, group.
        let words = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut words = words.split(' ');
        let ended = matches!(words.next(), None | Some("Z" | "X"));
        match (words.nth(1) == Some(&group), ended) {
            (true, false) => return Seen::Running,
            (true, true) => seen = Seen::Ended,
            (false, _) => {}
        }
    }
    seen
}

/// Other systems have no simple way to tell processes that run from those that have ended and are not reaped.
#[cfg(not(target_os = "linux"))]
fn see(_group: Pid) -> Seen {
    Seen::Running
}
