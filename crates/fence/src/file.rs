//! Marks in a file. Each change appends a line, which is synced before the holder passes. The file is rewritten when it is
//! opened, and when most of its lines are out of date.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use fencelock_core::LockName;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::{FenceError, Result};
use crate::marks::Marks;

/// The start of the header in every version.
const FORMAT: &str = "fencelock marks ";
const HEADER: &str = "fencelock marks 1\n";
/// The file is rewritten when it has this many lines more than twice the number of names.
const SPARE_LINES: usize = 4096;

/// The open file. No other process has it open at the same time.
#[derive(Debug)]
pub(crate) struct MarksFile {
    path: PathBuf,
    file: File,
    /// Locked. The lock is a separate file, because rewriting replaces the file of marks.
    lock: File,
    /// The end of the last complete line.
    good: u64,
    lines: usize,
    /// A write failed and could not be undone, or a sync failed: the content of the disk is unknown.
    broken: bool,
}

impl MarksFile {
    /// Opens or creates the file. With `wait` it waits while another process has it open.
    ///
    /// The file is rewritten before its marks are used. A line that can be read may not be on the disk yet: a process
    /// may have ended before it synced the line, or the sync may have failed.
    pub(crate) fn open(path: &Path, wait: bool) -> Result<(Self, HashMap<LockName, Marks>)> {
        let at = |action| move |cause: io::Error| failed(path, action, cause);
        let path = &resolved(path).map_err(at("find"))?;
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let why = "it is not a regular file; name another one";
            return Err(FenceError::damaged(path.display().to_string(), why));
        }
        let lock = Self::lock(path, wait)?;
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(at("read"))?,
        };
        let marks = read(path, &text)?;
        let (file, good) = replace(path, marks.iter()).map_err(at("write"))?;
        sync_directory(path).map_err(at("sync"))?;
        let this = Self {
            path: path.clone(),
            file,
            lock,
            good,
            lines: marks.len(),
            broken: false,
        };
        Ok((this, marks))
    }

    fn lock(path: &Path, wait: bool) -> Result<File> {
        let beside = lock_of(path);
        loop {
            let lock = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&beside)
                .map_err(|cause| failed(&beside, "open", cause))?;
            let locked = match wait {
                true => lock.lock(),
                false => match lock.try_lock() {
                    Err(TryLockError::WouldBlock) => {
                        let resource = path.display().to_string();
                        return Err(FenceError::InUse { resource });
                    }
                    Err(TryLockError::Error(error)) => Err(error),
                    Ok(()) => Ok(()),
                },
            };
            locked.map_err(|cause| failed(&beside, "lock", cause))?;
            // If the file was deleted after it was opened, its lock keeps no other process out.
            if is_at(&lock, &beside).map_err(|cause| failed(&beside, "find", cause))? {
                return Ok(lock);
            }
        }
    }

    /// Whether the paths still name the files of this process. Otherwise another process may have created new files,
    /// and may already be the fence.
    pub(crate) fn check_place(&self) -> Result<()> {
        let at = |action| move |cause: io::Error| failed(&self.path, action, cause);
        let beside = lock_of(&self.path);
        let there = is_at(&self.lock, &beside).map_err(at("find the lock of"))?
            && is_at(&self.file, &self.path).map_err(at("find"))?;
        if there {
            return Ok(());
        }
        let why =
            "it or its .lock was deleted or replaced while this process had it open; open it again";
        Err(FenceError::damaged(self.path.display().to_string(), why))
    }

    /// Writes the marks of one name. After `Ok` they are on the disk. After an error no holder may pass with them.
    pub(crate) fn append(
        &mut self,
        name: &LockName,
        marks: Marks,
        all: &HashMap<LockName, Marks>,
    ) -> Result<()> {
        if self.broken {
            let why = "a write failed or the file was replaced, and the content of the disk is unknown; open it again";
            return Err(FenceError::damaged(self.path.display().to_string(), why));
        }
        let line = line(name, marks);
        let written = self.file.write_all(line.as_bytes());
        if let Err(cause) = written {
            // No part of an incomplete line may remain before the next line.
            let undone = self.file.set_len(self.good);
            let undone = undone.and_then(|()| self.file.seek(SeekFrom::Start(self.good)));
            self.broken = undone.is_err();
            return Err(failed(&self.path, "write", cause));
        }
        if let Err(cause) = self.file.sync_data() {
            // The system may have dropped the pages. It reports that only once.
            self.broken = true;
            return Err(failed(&self.path, "sync", cause));
        }
        self.good += line.len() as u64;
        self.lines += 1;
        // Check after the write, so that a process that replaces this one later reads the line. Check before rewriting,
        // which would replace the file of another process.
        if let Err(error) = self.check_place() {
            self.broken = true;
            return Err(error);
        }
        if self.lines > 2 * all.len() + SPARE_LINES {
            self.rewrite(name, marks, all);
        }
        Ok(())
    }

    /// Replaces the file with a new one that has one line for each name. If that fails, the file stays.
    fn rewrite(&mut self, name: &LockName, marks: Marks, all: &HashMap<LockName, Marks>) {
        let others = all.iter().filter(|(other, _)| *other != name);
        match replace(&self.path, others.chain([(name, &marks)])) {
            Ok((file, good)) => {
                (self.file, self.good) = (file, good);
                self.lines = all.len().max(1);
                // Without the sync, a crash may bring back the old file, without the lines that are appended from now
                // on.
                self.broken = sync_directory(&self.path).is_err();
            }
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "the file of marks cannot be rewritten; it grows");
                self.lines = 0;
            }
        }
    }
}

