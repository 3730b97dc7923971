//! The name of the file. The file must have only one.
//!
//! SQLite keeps two more files beside the file, `-wal` and `-shm`, under the name by which it was opened. Processes that
//! open one file by two names do not see each other's locks, so two could hold. A file with a second name, or mounted by
//! itself, is refused.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The path of a file that SQLite keeps beside this one.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What is wrong with the name of the file at this path, and what to do. Symbolic links do no harm: SQLite follows them.
pub(crate) fn fault(path: &Path) -> io::Result<Option<String>> {
    let path = std::fs::canonicalize(path)?;
    let found = std::fs::metadata(&path)?;
    if found.is_dir() {
        return Ok(Some(
            "the path is a directory; name a file in it".to_owned(),
        ));
    }
    let links = found.nlink();
    if links > 1 {
        return Ok(Some(format!(
            "the file has {links} names (hard links), and processes that open it by different names do not see each other's \
             locks; keep one name and delete the others (find -samefile), or make the others symbolic links"
        )));
    }
    if is_mount_point(&path) {
        return Ok(Some(
            "the file itself is mounted here (a bind mount of one file, as with subPath in Kubernetes or -v FILE:FILE \
             in Docker), and processes that open it elsewhere do not see the locks taken here; mount the directory that has \
             the file instead"
                .into(),
        ));
    }
    Ok(None)
}

/// Whether something is mounted at exactly this path, which must have no symbolic link in it.
#[cfg(target_os = "linux")]
fn is_mount_point(path: &Path) -> bool {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
    let found = rustix::fs::statx(
        rustix::fs::CWD,
        path,
        AtFlags::empty(),
        StatxFlags::BASIC_STATS,
    );
    if let Ok(found) = found
        && (found.stx_attributes_mask).contains(StatxAttributes::MOUNT_ROOT)
    {
        return (found.stx_attributes).contains(StatxAttributes::MOUNT_ROOT);
    }
    // A kernel before 5.8. Without /proc the answer is "no".
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    is_listed(&mounts, path)
}

#[cfg(not(target_os = "linux"))]
fn is_mount_point(_path: &Path) -> bool {
    false
}

/// Whether the path is a mount point in this table (`/proc/self/mountinfo`), which has some bytes in octal.
#[cfg(target_os = "linux")]
fn is_listed(mounts: &[u8], path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let mut wanted = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => {
                wanted.extend_from_slice(format!("\\{byte:03o}").as_bytes());
            }
            plain => wanted.push(*plain),
        }
    }
    let mut lines = mounts.split(|byte| *byte == b'\n');
    lines.any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(&wanted))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found() {
        let mounts = b"29 1 254:0 / / rw - ext4 /dev/vda rw\n\
            61 29 254:0 /a /var/lib/my\\040locks/locks.db rw - ext4 /dev/vda rw\n";
        assert!(is_listed(mounts, Path::new("/var/lib/my locks/locks.db")));
        assert!(is_listed(mounts, Path::new("/")));
        assert!(!is_listed(mounts, Path::new("/var/lib/my locks")));
    }
}
