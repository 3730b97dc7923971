//! The command's process group: signals to it, and who is left of it.

use std::time::Duration;

use fencelock::Clock;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, kill_process_group, test_kill_process, test_kill_process_group,
};

/// How often one looks whether those who were killed are gone.
const LOOK: Duration = Duration::from_millis(5);

/// What to do instead of running a command that changes its user.
pub(crate) const INSTEAD: &str = "run fencelock itself as that user: `sudo fencelock run NAME -- COMMAND`, not `fencelock run NAME -- sudo COMMAND`";

/// Sends a signal to everybody in the group. False if somebody is there, and this user may not signal anybody of them.
pub(crate) fn signal(group: Pid, signal: Signal) -> bool {
    kill_process_group(group, signal) != Err(Errno::PERM)
}

/// Whether this user may signal the process, or it is gone.
pub(crate) fn may_signal(process: Pid) -> bool {
    test_kill_process(process) != Err(Errno::PERM)
}

/// Waits until nobody lives in the group, for so long at most. False if somebody is left. Its leader was waited for already.
pub(crate) fn await_end(group: Pid, most: Duration) -> bool {
    let until = Clock::Boot.now() + most;
    // The first look is cheap, and mostly all that is needed; it counts also those who are dead and not yet waited for.
    while test_kill_process_group(group) != Err(Errno::SRCH) && anybody_lives(group) {
        if Clock::Boot.now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Whether a process of the group lives; one that is dead and not yet waited for does not.
#[cfg(target_os = "linux")]
fn anybody_lives(group: Pid) -> bool {
    let group = group.as_raw_pid().to_string();
    let Ok(all) = std::fs::read_dir("/proc") else {
        return false;
    };
    let mut stats = all.filter_map(|entry| std::fs::read(entry.ok()?.path().join("stat")).ok());
    stats.any(|stat| {
        let stat = String::from_utf8_lossy(&stat);
        // The program's name, in parentheses, may hold anything. After it: state, parent, group.
        let words = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut words = words.split(' ');
        let dead = matches!(words.next(), None | Some("Z" | "X"));
        !dead && words.nth(1) == Some(&group)
    })
}

/// Elsewhere nothing tells the dead from the living simply.
#[cfg(not(target_os = "linux"))]
fn anybody_lives(_group: Pid) -> bool {
    true
}
