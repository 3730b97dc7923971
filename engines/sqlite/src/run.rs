//! The run of the machine: which rows of a file are of this one, and which were left by an earlier one.
//!
//! A row of an earlier run is over, since its holder ended with the machine. A row of this run must never be taken for
//! one. The kernel's boot id tells runs apart. A container may have a boot id of its own, mounted over the kernel's: it
//! says nothing about the run. What is certain without an id is this: the boot clock never goes back within a run, so a
//! row that was written later than now is of another run. Any other row is believed until its lease is over.

use std::fs::File;
use std::io::{self, Read};

use fencelock_core::BootInstant;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What this process knows of the run of its machine.
#[derive(Debug)]
pub(super) struct Run {
    /// The kernel's boot id, if this process can see it.
    id: Option<Box<str>>,
}

impl Run {
    /// What this process can find out.
    ///
    /// # Errors
    /// A sentence, if this machine cannot tell since when it runs, or shows this process another boot clock.
    pub(super) fn find() -> Result<Self, String> {
        if offset_of_boot_clock() {
            return Err(
                "this process is in a time namespace with a boot clock of its own, and its leases do not compare \
                 with those of other processes; run it without one, or use a server such as redis:"
                    .into(),
            );
        }
        let id = kernels_boot_id().map_err(|error| {
            format!("{BOOT_ID} tells since when this machine runs, and cannot be read: {error}")
        })?;
        Ok(Self { id })
    }

    /// The id to be stored, if this process knows it.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Whether this id, which somebody stored who knew it, is that of this run.
    pub(super) fn is(&self, stored: &str) -> bool {
        self.id.as_deref() == Some(stored)
    }

    /// What is so in SQL for a holder that is of another run for certain. Rows that earlier versions wrote have neither
    /// `run` nor `written`: they were written in the run that `store.boot` names.
    pub(super) fn is_over(&self, now: BootInstant) -> String {
        let now = now.as_nanos();
        match &self.id {
            Some(id) => format!(
                "CASE WHEN run IS NOT NULL THEN run <> '{id}' WHEN written IS NOT NULL THEN written > {now} ELSE 1 END"
            ),
            None => format!("coalesce(written, since) > {now}"),
        }
    }
}

/// The kernel's boot id; `None` if something else is mounted in its place.
fn kernels_boot_id() -> io::Result<Option<Box<str>>> {
    let mut file = File::open(BOOT_ID)?;
    if !is_the_kernels(&file) {
        return Ok(None);
    }
    let mut id = String::new();
    file.read_to_string(&mut id)?;
    let id = id.trim();
    // It stands in SQL.
    let is_plain = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    Ok(id.bytes().all(is_plain).then(|| id.into()))
}

/// Whether this file of /proc is the kernel's own, with nothing mounted over it.
#[cfg(target_os = "linux")]
fn is_the_kernels(file: &File) -> bool {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
    const PROC: u32 = 0x9fa0;
    let on_proc = rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type as u32 == PROC);
    // Another file of /proc may be mounted over it. Kernels before 5.8 do not tell.
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    let mount = found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    on_proc && !mount
}

#[cfg(not(target_os = "linux"))]
fn is_the_kernels(_file: &File) -> bool {
    true
}

/// Whether this process's boot clock is shifted against the machine's.
fn offset_of_boot_clock() -> bool {
    let Ok(offsets) = std::fs::read_to_string("/proc/self/timens_offsets") else {
        return false;
    };
    let boot = offsets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        matches!(name, "boottime" | "7").then(|| words.any(|word| word != "0"))
    });
    boot.unwrap_or(false)
}
