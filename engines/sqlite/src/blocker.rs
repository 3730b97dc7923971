//! The process that keeps the file locked, according to the kernel.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::file_name::beside;

/// The kernel shows its list of locks in pieces. While other locks come and go between two pieces, one reading can miss a lock
/// that stays. With three processes that lock and unlock all the time, one reading in seventeen did.
const READINGS: usize = 10;

/// Names the process that has the file locked, for the error of a call that waited too long.
pub(crate) fn describe(path: &Path) -> String {
    let waited = "for longer than this one waits (response-timeout, connect-timeout)";
    match locked_by(path) {
        Some(pid) => format!("{} has kept the file locked {waited}", process(pid)),
        None => format!(
            "another process has kept the file locked {waited}; look for one that is stopped or hangs in the middle \
             of a transaction: fuser -v {}",
            path.display()
        ),
    }
}

/// The process that has the file locked for writing.
fn locked_by(path: &Path) -> Option<u32> {
    let path = std::fs::canonicalize(path).ok()?;
    // The bytes of -shm that a process locks to write, checkpoint or recover, and those of the file for other changes.
    let places = [
        (beside(&path, "-shm"), 120..=122),
        (path, 0x4000_0000..=u64::MAX),
    ];
    (0..READINGS).find_map(|_| {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        places.iter().find_map(|(path, bytes)| {
            let file = std::fs::metadata(path).ok()?;
            let mut lines = locks.lines();
            lines.find_map(|line| {
                let (pid, first) = write_lock(line, &file)?;
                bytes.contains(&first).then_some(pid)
            })
        })
    })
}

/// The process and the first byte of a write lock on this file, from a line of `/proc/locks`:
/// `1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120`.
fn write_lock(line: &str, file: &Metadata) -> Option<(u32, u64)> {
    let mut words = line.split_whitespace().skip(1);
    if (words.next()?, words.next()?, words.next()?) != ("POSIX", "ADVISORY", "WRITE") {
        return None;
    }
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 0)?;
    let device = file.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    if words.next()? != format!("{major:02x}:{minor:02x}:{}", file.ino()) {
        return None;
    }
    Some((pid, words.next()?.parse().ok()?))
}

/// A process by id and name, and whether it is stopped.
fn process(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let state = state.rsplit(") ").next().unwrap_or_default();
    let name = match name.trim() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    let stopped = if state.starts_with(['T', 't']) {
        format!(", which is stopped (kill -CONT {pid} lets it continue),")
    } else {
        String::new()
    };
    format!("process {pid}{name}{stopped}")
}