/// The path without symbolic links. So the file has one lock, and a link stays a link when the file is replaced.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    match (fs::canonicalize(path), path.file_name()) {
        (Err(error), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(fs::canonicalize(directory(path))?.join(name))
        }
        (found, _) => found,
    }
}

fn lock_of(path: &Path) -> PathBuf {
    with_suffix(path, ".lock")
}

/// Whether the path names this file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino())),
    }
}

/// Files have no identity on other systems.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}

fn read(path: &Path, text: &[u8]) -> Result<HashMap<LockName, Marks>> {
    let damaged = |why: &str| Err(FenceError::damaged(path.display().to_string(), why));
    let mut marks = HashMap::new();
    // An incomplete header was never synced, so no holder has passed yet.
    if HEADER.as_bytes().starts_with(text) {
        return Ok(marks);
    }
    let Some(mut rest) = text.strip_prefix(HEADER.as_bytes()) else {
        return damaged(match text.starts_with(FORMAT.as_bytes()) {
            true => "it has another version than 1; use the fencelock that created it",
            false => "it is not a file of marks; name another one",
        });
    };
    let mut line = 1;
    // A line without a newline was being written when a process crashed.
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        line += 1;
        match parse(&rest[..end]) {
            Some((name, of_name)) => marks.insert(name, of_name),
            // The last line may be incomplete, and a newline after it may have been on the disk before. It was never
            // synced.
            None if rest.len() == end + 1 => break,
            None => {
                return damaged(&format!(
                    "line {line} is damaged; restore the file, or create a new one when all present holders have ended"
                ));
            }
        };
        rest = &rest[end + 1..];
    }
    Ok(marks)
}

/// Replaces the file at `path` with a synced one that has these marks. The caller syncs the directory. Returns the open
/// file and its length.
fn replace<'a>(
    path: &Path,
    marks: impl Iterator<Item = (&'a LockName, &'a Marks)>,
) -> io::Result<(File, u64)> {
    let new = with_suffix(path, ".new");
    let mut file = File::create(&new)?;
    inherit(&file, path);
    let mut text = HEADER.to_owned();
    for (name, marks) in marks {
        text += &line(name, *marks);
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    Ok((file, text.len() as u64))
}

/// Gives the new file the owner and the permissions of the file that it replaces, if this process may do so.
fn inherit(new: &File, path: &Path) {
    let Ok(old) = fs::metadata(path) else {
        return;
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        if let Err(error) = fchown(new, Some(old.uid()), Some(old.gid())) {
            tracing::debug!(file = %path.display(), %error, "the owner of the file could not be kept");
        }
    }
    if let Err(error) = new.set_permissions(old.permissions()) {
        tracing::debug!(file = %path.display(), %error, "the permissions of the file could not be kept");
    }
}

fn failed(path: &Path, action: &'static str, cause: io::Error) -> FenceError {
    FenceError::Write {
        resource: path.display().to_string(),
        action,
        cause: cause.into(),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(suffix);
    beside.into()
}

fn directory(path: &Path) -> &Path {
    let directory = path.parent();
    let named = directory.filter(|directory| !directory.as_os_str().is_empty());
    named.unwrap_or(Path::new("."))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

/// A line: `<checksum> <marks> <percent-encoded name>` and a newline.
fn line(name: &LockName, marks: Marks) -> String {
    let name = utf8_percent_encode(name.as_str(), NON_ALPHANUMERIC);
    let text = format!("{marks} {name}");
    format!("{:016x} {text}\n", checksum(text.as_bytes()))
}

fn parse(line: &[u8]) -> Option<(LockName, Marks)> {
    let (sum, text) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    if sum.len() != 16 || u64::from_str_radix(sum, 16).ok()? != checksum(text.as_bytes()) {
        return None;
    }
    let (marks, name) = text.split_once(' ')?;
    let name = percent_decode_str(name).decode_utf8().ok()?;
    Some((LockName::new(&name).ok()?, marks.parse().ok()?))
}

/// FNV-1a. It detects incomplete lines.
fn checksum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}
