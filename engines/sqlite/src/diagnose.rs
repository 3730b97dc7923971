//! Findings about the file.

use std::path::Path;

use fencelock_core::{Finding, Purpose};

/// The ways in which a file at this path could grant a lock twice.
pub(crate) fn limits(path: &Path) -> Vec<Finding> {
    let finding = |kind| {
        Finding::new(
            Purpose::Correctness,
            format!(
                "the file is on {kind}: other machines do not share its locks and clocks with this one, and two may hold"
            ),
            "put the file on a local disk; for several machines use a server such as redis: or etcd:",
        )
    };
    network_file_system(path).map(finding).into_iter().collect()
}

/// The kind of network file system that the file is on, if it is on one.
#[cfg(target_os = "linux")]
fn network_file_system(path: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    // The type has another width on each platform; its lower 32 bits are the magic number.
    match kind as u32 {
        0x6969 => Some("NFS"),
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => Some("SMB"),
        0x0102_1997 => Some("9P"),
        0x6573_5546 => Some("a FUSE file system, which may be a network's"),
        0x00c3_6400 => Some("Ceph"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        0x0bd0_0bd0 => Some("Lustre"),
        0x0116_1970 => Some("GFS2"),
        0x7461_636f => Some("OCFS2"),
        0x4750_4653 => Some("GPFS"),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_path: &Path) -> Option<&'static str> {
    None
}
