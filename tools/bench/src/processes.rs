//! The CPU time and memory of this process and of the servers that it started, from Linux's /proc.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The CPU time and the memory of one program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    /// In bytes. Memory that several processes share is counted once.
    pub(crate) memory: u64,
}

/// One process, from /proc/PID/stat.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    program: String,
    parent: i32,
    /// Includes the children that have ended.
    cpu: Duration,
}

/// The CPU time of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Never negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// The resident memory of this process in bytes, if the system reports it.
pub(crate) fn resident() -> Option<u64> {
    own("VmRSS:")
}

/// The most resident memory that this process has had since [`forget_peak`].
pub(crate) fn peak() -> Option<u64> {
    own("VmHWM:")
}

/// Starts a new measurement of the peak. Without the right to do so, the peak is that of the whole run.
pub(crate) fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The usage of the servers that this process started, and of their child processes. Grouped by program, since a server
/// may have several processes.
pub(crate) fn started() -> BTreeMap<String, Usage> {
    let all = all();
    let mut ours: BTreeSet<i32> = BTreeSet::new();
    let mut fresh = vec![i32::try_from(std::process::id()).unwrap_or(0)];
    while let Some(parent) = fresh.pop() {
        let children = all.iter().filter(|(_, stat)| stat.parent == parent);
        let children: Vec<i32> = children.map(|(pid, _)| *pid).collect();
        ours.extend(&children);
        fresh.extend(children);
    }
    let mut programs: BTreeMap<String, Usage> = BTreeMap::new();
    for (pid, stat) in all.into_iter().filter(|(pid, _)| ours.contains(pid)) {
        let usage = programs.entry(stat.program).or_default();
        usage.cpu += stat.cpu;
        usage.memory += memory_of(pid);
    }
    programs
}

fn all() -> BTreeMap<i32, Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // A process that has just ended has no file.
    pids.filter_map(|pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, stat(&text)?))
    })
    .collect()
}

/// Reads one line of /proc/PID/stat: `PID (program) state parent ...`.
fn stat(text: &str) -> Option<Stat> {
    /// On every machine Linux shows CPU time in hundredths of a second here.
    const TICK: Duration = Duration::from_millis(10);
    // The name may have spaces and brackets.
    let (before, after) = text.rsplit_once(')')?;
    let program = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = after.split_whitespace().collect();
    // The fields from the third on: the parent is the fourth field, and the times are the fourteenth to the
    // seventeenth.
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u32>());
    let ticks: u32 = ticks.collect::<Result<Vec<_>, _>>().ok()?.iter().sum();
    Some(Stat {
        program,
        parent: fields.get(1)?.parse().ok()?,
        cpu: TICK * ticks,
    })
}

/// The memory of a process, with its share of shared memory. Without the right to see that, all resident memory.
fn memory_of(pid: i32) -> u64 {
    let shared = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let shared = shared.ok().and_then(|text| kib(&text, "Pss:"));
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        kib(&status, "VmRSS:")
    };
    shared.or_else(resident).unwrap_or(0)
}

fn own(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kib(&status, key)
}

/// The bytes in the line `key`, which is in units of 1,024.
fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_also_with_brackets_in_the_name() {
        let text = "42 (a (b) c) S 7 42 42 0 -1 4194304 100 0 0 0 150 50 25 75 20 0 4 0 1234 0 0";
        let expected = Stat {
            program: "a (b) c".into(),
            parent: 7,
            cpu: Duration::from_secs(3),
        };
        assert_eq!(stat(text), Some(expected));
        assert_eq!(stat("42 (short) S 7"), None);
    }

    #[test]
    fn the_line_of_a_status_is_found_by_its_key() {
        let text = "Name:\tx\nVmHWM:\t     900 kB\nVmRSS:\t     12 kB\n";
        assert_eq!(kib(text, "VmRSS:"), Some(12 * 1024));
        assert_eq!(kib(text, "Pss:"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_that_was_started_is_counted() {
        let mut child = std::process::Command::new("sleep");
        let mut child = child.arg("60").spawn().unwrap();
        let seen = started();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.contains_key("sleep"), "{seen:?}");
    }
}
