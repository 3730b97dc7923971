//! The boot of the machine: which rows were written since its last start.
//!
//! A row of an earlier boot is invalid, because its holder ended with the machine. A row of this boot must never be mistaken
//! for one of an earlier boot. The kernel's boot id tells boots apart. A container may have a boot id of its own mounted over
//! the kernel's; such an id does not identify the boot. Without an id one rule is certain: the boot clock never goes back
//! within a boot. So if a row was written later than now, it is of another boot. Every other row counts until its lease ends.

use std::fs::File;
use std::io::{self, Read};

use fencelock_core::BootInstant;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What this process knows of the boot of its machine.
#[derive(Debug)]
pub(crate) struct Boot {
    /// The kernel's boot id, if this process can see it.
    id: Option<Box<str>>,
}

impl Boot {
    /// What this process can find out.
    ///
    /// # Errors
    /// A sentence, if the boot cannot be determined, or if this process has a boot clock of its own.
    pub(crate) fn find() -> Result<Self, String> {
        if boot_clock_is_offset() {
            return Err(
                "this process is in a time namespace with a boot clock of its own, and its leases do not compare \
                 with those of other processes; run it without one, or use a server such as redis:"
                    .into(),
            );
        }
        let id = kernel_boot_id().map_err(|error| {
            format!(
                "the boot of this machine cannot be determined: {BOOT_ID} cannot be read: {error}; mount /proc, or use a server such as redis:"
            )
        })?;
        Ok(Self { id })
    }

    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Whether a stored id is certainly the id of this boot.
    pub(crate) fn is(&self, stored: &str) -> bool {
        self.id.as_deref() == Some(stored)
    }

    /// A condition in SQL: the holder is certainly of another boot. Rows that earlier versions wrote have neither `run` nor
    /// `written`: they are of the boot in `store.boot`.
    pub(crate) fn is_over(&self, now: BootInstant) -> String {
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
fn kernel_boot_id() -> io::Result<Option<Box<str>>> {
    let mut file = File::open(BOOT_ID)?;
    if !is_of_the_kernel(&file) {
        return Ok(None);
    }
    let mut id = String::new();
    file.read_to_string(&mut id)?;
    let id = id.trim();
    // `is_over` puts it into SQL.
    let is_plain = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    Ok(id.bytes().all(is_plain).then(|| id.into()))
}

/// Whether this file is the kernel's, with nothing mounted over it.
#[cfg(target_os = "linux")]
fn is_of_the_kernel(file: &File) -> bool {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
    const PROC: u32 = 0x9fa0;
    let on_proc = rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type as u32 == PROC);
    // Another file of /proc may be mounted over it. Kernels before 5.8 do not say so.
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    let mount = found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    on_proc && !mount
}

#[cfg(not(target_os = "linux"))]
fn is_of_the_kernel(_file: &File) -> bool {
    true
}

/// Whether the boot clock of this process differs from the machine's.
fn boot_clock_is_offset() -> bool {
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
